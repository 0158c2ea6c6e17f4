"""The session's append-only file of facts. Trusted side.

Theory of operation
-------------------
One file per session, mode 0600 in a folder of mode 0700, one JSON object a line (record.py), each
chained to the one before by its hash. It is the truth: index and transcript are made from it.

    one writer    flock(2) for as long as the journal is open; readers take no lock, for a line is
                  whole or has no newline yet
    no buffer     `write` hands the line to the kernel before it returns: what a killed supervisor
                  wrote is there
    durable       `settle` waits until all that was written is on the disk; called where it matters
                  (verdicts, turn ends, stops), not at every line: some disks sync 270 times a
                  second
    disk full     a line that did not fit whole is taken away again, the write fails, and a later
                  one may succeed. After a failed sync nobody knows what is on the disk: every
                  further write fails (the kernel reports such an error once only)
    cut           a crash may leave a last line without an end, or one the disk never got whole. On
                  opening it is moved to `<file>.cut`, where a person can read it, and the chain
                  goes on from the last whole line
    changed       a whole line that does not fit its hash or its place was changed by somebody: the
                  journal is not opened for writing, and `verify` names the line

The file is created under a passing name, locked and given its first line, and only then renamed: no
other process ever sees a session without a header or without its lock.

Source: flock(2), open(2) O_APPEND, fdatasync(2), fsync(2) on error reporting since Linux 4.13.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping

import anyio
import anyio.to_thread

from rambarde.errors import RecordError
from rambarde.models.base import AssistantMessage, Message, ToolMessage, Usage
from rambarde.sessions.chain import read_records, recover
from rambarde.sessions.record import FIRST_PREV, Record, Redact, encode_record

_LOCK_TRIES = 5
_LOCK_WAIT_S = 0.01
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_ADVICE = {
    errno.ENOSPC: "The disk is full: make room, then run again. What was recorded is kept.",
    errno.EDQUOT: "The user's quota is reached: make room, then run again.",
    errno.EROFS: "The file system is read-only: point the state folder elsewhere.",
    errno.EACCES: "Give yourself the folder back, or point the state folder elsewhere.",
    errno.EIO: "The disk reports errors: check it, and do not trust the last records.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
}


def failure(act: str, path: str, exc: OSError) -> RecordError:
    """Return the error for a call of the system that failed, with what to do."""
    advice = _ADVICE.get(exc.errno or 0, "Check the folder and its disk, then run again.")
    return RecordError(f"cannot {act} {path}: {exc.strerror}", advice=advice)


class Journal:
    """A session's file, open for writing. Not safe for several threads; `settle` may run beside."""

    def __init__(
        self,
        fd: int,
        path: str,
        *,
        n: int,
        prev: str,
        redact: Redact | None,
        now: Callable[[], float],
    ) -> None:
        """Made by `create` and `reopen`, which hold the lock."""
        self.path = path
        self._fd = fd
        self._n = n
        self._prev = prev
        self._redact = redact
        self._now = now
        self._size = os.fstat(fd).st_size
        self._settled_size = self._size
        self._is_new = n <= 1
        self._broken: RecordError | None = None
        self._syncs = 0
        self._sync_lock: anyio.Lock | None = None
        self._closed = False

    @classmethod
    def create(
        cls,
        path: str,
        header: Mapping[str, object],
        *,
        redact: Redact | None = None,
        now: Callable[[], float] = time.time,
    ) -> Journal:
        """Make the file with its first record, of kind `session`, and lock it.

        Raises:
            RecordError: it exists, or the disk refuses; nothing is left behind then.
        """
        folder, name = os.path.split(path)
        passing = os.path.join(folder, f".new-{name}")
        journal = None
        try:
            fd = os.open(passing, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.fchmod(fd, 0o600)
                _lock(fd, path)
                journal = cls(fd, path, n=0, prev=FIRST_PREV, redact=redact, now=now)
                journal.write("session", header)
                if os.path.lexists(path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                os.rename(passing, path)
            except BaseException:
                os.unlink(passing)
                os.close(fd)
                raise
        except OSError as exc:
            raise failure("create", path, exc) from exc
        return journal

    @classmethod
    def reopen(
        cls,
        path: str,
        *,
        redact: Redact | None = None,
        now: Callable[[], float] = time.time,
    ) -> tuple[Journal, list[Record]]:
        """Lock a journal that exists, mend its end where it was cut; return it with its records.

        Raises:
            RecordError: another process writes it, it was changed, or has no header.
        """
        try:
            fd = os.open(path, _FLAGS)
        except OSError as exc:
            raise failure("open", path, exc) from exc
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RecordError(f"{path} is no regular file", advice="Remove it.")
            _lock(fd, path)
            records = recover(fd, path)
            last = records[-1]
            return cls(fd, path, n=last.n + 1, prev=last.hash, redact=redact, now=now), records
        except OSError as exc:
            os.close(fd)
            raise failure("read", path, exc) from exc
        except BaseException:
            os.close(fd)
            raise

    def write(self, kind: str, data: Mapping[str, object]) -> None:
        """Append one record. On return the kernel has it; `settle` puts it on the disk.

        Raises:
            RecordError: it could not be written whole. The act it tells of must not be done.
            InternalError: a value that JSON cannot hold.
        """
        self._check_usable()
        line, digest = encode_record(self._n, self._now(), kind, data, self._prev, self._redact)
        try:
            self._append(line)
        except OSError as exc:
            raise self._undone(exc) from exc
        self._size += len(line)
        self._n += 1
        self._prev = digest

    def _append(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[os.write(self._fd, left) :]

    def _undone(self, exc: OSError) -> RecordError:
        """Take a line that is not whole away; without that nothing may follow it."""
        error = failure("write", self.path, exc)
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self._broken = error
        return error

    def write_message(
        self,
        message: Message,
        *,
        usage: Usage | None = None,
        finish_reason: str = "",
        call_id: str = "",
        code: str = "",
    ) -> None:
        """Append a message of the conversation, of kind `message`; transcript.py reads it back.

        Args:
            message: as the model said it or is told it.
            usage: tokens of the request it came from.
            finish_reason: why the provider ended it.
            call_id: our own id of the call a result belongs to.
            code: machine code of a result that is no success.
        """
        data: dict[str, object] = {"role": "user", "text": message.text}
        if isinstance(message, AssistantMessage):
            calls = [
                {"id": one.call_id, "name": one.name, "arguments": one.arguments}
                for one in message.calls
            ]
            data |= {"role": "assistant", "calls": calls, "finish_reason": finish_reason}
            if message.reasoning:
                data["reasoning"] = message.reasoning
            if usage is not None:
                data["usage"] = usage
        elif isinstance(message, ToolMessage):
            data |= {"role": "tool", "id": message.call_id, "name": message.name}
            data |= {"is_error": message.is_error, "call_id": call_id, "code": code}
        self.write("message", data)

    async def settle(self) -> None:
        """Return once all that was written before this call is on the disk.

        The wait is in a thread, so that a slow disk stops this agent only. Calls at the same time
        share one sync.

        Raises:
            RecordError: the disk did not take it; nothing more can be written.
        """
        target = self._size
        if self._sync_lock is None:
            self._sync_lock = anyio.Lock()
        self._syncs += 1
        try:
            async with self._sync_lock:
                if self._needs_sync(target):
                    size = self._size
                    await anyio.to_thread.run_sync(self._sync)
                    self._settled_size = size
        except OSError as exc:
            raise self._not_settled(exc) from exc
        finally:
            self._syncs -= 1
            if self._closed and not self._syncs:
                os.close(self._fd)

    def settle_nowait(self) -> None:
        """Do the same on the spot, for places without an event loop.

        Raises:
            RecordError: as `settle`.
        """
        size = self._size
        try:
            if self._needs_sync(size):
                self._sync()
        except OSError as exc:
            raise self._not_settled(exc) from exc
        self._settled_size = size

    def _check_usable(self) -> None:
        if self._closed:
            raise RecordError(f"{self.path} is closed", advice="Report this.")
        if self._broken is not None:
            raise self._broken

    def _needs_sync(self, target: int) -> bool:
        if self._settled_size >= target:
            return False
        self._check_usable()
        return True

    def _sync(self) -> None:
        os.fdatasync(self._fd)
        if self._is_new:
            # The name itself has to reach the disk once.
            folder = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._is_new = False

    def _not_settled(self, exc: OSError) -> RecordError:
        self._broken = failure("write", self.path, exc)
        return self._broken

    def close(self) -> None:
        """Give the lock back; a sync that runs ends first. A second call changes nothing."""
        if not self._closed:
            self._closed = True
            if not self._syncs:
                os.close(self._fd)

    def records(self) -> Iterator[Record]:
        """Yield the records so far, from the file."""
        return read_records(self.path)


def is_locked(path: str) -> bool:
    """Return True while a process writes the journal (or, for an instant, looks as this does)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _lock(fd: int, path: str) -> None:
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # `is_locked` of another process holds a lock for some microseconds.
            if attempt + 1 < _LOCK_TRIES:
                time.sleep(_LOCK_WAIT_S)
        else:
            return
    raise RecordError(
        f"{path} is being written by another process",
        advice="Wait for that session to end, or fork it.",
    )
