"""Read JSON with the line of every key. Trusted side. No I/O."""

from __future__ import annotations

import json

from rambarde.errors import Fault
from rambarde.policy.source import MAX_FILE_BYTES, Document, Keys, UnreadableError

_decoder = json.JSONDecoder()


def parse_json(data: bytes, path: str) -> Document:
    """Read a JSON object; a byte order mark is accepted, equal keys are refused.

    Raises:
        UnreadableError: too large, not UTF-8, no JSON, no object, or a key twice.
    """
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableError(Fault(path, 0, f"is larger than {MAX_FILE_BYTES} bytes"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise UnreadableError(Fault(path, line, "is not UTF-8")) from exc
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        raise UnreadableError(Fault(path, exc.lineno, f"is no JSON: {exc.msg}")) from exc
    except (ValueError, RecursionError) as exc:
        raise UnreadableError(Fault(path, 0, f"is no JSON: {exc}")) from exc
    if not isinstance(values, dict):
        raise UnreadableError(Fault(path, 1, "is no object"))
    return Document(path, values, _lines_of(text, path))


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _lines_of(text: str, path: str) -> dict[Keys, int]:
    """Walk text that is known to be JSON; return the line of each key.

    Raises:
        UnreadableError: a key stands twice in one object.
    """
    lines: dict[Keys, int] = {}
    stack: list[str | int] = []
    at = 0
    expects_key = False
    while at < len(text):
        char = text[at]
        if char == '"':
            start = at
            word, at = _decoder.raw_decode(text, at)
            if expects_key:
                stack[-1] = word
                line = text.count("\n", 0, start) + 1
                if tuple(stack) in lines:
                    raise UnreadableError(Fault(path, line, f"holds the key {word!r} twice"))
                lines[tuple(stack)] = line
                expects_key = False
            continue
        if char in "{[":
            stack.append("" if char == "{" else 0)
            expects_key = char == "{"
        elif char in "}]":
            stack.pop()
            expects_key = False
        elif char == ",":
            expects_key = isinstance(stack[-1], str)
            if isinstance(stack[-1], int):
                stack[-1] += 1
        at += 1
    return lines
