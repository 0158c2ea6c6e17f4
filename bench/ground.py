"""The product's own plans over a throw-away workspace, for the benchmarks."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests")
)

from rambarde.app.ground import ZYGOTE_ENVIRONMENT, git_identity, scan
from rambarde.children.channel import Channel
from rambarde.children.processes import AgentProcess
from rambarde.children.zygote import Zygote
from rambarde.host.facts import HostFacts
from rambarde.host.probe import probe_host
from rambarde.host.workspace import Workspace
from rambarde.policy.compile import compile_agent, compile_command, compile_setup
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

    def plan(self, agent_id: str) -> SandboxPlan:
        """The plan of a writable agent of tier A."""
        return compile_agent(
            self.policy,
            self.space,
            self.facts,
            agent_id=agent_id,
            title=f"bench {agent_id}",
            tier="A",
            kuid=2_000_000_000 + secrets.randbelow(64),
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
        channel = Channel(process.read_fd, process.write_fd)
        await channel.receive()
        return process, channel, plan

    async def end(self, process: AgentProcess, channel: Channel) -> None:
        """Kill an agent and wait for the proof."""
        from rambarde.children.command import kill, wait_dead

        kill(process.pidfd)
        await wait_dead(process.pidfd)
        await channel.aclose()
        os.close(process.pidfd)
        os.close(process.log_fd)


@contextlib.asynccontextmanager
async def bench_over(folder: str) -> AsyncIterator[Bench]:
    """A zygote over a folder."""
    policies = load_policies(shipped_folder())
    space = scan(folder, policies)
    facts = probe_host()
    setup = compile_setup(
        space, facts, supervisor_pid=os.getpid(), tier="A", git_config=git_identity()
    )
    zygote = Zygote.start(setup, environment=ZYGOTE_ENVIRONMENT)
    try:
        await zygote.wait_ready()
        yield Bench(zygote, policies.base("workspace-write"), space, facts)
    finally:
        with anyio.CancelScope(shield=True):
            await zygote.aclose()
