"""Names that were absent and now are there are put aside; a plain new repository stays."""

from __future__ import annotations

import os
import subprocess

import pytest

from rambarde.host.new_repository import is_plain_repository
from rambarde.host.quarantine import put_aside


def aside(root, *names):
    return put_aside(os.fsencode(root), [os.fsencode(root / name) for name in names])


@pytest.fixture
def new(tmp_path):
    """A repository as `git init` makes it."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run(
        ["git", "init", "-q", "ws"], cwd=tmp_path, check=True, env=environment, timeout=20
    )
    return tmp_path / "ws"


def test_what_appeared_is_renamed_and_told(tmp_path):
    """Files, folders and links alike; what is still absent is not."""
    (tmp_path / ".mcp.json").write_text("x")
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".envrc").symlink_to("/etc/passwd")
    names = (".mcp.json", ".claude", ".envrc", ".vscode")
    assert aside(tmp_path, *names) == [".mcp.json", ".claude", ".envrc"]
    assert sorted(os.listdir(tmp_path)) == [
        ".claude.rambarde-quarantine",
        ".envrc.rambarde-quarantine",
        ".mcp.json.rambarde-quarantine",
    ]


def test_an_earlier_find_is_not_overwritten(tmp_path):
    """Nor does a folder at the new name, an agent's bait, keep the file where it is."""
    (tmp_path / ".mcp.json").write_text("new")
    (tmp_path / ".mcp.json.rambarde-quarantine").mkdir()
    assert aside(tmp_path, ".mcp.json") == [".mcp.json"]
    assert (tmp_path / ".mcp.json.rambarde-quarantine.1").read_text() == "new"


def test_a_planted_link_on_the_way_leads_nowhere(tmp_path):
    """What lies behind it is not ours to rename."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config").write_text("x")
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / ".git").symlink_to(tmp_path / "other")
    assert aside(tmp_path / "ws", ".git/config") == []
    assert (tmp_path / "other" / "config").exists()


def test_a_plain_new_repository_stays(new):
    """As git makes it, also with a person's name, a remote and a branch."""
    assert is_plain_repository(os.fsencode(new / ".git"))
    with (new / ".git" / "config").open("a") as file:
        file.write('[user]\n\tname = Ann\n[remote "origin"]\n\turl = https://example.org/x\n'
                   '[branch "main"]\n\tmerge = refs/heads/main\n; a comment\n')  # fmt: skip
    assert aside(new, ".git") == []


@pytest.mark.parametrize(
    "text",
    [
        "[core]\n\tfsmonitor = ./x\n",
        "[core]\n\thooksPath = .h\n",
        "[Core]\n\tsshCommand = x\n",
        "[core] fsmonitor = ./x\n",
        '[filter "a"]\n\tclean = ./x\n',
        "[include]\n\tpath = ../x\n",
        "[alias]\n\tst = !x\n",
        "[user]\n\tname = a\\\n[core]\n\tfsmonitor = x\n",
        "[core]\n\tworktree = /\n",
        "nonsense\n",
    ],
)
def test_a_configuration_that_names_a_program_is_put_aside(new, text):
    """Any key that is not on the short list, however it is spelt."""
    with (new / ".git" / "config").open("a") as file:
        file.write(text)
    assert aside(new, ".git") == [".git"]


@pytest.mark.parametrize(
    "name", ["hooks/pre-commit", "commondir", "config.worktree", "info/attributes", "modules"]
)
def test_a_repository_with_more_than_git_makes_is_put_aside(new, name):
    """Hooks, and files that lead git elsewhere."""
    path = new / ".git" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    assert aside(new, ".git") == [".git"]


def test_a_git_name_that_is_no_folder_is_put_aside(tmp_path):
    """A file or a link would lead git to a repository elsewhere."""
    (tmp_path / ".git").write_text("gitdir: /elsewhere\n")
    assert aside(tmp_path, ".git") == [".git"]
    (tmp_path / ".git").symlink_to("/elsewhere")
    assert aside(tmp_path, ".git") == [".git"]


def test_hooks_behind_a_link_are_not_plain(new):
    """The folder of hooks itself may be a link to the workspace."""
    hooks = new / ".git" / "hooks"
    hooks.rename(new / "hooks")
    hooks.symlink_to("../hooks")
    assert not is_plain_repository(os.fsencode(new / ".git"))
