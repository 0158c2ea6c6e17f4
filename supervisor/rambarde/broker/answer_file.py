"""Answer what a child asks and tells about files. Trusted side.

The kernel confines what the child can write; this keeps agents from overwriting what they have not
seen: an existing file must have been read, and be unchanged since, by content (rambarde.tracker).
"""

from __future__ import annotations

import anyio

from rambarde.broker.caller import Caller, OpenCall
from rambarde.broker.hashes import check_hash
from rambarde.broker.ports import Ports
from rambarde.policy.decide import decide
from rambarde.policy.model import Decision
from rambarde.sessions.record import path_text
from rambarde_wire import frames
from rambarde_wire.frames import BreachError

_WRITERS = frozenset({"write", "edit"})
_DIFF_CHARS = 64 << 10
"""Kept of a diff; an honest one is bounded by ToolLimits.diff_bytes."""


def _own_call(caller: Caller, claimed_id: str, tools: frozenset[str]) -> OpenCall:
    call = caller.call(claimed_id)
    if call.place != "child" or call.tool not in tools:
        raise BreachError("a file request for a call that has none")
    return call


def _check_path(claimed_path: bytes) -> bytes:
    if not claimed_path.startswith(b"/") or b"\0" in claimed_path:
        raise BreachError("not an absolute path")
    if len(claimed_path) > frames.MAX_PATH_BYTES:
        raise BreachError("a path that is too long")
    return claimed_path


async def answer_write(ask: frames.AskWrite, caller: Caller, ports: Ports) -> frames.ReplyWrite:
    """Decide whether the call may replace this file now; holds the path's lock until told.

    Raises:
        BreachError: the call is open for no write, or asked before: a call writes one file once.

    Trusts:
        Nothing: the supervisor hashes the file itself, beneath the workspace, without links.
    """
    call = _own_call(caller, ask.call_id, _WRITERS)
    path = _check_path(ask.claimed_path)
    if call.asked:
        raise BreachError("a call that asks for a second write")
    call.asked = True
    if caller.outcome is not None:
        text = ports.say("interrupted")
        return frames.ReplyWrite(call.call_id, allowed=False, code="interrupted", text=text)
    if (refused := _by_policy(caller, call, path, ports)) is not None:
        return refused
    verdict = await ports.tracker.check_write(caller.agent_id, path)
    if verdict.allowed:
        return frames.ReplyWrite(call.call_id, allowed=True)
    text = ports.say(verdict.code, path=verdict.shown, by=verdict.by)
    return frames.ReplyWrite(call.call_id, allowed=False, code=verdict.code, text=text)


def _by_policy(
    caller: Caller, call: OpenCall, path: bytes, ports: Ports
) -> frames.ReplyWrite | None:
    """Judge the path a second time, as it is once links are resolved.

    What must be asked for is refused here, unless a person said yes to this call.
    """
    relative = path.removeprefix(ports.workspace + b"/")
    verdict = decide(caller.policy, call.tool, {"path": path_text(relative)})
    if verdict.decision is Decision.ALLOW:
        return None
    if verdict.decision is Decision.ASK and call.actor == "human":
        return None
    text = ports.say(verdict.code, reason=verdict.reason, rule=verdict.rule)
    return frames.ReplyWrite(call.call_id, allowed=False, code=verdict.code, text=text)


async def note_read(tell: frames.TellRead, caller: Caller, ports: Ports) -> None:
    """Note what the agent has seen of a file. A lie only lets it overwrite what it may write.

    Raises:
        BreachError: the call reads nothing, or has shown another file: a call reads one.
    """
    call = _own_call(caller, tell.call_id, frozenset({"read"}))
    path = _check_path(tell.claimed_path)
    if call.read not in (b"", path):
        raise BreachError("a call that reads a second file")
    call.read = path
    ports.tracker.note_read(caller.agent_id, path, check_hash(tell.claimed_sha256))


async def note_wrote(tell: frames.TellWrote, caller: Caller, ports: Ports) -> None:
    """Note a write, release the path's lock; the supervisor hashes the file again itself."""
    _own_call(caller, tell.call_id, _WRITERS)
    path = _check_path(tell.claimed_path)
    sha256 = check_hash(tell.claimed_sha256)
    # Shielded: a stop that comes while the file is hashed must not lose what was written.
    with anyio.CancelScope(shield=True):
        was_allowed = await ports.tracker.note_wrote(caller.agent_id, path, sha256)
    if not was_allowed:
        raise BreachError("a write that was not allowed")
    if sha256:
        ports.wrote(caller.agent_id, path)
        caller.journal.write(
            "wrote",
            {
                "call_id": tell.call_id,
                "path": path,
                "sha256": sha256,
                "diff": ports.redactor.text(tell.claimed_diff[: 2 * _DIFF_CHARS])[:_DIFF_CHARS],
            },
        )
