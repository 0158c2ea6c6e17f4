"""Find policy files and read TOML with the line of every key. Trusted side.

tomllib tells no position of what it read, and a fault without a line sends a person searching. A
second, forgiving scan finds the lines; it decides nothing about values.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rambarde.errors import Fault

Keys = tuple[str | int, ...]

MAX_FILE_BYTES = 1 << 20

MAX_DOTS = 64
"""Between two `=` of a line. tomllib takes quadratic time for dotted keys: 8 000 parts, 1 s."""

_AT_LINE = re.compile(r"^(?P<text>.*?) \(at line (?P<line>\d+), column \d+\)$", re.DOTALL)
_HEADER = re.compile(r"^\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*[^=\s]+)*)\s*=""")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(?:\.|$)""")


@dataclass(frozen=True, slots=True)
class Document:
    """A file as read: `values`, and the line of each key path (lists add an index)."""

    path: str
    values: Mapping[str, object]
    lines: Mapping[Keys, int]

    def line(self, keys: Keys) -> int:
        """Return the line of the key, or of the nearest table around it; 0 when none is known."""
        while keys:
            if keys in self.lines:
                return self.lines[keys]
            keys = keys[:-1]
        return 0

    def fault(self, keys: Keys, text: str) -> Fault:
        """Return a fault at that key."""
        return Fault(self.path, self.line(keys), text)


class UnreadableError(Exception):
    """A file that is not TOML at all; holds the one fault that can be told."""

    def __init__(self, fault: Fault) -> None:
        """Keep the fault; the caller adds it to those of other files."""
        super().__init__(str(fault))
        self.fault = fault


def shipped_folder() -> str:
    """Return the folder of the policies that belong to this program.

    In a wheel they are inside the package; in a source tree they stand beside `supervisor/`. Never
    the current directory: that may be the workspace.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "_policies")
    if os.path.isdir(inside):
        return inside
    return os.path.join(os.path.dirname(os.path.dirname(package)), "policies")


def read_toml(folder: str, name: str) -> Document:
    """Read one file of a folder; faults name it by `name`.

    Raises:
        UnreadableError: missing, larger than MAX_FILE_BYTES, not UTF-8 or not TOML.
    """
    try:
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise UnreadableError(Fault(name, 0, f"cannot be read: {exc.strerror}")) from exc
    return parse_toml(data, name)


def parse_toml(data: bytes, path: str) -> Document:
    """Read TOML from bytes; a byte order mark and CRLF are accepted.

    Raises:
        UnreadableError: larger than MAX_FILE_BYTES, not UTF-8, not TOML, or a key with more than
            MAX_DOTS dots, with the line.
    """
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableError(Fault(path, 0, f"is larger than {MAX_FILE_BYTES} bytes"))
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise UnreadableError(Fault(path, line, "is not UTF-8")) from exc
    _refuse_long_keys(text, path)
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        found = _AT_LINE.match(str(exc))
        line = int(found["line"]) if found else text.count("\n") + 1
        why = found["text"] if found else "ends too early or nests too deep"
        raise UnreadableError(Fault(path, line, f"is not TOML: {why}")) from exc
    lines: dict[Keys, int] = {}
    for keys, line in _lines_of(text):
        lines.setdefault(keys, line)
    return Document(path, values, lines)


def _refuse_long_keys(text: str, path: str) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") <= MAX_DOTS or line.lstrip().startswith("#"):
            continue
        if any(part.count(".") > MAX_DOTS for part in line.split("=")):
            raise UnreadableError(Fault(path, number, f"holds more than {MAX_DOTS} dots in a key"))


def _lines_of(text: str) -> Iterator[tuple[Keys, int]]:
    """Yield the path and line of each table and key that starts a line."""
    table: Keys = ()
    counts: dict[Keys, int] = {}
    for number, line in _logical_lines(text):
        if header := _HEADER.match(line):
            table = _inside(_parts(header[2]), counts)
            if header[1] == "[[":
                index = counts.get(table, -1) + 1
                counts[table] = index
                yield table, number
                table = (*table, index)
            yield table, number
        elif key := _KEY.match(line):
            path = (*table, *_parts(key[1]))
            for length in range(len(table) + 1, len(path) + 1):
                yield path[:length], number


def _inside(keys: Keys, counts: Mapping[Keys, int]) -> Keys:
    """Return the path with the newest index after each list of tables above the last key."""
    path: Keys = ()
    for key in keys[:-1]:
        path = (*path, key)
        if path in counts:
            path = (*path, counts[path])
    return (*path, keys[-1])


def _parts(dotted: str) -> Keys:
    return tuple(next(g for g in m.groups() if g is not None) for m in _PART.finditer(dotted))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines that begin a statement: none inside a long string or a bracket."""
    closing = ""
    depth = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not closing and not depth:
            yield number, line
        header = not closing and not depth and _HEADER.match(line) is not None
        if not header:
            closing, depth = _after_line(line, closing, depth)


_TOKEN = re.compile(r"""\"{3}|'{3}|"(?:\\.|[^"\\])*"|'[^']*'|\#.*|[\[\]{}]""")


def _after_line(line: str, closing: str, depth: int) -> tuple[str, int]:
    """Return the quote that closes an open long string, and the open brackets, after a line."""
    at = 0
    while at < len(line):
        if closing:
            end = line.find(closing, at)
            if end < 0:
                break
            closing, at = "", end + 3
            continue
        match = _TOKEN.search(line, at)
        if match is None:
            break
        at = match.end()
        if match[0] in ('"""', "'''"):
            closing = match[0]
        else:
            depth += (match[0] in "[{") - (match[0] in "]}")
    return closing, depth
