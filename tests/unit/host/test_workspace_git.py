"""Repositories that git itself made: each place git runs or is configured from is protected."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rambarde.host import workspace as module
from rambarde.host.workspace import Workspace, scan_workspace
from support.policies import WORKSPACE_WRITE

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@localhost",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@localhost",
}


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder."""
    command = ["git", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]
    subprocess.run(
        [*command, *arguments], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True
    )


def repository(folder: Path) -> Path:
    """Make a repository with one commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace, empty yet."""
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def scan(root: Path) -> Workspace:
    """Scan with the shipped patterns."""
    return scan_workspace(
        os.fspath(root),
        protected=WORKSPACE_WRITE.protected,
        masks=WORKSPACE_WRITE.masks,
        home="/nonexistent",
    )


def names(root: Path, paths: tuple[bytes, ...]) -> set[str]:
    """Paths relative to a folder, as text."""
    return {os.path.relpath(os.fsdecode(path), root) for path in paths}


def test_a_clone_has_its_hooks_and_configuration_protected(root: Path) -> None:
    """What is there as a leaf, what is not there as absent, with its folder pinned."""
    space = scan(repository(root))
    assert names(root, space.read_only) == {".git/config", ".git/hooks"}
    assert names(root, space.pins) == {".git"}
    assert {".git/commondir", ".git/config.worktree", ".git/info/attributes"} <= names(
        root, space.absent
    )
    assert space.warnings == ()


def test_a_nested_clone_is_protected_like_the_root(root: Path) -> None:
    """Also what is not there yet: a planted `commondir` gives git another configuration."""
    repository(root / "vendor" / "lib")
    space = scan(root)
    assert {"vendor/lib/.git/config", "vendor/lib/.git/hooks"} <= names(root, space.read_only)
    assert {"vendor/lib/.git/commondir", "vendor/lib/.git/info/attributes"} <= names(
        root, space.absent
    )


def test_a_linked_worktree_brings_the_common_folder_with_its_leaves(
    tmp_path: Path, root: Path
) -> None:
    """It is writable beside the workspace but for what git runs and is configured by."""
    main = repository(tmp_path / "main")
    root.rmdir()
    git(main, "worktree", "add", "-q", str(root))
    space = scan(root)
    assert space.beside == (os.fsencode(main / ".git"),)
    leaves = names(tmp_path, space.read_only)
    assert {"ws/.git", "main/.git/config", "main/.git/hooks"} <= leaves
    assert {"main/.git/worktrees/ws/commondir", "main/.git/worktrees/ws/gitdir"} <= leaves
    assert {"main/.git/worktrees", "main/.git/worktrees/ws"} <= names(tmp_path, space.pins)


def test_worktrees_of_a_bare_repository_in_the_same_tree_are_protected(root: Path) -> None:
    """A popular layout: `.git` is a file that leads to `.bare`, whose name says nothing."""
    source = repository(root.parent / "source")
    git(root, "clone", "-q", "--bare", str(source), ".bare")
    (root / ".git").write_text("gitdir: ./.bare\n")
    git(root, "worktree", "add", "-q", "main")
    space = scan(root)
    leaves = names(root, space.read_only)
    assert {".git", "main/.git", ".bare/config", ".bare/hooks"} <= leaves
    assert {".bare/worktrees/main/commondir", ".bare/worktrees/main/gitdir"} <= leaves
    assert ".bare" in names(root, space.pins)
    assert space.beside == ()
    assert not [line for line in space.warnings if "does not name" in line]


def test_a_git_folder_kept_elsewhere_in_the_tree_is_protected(root: Path) -> None:
    """As `git init --separate-git-dir` makes it, with the common folder found by its file."""
    git(root, "init", "-q", "--separate-git-dir", str(root / "meta"), "app")
    (root / "meta" / "objects").rename(root / "meta" / "objects.away")
    space = scan(root)
    assert {"app/.git", "meta/config", "meta/hooks"} <= names(root, space.read_only)


def test_a_bare_repository_of_any_name_is_protected(root: Path) -> None:
    """Git runs by the configuration of one it stands in, whatever the folder is called."""
    git(root, "init", "-q", "--bare", "fixtures/sample")
    space = scan(root)
    assert {"fixtures/sample/config", "fixtures/sample/hooks"} <= names(root, space.read_only)


def test_the_root_may_be_a_bare_repository(root: Path) -> None:
    """Then its own config and hooks are the leaves."""
    git(root, "init", "-q", "--bare")
    assert {"config", "hooks"} <= names(root, scan(root).read_only)


def test_a_submodule_is_protected_where_its_git_folder_is(tmp_path: Path, root: Path) -> None:
    """Its `.git` file, and the hooks and configuration below .git/modules."""
    inner = repository(tmp_path / "inner")
    repository(root)
    git(root, "submodule", "add", "-q", str(inner), "libs/sub")
    leaves = names(root, scan(root).read_only)
    assert {"libs/sub/.git", ".gitmodules"} <= leaves
    assert {".git/modules/libs/sub/config", ".git/modules/libs/sub/hooks"} <= leaves


def test_hooks_behind_a_link_are_protected_where_they_lie(root: Path) -> None:
    """Inside: the landing with its folders pinned; missing: what would be there is absent."""
    repository(root)
    hooks = root / ".git" / "hooks"
    hooks.rename(root / "hooks")
    hooks.symlink_to("../tools/hooks")
    space = scan(root)
    assert "tools/hooks" in names(root, space.absent)
    (root / "tools").mkdir()
    (root / "hooks").rename(root / "tools" / "hooks")
    space = scan(root)
    assert "tools/hooks" in names(root, space.read_only)
    assert {"tools", ".git"} <= names(root, space.pins)
    assert any(".git/hooks is a link" in line for line in space.warnings)


def test_a_git_link_is_told_and_its_repository_protected(tmp_path: Path, root: Path) -> None:
    """Nested or at the root: the folder behind it works on, the link can be replaced."""
    repository(root / "app")
    (root / "app" / ".git").rename(root / "store")
    (root / "app" / ".git").symlink_to("../store")
    space = scan(root)
    assert {"store/config", "store/hooks"} <= names(root, space.read_only)
    assert any("app/.git is a link" in line for line in space.warnings)


def test_over_the_bound_a_nested_repository_is_one_leaf(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read-only as a whole is less work and no less safe."""
    monkeypatch.setattr(module, "MOST_FINE", 1)
    repository(root / "a")
    repository(root / "b")
    leaves = names(root, scan(root).read_only)
    assert len(leaves & {"a/.git", "b/.git"}) == 1
    assert len(leaves & {"a/.git/hooks", "b/.git/hooks"}) == 1


def test_the_scan_runs_no_git_and_changes_nothing(root: Path) -> None:
    """A repository that would run a program at any git command is only read."""
    repository(root)
    marker = root / "ran"
    git(root, "config", "core.fsmonitor", f"touch {marker}")
    before = sorted(path.lstat().st_ctime_ns for path in root.rglob("*"))
    scan(root)
    assert not marker.exists()
    assert sorted(path.lstat().st_ctime_ns for path in root.rglob("*")) == before
