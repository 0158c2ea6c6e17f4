"""The way to a provider: POST a request, get events. Trusted side; the only module with httpx.

One client per provider. Every call has a connection of its own: llama.cpp's server closes the
connection after a stream although it promises to keep it, and a pooled client that reuses it in
that instant fails. No redirect is followed, no proxy or certificate setting is read from the
environment, no content coding is accepted (a small reply could otherwise unfold into gigabytes),
and every size is bounded.

httpx is imported when the first real client is made: the command line must start without it.
Errors are raised outside the `except` blocks, so that no httpx exception, which holds the request
with its headers, is chained to ours.

Source: www.python-httpx.org/advanced/timeouts, /exceptions (0.28).
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rambarde.clock import Clock, HostClock
from rambarde.models.failure import BRIEF, ProviderError, cut, failure_of_status, parse_retry_after
from rambarde.models.shapes import as_map, parse_object
from rambarde.models.sse import SseBounds, SseError, SseEvent, SseParser

if TYPE_CHECKING:
    import httpx

EventTaker = Callable[[SseEvent], bool]
"""Takes one event; True when the reply is whole and nothing more is to be read."""

SMALL_REPLY_BYTES = 64 << 10
"""Most bytes read of an error or of a listing."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a provider is. `url` has no user, query or trailing slash; `headers` hold the key."""

    url: str
    name: str
    headers: Mapping[str, str]
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Name the place only: reprs end up in logs."""
        return f"Endpoint({self.name})"


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """Timeouts in seconds (`stall_s`: the longest silence) and sizes of a stream."""

    connect_s: float = 10.0
    stall_s: float = 300.0
    sizes: SseBounds = field(default_factory=SseBounds)


class HttpClient:
    """One provider's HTTP client; safe to use from many tasks at once."""

    def __init__(
        self, endpoint: Endpoint, bounds: HttpBounds | None = None, *, clock: Clock | None = None
    ) -> None:
        """Make the client; no connection is made yet."""
        self.endpoint = endpoint
        self._bounds = bounds or HttpBounds()
        self._clock = clock or HostClock()
        self._httpx = _import_httpx()
        self._client: httpx.AsyncClient = self._httpx.AsyncClient(
            verify=self._tls(),
            trust_env=False,
            follow_redirects=False,
            headers={
                "Accept-Encoding": "identity",
                "Connection": "close",
                "User-Agent": "rambarde",
                **endpoint.headers,
            },
            limits=self._httpx.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=self._httpx.Timeout(
                connect=self._bounds.connect_s,
                read=self._bounds.stall_s,
                write=self._bounds.stall_s,
                pool=None,
            ),
        )

    def _tls(self) -> ssl.SSLContext:
        if not self.endpoint.url.startswith("https:"):
            # Never used, and one that trusts nobody costs no 30 ms of reading certificates.
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context: ssl.SSLContext = self._httpx.create_ssl_context(trust_env=False)
        context.load_default_certs()
        return context

    async def stream(self, path: str, body: Mapping[str, object], take: EventTaker) -> None:
        """POST `body` and hand each event of the reply to `take`, until it returns True.

        A reply that is one JSON object although a stream was asked is handed on as one event.
        Returns without a word when the reply ends before `take` is satisfied: the caller knows
        whether what came is whole.

        Raises:
            ProviderError: the endpoint cannot be reached, refuses, breaks off, or floods. Its
                `tries` is 1 once the first byte of the reply's body has come.
        """
        came = _Came()
        failure: ProviderError | None = None
        try:
            await self._stream(path, _encode(body), take, came)
        except ProviderError as exc:
            failure = exc
        except SseError as exc:
            failure = ProviderError(
                f"the reply of {self.endpoint.name} is out of bounds: {exc}",
                kind="invalid",
                advice="look into the engine's log",
            )
        except (self._httpx.HTTPError, self._httpx.StreamError) as exc:
            failure = self._failure(exc, came.body, self._bounds.stall_s)
        except OSError:
            failure = self._unreachable()
        if failure is not None:
            raise failure

    async def _stream(self, path: str, body: bytes, take: EventTaker, came: _Came) -> None:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        async with self._client.stream(
            "POST", self.endpoint.url + path, content=body, headers=headers
        ) as response:
            if response.status_code != 200:
                raise await self._refused(response)
            self._check_coding(response)
            if "json" in response.headers.get("content-type", ""):
                limit = self._bounds.sizes.event_bytes
                whole = await _read(response, limit + 1)
                if len(whole) > limit:
                    raise SseError(f"it is longer than {limit} bytes")
                take(SseEvent("", whole.decode("utf-8", "replace")))
                return
            parser = SseParser(self._bounds.sizes)
            async for chunk in response.aiter_raw():
                came.body = True
                for event in parser.feed(chunk):
                    if take(event):
                        return

    async def look_up(self, url: str, *, timeout_s: float) -> Mapping[str, object]:
        """GET a small JSON object beside the endpoint; the empty one when there is none.

        Raises:
            ProviderError: the endpoint cannot be reached within `timeout_s`.
        """
        failure: ProviderError | None = None
        try:
            async with self._client.stream("GET", url, timeout=timeout_s) as response:
                if response.status_code != 200:
                    return {}
                self._check_coding(response)
                text = (await _read(response, SMALL_REPLY_BYTES)).decode("utf-8", "replace")
                return parse_object(text) or {}
        except (self._httpx.HTTPError, self._httpx.StreamError) as exc:
            failure = self._failure(exc, False, timeout_s)
        except OSError:
            failure = self._unreachable()
        raise failure

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _refused(self, response: httpx.Response) -> ProviderError:
        text = (await _read(response, SMALL_REPLY_BYTES)).decode("utf-8", "replace")
        headers = {name.lower(): value for name, value in response.headers.items()}
        return failure_of_status(
            self.endpoint.name,
            response.status_code,
            as_map(parse_object(text)),
            retry_after_s=parse_retry_after(headers, self._clock.wall_at()),
            secrets=self.endpoint.secrets,
        )

    def _check_coding(self, response: httpx.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ProviderError(
                f"{self.endpoint.name} sent a compressed reply that was not asked for",
                kind="invalid",
                advice="switch compression off in the engine or in the proxy before it",
            )

    def _failure(self, exc: Exception, came_body: bool, silent_s: float) -> ProviderError:
        """Return ours for one of httpx's; its own text is not used, it may name the URL."""
        name = self.endpoint.name
        if isinstance(exc, self._httpx.ConnectError | self._httpx.ConnectTimeout):
            return self._unreachable()
        if isinstance(exc, self._httpx.TimeoutException):
            return ProviderError(
                f"{name} sent nothing for {silent_s:g} s",
                kind="cut",
                advice="look whether the engine hangs; a slow one needs a longer stall limit",
            )
        failure = cut(name)
        if not came_body:
            failure.tries = BRIEF
        return failure

    def _unreachable(self) -> ProviderError:
        return ProviderError(
            f"cannot connect to {self.endpoint.name}",
            kind="unreachable",
            advice="check the address, and that the engine is running and can be reached from here",
            tries=BRIEF,
        )


@dataclass(slots=True)
class _Came:
    """Whether a byte of the body came: from then on nothing may be sent again."""

    body: bool = False


def _import_httpx() -> ModuleType:
    import httpx

    return httpx


def _encode(body: Mapping[str, object]) -> bytes:
    # Half a surrogate pair is legal in Python text and in no UTF-8; "?" keeps the request whole.
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


async def _read(response: Any, limit_bytes: int) -> bytes:
    """Read at most `limit_bytes` of a body as it was sent."""
    parts: list[bytes] = []
    size = 0
    async for chunk in response.aiter_raw():
        parts.append(chunk)
        size += len(chunk)
        if size >= limit_bytes:
            break
    return b"".join(parts)[:limit_bytes]
