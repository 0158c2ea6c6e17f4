"""The broker's way to the model: reserve, ask, account. Trusted side."""

from __future__ import annotations

from rambarde.broker.caller import Caller
from rambarde.budget import LimitHit, TreeRetries
from rambarde.errors import ModelError
from rambarde.models.base import (
    DeltaListener,
    ModelClient,
    ModelReply,
    ModelRequest,
    Usage,
)
from rambarde.models.estimate import estimate_request


class Engine:
    """One provider for the whole tree; a request is reserved on all ancestors before it is sent."""

    def __init__(self, client: ModelClient, retries: TreeRetries) -> None:
        """`retries` is the tree's; children never multiply them."""
        self._client = client
        self._retries = retries

    async def next_reply(self, caller: Caller, on_delta: DeltaListener) -> ModelReply | LimitHit:
        """Return the reply to the caller's conversation, or the ceiling that refuses to ask.

        Raises:
            ModelError: the provider failed; nothing is retried here.
        """
        request = ModelRequest(
            model=caller.model,
            system=caller.system,
            messages=tuple(caller.messages),
            tools=caller.catalogue,
            temperature=caller.persona.temperature,
            subagent=caller.depth > 0,
        )
        estimate = estimate_request(request)
        reservation = caller.budget.reserve(estimate)
        if isinstance(reservation, LimitHit):
            return reservation
        try:
            reply = await self._client.complete(request, on_delta=on_delta, retries=self._retries)
        except ModelError as exc:
            waited_s = getattr(exc, "waited_s", 0.0)
            sent = exc.kind != "unreachable"
            caller.budget.settle(reservation, 0, sent=sent, waited_s=waited_s)
            if sent:
                caller.add_usage(Usage())
            raise
        except BaseException:
            # Cancelled under way: what the provider counted is not known.
            caller.budget.settle(reservation, estimate)
            caller.add_usage(Usage(input_tokens=estimate, estimated=True))
            raise
        self._retries.note_success()
        used = reply.usage
        caller.budget.settle(
            reservation, used.input_tokens + used.output_tokens, waited_s=reply.waited_s
        )
        caller.add_usage(used)
        return reply
