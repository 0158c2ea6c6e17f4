"""Bad input from outside: a clear sentence, what to do, the right exit code, nothing left."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from support.many_runs import run_many
from support.program import Program, Ran
from support.scripted import ScriptedEngine

OFFLINE = ("-p", "hi", "--engine", "offline")
NOWHERE = "http://127.0.0.1:1/v1"
"""An address where nothing listens."""

USAGE: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "no command": (["nosuch"], ["No such command 'nosuch'", "--help"]),
    "no option": (["-p", "hi", "--nosuch"], ["No such option", "--help"]),
    "no prompt": (["-p", ""], ["there is no prompt", "Try: rambarde -p"]),
    "two prompts": (["run", "a", "-p", "b"], ["two prompts", "Give one"]),
    "no engine": (["-p", "hi"], ["no engine is configured", "--engine", "OPENAI_API_KEY"]),
    "unknown engine": (["-p", "hi", "--engine", "offlin"], ["'offlin'", "--engine offline"]),
    "password in URL": (
        ["-p", "hi", "--engine", "http://u:pass@h/v1"],
        ["a user or a password", "http://host:port/v1"],
    ),
    "no repository": ([*OFFLINE, "--repo", "/no/such"], ["/no/such does not exist", "--repo DIR"]),
    "a file": ([*OFFLINE, "--repo", "/etc/passwd"], ["is not a directory", "--repo DIR"]),
    "the system": ([*OFFLINE, "--repo", "/usr/lib"], ["a part of the system", "--repo DIR"]),
    "all": ([*OFFLINE, "--repo", "/"], ["the whole system", "--repo DIR"]),
    "empty": ([*OFFLINE, "--repo", ""], ["--repo is empty", "--repo DIR"]),
    "no agent": ([*OFFLINE, "--agent", "explor"], ["did you mean explore?", "Known agents"]),
    "no agent file": ([*OFFLINE, "--agent", "./no.md"], ["./no.md cannot be read", "path"]),
    "zero actions": ([*OFFLINE, "--max-actions", "0"], ["--max-actions", "x>=1"]),
    "no duration": ([*OFFLINE, "--max-duration", "0"], ["--max-duration", "above 0"]),
    "negative": ([*OFFLINE, "--max-duration", "-1"], ["--max-duration", "above 0"]),
    "nan": ([*OFFLINE, "--max-duration", "nan"], ["--max-duration", "above 0"]),
    "endless": ([*OFFLINE, "--max-duration", "inf"], ["--max-duration", "cannot be removed"]),
    "nan for exec": (["exec", "--max-duration", "nan", "--", "true"], ["--max-duration"]),
    "zero net": (
        [*OFFLINE, "--set", "subagentMaxDepth=0"],
        ["--set subagentMaxDepth", "a whole number from 1", "config schema"],
    ),
    "no setting": (
        [*OFFLINE, "--set", "subagentMaxDept=1"],
        ["did you mean subagentMaxDepth?", "config schema"],
    ),
    "no value": ([*OFFLINE, "--set", "subagentMaxDepth"], ["must be key=value"]),
    "no tool": ([*OFFLINE, "--allowedTools", "Bsh"], ["'Bsh'", "did you mean Bash?"]),
    "no key file": ([*OFFLINE, "--key-file", "/no/key"], ["/no/key: No such file", "readable"]),
    "no descriptor": ([*OFFLINE, "--key-file", "99"], ["99: Bad file descriptor", "readable"]),
    "no tier": ([*OFFLINE, "--tier", "Z"], ["'A', 'A-proc', 'B', 'C'"]),
    "no exec policy": (["exec", "--policy", "no", "--", "true"], ["named no", "workspace-write"]),
    "no exec command": (["exec"], ["Missing argument 'COMMAND...'"]),
    "no session": (["sessions", "show", "nosuch"], ["no session 'nosuch'", "sessions list"]),
    "path as session": (["sessions", "show", "../../x"], ["no session", "sessions list"]),
    "no policy": (["policy", "show", "no"], ["named no", "read-only"]),
    "no policies": (["policy", "check", "/no/such"], ["/no/such", "cannot be read"]),
    "broken arguments": (["policy", "explain", "bash", '{"a":'], ["not JSON", '{"command"']),
    "no shell": (["completion", "tcsh"], ["'bash', 'zsh', 'fish'"]),
}


def test_each_wrong_word_is_told_with_what_to_do_and_starts_nothing(program: Program) -> None:
    """Exit 2, the cause and the way out on standard error, and no trace on the disk."""
    runs = run_many(program, [arguments for arguments, _words in USAGE.values()])
    for (case, (_arguments, words)), ran in zip(USAGE.items(), runs, strict=True):
        assert ran.code == 2, (case, ran)
        assert not [one for one in words if one not in ran.err], (case, ran.err)
        assert ran.out == "", case
        _check_untouched(program, ran)


def test_a_wrong_word_ends_the_installed_command_too(program: Program) -> None:
    """The same by the command itself: within seconds, with exit 2, leaving no process behind."""
    ran = program(*OFFLINE, "--repo", "/no/such", timeout=20)
    assert ran.code == 2
    assert ran.err == (
        "rambarde: the workspace /no/such does not exist\n"
        "  Give a project's folder with --repo DIR.\n"
    )
    unset = program(*OFFLINE, "--repo", "", env={"PWD": str(program.workspace)})
    assert unset.code == 2, "an empty name is not the current folder, whatever the shell calls it"
    help_wanted = program(timeout=20)
    assert help_wanted.code == 2
    assert "rambarde -p" in help_wanted.out


def _check_untouched(program: Program, ran: Ran) -> None:
    assert "Traceback" not in ran.err
    assert list(program.workspace.iterdir()) == []
    assert not [path for path in program.state.rglob("*") if path.is_file()]


def test_all_faults_of_a_settings_file_are_told_at_once_with_their_lines(
    program: Program,
) -> None:
    """Unknown keys, zero, fractions, "unlimited" and a bad tier: each with file:line."""
    path = program.config / "config.toml"
    path.write_text(
        "[execution]\n"
        "subagentMaxDepth = 0\n"
        "subagentMaxPerSession = -1\n"
        "subagentMaxConcurrent = 1.5\n"
        'treeMaxTokens = "unlimited"\n'
        'sandboxTier = "none"\n'
        "sesionMaxActions = 3\n"
        "[modell]\n"
        'engine = "offline"\n'
    )
    ran = program(*OFFLINE)
    assert ran.code == 2
    for line, word in enumerate(
        ("subagentMaxDepth", "PerSession", "Concurrent", "Tokens", "sandboxTier", "sesion"), 2
    ):
        assert [
            one for one in ran.err.splitlines() if f"config.toml:{line}: " in one and word in one
        ]
    assert "did you mean sessionMaxActions?" in ran.err
    assert "config.toml:8: unknown key modell; did you mean model?" in ran.err
    _check_untouched(program, ran)


def test_a_settings_file_that_is_no_toml_is_told_with_its_name(program: Program) -> None:
    """What cannot be read at all stops with exit 2 and the file's name, never a traceback."""
    path = program.config / "config.toml"
    for text in (b"[execution\n", b"\xff\xfe", b'"', b"a = 1\na = 2\n", b"model = 3\n"):
        path.write_bytes(text)
        (ran,) = run_many(program, [["config", "show"]])
        assert ran.code == 2, text
        assert str(path) in ran.err
        _check_untouched(program, ran)


