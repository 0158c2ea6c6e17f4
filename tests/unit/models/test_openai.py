"""Chat completions: what is sent, and what is understood of the many ways servers reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
from rambarde.models.openai import ChatReply, chat_body
from rambarde.models.sse import COMMENT, SseEvent


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    name = more.pop("name", None)
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return chunk({"tool_calls": [{"function": function, **more}]})


END = chunk({}, "tool_calls")


def test_request_names_everything() -> None:
    """System, history, tools and usage are sent in the wire's form."""
    request = ModelRequest(
        "ignored",
        "be brief",
        (
            UserMessage("hi"),
            AssistantMessage("", (ToolCall("c1", "grep", '{"pattern": "x"}'),)),
            ToolMessage("c1", "grep", "none"),
            AssistantMessage("done"),
        ),
        (ToolSpec("grep", "search", {"type": "object"}),),
        temperature=0.5,
        max_tokens=7,
    )
    body = chat_body(request, "m", progress=True)
    assert body["model"] == "m"
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["return_progress"] is True
    assert (body["temperature"], body["max_tokens"]) == (0.5, 7)
    messages: Any = body["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[2]["content"] is None
    assert messages[2]["tool_calls"][0]["function"]["arguments"] == '{"pattern": "x"}'
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "none"}
    assert "tools" not in chat_body(ModelRequest("m", "", ()), "m")


@pytest.mark.parametrize("broken", ["{", "", "[1]", '"x"', "nul", '{"a":1}}', "[" * 100_000])
def test_broken_arguments_of_the_past_are_repaired(broken: str) -> None:
    """Half a call in the history goes out as `{}`."""
    history = (AssistantMessage("", (ToolCall("c", "grep", broken),)),)
    messages: Any = chat_body(ModelRequest("m", "", history), "m")["messages"]
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_text_reasoning_and_usage(collect: Any) -> None:
    """Text and both reasoning fields are told as they come; counts are the provider's."""
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    reply, deltas = collect(
        ChatReply,
        chunk({"role": "assistant", "content": None}),
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning": "m"}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}, "stop"),
        {"choices": [], "usage": usage},
        "[DONE]",
    )
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("Hello", "hmm", "stop")
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (
        9,
        3,
        4,
    )
    assert not reply.usage.estimated
    assert deltas == [
        Delta("reasoning", "hm"),
        Delta("reasoning", "m"),
        Delta("text", "Hel"),
        Delta("text", "lo"),
    ]


