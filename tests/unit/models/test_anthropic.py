"""Messages: what is sent, and what is understood of the stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rambarde.models.anthropic import DEFAULT_MAX_TOKENS, MessagesReply, messages_body
from rambarde.models.base import (
    AssistantMessage,
    Delta,
    ModelRequest,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from rambarde.models.failure import ProviderError

START = {
    "type": "message_start",
    "message": {
        "usage": {
            "input_tokens": 5,
            "cache_read_input_tokens": 70,
            "cache_creation_input_tokens": 25,
            "output_tokens": 1,
        }
    },
}
STOP = {"type": "message_stop"}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    begin = {"type": "content_block_start", "index": index, "content_block": start}
    parts = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [begin, *parts, {"type": "content_block_stop", "index": index}]


def settled(reason: str, output: int = 9) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason},
        "usage": {"output_tokens": output},
    }


def test_request_merges_neighbours() -> None:
    """Roles alternate, results stand first, errors are marked, broken arguments are repaired."""
    request = ModelRequest(
        "ignored",
        "be brief",
        (
            UserMessage("a"),
            UserMessage("b"),
            AssistantMessage("", (ToolCall("c:1", "grep", "{"), ToolCall("c2", "read", '{"p":1}'))),
            ToolMessage("c:1", "grep", "", is_error=True),
            ToolMessage("c2", "read", "text"),
            UserMessage("go on"),
            AssistantMessage(" "),
        ),
        (ToolSpec("grep", "search", {"type": "object"}),),
    )
    body: Any = messages_body(request, "m")
    assert body["max_tokens"] == DEFAULT_MAX_TOKENS
    assert body["system"][0]["text"] == "be brief"
    assert body["tools"][0]["input_schema"] == {"type": "object"}
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    first, second, third = (turn["content"] for turn in body["messages"])
    assert [part["text"] for part in first] == ["a", "b"]
    assert [(part["id"], part["input"]) for part in second] == [("c_1", {}), ("c2", {"p": 1})]
    assert third[0]["tool_use_id"] == "c_1"
    assert third[0]["is_error"] is True
    assert third[0]["content"]
    assert third[2] == {
        "type": "text",
        "text": "go on",
        "cache_control": {"type": "ephemeral"},
    }


def test_stream(collect: Any) -> None:
    """Thinking, text and calls are collected; all input tokens are counted."""
    reply, deltas = collect(
        MessagesReply,
        START,
        {"type": "ping"},
        *block(
            0,
            {"type": "thinking", "thinking": ""},
            {"type": "thinking_delta", "thinking": "h"},
            {"type": "signature_delta", "signature": "s"},
        ),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi"}),
        *block(
            2,
            {"type": "tool_use", "id": "t1", "name": "grep", "input": {}},
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"p":'},
            {"type": "input_json_delta", "partial_json": "1}"},
        ),
        *block(3, {"type": "tool_use", "id": "t2", "name": "read"}),
        settled("tool_use"),
        STOP,
    )
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("Hi", "h", "tool_calls")
    assert [(c.call_id, c.name, json.loads(c.arguments)) for c in reply.calls] == [
        ("t1", "grep", {"p": 1}),
        ("t2", "read", {}),
    ]
    assert (reply.usage.input_tokens, reply.usage.cached_tokens, reply.usage.output_tokens) == (
        100,
        70,
        9,
    )
    assert Delta("text", "Hi") in deltas
    assert deltas[0] == Delta("alive")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("something_new", "other"),
    ],
)
def test_stop_reasons(reason: str, finish: str, collect: Any) -> None:
    """Each stop reason has its finish reason."""
    reply, _ = collect(
        MessagesReply, START, *block(0, {"type": "text", "text": "x"}), settled(reason)
    )
    assert (reply.text, reply.finish_reason) == ("x", finish)


def test_calls_of_a_cut_reply_are_dropped(collect: Any) -> None:
    """With `max_tokens` no call is handed on."""
    reply, _ = collect(
        MessagesReply,
        *block(0, {"type": "tool_use", "id": "t", "name": "x"}),
        settled("max_tokens"),
    )
    assert reply.calls == ()


def test_a_whole_message_is_understood(collect: Any) -> None:
    """A reply that was not streamed is read as well."""
    reply, _ = collect(
        MessagesReply,
        {
            "type": "message",
            "content": [
                {"type": "text", "text": "x"},
                {"type": "tool_use", "id": "t", "name": "grep", "input": {"p": 1}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "output_tokens": 4},
        },
    )
    assert (reply.text, reply.calls[0].arguments, reply.usage.input_tokens) == ("x", '{"p":1}', 3)


def test_errors_and_cuts(collect: Any) -> None:
    """Overload before the text may be tried again, after it not; no end is a cut."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with pytest.raises(ProviderError) as first:
        collect(MessagesReply, START, error)
    assert (first.value.status, first.value.kind, first.value.tries > 1) == (
        529,
        "overloaded",
        True,
    )
    text = block(0, {"type": "text", "text": "x"})
    with pytest.raises(ProviderError) as later:
        collect(MessagesReply, START, *text, error)
    assert (later.value.kind, later.value.tries) == ("cut", 1)
    with pytest.raises(ProviderError) as cut:
        collect(MessagesReply, START, *text)
    assert cut.value.kind == "cut"


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "message_start", "message": []},
        {"type": "content_block_delta", "index": 99, "delta": {"partial_json": "{"}},
        {"type": "content_block_start", "index": "x", "content_block": None},
        {"type": "future_event"},
        {},
    ],
)
def test_odd_events_are_passed_over(odd: dict[str, Any], collect: Any) -> None:
    """Events of another form than they should have change nothing."""
    reply, _ = collect(MessagesReply, odd, *block(1, {"type": "text", "text": "x"}), STOP)
    assert (reply.text, reply.calls) == ("x", ())
