"""Arguments in, exit code out. Trusted side. The only reader of the environment.

Each command imports what it needs when it runs, so that `rambarde --version` stays quick.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from rambarde import __version__
from rambarde.errors import Exit, RambardeError, UsageError, first_of

_MOST_S = 1e9
_MOST_STDIN = 1 << 20
_SET_HELP = "One setting for this run; may be repeated."
_PROMPT_FLAGS = frozenset({"-p", "--prompt", "--print"})
_OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What writing to a pipe, a file or a terminal that is full or gone says: no bug of ours."""


def run(argv: Sequence[str]) -> int:
    """Run the command line and return the exit code; every error becomes words on stderr."""
    try:
        result = _main.main(args=_one_shot(list(argv)), prog_name="rambarde", standalone_mode=False)
    except RambardeError as exc:
        return _fail(exc)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except BaseExceptionGroup as group:
        return _fail_of_group(group)
    except click.ClickException as exc:
        exc.show()
        if argv and " " in argv[0]:
            _say_error('A task is given with -p: rambarde -p "what to do"')
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except OSError as exc:
        return _output_failed(exc) if _is_of_output(exc) else _bug(exc)
    except Exception as exc:  # noqa: BLE001 - the last line of defence: our bug, said as such
        return _bug(exc)
    return int(result or 0)


def _is_of_output(exc: OSError) -> bool:
    return exc.errno in _OUTPUT_ERRORS and exc.filename is None


def _output_failed(exc: OSError) -> int:
    """Say that standard output cannot be written; a reader that went away is told nothing."""
    # What is still buffered would be tried again at exit, and fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if exc.errno != errno.EPIPE:
        _say_error(f"rambarde: cannot write to standard output: {exc.strerror}")
        _say_error("  Make room, or send the output elsewhere.")
    return Exit.FAILED


def _one_shot(argv: list[str]) -> list[str]:
    """`rambarde -p PROMPT …` is `rambarde run …`."""
    head = argv[: argv.index("--")] if "--" in argv else argv
    if head and head[0].startswith("-") and _PROMPT_FLAGS & set(head):
        return ["run", *argv]
    return argv


def _fail(exc: RambardeError) -> int:
    _say_error(f"rambarde: {exc.message}")
    if exc.advice:
        _say_error(f"  {exc.advice}")
    return int(exc.exit_code)


def _fail_of_group(group: BaseExceptionGroup[BaseException]) -> int:
    """Say the error of ours inside a task group's; anything else is our bug."""
    first = first_of(group)
    return _fail(first) if isinstance(first, RambardeError) else _bug(group)


def _bug(exc: BaseException) -> int:
    import traceback

    _say_error("rambarde: internal error; please report it with this text:")
    _say_error("".join(traceback.format_exception(exc)))
    return Exit.BUG


