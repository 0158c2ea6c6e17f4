"""The tree of agents: making them, running them, reporting. Trusted side.

An agent's rights are its parent's effective policy narrowed by its persona, at every level; its
session is a journal of its own that names its parent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from collections.abc import Callable

import anyio

from rambarde import __version__
from rambarde.agents.agent import Agent
from rambarde.agents.briefing import system_prompt
from rambarde.agents.life import run_process
from rambarde.agents.parts import Parts
from rambarde.broker.caller import Caller
from rambarde.broker.catalogue import catalogue
from rambarde.broker.ports import Ports
from rambarde.budget import Budget, BudgetLimits
from rambarde.children.watch import Excess, Watched
from rambarde.errors import RecordError
from rambarde.events import Event
from rambarde.ids import new_agent_id, new_session_id, new_task_id
from rambarde.loops import LoopWatch
from rambarde.models.base import ToolMessage, UserMessage
from rambarde.personas import Persona
from rambarde.policy.decide import usable_tools
from rambarde.policy.model import Limits, Policy
from rambarde.policy.narrow import narrow
from rambarde.policy.show import as_data
from rambarde.sessions.report import Outcome, build_report
from rambarde_wire import tools


class Tree:
    """All agents of one run. `agents` holds those alive, by id."""

    def __init__(self, parts: Parts, join: Callable[[Tree], Ports]) -> None:
        """`join` makes the broker's ports, some of which lead back to this tree."""
        self._parts = parts
        self.agents: dict[str, Agent] = {}
        self.root: Agent | None = None
        self._numbers = 0
        self._names: dict[str, str] = {}
        self._ports = join(self)

    def start_root(self, persona: Persona, policy: Policy, model: str, brief: str) -> Agent:
        """Make the agent of the person's own session; `policy` is narrowed already."""
        agent = self._make(None, persona, policy, model, brief)
        self.root = agent
        return agent

    def start_child(self, parent: Agent, arguments: tools.Task) -> Agent:
        """Make a subagent: the parent's rights met with the persona's, a budget of its own."""
        persona = self._parts.personas.get(arguments.agent)
        policy = narrow(parent.caller.policy, persona.narrowing)
        limits = dataclasses.replace(policy.limits, max_actions=self._actions(persona))
        policy = dataclasses.replace(policy, limits=limits)
        model = persona.model or parent.caller.model
        child = self._make(parent, persona, policy, model, arguments.prompt)
        parent.children.append(child)
        return child

    def _actions(self, persona: Persona) -> int | None:
        """Return a subagent's bound on actions: its file's and the settings', never its parent's.

        A parent's bound counts the parent's calls; those of its subagents cost it one each.
        """
        own = persona.narrowing.limits
        bounds = [self._parts.settings.execution.sessionMaxActions]
        if own is not None:
            bounds.append(own.max_actions)
        return min((bound for bound in bounds if bound is not None), default=None)

    def _make(
        self, parent: Agent | None, persona: Persona, policy: Policy, model: str, brief: str
    ) -> Agent:
        parts = self._parts
        depth = 0 if parent is None else parent.caller.depth + 1
        self._numbers += 1
        path = (
            "root"
            if parent is None
            else (f"{parent.caller.path}/{persona.name}#{self._numbers - 1}")
        )
        session_id = new_session_id(parts.clock.wall_at())
        agent_id = new_agent_id()
        self._names[agent_id] = path
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
            catalogue=catalogue(usable_tools(policy), offers),
            budget=Budget(
                path,
                budget_limits(policy.limits, is_root=parent is None),
                parts.clock,
                parent=parent.caller.budget if parent else None,
            ),
            loops=LoopWatch(parts.settings.loops, workspace=parts.space.shown),
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

    def watched(self) -> dict[str, Watched]:
        """Return what the watch of memory and processes looks at: every living agent."""
        return {
            agent_id: Watched(
                [agent.pid, *agent.command_pids],
                agent.caller.policy.limits.memory_bytes,
                agent.caller.policy.limits.processes,
            )
            for agent_id, agent in self.agents.items()
            if agent.pid
        }

    def on_excess(self, excess: Excess) -> None:
        """End the agent that took too much; the root when it is the file system they share."""
        agent = self.agents.get(excess.agent_id) or self.root
        if agent is None:
            return
        which = {"memory": "error:memory", "processes": "limit:processes"}
        status = which.get(excess.reason, f"limit:{excess.reason}")
        text = f"{excess.reason}: {excess.measured} measured, the bound is {excess.bound}"
        agent.stop(Outcome(status), error=text)

    def note_write(self, agent_id: str, path: bytes) -> None:
        """Tell the loop rules of all others that a file they may have read was written."""
        for other_id, other in self.agents.items():
            if other_id != agent_id:
                other.caller.loops.external_write(path)

    def name_of(self, agent_id: str) -> str:
        """Return an agent's path as others are told it."""
        return self._names.get(agent_id, agent_id)

    async def live(self, agent: Agent) -> str:
        """Run one agent to the proof of its death; return its report, marked when it was cut.

        A record that cannot be kept is an end like others, `error:record`; it is not raised.
        """
        parts, caller, ports = self._parts, agent.caller, self._ports
        self.agents[caller.agent_id] = agent
        agent.started_s = parts.clock.monotonic_s()
        self._publish(
            agent,
            "task/started" if agent.parent else "session/started",
            {"agent": caller.persona.name, "depth": caller.depth},
        )
        try:
            message = UserMessage(ports.redactor.text(agent.brief))
            caller.messages.append(message)
            caller.journal.write_message(message)
            await run_process(agent, parts, ports)
        except RecordError as exc:
            caller.end(Outcome("error:record"), error=exc.told)
        finally:
            with anyio.CancelScope(shield=True):
                report = await self._settle(agent)
        return report

    async def _settle(self, agent: Agent) -> str:
        parts, caller, ports = self._parts, agent.caller, self._ports
        outcome = caller.end(caller.ending or Outcome("interrupted"), error=caller.ending_error)
        agent.duration_s = parts.clock.monotonic_s() - agent.started_s
        ports.approvals.cancel(caller.agent_id)
        ports.approvals.grants.forget(caller.agent_id, caller.path)
        ports.tracker.forget(caller.agent_id)
        caller.budget.close()
        agent.files_written = await self._files_written(agent)
        try:
            _keep_unfolded(caller)
            caller.journal.write("end", self.ending(agent))
            await caller.journal.settle()
        except RecordError as exc:
            outcome = caller.end_unrecorded(error=exc.told)
        finally:
            caller.journal.close()
            caller.messages.clear()
            self.agents.pop(caller.agent_id, None)
        try:
            kind = "task/settled" if agent.parent else "session/ended"
            self._publish(agent, kind, self.ending(agent))
            return self._report(agent, outcome)
        finally:
            # Last: a parent that is stopped waits for this, and then no longer for the report.
            agent.settled.set()

    def _report(self, agent: Agent, outcome: Outcome) -> str:
        parts, caller = self._parts, agent.caller
        return build_report(
            outcome=outcome,
            text=caller.final_text,
            last_text=caller.last_text,
            error=caller.error_text,
            actions=caller.actions,
            tokens=caller.usage.input_tokens + caller.usage.output_tokens,
            duration_s=agent.duration_s,
            files_written=agent.files_written,
            refused=[denial.tool for denial in caller.denials],
            session_id=caller.session_id,
            agent=caller.persona.name,
            locale=parts.locale,
            limit_chars=caller.policy.limits.report_chars,
        )

    def ending(self, agent: Agent) -> dict[str, object]:
        """Return how an agent's life ended, as JSON values."""
        caller = agent.caller
        return {
            "session_id": caller.session_id,
            "task_id": agent.task_id,
            "agent": caller.persona.name,
            "depth": caller.depth,
            "status": caller.status,
            "error": caller.error_text,
            "actions": caller.actions,
            "duration_ms": round(agent.duration_s * 1000),
            "files_written": agent.files_written,
            "model_requests": caller.model_requests,
            "input_tokens": caller.usage.input_tokens,
            "output_tokens": caller.usage.output_tokens,
            "rate_wait_ms": round(caller.budget.stopwatch.rate_wait_s * 1000),
            "proven_dead": agent.proven_dead,
        }

    async def _files_written(self, agent: Agent) -> list[str]:
        """Return paths this agent and its descendants wrote by tools and that are there now.

        From the supervisor's record of writes, compared with the tree; relative to the workspace.
        A file whose content is again what it was is not listed.
        """
        below = {one.caller.agent_id for one in agent.descendants()}
        written = await self._ports.tracker.files_written(agent.caller.agent_id, below)
        return [one.shown for one in written if one.before != one.after or not one.stands]

    def _publish(self, agent: Agent, kind: str, data: dict[str, object]) -> None:
        caller = agent.caller
        self._parts.publish(Event(kind, caller.session_id, caller.path, data))


