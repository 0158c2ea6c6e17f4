"""The caller's standard streams, joined to those of a command inside. Trusted side.

No descriptor of the caller is given to a child: through one it could reach a file, a terminal or a
socket of the host by other ways than reading and writing. The bytes are carried over here, and
nothing here waits where the clock and the signals could not end it: a write follows a poll and is
no larger than what a pipe that polls writable takes at once.

Source: pipe(7) (PIPE_BUF, EPIPE), epoll_ctl(2) (EPERM for regular files).
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Callable

import anyio

from rambarde.children.command import Sink

_READ_BYTES = 64 << 10


class OwnStreams:
    """Standard input, output and error of this process, for one command."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        """`on_failure` is told, once, that the output cannot be written: `failure` says why."""
        self.failure: OSError | None = None
        self._on_failure = on_failure
        self._feed_fd = -1

    @property
    def reader_left(self) -> bool:
        """True when whoever read our output has closed it."""
        return self.failure is not None and self.failure.errno == errno.EPIPE

    def open_input(self) -> int | None:
        """Return the end of a new pipe to read our input from, which `feed` fills.

        None for a terminal or another device, and for what is closed: then there is no input.
        """
        try:
            mode = os.fstat(0).st_mode
        except OSError:
            return None
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)):
            return None
        read_fd, self._feed_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._feed_fd, False)
        # As for its output: under another uid a command opens /dev/stdin by that name.
        os.fchmod(read_fd, 0o666)
        return read_fd

    async def feed(self) -> None:
        """Carry our input over until it ends or nobody reads it; may be cancelled."""
        if self._feed_fd < 0:
            return
        polls = not stat.S_ISREG(os.fstat(0).st_mode)
        try:
            while data := await _read(0, polls=polls):
                await _write(self._feed_fd, data)
        except OSError:
            return
        finally:
            os.close(self._feed_fd)

    def sink(self, fd: int) -> Sink:
        """Return what takes the bytes of a stream of the command to our own descriptor `fd`."""
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            mode = stat.S_IFREG
        polls = not stat.S_ISREG(mode)

        async def write(data: bytes) -> None:
            if self.failure is not None:
                return
            try:
                if polls:
                    await _write_polled(fd, data)
                else:
                    await _write(fd, data)
            except OSError as exc:
                if self.failure is None:
                    self.failure = exc
                    self._on_failure()

        return write


async def _read(fd: int, *, polls: bool) -> bytes:
    while True:
        if polls:
            await anyio.wait_readable(fd)
        try:
            return os.read(fd, _READ_BYTES)
        except BlockingIOError:
            continue


async def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            await anyio.wait_writable(fd)


async def _write_polled(fd: int, data: bytes) -> None:
    """Write to what may block, which is not ours to make non-blocking: others share it."""
    left = memoryview(data)
    while left:
        try:
            await anyio.wait_writable(fd)
        except PermissionError:
            # A device that cannot be polled does not block either: /dev/null, /dev/full.
            await _write(fd, bytes(left))
            return
        left = left[os.write(fd, left[: select.PIPE_BUF]) :]
