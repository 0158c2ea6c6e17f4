"""Answer AskPerform: do what the child has no power for. Trusted side.

Only calls that were judged, handed down with place `broker`, and not yet asked for are performed.
Joined ones (delegations) run side by side; a result stays here and never passes through the child.
"""

from __future__ import annotations

import anyio
import msgspec

from rambarde.broker.answer_turn import settle_call
from rambarde.broker.caller import Caller, OpenCall, ToolResult
from rambarde.broker.ports import Ports
from rambarde.broker.shell import perform_bash, perform_grep
from rambarde.errors import first_of
from rambarde_wire import frames, tools
from rambarde_wire.frames import BreachError


async def answer_perform(
    ask: frames.AskPerform, caller: Caller, ports: Ports
) -> frames.ReplyPerform:
    """Perform the calls asked for and say that they are done.

    Raises:
        BreachError: an id is not open, not the broker's, asked twice, or several that are not
            joined are asked at once. An honest child cannot cause it.
        RecordError: what was done cannot be put on the record; the caller's run ends.
    """
    calls = [_take(caller, claimed_id) for claimed_id in ask.call_ids]
    if not calls or (len(calls) > 1 and not all(call.joined for call in calls)):
        raise BreachError("these calls cannot be performed together")
    try:
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(_perform, caller, call, ports)
    except BaseExceptionGroup as exc:
        raise first_of(exc) from exc
    return frames.ReplyPerform([call.call_id for call in calls])


def _take(caller: Caller, claimed_id: str) -> OpenCall:
    call = caller.call(claimed_id)
    if call.place != "broker" or call.asked:
        raise BreachError("a call that is not to be performed, or not again")
    call.asked = True
    return call


async def _perform(caller: Caller, call: OpenCall, ports: Ports) -> None:
    if caller.outcome is not None:
        # The run is being stopped: nothing is begun any more.
        text = ports.say("interrupted")
        settle_call(caller, call, ToolResult(ok=False, code="interrupted", text=text), ports)
        return
    arguments = msgspec.json.decode(call.arguments, type=tools.TOOLS[call.tool])
    result: ToolResult
    match arguments:
        case tools.Bash():
            result = await perform_bash(caller, arguments, ports)
        case tools.Grep():
            result = await perform_grep(caller, arguments, ports)
        case tools.Task():
            result = await ports.delegations.delegate(caller, arguments)
        case _:
            raise BreachError("a tool the broker does not perform")
    settle_call(caller, call, result, ports)
