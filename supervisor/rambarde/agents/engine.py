"""The broker's way to the model: reserve, ask, account. Trusted side."""

from __future__ import annotations

from rambarde.broker.caller import Caller
from rambarde.models.base import (
    DeltaListener,
    ModelClient,
    ModelReply,
    ModelRequest,
    RetryBudget,
)


class Engine:
    """One provider for the whole tree; each request is reserved on all ancestors before it is sent."""

    def __init__(self, client: ModelClient, retries: RetryBudget) -> None:
        """`retries` is the tree's; children never multiply them."""
        self._client = client
        self._retries = retries

    async def next_reply(self, caller: Caller, on_delta: DeltaListener) -> ModelReply:
        """Return the reply to the caller's conversation. Raises ModelError."""
        request = ModelRequest(
            model=caller.model,
            system=caller.system,
            messages=tuple(caller.messages),
            tools=caller.catalogue,
            temperature=caller.persona.temperature,
            subagent=caller.depth > 0,
        )
        reservation = caller.budget.reserve_request()
        try:
            reply = await self._client.complete(
                request, on_delta=on_delta, retries=self._retries
            )
        except BaseException:
            caller.budget.settle_request(reservation, 0)
            raise
        used = reply.usage
        caller.budget.settle_request(reservation, used.input_tokens + used.output_tokens)
        caller.add_usage(used)
        caller.rate_wait_s += reply.waited_s
        return reply
