"""Plays the supervisor for one child's loop over two real pipes; the loop runs in a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from rambarde_child import turn
from rambarde_wire import frames

Answer = Callable[[frames.AskWrite], frames.ReplyWrite]


def allow(ask: frames.AskWrite) -> frames.ReplyWrite:
    """Allow every write."""
    return frames.ReplyWrite(ask.call_id, allowed=True)


def call(
    tool: str, call_id: str = "c1", *, place: frames.Place = "child", **arguments: Any
) -> frames.Call:
    """Return a judged call with these arguments."""
    return frames.Call(call_id, tool, msgspec.json.encode(arguments), place)


class ChildLoop:
    """A child's loop at work in a folder."""

    def __init__(
        self,
        workspace: Path | bytes,
        *,
        writable: bool = True,
        limits: frames.ToolLimits | None = None,
        begin: bool = True,
    ) -> None:
        """Start the loop; with `begin`, send OrderBegin as well."""
        child_read, self.down_fd = os.pipe()
        self.up_fd, child_write = os.pipe()
        self._reader = frames.FrameReader(max_bytes=frames.MAX_UP_BYTES)
        self._thread = threading.Thread(
            target=self._run, args=(child_read, child_write), daemon=True
        )
        self._thread.start()
        self.begun = begin
        if begin:
            self.send(
                frames.OrderBegin(os.fsencode(workspace), writable, limits or frames.ToolLimits())
            )

    @staticmethod
    def _run(read_fd: int, write_fd: int) -> None:
        try:
            turn.run(read_fd, write_fd)
        finally:
            os.close(read_fd)
            os.close(write_fd)

    def __enter__(self) -> ChildLoop:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        os.close(self.up_fd)
        self.wait_end()

    def close(self) -> None:
        """End the supervisor's side of the frames down."""
        if self.down_fd >= 0:
            os.close(self.down_fd)
            self.down_fd = -1

    def wait_end(self) -> None:
        """Wait until the loop has returned; fail if it does not."""
        self._thread.join(5)
        assert not self._thread.is_alive(), "the loop does not end"

    def send(self, frame: frames.DownFrame) -> None:
        """Send one frame to the child."""
        self.send_bytes(frames.encode_down(frame))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that need not be a frame."""
        while data:
            data = data[os.write(self.down_fd, data) :]

    def receive(self) -> frames.UpFrame | None:
        """Return the child's next frame, None when it closed the channel."""
        while (body := self._reader.next_body()) is None:
            data = os.read(self.up_fd, 1 << 16)
            if not data:
                return None
            self._reader.feed(data)
        return frames.decode_up(body)

    def perform(self, *calls: frames.Call, answer: Answer = allow) -> list[frames.UpFrame]:
        """Give the calls as one turn; return what the child sent until it asks for the next.

        The next turn is asked for when this returns, so turns can follow each other.
        """
        if self.begun:
            assert isinstance(self.receive(), frames.AskTurn)
            self.begun = False
        self.send(frames.ReplyTurn(ended=False, calls=list(calls)))
        sent: list[frames.UpFrame] = []
        while not isinstance(frame := self.receive(), frames.AskTurn):
            assert frame is not None, f"the child ended after {sent}"
            sent.append(frame)
            if isinstance(frame, frames.AskWrite):
                self.send(answer(frame))
            elif isinstance(frame, frames.AskPerform):
                self.send(frames.ReplyPerform(frame.call_ids))
        return sent

    def result(self, tool: str, *, answer: Answer = allow, **arguments: Any) -> frames.TellResult:
        """Perform one call and return its result."""
        [result] = results(self.perform(call(tool, **arguments), answer=answer))
        return result


def results(sent: Iterable[frames.UpFrame]) -> list[frames.TellResult]:
    """Return the results among the frames."""
    return [frame for frame in sent if isinstance(frame, frames.TellResult)]
