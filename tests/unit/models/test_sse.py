"""Server-sent events: any cut gives the same events, and every size is bounded."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.models.sse import COMMENT, SseBounds, SseError, SseEvent, SseParser

STREAM = (
    b"\xef\xbb\xbfdata: one\n\n: still here\r\nevent: ping\r\ndata: {\r\ndata:  }\r\n\r\n"
    b"id: 7\nretry: 10\n\ndata\n\ndata: h\xc3\xa9\rdata:x\r\revent: lost\n\ndata: cut off"
)
EVENTS = [
    SseEvent("", "one"),
    SseEvent(COMMENT, ""),
    SseEvent("ping", "{\n }"),
    SseEvent("", ""),
    SseEvent("", "hé\nx"),
]


def test_reads_every_form_of_line_end() -> None:
    """LF, CRLF and CR end lines; comments are told; an event without data and a cut one are not."""
    assert SseParser().feed(STREAM) == EVENTS


@given(st.lists(st.integers(1, len(STREAM)), max_size=12))
def test_cuts_change_nothing(cuts: list[int]) -> None:
    """The same bytes in any chunks give the same events."""
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = SseParser()
    events = [
        event
        for start, end in itertools.pairwise(edges)
        for event in parser.feed(STREAM[start:end])
    ]
    assert events == EVENTS


@given(st.binary(max_size=200))
def test_never_fails_on_bytes(data: bytes) -> None:
    """Any bytes give events or none, never an error."""
    parser = SseParser()
    for index in range(len(data)):
        parser.feed(data[index : index + 1])


@pytest.mark.parametrize(
    ("bounds", "data", "word"),
    [
        (SseBounds(line_bytes=10), b"data: 0123456789", "line"),
        (SseBounds(line_bytes=10), b"data: 0123456789\n", "line"),
        (SseBounds(event_bytes=10), b"data: 01234\ndata: 56789\n", "event"),
        (SseBounds(total_bytes=10), b"data: 1\n\n" * 3, "stream"),
    ],
)
def test_bounds_are_kept(bounds: SseBounds, data: bytes, word: str) -> None:
    """A line, an event and a stream past their bound are refused by name."""
    with pytest.raises(SseError, match=word):
        SseParser(bounds).feed(data)


def test_one_byte_chunks_are_not_quadratic() -> None:
    """A long line in one-byte chunks costs time in proportion."""
    parser = SseParser()
    began = time.process_time()
    for _ in range(60_000):
        parser.feed(b"x")
    assert time.process_time() - began < 1.0
