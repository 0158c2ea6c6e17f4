"""The agent's loop: ask for a turn, perform its calls in order, again. Inside the sandbox.

The loop holds no history and judges nothing: what was said is with the supervisor, and every call
arrives judged. A call that fails is a result like any other; only trouble with the channel, or an
order to stop, ends the loop before the supervisor says that the run has ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby

from rambarde_child import ask
from rambarde_child.pipe import ChannelClosedError, Pipe, StopError
from rambarde_child.tools import perform_call
from rambarde_child.tools.paths import Place, open_place
from rambarde_wire.frames import BreachError, Call


def run(read_fd: int, write_fd: int) -> None:
    """Run the loop of a sealed child, which has sent TellHello, until its end.

    Returns when the run has ended, was interrupted, or the supervisor is gone. Other faults are
    told by TellFault before it returns; it raises nothing that the caller could handle.

    Args:
        read_fd: pipe with the supervisor's frames.
        write_fd: pipe for the child's frames.
    """
    pipe = Pipe(read_fd, write_fd)
    try:
        try:
            _loop(pipe)
        except BreachError as exc:
            ask.tell_fault(pipe, "protocol", text=str(exc))
        except OSError as exc:
            ask.tell_fault(pipe, "loop", errno=exc.errno or 0, text=str(exc))
    except (ChannelClosedError, StopError):
        return


def _loop(pipe: Pipe) -> None:
    begin = ask.wait_begin(pipe)
    place = open_place(begin, pipe)
    try:
        while not (turn := ask.ask_turn(pipe)).ended:
            for calls in batches(turn.calls):
                pipe.check_interrupt()
                _perform(calls, pipe, place)
    finally:
        os.close(place.root_fd)


def _perform(calls: Sequence[Call], pipe: Pipe, place: Place) -> None:
    if calls[0].place == "broker":
        ask.ask_perform(pipe, [call.call_id for call in calls])
        return
    for call in calls:
        ask.tell_result(pipe, call.call_id, perform_call(call, place))


def batches(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Yield the calls in order; neighbours of the broker that may run side by side together."""
    for joined, group in groupby(calls, key=lambda call: call.joined and call.place == "broker"):
        if joined:
            yield list(group)
        else:
            yield from ([call] for call in group)
