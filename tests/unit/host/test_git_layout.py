"""Which repository outside a workspace's `.git` file rightly leads to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rambarde.host.git_layout import is_below, outside_repository


def repository(folder: Path) -> Path:
    """The least that looks like a git folder."""
    for name in ("objects", "refs", "hooks"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text("[core]\n\tbare = false\n")
    return folder


def worktree(base: Path, *, back: str | None = None) -> Path:
    """A linked worktree, as `git worktree add` lays it out."""
    common = repository(base / "main" / ".git")
    tree = base / "tree"
    tree.mkdir()
    own = common / "worktrees" / "tree"
    own.mkdir(parents=True)
    (own / "gitdir").write_text(f"{back or tree / '.git'}\n")
    (own / "commondir").write_text("../..\n")
    (tree / ".git").write_text(f"gitdir: {own}\n")
    return tree


def found(root: Path) -> str | None:
    path = outside_repository(os.fsencode(root))
    return None if path is None else os.fsdecode(path)


def test_a_worktree_leads_to_the_common_folder(tmp_path):
    """Which holds objects, references and the worktree's own folder."""
    tree = worktree(tmp_path)
    assert found(tree) == str(tmp_path / "main" / ".git")


def test_a_submodule_leads_to_its_module(tmp_path):
    """By its configuration, which names its worktree in turn."""
    module = repository(tmp_path / "super" / ".git" / "modules" / "sub")
    (module / "config").write_text('[core]\n\tworktree = "../../../sub"\n')
    (tmp_path / "super" / "sub").mkdir()
    (tmp_path / "super" / "sub" / ".git").write_text("gitdir: ../.git/modules/sub\n")
    assert found(tmp_path / "super" / "sub") == str(module)


def test_a_repository_that_does_not_name_back_is_not_believed(tmp_path):
    """The file is the workspace's word; another project's repository must not be opened by it."""
    other = repository(tmp_path / "other" / ".git")
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / ".git").write_text(f"gitdir: {other}\n")
    assert found(tmp_path / "ws") is None
    (tmp_path / "more").mkdir()
    assert found(worktree(tmp_path / "more", back="/elsewhere/.git")) is None


def test_a_git_folder_within_the_workspace_vouches_for_nothing(tmp_path):
    """An agent could write it: it would name the workspace back and another common folder."""
    other = repository(tmp_path / "other" / ".git")
    evil = tmp_path / "ws" / "evil"
    evil.mkdir(parents=True)
    (evil / "gitdir").write_text(f"{tmp_path}/ws/.git\n")
    (evil / "commondir").write_text(f"{other}\n")
    (tmp_path / "ws" / ".git").write_text("gitdir: evil\n")
    assert found(tmp_path / "ws") is None


def test_a_common_folder_must_hold_the_worktrees_own(tmp_path):
    """Else it is one more claim: of whoever could write the git folder."""
    tree = worktree(tmp_path)
    other = repository(tmp_path / "other" / ".git")
    (tmp_path / "main/.git/worktrees/tree/commondir").write_text(f"{other}\n")
    assert found(tree) is None


@pytest.mark.parametrize("content", ["", "gitdir:", "gitdir: \0", "gitdir: /nowhere", "[core]\n"])
def test_a_git_file_that_says_nothing_opens_nothing(tmp_path, content):
    """Empty, cut, with a zero byte, or leading to what is not there."""
    (tmp_path / ".git").write_text(content)
    assert found(tmp_path) is None


def test_a_git_name_that_is_no_file_is_not_waited_for(tmp_path):
    """A FIFO would hold a naive reader; a folder is an ordinary repository."""
    os.mkfifo(tmp_path / ".git")
    assert found(tmp_path) is None
    (tmp_path / "ws").mkdir()
    repository(tmp_path / "ws" / ".git")
    assert found(tmp_path / "ws") is None


def test_paths_are_compared_by_parts():
    """A sibling that begins with the same letters is not below."""
    assert is_below(b"/a/b", b"/a/b")
    assert is_below(b"/a/b/c", b"/a/b/")
    assert is_below(b"/a", b"/")
    assert not is_below(b"/a/bc", b"/a/b")
