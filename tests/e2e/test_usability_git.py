"""Git works inside as outside: clones, linked worktrees, submodules, signing, foreign owners."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.probes import (
    Outcome,
    make_repository,
    parse_outcomes,
    probe_inside,
    probe_script,
    run_git,
    session,
)
from support.program import Program
from support.scripted import ScriptedEngine

_EVERYDAY = {
    "status": "git status --porcelain",
    "add": "echo two >> a.txt && git add a.txt && git diff --cached --stat",
    "commit": "git commit -q -m second && git log --oneline | wc -l",
    "branch": "git checkout -q -b topic && git branch --show-current",
    "stash": "echo x >> a.txt && git stash -q && git diff --quiet && git stash pop -q && cat a.txt",
    "restore": "git checkout -- a.txt && git status --porcelain",
    "merge": "echo b > b.txt && git add b.txt && git commit -q -m b && git checkout -q HEAD~1"
    " && git merge -q topic && git log --oneline | wc -l; git checkout -q topic",
    "rebase": "git rebase -q HEAD~1 && git commit -q --amend -m b2 && git log -1 --format=%s",
    "move": "git mv b.txt c.txt && git reset -q --hard && git clean -fdq && ls",
    "tag": "git tag -m v1 v1 && git describe",
    "bisect": "git bisect start HEAD HEAD~1 && git bisect reset",
    "pack": "git gc -q && git fsck --strict 2>&1",
    "clone": "git clone -q . /tmp/clone && git -C /tmp/clone log -1 --format=%s",
    "blame": "git blame -s a.txt | wc -l; git grep -n two; git archive HEAD | tar t",
}


def assert_all_ok(found: dict[str, Outcome], *but: str) -> None:
    """Demand that every probe succeeded; a failure shows what it said."""
    failed = {name: one for name, one in found.items() if not one.ok and name not in but}
    assert not failed, failed


def identify(repository: Path) -> None:
    """Give a repository an identity of its own."""
    run_git(repository, "config", "user.name", "tester")
    run_git(repository, "config", "user.email", "tester@localhost")


def test_everyday_git_works_in_a_clone_and_is_seen_alike_from_both_sides(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-04, U-14, U-31: every common command works and the host's git finds a sound repository."""
    space = program.workspace
    make_repository(space)
    (space / ".env.example").write_text("TOKEN=\n")
    run_git(space, "add", ".env.example")
    run_git(space, "commit", "-q", "-m", "example")
    found = probe_inside(program, engine, _EVERYDAY)
    assert_all_ok(found)
    assert found["status"].text == ""
    assert found["branch"].text == "topic"
    assert found["rebase"].text == "b2"
    assert found["clone"].text == "b2"
    assert run_git(space, "status", "--porcelain") == ""
    assert run_git(space, "log", "--format=%s").split() == ["b2", "second", "example", "first"]
    run_git(space, "fsck", "--strict")
    owner = space.stat().st_uid
    strangers = [path for path in space.rglob("*") if path.lstat().st_uid != owner]
    assert not strangers, strangers


