"""What a person's own tools run from a workspace is not an agent's to write, or is put aside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.probes import (
    make_repository,
    probe_inside,
    probe_outside,
    probe_script,
    run_git,
    session,
    tree_state,
)
from support.program import Program
from support.scripted import ScriptedEngine

READ_ONLY = "Read-only file system"
BUSY = "Device or resource busy"

GIT_ATTACKS = {
    "hook": "printf '#!/bin/sh\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit",
    "chmod_hook": "chmod +x .git/hooks/post-merge.sample",
    "config_set": "git config core.fsmonitor ./x",
    "config_hooks": "git config core.hooksPath .h",
    "config_ssh": "git config core.sshCommand ./x",
    "config_alias": "git config alias.st '!x'",
    "config_append": "echo '[core]' >> .git/config",
    "config_lock": "cp .git/config .git/c && mv .git/c .git/config",
    "remove_config": "rm -f .git/config",
    "move_hooks": "mv .git/hooks .git/h2",
    "swap_hooks": "rm -rf .git/hooks && mkdir .git/hooks",
    "move_git": "mv .git .g2 && cp -r .g2 .git && echo x > .git/hooks/post-checkout",
    "move_git_python": "python3 -c \"import os; os.rename('.git', '.g3')\"",
    "modules": "echo x > .git/modules/sub/hooks/post-merge",
    "nested_hook": "echo x > vendor/sub/.git/hooks/post-merge",
    "nested_config": "echo x >> vendor/sub/.git/config",
    "nested_move": "mv vendor/sub/.git vendor/sub/.g",
    "nested_folder": "mv vendor/sub vendor/other",
    "remove_all": "rm -rf .git",
}


def make_nested(space: Path) -> None:
    """Make a repository that holds another one, and a submodule's folder."""
    make_repository(space)
    make_repository(space / "vendor" / "sub")
    for folder in (".git/hooks", ".git/modules/sub/hooks", "vendor/sub/.git/hooks"):
        (space / folder).mkdir(parents=True, exist_ok=True)
        (space / folder / "post-merge.sample").write_text("#!/bin/sh\n")
    (space / ".git/modules/sub/config").write_text("[core]\n")


def run_parts(space: Path) -> dict[str, object]:
    """Return the state of all that git runs, or reads commands from."""
    parts: dict[str, object] = {}
    for folder in (".git/hooks", ".git/modules", "vendor/sub/.git/hooks"):
        parts[folder] = tree_state(space / folder)
    for name in (".git/config", "vendor/sub/.git/config"):
        parts[name] = (space / name).read_bytes(), (space / name).stat().st_mtime_ns
    return parts


