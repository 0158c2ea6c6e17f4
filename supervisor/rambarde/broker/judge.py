"""Judge the calls of one model reply, before anything runs. Trusted side.

In this order for each call: the action budget (every call costs one, refused or not), the
catalogue the model was given, the arguments, the room of one turn, the refusals of a delegation,
the policy, and last a person's answer where the policy says ask. The first that refuses gives the
text. Every verdict is on the record before the call is performed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from rambarde.approvals import Request
from rambarde.broker.caller import Caller, Denial, OpenCall, ToolResult
from rambarde.broker.catalogue import fold_aliases, names_of
from rambarde.broker.ports import Ports
from rambarde.broker.shown import shown_arguments
from rambarde.events import Event
from rambarde.ids import new_call_id
from rambarde.models.base import ToolCall
from rambarde.policy.decide import decide
from rambarde.policy.model import Decision, Verdict
from rambarde.sessions.report import Outcome
from rambarde_wire import tools
from rambarde_wire.frames import MAX_CALLS, MAX_DOWN_BYTES

_NAME_CHARS = 64
"""Kept of a tool's name that is none of ours."""
_ROOM_BYTES = MAX_DOWN_BYTES // 2
"""Arguments of one turn that fit a ReplyTurn with room for names."""


async def judge_calls(caller: Caller, calls: tuple[ToolCall, ...], ports: Ports) -> list[OpenCall]:
    """Return one open call for each call of the model, in its order; refused ones have results."""
    judged: list[OpenCall] = []
    room = _ROOM_BYTES
    for index, wrote in enumerate(calls):
        call = OpenCall(new_call_id(), wrote, _known(wrote.name, ports), b"{}", "broker")
        too_many = index >= MAX_CALLS
        call.result = await _judge(caller, call, ports, too_many=too_many, room=room)
        if call.result is None:
            room -= len(call.arguments)
        _record(caller, call, ports)
        judged.append(call)
    await caller.journal.settle()
    return judged


def _known(name: str, ports: Ports) -> str:
    """Return a tool's name; of one that is none of ours what can be shown and kept."""
    return name if name in tools.TOOLS else ports.redactor.text(name)[:_NAME_CHARS]


async def _judge(
    caller: Caller, call: OpenCall, ports: Ports, *, too_many: bool, room: int
) -> ToolResult | None:
    hit = caller.budget.spend_action()
    if hit is not None:
        caller.end_after_calls(Outcome("limit:actions"), error=str(hit))
        return _refusal(ports, "action_budget", limit=int(hit.limit), actor="automaton")
    caller.actions += 1
    granted = names_of(caller.catalogue)
    if call.tool not in tools.TOOLS or call.tool not in granted | caller.policy.tools | {"Task"}:
        return _refusal(ports, "tool_absent", tool=call.tool, tools=", ".join(sorted(granted)))
    if too_many:
        return _malformed(ports, f"more than {MAX_CALLS} calls in one turn")
    try:
        values = _values(call)
        arguments = msgspec.convert(values, tools.TOOLS[call.tool], strict=True)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as exc:
        return _malformed(ports, str(exc))
    call.arguments = msgspec.json.encode(arguments)
    if len(call.arguments) > room:
        return _malformed(ports, "too long for one turn")
    call.place = "child" if call.tool in tools.CHILD_TOOLS else "broker"
    if isinstance(arguments, tools.Task):
        call.joined = True
        if (refused := ports.delegations.refuse(caller, arguments)) is not None:
            return refused
    return await _by_policy(caller, call, values, ports)


def _values(call: OpenCall) -> dict[str, object]:
    values = msgspec.json.decode(call.wrote.arguments or "{}")
    if not isinstance(values, dict):
        raise msgspec.ValidationError("the arguments are not a JSON object")
    folded = fold_aliases(call.tool, values)
    if call.tool == "Task":
        # What is left out is refused in a delegation's own words, as what is empty.
        return {"agent": "", "prompt": "", **folded}
    return folded


async def _by_policy(
    caller: Caller, call: OpenCall, values: Mapping[str, object], ports: Ports
) -> ToolResult | None:
    verdict = decide(caller.policy, call.tool, values)
    call.rule, call.reason = verdict.rule, verdict.reason
    if verdict.decision is Decision.ALLOW:
        return None
    if verdict.decision is Decision.DENY:
        return _denied(ports, verdict, actor="policy")
    answer = await ports.approvals.ask(
        Request(
            agent_path=caller.path,
            agent_id=caller.agent_id,
            tool=call.tool,
            shown=ports.redactor.text(call.arguments.decode()),
            call_sha256=hashlib.sha256(call.arguments).hexdigest(),
            code=verdict.code,
        )
    )
    if answer.decision == "no":
        return _denied(ports, verdict, actor=answer.actor)
    call.actor = answer.actor
    return None


def _denied(ports: Ports, verdict: Verdict, *, actor: str) -> ToolResult:
    code = "no_approver" if actor == "automaton" else verdict.code
    text = ports.say(code, reason=verdict.reason, rule=verdict.rule)
    return ToolResult(ok=False, code=code, text=text, actor=actor)


def _refusal(ports: Ports, code: str, *, actor: str = "policy", **values: object) -> ToolResult:
    return ToolResult(ok=False, code=code, text=ports.say(code, **values), actor=actor)


def _malformed(ports: Ports, detail: str) -> ToolResult:
    """Return the answer to a slip of the model: nobody refused it a right, so no actor."""
    return _refusal(ports, "bad_arguments", actor="", detail=detail)


def _record(caller: Caller, call: OpenCall, ports: Ports) -> None:
    refused = call.result
    caller.journal.write(
        "verdict",
        {
            "call_id": call.call_id,
            "id": call.wrote.call_id,
            "tool": call.tool,
            "verdict": "deny" if refused else "allow",
            "code": refused.code if refused else "",
            "actor": refused.actor if refused else call.actor,
            "rule": call.rule,
            "reason": call.reason,
        },
    )
    if refused is not None and refused.actor:
        caller.denials.append(Denial(caller.path, call.tool, refused.code, refused.actor))
    ports.publish(
        Event(
            "tool/started" if refused is None else "tool/settled",
            caller.session_id,
            caller.path,
            {
                "tool": call.tool,
                "call_id": call.call_id,
                "tool_use_id": call.wrote.call_id,
                "ok": refused is None,
                "code": refused.code if refused else "",
                "shown": shown_arguments(call, ports),
            },
        )
    )
