r"""A text whose CRLF line ends are folded to LF for finding, not for writing. Inside the sandbox.

Models see and write `\n` for every line end. Offsets found in the folded text are led back to the
raw bytes, and each line end of a replacement is written as the one it stands for: where its lines
match those of the old text, as there; else as the nearest one replaced; else as most are in the
file. No I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import takewhile

_CRLF, _LF = b"\r\n", b"\n"


class FoldedText:
    """The bytes of one file. Offsets are of the folded text."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._folded = raw.replace(_CRLF, _LF)
        # Where in the folded text a line end is that was CRLF, ascending.
        self._crlf: list[int] = []
        at = raw.find(_CRLF)
        while at >= 0:
            self._crlf.append(at - len(self._crlf))
            at = raw.find(_CRLF, at + 2)
        self._mostly_crlf = 2 * len(self._crlf) > self._folded.count(_LF)

    def count(self, needle: bytes) -> int:
        """Return how often the text occurs; one that overlaps itself counts as two."""
        needle = needle.replace(_CRLF, _LF)
        found = self._folded.count(needle)
        first = self._folded.find(needle)
        return 2 if found == 1 and self._folded.find(needle, first + 1) >= 0 else found

    def spots(self, needle: bytes, *, most: int) -> list[int]:
        """Return offsets of the first `most` places that do not overlap."""
        needle = needle.replace(_CRLF, _LF)
        found: list[int] = []
        at = self._folded.find(needle)
        while at >= 0 and len(found) < most:
            found.append(at)
            at = self._folded.find(needle, at + len(needle))
        return found

    def line(self, offset: int) -> int:
        """Return the number of the line, counted from 1."""
        return self._folded.count(_LF, 0, offset) + 1

    def replaced(self, spots: Sequence[int], needle: bytes, replacement: bytes) -> bytes:
        """Return the raw bytes with the needle replaced at these offsets."""
        length = len(needle.replace(_CRLF, _LF))
        pieces, done = [], 0
        for spot in spots:
            pieces += [self._raw[done : self._at(spot)], self._spell(spot, needle, replacement)]
            done = self._at(spot + length)
        return b"".join([*pieces, self._raw[done:]])

    def _at(self, offset: int) -> int:
        return offset + bisect_left(self._crlf, offset)

    def _spell(self, spot: int, needle: bytes, replacement: bytes) -> bytes:
        if not self._crlf and _CRLF not in needle:
            # Then a CRLF in the replacement is meant.
            return replacement
        old = needle.replace(_CRLF, _LF).split(_LF)
        new = replacement.replace(_CRLF, _LF).split(_LF)
        ends = self._ends(spot, old)
        head, tail = (
            _equal(zip(old, new, strict=False)),
            _equal(zip(old[::-1], new[::-1], strict=False)),
        )
        spelled = new[:1]
        for index, line in enumerate(new[1:]):
            after = len(new) - 1 - index
            if not ends:
                crlf = self._mostly_crlf
            elif index >= head and after <= min(tail, len(ends)):
                crlf = ends[-after]
            else:
                crlf = ends[min(index, len(ends) - 1)]
            spelled += [_CRLF if crlf else _LF, line]
        return b"".join(spelled)

    def _ends(self, spot: int, lines: Sequence[bytes]) -> list[bool]:
        """Return for each line end of a match whether it is CRLF."""
        ends = []
        for line in lines[:-1]:
            spot += len(line)
            index = bisect_left(self._crlf, spot)
            ends.append(index < len(self._crlf) and self._crlf[index] == spot)
            spot += 1
        return ends


def _equal(pairs: Iterable[tuple[bytes, bytes]]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
