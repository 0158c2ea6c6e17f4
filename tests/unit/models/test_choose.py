"""Choosing an engine: the forms of --engine, and what is refused without repeating a secret."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rambarde.errors import Exit, UsageError
from rambarde.models.choose import (
    ANTHROPIC_URL,
    OPENAI_URL,
    EngineChoice,
    engine_of_keys,
    no_engine,
    open_model,
    parse_engine,
)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("offline", EngineChoice("offline")),
        ("openai", EngineChoice("openai", OPENAI_URL, "api.openai.com:443")),
        ("anthropic", EngineChoice("anthropic", ANTHROPIC_URL, "api.anthropic.com:443")),
        ("http://h:1/v1", EngineChoice("openai", "http://h:1/v1", "h:1")),
        ("http://h:1/v1/", EngineChoice("openai", "http://h:1/v1", "h:1")),
        ("http://h:1", EngineChoice("openai", "http://h:1/v1", "h:1")),
        ("https://h/api/v2", EngineChoice("openai", "https://h/api/v2", "h:443")),
        ("http://[::1]:8080/v1", EngineChoice("openai", "http://[::1]:8080/v1", "[::1]:8080")),
        ("anthropic:http://H:1", EngineChoice("anthropic", "http://h:1/v1", "h:1")),
    ],
)
def test_forms(text: str, choice: EngineChoice) -> None:
    """Each form names a wire, a base URL and a place."""
    assert parse_engine(text) == choice


@pytest.mark.parametrize(
    "text",
    [
        "http://user:s3cr3t@h/v1",
        "http://s3cr3t@h/v1",
        "https://h/v1?key=s3cr3t",
        "https://h/v1#s3cr3t",
        "https://h/v1/?",
        "http:///v1",
        "http://h:99999/v1",
        "http://h:x/v1",
        "http://h/v1/../s3cr3t",
        "http://h/v1\r\nX: s3cr3t",
        "http://h s3cr3t/v1",
        "anthropic:s3cr3t",
        "anthropic:file:///s3cr3t",
        "ftp://h/s3cr3t",
        "gpt:s3cr3t",
        "sk-s3cr3t-key-s3cr3t-key-s3cr3t",
        "http://[::1/v1",
    ],
)
def test_refused_without_repeating_it(text: str) -> None:
    """Userinfo, queries and all that is no engine are usage errors that repeat no secret."""
    with pytest.raises(UsageError) as caught:
        parse_engine(text)
    assert "s3cr3t" not in caught.value.message + caught.value.advice
    assert caught.value.advice
    assert caught.value.exit_code == Exit.USAGE


def test_local_files_say_what_to_do() -> None:
    """A GGUF file is told how it can be used."""
    with pytest.raises(UsageError) as caught:
        parse_engine("local:/m.gguf")
    assert "llama-server" in caught.value.advice


def test_nothing_configured_names_the_ways() -> None:
    """Without an engine every way to have one is named."""
    for word in ("http://", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "offline"):
        assert word in no_engine().advice
    with pytest.raises(UsageError):
        parse_engine(" ")


def test_keys_choose_only_when_it_is_no_guess() -> None:
    """One key names its service; two need a word; none is an error."""
    assert engine_of_keys(openai_key="k", anthropic_key=None).url == OPENAI_URL
    assert engine_of_keys(openai_key="", anthropic_key="k").url == ANTHROPIC_URL
    for openai_key, anthropic_key in (("a", "b"), (None, "")):
        with pytest.raises(UsageError):
            engine_of_keys(openai_key=openai_key, anthropic_key=anthropic_key)


@pytest.mark.parametrize("key", [None, "", "two words", "line\nend", "é"])
def test_a_hosted_service_needs_a_key_that_can_be_one(key: str | None) -> None:
    """A missing or impossible key is a usage error that does not repeat it."""
    with pytest.raises(UsageError) as caught:
        open_model(parse_engine("openai"), key=key)
    assert not key or key not in str(caught.value)


def test_httpx_is_not_loaded_before_it_is_used() -> None:
    """Choosing, and the offline engine, load no HTTP library."""
    code = (
        "import sys; from rambarde.models.choose import *;"
        "open_model(parse_engine('offline'));"
        "assert not {'httpx', 'httpcore', 'certifi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
