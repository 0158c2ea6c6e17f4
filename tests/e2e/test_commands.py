"""The commands that look, and settings in force, as a person and a script see them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.many_runs import run_many
from support.program import COMMAND, Program
from support.scripted import ScriptedEngine

HEAVY = {"httpx", "pydantic", "anyio", "click", "asyncio", "msgspec", "psutil"}


def _modules(program: Program, *arguments: str) -> set[str]:
    """Return the top-level modules a run of the program loads."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rambarde", *arguments],
        cwd=program.workspace,
        env=program.env(),
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    names = (line.rpartition("|")[2].strip() for line in done.stderr.splitlines())
    return {name.split(".")[0] for name in names}


def test_the_version_is_told_without_loading_anything_heavy(program: Program) -> None:
    """Neither the HTTP side, nor the validation, nor the loop; help loads no engine either."""
    ran = program("--version")
    assert ran.code == 0
    assert ran.out.startswith("rambarde ")
    assert not _modules(program, "--version") & HEAVY
    assert not _modules(program, "--help") & {"httpx", "pydantic", "anyio", "psutil"}
    assert not _modules(program, "sessions", "list") & {"httpx"}


def test_each_layer_of_settings_is_shown_with_its_origin(program: Program) -> None:
    """Default, environment, file with line, flag; the repository's file only lowers."""
    (program.config / "config.toml").write_text(
        "[execution]\nsubagentMaxDepth = 2\nsessionMaxActions = 50\n[model]\nmodel = 'm1'\n"
    )
    (program.workspace / ".rambarde").mkdir()
    (program.workspace / ".rambarde" / "config.toml").write_text(
        "[execution]\nsessionMaxActions = 7\nsubagentMaxPerSession = 999\nsandboxTier = 'C'\n"
        "[model]\nengine = 'http://evil.example/v1'\n"
    )
    environment = {"RAMBARDE_TREE_MAX_TOKENS": "1000", "RAMBARDE_SUBAGENT_MAX_DEPTH": "1"}
    flags = ["--set", "subagentMaxConcurrent=4"]
    ran = program("config", "show", "--json", *flags, env=environment)
    assert ran.code == 0, ran.err
    shown = {key: (one["value"], one["origin"]) for key, one in ran.json.items()}
    path = program.config / "config.toml"
    assert shown["execution.subagentMaxDepth"] == (2, f"{path}:2")
    assert shown["execution.treeMaxTokens"] == (1000, "RAMBARDE_TREE_MAX_TOKENS")
    assert shown["execution.subagentMaxConcurrent"] == (4, "--set subagentMaxConcurrent")
    assert shown["execution.sessionMaxActions"] == (7, ".rambarde/config.toml:2")
    assert shown["execution.subagentMaxPerSession"] == (200, "default")
    assert shown["execution.sandboxTier"] == ("A", "default")
    assert shown["model.engine"] == (None, "default")
    assert shown["model.model"] == ("m1", f"{path}:5")
    plain = program("config", "show", "--origin", *flags, env=environment)
    assert f"execution.subagentMaxDepth = 2  ({path}:2)" in plain.out
    assert "999, above 200; a repository can only lower it" in plain.out
    assert "model.engine is not a repository's to set; it is yours: in" in plain.out
    assert "--set model.engine=VALUE" in plain.out


def test_settings_choose_engine_model_key_and_agent_of_a_run(
    program: Program, engine: ScriptedEngine
) -> None:
    """Nothing on the command line but the prompt: the file's engine, key and agent are used."""
    (program.home / "key").write_text("key-of-the-file-123\n")
    (program.config / "config.toml").write_text(
        f"[model]\nengine = '{engine.url}'\nmodel = 'named'\nkeyFile = '~/key'\n"
        "[agents]\ndefault = 'explore'\n"
    )
    engine.say("found")
    ran = program("-p", "look", "--json")
    assert ran.code == 0, ran.err
    (seen,) = engine.requests
    assert seen.body["model"] == "named"
    assert seen.headers["authorization"] == "Bearer key-of-the-file-123"
    assert "write" not in seen.tool_names
    engine.say("done")
    assert program("-p", "go", "--agent", "general", stdin=b"more\n").out == "done\n"
    assert "write" in engine.requests[1].tool_names
    assert engine.requests[1].last == "go\n\nmore"


