"""No variable, key, socket or file of the person's own environment reaches a child."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from support.probes import make_repository, outside, probe_script, run_git, session
from support.program import Program
from support.scripted import ScriptedEngine

CANARY = "canary-env-c61f08"
SECRETS = (
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE",
    "NPM_TOKEN", "INTERNAL_TOKEN", "PLAIN_NAME", "LC_SECRET", "GIT_CONFIG_PARAMETERS",
)  # fmt: skip
RUN_BY_PROGRAMS = (
    "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTHONPATH",
    "NODE_OPTIONS", "PERL5OPT", "PERL5LIB", "RUBYOPT", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF",
    "GIT_CONFIG_GLOBAL", "PROMPT_COMMAND", "BASH_FUNC_ls%%", "SHELLOPTS", "PS4",
    "JAVA_TOOL_OPTIONS",
)  # fmt: skip
POINTERS = (
    "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DOCKER_HOST", "KUBECONFIG",
    "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "TMUX", "GPG_AGENT_INFO",
)  # fmt: skip
_LOADED = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PYTHONPATH", "GIT_CONFIG_GLOBAL")
"""Given values that break no program on the way to the sandbox."""


def hostile(base: Path) -> dict[str, str]:
    """Return an environment full of canaries, none of which breaks the supervisor itself."""
    values = {name: f"{CANARY}-{name}" for name in (*SECRETS, *POINTERS, *RUN_BY_PROGRAMS)}
    for name in _LOADED:
        values[name] = str(base / f"{CANARY}-{name}")
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        # An empty list for the loader, which says aloud when it cannot load what is named.
        values[name] = ""
    values["BASH_FUNC_ls%%"] = f"() {{ echo {CANARY}; }}"
    return values


def test_no_variable_of_the_person_is_in_any_child(
    program: Program, engine: ScriptedEngine
) -> None:
    """ENV-01, -02, -04, PRC-01, -02: not by env, a login shell, or any /proc/*/environ."""
    environment = hostile(program.base)
    look = {
        "env": "env | sort",
        "login": "bash -lc 'env | sort'",
        "python": 'python3 -c "import os; print(os.environ)"',
        "processes": "cat /proc/*/environ | tr '\\0' '\\n' | sort -u",
        "command_lines": "cat /proc/*/cmdline | tr '\\0' ' '",
        "pointers": "echo " + "".join(f"[${name}]" for name in POINTERS),
        "run": "ls /run /run/user /var/run",
    }
    twin = outside("env; cat /proc/self/environ", program.workspace, environment)
    assert twin.count(CANARY) > 40
    one = session(program, engine, probe_script(look), env=environment)
    assert CANARY not in one.said
    found = one.outcomes
    assert found["env"].ok, found["env"]
    assert found["pointers"].text == "[]" * len(POINTERS)
    assert found["run"].text.count("No such file or directory") == 3
    names = {part.split("=", 1)[0] for part in found["env"].text.split("|")}
    assert not names & {*SECRETS, *POINTERS, *RUN_BY_PROGRAMS}
    said = "".join(str(seen.body) for seen in engine.requests) + one.ran.out + one.ran.err
    assert CANARY not in said
    assert CANARY not in "".join(path.read_text() for path in program.sessions())


def test_the_zygote_and_agents_hold_no_key_while_they_run(
    program: Program, engine: ScriptedEngine
) -> None:
    """ENV-01, PRC-02: from outside as well, only the supervisor's own environ holds the key."""
    engine.call("bash", command="touch started; while [ ! -e go ]; do sleep 0.05; done")
    engine.say("done")
    arguments = ["--engine", engine.url, "--model", "scripted"]
    started = program.start(
        "-p", "wait", *arguments, env={"OPENAI_API_KEY": CANARY, "PLAIN": f"{CANARY}-plain"}
    )
    try:
        while not (program.workspace / "started").exists():
            assert started.poll() is None, started.stderr.read()
        holders = {pid for pid in processes_below(started.pid) if holds_canary(pid)}
        family = processes_below(started.pid)
    finally:
        (program.workspace / "go").touch()
        started.communicate(timeout=20)
    assert started.returncode == 0
    assert len(family) >= 4, family
    assert holders == {started.pid}
    assert engine.requests[0].headers["authorization"] == f"Bearer {CANARY}"


