"""The product's own plans over a throw-away workspace, for the benchmarks."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests")
)

from rambarde.app.ground import scan
from rambarde.app.start import zygote_over
from rambarde.children.channel import Channel
from rambarde.children.processes import AgentProcess
from rambarde.children.zygote import Zygote
from rambarde.host.facts import HostFacts
from rambarde.host.kuids import Kuids
from rambarde.host.probe import probe_host
from rambarde.host.workspace import Workspace
from rambarde.policy.compile import compile_agent, compile_command
from rambarde.policy.load import load_policies
from rambarde.policy.model import Policy
from rambarde.policy.source import shipped_folder
from rambarde_wire.orders import CommandPlan, SandboxPlan


@dataclass
class Bench:
    """A ready zygote with what plans are made from."""

    zygote: Zygote
    policy: Policy
    space: Workspace
    facts: HostFacts
    kuids: Kuids
    uids: dict[int, int] = field(default_factory=dict)

    def plan(self, agent_id: str) -> SandboxPlan:
        """The plan of a writable agent of tier A."""
        return compile_agent(
            self.policy,
            self.space,
            self.facts,
            agent_id=agent_id,
            title=f"bench {agent_id}",
            tier="A",
            kuid=self.kuids.take(),
            cgroup_procs=[],
            environment={},
        )

    def command(self, plan: SandboxPlan, *argv: str) -> CommandPlan:
        """The plan of one command of that agent."""
        return compile_command(
            self.policy,
            plan,
            self.space,
            self.facts,
            command_id="c" + secrets.token_hex(4),
            argv=[os.fsencode(word) for word in argv],
            cwd=self.space.root,
        )

    async def start(self, agent_id: str) -> tuple[AgentProcess, Channel, SandboxPlan]:
        """Start an agent and wait for its greeting."""
        plan = self.plan(agent_id)
        process = await self.zygote.spawn_agent(plan)
        self.uids[process.pid] = plan.kuid
        channel = Channel(process.read_fd, process.write_fd)
        await channel.receive()
        return process, channel, plan

    async def end(self, process: AgentProcess, channel: Channel) -> None:
        """Kill an agent and wait for the proof."""
        from rambarde.children.command import kill, wait_dead

        kill(process.pidfd)
        await wait_dead(process.pidfd)
        await channel.aclose()
        self.kuids.give_back(self.uids.pop(process.pid))
        os.close(process.pidfd)
        os.close(process.log_fd)


@contextlib.asynccontextmanager
async def bench_over(folder: str) -> AsyncIterator[Bench]:
    """A zygote over a folder."""
    policies = load_policies(shipped_folder())
    space = scan(folder, policies)
    facts = probe_host()
    zygote = zygote_over(space, facts, "A")
    try:
        await zygote.wait_ready()
        yield Bench(zygote, policies.base("workspace-write"), space, facts, Kuids())
    finally:
        with anyio.CancelScope(shield=True):
            await zygote.aclose()