def test_policies_are_shown_explained_compared_and_checked(program: Program) -> None:
    """Show and JSON, verdicts with their exit codes, differences, and a folder with a fault."""
    from rambarde.policy.source import shipped_folder

    copy = program.base / "policies"
    shutil.copytree(shipped_folder(), copy)
    good, *runs = run_many(
        program,
        [
            ["policy", "check", str(copy)],
            ["policy", "show", "workspace-write", "--json"],
            ["policy", "show", "--agent", "explore"],
            ["policy", "show", "--plan"],
            ["policy", "explain", "bash", "cd /tmp && rm -rf /"],
            ["policy", "explain", "bash", "ls -la"],
            ["policy", "explain", "read", ".env"],
            ["policy", "explain", "write", '{"path": "a", "content": "x"}', "--plan"],
            ["policy", "explain", "nosuch"],
            ["policy", "diff", "workspace-write", "read-only"],
            ["policy", "diff", "general", "general"],
            ["policy", "check"],
        ],
    )
    assert good.code == 0, good.err
    assert "2 personas, 2 seccomp tables: all load" in good.out
    data, explore, plan, deadly, fine, hidden, planned, absent, differ, same, shipped = runs
    assert {"bash", "write", "Task"} <= set(data.json["tools"])
    assert data.json["limits"]["tool_timeout_s"] > 0
    assert "nothing (read-only)" in explore.out
    assert "nothing (read-only)" in plan.out
    assert (deadly.code, fine.code, hidden.code, planned.code, absent.code) == (4, 0, 4, 4, 4)
    assert deadly.out.startswith("deny: catastrophic")
    assert "command seen: rm -rf /" in deadly.out
    assert "catastrophic.toml:" in deadly.out
    assert hidden.out.startswith("deny: masked_path")
    assert absent.out.startswith("deny: tool_absent")
    assert differ.out.splitlines() == ["- tools edit", "- tools write", "~ writable yes -> no"]
    assert same.out == "no difference in rights\n"
    assert shipped.code == 0
    limits = copy / "limits.toml"
    limits.write_text(limits.read_text() + "\n[nosuch]\nvalue = 1\n")
    (copy / "personas" / "general.md").write_text("no head\n")
    faulty = program("policy", "check", str(copy))
    assert faulty.code == 2
    assert "limits.toml:" in faulty.err
    shutil.copy(Path(shipped_folder()) / "limits.toml", limits)
    persona = program("policy", "check", str(copy))
    assert persona.code == 2
    assert "general.md" in persona.err


def test_agents_are_listed_with_where_they_come_from(program: Program) -> None:
    """Built in, the person's, the repository's, and what was set aside, on both forms."""
    own, theirs = program.config / "agents", program.workspace / ".rambarde" / "agents"
    own.mkdir()
    theirs.mkdir(parents=True)
    head = "---\nname: {0}\ndescription: does {0}\nmode: subagent\n---\nWork.\n"
    (own / "mine.md").write_text(head.format("mine"))
    (theirs / "theirs.md").write_text(head.format("theirs"))
    (theirs / "genera1.md").write_text(head.format("genera1"))
    as_json, plain, refused = run_many(
        program,
        [["agents", "list", "--json"], ["agents", "list"], ["-p", "x", "--agent", "mine"]],
    )
    rows = {row["name"]: (row["layer"], row["mode"]) for row in as_json.json["agents"]}
    assert rows == {
        "explore": ("builtin", "all"),
        "general": ("builtin", "all"),
        "mine": ("user", "subagent"),
        "theirs": ("repository", "subagent"),
    }
    assert "genera1.md: set aside" in as_json.json["set_aside"][0]
    assert [line.split()[0] for line in plain.out.splitlines()] == sorted(rows)
    assert "genera1.md" in plain.err
    assert refused.code == 2
    assert "can only be delegated to" in refused.err


