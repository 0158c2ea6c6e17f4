"""What a child asks and tells the supervisor; one function per frame. Inside the sandbox.

Each `ask_x` here is answered by `answer_x` of the broker. An answer of another kind, or to another
call, is a breach: with one thread and one question at a time, nothing else can be under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rambarde_child.outcome import Outcome
from rambarde_child.pipe import Pipe
from rambarde_wire import frames

_T = TypeVar("_T", bound=frames.Frame)


def _receive(pipe: Pipe, kind: type[_T]) -> _T:
    frame = pipe.receive()
    if not isinstance(frame, kind):
        raise frames.BreachError(f"{type(frame).__name__} where {kind.__name__} is due")
    return frame


def wait_begin(pipe: Pipe) -> frames.OrderBegin:
    """Wait until the supervisor believes the sandbox."""
    return _receive(pipe, frames.OrderBegin)


def ask_turn(pipe: Pipe) -> frames.ReplyTurn:
    """Ask for the calls of the next turn; every call of the last one is reported."""
    pipe.send(frames.AskTurn())
    return _receive(pipe, frames.ReplyTurn)


def ask_perform(pipe: Pipe, call_ids: Sequence[str]) -> None:
    """Have calls performed by the broker, side by side; return when all of them are done."""
    pipe.send(frames.AskPerform(list(call_ids)))
    reply = _receive(pipe, frames.ReplyPerform)
    if sorted(reply.call_ids) != sorted(call_ids):
        raise frames.BreachError("other calls were performed than were asked for")


def ask_write(pipe: Pipe, call_id: str, path: bytes, sha256: str) -> frames.ReplyWrite:
    """Ask to replace the file at a canonical path; `sha256` of what is there, "" when absent.

    After an allowed reply, `tell_wrote` is owed whatever happens: the path is locked until then.
    """
    pipe.send(frames.AskWrite(call_id, path, sha256))
    reply = _receive(pipe, frames.ReplyWrite)
    if reply.call_id != call_id:
        raise frames.BreachError("the verdict is about another call")
    return reply


def tell_read(pipe: Pipe, call_id: str, path: bytes, sha256: str) -> None:
    """Tell that a file with this whole content was shown to the model."""
    pipe.send(frames.TellRead(call_id, path, sha256))


def tell_wrote(pipe: Pipe, call_id: str, path: bytes, sha256: str, diff: str = "") -> None:
    """Tell that an allowed write took place, or with an empty hash that it did not."""
    pipe.send(frames.TellWrote(call_id, path, sha256, diff))


def tell_result(pipe: Pipe, call_id: str, result: Outcome) -> None:
    """Report one call that the child performed."""
    said = (result.ok, result.code, result.text, result.fingerprint, result.elided_bytes)
    pipe.send(frames.TellResult(call_id, *said))


def tell_fault(pipe: Pipe, step: str, *, errno: int = 0, text: str = "") -> None:
    """Tell that the child cannot go on; the last frame it sends."""
    pipe.send(frames.TellFault(step, errno, text))