def _say_error(text: str) -> None:
    try:
        sys.stderr.write(_visible(text) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def _visible(text: str) -> str:
    from rambarde.children.output import visible

    return "\n".join(visible(line) for line in text.split("\n"))


def _out(text: str) -> None:
    """Print what may hold words of a child or a model: nothing in it drives the terminal."""
    sys.stdout.write(_visible(text) + "\n")
    sys.stdout.flush()


def _environment() -> dict[str, str]:
    return dict(os.environ)


def _bounded(
    _context: click.Context, _option: click.Parameter, seconds: float | None
) -> float | None:
    """Return a duration that is one: the bound can be set, not removed."""
    if seconds is not None and not seconds > 0:
        raise click.BadParameter(f"{seconds} is no duration: it must be above 0")
    if seconds is not None and seconds > _MOST_S:
        raise click.BadParameter(f"{seconds} is above {_MOST_S:.0f}: the bound cannot be removed")
    return seconds


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, "--version", message="rambarde %(version)s")
@click.pass_context
def _main(context: click.Context) -> None:
    """Run coding agents and their subagents as sandboxed processes.

    `rambarde -p "what to do"` is short for `rambarde run "what to do"`.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(Exit.USAGE)


_Decorated = Callable[..., Any]


def _common(command: _Decorated) -> _Decorated:
    for option in (
        click.option("--repo", default=".", metavar="DIR", help="Workspace; default: here."),
        click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help=_SET_HELP),
        click.option("--tier", type=click.Choice(["A", "A-proc", "B", "C"]), help="Least sandbox."),
    ):
        command = option(command)
    return command


@_main.command("run")
@_common
@click.argument("words", required=False, metavar="[PROMPT]")
@click.option("-p", "--prompt", "--print", "prompt", metavar="PROMPT", help="What to do.")
@click.option("--agent", metavar="NAME", help="Agent, or a path to its .md file; default: general.")
@click.option("--plan", is_flag=True, help="Read-only workspace, enforced by the kernel.")
@click.option("--engine", metavar="URL", help="http(s)://…/v1, anthropic:URL, offline.")
@click.option("--model", metavar="NAME", help="The model's name at the engine.")
@click.option("--key-file", metavar="PATH|FD", help="Where the engine's key is.")
@click.option("--max-actions", type=click.IntRange(min=1), metavar="N", help="Tool calls.")
@click.option("--max-duration", type=float, callback=_bounded, metavar="SECONDS")
@click.option("--output-format", type=click.Choice(["text", "json", "stream-json"]), default="text")
@click.option("--json", "as_json", is_flag=True, help="Short for --output-format json.")
@click.option("--allowedTools", "allowed", metavar="LIST", help="Only these tools.")
@click.option("--disallowedTools", "disallowed", metavar="LIST", help="Without these tools.")
@click.option("--fail-on-denied", is_flag=True, help="Exit 4 when a call was refused.")
@click.option("--ephemeral", is_flag=True, help="Remove the record after the run.")
@click.option("--lang", type=click.Choice(["en", "fr"]))
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
def _run(words: str | None, prompt: str | None, as_json: bool, **options: Any) -> int:
    """Give an agent one task and print its answer."""
    text = prompt if prompt is not None else words
    if prompt is not None and words is not None:
        raise UsageError("two prompts were given", advice="Give one, quoted.")
    if as_json:
        options["output_format"] = "json"
    return _one_run(_with_stdin(text), **options)


def _with_stdin(text: str | None) -> str:
    """The prompt with standard input appended, when that is a pipe or a file."""
    piped = ""
    if text in (None, "-") or not _is_idle(0):
        data = sys.stdin.buffer.read(_MOST_STDIN + 1)
        if len(data) > _MOST_STDIN:
            raise UsageError(
                f"standard input is above {_MOST_STDIN >> 10} KiB, which no prompt is",
                advice="Give the agent a file's path to read, in place of its content.",
            )
        piped = data.decode(errors="replace")
    prompt = "\n\n".join(part for part in (text if text != "-" else "", piped.strip()) if part)
    if not prompt.strip():
        raise UsageError("there is no prompt", advice='Try: rambarde -p "what to do"')
    # Arguments are bytes that need be no text; what is none cannot go to a model.
    return prompt.encode(errors="surrogateescape").decode(errors="replace")


def _is_idle(fd: int) -> bool:
    """True when reading would wait for a person, or for nobody (a terminal, /dev/null, closed)."""
    import select
    import stat

    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return True
    if os.isatty(fd) or stat.S_ISCHR(mode):
        return True
    return not stat.S_ISREG(mode) and not select.select([fd], [], [], 0.05)[0]


def _one_run(prompt: str, **options: Any) -> int:
    from rambarde.app.run import RunRequest, run_task
    from rambarde.oneshot.screen import Screen, wants_color
    from rambarde.oneshot.stream_json import StreamJson

    environment = _environment()
    output_format = options.pop("output_format")
    fail_on_denied = options.pop("fail_on_denied")
    quiet = options.pop("quiet")
    request = RunRequest(prompt=prompt, environment=environment, **options)
    live = os.isatty(2) and environment.get("TERM", "dumb") != "dumb"
    screen = Screen(sys.stderr, live=live, color=wants_color(environment, 2))
    listeners: list[Any] = [] if quiet else [screen]
    if output_format == "stream-json":
        head = {"cwd": os.path.abspath(request.repo), "model": request.model or ""}
        listeners.append(StreamJson(lambda line: _out(json.dumps(line)), head))
    result = run_task(request, listeners)
    screen.close()
    if output_format == "text":
        try:
            if result.text:
                _out(result.text)
        finally:
            _report(result, quiet=quiet)
    else:
        _out(json.dumps(result.as_json()))
    return result.exit_code(fail_on_denied=fail_on_denied)


def _report(result: Any, *, quiet: bool) -> None:
    if not result.is_done:
        _say_error(f"rambarde: {result.status}" + (f": {result.error}" if result.error else ""))
    if not quiet:
        for notice in result.notices:
            _say_error(f"rambarde: {notice}")
        if result.files_written:
            _say_error(f"files written: {', '.join(result.files_written)}")
        if result.record:
            _say_error(f"record: {result.record}  (rambarde sessions show {result.session_id})")


@_main.command("demo")
@_common
@click.argument("words", required=False, metavar="[PROMPT]")
@click.option("--plan", is_flag=True, help="Read-only workspace.")
@click.option("--output-format", type=click.Choice(["text", "json", "stream-json"]), default="text")
@click.option("--lang", type=click.Choice(["en", "fr"]))
@click.option("-q", "--quiet", is_flag=True)
def _demo(words: str | None, **options: Any) -> int:
    """Do the main job now: map a repository.

    Or any other task. Where no engine is configured, the offline engine does it: no model needed.
    """
    from rambarde.app.look import configured_engine

    engine = configured_engine(_environment())
    if engine is None:
        engine = "offline"
        _say_error("no engine is configured: using the offline engine, which is no language model")
    prompt = words or "Map this repository: languages, entry points, tests, build."
    return _one_run(
        prompt,
        engine=engine,
        model=None,
        agent=None,
        key_file=None,
        max_actions=None,
        max_duration=None,
        allowed=None,
        disallowed=None,
        fail_on_denied=False,
        ephemeral=False,
        **options,
    )


@_main.command("exec", context_settings={"ignore_unknown_options": True})
@_common
@click.option("--policy", default="workspace-write", metavar="NAME")
@click.option("--max-duration", type=float, callback=_bounded, metavar="SECONDS")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on standard error at the end."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def _exec(command: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Run any program under the same sandbox, clock and limits.

    Write it behind a double dash: rambarde exec -- pytest -q
    """
    from rambarde.app.execute import ExecRequest, run_exec

    result = run_exec(ExecRequest(command=command, environment=_environment(), **options))
    if as_json:
        _say_error(json.dumps(result.as_json()))
    elif result.words:
        _say_error(f"rambarde: {result.words}")
    for notice in result.notices:
        _say_error(f"rambarde: {notice}")
    return result.exit_code


