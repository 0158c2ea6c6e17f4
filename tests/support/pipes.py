"""The child's side of a channel, played by the test or by a forked process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from rambarde.children.channel import Channel
from rambarde_wire import frames
from support.fork import fork


class FarEnd:
    """Raw descriptors of the child's side: no check holds it back."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        """`read_fd`: frames of the supervisor; `write_fd`: frames of the child."""
        self.read_fd = read_fd
        self.write_fd = write_fd

    def say(self, data: bytes | frames.UpFrame) -> None:
        """Write raw bytes, or one frame, whole."""
        raw = memoryview(data if isinstance(data, bytes) else frames.encode_up(data))
        while raw:
            raw = raw[os.write(self.write_fd, raw) :]

    def hear(self) -> frames.DownFrame:
        """Read one frame, blocking."""
        reader = frames.FrameReader(max_bytes=frames.MAX_DOWN_BYTES)
        while (body := reader.next_body()) is None:
            data = os.read(self.read_fd, 1 << 20)
            assert data, "the supervisor closed its end"
            reader.feed(data)
        return frames.decode_down(body)

    def close(self) -> None:
        """Close what is still open."""
        for fd in (self.read_fd, self.write_fd):
            with suppress(OSError):
                os.close(fd)


@contextmanager
def pipe_pair() -> Iterator[tuple[int, int, FarEnd]]:
    """Yield the supervisor's read and write ends (for a Channel to own) and the far end."""
    up_read, up_write = os.pipe()
    down_read, down_write = os.pipe()
    far = FarEnd(down_read, up_write)
    try:
        yield up_read, down_write, far
    finally:
        far.close()


@contextmanager
def forked(play: Callable[[FarEnd], None]) -> Iterator[tuple[int, int, int]]:
    """Run `play` as a process; yield its pid and the supervisor's read and write ends."""
    with pipe_pair() as (read_fd, write_fd, far):
        pid = fork()
        if not pid:
            try:
                os.close(read_fd)
                os.close(write_fd)
                play(far)
            finally:
                os._exit(0)
        far.close()
        try:
            yield pid, read_fd, write_fd
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


async def closed(channel: Channel) -> None:
    """Close a channel and check that both descriptors are gone."""
    fds = (channel._read_fd, channel._write_fd)
    await channel.aclose()
    for fd in fds:
        with suppress(OSError):
            os.fstat(fd)
            raise AssertionError(f"descriptor {fd} is still open")


async def receive_on(channel: Channel) -> NoReturn:
    """Receive until the channel raises."""
    while True:
        await channel.receive()
