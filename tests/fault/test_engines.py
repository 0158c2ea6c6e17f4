"""Engines that fail: a real server on loopback does what no provider does on demand."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import anyio
import pytest

from rambarde.errors import ModelError
from rambarde.models.base import Delta, ModelClient, ModelReply, ModelRequest, ToolSpec, UserMessage
from rambarde.models.choose import open_model, parse_engine
from rambarde.models.gate import GateSettings
from rambarde.models.http import HttpBounds
from rambarde.models.sse import SseBounds
from support.scripted import Answer, Call, ScriptedEngine

KEY = "sk-test-0123456789abcdef"
REQUEST = ModelRequest(
    "m", "be brief", (UserMessage("hello"),), (ToolSpec("bash", "run", {"type": "object"}),)
)
QUICK = GateSettings(base_s=0.01, cap_s=0.02, spread_s=0.05, loading_s=3.0)
WIRES = ("", "anthropic:")

pytestmark = pytest.mark.anyio


@dataclass
class Retries:
    left: int = 100

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


def client(
    url: str,
    *,
    bounds: HttpBounds | None = None,
    gate: GateSettings = QUICK,
    key: str | None = KEY,
    model: str = "",
) -> ModelClient:
    bounds = bounds or HttpBounds(connect_s=2, stall_s=5)
    return open_model(parse_engine(url), key=key, gate=gate, bounds=bounds, model=model)


async def ask(
    model: ModelClient, request: ModelRequest = REQUEST, retries: Retries | None = None
) -> tuple[ModelReply, list[Delta]]:
    deltas: list[Delta] = []
    reply = await model.complete(request, on_delta=deltas.append, retries=retries or Retries())
    return reply, deltas


async def fail(
    url: str,
    *,
    bounds: HttpBounds | None = None,
    retries: Retries | None = None,
) -> tuple[ModelError, list[Delta]]:
    """Return the error of a request that must fail; no text of it may hold the key."""
    model = client(url, bounds=bounds)
    deltas: list[Delta] = []
    try:
        with pytest.raises(ModelError) as caught:
            await model.complete(REQUEST, on_delta=deltas.append, retries=retries or Retries())
    finally:
        await model.aclose()
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.advice
    assert KEY not in shown
    assert caught.value.advice
    return caught.value, deltas


@pytest.mark.parametrize("wire", WIRES)
async def test_a_whole_conversation(wire: str, engine: ScriptedEngine) -> None:
    """Text, reasoning, calls and counts arrive over both wires, in pieces of any size."""
    for size in (1, 7, 1000):
        engine.calls(
            Call("bash", {"command": "écho 'ü'"}),
            Call("bash", {"command": "true"}),
            text="naïve ✓",
            reasoning="hm",
            chunk_chars=size,
            cached_tokens=4,
            pings=2,
        )
    model = client(wire + engine.url)
    for _ in range(3):
        reply, deltas = await ask(model)
        assert (reply.text, reply.reasoning) == ("naïve ✓", "hm")
        assert [call.name for call in reply.calls] == ["bash", "bash"]
        assert "écho" in reply.calls[0].arguments
        assert (reply.usage.input_tokens, reply.usage.cached_tokens) == (10, 4)
        assert "".join(d.text for d in deltas if d.kind == "text") == "naïve ✓"
        assert any(d.kind == "alive" for d in deltas)
    await model.aclose()
    seen = engine.requests[0]
    assert seen.system == "be brief"
    assert seen.tool_names == ("bash",)
    assert seen.headers["connection"] == "close"
    assert KEY in (seen.headers.get("authorization", "") + seen.headers.get("x-api-key", ""))
    assert KEY not in str(seen.body)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_connection_cut_anywhere_is_a_cut(wire: str, engine: ScriptedEngine) -> None:
    """A reply cut after any byte is an error of kind cut, keeps what came, is not asked again."""
    for cut_at in (1, 60, 400, 700):
        engine.say("x" * 400, cut_after_bytes=cut_at, chunk_chars=40)
        error, _ = await fail(wire + engine.url)
        assert error.kind == "cut"
        assert engine.address in error.message
    assert len(engine.requests) == 4


async def test_what_came_before_a_cut_was_told(engine: ScriptedEngine) -> None:
    """The listener has the text that streamed before the cut."""
    engine.say("x" * 400, cut_after_bytes=900, chunk_chars=10)
    error, deltas = await fail(engine.url)
    assert error.kind == "cut"
    assert deltas[0] == Delta("text", "x" * 10)


@pytest.mark.parametrize("wire", WIRES)
async def test_an_end_without_the_end_is_a_cut(wire: str, engine: ScriptedEngine) -> None:
    """A stream that closes properly but without its last event is a cut."""
    engine.answers.append(Answer(raw=b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'))
    error, _ = await fail(wire + engine.url)
    assert error.kind == "cut"


@pytest.mark.parametrize("wire", WIRES)
async def test_missing_done_and_usage_are_forgiven(wire: str, engine: ScriptedEngine) -> None:
    """A stream without its closing event, or without counts, is whole; counts are estimated."""
    engine.say("x" * 40, done=False, usage=False)
    model = client(wire + engine.url)
    reply, _ = await ask(model)
    await model.aclose()
    assert reply.text == "x" * 40
    assert reply.usage.estimated


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stall_is_told_apart(wire: str, engine: ScriptedEngine) -> None:
    """Silence past the bound ends the request in words, before or amid the reply."""
    bounds = HttpBounds(connect_s=1, stall_s=0.2)
    engine.say("x", delay_s=5)
    engine.say("x" * 400, stall_after_bytes=300)
    for _ in range(2):
        error, _ = await fail(wire + engine.url, bounds=bounds)
        assert error.kind == "cut"
        assert "0.2 s" in error.message
    assert len(engine.requests) == 2


async def test_cancelling_closes_the_connection(engine: ScriptedEngine) -> None:
    """A caller that goes away takes its connection with it, so the engine can stop."""
    engine.say("x" * 400, stall_after_bytes=200)
    model = client(engine.url)
    with anyio.move_on_after(0.3):
        await ask(model)
    assert await anyio.to_thread.run_sync(engine.gone.wait, 2)
    await model.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(flood_bytes=8 << 20),
        Answer(raw=b"x" * (1 << 20)),
        Answer(raw=b"data: x\n" * (1 << 17)),
        Answer(raw=b": ping\n\n" * (1 << 18)),
    ],
    ids=["one long line", "no line end", "one long event", "endless comments"],
)
async def test_floods_are_cut_off(answer: Answer, engine: ScriptedEngine) -> None:
    """Lines, events and streams past their bounds end the request."""
    sizes = SseBounds(line_bytes=1 << 16, event_bytes=1 << 17, total_bytes=1 << 20)
    engine.answers.append(answer)
    error, _ = await fail(engine.url, bounds=HttpBounds(sizes=sizes))
    assert error.kind == "invalid"
    assert "out of bounds" in error.message


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "raw", [b"data: {\n\n", b"data: not json\n\n", b"data: []\n\n", b"data: \xff\xfe\n\n"]
)
async def test_malformed_streams(wire: str, raw: bytes, engine: ScriptedEngine) -> None:
    """Events that are no JSON object are an error in words."""
    engine.answers.append(Answer(raw=raw))
    error, _ = await fail(wire + engine.url)
    assert error.kind == "invalid"
    assert len(engine.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_an_html_page_is_no_engine(wire: str, engine: ScriptedEngine) -> None:
    """A wrong address is told as such."""
    error, _ = await fail(wire + engine.url.replace("/v1", "/wrong"))
    assert error.kind == "invalid"
    assert "/v1" in error.advice


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_refusals_are_final(status: int, engine: ScriptedEngine) -> None:
    """What will not get better is asked once; the key the server repeats is not shown."""
    message = f"bad key {KEY}"
    engine.fail(status, error={"error": {"message": message, "type": "x"}})
    error, _ = await fail(engine.url)
    assert error.status == status
    assert len(engine.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
async def test_passing_failures_are_tried_again(status: int, engine: ScriptedEngine) -> None:
    """A busy engine is asked again, paid from the tree's budget."""
    engine.fail(status)
    engine.say("ok")
    model = client(engine.url)
    budget = Retries(5)
    reply, _ = await ask(model, retries=budget)
    await model.aclose()
    assert (reply.text, budget.left) == ("ok", 4)


