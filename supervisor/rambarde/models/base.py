"""Requests to a model and its replies, whatever the provider. Trusted side. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, Union

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "other"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told it; `schema` is a JSON Schema object."""

    name: str
    description: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it: `arguments` is JSON text, not yet checked, maybe broken."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """Words of the person, or a brief."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the model said and asked for."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one call, told to the model."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


Message: TypeAlias = Union[UserMessage, AssistantMessage, ToolMessage]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request. `subagent` marks side work in the accounts; it is not sent."""

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    subagent: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request as the provider counted them; `estimated` when it did not say."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A whole reply. With finish_reason `length`, calls may be incomplete and must not be run."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    waited_s: float = 0.0
    """Seconds spent on the provider's rate limit, counted apart from work (decision 11)."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply as it streams: `kind` is text, reasoning, call or alive."""

    kind: Literal["text", "reasoning", "call", "alive"]
    text: str = ""


DeltaListener = Callable[[Delta], None]


class RetryBudget(Protocol):
    """How many more retries the tree of agents may spend."""

    def take(self) -> bool:
        """Spend one retry; False when none is left."""
        ...


class ModelClient(Protocol):
    """A provider. One object for all agents of a process; safe to use from many tasks at once."""

    name: str

    async def complete(
        self, request: ModelRequest, *, on_delta: DeltaListener, retries: RetryBudget
    ) -> ModelReply:
        """Stream one reply.

        Raises:
            ModelError: with the cause in words and `kind`. What streamed before a cut was told to
                `on_delta`; the caller keeps it apart as the last text.
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
