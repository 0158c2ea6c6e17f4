"""What a git configuration names in its work tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rambarde.host.git_named import named_by_config


def named(root: Path, config: str) -> list[str]:
    """Return what a configuration names, relative to the root."""
    (root / ".git").mkdir(exist_ok=True)
    (root / ".git" / "config").write_text(config)
    return [os.path.relpath(os.fsdecode(p), root) for p in named_by_config(os.fsencode(root))]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("[include]\n\tpath = ../a.cfg\n", ["a.cfg"]),
        ('[INCLUDE]\nPath="../b c.cfg" ; why\n', ["b c.cfg"]),
        ("[include] path = ../c.cfg\n", ["c.cfg"]),
        ('[includeIf "gitdir:/x"]\npath = ../d.cfg\n', ["d.cfg"]),
        ("[include]\npath = inner.cfg\n", [".git/inner.cfg"]),
        ("[core]\n\thooksPath = .husky/_\n", [".husky/_"]),
        ("[core]\nhookspath = ./a/../hooks\n", ["hooks"]),
        ("[include]\npath = ../../out\npath = /etc/gitconfig\npath = ~/.x\n", [".git/~/.x"]),
        ("[core]\nhooksPath = .\n", []),
        ('[submodule "x"]\n\tpath = vendor\n[core]\npath = y\n', []),
        ("", []),
    ],
)
def test_files_of_the_tree_that_count_as_configuration(
    tmp_path: Path, config: str, expected: list[str]
) -> None:
    """Includes go from the configuration's folder, hooks from the root; outside is not named."""
    assert named(tmp_path, config) == expected


def test_includes_are_followed_and_end(tmp_path: Path) -> None:
    """An included file's own includes count too; a ring of them, or a link, ends the search."""
    (tmp_path / "a").write_text("[include]\npath = b\n")
    (tmp_path / "b").write_text("[include]\npath = a\npath = c\n")
    (tmp_path / "c").symlink_to("d")
    (tmp_path / "d").write_text("[include]\npath = e\n")
    assert named(tmp_path, "[include]\npath = ../a\n") == ["a", "b", "c"]


def test_no_configuration_names_nothing(tmp_path: Path) -> None:
    """A workspace without a repository, or with a pipe in its place, is no trouble."""
    assert named_by_config(os.fsencode(tmp_path)) == ()
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "config")
    assert named_by_config(os.fsencode(tmp_path)) == ()
