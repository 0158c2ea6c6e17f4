"""Chat completions, as OpenAI, llama.cpp, vLLM, Ollama and others stream them. Trusted side.

`chat_body` and `ChatReply` are pure; `OpenAiModel` joins them to HTTP. A local engine is looked at
once (`/props`): llama.cpp's server is then asked for progress, without which it neither shows life
during a long prompt nor notices that we went away, and a model that cannot be told tools is an
error instead of an agent that silently has none.

Source: platform.openai.com/docs/api-reference/chat; llama.cpp tools/server/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rambarde.models.base import (
    AssistantMessage,
    Delta,
    DeltaListener,
    FinishReason,
    Message,
    ModelReply,
    ModelRequest,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from rambarde.models.calls import CallPieces
from rambarde.models.estimate import estimate_request, estimate_tokens
from rambarde.models.failure import ProviderError, cut, failure_in_stream
from rambarde.models.http import HttpClient
from rambarde.models.listing import only_model
from rambarde.models.shapes import (
    as_count,
    as_list,
    as_map,
    as_text,
    parse_object,
)
from rambarde.models.sse import COMMENT, SseEvent

LOOK_UP_S = 3.0
_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


# ── the request ──────────────────────────────────────────────────────────────────────────────


def chat_body(
    request: ModelRequest, model: str, *, progress: bool = False, limit_key: str = "max_tokens"
) -> dict[str, object]:
    """Return the JSON of a streamed request.

    Args:
        request: what to ask; its `model` is not used.
        model: the name to send.
        progress: ask llama.cpp's server for signs of life during the prompt.
        limit_key: what the service calls the most tokens of a reply.
    """
    messages: list[dict[str, object]] = []
    if request.system:
        messages.append({"role": "system", "content": request.system})
    messages.extend(_message(message) for message in request.messages)
    body: dict[str, object] = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.max_tokens is not None:
        body[limit_key] = request.max_tokens
    if progress:
        body["return_progress"] = True
    return body


def _message(message: Message) -> dict[str, object]:
    match message:
        case UserMessage():
            return {"role": "user", "content": message.text}
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
        case AssistantMessage(calls=()):
            return {"role": "assistant", "content": message.text}
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": _sent_arguments(call.arguments)},
        }
        for call in message.calls
    ]
    return {"role": "assistant", "content": message.text or None, "tool_calls": calls}


def _sent_arguments(arguments: str) -> str:
    # Whole ones go out byte for byte: a prompt that changes is a prompt evaluated again.
    return arguments if parse_object(arguments) is not None else "{}"


def _tool(tool: ToolSpec) -> dict[str, object]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.schema),
    }
    return {"type": "function", "function": function}


# ── the reply ────────────────────────────────────────────────────────────────────────────────


class ChatReply:
    """Collects the events of one reply and tells the listener what comes."""

    def __init__(self, endpoint: str, on_delta: DeltaListener) -> None:
        """`endpoint` is `host:port`, for errors."""
        self._endpoint = endpoint
        self._on_delta = on_delta
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = CallPieces()
        self._finish = ""
        self._usage: Usage | None = None
        self._done = False

    def take(self, event: SseEvent) -> bool:
        """Take one event; True when the reply is whole.

        Raises:
            ProviderError: the event is no JSON object, or an error.
        """
        if event.name == COMMENT:
            self._on_delta(Delta("alive"))
            return False
        if event.data.strip() == "[DONE]":
            self._done = True
            return True
        chunk = parse_object(event.data)
        if chunk is None:
            raise ProviderError(
                f"{self._endpoint} sent an event that is not a JSON object",
                kind="invalid",
                advice="check that the address is one of an OpenAI-compatible engine (…/v1)",
            )
        if chunk.get("error"):
            raise failure_in_stream(self._endpoint, chunk, begun=self._begun())
        self._take_usage(chunk)
        for choice in map(as_map, as_list(chunk.get("choices"))):
            if as_count(choice.get("index")) == 0:
                self._take_choice(choice)
        if "prompt_progress" in chunk:
            self._on_delta(Delta("alive"))
        return bool(self._finish and self._usage)

    def _begun(self) -> bool:
        return bool(self._text or self._reasoning or len(self._calls))

    def _take_choice(self, choice: Mapping[str, object]) -> None:
        # A server that was asked to stream and does not sends `message` in place of `delta`.
        delta = as_map(choice.get("delta")) or as_map(choice.get("message"))
        thought = as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning"))
        if thought:
            self._reasoning.append(thought)
            self._on_delta(Delta("reasoning", thought))
        for part in (as_text(delta.get("content")), as_text(delta.get("refusal"))):
            if part:
                self._text.append(part)
                self._on_delta(Delta("text", part))
        for piece in map(as_map, as_list(delta.get("tool_calls"))):
            self._on_delta(Delta("call", self._calls.add(piece)))
        self._finish = as_text(choice.get("finish_reason")) or self._finish

    def _take_usage(self, chunk: Mapping[str, object]) -> None:
        usage = as_map(chunk.get("usage"))
        if not usage:
            return
        details = as_map(usage.get("prompt_tokens_details"))
        cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
        self._usage = Usage(
            input_tokens=as_count(usage.get("prompt_tokens")),
            output_tokens=as_count(usage.get("completion_tokens")),
            cached_tokens=as_count(cached),
        )

    def settle(self, request: ModelRequest) -> ModelReply:
        """Return the whole reply to `request`, from which counts that did not come are estimated.

        Raises:
            ProviderError: the stream ended before the reply did.
        """
        if not (self._finish or self._done):
            raise cut(self._endpoint)
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        calls = self._calls.finish()
        finish = _FINISH.get(self._finish, "other") if self._finish else "stop"
        written = [call.name + call.arguments for call in calls]
        if finish == "length":
            # The last one may be a half, and nothing tells which one that is.
            calls = ()
        elif calls and finish in ("stop", "other"):
            finish = "tool_calls"
        elif finish == "tool_calls" and not calls:
            finish = "stop"
        usage = self._usage or Usage(
            estimate_request(request), estimate_tokens(text, reasoning, *written), estimated=True
        )
        return ModelReply(text, calls, reasoning, finish, usage)


# ── the client ───────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Engine:
    """What `/props` says of a local engine."""

    is_llama: bool = False
    has_tools: bool = True


class OpenAiModel:
    """A provider that speaks chat completions."""

    def __init__(self, http: HttpClient, *, model: str = "") -> None:
        """`model` is used for requests that name none; empty: the only one the engine has."""
        self.name = http.endpoint.name
        self._http = http
        self._model = model
        self._engine: _Engine | None = None

    async def attempt(self, request: ModelRequest, on_delta: DeltaListener) -> ModelReply:
        """Stream one reply, trying once.

        Raises:
            ProviderError: its `tries` and `retry_after_s` tell the gate whether to try again.
        """
        engine = self._engine or await self._look()
        if request.tools and not engine.has_tools:
            raise ProviderError(
                f"the model at {self.name} cannot be told tools (its chat template knows none)",
                kind="invalid",
                advice="serve a model whose chat template supports tools",
            )
        model = request.model or self._model
        if not model:
            model = self._model = await only_model(self._http)
        official = self.name == "api.openai.com:443"
        body = chat_body(
            request,
            model,
            progress=engine.is_llama,
            limit_key="max_completion_tokens" if official else "max_tokens",
        )
        reply = ChatReply(self.name, on_delta)
        await self._http.stream("/chat/completions", body, reply.take)
        self._engine = engine
        return reply.settle(request)

    async def _look(self) -> _Engine:
        """Ask a local engine what it is. Nothing is asked of a service on the internet."""
        url = self._http.endpoint.url
        if url.startswith("https:"):
            self._engine = _Engine()
            return self._engine
        try:
            url = url.removesuffix("/v1") + "/props"
            props = await self._http.look_up(url, timeout_s=LOOK_UP_S)
        except ProviderError as exc:
            if exc.kind == "unreachable":
                raise
            # It is there, but has no time for this, or no such page.
            props = {}
        if "default_generation_settings" not in props:
            # Kept only after a reply: an engine that is still loading says nothing either.
            return _Engine()
        can = as_map(props.get("chat_template_caps")).get("supports_tools")
        self._engine = _Engine(is_llama=True, has_tools=can is not False)
        return self._engine

    async def aclose(self) -> None:
        """Close connections."""
        await self._http.aclose()
