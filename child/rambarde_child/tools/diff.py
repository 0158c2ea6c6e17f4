"""Bounded unified diffs of bytes. Inside the sandbox. No I/O.

Equal lines at both ends are set aside first, which is most of any edit. What is left is compared
only up to MOST_LINES a side, for that takes up to the square of them; more is shown as replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile

CONTEXT_LINES = 3
MOST_LINES = 1000
_LINE_CHARS = 500

_Change = tuple[str, int, int, int, int]
"""As in difflib: tag, then start and end in the old lines, then in the new ones."""


def count_lines(data: bytes) -> int:
    """Return the lines of a text; a last one without a line end counts."""
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))


def unified_diff(old: bytes, new: bytes, *, most_bytes: int) -> str:
    """Return hunks with three lines of context, without file names; "" when nothing changed.

    Longer than `most_bytes` of UTF-8 it is cut at a line end and says that it was.
    """
    kept: list[str] = []
    left = most_bytes
    for line in _hunks(_lines(old), _lines(new)):
        left -= len(line.encode()) + 1
        if left < 0:
            kept.append(f"[the diff is longer than {most_bytes} bytes; the rest is left out]")
            break
        kept.append(line)
    return "\n".join(kept)


def _lines(data: bytes) -> list[bytes]:
    *ended, last = data.split(b"\n")
    return [line + b"\n" for line in ended] + ([last] if last else [])


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[str]:
    for group in _groups(old, new):
        old_from, old_to = group[0][1], group[-1][2]
        new_from, new_to = group[0][3], group[-1][4]
        yield f"@@ -{_range(old_from, old_to)} +{_range(new_from, new_to)} @@"
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                yield from _marked(" ", old, old_start, old_end)
            else:
                yield from _marked("-", old, old_start, old_end)
                yield from _marked("+", new, new_start, new_end)


def _range(start: int, end: int) -> str:
    # An empty range names the line before it, as diff does.
    return f"{start + (end > start)},{end - start}"


def _marked(mark: str, lines: list[bytes], start: int, end: int) -> Iterator[str]:
    for index in range(start, end):
        line = lines[index]
        shown = line.removesuffix(b"\n").decode("utf-8", "replace").replace("\r", "␍")
        yield mark + shown[:_LINE_CHARS] + ("…" if len(shown) > _LINE_CHARS else "")
        if not line.endswith(b"\n"):
            yield "\\ No newline at end of file"


def _groups(old: list[bytes], new: list[bytes]) -> Iterator[Sequence[_Change]]:
    """Yield runs of changes with their context, in line numbers of the whole texts."""
    head = _equal(zip(old, new, strict=False))
    tail = _equal(zip(reversed(old[head:]), reversed(new[head:]), strict=False))
    start = max(0, head - CONTEXT_LINES)
    after = min(tail, CONTEXT_LINES)
    old_end, new_end = len(old) - tail, len(new) - tail
    if max(old_end, new_end) - head > MOST_LINES:
        yield [
            ("equal", start, head, start, head),
            ("replace", head, old_end, head, new_end),
            ("equal", old_end, old_end + after, new_end, new_end + after),
        ]
        return
    a, b = old[start : old_end + after], new[start : new_end + after]
    for group in SequenceMatcher(None, a, b).get_grouped_opcodes(CONTEXT_LINES):
        yield [(tag, start + i, start + j, start + k, start + m) for tag, i, j, k, m in group]


def _equal(pairs: Iterator[tuple[bytes, bytes]]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