async def test_a_retry_after_holds_for_every_agent(engine: ScriptedEngine) -> None:
    """Twenty agents after one 429 with Retry-After 1: none asks before, then all, spread."""
    engine.fail(429, retry_after="1")
    engine.always = Answer(text="ok", delay_s=0.01)
    gate = GateSettings(max_concurrent=4, spread_s=0.5)
    model = client(engine.url, gate=gate)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, model)
        await anyio.sleep(0.15)
        for _ in range(19):
            group.start_soon(ask, model)
    await model.aclose()
    times = [seen.at_s for seen in engine.requests]
    assert len(times) == 21
    assert times[1] - times[0] >= 1.0
    assert times[-1] - times[1] > 0.1
    assert engine.most_active <= 4


async def test_the_budget_of_retries_ends_a_storm(engine: ScriptedEngine) -> None:
    """When the tree's retries are spent no further request is made."""
    engine.always = Answer(status=503)
    error, _ = await fail(engine.url, retries=Retries(2))
    assert error.kind == "budget"
    assert len(engine.requests) == 3


@pytest.mark.parametrize("wire", WIRES)
async def test_overload_inside_a_stream(wire: str, engine: ScriptedEngine) -> None:
    """An error event before any text is tried again; after some text it is final."""
    overloaded = {"type": "overloaded_error", "message": "Overloaded"}
    engine.say("", stream_error=overloaded)
    engine.say("half", stream_error=overloaded)
    error, deltas = await fail(wire + engine.url)
    assert error.kind == "cut"
    assert "Overloaded" in error.message
    assert Delta("text", "half") in deltas
    assert len(engine.requests) == 2


