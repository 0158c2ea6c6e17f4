"""What the broker's answers need from the rest, so that arrows point down. Trusted side.

`app/run.py` passes the real parts in; the broker imports none of the layers above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rambarde.approvals import Approvals
from rambarde.broker.caller import Caller, ToolResult
from rambarde.budget import LimitHit
from rambarde.children.command import CommandResult
from rambarde.events import Event
from rambarde.models.base import DeltaListener, ModelReply
from rambarde.redact import Redactor
from rambarde.tracker import ReadTracker
from rambarde_wire import tools


class Models(Protocol):
    """The way to the model: gate, retries and reservation are behind it."""

    async def next_reply(self, caller: Caller, on_delta: DeltaListener) -> ModelReply | LimitHit:
        """Return the next reply to the caller's conversation, or the ceiling that refuses to ask.

        Raises:
            ModelError: the provider failed; the caller's run ends with it.
        """
        ...


class Commands(Protocol):
    """Commands inside the sandbox of the caller."""

    async def perform(self, caller: Caller, argv: list[bytes], timeout_s: float) -> CommandResult:
        """Run one command to its end and the end of all its descendants."""
        ...


class Delegations(Protocol):
    """Subagents."""

    def refuse(self, caller: Caller, arguments: tools.Task) -> ToolResult | None:
        """Return the refusal of a delegation that must not be tried, in the order of the seeds."""
        ...

    async def delegate(self, caller: Caller, arguments: tools.Task) -> ToolResult:
        """Admit, run and await one subagent; its report is the result. Never raises for its end."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything an answer may use."""

    models: Models
    commands: Commands
    delegations: Delegations
    approvals: Approvals
    tracker: ReadTracker
    redactor: Redactor
    publish: Callable[[Event], None]
    say: Callable[..., str]
    """`say(code, **values)`: a text of messages/ in the session's language."""
    wrote: Callable[[str, bytes], None]
    """Told that an agent wrote a path: calls of others that read it may be made again."""
    workspace: bytes
    rg: bytes
    """ripgrep as seen inside the sandbox."""
