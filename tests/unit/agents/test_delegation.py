"""Admission of a subagent: what refuses it, and that no error keeps its slot."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rambarde.agents.delegation import Delegation
from rambarde.budget import Nets
from rambarde.errors import RecordError
from rambarde.sessions.report import Outcome
from rambarde.texts import text
from rambarde_wire import tools
from support.broker import Bench

pytestmark = pytest.mark.anyio
BRIEF = tools.Task(agent="explore", prompt="look")


def delegation(bench: Bench, nets: Nets, start: Any) -> Delegation:
    """Return the port with real nets; `start` makes the subagent or fails."""
    parts: Any = SimpleNamespace(
        nets=nets, say=lambda code, **values: text(code, "en", **values), personas=None
    )

    async def live(_child: Any) -> str:
        return "report"

    agents: Any = {bench.caller.agent_id: SimpleNamespace(caller=bench.caller)}
    return Delegation(parts, bench.ports.tracker, agents, start, live)


def child(bench: Bench, *, proven_dead: bool = True) -> Any:
    """A subagent that is done."""
    bench.caller.end(Outcome("done"))
    return SimpleNamespace(caller=bench.caller, proven_dead=proven_dead)


async def test_a_session_that_cannot_be_made_keeps_no_slot(tmp_path: Path) -> None:
    """Nothing was started: the error goes on, the place is free."""
    bench, nets = Bench(tmp_path), Nets()

    def start(_parent: Any, _arguments: tools.Task) -> Any:
        raise RecordError("the disk is full")

    with pytest.raises(RecordError):
        await delegation(bench, nets, start).delegate(bench.caller, BRIEF)
    assert nets.running == ()


async def test_a_slot_is_kept_without_a_proof_of_death(tmp_path: Path) -> None:
    """A sandbox that may still hold a process counts as alive."""
    bench, nets = Bench(tmp_path), Nets()
    port = delegation(bench, nets, lambda _p, _a: child(bench, proven_dead=False))
    await port.delegate(bench.caller, BRIEF)
    assert nets.running == ("explore",)


async def test_the_calls_before_a_refused_action_are_still_delegated(tmp_path: Path) -> None:
    """An action budget that is used up by later calls of the turn takes no earlier one back."""
    bench = Bench(tmp_path, actions=1)
    assert bench.caller.budget.spend_action() is None
    assert bench.caller.budget.spend_action() is not None
    port = delegation(bench, Nets(), lambda _p, _a: child(bench))
    result = await port.delegate(bench.caller, BRIEF)
    assert result.ok
    assert result.text == "report"