def test_doctor_tells_the_tier_what_fails_and_what_of_the_workspace(program: Program) -> None:
    """JSON and text agree; a workspace that cannot be used is told and is no fault of the host."""
    as_json = program("doctor", "--json")
    assert as_json.code == 0
    found = as_json.json
    assert found["tier"] == "A"
    assert found["uid"] == os.geteuid()
    assert found["workspace"] == str(program.workspace)
    assert found["workspace_fault"] == ""
    tiers = {one["tier"]: one for one in found["tiers"]}
    assert list(tiers) == ["A", "A-proc", "B", "C"]
    assert tiers["A"]["works"]
    assert tiers["A"]["trial_ms"] > 0
    assert tiers["C"]["works"] == (os.geteuid() != 0)
    assert all(one["works"] or (one["failed"] and one["mend"]) for one in tiers.values())
    plain = program("doctor", "--repo", "/no/such")
    assert plain.code == 0
    assert "best tier here: A" in plain.out
    assert "/no/such does not exist" in plain.out
    assert not program.state.exists()


def test_a_shell_completes_commands_and_options(program: Program) -> None:
    """The printed script, run by a real bash; zsh's and fish's by their own protocol."""
    bin_folder = program.base / "bin"
    bin_folder.mkdir()
    (bin_folder / "rambarde").write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    (bin_folder / "rambarde").chmod(0o755)
    ask = (
        'source <(rambarde completion bash); COMP_WORDS=(rambarde policy ""); COMP_CWORD=2;'
        ' _rambarde_completion rambarde ""; echo "${COMPREPLY[@]}"'
    )
    path = f"{bin_folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ask], env=program.env({"PATH": path}), capture_output=True, text=True,
        check=True, timeout=50,
    )  # fmt: skip
    assert set(done.stdout.split()) == {"show", "check", "explain", "diff"}
    for shell, words in (("zsh", "rambarde run --pl"), ("fish", "rambarde run --pl")):
        script = program("completion", shell)
        assert script.code == 0
        assert "_RAMBARDE_COMPLETE" in script.out
        names = {"_RAMBARDE_COMPLETE": f"{shell}_complete", "COMP_WORDS": words}
        count = {"COMP_CWORD": "2" if shell == "zsh" else "--pl"}
        assert "--plan" in program(env=names | count).out


def test_the_demo_maps_a_tree_without_any_engine_and_says_so(program: Program) -> None:
    """No key, no model: a real map with a real delegation, named for what it is; JSON too."""
    project = "[build-system]\nrequires = ['h']\n[project.scripts]\nx = 'm0:main'\n"
    (program.workspace / "pyproject.toml").write_text(project)
    (program.workspace / "src").mkdir()
    for number in range(3):
        (program.workspace / "src" / f"m{number}.py").write_text("def main():\n    pass\n")
    ran = program("demo")
    assert ran.code == 0, ran.err
    assert "no engine is configured: using the offline engine" in ran.err
    assert "not a language model" in ran.out
    assert "Python" in ran.out
    assert "- pyproject.toml:4: x = 'm0:main'" in ran.out
    assert "2 Task" in ran.out
    as_json = program("demo", "--plan", "--output-format", "json", "-q")
    assert as_json.json["status"] == "done"
    assert [one["status"] for one in as_json.json["subagents"]] == ["done"] * 2
    listed = program("sessions", "list", "--json", "--limit", "1").json
    assert [one["session_id"] for one in listed] == [as_json.json["session_id"]]
    assert sorted(path.name for path in program.workspace.iterdir()) == ["pyproject.toml", "src"]


def test_a_list_of_no_sessions_says_so_and_stays_a_list_for_scripts(program: Program) -> None:
    """Words on standard error, nothing or `[]` on standard output, exit 0."""
    plain, as_json, none = run_many(
        program,
        [
            ["sessions", "list"],
            ["sessions", "list", "--json"],
            ["sessions", "list", "--limit", "0"],
        ],
    )
    assert (plain.code, plain.out, plain.err) == (0, "", "no sessions yet\n")
    assert json.loads(as_json.out) == []
    assert none.code == 2


def test_denied_calls_are_an_exit_code_of_their_own_when_asked_for(
    program: Program, engine: ScriptedEngine
) -> None:
    """The run goes on and is done: 0, or 4 with --fail-on-denied; the list names the call."""
    for flags, code in (([], 0), (["--fail-on-denied"], 4)):
        engine.call("bash", command="rm -rf /")
        engine.say("done")
        ran = program.ask(engine.url, *flags)
        assert ran.code == code
        assert ran.json["status"] == "done"
        assert ran.json["permission_denials"] == [
            {"agent": "root", "tool": "bash", "code": "catastrophic", "actor": "policy"}
        ]
