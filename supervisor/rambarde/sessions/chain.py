"""Read a journal back: its records, whether the chain holds, and mending a cut end. Trusted side.

Reading takes no lock and works while the journal is written. A last line without a newline is being
written or was cut, and is passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from rambarde.errors import RecordError
from rambarde.sessions.record import (
    FIRST_PREV,
    MAX_LINE_BYTES,
    Record,
    decode_record,
    is_object,
)


@dataclass(frozen=True, slots=True)
class Verification:
    """What a check of the whole chain found.

    `bad_line` counts from 1, 0 when every line holds; `reason` says what is wrong with it.
    `cut_bytes` follow the last newline: a line being written, or cut by a crash.
    """

    records: int
    bad_line: int = 0
    reason: str = ""
    cut_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """True when every line fits its hash, its number and the line before."""
        return not self.bad_line


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    raw: bytes
    record: Record | None
    reason: str


def verify(path: str) -> Verification:
    """Check every line of a journal.

    Raises:
        RecordError: it cannot be read.
    """
    count = 0
    end = 0
    with _opened(path) as file:
        for number, line in enumerate(_lines(file), 1):
            if line.record is None:
                return Verification(count, number, line.reason)
            count = number
            end = line.start + len(line.raw)
        size = os.fstat(file.fileno()).st_size
    if not count:
        return Verification(0, 1, "there is no header", size)
    return Verification(count, cut_bytes=max(0, size - end))


def read_records(path: str) -> Iterator[Record]:
    """Yield the records of a journal up to the first line that does not hold.

    Raises:
        RecordError: it cannot be read.
    """
    with _opened(path) as file:
        for line in _lines(file):
            if line.record is None:
                return
            yield line.record


def recover(fd: int, path: str) -> list[Record]:
    """Return the records of a journal locked by the caller; move a cut end to `<path>.cut`.

    Raises:
        RecordError: a whole record was changed, or there is no header. Nothing is moved then.
        OSError: the disk refuses.
    """
    records: list[Record] = []
    end = 0
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        lines = _lines(file)
        for line in lines:
            if line.record is None:
                _check_crash(line, lines, path, len(records) + 1)
                break
            records.append(line.record)
            end = line.start + len(line.raw)
        size = os.fstat(fd).st_size
        if not records:
            raise RecordError(
                f"{path} has no header: the disk never got it",
                advice="Nothing of that session was done after it; the file can be removed.",
            )
        if size > end:
            file.seek(end)
            _move_cut(fd, path, file, end)
    return records


def _check_crash(bad: _Line, after: Iterator[_Line], path: str, number: int) -> None:
    """Tell damage of a crash, which leaves no whole object, from a change by somebody."""
    if is_object(bad.raw) or any(is_object(line.raw) for line in after):
        raise RecordError(
            f"{path}: line {number} was changed: {bad.reason}",
            advice="The journal can be read but not continued: fork the session.",
        )


def _move_cut(fd: int, path: str, file: BinaryIO, end: int) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    cut = os.open(f"{path}.cut", flags, 0o600)
    try:
        while piece := file.read(1 << 20):
            left = memoryview(piece)
            while left:
                left = left[os.write(cut, left) :]
        os.fsync(cut)
    finally:
        os.close(cut)
    os.ftruncate(fd, end)
    os.fdatasync(fd)


def _lines(file: BinaryIO) -> Iterator[_Line]:
    """Yield the whole lines; after the first bad one nothing is expected to follow on anything."""
    start, n, prev = 0, 0, FIRST_PREV
    while (raw := file.readline(MAX_LINE_BYTES + 1)).endswith(b"\n"):
        record = decode_record(raw[:-1])
        reason = ""
        if record is None:
            reason = "it does not fit its hash"
        elif record.n != n or record.prev != prev:
            reason = "it does not follow on the line before"
        elif (n == 0) != (record.kind == "session"):
            reason = "the header is not the first line alone"
        else:
            n, prev = record.n + 1, record.hash
        yield _Line(start, raw, None if reason else record, reason)
        start += len(raw)


def _opened(path: str) -> BinaryIO:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        return os.fdopen(fd, "rb")
    except OSError as exc:
        raise RecordError(
            f"cannot read {path}: {exc.strerror}",
            advice="Name a session that `rambarde sessions list` shows.",
        ) from exc
