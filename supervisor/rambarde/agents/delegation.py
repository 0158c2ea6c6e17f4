"""Delegation: may it be, and one subagent from admission to report. Trusted side.

The refusals come in the order of the product's texts, all before a fork or a model call, and take
no slot and no count: unknown or not delegable, empty brief, a caller without the tool, depth,
total of the session, concurrency, the tree's own ceilings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from rambarde.agents.agent import Agent
from rambarde.agents.parts import Parts
from rambarde.broker.caller import Caller, ToolResult
from rambarde.broker.catalogue import names_of
from rambarde.budget import NetRefusal
from rambarde.tracker import ReadTracker
from rambarde_wire import tools

Start = Callable[[Agent, tools.Task], Agent]
Live = Callable[[Agent], Awaitable[str]]


class Delegation:
    """The broker's port for Task. `agents` maps agent ids to the living agents of the tree."""

    def __init__(
        self,
        parts: Parts,
        tracker: ReadTracker,
        agents: Mapping[str, Agent],
        start: Start,
        live: Live,
    ) -> None:
        """`start` makes the subagent's object; `live` runs it and returns its report."""
        self._parts = parts
        self._tracker = tracker
        self._agents = agents
        self._start = start
        self._live = live

    def refuse(self, caller: Caller, arguments: tools.Task) -> ToolResult | None:
        """Return the refusal of a delegation that must not be tried; None when it may be."""
        names = self.delegable(caller)
        if arguments.agent not in self._parts.personas.delegable_names():
            return self._refusal(
                "unknown_agent",
                agent=arguments.agent or "-",
                agents=", ".join(sorted(names)) or "-",
            )
        if not arguments.prompt.strip():
            return self._refusal("empty_task")
        if "Task" not in caller.policy.tools or "Task" not in names_of(caller.catalogue):
            if caller.depth >= self._parts.nets.max_depth:
                return self._refusal(
                    "cap_depth", limit="subagentMaxDepth", value=self._parts.nets.max_depth
                )
            return self._refusal("no_delegation")
        if arguments.agent not in names:
            return self._refusal(
                "unknown_agent",
                agent=arguments.agent or "-",
                agents=", ".join(sorted(names)) or "-",
            )
        return None

    def delegable(self, caller: Caller) -> frozenset[str]:
        """Names this caller may delegate to: declared delegable and granted by its policy."""
        return self._parts.personas.delegable_names() & caller.policy.delegates

    async def delegate(self, caller: Caller, arguments: tools.Task) -> ToolResult:
        """Admit, run and await one subagent. Its report is fenced: data, not instructions.

        Raises:
            RecordError: its session cannot be made; it was not started.
        """
        hit = caller.budget.check()
        # A refused action ends the run only once the calls before it are done: this is one.
        if hit is not None and hit.which != "actions":
            return self._refusal("cap_tree", limit=hit.setting, value=int(hit.limit))
        admitted = self._parts.nets.admit(caller.depth, arguments.agent)
        if isinstance(admitted, NetRefusal):
            return self._refusal(
                admitted.code,
                limit=admitted.limit,
                value=admitted.value,
                running=", ".join(admitted.running) or "-",
            )
        mark = self._tracker.mark()
        child = None
        try:
            child = self._start(self._agents[caller.agent_id], arguments)
            report = await self._live(child)
        finally:
            admitted.release(proof_of_death=child is None or child.proven_dead)
        notes = []
        if caller.outcome is None:
            # A caller that is stopped has no use for them, and no time: its report must not wait.
            changed = await self._tracker.changed_since(caller.agent_id, mark)
            notes = [
                self._parts.say("changed_since_read", path=one.shown, by=one.by) for one in changed
            ]
        if arguments.background:
            notes.append(self._parts.say("background_fallback"))
        status = child.caller.status
        return ToolResult(
            ok=status == "done",
            code="" if status == "done" else status,
            text="\n".join([*notes, report]),
            fingerprint=child.caller.session_id,
        )

    def _refusal(self, code: str, **values: object) -> ToolResult:
        return ToolResult(
            ok=False,
            code=code,
            text=self._parts.say(code, **values),
            actor="automaton" if code.startswith("cap_") else "policy",
        )