def _keep_unfolded(caller: Caller) -> None:
    """Keep results that came in before the run was cut, and the reports of subagents as last words.

    They were never told to the model; the person and the record have them all the same.
    """
    done = [(call, call.result) for call in caller.open_calls.values() if call.result is not None]
    caller.open_calls = {}
    reports = [result.text for call, result in done if call.tool == "Task"]
    caller.last_text = "\n\n".join(text for text in (caller.last_text, *reports) if text)
    for call, result in done:
        message = ToolMessage(
            call.wrote.call_id, call.wrote.name, result.text, is_error=not result.ok
        )
        caller.journal.write_message(message, call_id=call.call_id, code=result.code)


def budget_limits(limits: Limits, *, is_root: bool) -> BudgetLimits:
    """Return the bounds of one agent; the ceilings of the tree are declared by its root alone."""
    return BudgetLimits(
        actions=limits.max_actions,
        duration_s=limits.max_duration_s,
        stall_s=limits.stall_s,
        tree_requests=limits.tree_model_requests if is_root else None,
        tree_tokens=limits.tree_tokens if is_root else None,
    )


def policy_hash(policy: Policy) -> str:
    """Return the SHA-256 of a policy's canonical form; equal policies have equal hashes."""
    text = json.dumps(as_data(policy), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
