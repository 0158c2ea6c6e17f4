"""The list of what changed: complete within its bounds, and never a claim beyond them."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from rambarde.host import snapshot
from rambarde.host.snapshot import Snapshot, changed_paths, take_snapshot

DEEP = sys.getrecursionlimit() + 100


@pytest.fixture
def root(tmp_path: Path) -> bytes:
    """A tree with a file, a folder and a repository's folder."""
    for name in ("a", "d/b", ".git/config", ".git/hooks/old", ".git/index", ".git/objects/x"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    return os.fsencode(tmp_path)


def write(root: bytes, *names: str) -> None:
    """Write files below the root, folders made as needed."""
    for name in names:
        path = os.path.join(os.fsdecode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write("more")


def aged(before: Snapshot) -> Snapshot:
    """The same snapshot as if it had been taken after all the files it knows, and cut short."""
    newest = max(stamp[2] for stamp in before.stamps.values())
    return Snapshot(before.stamps, False, newest + 10 * snapshot._CLOCK_SLACK_NS)


def test_an_untouched_tree_has_no_changes(root: bytes) -> None:
    """Reading changes nothing."""
    before = take_snapshot(root)
    Path(os.fsdecode(root), "a").read_text()
    assert before.whole
    assert changed_paths(root, before) == []


def test_made_changed_and_removed_files_are_told_in_order(root: bytes) -> None:
    """Once each, relative to the root."""
    before = take_snapshot(root)
    write(root, "new/deep/c", "d/b")
    os.unlink(os.path.join(root, b"a"))
    assert changed_paths(root, before) == ["a", "d/b", "new/deep/c"]


def test_a_change_with_its_time_set_back_is_told(root: bytes) -> None:
    """Same size, same mtime: ctime gives it away."""
    path = os.path.join(root, b"a")
    os.utime(path, ns=(1, 1))
    before = take_snapshot(root)
    with open(path, "r+b") as file:
        file.write(b"y")
    os.utime(path, ns=(1, 1))
    assert changed_paths(root, before) == ["a"]


def test_a_file_put_in_the_place_of_another_is_told(root: bytes) -> None:
    """Rename over: the inode is another."""
    before = take_snapshot(root)
    os.rename(os.path.join(root, b"d/b"), os.path.join(root, b"a"))
    assert changed_paths(root, before) == ["a", "d/b"]


def test_of_git_only_what_it_runs_by_is_told(root: bytes) -> None:
    """Hooks as one entry, configuration by name; index, objects and refs are git's own work."""
    before = take_snapshot(root)
    write(root, ".git/index", ".git/objects/y", ".git/refs/heads/config", ".git/COMMIT_EDITMSG")
    assert changed_paths(root, before) == []
    write(root, ".git/hooks/one", ".git/hooks/two", ".git/config", ".git/info/attributes")
    write(root, "sub/.git/hooks/x", ".git/modules/m/hooks/y", ".git/modules/m/config")
    assert changed_paths(root, before) == [
        ".git/config",
        ".git/hooks",
        ".git/info/attributes",
        ".git/modules/m/config",
        ".git/modules/m/hooks",
        "sub/.git/hooks",
    ]


def test_links_are_told_and_not_followed(root: bytes, tmp_path_factory: pytest.TempPathFactory):
    """A link that changes is a change; what it leads to, and a loop, is nothing of ours."""
    outside = tmp_path_factory.mktemp("outside")
    for name, target in ((b"out", os.fsencode(outside)), (b"self", b"."), (b"loop", b"loop")):
        os.symlink(target, os.path.join(root, name))
    before = take_snapshot(root)
    (outside / "f").write_text("x")
    assert changed_paths(root, before) == []
    os.unlink(os.path.join(root, b"self"))
    os.symlink(b"d", os.path.join(root, b"self"))
    assert changed_paths(root, before) == ["self"]


def test_pipes_and_sockets_hold_nothing_up(root: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no files: neither opened nor told."""
    before = take_snapshot(root)
    monkeypatch.chdir(root)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert changed_paths(root, before) == []


def test_odd_names_are_shown_without_effect(root: bytes) -> None:
    """No control character reaches a terminal, and each text means one path."""
    before = take_snapshot(root)
    for name in (b"caf\xe9", "café".encode(), b"new\nline", b"\x1b]0;x", b"$'a'"):
        with open(os.path.join(root, name), "wb"):
            pass
    assert sorted(changed_paths(root, before)) == sorted(
        ["$'caf\\xe9'", "café", "$'new\\x0aline'", "$'\\x1b]0;x'", "$'$\\x27a\\x27'"]
    )


def test_folders_nested_deeper_than_any_stack_are_walked(
    root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent cannot end the run with an error by nesting, up to the longest path there is."""
    before = take_snapshot(root)
    monkeypatch.chdir(root)
    for _ in range(DEEP):
        os.mkdir("n")
        os.chdir("n")
    try:
        Path("f").touch()
        assert changed_paths(root, before) == ["n/" * DEEP + "f"]
    finally:
        # Whoever clears old folders away by recursion would fail on these.
        os.unlink("f")
        for _ in range(DEEP):
            os.chdir("..")
            os.rmdir("n")


def test_a_cut_snapshot_makes_no_false_claims(root: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bounds, old files are not told as new, nor unreached ones as gone."""
    whole = take_snapshot(root)
    monkeypatch.setattr(snapshot, "MOST_FILES", 2)
    cut = take_snapshot(root)
    assert len(cut.stamps) == 2
    assert not cut.whole
    assert changed_paths(root, whole) == []
    monkeypatch.setattr(snapshot, "MOST_FILES", 100)
    assert changed_paths(root, aged(cut)) == []


def test_a_cut_snapshot_still_tells_what_is_certain(
    root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file by its ctime, a removed one by its absence."""
    whole = take_snapshot(root)
    monkeypatch.setattr(snapshot, "MOST_FILES", 1)
    cut = take_snapshot(root)
    monkeypatch.setattr(snapshot, "MOST_FILES", 100)
    write(root, "zz")
    late = Snapshot(cut.stamps, False, os.stat(os.path.join(root, b"zz")).st_ctime_ns)
    assert "zz" in changed_paths(root, late)
    monkeypatch.setattr(snapshot, "MOST_FILES", 1)
    os.unlink(os.path.join(root, b"d/b"))
    assert "d/b" in changed_paths(root, whole)


def test_time_is_a_bound_as_well(root: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time left the walk ends and says that it is not whole."""
    monkeypatch.setattr(snapshot, "MOST_S", -1.0)
    cut = take_snapshot(root)
    assert (cut.stamps, cut.whole) == ({}, False)


def test_more_changes_than_are_shown_are_counted(
    root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of files does not hide one without a word."""
    before = take_snapshot(root)
    monkeypatch.setattr(snapshot, "MOST_SHOWN", 3)
    write(root, *(f"n{number}" for number in range(5)))
    assert changed_paths(root, before) == ["n0", "n1", "n2", "... and 2 more"]


def test_a_root_that_is_gone_is_a_tree_without_files(root: bytes) -> None:
    """Everything is told as removed; nothing is raised."""
    before = take_snapshot(root)
    os.rename(root, root + b".gone")
    assert "a" in changed_paths(root, before)
