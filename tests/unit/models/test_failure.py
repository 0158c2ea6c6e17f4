"""Failures: each status has its kind, its patience and its advice, and no text holds a secret."""

from __future__ import annotations

import pytest

from rambarde.models.failure import (
    WORDS,
    failure_of_status,
    parse_retry_after,
    plain_words,
)

DATE = "Tue, 01 Dec 2026 00:00:30 GMT"
AT = 1796083200.0
"""Tue, 01 Dec 2026 00:00:00 GMT."""


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "5"}, 5.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": DATE}, 30.0),
        ({"retry-after": "Mon, 30 Nov 2026 00:00:00 GMT"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "Tue, 99 Dec 2026 00:00:00 GMT"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds and dates are read; anything else is no wish at all."""
    assert parse_retry_after(headers, AT) == seconds


@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (301, "invalid", False),
        (400, "invalid", False),
        (401, "refused", False),
        (403, "refused", False),
        (404, "invalid", False),
        (429, "overloaded", True),
        (500, "refused", True),
        (503, "overloaded", True),
        (529, "overloaded", True),
    ],
)
def test_statuses(status: int, kind: str, again: bool) -> None:
    """Each status has its kind, whether trying again may help, and an advice."""
    failure = failure_of_status("host:1", status, {"error": {"message": "words"}})
    assert (failure.kind, failure.tries > 1, failure.status) == (kind, again, status)
    assert "host:1" in failure.message
    assert failure.advice


def test_too_long_names_both_numbers() -> None:
    """A prompt past the context is told with what was asked and what fits."""
    error = {
        "type": "exceed_context_size_error",
        "message": "request (9030 tokens) exceeds",
        "n_prompt_tokens": 9030,
        "n_ctx": 8192,
    }
    failure = failure_of_status("host:1", 400, {"error": error})
    assert failure.kind == "invalid"
    assert "9030" in failure.message
    assert "8192" in failure.message


def test_loading_is_told_apart() -> None:
    """llama.cpp's 503 while it loads is a wait, not a failure."""
    body = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    assert failure_of_status("host:1", 503, body).loading
    assert not failure_of_status("host:1", 503, {}).loading


def test_words_are_made_plain() -> None:
    """Control characters, secrets and lengths are taken out of a provider's words."""
    text = "bad\x1b[31m key\n sk-secret \u202e" + "x" * 1000
    plain = plain_words(text, ["sk-secret"])
    assert "sk-secret" not in plain
    assert "\x1b" not in plain
    assert "\u202e" not in plain
    assert len(plain) == WORDS


def test_a_refused_key_is_never_repeated() -> None:
    """Of a 401 the provider's words are left out: some hold a part of the key."""
    body = {"error": {"message": "Incorrect API key provided: sk-abcd****wxyz"}}
    assert "sk-" not in failure_of_status("host:1", 401, body).message


@pytest.mark.parametrize("body", [{}, {"error": "text"}, {"error": [1]}, {"message": 3}])
def test_odd_bodies(body: dict[str, object]) -> None:
    """A body of any form gives a failure."""
    assert failure_of_status("host:1", 418, body).kind == "invalid"
