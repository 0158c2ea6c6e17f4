r"""Output of commands: kept within bounds, and made harmless to show. Trusted side. No I/O.

Two jobs, kept apart:

Keeping. `Capture` takes a stream of any length and keeps its head and its tail, raw, in memory that
does not grow. What lies between is counted to the byte and dropped. Secrets are replaced when the
stream has ended: the tail is kept with HOLD_BYTES of what came before it, and the head is cut where
a secret might have begun, so a secret across an edge is not shown in part. Running the redactor
over everything would let a flood of output spend the supervisor's time.

Showing. Text of a child must never drive a terminal: escape sequences are removed, a carriage
return is applied as a terminal would, every other control character, direction mark or invisible
tag is written as `\x07` or `\u202e`, bytes that are not UTF-8 become U+FFFD. A control string that
never ends is not allowed to hide what follows it: only its introducer is removed.

Source: ECMA-48 5th ed. §5.3 to §5.6 and §8.3 (control sequences and strings), Unicode TR36 §3.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

HOLD_BYTES = 16 << 10
"""Kept before the tail so that a secret across its edge is still recognised."""
LINE_CHARS = 16 << 10
"""A line longer than this is shown in pieces while it streams."""
_STRING_CHARS = 4096

_STRINGS = r"\x90\x98\x9d\x9e\x9f"
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"
    rf"|(?:\x1b[\]PX^_]|[{_STRINGS}])[^\x07\x1b\x9c\n{_STRINGS}]{{0,{_STRING_CHARS}}}+"
    r"(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*+[0-~]"
)
_OPEN = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+$"
    rf"|(?:\x1b[\]PX^_]|[{_STRINGS}])[^\x07\x1b\x9c\n{_STRINGS}]{{0,{_STRING_CHARS}}}+\x1b?$"
    r"|\x1b[ -/]*+$"
)
_INTRODUCER = re.compile(rf"[\x1b\x9b{_STRINGS}]")
_UNSEEN = (
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff\ud800-\udfff"
)
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_UNSEEN}]")
_CONTROL_OR_BREAK = re.compile(rf"[\x00-\x08\x0a-\x1f\x7f-\x9f{_UNSEEN}]")
_NAMED = {"\n": "\\n", "\r": "\\r"}


def visible(text: str) -> str:
    r"""Return one line of text with everything that drives a terminal written out.

    Nothing is removed: ESC is shown as `\x1b`, a line break as `\n`, a byte of a file name that
    was not UTF-8 as `\xe9`. Tabs stay. For names, titles, arguments, errors.
    """
    return _CONTROL_OR_BREAK.sub(_written_out, text)


def clean(text: str) -> str:
    """Return text of several lines as it is shown: sequences removed, the rest made visible."""
    if _CONTROL.search(text) is None:
        return text
    text = _SEQUENCE.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(_overwritten(line) for line in text.split("\n"))
    return _CONTROL.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    if code < 0x100:
        return _NAMED.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _overwritten(line: str) -> str:
    """Apply carriage returns: what was written last covers what stood there before."""
    shown: list[str] = []
    covered = 0
    for piece in reversed(line.split("\r")):
        if len(piece) > covered:
            shown.append(piece[covered:])
            covered = len(piece)
    return "".join(shown)


class Cleaner:
    """`clean` over bytes that arrive in pieces: whole lines go out as they become certain.

    The pieces' borders do not show: the parts put together are what `clean` makes of the whole, as
    long as no line is longer than LINE_CHARS.
    """

    def __init__(self) -> None:
        """Start with nothing held."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[str] = []
        self._held_chars = 0

    def feed(self, data: bytes) -> str:
        """Take a piece; return what can be shown by now, which may be nothing."""
        text = self._decoder.decode(data)
        if "\n" in text:
            done, rest = text.rsplit("\n", 1)
            whole = "".join((*self._held, done, "\n"))
            self._hold(rest)
            return clean(whole)
        self._held.append(text)
        self._held_chars += len(text)
        return self._let_go() if self._held_chars > LINE_CHARS else ""

    def finish(self) -> str:
        """Return the rest."""
        whole = "".join((*self._held, self._decoder.decode(b"", final=True)))
        self._hold("")
        return clean(whole)

    def _hold(self, text: str) -> None:
        self._held = [text]
        self._held_chars = len(text)

    def _let_go(self) -> str:
        """Show a long line so far, but for a sequence that may not be whole yet."""
        whole = "".join(self._held)
        cut = _open_at(whole)
        self._hold(whole[cut:])
        return clean(whole[:cut])


def _open_at(text: str) -> int:
    """Return where a sequence begins that the next piece may complete; the length if none."""
    longest = _STRING_CHARS + 4
    begun = [match.start() for match in _INTRODUCER.finditer(text, max(0, len(text) - longest))]
    for at in begun[-2:]:
        if _OPEN.match(text, at):
            return at
    return len(text) - text.endswith("\r")


