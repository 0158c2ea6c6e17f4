"""The sentences told to models and people, by stable code and by language. Trusted side.

They live in messages/<locale>.toml: one key per code, each value one sentence or a list of them
with `{placeholders}`. Of a list the first is taken whose placeholders are all given, so that one
code can be told with more or less at hand. English holds every code; a code another language does
not have is told in English.

A value never brings placeholders of its own, nor control characters, and is bounded in length.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache

from rambarde.errors import InternalError

LOCALES = ("en", "fr")
VALUE_CHARS = 2000
"""Most code points of one value; a longer one is cut and marked by `…`."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def text(code: str, /, locale: str = "en", **values: object) -> str:
    """Return the sentence of a code with its values filled in.

    Args:
        code: a key of messages/en.toml.
        locale: one of LOCALES; any other is told in English.
        values: what the placeholders stand for; more than are used may be given.

    Raises:
        InternalError: there is no such code, or each of its sentences lacks a value.
    """
    sentences = messages(locale).get(code) or messages("en").get(code)
    if sentences is None:
        raise InternalError(f"there is no text for the code {code!r}", advice="Report this.")
    for sentence in sentences:
        if placeholders(sentence) <= values.keys():
            return _PLACEHOLDER.sub(lambda match: _shown(values[match[1]]), sentence)
    raise InternalError(
        f"the text {code!r} needs other values than {', '.join(sorted(values)) or 'none'}",
        advice="Report this.",
    )


def placeholders(sentence: str) -> frozenset[str]:
    """Return the names in braces."""
    return frozenset(_PLACEHOLDER.findall(sentence))


@lru_cache
def messages(locale: str) -> Mapping[str, tuple[str, ...]]:
    """Return every code of a language with its sentences; empty for a language there is not."""
    if locale not in LOCALES:
        return {}
    path = os.path.join(os.path.dirname(__file__), "messages", f"{locale}.toml")
    with open(path, "rb") as file:
        table = tomllib.load(file)
    return {
        code: (value,) if isinstance(value, str) else tuple(map(str, value))
        for code, value in table.items()
    }


def _shown(value: object) -> str:
    raw = f"{value:g}" if isinstance(value, float) else str(value)
    shown = _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", raw[: VALUE_CHARS + 1])
    return shown if len(raw) <= VALUE_CHARS else shown[:VALUE_CHARS] + "…"
