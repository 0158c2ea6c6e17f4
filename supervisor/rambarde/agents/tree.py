"""The tree of agents: making them, running them, reporting. Trusted side.

An agent's rights are its parent's effective policy narrowed by its persona, at every level; its
session is a journal of its own that names its parent.
"""

from __future__ import annotations

import platform

import anyio

from rambarde import __version__
from rambarde.agents.agent import Agent
from rambarde.agents.briefing import system_prompt
from rambarde.agents.life import run_process
from rambarde.agents.parts import Parts
from rambarde.broker.caller import Caller
from rambarde.broker.catalogue import catalogue
from rambarde.broker.ports import Ports
from rambarde.budget import Budget
from rambarde.events import Event
from rambarde.ids import AgentId, new_agent_id, new_session_id, new_task_id
from rambarde.loops import LoopWatch
from rambarde.models.base import UserMessage
from rambarde.personas import Persona
from rambarde.policy.model import Policy
from rambarde.policy.narrow import narrow
from rambarde.sessions.report import Outcome, build_report
from rambarde_wire import tools


class Tree:
    """All agents of one run. `agents` holds those alive, by id."""

    def __init__(self, parts: Parts) -> None:
        """`parts.ports` must be set before the first agent runs."""
        self._parts = parts
        self.agents: dict[str, Agent] = {}
        self.root: Agent | None = None
        self._numbers = 0

    def start_root(self, persona: Persona, policy: Policy, model: str, brief: str) -> Agent:
        """Make the agent of the person's own session; `policy` is already narrowed by its persona."""
        agent = self._make(None, persona, policy, model, brief)
        self.root = agent
        return agent

    def start_child(self, parent: Agent, arguments: tools.Task) -> Agent:
        """Make a subagent: the parent's rights met with the persona's, a budget of its own."""
        persona = self._parts.personas.get(arguments.agent)
        policy = narrow(parent.caller.policy, persona.narrowing)
        model = persona.model or parent.caller.model
        child = self._make(parent, persona, policy, model, arguments.prompt)
        parent.children.append(child)
        return child

    def _make(
        self, parent: Agent | None, persona: Persona, policy: Policy, model: str, brief: str
    ) -> Agent:
        parts = self._parts
        depth = 0 if parent is None else parent.caller.depth + 1
        self._numbers += 1
        path = "root" if parent is None else (
            f"{parent.caller.path}/{persona.name}#{self._numbers - 1}"
        )
        session_id = new_session_id(parts.clock.wall_at())
        agent_id = new_agent_id()
        journal = parts.store.create(
            session_id,
            {
                "parent_id": parent.caller.session_id if parent else "",
                "root_id": parent.root.caller.session_id if parent else session_id,
                "depth": depth,
                "agent": persona.name,
                "agent_path": path,
                "persona_sha256": persona.sha256,
                "policy_sha256": policy_hash(policy),
                "tier": parts.tier,
                "version": __version__,
                "workspace": parts.space.shown,
                "landlock_abi": parts.facts.landlock_abi,
                "model": model,
            },
        )
        offers = self._offers(policy, depth)
        caller = Caller(
            agent_id=agent_id,
            session_id=session_id,
            path=path,
            depth=depth,
            persona=persona,
            policy=policy,
            model=model,
            system=system_prompt(
                persona,
                policy,
                workspace=parts.space.shown,
                machine=f"{platform.system()} {platform.machine()}",
                is_subagent=parent is not None,
            ),
            catalogue=catalogue(policy.tools, offers),
            budget=Budget(
                policy.limits,
                clock=parts.clock,
                parent=parent.caller.budget if parent else None,
            ),
            loops=LoopWatch(parts.settings.loops),
            journal=journal,
        )
        return Agent(caller, new_task_id(), parent, brief)

    def _offers(self, policy: Policy, depth: int) -> dict[str, str]:
        """Subagents described to the model: none at the last level."""
        if depth >= self._parts.nets.max_depth:
            return {}
        personas = self._parts.personas
        names = personas.delegable_names() & policy.delegates
        return {name: personas.get(name).description for name in names}

    async def live(self, agent: Agent) -> str:
        """Run one agent to the proof of its death; return its report, marked when it was cut."""
        parts, caller = self._parts, agent.caller
        ports = _set(parts.ports)
        self.agents[caller.agent_id] = agent
        agent.started_s = parts.clock.monotonic_s()
        message = UserMessage(agent.brief)
        caller.messages.append(message)
        caller.journal.write_message(message)
        self._publish(agent, "task/started" if agent.parent else "session/started",
                      {"agent": caller.persona.name, "depth": caller.depth})
        try:
            await run_process(agent, parts, ports)
        finally:
            with anyio.CancelScope(shield=True):
                report = await self._settle(agent, ports)
        return report

    async def _settle(self, agent: Agent, ports: Ports) -> str:
        parts, caller = self._parts, agent.caller
        caller.end(Outcome("interrupted"))
        outcome = _set(caller.outcome)
        agent.duration_s = parts.clock.monotonic_s() - agent.started_s
        ports.tracker.abandon(caller.agent_id)
        ports.approvals.cancel(caller.agent_id)
        report = build_report(
            outcome=outcome,
            text=caller.final_text,
            last_text=caller.last_text,
            error=caller.error_text,
            actions=caller.actions,
            tokens=caller.usage.input_tokens + caller.usage.output_tokens,
            duration_s=agent.duration_s,
            files_written=self.files_written(agent),
            refused=[denial.tool for denial in caller.denials],
            session_id=caller.session_id,
            agent=caller.persona.name,
            locale=parts.locale,
            limit_chars=caller.policy.limits.report_chars,
        )
        caller.journal.write("end", self.ending(agent))
        await caller.journal.settle()
        caller.journal.close()
        self.agents.pop(caller.agent_id, None)
        agent.settled.set()
        self._publish(agent, "task/settled" if agent.parent else "session/ended",
                      self.ending(agent))
        return report

    def ending(self, agent: Agent) -> dict[str, object]:
        """Return how an agent's life ended, as JSON values."""
        caller = agent.caller
        return {
            "session_id": caller.session_id,
            "task_id": agent.task_id,
            "agent": caller.persona.name,
            "depth": caller.depth,
            "status": _set(caller.outcome).status,
            "error": caller.error_text,
            "actions": caller.actions,
            "duration_ms": round(agent.duration_s * 1000),
            "files_written": self.files_written(agent),
            "model_requests": caller.model_requests,
            "input_tokens": caller.usage.input_tokens,
            "output_tokens": caller.usage.output_tokens,
            "rate_wait_ms": round(caller.rate_wait_s * 1000),
            "proven_dead": agent.proven_dead,
        }

    def files_written(self, agent: Agent) -> list[str]:
        """Return paths this agent and its descendants wrote by tools, relative to the workspace."""
        ports = _set(self._parts.ports)
        written: set[str] = set()
        for one in (agent, *agent.descendants()):
            written |= set(ports.tracker.files_written(AgentId(one.caller.agent_id)))
        return sorted(written)

    def _publish(self, agent: Agent, kind: str, data: dict[str, object]) -> None:
        caller = agent.caller
        self._parts.publish(Event(kind, caller.session_id, caller.path, data))


def policy_hash(policy: Policy) -> str:
    """Return the SHA-256 of a policy's canonical form; equal policies have equal hashes."""
    import hashlib

    from rambarde.policy.explain import canonical

    return hashlib.sha256(canonical(policy)).hexdigest()


def _set[T](value: T | None) -> T:
    if value is None:
        raise RuntimeError("used before it was set")
    return value
