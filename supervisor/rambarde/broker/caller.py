"""What the supervisor knows of one child that asks: its rights, budget, conversation. Trusted side.

A Caller is made by the supervisor before the child exists and is never filled from the child's
words. It holds the conversation (the child never sees it), the calls of the turn that are still
open, and, once set, the outcome: the first cause stands, save that a `done` which cannot be put on
the record is none.
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
    """Who refused, for a refusal: human, policy, automaton, expired, cancelled; else empty.

    A call that could not be read (`bad_arguments`) is none: nobody denied it a right.
    """


@dataclass(slots=True)
class OpenCall:
    """One call of the running turn.

    `asked`: the child asked for it to be performed, or for its write; either may be asked once.
    `actor`, `rule`, `reason`: who allowed or refused it and why, as it stands on the record.
    """

    call_id: CallId
    wrote: ToolCall
    tool: str
    arguments: bytes
    place: Place
    joined: bool = False
    asked: bool = False
    actor: str = "policy"
    rule: str = ""
    reason: str = ""
    result: ToolResult | None = None
    read: bytes = b""
    """Path of the file it showed; empty for none."""


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
    """Newest text of the model, whole or cut, redacted: kept when the run does not end as done."""
    error_text: str = ""
    outcome: Outcome | None = None
    ending: Outcome | None = None
    """Outcome that takes effect once the open calls of this turn are reported."""
    ending_error: str = ""
    denials: list[Denial] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    model_requests: int = 0
    actions: int = 0

    def end(self, outcome: Outcome, *, error: str = "") -> Outcome:
        """Set the outcome, once; later causes are consequences of the first. Return what stands."""
        if self.outcome is None:
            self.outcome = outcome
            self.error_text = error
        return self.outcome

    def end_after_calls(self, outcome: Outcome, *, error: str) -> None:
        """Set the outcome of the end of this turn, once; the calls before it are still done."""
        if self.ending is None:
            self.ending = outcome
            self.ending_error = error

    def end_unrecorded(self, *, error: str) -> Outcome:
        """Take back a `done`: what cannot be put on the record is not done. Return what stands."""
        if self.outcome is None or self.outcome.is_done:
            self.outcome = Outcome("error:record")
            self.error_text = error
        return self.outcome

    @property
    def status(self) -> str:
        """Status of the outcome, empty while the run has none."""
        return "" if self.outcome is None else self.outcome.status

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
