"""Read a Markdown file with a YAML head, strictly. Trusted side. No I/O.

Theory of operation. Agent files come from strangers' repositories. The head is read from the C
parser's events by a builder of our own, not by a YAML loader: so there are no tags to construct
objects with, no aliases to multiply, and no key that silently replaces another. Words mean what
YAML 1.2 says: `no` and `on` are texts, a date is a text.

Existing files often hold `description: Use this when: ...`, which is no YAML. Only when a head
does not parse, it is read once more with such plain values of top-level keys taken as text, and
that is told as a warning.

Source: YAML 1.2.2, core schema (§10.3.2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from rambarde.errors import Fault, PolicyError

MAX_HEAD_BYTES = 64 << 10
MAX_FILE_BYTES = 512 << 10
MAX_DEPTH = 8

_FENCE = re.compile(r"---[ \t]*")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}|0x[0-9a-fA-F]{1,15}|0o[0-7]{1,20}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: Mapping[str, object] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_LOOSE = re.compile(r"(?P<key>[A-Za-z][\w-]*):[ \t]+(?P<value>[^\s\"'\[{|>&*!%@`#].*?)[ \t]*")


@dataclass(frozen=True, slots=True)
class Front:
    """A file as read.

    `values` holds texts, numbers, booleans, None, lists and maps; `lines` the line of each
    top-level key, counted in the file from 1; `body` the Markdown after the head.
    """

    path: str
    values: Mapping[str, object]
    lines: Mapping[str, int]
    body: str
    warnings: tuple[Fault, ...]


class _HeadError(Exception):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


def parse_front(data: bytes, path: str) -> Front:
    """Split and read a file; a byte order mark and CRLF are accepted.

    Raises:
        PolicyError: with file and line: too large, not UTF-8, a NUL, no head or one without an
            end, no YAML, or YAML that is not taken (equal keys, anchors, aliases, tags, keys that
            are no text, more than MAX_DEPTH levels).
    """
    text = _decode(data, path)
    lines = text.split("\n")
    if not _FENCE.fullmatch(lines[0]):
        raise _refuse(path, 1, "has no head: the first line must be ---")
    end = next((at for at, line in enumerate(lines[1:], 1) if _FENCE.fullmatch(line)), None)
    if end is None:
        raise _refuse(path, 1, "the head has no end: a line --- is missing")
    head, body = lines[1:end], "\n".join(lines[end + 1 :])
    if len("\n".join(head).encode()) > MAX_HEAD_BYTES:
        raise _refuse(path, 1, f"the head is larger than {MAX_HEAD_BYTES} bytes")
    warnings: tuple[Fault, ...] = ()
    try:
        values, found = _read("\n".join([*head, ""]))
    except _HeadError as first:
        mended, loose = _quote_loose(head)
        if not loose:
            raise _refuse(path, first.line + 1, first.text) from first
        try:
            values, found = _read("\n".join([*mended, ""]))
        except _HeadError as second:
            raise _refuse(path, second.line + 1, second.text) from second
        warnings = tuple(
            Fault(path, line + 1, "the value is no YAML; it was taken as plain text: quote it")
            for line in loose
        )
    return Front(path, values, {k: n + 1 for k, n in found.items()}, body, warnings)


def _decode(data: bytes, path: str) -> str:
    if len(data) > MAX_FILE_BYTES:
        raise _refuse(path, 0, f"is larger than {MAX_FILE_BYTES} bytes")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise _refuse(path, line, "holds a NUL byte")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise _refuse(path, line, "is not UTF-8") from exc


def _refuse(path: str, line: int, text: str) -> PolicyError:
    return PolicyError([Fault(path, line, text)])


def _read(head: str) -> tuple[dict[str, object], dict[str, int]]:
    """Return the top-level map and the line of each of its keys, counted in the head from 1."""
    try:
        events = list(_checked(yaml.parse(head, Loader=yaml.CSafeLoader)))
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        raise _HeadError(mark.line + 1 if mark else 1, f"is no YAML: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise _HeadError(1, f"is no YAML: {exc}") from exc
    builder = _Builder(events)
    return builder.document()


def _checked(events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
    """Pass events on; stop at what is not taken, before anything is built from it."""
    depth = documents = 0
    for event in events:
        line = _line(event)
        if isinstance(event, yaml.AliasEvent):
            raise _HeadError(line, "holds an alias (*name), which is not taken")
        if getattr(event, "anchor", None) is not None:
            raise _HeadError(line, "holds an anchor (&name), which is not taken")
        if getattr(event, "tag", None) is not None:
            raise _HeadError(line, "holds a tag (!name), which is not taken")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _HeadError(line, f"nests deeper than {MAX_DEPTH} levels")
        depth -= isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise _HeadError(line, "holds a second document")
        yield event


class _Builder:
    """Builds values from checked events; depth is bounded, so recursion is."""

    def __init__(self, events: list[yaml.Event]) -> None:
        kept = (yaml.ScalarEvent, yaml.CollectionStartEvent, yaml.CollectionEndEvent)
        self._events = iter([event for event in events if isinstance(event, kept)])

    def document(self) -> tuple[dict[str, object], dict[str, int]]:
        first = next(self._events, None)
        if first is None:
            return {}, {}
        if not isinstance(first, yaml.MappingStartEvent):
            raise _HeadError(_line(first), "is no list of `key: value`")
        lines: dict[str, int] = {}
        return self._map(lines), lines

    def _map(self, lines: dict[str, int]) -> dict[str, object]:
        values: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = _line(event)
            key = _scalar(event) if isinstance(event, yaml.ScalarEvent) else None
            if not isinstance(key, str):
                raise _HeadError(line, "holds a key that is no text: quote it")
            if key in values:
                raise _HeadError(line, f"holds the key {key!r} twice (line {lines[key] + 1})")
            lines[key] = line
            values[key] = self._value(next(self._events))
        return values

    def _value(self, event: yaml.Event) -> object:
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if isinstance(event, yaml.MappingStartEvent):
            return self._map({})
        items: list[object] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event))
        return items


def _line(event: yaml.Event) -> int:
    """Return the event's line in the head, counted from 1."""
    return event.start_mark.line + 1 if event.start_mark else 1


def _scalar(event: yaml.ScalarEvent) -> object:
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _quote_loose(head: list[str]) -> tuple[list[str], list[int]]:
    """Quote plain top-level values that hold `: `; return the head and the lines changed."""
    mended: list[str] = []
    changed: list[int] = []
    for number, line in enumerate(head, start=1):
        loose = _LOOSE.fullmatch(line)
        if loose and ": " in loose["value"] + " ":
            changed.append(number)
            line = f"{loose['key']}: {json.dumps(loose['value'], ensure_ascii=False)}"
        mended.append(line)
    return mended, changed
