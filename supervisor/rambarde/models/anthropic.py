"""Anthropic's Messages, streamed. Trusted side.

`messages_body` and `MessagesReply` are pure; `AnthropicModel` joins them to HTTP. The same wire is
spoken by llama.cpp's server, which sends no `ping`, no `"input": {}` and other error shapes.

Source: docs.anthropic.com/en/api/messages, /messages-streaming, /errors (version 2023-06-01).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rambarde.models.base import (
    AssistantMessage,
    Delta,
    DeltaListener,
    FinishReason,
    Message,
    ModelReply,
    ModelRequest,
    ToolMessage,
    Usage,
    UserMessage,
)
from rambarde.models.calls import PartialCall, finish_calls, sendable_arguments
from rambarde.models.estimate import estimate_request, estimate_tokens
from rambarde.models.failure import ProviderError, cut, failure_in_stream
from rambarde.models.http import HttpClient
from rambarde.models.listing import only_model
from rambarde.models.shapes import as_count, as_map, as_text, parse_object
from rambarde.models.sse import COMMENT, SseEvent

VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 16384
"""The service demands a bound; every model it offers now writes at least this much."""
_CACHED = {"type": "ephemeral"}
_FINISH: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}

Block = dict[str, Any]


# ── the request ──────────────────────────────────────────────────────────────────────────────


def messages_body(request: ModelRequest, model: str) -> dict[str, object]:
    """Return the JSON of a streamed request; `request.model` is not used, `model` is sent."""
    turns = _turns(request.messages)
    if turns:
        # Everything up to here is read from the provider's cache by the next request.
        turns[-1]["content"][-1]["cache_control"] = _CACHED
    body: dict[str, object] = {
        "model": model,
        "max_tokens": request.max_tokens or DEFAULT_MAX_TOKENS,
        "messages": turns,
        "stream": True,
    }
    if request.system:
        body["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHED}]
    if request.tools:
        body["tools"] = [
            {"name": t.name, "description": t.description, "input_schema": dict(t.schema)}
            for t in request.tools
        ]
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return body


def _turns(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Return alternating turns: neighbours of one role are merged, empty messages left out.

    The results of a turn's calls must all stand first in the very next user turn, which merging
    in order gives.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: Message) -> list[Block]:
    match message:
        case UserMessage():
            return _text_block(message.text)
        case ToolMessage():
            result: Block = {
                "type": "tool_result",
                "tool_use_id": _wire_id(message.call_id),
                "content": message.text or "(empty)",
            }
            if message.is_error:
                result["is_error"] = True
            return [result]
    return _text_block(message.text.rstrip()) + [
        {
            "type": "tool_use",
            "id": _wire_id(call.call_id),
            "name": call.name,
            "input": sendable_arguments(call.arguments),
        }
        for call in message.calls
    ]


def _text_block(text: str) -> list[Block]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _wire_id(call_id: str) -> str:
    """Return an id of the alphabet the service accepts; a session may come from another one."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", call_id) or "_"


# ── the reply ────────────────────────────────────────────────────────────────────────────────


