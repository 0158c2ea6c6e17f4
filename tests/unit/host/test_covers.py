"""Covered paths that the host replaces are noticed, each time and only then."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from rambarde.host import covers
from rambarde.host.covers import CoverWatch
from rambarde_wire.orders import Mask


def mask(path: Path) -> Mask:
    """The mask of a file."""
    return Mask(os.fsencode(path), is_dir=False)


@pytest.fixture(params=["held", "by ctime"])
def secret(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to mask, watched either way."""
    if request.param != "held":
        monkeypatch.setattr(covers, "MOST_HELD", 0)
    path = tmp_path / ".env"
    path.write_text("A=1")
    return path


def test_an_atomic_save_is_told_once(secret: Path) -> None:
    """Rename over the file: told at the next look, and not again."""
    watch = CoverWatch([mask(secret)], [])
    assert watch.replaced() == ([], [])
    for _ in range(2):
        other = secret.with_name("new")
        other.write_text("A=2")
        other.rename(secret)
        assert watch.replaced() == ([mask(secret)], [])
        assert watch.replaced() == ([], [])


def test_a_file_removed_and_made_again_is_told(secret: Path) -> None:
    """File systems give the old inode number to the new file: that does not deceive the watch."""
    watch = CoverWatch([mask(secret)], [])
    for _ in range(3):
        secret.unlink()
        secret.write_text("A=1")
        assert watch.replaced() == ([mask(secret)], [])


def test_a_file_that_comes_back_later_is_told(secret: Path) -> None:
    """Gone is nothing to cover; back is."""
    watch = CoverWatch([mask(secret)], [])
    secret.unlink()
    assert watch.replaced() == ([], [])
    assert watch.replaced() == ([], [])
    secret.write_text("A=1")
    assert watch.replaced() == ([mask(secret)], [])


def test_a_file_changed_in_place_keeps_its_cover(tmp_path: Path) -> None:
    """The mount stays on the inode: nothing to do."""
    secret = tmp_path / ".env"
    secret.write_text("A=1")
    watch = CoverWatch([mask(secret)], [])
    secret.write_text("A=2")
    secret.chmod(0o600)
    assert watch.replaced() == ([], [])


def test_folders_links_and_leaves_are_watched_alike(tmp_path: Path) -> None:
    """A hooks folder that is moved away and made anew is told as a leaf."""
    hooks, config = tmp_path / "hooks", tmp_path / "config"
    hooks.mkdir()
    config.symlink_to("/absent")
    watch = CoverWatch([], [os.fsencode(hooks), os.fsencode(config)])
    assert watch.replaced() == ([], [])
    hooks.rename(tmp_path / "old")
    hooks.mkdir()
    config.unlink()
    config.symlink_to("/other")
    assert watch.replaced() == ([], [os.fsencode(hooks), os.fsencode(config)])


def test_a_pipe_does_not_stop_the_watch(tmp_path: Path) -> None:
    """What replaces a file is held by its name only, never opened for reading."""
    secret = tmp_path / ".env"
    watch = CoverWatch([mask(secret)], [])
    os.mkfifo(secret)
    assert watch.replaced() == ([mask(secret)], [])


def test_descriptors_are_few_and_end_with_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not more than MOST_HELD, however often files are replaced; none is left behind."""
    monkeypatch.setattr(covers, "MOST_HELD", 3)
    paths = [tmp_path / str(number) for number in range(6)]
    for path in paths:
        path.touch()
    before = len(os.listdir("/proc/self/fd"))
    watch = CoverWatch([mask(path) for path in paths], [])
    for _ in range(3):
        for path in paths:
            path.unlink()
            path.touch()
        assert len(watch.replaced()[0]) == 6
        assert len(os.listdir("/proc/self/fd")) == before + 3
    del watch
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