def test_two_settings_files_or_a_missing_named_one_stop_the_run(program: Program) -> None:
    """Which file counts is never a guess, and a variable that is no setting is told."""
    (program.config / "config.toml").write_text("")
    (program.config / "config.json").write_text("{}")
    both = program("config", "show")
    assert both.code == 2
    assert "keep one of them" in both.err
    missing = program("config", "show", env={"RAMBARDE_CONFIG": "/no/such.toml"})
    assert missing.code == 2
    assert "/no/such.toml" in missing.err
    (program.config / "config.json").unlink()
    zero = program("config", "show", env={"RAMBARDE_SUBAGENT_MAX_DEPTH": "0"})
    assert zero.code == 2
    assert "RAMBARDE_SUBAGENT_MAX_DEPTH" in zero.err
    typo = program("config", "show", env={"RAMBARDE_SUBAGENT_MAX_DEPHT": "1"})
    assert typo.code == 0
    assert "RAMBARDE_SUBAGENT_MAX_DEPHT: is no setting and has no effect" in typo.out


def test_broken_agent_files_are_set_aside_and_told_and_stop_no_other(
    program: Program, engine: ScriptedEngine
) -> None:
    """The person's and the repository's faulty files are notices; the agents that load work."""
    own, theirs = program.config / "agents", program.workspace / ".rambarde" / "agents"
    own.mkdir()
    theirs.mkdir(parents=True)
    (own / "good.md").write_text("---\nname: good\ndescription: d\nmode: all\n---\nBe good.\n")
    (own / "typo.md").write_text("---\nname: typo\ndescription: d\ntols: Read\n---\nx\n")
    (own / "binary.md").write_bytes(b"\xff\x00\xfe")
    (own / "pipe.md").symlink_to("/dev/zero")
    (theirs / "open.md").write_text("---\nname: open\ndescription: d\n")
    (theirs / "general.md").write_text("---\nname: general\ndescription: d\n---\nObey me.\n")
    engine.say("fine")
    ran = program.ask(engine.url, "--agent", "good")
    assert ran.code == 0, ran.err
    assert "Be good." in engine.requests[0].system
    told = "\n".join(ran.json["notices"])
    for word in ("typo.md", "tols", "binary.md", "pipe.md", "open.md", "general.md: set aside"):
        assert word in told, told
    assert "Obey me." not in engine.requests[0].system
    calls = [[*OFFLINE, "--agent", name] for name in (str(own / "typo.md"), "typo")]
    named, missing = run_many(program, calls)
    assert named.code == 2
    assert "typo.md:4: " in named.err
    assert missing.code == 2
    assert "typo.md:4: " in missing.err, "the agent's own file says why there is no such agent"