@_main.command("doctor")
@click.option("--json", "as_json", is_flag=True)
@click.option("--repo", default=".", metavar="DIR")
def _doctor(as_json: bool, repo: str) -> int:
    """Say what this kernel can enforce, and what is missing.

    Each tier of the sandbox is tried, best first; what would mend a missing one is said.
    """
    from rambarde.app.diagnose import diagnose

    diagnosis = diagnose(repo, _environment())
    _out(json.dumps(diagnosis.as_json(), indent=2) if as_json else diagnosis.as_text())
    return Exit.DONE if diagnosis.tier else Exit.NO_SANDBOX


@_main.group("agents")
def _agents() -> None:
    """Agents: built in, the user's, the repository's."""


@_agents.command("list")
@click.option("--json", "as_json", is_flag=True)
@click.option("--repo", default=".", metavar="DIR")
def _agents_list(as_json: bool, repo: str) -> int:
    """List agents, who may use them, and files that were set aside."""
    from rambarde.app.look import list_agents

    rows, notices = list_agents(repo, _environment())
    if as_json:
        _out(json.dumps({"agents": rows, "set_aside": notices}, indent=2))
        return Exit.DONE
    for row in rows:
        _out(f"{row['name']:<16} {row['mode']:<10} {row['origin']:<10} {row['description']}")
    for notice in notices:
        _say_error(f"set aside: {notice}")
    return Exit.DONE