class MessagesReply:
    """Collects the events of one reply and tells the listener what comes."""

    def __init__(self, endpoint: str, on_delta: DeltaListener) -> None:
        """`endpoint` is `host:port`, for errors."""
        self._endpoint = endpoint
        self._on_delta = on_delta
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, PartialCall] = {}
        self._finish = ""
        self._counts: dict[str, int] = {}

    def take(self, event: SseEvent) -> bool:
        """Take one event; True when the reply is whole.

        Raises:
            ProviderError: the event is no JSON object, or an error.
        """
        if event.name == COMMENT:
            self._on_delta(Delta("alive"))
            return False
        data = parse_object(event.data)
        if data is None:
            raise ProviderError(
                f"{self._endpoint} sent an event that is not a JSON object",
                kind="invalid",
                advice="check that the address is one of an Anthropic-compatible engine",
            )
        kind = as_text(data.get("type")) or event.name
        if kind == "error" or "error" in data:
            raise failure_in_stream(self._endpoint, data, begun=self._begun())
        match kind:
            case "message_start":
                self._count(as_map(as_map(data.get("message")).get("usage")))
            case "content_block_start":
                self._start(as_count(data.get("index")), as_map(data.get("content_block")))
            case "content_block_delta":
                self._add(as_count(data.get("index")), as_map(data.get("delta")))
            case "message_delta":
                self._finish = as_text(as_map(data.get("delta")).get("stop_reason")) or self._finish
                self._count(as_map(data.get("usage")))
            case "message":
                self._take_whole(data)
            case "message_stop":
                self._finish = self._finish or "end_turn"
                return True
            case _:
                self._on_delta(Delta("alive"))
        return False

    def _begun(self) -> bool:
        return bool(self._text or self._reasoning or self._calls)

    def _start(self, index: int, block: Mapping[str, object]) -> None:
        self._say("text", as_text(block.get("text")))
        self._say("reasoning", as_text(block.get("thinking")))
        if block.get("type") == "tool_use":
            call = PartialCall(as_text(block.get("id")), as_text(block.get("name")))
            if given := as_map(block.get("input")):
                call.arguments.append(msgspec.json.encode(given).decode())
            self._calls[index] = call
            self._on_delta(Delta("call", call.name))

    def _add(self, index: int, delta: Mapping[str, object]) -> None:
        self._say("text", as_text(delta.get("text")))
        self._say("reasoning", as_text(delta.get("thinking")))
        piece = as_text(delta.get("partial_json"))
        if piece and index in self._calls:
            self._calls[index].arguments.append(piece)
            self._on_delta(Delta("call"))

    def _say(self, kind: str, text: str) -> None:
        if not text:
            return
        if kind == "text":
            self._text.append(text)
            self._on_delta(Delta("text", text))
        else:
            self._reasoning.append(text)
            self._on_delta(Delta("reasoning", text))

    def _take_whole(self, message: Mapping[str, object]) -> None:
        """Take a reply that was not streamed although that was asked."""
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            self._start(index, as_map(block))
        self._finish = as_text(message.get("stop_reason")) or "end_turn"
        self._count(as_map(message.get("usage")))

    def _count(self, usage: Mapping[str, object]) -> None:
        """Keep the latest of each count: those of `message_delta` are sums, not steps."""
        self._counts.update(
            {name: as_count(value) for name, value in usage.items() if isinstance(value, int)}
        )

    def settle(self, request: ModelRequest) -> ModelReply:
        """Return the whole reply to `request`, from which counts that did not come are estimated.

        Raises:
            ProviderError: the stream ended before the reply did.
        """
        if not self._finish:
            raise cut(self._endpoint)
        finish = _FINISH.get(self._finish, "other")
        calls = finish_calls([self._calls[index] for index in sorted(self._calls)])
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        usage = self._usage() or Usage(
            estimate_request(request),
            estimate_tokens(text, reasoning, *(call.arguments for call in calls)),
            estimated=True,
        )
        if finish == "length":
            calls = ()
        elif calls:
            finish = "tool_calls"
        elif finish == "tool_calls":
            finish = "stop"
        return ModelReply(text, calls, reasoning, finish, usage)

    def _usage(self) -> Usage | None:
        """Return the counts; the service leaves cached tokens out of `input_tokens`, we do not."""
        if not self._counts:
            return None
        cached = self._counts.get("cache_read_input_tokens", 0)
        fresh = self._counts.get("input_tokens", 0)
        stored = self._counts.get("cache_creation_input_tokens", 0)
        return Usage(fresh + stored + cached, self._counts.get("output_tokens", 0), cached)


# ── the client ───────────────────────────────────────────────────────────────────────────────


class AnthropicModel:
    """A provider that speaks Messages."""

    def __init__(self, http: HttpClient, *, model: str = "") -> None:
        """`model` is used for requests that name none; empty: the only one the engine has."""
        self.name = http.endpoint.name
        self._http = http
        self._model = model

    async def attempt(self, request: ModelRequest, on_delta: DeltaListener) -> ModelReply:
        """Stream one reply, trying once.

        Raises:
            ProviderError: its `tries` and `retry_after_s` tell the gate whether to try again.
        """
        model = request.model or self._model
        if not model:
            model = self._model = await only_model(self._http)
        body = messages_body(request, model)
        reply = MessagesReply(self.name, on_delta)
        await self._http.stream("/messages", body, reply.take)
        return reply.settle(request)

    async def aclose(self) -> None:
        """Close connections."""
        await self._http.aclose()
