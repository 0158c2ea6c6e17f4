"""What the death of an agent's process is called when nobody asked for it."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rambarde.agents.agent import Agent
from rambarde.agents.life import _death
from rambarde.ids import new_task_id
from rambarde.sessions.report import Outcome
from support.broker import Bench

KILLED = int(signal.SIGKILL)


def parts(kills: int) -> Any:
    """The parts of a run whose group counts so many kills for want of memory."""
    return SimpleNamespace(cgroups=SimpleNamespace(oom_kills=lambda _agent_id: kills))


def agent(tmp_path: Path, *, of_commands: int = 0, running: bool = False) -> Agent:
    """An agent that runs, or not, a command."""
    made = Agent(Bench(tmp_path).caller, new_task_id(), None, "brief")
    made.command_oom_kills = of_commands
    made.command_pids = {4242} if running else set()
    return made


@pytest.mark.parametrize(
    ("kills", "of_commands", "running", "killed", "status"),
    [
        (1, 0, False, KILLED, "error:memory"),
        (2, 1, False, KILLED, "error:memory"),
        (0, 0, False, KILLED, "error:child"),
        (1, 1, False, KILLED, "error:child"),
        (1, 0, True, KILLED, "error:child"),
        (1, 0, False, 0, "error:child"),
        (1, 0, False, int(signal.SIGSEGV), "error:child"),
    ],
)
def test_want_of_memory_is_the_agents_own_or_not_named(
    tmp_path: Path, kills: int, of_commands: int, running: bool, killed: int, status: str
) -> None:
    """A kill that met a command, now or before, is not the cause of the agent's death."""
    one = agent(tmp_path, of_commands=of_commands, running=running)
    found, text = _death(one, parts(kills), killed)
    assert found == status
    assert ("out of memory" in text) == (status == "error:memory")


def test_a_run_that_was_to_end_for_want_of_memory_ends_so(tmp_path: Path) -> None:
    """A command ran out of memory in this turn: that came first, whatever killed the agent."""
    one = agent(tmp_path, of_commands=1)
    one.caller.end_after_calls(Outcome("error:memory"), error="out of memory: the limit is 5 bytes")
    assert _death(one, parts(2), 0) == ("error:memory", "out of memory: the limit is 5 bytes")