@_main.group("sessions")
def _sessions() -> None:
    """The record of what was done."""


@_sessions.command("list")
@click.option("--json", "as_json", is_flag=True)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20)
@click.option("--all", "everything", is_flag=True, help="Subagents' sessions as well.")
def _sessions_list(as_json: bool, limit: int, everything: bool) -> int:
    """List sessions, newest first."""
    from rambarde.app.look import list_sessions

    rows = list_sessions(limit, everything=everything)
    if as_json:
        _out(json.dumps(rows, indent=2))
        return Exit.DONE
    if not rows:
        _say_error("no sessions yet")
    for row in rows:
        title = _visible(str(row["title"]))
        _out(f"{row['session_id']}  {row['status']:<14} {row['agent']:<10} {title}")
    return Exit.DONE


@_sessions.command("show")
@click.argument("session_id")
@click.option("--json", "as_json", is_flag=True, help="The raw lines.")
def _sessions_show(session_id: str, as_json: bool) -> int:
    """Show one session, call by call.

    Each call, verdict and end; and whether the chain of the record is whole.
    """
    from rambarde.app.look import show_session

    for line in show_session(session_id, raw=as_json):
        _out(line if as_json else _visible(line))
    return Exit.DONE


@_main.group("policy")
def _policy() -> None:
    """Rights as data."""


@_policy.command("show")
@click.argument("name", default="workspace-write")
@click.option("--agent", metavar="NAME", help="Narrowed by this agent's persona.")
@click.option("--plan", is_flag=True)
@click.option("--json", "as_json", is_flag=True)
def _policy_show(name: str, agent: str | None, plan: bool, as_json: bool) -> int:
    """Show a policy in force."""
    from rambarde.app.look import policy_text

    _out(policy_text(name, agent=agent, plan=plan, as_json=as_json, environment=_environment()))
    return Exit.DONE


@_policy.command("check")
@click.argument("path", required=False)
def _policy_check(path: str | None) -> int:
    """Load every policy and try its examples.

    Personas and tables as well; each rule is tried on its own examples.
    """
    from rambarde.app.look import check_policies

    _out(check_policies(path))
    return Exit.DONE


@_policy.command("explain")
@click.argument("tool")
@click.argument("arguments", required=False, default="")
@click.option("--policy", "name", default="workspace-write")
@click.option("--agent", metavar="NAME")
@click.option("--plan", is_flag=True)
def _policy_explain(tool: str, arguments: str, **options: Any) -> int:
    """Say whether a call is allowed, by which rule.

    For example: rambarde policy explain bash 'rm -rf /'
    """
    from rambarde.app.look import explain_call

    text, allowed = explain_call(tool, arguments, environment=_environment(), **options)
    _out(text)
    return Exit.DONE if allowed else Exit.DENIED


@_policy.command("diff")
@click.argument("first")
@click.argument("second")
def _policy_diff(first: str, second: str) -> int:
    """Say how two policies or agents differ, axis by axis."""
    from rambarde.app.look import policy_diff

    _out(policy_diff(first, second, environment=_environment()))
    return Exit.DONE


@_main.group("config")
def _config() -> None:
    """Settings and where each comes from."""


@_config.command("show")
@click.option("--origin", is_flag=True, help="Say which layer each value comes from.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE")
@click.option("--repo", default=".", metavar="DIR")
def _config_show(origin: bool, as_json: bool, sets: tuple[str, ...], repo: str) -> int:
    """Show the settings in force."""
    from rambarde.app.look import config_lines

    for line in config_lines(_environment(), sets, repo, origin=origin, as_json=as_json):
        _out(line)
    return Exit.DONE


@_config.command("schema")
def _config_schema() -> int:
    """Print the JSON Schema of the settings file."""
    from rambarde.settings import schema

    _out(json.dumps(schema(), indent=2))
    return Exit.DONE


@_main.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def _completion(shell: str) -> int:
    """Print a completion script for a shell."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    if made is None:
        raise UsageError(f"no completion for {shell}")
    _out(made(_main, {}, "rambarde", "_RAMBARDE_COMPLETE").source())
    return Exit.DONE
