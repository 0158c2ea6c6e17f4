"""What the supervisor knows of one child that asks: its rights, budget, conversation. Trusted side.

A Caller is made by the supervisor before the child exists and is never filled from the child's
words. It holds the conversation (the child never sees it), the calls of the turn that are still
open, and, once set, the outcome, which nothing overwrites.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rambarde.broker.table import Phase
from rambarde.budget import Budget
from rambarde.ids import AgentId, CallId, SessionId
from rambarde.loops import LoopWatch
from rambarde.models.base import Message, ToolCall, ToolSpec, Usage
from rambarde.personas import Persona
from rambarde.policy.model import Policy
from rambarde.sessions.journal import Journal
from rambarde.sessions.report import Outcome
from rambarde_wire.frames import BreachError, Place


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The end of one call as the model is told it; `code` is "" when `ok`."""

    ok: bool
    code: str
    text: str
    fingerprint: str = ""
    actor: str = ""
    """Who refused, for a refusal: human, policy, automaton, expired, cancelled; else empty."""
    reads: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class OpenCall:
    """One call of the running turn. `asked` once the child asked the broker to perform it."""

    call_id: CallId
    wrote: ToolCall
    tool: str
    arguments: bytes
    place: Place
    joined: bool = False
    asked: bool = False
    started_s: float = 0.0
    result: ToolResult | None = None
    reads: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Denial:
    """A refused call, for the report and the result's `permission_denials`."""

    agent: str
    tool: str
    code: str
    actor: str


@dataclass(slots=True)
class Caller:
    """One agent as the broker sees it."""

    agent_id: AgentId
    session_id: SessionId
    path: str
    depth: int
    persona: Persona
    policy: Policy
    model: str
    system: str
    catalogue: tuple[ToolSpec, ...]
    budget: Budget
    loops: LoopWatch
    journal: Journal
    phase: Phase = Phase.BOOTING
    messages: list[Message] = field(default_factory=list)
    open_calls: dict[CallId, OpenCall] = field(default_factory=dict)
    turn: int = 0
    nudged: bool = False
    final_text: str = ""
    last_text: str = ""
    """Newest text of the model, whole or cut: kept apart when the run does not end as done."""
    error_text: str = ""
    outcome: Outcome | None = None
    ending: Outcome | None = None
    """Outcome that takes effect once the open calls of this turn are reported."""
    denials: list[Denial] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    model_requests: int = 0
    actions: int = 0
    rate_wait_s: float = 0.0
    doing: str = "starting"

    def end(self, outcome: Outcome, *, error: str = "") -> None:
        """Set the outcome, once; later causes are consequences of the first."""
        if self.outcome is None:
            self.outcome = outcome
            self.error_text = error

    def call(self, claimed_id: str) -> OpenCall:
        """Return the open call of this turn with that id, not yet done; else it is a breach."""
        call = self.open_calls.get(CallId(claimed_id))
        if call is None or call.result is not None:
            raise BreachError("a call id that is not open")
        return call

    def unreported(self) -> Iterable[OpenCall]:
        """Calls of this turn without a result, in the model's order."""
        return (call for call in self.open_calls.values() if call.result is None)

    def add_usage(self, usage: Usage) -> None:
        """Count one more model request with its tokens."""
        self.model_requests += 1
        self.usage = Usage(
            input_tokens=self.usage.input_tokens + usage.input_tokens,
            output_tokens=self.usage.output_tokens + usage.output_tokens,
            cached_tokens=self.usage.cached_tokens + usage.cached_tokens,
            estimated=self.usage.estimated or usage.estimated,
        )
