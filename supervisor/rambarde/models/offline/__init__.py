"""The offline engine: a fixed job done with real tool calls, no model, no network. Trusted side.

It stands where a model would, so that the first command on a fresh machine does real work in a real
sandbox, and a fault in the set-up shows before a key is given to anybody. It is not a language
model and says so in every report. It keeps nothing between requests: what to do next follows from
the transcript it is shown, as with any model.
"""

from __future__ import annotations

import anyio.lowlevel

from rambarde.models.base import (
    Delta,
    DeltaListener,
    ModelReply,
    ModelRequest,
    RetryBudget,
)
from rambarde.models.offline.facts import read_run
from rambarde.models.offline.plan import next_step

__all__ = ["OfflineEngine"]


class OfflineEngine:
    """A ModelClient whose replies are a function of the request; it counts no tokens."""

    name = "offline"

    async def complete(
        self,
        request: ModelRequest,
        *,
        on_delta: DeltaListener,
        retries: RetryBudget,  # noqa: ARG002 - part of the protocol; nothing here can fail
    ) -> ModelReply:
        """Return the next step of the job; its text is told line by line. Never raises."""
        step = next_step(read_run(request))
        for line in step.text.splitlines(keepends=True):
            on_delta(Delta("text", line))
            await anyio.lowlevel.checkpoint()
        for call in step.calls:
            on_delta(Delta("call", call.name))
        return ModelReply(
            step.text, step.calls, finish_reason="tool_calls" if step.calls else "stop"
        )

    async def aclose(self) -> None:
        """Close nothing: there is no connection."""
        await anyio.lowlevel.checkpoint()