def processes_below(pid: int) -> set[int]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def holds_canary(pid: int) -> bool:
    """True when the canary is in what a process was started with; what is closed holds nothing."""
    for name in ("environ", "cmdline"):
        try:
            if CANARY.encode() in Path(f"/proc/{pid}/{name}").read_bytes():
                return True
        except OSError:
            continue
    return False


def test_no_variable_goes_from_one_call_to_the_next_or_upward(
    program: Program, engine: ScriptedEngine
) -> None:
    """GIT-07: what a command exports, or writes to its home's start files, ends with it.

    The home itself lives as long as its agent, but no shell of ours reads a start file from it.
    """
    space = program.workspace
    make_repository(space)
    engine.call(
        "bash",
        command="export GIT_EXTERNAL_DIFF=$PWD/x GIT_SSH_COMMAND=x; printf '#!/bin/sh\\n"
        "touch ran\\n' > x; chmod +x x; echo 'touch ran' | tee ~/.bashrc ~/.bash_profile"
        " ~/.profile > /dev/null; echo 2 >> a.txt; cd /tmp; alias ls='touch ran'; set -x",
    )
    engine.call("bash", command="env | grep -c GIT_EXTERNAL_DIFF; git diff --stat; ls ran; pwd")
    engine.say("done")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    said = engine.requests[-1].last
    assert said.startswith("0\n"), said
    assert "1 file changed" in said
    assert "cannot access 'ran'" in said
    assert str(space) in said
    assert not (space / "ran").exists()


