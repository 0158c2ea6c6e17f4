"""Values of a provider's JSON taken with the type they should have, or an empty one. Trusted side.

A provider is trusted with the conversation, not with the process: a missing or odd field is an
empty value here and never an AttributeError further on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

MAX_COUNT = 10**9
"""Greatest count believed."""


def as_map(value: object) -> Mapping[str, object]:
    """Return an object as it is, anything else as the empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> Sequence[object]:
    """Return an array as it is, anything else as the empty one."""
    return value if isinstance(value, list) else ()


def as_text(value: object) -> str:
    """Return text as it is; the texts of a list of content blocks joined; else the empty text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(as_text(as_map(block).get("text")) for block in value)
    return ""


def as_count(value: object) -> int:
    """Return a whole number from 0 to MAX_COUNT; 0 for NaN and anything that is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0
    return int(min(max(value, 0), MAX_COUNT))


def parse_object(text: str) -> dict[str, object] | None:
    """Return the JSON object in `text`; None when it is not one."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict) else None
