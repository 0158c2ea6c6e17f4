"""Answer AskTurn: fold in the results of the last turn, then the model's next one. Trusted side.

The loop rules and the budget are applied here, between the end of one turn and the request of the
next, so that no model request is made for an agent that must stop.
"""

from __future__ import annotations

import re

from rambarde.broker.caller import Caller, Denial, OpenCall, ToolResult
from rambarde.broker.hashes import check_hash
from rambarde.broker.judge import judge_calls
from rambarde.broker.ports import Ports
from rambarde.broker.shown import shown_arguments
from rambarde.budget import LimitHit
from rambarde.errors import ModelError
from rambarde.events import Event
from rambarde.loops import LoopNews
from rambarde.models.base import (
    AssistantMessage,
    Delta,
    ModelReply,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from rambarde.sessions.quote import line
from rambarde.sessions.report import Outcome
from rambarde_wire import frames
from rambarde_wire.frames import BreachError

RESULT_CHARS = 512 << 10
"""Kept of one result of a child; an honest one is bounded by ToolLimits.result_bytes."""
_SHOWN_CHARS = 500
"""Of a call's arguments, in a notice that names the call."""
_CODE = re.compile(r"[a-z_]{0,32}")


async def answer_turn(_ask: frames.AskTurn, caller: Caller, ports: Ports) -> frames.ReplyTurn:
    """Return the next turn's calls, or the end.

    Raises:
        BreachError: calls of the last turn are not reported.

    Trusts:
        Nothing: the request is empty; the results were checked when they came.
    """
    if any(caller.unreported()):
        raise BreachError("asked for a turn while calls of the last one are open")
    _fold_results(caller, ports)
    while caller.outcome is None:
        calls = await _next_calls(caller, ports)
        if any(call.result is None for call in calls):
            return frames.ReplyTurn(
                ended=False, calls=[_handed(call) for call in calls if call.result is None]
            )
        _fold_results(caller, ports)
    return frames.ReplyTurn(ended=True, calls=[])


def _handed(call: OpenCall) -> frames.Call:
    return frames.Call(call.call_id, call.tool, call.arguments, call.place, call.joined)


async def _next_calls(caller: Caller, ports: Ports) -> list[OpenCall]:
    """Ask the model once; return its judged calls, none when the run has an outcome or a nudge."""
    reply = await _ask_model(caller, ports)
    if reply is None:
        return []
    if reply.finish_reason == "length":
        return _cut_reply(caller, reply, ports)
    _say(caller, reply, ports)
    if not reply.calls:
        _without_calls(caller, reply, ports)
        return []
    if (news := caller.loops.after_message(reply.text, has_calls=True)) is not None:
        _loop(caller, news, ports)
    calls = await judge_calls(caller, reply.calls, ports)
    caller.open_calls = {call.call_id: call for call in calls}
    return calls


async def _ask_model(caller: Caller, ports: Ports) -> ModelReply | None:
    pieces: list[str] = []

    def on_delta(delta: Delta) -> None:
        caller.budget.touch()
        if delta.kind == "text":
            pieces.append(delta.text)

    caller.open_calls = {}
    turn = {"turn": caller.turn + 1}
    ports.publish(Event("model/started", caller.session_id, caller.path, turn))
    try:
        reply = await ports.models.next_reply(caller, on_delta)
    except ModelError as exc:
        caller.end(Outcome("error:model"), error=ports.redactor.text(exc.told))
        return None
    finally:
        # Also when the request is cancelled: what came before the cut is all that is left of it.
        if (said := "".join(pieces)).strip():
            caller.last_text = ports.redactor.text(said)
    if isinstance(reply, LimitHit):
        caller.end(Outcome(f"limit:{reply.which}"), error=str(reply))
        return None
    caller.turn += 1
    return reply


def _say(caller: Caller, reply: ModelReply, ports: Ports) -> None:
    text = ports.redactor.text(reply.text)
    if text.strip():
        caller.last_text = text
    calls = tuple(_told(call, ports) for call in reply.calls)
    message = AssistantMessage(text, calls, reply.reasoning)
    caller.messages.append(message)
    caller.journal.write_message(message, usage=reply.usage, finish_reason=reply.finish_reason)
    ports.publish(
        Event(
            "model/settled",
            caller.session_id,
            caller.path,
            {"text": text, "calls": [_event(call) for call in calls]},
        )
    )


def _told(call: ToolCall, ports: Ports) -> ToolCall:
    """Return a call as it is told from now on; what is judged and done is the model's own."""
    redact = ports.redactor.text
    return ToolCall(call.call_id, redact(call.name), redact(call.arguments))


def _event(call: ToolCall) -> dict[str, object]:
    return {"id": call.call_id, "name": call.name, "arguments": call.arguments}


def _without_calls(caller: Caller, reply: ModelReply, ports: Ports) -> None:
    """A text without a call ends the run; an empty one is answered by one nudge, then ends it."""
    if reply.text.strip():
        caller.final_text = caller.last_text
        caller.end(Outcome("done"))
        return
    if (news := caller.loops.after_message(reply.text, has_calls=False)) is not None:
        _loop(caller, news, ports)
    if caller.nudged:
        caller.end(Outcome("error:empty"))
        return
    caller.nudged = True
    _tell(caller, ports.say("nudge_empty"))


def _cut_reply(caller: Caller, reply: ModelReply, ports: Ports) -> list[OpenCall]:
    """A reply cut by the provider's length limit: its calls may be halves and are not run."""
    whole = ModelReply(reply.text, (), reply.reasoning, reply.finish_reason, reply.usage)
    _say(caller, whole, ports)
    caller.end(Outcome("limit:length"), error="the engine cut its reply at its own length limit")
    return []


def _tell(caller: Caller, text: str) -> None:
    message = UserMessage(text)
    caller.messages.append(message)
    caller.journal.write_message(message)


def _fold_results(caller: Caller, ports: Ports) -> None:
    """Append the turn's results in the model's order, with what the loop rules say of each."""
    for call in caller.open_calls.values():
        result = call.result
        if result is None:
            raise BreachError("a call without a result")
        text = result.text
        news = caller.loops.after_call(
            caller.turn,
            call.tool,
            call.arguments if result.code != "bad_arguments" else call.wrote.arguments.encode(),
            result.ok,
            result.code,
            result.fingerprint,
            reads=frozenset({call.read} if call.read else ()),
            net_refusal=result.code.startswith("cap_"),
        )
        if news is not None:
            text += "\n\n" + _loop(caller, news, ports, call)
        message = ToolMessage(call.wrote.call_id, call.wrote.name, text, is_error=not result.ok)
        caller.messages.append(message)
        caller.journal.write_message(message, call_id=call.call_id, code=result.code)
    caller.open_calls = {}
    if caller.ending is not None:
        caller.end(caller.ending, error=caller.ending_error)
    elif (hit := caller.budget.check()) is not None:
        caller.end(Outcome(f"limit:{hit.which}"), error=str(hit))


def _loop(caller: Caller, news: LoopNews, ports: Ports, call: OpenCall | None = None) -> str:
    said = call.result.text if call is not None and call.result is not None else ""
    if news.action == "stop":
        cause = f"{news.tool or 'a reply without a call'}, {news.count} times: {line(said)}"
        caller.end(Outcome(f"loop:{news.rule}"), error=cause.rstrip(": "))
    data = {"rule": news.rule, "action": news.action, "count": news.count, "tool": news.tool}
    caller.journal.write("loop", data)
    ports.publish(Event("agent/loop", caller.session_id, caller.path, data))
    code = f"loop_notice_{news.rule}" + ("_stronger" if news.stronger else "")
    shown = "" if call is None else ports.redactor.text(call.arguments.decode())[:_SHOWN_CHARS]
    return ports.say(code, count=news.count, tool=news.tool, arguments=shown)


async def note_result(tell: frames.TellResult, caller: Caller, ports: Ports) -> None:
    """Take the result of a call the child performed.

    Trusts:
        Nothing: the id must be open and the child's own, the code one of the form of codes and none
        of the supervisor's nets, the fingerprint a hash. The text is cut to RESULT_CHARS and
        redacted, and is the model's to read, as any tool output.
    """
    call = caller.call(tell.call_id)
    if call.place != "child":
        raise BreachError("a result for a call the broker performs")
    if not _CODE.fullmatch(tell.claimed_code) or tell.claimed_code.startswith("cap_"):
        raise BreachError("no code that a tool has")
    # A write that was allowed and is told of no more will not come.
    ports.tracker.abandon(caller.agent_id)
    settle_call(
        caller,
        call,
        ToolResult(
            ok=tell.claimed_ok,
            code=tell.claimed_code if not tell.claimed_ok else "",
            text=ports.redactor.text(tell.claimed_text[:RESULT_CHARS]),
            fingerprint=check_hash(tell.claimed_fingerprint),
        ),
        ports,
    )


def settle_call(caller: Caller, call: OpenCall, result: ToolResult, ports: Ports) -> None:
    """Give an open call its result, on the record and to the screens."""
    call.result = result
    caller.budget.touch()
    if result.actor and not result.ok:
        caller.denials.append(Denial(caller.path, call.tool, result.code, result.actor))
    ports.publish(
        Event(
            "tool/settled",
            caller.session_id,
            caller.path,
            {
                "tool": call.tool,
                "call_id": call.call_id,
                "tool_use_id": call.wrote.call_id,
                "ok": result.ok,
                "code": result.code,
                "shown": shown_arguments(call, ports),
            },
        )
    )


async def note_fault(tell: frames.TellFault, _caller: Caller, _ports: Ports) -> None:
    """The child says that it cannot go on: raise ChildFault, which ends its run."""
    raise ChildFault(fault_text(tell))


def fault_text(tell: frames.TellFault) -> str:
    """Return what a child says of its fault: its own words, to be bounded and redacted."""
    return f"{tell.claimed_step}: {tell.claimed_text} (errno {tell.errno})"


class ChildFault(Exception):  # noqa: N818 - it carries no error of ours, it ends one child
    """A child reported that it cannot go on."""
