"""Which engine: from the words of the person to a ModelClient. Trusted side.

The endpoint and the key are chosen here, from the person's own settings, and nowhere else: no
child, no repository and no tool has a say in where requests go. Nothing here reads the environment
or a file; keys are passed in as values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, urlsplit

from rambarde.clock import Clock
from rambarde.errors import UsageError
from rambarde.models.base import ModelClient
from rambarde.models.gate import Engine, Gate, GatedModel, GateSettings, WaitListener
from rambarde.models.offline import OfflineEngine

if TYPE_CHECKING:
    from rambarde.models.http import HttpBounds

Wire = Literal["openai", "anthropic", "offline"]

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com/v1"
WAYS = (
    "give one of: an endpoint (--engine http://127.0.0.1:8080/v1), "
    "a key (OPENAI_API_KEY or ANTHROPIC_API_KEY, or --engine openai|anthropic with --key-file), "
    "or --engine offline, which is no language model but maps a repository"
)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """A provider: its wire and its base URL, which ends in /v1 or a service's own prefix."""

    wire: Wire
    url: str = ""
    name: str = "offline"
    """`host:port`."""

    @property
    def hosted(self) -> bool:
        """Say whether it is one of the two services that cannot be used without a key."""
        return self.url in (OPENAI_URL, ANTHROPIC_URL)


def parse_engine(text: str) -> EngineChoice:
    """Return what `--engine` names.

    Args:
        text: `http(s)://host[:port]/v1`, `anthropic:URL`, `anthropic`, `openai` or `offline`.

    Raises:
        UsageError: any other form. The URL is not repeated, it may hold a secret.
    """
    text = text.strip()
    if not text:
        raise no_engine()
    if text == "offline":
        return EngineChoice("offline")
    if text == "openai":
        return _choice("openai", OPENAI_URL)
    if text == "anthropic":
        return _choice("anthropic", ANTHROPIC_URL)
    if text.startswith("anthropic:"):
        return _choice("anthropic", text.removeprefix("anthropic:"))
    if text.startswith(("http://", "https://")):
        return _choice("openai", text)
    if text.startswith("local:"):
        raise UsageError(
            "--engine local:PATH.gguf is not in this version",
            advice="serve the file with llama-server and give its address: "
            "--engine http://127.0.0.1:8080/v1",
        )
    word = text.split(":", 1)[0]
    # A key given in the wrong place must not be shown: only a plain word is repeated.
    called = f" '{word}'" if re.fullmatch(r"[A-Za-z]{1,16}", word) else ""
    raise UsageError(f"--engine: there is no such engine{called}", advice=WAYS)


def no_engine() -> UsageError:
    """Return the error for the case that nothing is configured."""
    return UsageError("no engine is configured", advice=WAYS)


def engine_of_keys(*, openai_key: str | None, anthropic_key: str | None) -> EngineChoice:
    """Return the service whose key there is, when the person named no engine.

    Raises:
        UsageError: no key, or both, so that the choice would be a guess.
    """
    if openai_key and anthropic_key:
        raise UsageError(
            "two keys are there and no engine was named",
            advice="give --engine openai or --engine anthropic",
        )
    if openai_key:
        return parse_engine("openai")
    if anthropic_key:
        return parse_engine("anthropic")
    raise no_engine()


def _choice(wire: Wire, text: str) -> EngineChoice:
    try:
        parts = urlsplit(text)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        raise _bad_url("it is not a URL") from None
    _check_url(parts, text)
    host = parts.hostname or ""
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    path = parts.path.rstrip("/")
    if not path:
        # Every engine of either wire has its paths below /v1; a bare host means that.
        path = "/v1"
    return EngineChoice(wire, f"{parts.scheme}://{parts.netloc.lower()}{path}", name)


def _check_url(parts: SplitResult, text: str) -> None:
    if parts.scheme not in ("http", "https"):
        raise _bad_url("it does not begin with http:// or https://")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise _bad_url("it holds a user or a password; give a key instead")
    if "?" in text or "#" in text:
        raise _bad_url("it holds a query or a fragment; give a key with --key-file instead")
    if not re.fullmatch(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", parts.hostname or ""):
        raise _bad_url("its host is not a name or an address")
    if not re.fullmatch(r"[A-Za-z0-9._~/-]*", parts.path) or ".." in parts.path:
        raise _bad_url("its path holds characters that are not allowed here")


def _bad_url(why: str) -> UsageError:
    return UsageError(
        f"--engine: this address cannot be used: {why}",
        advice="write it as http://host:port/v1",
    )


def open_model(
    choice: EngineChoice,
    *,
    key: str | None = None,
    model: str = "",
    gate: GateSettings | None = None,
    bounds: HttpBounds | None = None,
    clock: Clock | None = None,
    on_wait: WaitListener | None = None,
) -> ModelClient:
    """Return the client of an engine, behind its gate. No connection is made yet.

    Args:
        choice: from `parse_engine` or `engine_of_keys`.
        key: the provider's key; None for an engine that wants none.
        model: the name for requests that name no model; empty: the only one the engine has.
        gate: bounds of concurrency and waiting.
        bounds: timeouts and sizes of the HTTP side.
        clock: where time comes from.
        on_wait: told when a request must wait.

    Raises:
        UsageError: the service needs a key and there is none, or the key cannot be one.
    """
    if choice.wire == "offline":
        return OfflineEngine()
    engine = _open_engine(choice, _checked_key(choice, key), model, bounds, clock)
    return GatedModel(engine, Gate(gate, clock=clock), on_wait=on_wait)


def _open_engine(
    choice: EngineChoice, key: str, model: str, bounds: HttpBounds | None, clock: Clock | None
) -> Engine:
    # Loaded here: the command line and the offline engine start without the HTTP side.
    from rambarde.models.anthropic import VERSION, AnthropicModel
    from rambarde.models.http import Endpoint, HttpClient
    from rambarde.models.openai import OpenAiModel

    is_openai = choice.wire == "openai"
    headers = {} if is_openai else {"anthropic-version": VERSION}
    if key:
        headers |= {"Authorization": f"Bearer {key}"} if is_openai else {"x-api-key": key}
    endpoint = Endpoint(choice.url, choice.name, headers, (key,) if key else ())
    http = HttpClient(endpoint, bounds, clock=clock)
    return OpenAiModel(http, model=model) if is_openai else AnthropicModel(http, model=model)


def _checked_key(choice: EngineChoice, key: str | None) -> str:
    key = (key or "").strip()
    if not key and choice.hosted:
        raise UsageError(
            f"{choice.name} needs a key and there is none",
            advice=f"give --key-file, or set {choice.wire.upper()}_API_KEY",
        )
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise UsageError(
            "the key holds white space or characters that are not ASCII",
            advice="look into the key file: it must hold the key alone",
        )
    return key
