"""Server-sent events out of bytes, with bounds. Trusted side. No I/O.

The library at hand for this (httpx-sse) keeps an unended line without a bound and imports the HTTP
client, so a provider could fill the supervisor's memory; hence this parser. Comments are reported,
because services send them to show that they are alive.

Source: html.spec.whatwg.org, "Server-sent events", section "Interpreting an event stream".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COMMENT: Final = ":"
"""The name of an event that was a comment; no service can send it as a name."""


@dataclass(frozen=True, slots=True)
class SseBounds:
    """Greatest sizes in bytes: of a line, of an event's data, of the whole stream."""

    line_bytes: int = 2 << 20
    event_bytes: int = 4 << 20
    total_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event: `name` is empty when none was given, COMMENT for a comment without data."""

    name: str
    data: str


class SseError(ValueError):
    """A bound was passed; the text names which. Close the stream: nothing after it is sure."""


class SseParser:
    """Fed with bytes as they come; time and memory grow with the bytes, however they are cut."""

    def __init__(self, bounds: SseBounds | None = None) -> None:
        self._bounds = bounds or SseBounds()
        self._total = 0
        self._skip_lf = False
        self._at_start = True
        self._unended: list[bytes] = []
        self._unended_bytes = 0
        self._name = ""
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that `data` completes, in order.

        Raises:
            SseError: a line, an event or the stream is greater than its bound.
        """
        self._total += len(data)
        if self._total > self._bounds.total_bytes:
            raise SseError(f"the stream is longer than {self._bounds.total_bytes} bytes")
        events = []
        for line in self._lines(data):
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    def _lines(self, data: bytes) -> list[bytes]:
        if not data:
            return []
        if self._skip_lf and data.startswith(b"\n"):
            data = data[1:]
            self._skip_lf = False
            if not data:
                return []
        self._skip_lf = data.endswith(b"\r")
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop()
        if lines:
            # Joined once per line, not once per chunk: one-byte chunks must not cost the square.
            lines[0] = b"".join(self._unended) + lines[0]
            self._unended, self._unended_bytes = [], 0
        self._unended.append(rest)
        self._unended_bytes += len(rest)
        longest = max([self._unended_bytes, *map(len, lines)])
        if longest > self._bounds.line_bytes:
            raise SseError(f"a line is longer than {self._bounds.line_bytes} bytes")
        return lines

    def _take(self, line: bytes) -> SseEvent | None:
        if self._at_start:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            return SseEvent(COMMENT, "")
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._bounds.event_bytes:
                raise SseError(f"an event is longer than {self._bounds.event_bytes} bytes")
            self._data.append(value.decode("utf-8", "replace"))
        elif name == b"event":
            self._name = value[:64].decode("utf-8", "replace")
        return None

    def _dispatch(self) -> SseEvent | None:
        event = SseEvent(self._name, "\n".join(self._data)) if self._data else None
        self._name, self._data, self._data_bytes = "", [], 0
        return event
