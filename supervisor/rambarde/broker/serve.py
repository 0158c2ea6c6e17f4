"""The loop: read a frame, look it up, answer. Trusted side.

One task per child runs `serve`; it ends when the child was told that its run ended, or by
BreachError (the child lied), ChannelClosed (it went away) or cancellation (it was stopped).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rambarde.broker import answer_file, answer_perform, answer_turn
from rambarde.broker.caller import Caller
from rambarde.broker.ports import Ports
from rambarde.broker.table import TABLE, Phase, check_permitted
from rambarde.children.channel import Channel
from rambarde_wire import frames

Answer = Callable[[Any, Caller, Ports], Awaitable[frames.DownFrame | None]]

ANSWERS: dict[type[frames.Frame], Answer] = {
    frames.AskTurn: answer_turn.answer_turn,
    frames.AskPerform: answer_perform.answer_perform,
    frames.AskWrite: answer_file.answer_write,
    frames.TellRead: answer_file.note_read,
    frames.TellWrote: answer_file.note_wrote,
    frames.TellResult: answer_turn.note_result,
    frames.TellFault: answer_turn.note_fault,
}


async def serve(channel: Channel, caller: Caller, ports: Ports) -> None:
    """Answer the child's frames until its run has an outcome."""
    while True:
        frame = await channel.receive()
        check_permitted(caller.phase, frame)
        reply = await ANSWERS[type(frame)](frame, caller, ports)
        if reply is not None:
            await channel.send(reply)
        if isinstance(reply, frames.ReplyTurn) and reply.ended:
            return


async def hear_rest(channel: Channel, caller: Caller, ports: Ports) -> None:
    """Take what a child that was told to stop still reports of finished work.

    Ends by BreachError, ChannelClosed or cancellation. What crossed the order to stop is dropped:
    nothing is answered any more.
    """
    while True:
        frame = await channel.receive()
        if type(frame) in TABLE[Phase.CLOSING]:
            await ANSWERS[type(frame)](frame, caller, ports)