class StreamFilter(Protocol):
    """What redacts a stream of bytes: nothing uncertain goes out before it is certain."""

    def feed(self, piece: bytes, /) -> bytes:
        """Take a piece; return what is certain by now."""
        ...

    def finish(self) -> bytes:
        """Return the rest."""
        ...


MakeFilter = Callable[[], StreamFilter]


@dataclass(frozen=True, slots=True)
class Output:
    """One stream of a command that has ended, redacted and safe to show.

    `tail` is empty when nothing was left out. `total_bytes` and `elided_bytes` count the command's
    own bytes; `sha256` (hex) is of all of them, so that equal outputs are known as such.
    """

    head: str
    tail: str
    total_bytes: int
    elided_bytes: int
    sha256: str

    @property
    def text(self) -> str:
        """Head and tail with a line between that says how much is missing."""
        if not self.elided_bytes:
            return self.head + self.tail
        gap = "" if self.head.endswith("\n") or not self.head else "\n"
        return f"{self.head}{gap}…[{self.elided_bytes} bytes elided]…\n{self.tail}"


class Capture:
    """Head and tail of one stream in bounded memory."""

    def __init__(self, shown_bytes: int, redact: MakeFilter | None = None) -> None:
        """`shown_bytes`: how much is kept to show, half of it head, half tail. At least 2."""
        self._head_room = shown_bytes // 2
        self._tail_bytes = shown_bytes - self._head_room
        self._redact = redact
        self._head = bytearray()
        self._ring = bytearray(self._tail_bytes + (HOLD_BYTES if redact else 0))
        self._ringed = 0
        self._hash = hashlib.sha256()
        self.total_bytes = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take what the command wrote, in order."""
        self._hash.update(data)
        self.total_bytes += len(data)
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._ring_in(data)

    def _ring_in(self, data: bytes | memoryview) -> None:
        size = len(self._ring)
        skipped = max(0, len(data) - size)
        data = data[skipped:]
        at = (self._ringed + skipped) % size
        first = min(len(data), size - at)
        self._ring[at : at + first] = data[:first]
        self._ring[: len(data) - first] = data[first:]
        self._ringed += skipped + len(data)

    def _ring_out(self) -> bytes:
        """Return what the ring holds, oldest first."""
        size = len(self._ring)
        if self._ringed <= size:
            return bytes(self._ring[: self._ringed])
        at = self._ringed % size
        return bytes(self._ring[at:] + self._ring[:at])

    def finish(self) -> Output:
        """Return what is shown of the stream."""
        ringed = self._ring_out()
        if self._ringed <= self._tail_bytes:
            head, tail = _redacted(bytes(self._head) + ringed, self._redact), b""
            elided = 0
        else:
            before, raw_tail = ringed[: -self._tail_bytes], ringed[-self._tail_bytes :]
            if self._ringed <= len(self._ring):
                before = bytes(self._head) + before
            head, held = self._end_of_head()
            tail = _tail_after(before, raw_tail, self._redact)
            head, cut = _whole_characters(head)
            tail, torn = _from_character(tail)
            elided = self._ringed - self._tail_bytes + held + cut + torn
        return Output(
            clean(head.decode("utf-8", "replace")),
            clean(tail.decode("utf-8", "replace")),
            self.total_bytes,
            elided,
            self._hash.hexdigest(),
        )

    def _end_of_head(self) -> tuple[bytes, int]:
        """Return the head and how many of its bytes are not shown since a secret may begin there.

        Where something was replaced before, those bytes cannot be told and count as shown.
        """
        raw = bytes(self._head)
        if self._redact is None:
            return raw, 0
        shown = self._redact().feed(raw)
        return shown, len(raw) - len(shown) if raw.startswith(shown) else 0


def _redacted(data: bytes, redact: MakeFilter | None) -> bytes:
    if redact is None:
        return data
    stream = redact()
    return stream.feed(data) + stream.finish()


def _tail_after(before: bytes, tail: bytes, redact: MakeFilter | None) -> bytes:
    """Redact a tail in the light of what came before it."""
    if redact is None:
        return tail
    stream = redact()
    passed = stream.feed(before)
    shown = stream.feed(tail) + stream.finish()
    # What the stream still held of `before` comes out in front: not part of the tail.
    held = before[len(passed) :] if before.startswith(passed) else b""
    return shown.removeprefix(held)


def _whole_characters(data: bytes) -> tuple[bytes, int]:
    """Drop the beginning of a character that was cut; return what is left and the bytes cut."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return (data[:-back], back) if needed > back else (data, 0)
        if byte < 0x80:
            break
    return data, 0


def _from_character(data: bytes) -> tuple[bytes, int]:
    """Drop the end of a character that was cut; return what is left and the bytes cut."""
    at = 0
    while at < min(3, len(data)) and 0x80 <= data[at] < 0xC0:
        at += 1
    return data[at:], at