def test_what_git_runs_cannot_be_written_replaced_or_moved(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRT-01, -02, -03, -06, -11: hooks and configurations of all repositories stay as they were.

    The same lines work in a repository without a sandbox, and a commit still works inside.
    """
    space = program.workspace
    for name, script in GIT_ATTACKS.items():
        make_nested(program.base / "twin" / name)
        outcome = probe_outside(program.base / "twin" / name, {name: script})[name]
        assert outcome.ok, (name, outcome)
    make_nested(space)
    before = run_parts(space)
    found = probe_inside(
        program,
        engine,
        {
            **GIT_ATTACKS,
            "commit": "echo 2 >> a.txt && git commit -qam second && git status --porcelain",
        },
    )
    for name in GIT_ATTACKS:
        words = (READ_ONLY, BUSY, "could not lock config file")
        assert not found[name].ok, (name, found[name])
        assert any(word in found[name].text for word in words), (name, found[name])
    for name in ("move_hooks", "move_git", "move_git_python", "nested_move", "nested_folder"):
        assert BUSY in found[name].text, (name, found[name])
    assert run_parts(space) == before


def test_work_with_git_goes_on_in_a_protected_repository(
    program: Program, engine: ScriptedEngine
) -> None:
    """Commits, branches, stashes, merges and worktree-free tools of git work; hooks run inside."""
    space = program.workspace
    make_repository(space)
    hook = space / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        "#!/bin/sh\nenv > hook-env.txt; (exec 3<>/dev/tcp/1.1.1.1/53) 2>/dev/null && echo net"
        " >> hook-env.txt; hostname >> hook-env.txt 2>&1; cat /etc/hostname >> hook-env.txt\n"
    )
    hook.chmod(0o755)
    one = session(
        program,
        engine,
        probe_script(
            {
                "commit": "echo 2 >> a.txt && git commit -qam second",
                "branch": "git switch -qc side && echo 3 >> b && git add b && git commit -qm third"
                " && git switch -q main && git merge -q side",
                "stash": "echo 4 >> a.txt && git stash -q && git stash pop -q && git checkout -q .",
                "log": "git log --oneline | wc -l",
                "fsck": "git fsck --no-progress",
            }
        ),
        env={"GITHUB_TOKEN": "canary-hook-55aa"},
    )
    found = one.outcomes
    for name, outcome in found.items():
        assert outcome.ok, (name, outcome)
    assert found["log"].text == "3"
    said = (space / "hook-env.txt").read_text()
    assert "HOME=/home/agent" in said
    assert "rambarde" in said
    assert "canary" not in said
    assert "net" not in said.splitlines()
    assert run_git(space, "log", "--format=%s").split() == ["third", "second", "first"]


def test_protected_names_that_were_absent_are_put_aside_and_told(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRT-04: what an agent makes at such a name is renamed at the end; the next run loads none."""
    space = program.workspace
    make_repository(space)
    made = {
        "own_config": "mkdir -p .rambarde/agents && echo '[execution]' > .rambarde/config.toml",
        "own_agent": "printf -- '---\\nname: evil\\ndescription: x\\nmode: all\\n---\\nx\\n'"
        " > .rambarde/agents/evil.md",
        "claude": "mkdir -p .claude && echo '{}' > .claude/settings.json",
        "mcp": "echo '{}' > .mcp.json",
        "vscode": "mkdir -p .vscode && echo '{}' > .vscode/tasks.json",
        "worktree": "echo '[core]' > .git/config.worktree",
        "commondir": "echo /tmp > .git/commondir",
        "attributes": "mkdir -p .git/info && echo '* filter=x' > .git/info/attributes",
        "envrc": "echo 'touch pwned' > .envrc",
        "modules": "echo '[submodule \"x\"]' > .gitmodules",
    }
    one = session(program, engine, probe_script(made))
    for name in (".rambarde", ".claude", ".mcp.json", ".vscode", ".envrc", ".gitmodules"):
        assert not os.path.lexists(space / name), name
    for name in ("config.worktree", "commondir", "info/attributes"):
        assert not os.path.lexists(space / ".git" / name), name
    notices = "\n".join(one.ran.json["notices"])
    for name in (".rambarde", ".claude", ".mcp.json", ".vscode", ".envrc", ".git/commondir"):
        assert f"{name} appeared during the run" in notices, (name, notices)
    assert run_git(space, "status", "--porcelain")
    engine.say("done")
    again = program.ask(engine.url, "--agent", "evil")
    assert again.code == 2
    assert "no agent named evil" in again.err


def test_new_repositories_below_are_told_and_their_hooks_are_no_ones(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRT-06: a repository made during the run works inside and is listed among the changes."""
    make_repository(program.workspace)
    one = session(
        program,
        engine,
        "git init -q new && cd new && mkdir -p .git/hooks && echo x > .git/hooks/post-merge"
        " && chmod +x .git/hooks/post-merge && echo made",
    )
    assert one.said == "made"
    changed = one.ran.json["files_changed"]
    assert "new/.git/hooks" in changed, changed
    assert "new/.git/config" in changed, changed


def test_modules_of_the_workspace_are_never_imported_by_the_program(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRT-09: shadowing modules in the folder it is started in and in user site are not run."""
    marker = program.base / "pwned"
    text = f"open({str(marker)!r}, 'a').write(__name__ + chr(10))\n"
    for name in ("msgspec", "json", "anyio", "click", "sitecustomize", "usercustomize"):
        (program.workspace / f"{name}.py").write_text(text)
    twin = probe_outside(program.workspace, {"twin": "python3 -c 'import msgspec'"})["twin"]
    assert twin.ok
    assert marker.read_text() == "msgspec\n"
    marker.unlink()
    engine.call("bash", command="echo in")
    engine.say("done")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    assert ran.json["result"] == "done"
    assert not marker.exists(), marker.read_text()
    installed = program.base / "rambarde"
    installed.write_text("from rambarde.__main__ import main\nmain()\n")
    (program.workspace / "rambarde.py").write_text(text)
    done = subprocess.run(
        [sys.executable, installed, "--version"],
        cwd=program.workspace,
        env=program.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("rambarde "), done.stderr
    assert not marker.exists(), marker.read_text()


def test_files_that_will_run_on_the_persons_machine_are_listed(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRT-13: build files and test settings may be changed, and every change is told."""
    names = ("Makefile", "conftest.py", "package.json", ".pre-commit-config.yaml")
    one = session(program, engine, "; ".join(f"echo x > {name}" for name in names))
    assert set(names) <= set(one.ran.json["files_changed"])


def test_protected_links_are_protected_where_they_land(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRT-10: links at protected names do not stop a run, nor open what they name."""
    space = program.workspace
    make_repository(space)
    (space / "shared").mkdir()
    (space / "shared" / "settings.json").write_text("{}\n")
    (space / ".claude").symlink_to("shared")
    (space / ".vscode").symlink_to("../outside")
    outside = program.base / "outside"
    outside.mkdir()
    (outside / "f").write_text("before\n")
    found = probe_inside(
        program,
        engine,
        {
            "through": "echo x > .claude/settings.json",
            "target": "echo x > shared/new",
            "outside": "echo x > .vscode/f",
            "replace": "ln -sfn /tmp .claude && echo x > .claude/y; cat shared/settings.json",
            "work": "echo x > free.txt",
        },
    )
    assert READ_ONLY in found["through"].text
    assert READ_ONLY in found["target"].text
    assert not found["outside"].ok
    assert found["work"].ok
    assert (outside / "f").read_text() == "before\n"
    assert (space / "shared" / "settings.json").read_text() == "{}\n"


def test_nothing_is_left_on_the_host(program: Program, engine: ScriptedEngine) -> None:
    """PRT-16: a run that changes nothing leaves no stub, no mount and no other time of change."""
    space = program.workspace
    make_nested(space)
    (space / ".env").write_text("KEY=canary-env-31\n")
    status = run_git(space, "status", "--porcelain", "--ignored")
    before = tree_state(space)
    session(program, engine, "cat a.txt")
    assert tree_state(space) == before
    assert run_git(space, "status", "--porcelain", "--ignored") == status
    assert str(space) not in Path("/proc/mounts").read_text()


def test_litter_of_an_agent_does_not_lock_the_next_session_out(
    program: Program, engine: ScriptedEngine
) -> None:
    """PRT-17, LNK-09: loops of links and false repositories are only told."""
    make_repository(program.workspace)
    session(
        program,
        engine,
        "ln -s a b; ln -s b a; mkdir -p x/.git y; ln -s loop x/.git/hooks; ln -s hooks x/.git/loop;"
        " mkfifo y/.git; ln -s /nonexistent y/.envrc; mkdir -p z/.git/config; ln -s . .cursor;"
        " ln -s /etc .idea; true",
    )
    one = session(program, engine, "echo again > again.txt && cat again.txt")
    assert one.said == "again"
    assert (program.workspace / "again.txt").read_text() == "again\n"