FORMS = {
    "by index, head once": [
        call("", index=0, id="a", name="grep"),
        call('{"p":', index=0),
        call("1}", index=0),
        call("", index=1, id="b", name="read"),
        call('{"q":2}', index=1),
    ],
    "interleaved": [
        call("", index=0, id="a", name="grep"),
        call("", index=1, id="b", name="read"),
        call('{"p":', index=0),
        call('{"q":', index=1),
        call("1}", index=0),
        call("2}", index=1),
    ],
    "everything repeated": [
        call('{"p":', index=0, id="a", name="grep"),
        call("1}", index=0, id="a", name="grep"),
        call('{"q":2}', index=1, id="b", name="read"),
    ],
    "no index": [
        call("", id="a", name="grep"),
        call('{"p":1}'),
        call('{"q":', id="b", name="read"),
        call("2}"),
    ],
    "index always 0": [
        call('{"p":1}', index=0, id="a", name="grep"),
        call("", index=0, id="b", name="read"),
        call('{"q":2}', index=0),
    ],
    "a new id in each piece": [
        call('{"p":', index=0, id="a", name="grep"),
        call("1}", index=0, id="a2"),
        call('{"q":2}', index=1, id="b", name="read"),
    ],
    "the name in pieces": [
        call("", index=0, id="a", name="gr"),
        call("", index=0, name="ep"),
        call('{"p":1}', index=0),
        call('{"q":2}', index=1, id="b", name="read"),
    ],
    "arguments as objects": [
        call({"p": 1}, index=0, id="a", name="grep"),
        call({"q": 2}, index=1, id="b", name="read"),
    ],
    "one message": [
        {
            "choices": [
                {
                    "message": {
                        "tool_calls": [
                            {"id": "a", "function": {"name": "grep", "arguments": '{"p":1}'}},
                            {"id": "b", "function": {"name": "read", "arguments": '{"q":2}'}},
                        ]
                    },
                }
            ]
        }
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_calls_in_pieces(form: str, collect: Any) -> None:
    """Two calls are told apart however a server cuts them."""
    reply, _ = collect(ChatReply, *FORMS[form], END, "[DONE]")
    assert [(c.call_id, c.name, json.loads(c.arguments)) for c in reply.calls] == [
        ("a", "grep", {"p": 1}),
        ("b", "read", {"q": 2}),
    ]
    assert reply.finish_reason == "tool_calls"


def test_missing_and_repeated_ids_are_made_unique(collect: Any) -> None:
    """Each call gets an id of its own; no arguments mean an empty object."""
    reply, _ = collect(
        ChatReply,
        call("", index=0, name="grep"),
        call("{}", index=1, id="x", name="grep"),
        call("{}", index=2, id="x", name="grep"),
        call('{"a":1}', name="last"),
        call('{"a":2}', name="last"),
        END,
    )
    assert len({c.call_id for c in reply.calls}) == 5
    assert reply.calls[0].arguments == "{}"


def test_calls_of_a_cut_reply_are_dropped(collect: Any) -> None:
    """With `length` no call is handed on: any may be a half."""
    reply, _ = collect(ChatReply, call("{", index=0, id="a", name="grep"), chunk({}, "length"))
    assert (reply.calls, reply.finish_reason) == ((), "length")


def test_stop_with_calls_is_a_call(collect: Any) -> None:
    """A server that says `stop` after calls means the calls."""
    reply, _ = collect(ChatReply, call("{}", index=0, id="a", name="grep"), chunk({}, "stop"))
    assert reply.finish_reason == "tool_calls"


def test_without_usage_it_is_estimated(collect: Any) -> None:
    """Counts that did not come are estimated and marked so."""
    reply, _ = collect(ChatReply, chunk({"content": "x" * 40}, "stop"))
    assert reply.usage.estimated
    assert reply.usage.output_tokens == 10
    assert reply.usage.input_tokens > 0


def test_missing_done_is_forgiven_a_missing_end_is_not(collect: Any) -> None:
    """A finish reason or `[DONE]` ends a reply; neither is a cut."""
    assert collect(ChatReply, chunk({"content": "x"}, "stop"))[0].text == "x"
    assert collect(ChatReply, chunk({"content": "x"}), "[DONE]")[0].text == "x"
    with pytest.raises(ProviderError, match="before the end") as caught:
        collect(ChatReply, chunk({"content": "x"}))
    assert caught.value.kind == "cut"


def test_progress_and_comments_show_life() -> None:
    """llama.cpp's progress and SSE comments become `alive`."""
    deltas: list[Delta] = []
    reply = ChatReply("host:1", deltas.append)
    progress = {"choices": [], "prompt_progress": {"total": 9, "processed": 3}, "timings": {}}
    assert not reply.take(SseEvent("", json.dumps(progress)))
    assert not reply.take(SseEvent(COMMENT, ""))
    assert deltas == [Delta("alive"), Delta("alive")]


def test_error_in_stream(collect: Any) -> None:
    """An error before the reply may be tried again; one inside it is a cut."""
    error = {"error": {"message": "busy", "type": "overloaded_error"}}
    with pytest.raises(ProviderError) as first:
        collect(ChatReply, error)
    assert (first.value.kind, first.value.tries > 1) == ("overloaded", True)
    with pytest.raises(ProviderError, match="broke off") as later:
        collect(ChatReply, chunk({"content": "x"}), error)
    assert (later.value.kind, later.value.tries) == ("cut", 1)


@pytest.mark.parametrize("junk", ["", "{", "ping", "[]", "[" * 100_000, '{"a":1}{'])
def test_junk_is_an_error(junk: str, collect: Any) -> None:
    """An event that is not a JSON object is said to be none."""
    with pytest.raises(ProviderError, match="not a JSON object"):
        collect(ChatReply, junk)


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": None},
        {"choices": [None, 3]},
        {"choices": [{"delta": {"content": 5, "tool_calls": [None, {"function": []}]}}]},
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
        {"usage": {"prompt_tokens": "many", "completion_tokens": True}},
        {"choices": [{"delta": {"content": [{"type": "text", "text": ""}]}}]},
    ],
)
def test_odd_fields_are_passed_over(odd: dict[str, Any], collect: Any) -> None:
    """Fields of another type than they should be change nothing."""
    reply, _ = collect(ChatReply, odd, chunk({"content": "x"}, "stop"))
    assert reply.text == "x"
    assert all(not call.name for call in reply.calls)
