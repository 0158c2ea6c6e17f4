"""Frames over two pipes, blocking: the child's end of its channel. Inside the sandbox.

One thread, so one frame is written whole before the next. Signals without a handler do not cut a
read or a write (PEP 475), so there is no retry here beyond short counts, which pipe(7) allows.
"""

from __future__ import annotations

import os
import select

from rambarde_wire.frames import (
    MAX_DOWN_BYTES,
    BreachError,
    DownFrame,
    FrameReader,
    OrderInterrupt,
    UpFrame,
    decode_down,
    encode_up,
)

_READ_BYTES = 64 << 10


class ChannelClosedError(Exception):
    """The supervisor closed the channel, or is gone. Exit; there is nobody to tell."""


class StopError(Exception):
    """The supervisor ordered a stop. Exit at once; what was reported is with the supervisor."""


class Pipe:
    """Both directions of the channel. Owns neither descriptor."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        """`read_fd`: frames of the supervisor; `write_fd`: frames to it; both blocking."""
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._reader = FrameReader(max_bytes=MAX_DOWN_BYTES)
        self._ready = select.poll()
        self._ready.register(read_fd, select.POLLIN)

    def receive(self) -> DownFrame:
        """Wait for the next frame.

        Raises:
            StopError: it was OrderInterrupt.
            ChannelClosedError: a clean end, between two frames.
            BreachError: not a frame, or the stream ended inside one. Tell a fault and exit.
        """
        while (body := self._reader.next_body()) is None:
            data = os.read(self._read_fd, _READ_BYTES)
            if not data:
                if self._reader.at_boundary:
                    raise ChannelClosedError
                raise BreachError("the stream ended inside a frame")
            self._reader.feed(data)
        frame = decode_down(body)
        if isinstance(frame, OrderInterrupt):
            raise StopError(frame.reason)
        return frame

    def check_interrupt(self) -> None:
        """Raise as `receive` does if the supervisor has something to say unasked.

        Called between two calls of a turn, where only an interrupt, or an end, may arrive.
        """
        if not self._reader.at_boundary or self._ready.poll(0):
            frame = self.receive()
            raise BreachError(f"{type(frame).__name__} was not asked for")

    def send(self, frame: UpFrame) -> None:
        """Write a whole frame. Raises ChannelClosedError when nobody reads any more."""
        left = memoryview(encode_up(frame))
        try:
            while left:
                left = left[os.write(self._write_fd, left) :]
        except BrokenPipeError:
            raise ChannelClosedError from None
