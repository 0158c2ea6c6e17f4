"""Show numbered lines of a text file. Inside the sandbox.

The file is streamed once, whatever its size: one pass shows the lines asked for, counts all of
them and hashes the whole, so that what is told to the supervisor is what was seen. A pass that
takes longer than BUSY_S ends early and then claims no hash.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256

from rambarde_child import ask
from rambarde_child.outcome import Outcome, ToolError, done
from rambarde_child.tools import paths
from rambarde_child.tools.paths import Place
from rambarde_wire import tools

BUSY_S = 5.0
_CHUNK_BYTES = 256 << 10
_PROBE_BYTES = 8 << 10
_NOTES_BYTES = 400
"""Room for the last line, about the file."""
_BOM = b"\xef\xbb\xbf"
_DEFAULT_LINES = tools.Read("x").limit


def perform(arguments: tools.Read, place: Place) -> Outcome:
    """Return the lines asked for, then how many there are and where to go on.

    Raises:
        ToolError: `binary` (a NUL in the first 8 KiB), `past_end`, or what opening refuses.
    """
    names = paths.locate(place, paths.parse_path(arguments.path))
    paths.check_names(names)
    shown = paths.show_names(names)
    limits = place.limits
    # The struct's own default stands for "not said".
    lines = limits.read_lines if arguments.limit == _DEFAULT_LINES else arguments.limit
    last = arguments.offset + min(lines, limits.read_max_lines) - 1
    window = _Window(arguments.offset, last, line_chars=limits.line_chars)
    with (
        paths.opened(paths.open_folder(place, names[:-1])) as folder,
        paths.opened(paths.open_regular(folder, names[-1], shown)) as fd,
    ):
        whole = _stream(fd, window, shown)
    if arguments.offset > max(window.total, 1):
        known = "" if whole else " in the part that could be read in time"
        text = f"{shown} has {window.total} lines{known}; line {arguments.offset} is past its end"
        raise ToolError("past_end", text)
    if whole:
        ask.tell_read(place.pipe, place.call_id, place.canonical(names), window.whole.hexdigest())
    most, fingerprint = limits.result_bytes, window.fingerprint(whole)
    return done(window.text(whole, most), most, fingerprint=fingerprint)


def _stream(fd: int, window: _Window, shown: str) -> bool:
    """Feed the file to the window; return whether its end was reached in time."""
    give_up_at = time.monotonic() + BUSY_S
    while chunk := os.read(fd, _CHUNK_BYTES):
        if not window.size_bytes and b"\0" in chunk[:_PROBE_BYTES]:
            size = os.fstat(fd).st_size
            raise ToolError("binary", f"{shown} is a binary file of {size} bytes; read shows text")
        window.take(chunk)
        if time.monotonic() > give_up_at:
            return False
    return True


class _Window:
    """The lines `first` to `last` of a stream of bytes, with counts and hashes of all of it."""

    def __init__(self, first: int, last: int, *, line_chars: int) -> None:
        self._first = first
        self._last = last
        self._line_chars = line_chars
        # Enough bytes that the cut at `line_chars` falls before the end of what is kept.
        self._keep_bytes = 4 * (line_chars + 1)
        self._rows: dict[int, bytearray] = {}
        self._lengths: dict[int, int] = {}
        self._line = 1
        self._ends_open = False
        self._marked = False
        self._seen = sha256()
        self.whole = sha256()
        self.size_bytes = 0

    @property
    def total(self) -> int:
        """Lines so far; a last one without a line end counts."""
        return self._line if self._ends_open else self._line - 1

    def take(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self.whole.update(chunk)
        self.size_bytes += len(chunk)
        self._ends_open = not chunk.endswith(b"\n")
        breaks = chunk.count(b"\n")
        if self._line + breaks < self._first or self._line > self._last:
            self._line += breaks
            return
        self._split(chunk)

    def _split(self, chunk: bytes) -> None:
        for index, piece in enumerate(chunk.split(b"\n")):
            if index:
                self._line += 1
                self._seen.update(b"\n")
            if self._first <= self._line <= self._last and piece:
                row = self._rows.setdefault(self._line, bytearray())
                row += piece[: max(0, self._keep_bytes - len(row))]
                self._lengths[self._line] = self._lengths.get(self._line, 0) + len(piece)
                self._seen.update(piece)

    def fingerprint(self, whole: bool) -> str:
        """Return the hash of the result before lines were cut: all bytes of the window."""
        self._seen.update(f"{self._first} {self._last} {self.total} {whole}".encode())
        return self._seen.hexdigest()

    def text(self, whole: bool, most_bytes: int) -> str:
        """Return the numbered lines and a last line in parentheses about the file.

        Lines that would not fit in `most_bytes` are left for the next offset, not cut off.
        """
        if not self.size_bytes:
            return "(the file is empty)"
        end = min(self._last, self.total)
        left = most_bytes - _NOTES_BYTES
        shown: list[str] = []
        for line in range(self._first, end + 1):
            row = f"{line:>6}\t{self._show(line)}"
            left -= len(row.encode()) + 1
            if left < 0 and shown:
                end = line - 1
                break
            shown.append(row)
        return "\n".join([*shown, f"({'; '.join(self._notes(end, whole))})"])

    def _show(self, line: int) -> str:
        row = bytes(self._rows.get(line, b""))
        length = self._lengths.get(line, 0)
        if length == len(row):
            row = row.removesuffix(b"\r")
        if line == 1:
            row = row.removeprefix(_BOM)
        # "replace" puts one U+FFFD for each invalid sequence, as the Unicode standard advises.
        text = row.decode("utf-8", "replace")[: self._line_chars + 1]
        self._marked = self._marked or ("\ufffd" in text and b"\xef\xbf\xbd" not in row)
        if len(text) > self._line_chars:
            return f"{text[: self._line_chars]}…[cut: the line has {length} bytes]"
        return text

    def _notes(self, end: int, whole: bool) -> list[str]:
        of = str(self.total) if whole else f"more than {self.total}, too many to count in time"
        notes = [f"lines {self._first} to {end} of {of}"]
        if end < self.total or not whole:
            notes.append(f"next offset {end + 1}")
        if any(row.endswith(b"\r") for row in self._rows.values()):
            notes.append("line ends are CRLF")
        if self._rows.get(1, b"").startswith(_BOM):
            notes.append("starts with a byte order mark")
        if self._marked:
            notes.append("bytes that are not UTF-8 are shown as \N{REPLACEMENT CHARACTER}")
        if whole and self._ends_open and end == self.total:
            notes.append("no newline at the end")
        return notes
