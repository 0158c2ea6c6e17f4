"""The broker's way to commands: compile the plan, run it in the caller's sandbox. Trusted side."""

from __future__ import annotations

from collections.abc import Mapping

from rambarde.agents.agent import Agent
from rambarde.agents.parts import Parts
from rambarde.broker.caller import Caller
from rambarde.children.command import CommandResult, perform
from rambarde.children.processes import CommandProcess
from rambarde.errors import HostError
from rambarde.ids import new_call_id
from rambarde.policy.compile import compile_command
from rambarde.redact import Redactor
from rambarde.sessions.report import Outcome
from rambarde_wire.orders import CommandPlan


class Commands:
    """Commands inside the sandboxes of living agents."""

    def __init__(self, parts: Parts, redactor: Redactor, agents: Mapping[str, Agent]) -> None:
        """`agents` maps ids to the living agents of the tree."""
        self._parts = parts
        self._redactor = redactor
        self._agents = agents

    async def perform(self, caller: Caller, argv: list[bytes], timeout_s: float) -> CommandResult:
        """Run one command to the end of all its descendants. Raises HostError."""
        parts, limits = self._parts, caller.policy.limits
        agent = self._agents[caller.agent_id]
        sandbox = agent.plan
        if sandbox is None:
            raise HostError("the agent's sandbox is not there yet")
        plan = compile_command(
            caller.policy,
            sandbox,
            parts.space,
            parts.facts,
            command_id=new_call_id(),
            argv=argv,
            cwd=parts.space.cwd,
        )
        noted = _Noted(parts, agent)
        try:
            result = await perform(
                noted,
                plan,
                timeout_s=timeout_s,
                shown_bytes=limits.output_bytes,
                hard_bytes=limits.output_hard_bytes,
                redact=self._redactor.stream,
            )
        finally:
            # Its number may be another process's from now on.
            agent.command_pids.discard(noted.pid)
        kills = parts.cgroups.oom_kills(caller.agent_id)
        if kills > agent.command_oom_kills:
            agent.command_oom_kills = kills
            text = f"out of memory: the limit is {limits.memory_bytes} bytes"
            caller.end_after_calls(Outcome("error:memory"), error=text)
        return result


class _Noted:
    """The zygote, with each command's init noted for the watch while it runs."""

    def __init__(self, parts: Parts, agent: Agent) -> None:
        self._parts = parts
        self._agent = agent
        self.pid = 0

    async def run_command(self, plan: CommandPlan, stdin_fd: int | None = None) -> CommandProcess:
        """Fork a command; raises HostError."""
        process = await self._parts.zygote.run_command(plan, stdin_fd)
        self.pid = process.pid
        self._agent.command_pids.add(process.pid)
        return process