def test_a_dirty_tree_is_as_dirty_after_a_session_as_before(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-04, U-05: no stub, mask or changed type is in `git status`, inside, during or after.

    A hidden file that git does not track is excluded inside, so that it is not added as empty.
    """
    space = program.workspace
    make_repository(space)
    for name in (".env.example", ".bashrc", ".mcp.json", "Makefile"):
        (space / name).write_text(f"{name}\n")
    run_git(space, "add", "-A")
    run_git(space, "commit", "-q", "-m", "more")
    (space / "a.txt").write_text("dirty\n")
    (space / "new.txt").write_text("new\n")
    (space / ".env").write_text("TOKEN=secret\n")
    (space / "Makefile").unlink()
    before = run_git(space, "status", "--porcelain", "--untracked-files=all", "--ignored")
    kept = {path.name: path.lstat().st_mode for path in space.iterdir()}
    found = probe_inside(
        program, engine, {"status": "git status --porcelain --untracked-files=all --ignored; ls -A"}
    )
    after = run_git(space, "status", "--porcelain", "--untracked-files=all", "--ignored")
    assert before == after
    lines = found["status"].text.split("|")
    assert [line for line in lines if line[2:3] == " " and ".env" not in line] == [
        line for line in before.strip("\n").split("\n") if ".env" not in line
    ]
    assert "!! .env" in lines
    assert {path.name: path.lstat().st_mode for path in space.iterdir()} == kept


def test_a_linked_worktree_commits_and_the_main_hooks_and_config_stay(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-01, U-02: the most specific mount wins, so the worktree's own folder can be written."""
    main = program.base / "main"
    make_repository(main)
    program.workspace.rmdir()
    run_git(main, "worktree", "add", "-q", "-b", "side", str(program.workspace))
    kept = (main / ".git/config").read_bytes()
    listed = sorted(os.listdir(main / ".git/hooks"))
    git_folder = main / ".git"
    found = probe_inside(
        program,
        engine,
        {
            **_EVERYDAY,
            "worktrees": "git worktree list | wc -l",
            "hook": f"echo x > {git_folder}/hooks/pre-commit",
            "config": "git config core.hooksPath /tmp",
            "append": f"echo '[core]' >> {git_folder}/config",
            "rename": f"cd {git_folder}; mv hooks h || mv config c",
            "git_file": "echo 'gitdir: /tmp' > .git",
            "neighbour": f"ls {main}/a.txt || echo x > {main}/planted",
        },
    )
    refused = ("hook", "config", "append", "rename", "git_file", "neighbour")
    assert_all_ok(found, *refused)
    for name in refused:
        assert not found[name].ok, (name, found[name])
    assert (git_folder / "config").read_bytes() == kept
    assert sorted(os.listdir(git_folder / "hooks")) == listed
    assert not (main / "planted").exists()
    assert run_git(main, "log", "--format=%s", "topic").split() == ["b2", "second", "first"]
    assert run_git(program.workspace, "status", "--porcelain") == ""
    run_git(main, "fsck", "--strict")


def test_a_read_only_agent_reads_a_worktree_and_writes_no_part_of_it(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-01 in plan mode: the outside git folder is as read-only as the workspace."""
    main = program.base / "main"
    make_repository(main)
    program.workspace.rmdir()
    run_git(main, "worktree", "add", "-q", "-b", "side", str(program.workspace))
    probes = {
        "log": "git log -1 --format=%s; git status --porcelain; git diff --stat HEAD",
        "commit": "git commit -q --allow-empty -m no",
        "object": f"touch {main}/.git/objects/x",
    }
    found = probe_inside(program, engine, probes, plan=True)
    assert found["log"] == Outcome(0, "first"), found
    assert not found["commit"].ok, found
    assert "Read-only file system" in found["object"].text, found
    assert run_git(main, "log", "--format=%s", "side").split() == ["first"]


def test_a_submodule_as_workspace_commits(program: Program, engine: ScriptedEngine) -> None:
    """U-01 for submodules: their git folder lies in the outer repository and is written."""
    inner, outer = program.base / "inner", program.base / "outer"
    make_repository(inner)
    make_repository(outer)
    run_git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    identify(outer / "sub")
    probes = {
        "commit": "echo two >> a.txt && git commit -qam second && git log -1 --format=%s",
        "branch": "git checkout -q -b topic && git stash list",
        "config": "git config core.fsmonitor /tmp/x",
        "outer": f"ls {outer}/a.txt",
    }
    found = probe_in(program, engine, outer / "sub", probes)
    assert found["commit"] == Outcome(0, "second")
    assert found["branch"].ok
    assert not found["config"].ok
    assert not found["outer"].ok
    assert run_git(outer / "sub", "log", "-1", "--format=%s") == "second\n"


def probe_in(
    program: Program, engine: ScriptedEngine, folder: Path, probes: dict[str, str]
) -> dict[str, Outcome]:
    """Return the outcome of probes in a session whose workspace is another folder."""
    engine.call("bash", command=probe_script(probes), timeout_s=60)
    engine.say("done")
    ran = program.ask(engine.url, "--repo", str(folder))
    assert ran.code == 0, ran.err + ran.out
    found = parse_outcomes(engine.requests[-1].last)
    assert found.keys() == probes.keys(), engine.requests[-1].last
    return found


def test_commits_succeed_where_the_repository_demands_signatures(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-32: no key is inside, so signing is off there; the person's identity is used."""
    space = program.workspace
    make_repository(space)
    run_git(space, "config", "--unset", "user.name")
    run_git(space, "config", "--unset", "user.email")
    for key in ("commit.gpgsign", "tag.gpgsign"):
        run_git(space, "config", key, "true")
    run_git(space, "config", "user.signingkey", "ABCDEF")
    (program.home / ".gitconfig").write_text("[user]\n\tname = A Person\n\temail = p@localhost\n")
    probes = {
        "commit": "git commit -q --allow-empty -m unsigned && git log -1 --format='%an %G?'",
        "tag": "git tag -a -m v1 v1 && git tag",
    }
    one = session(program, engine, probe_script(probes))
    found = one.outcomes
    assert [notice for notice in one.ran.json["notices"] if "not signed" in notice]
    assert found["commit"] == Outcome(0, "A Person N"), found
    assert found["tag"] == Outcome(0, "v1"), found


def test_a_tree_of_another_owner_needs_no_safe_directory(
    program: Program, engine: ScriptedEngine
) -> None:
    """U-31: git never says "dubious ownership", whoever owns the tree, root or not."""
    space = program.workspace
    make_repository(space)
    if os.geteuid() == 0:
        for path in (space, *space.rglob("*")):
            os.lchown(path, 4321, 4321)
    probes = {
        "status": "git status --porcelain",
        "owner": "test $(stat -c %u a.txt) = $(id -u) && touch made && stat -c %u made",
        "commit": "git -c user.name=x commit -q --allow-empty -m y",
    }
    found = probe_inside(program, engine, probes)
    assert_all_ok(found)
    assert found["status"].text == ""
    assert (space / "made").stat().st_uid == space.stat().st_uid


def test_a_masked_file_is_not_added_as_an_empty_one(
    program: Program, engine: ScriptedEngine
) -> None:
    """`git add -A` inside leaves a hidden, untracked file alone; everything else is added."""
    space = program.workspace
    subprocess.run(["git", "init", "-q"], cwd=space, check=True)
    (space / ".env").write_text("TOKEN=abcdefgh12345678\n")
    (space / "code.py").write_text("x = 1\n")
    engine.call("bash", command="git add -A && git commit -qm one && git ls-files; git status -s")
    engine.say("ok")
    ran = program.ask(engine.url)
    assert ran.json["status"] == "done", ran.err
    assert engine.requests[1].last.strip() == "code.py"
    assert (space / ".env").read_text() == "TOKEN=abcdefgh12345678\n"
