"""The tools that are commands: bash, and grep as ripgrep. Trusted side.

The command line of the model is one argument of bash; ours are built here, with the pattern behind
`-e` and paths behind `--`, so that no word of a model is read as an option.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable

from rambarde.broker.caller import Caller, ToolResult
from rambarde.broker.ports import Ports
from rambarde.children.command import CommandResult
from rambarde.errors import HostError
from rambarde.loops import fingerprint
from rambarde_wire import tools

GREP_TIMEOUT_S = 20.0
GREP_HITS = 60
_LINE_CHARS = 500
_GREP_ERROR = 2
"""rg(1): 0 found, 1 not found, 2 an error."""
_FATAL = ("memory", "killed")


async def perform_bash(caller: Caller, arguments: tools.Bash, ports: Ports) -> ToolResult:
    """Run one command line with bash; its whole tree is dead when this returns."""
    argv = [b"/bin/bash", b"-c", os.fsencode(arguments.command)]
    timeout_s = min(float(arguments.timeout_s), caller.policy.limits.tool_timeout_s)
    return await _run(caller, argv, timeout_s, ports, _bash_text)


async def perform_grep(caller: Caller, arguments: tools.Grep, ports: Ports) -> ToolResult:
    """Search with ripgrep; ignore files are respected, special files skipped, hits bounded."""
    argv = [ports.rg, b"--line-number", b"--no-heading", b"--color=never", b"--no-config"]
    argv += [b"--max-columns=500", b"--max-columns-preview", b"--max-filesize=16M", b"--sort=path"]
    argv += [b"--with-filename"]
    if arguments.ignore_case:
        argv.append(b"--ignore-case")
    if arguments.glob:
        argv.append(b"--glob=" + os.fsencode(arguments.glob))
    argv += [b"-e", os.fsencode(arguments.pattern), b"--", os.fsencode(arguments.path)]
    return await _run(caller, argv, GREP_TIMEOUT_S, ports, _grep_text)


_Words = Callable[[CommandResult, Ports], tuple[bool, str]]


async def _run(
    caller: Caller, argv: list[bytes], timeout_s: float, ports: Ports, words: _Words
) -> ToolResult:
    try:
        result = await ports.commands.perform(caller, argv, timeout_s)
    except HostError as exc:
        text = ports.say("not_started", detail=exc.message)
        return ToolResult(ok=False, code="not_started", text=text)
    ok, text = words(result, ports)
    code, notice = _ending(caller, result, timeout_s, ports)
    full = f"{result.stdout.sha256} {result.stderr.sha256} {result.exit_code} {code}"
    seen = result.stdout.elided_bytes or result.stderr.elided_bytes
    return ToolResult(
        ok=ok and not code,
        code=code or ("" if ok else "exit"),
        text="\n".join(part for part in (text, notice) if part),
        fingerprint=fingerprint(full if seen else f"{text}\n{code}"),
    )


def _ending(
    caller: Caller, result: CommandResult, timeout_s: float, ports: Ports
) -> tuple[str, str]:
    """Return the code and the sentence of an end that was not the command's own."""
    limits = caller.policy.limits
    match result.outcome:
        case "timeout":
            return "timeout", ports.say("timeout", timeout_s=f"{timeout_s:g}")
        case "output":
            return "output_limit", ports.say("output_limit", limit=limits.output_hard_bytes)
        case "not_started" if result.step == "chdir":
            return "missing_cwd", ports.say("missing_cwd")
        case "not_started":
            why = os.strerror(result.errno) if result.errno else "unknown"
            detail = f"{result.step}: {why}"
            return "not_started", ports.say("not_started", detail=detail)
        case "killed":
            return "killed", ports.say("killed", signal="SIGKILL")
        case "interrupted":
            return "interrupted", ports.say("interrupted")
        case _:
            return "", ""


def _bash_text(result: CommandResult, _ports: Ports) -> tuple[bool, str]:
    """What a model is shown: both streams, then how it ended when that is not success."""
    parts = [result.stdout.text.rstrip("\n")]
    if result.stderr.total_bytes:
        parts.append(f"[stderr]\n{result.stderr.text.rstrip()}")
    if result.outcome == "exited" and result.exit_code:
        parts.append(f"[exit code {result.exit_code}]")
    if result.outcome == "signalled" and result.signal:
        parts.append(f"[ended by {_signal_name(result.signal)}]")
    text = "\n".join(part for part in parts if part)
    return result.outcome == "exited" and result.exit_code == 0, text or "[no output]"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _grep_text(result: CommandResult, _ports: Ports) -> tuple[bool, str]:
    lines = [line[:_LINE_CHARS] for line in result.stdout.text.splitlines()]
    hits = lines[:GREP_HITS]
    if len(lines) > GREP_HITS or result.stdout.elided_bytes:
        more = len(lines) - GREP_HITS
        hits.append(f"[{more} more]" if not result.stdout.elided_bytes else "[more]")
    if result.exit_code == _GREP_ERROR and not lines:
        return False, result.stderr.text.strip() or os.strerror(errno.EINVAL)
    return True, "\n".join(hits) or "[no match]"
