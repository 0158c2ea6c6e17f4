"""How a provider fails, whether trying again can help, and what to tell the person. Trusted side.

No text made here holds a key, a header or a URL: an endpoint is named by `host:port`, and the
provider's own words are bounded, freed of control characters and of the secrets in use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rambarde.errors import ModelError
from rambarde.models.shapes import as_count, as_map, as_text

PATIENT = 8
"""Tries in all for a provider that says it is busy."""
BRIEF = 3
"""Tries in all for a way that is shut, which is seldom open a second later."""
WORDS = 300
"""Most code points of the provider's own words."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


class ProviderError(ModelError):
    """A ModelError that knows about trying again; only the gate asks it.

    Fields: `tries`: how many tries in all it deserves (1 = never again); `retry_after_s`: how long
    the provider asked to be left alone, by all; `loading`: the model is being loaded, so waiting is
    no retry; `waited_s`: seconds spent waiting before giving up.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        advice: str = "",
        status: int = 0,
        tries: int = 1,
        retry_after_s: float | None = None,
        loading: bool = False,
    ) -> None:
        super().__init__(message, kind=kind, advice=advice, status=status)
        self.tries = tries
        self.retry_after_s = retry_after_s
        self.loading = loading
        self.waited_s = 0.0


def plain_words(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a provider's words fit for a person: one line, at most WORDS code points."""
    for secret in secrets:
        text = text.replace(secret, "[redacted]")
    text = _CONTROL.sub(" ", text).strip()
    return text if len(text) <= WORDS else text[: WORDS - 1] + "…"


def parse_retry_after(headers: Mapping[str, str], wall_at: float) -> float | None:
    """Return the seconds a reply asks to wait; None when it does not, or not legibly.

    Args:
        headers: by lower-case name.
        wall_at: seconds since the epoch, for the form that is a date.

    Source: RFC 9110, section 10.2.3; `retry-after-ms` is OpenAI's.
    """
    milliseconds = headers.get("retry-after-ms", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", milliseconds):
        return int(milliseconds) / 1000
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", value):
        return float(value)
    # Loaded when needed: it brings a mail parser with it, and start-up is measured.
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - wall_at)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def failure_of_status(
    endpoint: str,
    status: int,
    body: Mapping[str, object],
    *,
    retry_after_s: float | None = None,
    secrets: Iterable[str] = (),
) -> ProviderError:
    """Return the failure an HTTP status means.

    Args:
        endpoint: `host:port`.
        status: any but 200.
        body: the reply's JSON, empty when it was none.
        retry_after_s: from `parse_retry_after`.
        secrets: values that must not be repeated.
    """
    error = as_map(body.get("error")) or body
    words = plain_words(as_text(error.get("message")), secrets)
    if as_text(error.get("type")) == "exceed_context_size_error" or "context_length" in as_text(
        error.get("code")
    ):
        return _too_long(endpoint, status, error, words)
    if status in (401, 403):
        # The provider's words are left out: some repeat the key, or a part of it.
        return ProviderError(
            f"{endpoint} refused the key (HTTP {status})",
            kind="refused",
            status=status,
            advice="check the key and that it may use this model",
        )
    said = f"{endpoint} answered HTTP {status}" + (f": {words}" if words else "")
    if status in (408, 425, 429, 502, 503, 504, 529):
        return ProviderError(
            said,
            kind="overloaded",
            status=status,
            advice="wait, or run fewer agents at once",
            tries=PATIENT,
            retry_after_s=retry_after_s,
            loading=status == 503 and words == "Loading model",
        )
    if status >= 500:
        return ProviderError(
            said,
            kind="refused",
            status=status,
            tries=2,
            retry_after_s=retry_after_s,
            advice="look into the engine's log",
        )
    return ProviderError(said, kind="invalid", status=status, advice=_advice(status))


def _advice(status: int) -> str:
    if 300 <= status < 400:
        return "the endpoint has moved: give its new address, redirects are not followed"
    if status == 404:
        return "check the address (it usually ends in /v1) and the model's name"
    return "check the model's name and what the engine supports"


def _too_long(endpoint: str, status: int, error: Mapping[str, object], words: str) -> ProviderError:
    asked, holds = as_count(error.get("n_prompt_tokens")), as_count(error.get("n_ctx"))
    if asked and holds:
        words = f"{asked} tokens asked, {holds} are the most"
    return ProviderError(
        f"the conversation is too long for the model at {endpoint}: {words}",
        kind="invalid",
        status=status,
        advice="start a new session, give smaller briefs, or use a model with a longer context",
    )


_STREAM_ERRORS: Mapping[str, int] = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "unavailable_error": 503,
    "timeout_error": 504,
    "authentication_error": 401,
    "permission_error": 403,
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "not_found_error": 404,
}


def failure_in_stream(endpoint: str, body: Mapping[str, object], *, begun: bool) -> ProviderError:
    """Return the failure an error event means.

    Args:
        endpoint: `host:port`.
        body: the event's JSON, with `error` inside.
        begun: a part of the reply was already told; then it is a cut and never tried again.
    """
    error = as_map(body.get("error")) or {"message": as_text(body.get("error"))}
    status = _STREAM_ERRORS.get(as_text(error.get("type")), 0) or as_count(error.get("code"))
    if not 400 <= status < 600:
        status = 500
    failure = failure_of_status(endpoint, status, {"error": error})
    if not begun:
        return failure
    return ProviderError(
        f"{endpoint} broke off its reply: {failure.message}",
        kind="cut",
        status=status,
        advice=failure.advice,
    )


def cut(endpoint: str) -> ProviderError:
    """Return the failure of a reply that ended without its end."""
    return ProviderError(
        f"{endpoint} closed the connection before the end of its reply",
        kind="cut",
        advice="try again; if it repeats, look into the engine's log",
    )