async def test_too_long_a_conversation(engine: ScriptedEngine) -> None:
    """llama.cpp's two numbers are shown."""
    inner = {"type": "exceed_context_size_error", "message": "…", "n_prompt_tokens": 9, "n_ctx": 8}
    engine.fail(400, error={"error": inner})
    error, _ = await fail(engine.url)
    assert error.kind == "invalid"
    assert "9 tokens asked, 8 are the most" in error.message


async def test_a_loading_model_is_waited_for(engine: ScriptedEngine) -> None:
    """503 while the model loads costs no retry."""
    engine.fail(503, error={"error": {"message": "Loading model", "type": "unavailable_error"}})
    engine.say("ok")
    model = client(engine.url)
    reply, _ = await ask(model, retries=Retries(0))
    await model.aclose()
    assert reply.text == "ok"
    assert reply.waited_s >= 0.9


@contextmanager
def raw_server(reply: bytes) -> Iterator[str]:
    """Serve the same bytes to every connection, whatever is asked."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(2)
                connection.recv(65536)
                connection.sendall(reply)
                # A close with bytes unread would take the reply away from the client again.
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"", "cut"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cut"),
        (b"HTTP/1.1 301 M\r\nLocation: http://evil/?k=" + KEY.encode() + b"\r\n\r\n", "invalid"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b", "invalid"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, "cut"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>proxy login</html>\n\n", "cut"),
    ],
    ids=["nothing", "not HTTP", "redirect", "compressed", "endless headers", "a page"],
)
async def test_what_is_no_engine_at_all(reply: bytes, kind: str) -> None:
    """Any other server is an error in words; a redirect is not followed nor shown."""
    with raw_server(reply) as url:
        error, _ = await fail(url)
        assert error.kind == kind
        assert "evil" not in str(error)


async def test_nobody_there() -> None:
    """A closed port is unreachable, soon, with what to do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error, _ = await fail(f"http://127.0.0.1:{port}/v1")
    assert error.kind == "unreachable"
    assert f"127.0.0.1:{port}" in error.message


async def test_a_name_that_does_not_resolve() -> None:
    """An unknown host is unreachable as well."""
    error, _ = await fail("http://no-such-host.invalid/v1")
    assert error.kind == "unreachable"


async def test_a_reply_that_is_not_streamed_is_read(engine: ScriptedEngine) -> None:
    """A server that ignores `stream` is understood."""
    body = b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with raw_server(head % len(body) + body) as url:
        model = client(url)
        reply, _ = await ask(model)
        await model.aclose()
    assert reply.text == "hi"


@pytest.mark.parametrize("wire", WIRES)
async def test_the_only_model_is_taken(wire: str, engine: ScriptedEngine) -> None:
    """Without a name the engine's only model is asked."""
    engine.say("ok")
    model = client(wire + engine.url)
    await ask(model, ModelRequest("", "", (UserMessage("hi"),)))
    await model.aclose()
    assert engine.requests[0].body["model"] == "scripted"


async def test_the_environment_has_no_say(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxy settings of the environment are not followed."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    engine.say("ok")
    model = client(engine.url)
    reply, _ = await ask(model)
    await model.aclose()
    assert reply.text == "ok"


async def test_odd_text_is_sent(engine: ScriptedEngine) -> None:
    """Half a surrogate pair and control characters in the history do not stop a request."""
    engine.say("ok")
    model = client(engine.url)
    await ask(model, ModelRequest("m", "", (UserMessage("a\ud800b\x00c"),)))
    await model.aclose()
    assert engine.requests[0].last == "a?b\x00c"


LLAMA = {"default_generation_settings": {}, "chat_template_caps": {"supports_tools": True}}


async def test_llama_is_asked_for_progress(engine: ScriptedEngine) -> None:
    """llama.cpp's server is known by /props, asked once, and then asked for progress."""
    engine.props = LLAMA
    engine.always = Answer(text="ok")
    model = client(engine.url)
    await ask(model)
    await ask(model)
    await model.aclose()
    assert engine.looked_up == ["/props"]
    assert [seen.body["return_progress"] for seen in engine.requests] == [True, True]


async def test_other_engines_are_not_asked_for_progress(engine: ScriptedEngine) -> None:
    """An engine without /props is looked up once and gets no field it may not know."""
    engine.always = Answer(text="ok")
    model = client(engine.url)
    await ask(model)
    await ask(model)
    await model.aclose()
    assert engine.looked_up == ["/props"]
    assert all("return_progress" not in seen.body for seen in engine.requests)


async def test_a_model_without_tools_is_an_error(engine: ScriptedEngine) -> None:
    """A model that would silently get no tools is refused for an agent that has some."""
    engine.props = {**LLAMA, "chat_template_caps": {"supports_tools": False}}
    error, _ = await fail(engine.url)
    assert error.kind == "invalid"
    assert "tools" in error.message
    assert not engine.requests


async def test_a_models_name_is_no_address(engine: ScriptedEngine) -> None:
    """A persona's model name goes out as text and changes neither endpoint nor key."""
    engine.say("ok")
    model = client(engine.url)
    await ask(model, ModelRequest("http://127.0.0.1:9/v1", "", (UserMessage("hi"),)))
    await model.aclose()
    assert engine.requests[0].body["model"] == "http://127.0.0.1:9/v1"
