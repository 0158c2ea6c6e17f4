"""The journal when the disk refuses (rambarde.sessions.journal)."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from rambarde.errors import RecordError
from rambarde.sessions import journal as journal_module
from rambarde.sessions.chain import read_records, verify
from rambarde.sessions.journal import Journal
from support.sessions import conversation

_real_write = os.write


def _open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


class _Disk:
    """Lets the k-th write through in part, or not at all; once, or from then on."""

    def __init__(self, k: int, part: int, *, forever: bool, code: int = errno.ENOSPC) -> None:
        self.left = k
        self.part = part
        self.forever = forever
        self.code = code
        self.failing = False

    def write(self, fd: int, data: memoryview) -> int:
        if self.failing:
            self.failing = self.forever
            raise OSError(self.code, os.strerror(self.code))
        self.left -= 1
        if self.left == 0:
            self.failing = True
            if self.part:
                return _real_write(fd, data[: self.part])
            return self.write(fd, data)
        return _real_write(fd, data)


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("part", [0, 1, 40])
def test_each_write_that_fails_leaves_a_whole_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, forever: bool
) -> None:
    """For the k-th write, k = 1, 2, … until a run meets no fault: no torn line, no open file."""
    before = _open_fds()
    k, failed = 0, True
    while failed:
        k += 1
        path = tmp_path / f"{k}.jsonl"
        disk = _Disk(k, part, forever=forever)
        with monkeypatch.context() as patched:
            patched.setattr(journal_module.os, "write", disk.write)
            error = _write_all(path)
        failed = error is not None
        assert error is None or "full" in error.advice
        assert path.exists() == (k > 1)
        if path.exists():
            assert verify(str(path)).is_whole
            assert verify(str(path)).cut_bytes == 0
        assert _open_fds() == before
    assert k == 9
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".new")]


def _write_all(path: Path) -> RecordError | None:
    """Write a journal; return what failed."""
    try:
        journal = Journal.create(str(path), {})
    except RecordError as exc:
        return exc
    try:
        conversation(journal)
    except RecordError as exc:
        return exc
    finally:
        journal.close()
    return None


def test_after_room_was_made_the_journal_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that failed is taken away whole; the next one follows on the last that stands."""
    journal = Journal.create(str(tmp_path / "s"), {})
    with monkeypatch.context() as patched:
        patched.setattr(journal_module.os, "write", _Disk(1, 9, forever=True).write)
        with pytest.raises(RecordError):
            journal.write("lost", {})
    journal.write("kept", {})
    journal.close()
    assert [one.kind for one in read_records(journal.path)] == ["session", "kept"]


@contextlib.contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file of this process may exceed `size` inside the block; the kernel itself refuses.

    Only inside: the test's own report may go to a file.
    """
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_real_refusal_of_the_kernel_tears_no_line(tmp_path: Path) -> None:
    """The file's bound falls inside a line: write(2) takes a part, then fails."""
    path = tmp_path / "s.jsonl"
    journal = Journal.create(str(path), {})
    with small_files(path.stat().st_size + 1000):
        written = _write_until_refused(journal)
    journal.close()
    assert 1 <= written < 9
    found = verify(str(path))
    assert (found.is_whole, found.records, found.cut_bytes) == (True, 1 + written, 0)


def _write_until_refused(journal: Journal) -> int:
    for written in range(99):
        try:
            journal.write("x", {"text": "y" * 90})
        except RecordError:
            return written
    return 99


@pytest.mark.anyio
async def test_after_a_failed_sync_nothing_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells of it once; what is on the disk is not known from then on."""

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal.create(str(tmp_path / "s"), {})
    with monkeypatch.context() as patched:
        patched.setattr(journal_module.os, "fdatasync", fails)
        with pytest.raises(RecordError, match="Input/output") as caught:
            await journal.settle()
    assert "disk" in caught.value.advice
    with pytest.raises(RecordError):
        journal.write("x", {})
    with pytest.raises(RecordError):
        await journal.settle()
    journal.close()


def test_a_line_that_cannot_be_taken_away_stops_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written behind half a line; opening moves the half aside."""

    def fails(fd: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal.create(str(tmp_path / "s"), {})
    with monkeypatch.context() as patched:
        patched.setattr(journal_module.os, "write", _Disk(1, 9, forever=False).write)
        patched.setattr(journal_module.os, "ftruncate", fails)
        with pytest.raises(RecordError):
            journal.write("half", {})
    with pytest.raises(RecordError):
        journal.write("more", {})
    journal.close()
    again, records = Journal.reopen(journal.path)
    again.close()
    assert len(records) == 1
    assert Path(f"{journal.path}.cut").stat().st_size == 9


def test_a_cut_that_cannot_be_kept_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no room for the copy the journal stays as it was, and is not opened."""
    path = tmp_path / "s"
    Journal.create(str(path), {}).close()
    path.write_bytes(path.read_bytes() + b"half a line")
    before = path.read_bytes()
    fds = _open_fds()
    with monkeypatch.context() as patched:
        patched.setattr(journal_module.os, "write", _Disk(1, 0, forever=True).write)
        with pytest.raises(RecordError, match="No space"):
            Journal.reopen(str(path))
    assert path.read_bytes() == before
    assert _open_fds() == fds