def test_the_program_runs_no_git_and_nothing_a_repository_names(
    program: Program, engine: ScriptedEngine
) -> None:
    """GIT-01, -02, -06: fsmonitor, filters, drivers, pagers, includes of a hostile repository.

    The host's git would run them (shown first); a whole session with changes runs none.
    """
    space = program.workspace
    make_repository(space)
    marker = program.base / "pwned"
    payload = space / "p"
    payload.write_text(f"#!/bin/sh\necho $0 >> {marker}\ncat\n")
    payload.chmod(0o755)
    (space / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    (space / "team.cfg").write_text(
        f'[core]\n\tpager = {payload}\n[diff]\n\texternal = {payload}\n[diff "x"]\n'
        f"\ttextconv = {payload}\n"
    )
    with open(space / ".git/config", "a") as config:
        config.write(
            f"[core]\n\tfsmonitor = {payload}\n\tsshCommand = {payload}\n"
            f'[filter "x"]\n\tclean = {payload}\n\tsmudge = {payload}\n'
            f'[merge "x"]\n\tdriver = {payload}\n[include]\n\tpath = ../team.cfg\n'
        )
    (space / "a.txt").write_text("changed\n")
    run_git(space, "status", "--porcelain")
    assert marker.exists(), "the host's git ran nothing: the repository is not hostile"
    marker.unlink()
    (space / "a.txt").write_text("changed again\n")
    engine.call("read", path="a.txt")
    engine.call("edit", path="a.txt", old_string="again", new_string="twice")
    engine.call("bash", command="git status --porcelain; git diff | head -3; echo ok")
    engine.say("done")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    assert "a.txt" in ran.json["files_changed"]
    program("agents", "list", "--repo", str(space))
    program("doctor", "--repo", str(space))
    program("sessions", "show", ran.json["session_id"])
    assert not marker.exists(), marker.read_text()
    assert "ok" in engine.requests[-1].last


def test_files_that_the_configuration_names_are_configuration(
    program: Program, engine: ScriptedEngine
) -> None:
    """GIT-06: what .git/config includes, or takes hooks from, is read-only or put aside."""
    space = program.workspace
    make_repository(space)
    (space / "team.cfg").write_text("[alias]\n\tst = status\n[include] path = more.cfg\n")
    (space / "more.cfg").write_text("")
    (space / "free.cfg").write_text("")
    (space / ".husky").mkdir()
    with open(space / ".git/config", "a") as config:
        config.write(
            '[Include]\n\tpath = ../team.cfg\n[includeIf "gitdir:/x/"]\n\tPath = "../absent.cfg"\n'
            "[core]\n\thooksPath = .husky\n"
        )
    script = "for f in {}; do echo '[core]' >> $f; done; ls .husky"
    names = "team.cfg more.cfg .husky/pre-commit absent.cfg free.cfg"
    twin = outside(f"mkdir t; cd t; mkdir .husky; {script.format(names)}; rm -r ../t", space)
    assert twin == "pre-commit\n"
    one = session(program, engine, script.format(names))
    assert one.said.count("Read-only file system") == 3, one.said
    assert (space / "more.cfg").read_text() == ""
    assert (space / "free.cfg").read_text() == "[core]\n"
    assert not (space / "absent.cfg").exists()
    assert any("absent.cfg appeared" in notice for notice in one.ran.json["notices"])


def test_changes_that_git_is_told_to_hide_are_in_the_change_list(
    program: Program, engine: ScriptedEngine
) -> None:
    """GIT-11: assume-unchanged, exclude files and ignore files hide nothing from the result."""
    space = program.workspace
    make_repository(space)
    one = session(
        program,
        engine,
        "git update-index --assume-unchanged a.txt; echo evil > a.txt; mkdir -p .git/info;"
        " echo hidden.txt >> .git/info/exclude; echo x > hidden.txt; echo '*' > sub.gitignore;"
        " mkdir -p deep; echo '*' > deep/.gitignore; echo x > deep/f; touch -d @1 a.txt",
    )
    assert run_git(space, "status", "--porcelain").count("a.txt") == 0
    changed = set(one.ran.json["files_changed"])
    assert {"a.txt", "hidden.txt", "deep/f", "deep/.gitignore"} <= changed, changed


def test_no_core_is_dumped_anywhere(program: Program, engine: ScriptedEngine) -> None:
    """ENV-08: the limit is zero and stays zero; a crash leaves no file."""
    one = session(
        program,
        engine,
        probe_script(
            {
                "limit": "ulimit -c; ulimit -Hc",
                "raise": "ulimit -c unlimited",
                "crash": "bash -c 'kill -SEGV $$'; ls -A | wc -l; ls /tmp | wc -l; ls ~ | wc -l",
            }
        ),
    )
    assert one.outcomes["limit"].text == "0|0"
    assert not one.outcomes["raise"].ok
    assert "dumped" not in one.outcomes["crash"].text
    assert list(program.workspace.iterdir()) == []


def test_start_files_of_the_real_home_are_not_read_and_identity_is_sane(
    program: Program, engine: ScriptedEngine
) -> None:
    """ENV-09, ENV-10: a login shell shows no canary; user, time zone and locale are usable."""
    for name in (".bashrc", ".bash_profile", ".profile", ".inputrc", ".gitconfig"):
        (program.home / name).write_text(f"# {CANARY}\necho {CANARY}\n")
    (program.home / ".gitconfig").write_text(
        f"[user]\n\tname = A Person\n\temail = p@localhost\n[alias]\n\tx = !echo {CANARY}\n"
        f"[credential]\n\thelper = {CANARY}\n[include]\n\tpath = /{CANARY}\n"
    )
    make_repository(program.workspace)
    run_git(program.workspace, "config", "--unset", "user.name")
    run_git(program.workspace, "config", "--unset", "user.email")
    one = session(
        program,
        engine,
        probe_script(
            {
                "login": "bash -l -i -c true 2>/dev/null; echo end",
                "who": "whoami; id -un; id -gn; python3 -c 'import getpass as g;"
                " print(g.getuser())'",
                "zone": "date +%Z; locale 2>&1 | head -1",
                "settings": "git config --list --show-origin",
                "git": "git commit -q --allow-empty -m x; git log -1 --format='%an <%ae>'",
            }
        ),
        env={"TZ": "Europe/Paris", "LANG": "C.UTF-8"},
    )
    found = one.outcomes
    assert CANARY not in one.said
    assert found["login"].text == "end"
    assert found["who"].text == "|".join(["agent"] * 4) if os.getuid() == 0 else found["who"].ok
    assert found["zone"].text.split("|")[0] in ("CET", "CEST")
    assert "UTF-8" in found["zone"].text
    assert found["git"].text == "A Person <p@localhost>", found["git"]


def test_an_engine_error_tells_no_key_and_no_password(
    program: Program, engine: ScriptedEngine
) -> None:
    """ENV-06: a 401 that repeats the key, and an address with a password, come out clean."""
    engine.fail(401, error={"error": {"message": f"bad key {CANARY}", "type": "auth"}})
    url = engine.url.replace("http://", f"http://user:{CANARY}-pw@")
    ran = program.ask(engine.url, env={"OPENAI_API_KEY": CANARY})
    assert ran.code == 1, ran.err
    assert ran.json["status"] == "error:model"
    everything = ran.out + ran.err + "".join(path.read_text() for path in program.sessions())
    assert CANARY not in everything
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://user:{CANARY}-pw@127.0.0.1:{closed.getsockname()[1]}/v1"
        for address in (url, dead):
            ran = program.ask(address)
            assert ran.code != 0
            assert f"{CANARY}-pw" not in ran.out + ran.err
    assert f"{CANARY}-pw" not in "".join(path.read_text() for path in program.sessions())


def test_a_hidden_file_is_read_by_no_other_name(program: Program, engine: ScriptedEngine) -> None:
    """FSR-08: links, copies, moves, archives and searches of a masked file give nothing away.

    What git's history holds of it is in the objects, and a notice must say so.
    """
    space = program.workspace
    make_repository(space)
    (space / ".env").write_text(f"TOKEN={CANARY}\n")
    routes = {
        "cat": "cat .env",
        "link": "ln .env a && cat a",
        "symlink": "ln -s .env s && cat s",
        "copy": "cp .env b; cat b",
        "move": "mv .env c; cat c",
        "tar": "tar cf - .env | tr -d '\\0'",
        "dots": "cat ./d/../.env; cat $PWD//.env; cat /proc/self/cwd/.env",
        "grep": "grep -r TOKEN .",
        "remove": "rm -f .env; cat .env",
        "overwrite": "echo x > .env",
        "git": "git add -f .env && git show :.env",
        "python": "python3 -c \"print(open('.env').read())\"",
    }
    twin = outside("mkdir d; " + "cat .env; ln .env a && cat a && rm a; tar cf - .env", space)
    assert twin.count(CANARY) == 3
    one = session(program, engine, probe_script(routes))
    assert CANARY not in one.said
    assert "TOKEN" not in "".join(outcome.text for outcome in one.outcomes.values())
    assert (space / ".env").read_text() == f"TOKEN={CANARY}\n"
    assert not one.outcomes["overwrite"].ok
    assert not one.outcomes["move"].text.startswith("TOKEN")


def test_a_hidden_file_in_the_history_is_taken_out_of_what_is_said(
    program: Program, engine: ScriptedEngine
) -> None:
    """FSR-08: git's objects hold what was committed; its values leave no session as they stand."""
    space = program.workspace
    make_repository(space)
    (space / ".env").write_text(f"TOKEN={CANARY}\n")
    run_git(space, "add", ".env")
    run_git(space, "commit", "-q", "-m", "a mistake")
    script = "git show HEAD:.env; git log -p | grep TOKEN"
    assert outside(script, space, {"HOME": "/nonexistent"}).count(CANARY) == 2
    one = session(program, engine, script)
    assert one.said.count("redacted:file:.env") == 2, one.said
    everything = "".join(str(seen.body) for seen in engine.requests) + one.ran.out + one.ran.err
    everything += "".join(path.read_text() for path in program.sessions())
    assert CANARY not in everything