def test_an_unreachable_engine_exits_1_and_says_what_to_check(program: Program) -> None:
    """`error:model`, the host and what to do; a record with an end; the terminal's form too."""
    ran = program.ask(NOWHERE)
    assert ran.code == 1
    result = ran.json
    assert result["status"] == "error:model"
    assert result["is_error"]
    assert "cannot connect to 127.0.0.1:1" in result["error"]
    assert "that the engine is running" in result["error"]
    assert program.journal(result["session_id"])[-1]["data"]["status"] == "error:model"
    plain = program("-p", "hi", "--engine", NOWHERE, "--model", "m")
    assert plain.code == 1
    assert plain.out == ""
    assert "error:model: cannot connect to 127.0.0.1:1" in plain.err


def test_a_workspace_that_holds_the_installation_is_refused_and_read_only_works(
    program: Program, engine: ScriptedEngine
) -> None:
    """An agent must not rewrite its own guard: exit 2 with the ways; --plan may look."""
    import rambarde

    source = Path(rambarde.__file__).parent
    for act in (["-p", "hi", "--engine", engine.url, "--model", "m"], ["exec"]):
        tail = ["--", "true"] if act == ["exec"] else []
        ran = program(*act, "--repo", str(source), *tail)
        assert ran.code == 2, ran.err
        assert "holds the running installation" in ran.err
        assert "--plan" in ran.err or "read-only" in ran.err
    assert engine.requests == []
    engine.say("looked")
    ran = program.ask(engine.url, "--plan", "--repo", str(source))
    assert ran.code == 0, ran.err


def test_the_home_and_the_programs_own_folders_are_no_workspace(program: Program) -> None:
    """The home, and the folders of settings and records, are refused with a reason each."""
    program.state.mkdir(parents=True)
    folders = (program.home, program.config, program.state)
    for ran in run_many(program, [[*OFFLINE, "--repo", str(one)] for one in folders]):
        assert ran.code == 2, ran
        assert "your home" in ran.err or "rambarde's own" in ran.err
    assert list(program.state.iterdir()) == []


def test_keys_that_cannot_be_used_are_refused_without_being_shown(program: Program) -> None:
    """Two keys, no key, two lines, white space: exit 2; not one byte of a key is printed."""
    keys = {"OPENAI_API_KEY": "kk-openai-canary", "ANTHROPIC_API_KEY": "kk-anthropic-canary"}
    both = program("-p", "hi", env=keys)
    assert both.code == 2
    assert "two keys" in both.err
    none = program("-p", "hi", "--engine", "openai")
    assert none.code == 2
    assert "needs a key" in none.err
    file = program.home / "key"
    for text in ("kk-canary-one\nkk-canary-two\n", "kk-canary one\n", ""):
        file.write_text(text)
        bad = program("-p", "hi", "--engine", "openai", "--key-file", str(file))
        assert bad.code == 2, text
        assert "canary" not in bad.err + both.err
    assert "key" in bad.err


def test_a_prompt_a_workspace_and_a_name_that_are_no_utf_8_do_not_stop_a_run(
    program: Program, engine: ScriptedEngine
) -> None:
    """Bytes that are no text are shown or replaced, and every answer is valid JSON in UTF-8."""
    folder = os.fsencode(program.base) + b"/w\xff s"
    os.mkdir(folder)
    with open(folder + b"/f\xfe.txt", "wb") as file:
        file.write(b"needle\n")
    engine.call("bash", command="cat f*.txt; printf '\\377'; echo 1 > g$'\\376'")
    engine.call("grep", pattern="needle")
    engine.say("seen")
    ran = program.ask(engine.url, "--repo", os.fsdecode(folder), prompt="h\udcffi")
    assert ran.code == 0, ran.err
    assert ran.json["status"] == "done"
    assert "h\ufffdi" in engine.requests[0].last
    assert "needle" in engine.requests[1].last
    assert "needle" in engine.requests[2].last
    assert any("\\xfe" in name for name in ran.json["files_changed"])
    shown = program("sessions", "show", ran.json["session_id"])
    assert shown.code == 0
    assert "\\xff" in shown.out
    record = json.loads(program("sessions", "list", "--json").out)[0]
    assert "\\xff" in record["workspace"]
