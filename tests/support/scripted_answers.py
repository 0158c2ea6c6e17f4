"""What a scripted engine says, and how it says it in each wire's own words. No I/O.

The shapes are those recorded from real services and from llama.cpp's server, so that an adapter
that reads these reads those. An answer may also be wrong on purpose: see `Answer`.

Source: platform.openai.com/docs/api-reference/chat; docs.anthropic.com/en/api/messages-streaming;
llama.cpp tools/server/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Wire = Literal["openai", "anthropic"]
Chunk = tuple[str, dict[str, Any]]
"""The event's name (empty on the OpenAI wire) and its JSON."""

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` may be text, to be broken JSON."""

    name: str
    arguments: Mapping[str, Any] | str
    call_id: str = ""

    @property
    def json(self) -> str:
        """The arguments as the wire's text."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Answer:
    """One reply. Without a fault it is whole and legal.

    Fields: `finish` is stop, tool_calls, length or content_filter (None: what fits);
    `chunk_chars` the size of pieces; `delay_s` before the first byte, `between_s` between events;
    `pings` keep-alive events first (OpenAI wire: llama.cpp's progress); `status` other than 200
    sends `error` as JSON with `retry_after`; `cut_after_bytes` closes the connection there,
    `stall_after_bytes` falls silent there; `flood_bytes` streams that much text without an end of
    line; `raw` is sent as the body; `stream_error` is sent in place of the end; `done` False
    leaves out the closing event.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    finish: str | None = None
    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0
    usage: bool = True
    chunk_chars: int = 24
    delay_s: float = 0.0
    between_s: float = 0.0
    pings: int = 0
    status: int = 200
    retry_after: str = ""
    error: Mapping[str, Any] | None = None
    cut_after_bytes: int | None = None
    stall_after_bytes: int | None = None
    flood_bytes: int = 0
    raw: bytes | None = None
    stream_error: Mapping[str, Any] | None = None
    done: bool = True

    @property
    def reason(self) -> str:
        """The finish reason in OpenAI's words."""
        return self.finish or ("tool_calls" if self.calls else "stop")


def parse_answer(data: Mapping[str, Any]) -> Answer:
    """Make an answer from JSON: its field names, and `calls` as `[{"name", "arguments"}]`.

    Raises:
        ValueError: a name is unknown.
    """
    known = {field.name for field in fields(Answer)}
    if unknown := set(data) - known:
        raise ValueError(f"unknown in an answer: {', '.join(sorted(unknown))}")
    values = dict(data)
    values["calls"] = tuple(
        Call(call["name"], call.get("arguments", {}), call.get("call_id", ""))
        for call in data.get("calls", ())
    )
    if "raw" in values:
        values["raw"] = str(values["raw"]).encode()
    return Answer(**values)


def _pieces(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def stream(wire: Wire, answer: Answer, number: int) -> Iterator[Chunk]:
    """Yield the events of a streamed reply, without the closing `[DONE]` of the OpenAI wire."""
    return _openai_stream(answer, number) if wire == "openai" else _anthropic_stream(answer, number)


def whole(wire: Wire, answer: Answer, number: int) -> dict[str, Any]:
    """Return the reply to a request that did not ask for a stream."""
    return _openai_whole(answer, number) if wire == "openai" else _anthropic_whole(answer, number)


def error_body(wire: Wire, answer: Answer) -> dict[str, Any]:
    """Return the JSON of a status that is not 200."""
    if answer.error is not None:
        return dict(answer.error)
    inner = {"type": "scripted_error", "message": f"scripted status {answer.status}"}
    return {"error": inner} if wire == "openai" else {"type": "error", "error": inner}


# ── chat completions ─────────────────────────────────────────────────────────────────────────


def _openai_usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _openai_chunk(number: int, choices: list[Any], **more: Any) -> Chunk:
    return "", {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        "choices": choices,
        **more,
    }


def _openai_delta(number: int, delta: dict[str, Any], reason: str | None = None) -> Chunk:
    return _openai_chunk(number, [{"index": 0, "delta": delta, "finish_reason": reason}])


def _openai_stream(answer: Answer, number: int) -> Iterator[Chunk]:
    for done in range(answer.pings):
        progress = {"total": answer.pings, "cache": 0, "processed": done + 1, "time_ms": 1}
        yield _openai_chunk(number, [], prompt_progress=progress)
    yield _openai_delta(number, {"role": "assistant", "content": None})
    for piece in _pieces(answer.reasoning, answer.chunk_chars):
        yield _openai_delta(number, {"reasoning_content": piece})
    for piece in _pieces(answer.text, answer.chunk_chars):
        yield _openai_delta(number, {"content": piece})
    for index, call in enumerate(answer.calls):
        head = {
            "index": index,
            "id": call.call_id or f"call_{number}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }
        yield _openai_delta(number, {"tool_calls": [head]})
        for piece in _pieces(call.json, answer.chunk_chars):
            part = {"index": index, "function": {"arguments": piece}}
            yield _openai_delta(number, {"tool_calls": [part]})
    if answer.stream_error is not None:
        yield "", {"error": dict(answer.stream_error)}
        return
    yield _openai_delta(number, {}, answer.reason)
    if answer.usage:
        yield _openai_chunk(number, [], usage=_openai_usage(answer))


def _openai_whole(answer: Answer, number: int) -> dict[str, Any]:
    calls = [
        {
            "id": call.call_id or f"call_{number}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.json},
        }
        for index, call in enumerate(answer.calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": answer.reason}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [choice],
        "usage": _openai_usage(answer),
    }


# ── Messages ─────────────────────────────────────────────────────────────────────────────────


def _anthropic_usage(answer: Answer, output: int) -> dict[str, Any]:
    return {
        "input_tokens": answer.input_tokens - answer.cached_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": output,
    }


def _anthropic_blocks(answer: Answer, number: int) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield each block's start and its deltas."""
    size = answer.chunk_chars
    if answer.reasoning:
        yield (
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": p} for p in _pieces(answer.reasoning, size)]
            + [{"type": "signature_delta", "signature": "c2ln"}],
        )
    if answer.text:
        yield (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": piece} for piece in _pieces(answer.text, size)],
        )
    for index, call in enumerate(answer.calls):
        name = call.call_id or f"toolu_{number}_{index}"
        yield (
            {"type": "tool_use", "id": name, "name": call.name, "input": {}},
            [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in ["", *_pieces(call.json, size)]
            ],
        )


def _anthropic_stream(answer: Answer, number: int) -> Iterator[Chunk]:
    message: dict[str, Any] = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "scripted",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _anthropic_usage(answer, 1),
    }
    if not answer.usage:
        del message["usage"]
    yield "message_start", {"type": "message_start", "message": message}
    for _ in range(1 + answer.pings):
        yield "ping", {"type": "ping"}
    for index, (start, deltas) in enumerate(_anthropic_blocks(answer, number)):
        yield (
            "content_block_start",
            {"type": "content_block_start", "index": index, "content_block": start},
        )
        for delta in deltas:
            yield (
                "content_block_delta",
                {"type": "content_block_delta", "index": index, "delta": delta},
            )
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    if answer.stream_error is not None:
        yield "error", {"type": "error", "error": dict(answer.stream_error)}
        return
    delta = {"stop_reason": _STOP_REASONS.get(answer.reason, "refusal"), "stop_sequence": None}
    settled: dict[str, Any] = {"type": "message_delta", "delta": delta}
    if answer.usage:
        settled["usage"] = {"output_tokens": answer.output_tokens}
    yield "message_delta", settled
    if answer.done:
        yield "message_stop", {"type": "message_stop"}


def _anthropic_whole(answer: Answer, number: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text else []
    for index, call in enumerate(answer.calls):
        content.append(
            {
                "type": "tool_use",
                "id": call.call_id or f"toolu_{number}_{index}",
                "name": call.name,
                "input": call.arguments,
            }
        )
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": "scripted",
        "stop_reason": _STOP_REASONS.get(answer.reason, "refusal"),
        "stop_sequence": None,
        "usage": _anthropic_usage(answer, answer.output_tokens),
    }
