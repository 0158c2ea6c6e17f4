"""A linked worktree: its repository lies outside, and git works there as it does inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.program import Program

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"]


def git(folder: Path, *words: str) -> str:
    """Run the host's git in a test's own repository."""
    done = subprocess.run(
        [*GIT, *words], cwd=folder, check=True, capture_output=True, text=True, timeout=20,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder below none of the child's own tmpfs (/tmp is one)."""
    base = Path("/srv") if os.access("/srv", os.W_OK) else Path.home()
    made = base / f"rambarde-test-{os.getpid()}"
    made.mkdir()
    yield made
    shutil.rmtree(made)


def make_worktree(base: Path) -> tuple[Path, Path]:
    """A repository and a worktree of it."""
    main, tree = base / "main", base / "tree"
    main.mkdir()
    git(main, "init", "-q")
    (main / "a").write_text("a\n")
    git(main, "add", "a")
    git(main, "commit", "-qm", "first")
    git(main, "worktree", "add", "-q", str(tree), "-b", "side")
    return main, tree


@pytest.mark.parametrize("where", ["below the child's own /tmp", "elsewhere"])
def test_git_works_in_a_linked_worktree(
    program: Program, tmp_path: Path, place: Path, where: str
) -> None:
    """Commit, branch and stash write the main repository; its hooks and config stay shut."""
    main, tree = make_worktree(place if where == "elsewhere" else tmp_path)
    before = (main / ".git" / "config").read_bytes()
    script = (
        "echo b >b && git add b && git commit -qm second && git checkout -qb more"
        " && echo c >>b && git stash -q && git stash pop -q && git status --porcelain;"
        f" echo x >{main}/.git/hooks/post-checkout; git config core.fsmonitor ./x;"
        f" mv {main}/.git/hooks {main}/.git/h; echo x >{main}/a; ls {main}"
    )
    ran = program("exec", "--repo", str(tree), "--", "bash", "-c", script)
    assert ran.out == " M b\n", ran.err
    assert "Read-only file system" in ran.err
    assert git(main, "log", "--format=%s", "more").split() == ["second", "first"]
    assert (main / ".git" / "config").read_bytes() == before
    assert (main / "a").read_text() == "a\n"
    assert not (main / ".git" / "hooks" / "post-checkout").exists()
    assert {p.stat().st_uid for p in (main / ".git").rglob("*")} == {os.geteuid()}


def test_a_git_file_that_names_anothers_repository_opens_nothing(
    program: Program, tmp_path: Path
) -> None:
    """An archive may hold any `.git` file: the repository it names must name the folder back."""
    main, _tree = make_worktree(tmp_path)
    (program.workspace / ".git").write_text(f"gitdir: {main}/.git/worktrees/tree\n")
    ran = program("exec", "--", "ls", f"{main}/.git")
    assert ran.code != 0
    assert "No such file" in ran.err


def test_a_venvs_link_shows_no_home(program: Program, tmp_path: Path) -> None:
    """A venv whose python leads to nothing like a Python shows nothing; a real one runs."""
    secret = tmp_path / "someone" / ".ssh"
    secret.mkdir(parents=True)
    (secret / "id").write_text("SECRET")
    (tmp_path / "someone" / "bin").mkdir()
    bait = tmp_path / "someone" / "bin" / "python3"
    shutil.copy("/bin/true", bait)
    venv = program.workspace / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {bait.parent}\n")
    (venv / "bin" / "python").symlink_to(bait)
    ran = program("exec", "--", "cat", str(secret / "id"))
    assert ran.code != 0
    assert "SECRET" not in ran.out


def test_a_venv_reached_over_two_links_runs(program: Program, tmp_path: Path) -> None:
    """Each hop exists inside and so does the standard library, but not what lies beside them."""
    real = Path(os.path.realpath(sys.executable))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "note").write_text("beside")
    (tools / "python3").symlink_to(real)
    venv = program.workspace / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {tools}\n")
    (venv / "bin" / "python").symlink_to(tools / "python3")
    script = "import sys, json, os; print(sys.prefix, os.listdir(sys.argv[1]))"
    ran = program("exec", "--", ".venv/bin/python", "-c", script, str(tools))
    assert ran.out.split(None, 1) == [str(venv), "['python3']\n"], ran.err
