"""Listing files: order, bounds, ignore files and hostile trees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rambarde_child.tools import glob
from rambarde_wire import frames
from support.child_loop import ChildLoop


def _tree(workspace: Path, *paths: str) -> None:
    """Make files, each newer than the one before."""
    for age, path in enumerate(paths):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).touch()
        os.utime(workspace / path, (1000 + age, 1000 + age))


def _glob(workspace: Path, **arguments: Any) -> list[str]:
    with ChildLoop(workspace) as child:
        result = child.result("glob", **arguments)
    assert result.claimed_ok, result.claimed_text
    return result.claimed_text.split("\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"pattern": "*.py"}, ["z.py", "src/b/c.py", "src/a.py"]),
        ({"pattern": "src/*.py"}, ["src/a.py"]),
        ({"pattern": "./src/**/*.py"}, ["src/b/c.py", "src/a.py"]),
        ({"pattern": "src/**"}, ["src/b/c.py", "src/b/d.js", "src/a.py"]),
        ({"pattern": "src/"}, ["src/b/c.py", "src/b/d.js", "src/a.py"]),
        ({"pattern": "b/*", "path": "src"}, ["src/b/c.py", "src/b/d.js"]),
        ({"pattern": "*.{js,rs}"}, ["src/b/d.js"]),
        ({"pattern": "z.py"}, ["z.py"]),
        ({"pattern": "src/a.py"}, ["src/a.py"]),
        ({"pattern": "*.c"}, ["(no file matches)"]),
    ],
)
def test_glob_lists_newest_first(
    tmp_path: Path, arguments: dict[str, str], expected: list[str]
) -> None:
    """Paths are relative to the workspace whatever folder is searched."""
    _tree(tmp_path, "src/a.py", "src/b/d.js", "src/b/c.py", "z.py")
    assert expected == _glob(tmp_path, **arguments)


def test_glob_takes_absolute_patterns(tmp_path: Path) -> None:
    """A pattern below the workspace's own path says itself where to look."""
    _tree(tmp_path, "src/a.py", "b.py")
    assert _glob(tmp_path, pattern=f"{tmp_path}/src/*.py") == ["src/a.py"]
    assert _glob(tmp_path, pattern=f"{tmp_path}/*.py") == ["b.py"]


def test_glob_outside_is_refused(tmp_path: Path) -> None:
    """Neither a path nor a pattern leads out."""
    with ChildLoop(tmp_path) as child:
        for pattern, path in (("/etc/*", "."), ("../*", "."), ("*", "/")):
            assert child.result("glob", pattern=pattern, path=path).claimed_code == "outside"


def test_glob_shows_200_and_counts_the_rest(tmp_path: Path) -> None:
    """Of 205 files the 200 newest are shown and five are counted."""
    _tree(tmp_path, *(f"f{n}" for n in range(205)))
    lines = _glob(tmp_path, pattern="f*")
    assert (lines[0], lines[199], lines[200:]) == ("f204", "f5", ["(5 more; narrow the pattern)"])


def test_glob_fingerprint_sees_what_is_not_shown(tmp_path: Path) -> None:
    """A change among the files that were only counted changes the fingerprint."""
    _tree(tmp_path, "a", "b", "c")
    limits = frames.ToolLimits(glob_hits=1)
    with ChildLoop(tmp_path, limits=limits) as child:
        before = child.result("glob", pattern="*")
        os.rename(tmp_path / "a", tmp_path / "d")
        after = child.result("glob", pattern="*")
    assert before.claimed_text == after.claimed_text
    assert before.claimed_fingerprint != after.claimed_fingerprint


def test_glob_respects_ignore_files(tmp_path: Path) -> None:
    """Rules of .gitignore hold, .ignore beats it, deeper files beat higher ones."""
    _tree(tmp_path, "a.o", "b.o", "out/x", "d/a.o", "d/b.o", "d/e/c.o", "k")
    (tmp_path / ".gitignore").write_bytes(b"*.o\nout/\n")
    (tmp_path / ".ignore").write_bytes(b"!b.o\n")
    (tmp_path / "d" / ".gitignore").write_bytes(b"!c.o\n")
    assert set(_glob(tmp_path, pattern="[a-z]*")) == {"b.o", "d/b.o", "d/e/c.o", "k"}


def test_glob_enters_an_ignored_folder_that_is_named(tmp_path: Path) -> None:
    """To name a folder is to want it; the rules above still hold for the files in it."""
    _tree(tmp_path, "out/x.py", "out/x.o", "node_modules/m/i.js")
    (tmp_path / ".gitignore").write_bytes(b"*.o\nout/\nnode_modules/\n")
    assert _glob(tmp_path, pattern="out/*") == ["out/x.py"]
    assert _glob(tmp_path, pattern="*.js", path="node_modules") == ["node_modules/m/i.js"]


def test_glob_says_which_folders_it_skips(tmp_path: Path) -> None:
    """Folders without source of the project are not entered and are named."""
    _tree(tmp_path, "node_modules/a.js", ".git/a.js", "b.js")
    assert _glob(tmp_path, pattern="*.js") == [
        "b.js",
        "(not searched: .git, node_modules; name one in the pattern to search it)",
    ]


def test_glob_follows_no_link_and_skips_what_is_no_file(tmp_path: Path) -> None:
    """Cycles of links, links out and FIFOs, also in an ignore file's place, do no harm."""
    _tree(tmp_path, "d/a")
    (tmp_path / "d" / "up").symlink_to("..")
    (tmp_path / "d" / "etc").symlink_to("/etc")
    os.mkfifo(tmp_path / "d" / "fifo")
    os.mkfifo(tmp_path / ".gitignore")
    (tmp_path / "d" / ".ignore").symlink_to("/dev/zero")
    assert set(_glob(tmp_path, pattern="**/*")) == {"d/a", "d/up", "d/etc", "d/.ignore"}


def test_glob_of_deep_tree_says_where_it_stopped(tmp_path: Path) -> None:
    """Levels below the hundredth are not entered; the call still succeeds."""
    deep = tmp_path
    for _ in range(110):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "x").touch()
    assert _glob(tmp_path, pattern="x") == [
        "(no file matches)",
        "(folders deeper than 100 levels were not searched)",
    ]


def test_glob_ends_in_time_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bound the hits so far are the result, and it says so."""
    _tree(tmp_path, *(f"d{n}/f" for n in range(50)))
    monkeypatch.setattr(glob, "BUSY_S", 0.0)
    assert "(stopped after 0 s: search a smaller folder)" in _glob(tmp_path, pattern="**/f")


@pytest.mark.parametrize("pattern", ["[z-a]", "a/[z-a]"])
def test_glob_refuses_a_pattern_that_is_none(tmp_path: Path, pattern: str) -> None:
    """A set from z to a is refused in words."""
    with ChildLoop(tmp_path) as child:
        assert child.result("glob", pattern=pattern).claimed_code == "bad_pattern"


def test_glob_of_missing_folder_is_refused(tmp_path: Path) -> None:
    """A folder that is not there is named."""
    with ChildLoop(tmp_path) as child:
        result = child.result("glob", pattern="*", path="nope")
    assert result.claimed_code == "not_found"
    assert result.claimed_text.startswith("nope: ")
