"""What tests of the adapters share: a request, and a reply collected from events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from rambarde.models.base import Delta, ModelReply, ModelRequest, UserMessage
from rambarde.models.sse import SseEvent

REQUEST = ModelRequest("m", "be brief", (UserMessage("hello"),))


@pytest.fixture
def request_() -> ModelRequest:
    """A plain request."""
    return REQUEST


@pytest.fixture
def collect() -> Callable[..., tuple[ModelReply, list[Delta]]]:
    """Return a function that feeds objects to a collector class and settles it."""

    def run(kind: Any, *data: Mapping[str, Any] | str) -> tuple[ModelReply, list[Delta]]:
        deltas: list[Delta] = []
        reply = kind("host:1", deltas.append)
        for item in data:
            text = item if isinstance(item, str) else msgspec.json.encode(item).decode()
            if reply.take(SseEvent("", text)):
                break
        return reply.settle(REQUEST), deltas

    return run
