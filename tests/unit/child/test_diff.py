"""Diffs: right where they are whole, bounded where they are not."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde_child.tools.diff import unified_diff

_LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\r\n"]), max_size=30)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"", b"a\n", "@@ -0,0 +1,1 @@\n+a"),
        (b"a\n", b"", "@@ -1,1 +0,0 @@\n-a"),
        (b"a", b"a\n", "@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a"),
        (b"a\r\n", b"a\n", "@@ -1,1 +1,1 @@\n-a␍\n+a"),
        (b"a\n", b"a\n", ""),
        (b"", b"", ""),
    ],
)
def test_diff_is(old: bytes, new: bytes, expected: str) -> None:
    """Ranges, missing newlines and line ends are shown as diff(1) does, CR visibly."""
    assert expected == unified_diff(old, new, most_bytes=1 << 16)


def _apply(old: list[str], diff: str) -> list[str]:
    """Apply a diff by the letter, checking every line that it says is there."""
    out: list[str] = []
    at = 0
    for line in diff.split("\n") if diff else []:
        if header := re.match(r"@@ -(\d+),(\d+) ", line):
            start = int(header[1]) - (header[2] != "0")
            out += old[at:start]
            at = start
        elif line[0] == "+":
            out.append(line[1:])
        else:
            assert old[at] == line[1:]
            at += 1
            out += [line[1:]] if line[0] == " " else []
    return out + old[at:]


@given(old=_LINES, new=_LINES)
def test_diff_leads_from_old_to_new(old: list[bytes], new: list[bytes]) -> None:
    """Applied to the old lines it gives the new ones."""
    diff = unified_diff(b"".join(old), b"".join(new), most_bytes=1 << 16)
    show = [[line.decode()[:-1].replace("\r", "␍") for line in lines] for lines in (old, new)]
    assert show[1] == _apply(show[0], diff)


def test_large_diff_is_cut_and_quick() -> None:
    """Two texts of 60 000 lines with nothing in common take no square of time or bytes."""
    old = b"".join(b"old %d\n" % n for n in range(60_000))
    new = b"".join(b"new %d\n" % n for n in range(60_000))
    started = time.monotonic()
    diff = unified_diff(old, new, most_bytes=1 << 10)
    assert time.monotonic() - started < 10
    assert len(diff) < 1200
    assert diff.endswith("[the diff is longer than 1024 bytes; the rest is left out]")


def test_small_change_in_large_text_is_shown_whole() -> None:
    """Equal lines around a change do not count against the comparison."""
    lines = [b"line %d\n" % n for n in range(50_000)]
    changed = [*lines[:25_000], b"new\n", *lines[25_001:]]
    diff = unified_diff(b"".join(lines), b"".join(changed), most_bytes=1 << 14)
    assert diff.startswith("@@ -24998,7 +24998,7 @@\n line 24997\n")
    assert "\n-line 25000\n+new\n" in diff
