"""What a request costs is on the caller's account, however it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from rambarde.agents.engine import Engine
from rambarde.budget import TreeRetries
from rambarde.errors import ModelError
from rambarde.models.base import ModelReply, Usage
from support.broker import Bench

pytestmark = pytest.mark.anyio


class Client:
    """A provider with one answer, or one failure, or none at all."""

    name = "fake"

    def __init__(self, answer: ModelReply | Exception | None) -> None:
        self.answer = answer

    async def complete(self, _request: Any, **_more: Any) -> ModelReply:
        if self.answer is None:
            await anyio.sleep_forever()
        if isinstance(self.answer, ModelReply):
            return self.answer
        raise self.answer or ModelError("cut", kind="cut")

    async def aclose(self) -> None:
        return


def engine(answer: ModelReply | Exception | None) -> Engine:
    return Engine(Client(answer), TreeRetries())


async def test_waits_and_tokens_of_a_reply_are_counted(tmp_path: Path) -> None:
    """Both are in the result's usage."""
    caller = Bench(tmp_path).caller
    reply = ModelReply("hi", usage=Usage(input_tokens=7, output_tokens=2), waited_s=1.5)
    await engine(reply).next_reply(caller, lambda _delta: None)
    assert (caller.model_requests, caller.usage.input_tokens) == (1, 7)
    assert caller.budget.stopwatch.rate_wait_s == 1.5


async def test_a_failed_request_counts_when_it_was_sent(tmp_path: Path) -> None:
    """One that reached nobody does not."""
    caller = Bench(tmp_path).caller
    for kind, count in (("cut", 1), ("unreachable", 1), ("overloaded", 2)):
        with pytest.raises(ModelError):
            await engine(ModelError("no", kind=kind)).next_reply(caller, lambda _delta: None)
        assert caller.model_requests == count
    assert caller.budget.requests == 2


async def test_a_request_that_is_cancelled_counts_by_its_estimate(tmp_path: Path) -> None:
    """Its tokens are marked as estimated, and nothing stays reserved."""
    caller = Bench(tmp_path).caller
    with anyio.move_on_after(0.05):
        await engine(None).next_reply(caller, lambda _delta: None)
    assert caller.model_requests == 1
    assert caller.usage.estimated
    assert caller.budget.held_tokens == 0
