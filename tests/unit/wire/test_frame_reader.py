"""Bytes in, bodies out: every cut, every way in, and the bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde_wire import frames
from rambarde_wire.frames import BreachError, FrameReader

_STREAM = [
    frames.AskTurn(),
    frames.TellResult("c1", True, "", "résultat", "ab" * 32),
    frames.AskPerform(["c2", "c3"]),
    frames.TellRead("c4", b"/w/caf\xe9", "00" * 32),
]
_BYTES = b"".join(frames.encode_up(frame) for frame in _STREAM)


def _bodies(reader: FrameReader) -> list[bytes]:
    found = []
    while (body := reader.next_body()) is not None:
        found.append(body)
    return found


def _read_all(pieces: list[bytes]) -> list[frames.UpFrame]:
    reader = FrameReader(max_bytes=frames.MAX_UP_BYTES)
    found = []
    for piece in pieces:
        reader.feed(piece)
        found += [frames.decode_up(body) for body in _bodies(reader)]
    assert reader.at_boundary
    return found


@pytest.mark.parametrize("cut", range(len(_BYTES) + 1))
def test_every_cut_of_a_stream_gives_the_same_frames(cut: int) -> None:
    """Where the kernel cuts a stream in two does not matter."""
    assert _read_all([_BYTES[:cut], _BYTES[cut:]]) == _STREAM


def test_stream_fed_byte_by_byte_gives_the_same_frames() -> None:
    """The slowest possible writer is read like the fastest."""
    assert _read_all([bytes([byte]) for byte in _BYTES]) == _STREAM


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=300), max_size=20),
    cuts=st.lists(st.integers(0, 6000), max_size=10),
    lent=st.booleans(),
)
def test_any_bodies_cut_anywhere_come_out_whole(
    bodies: list[bytes], cuts: list[int], lent: bool
) -> None:
    """Both ways in (`feed`, `room` with `took`) return exactly the bodies that went in."""
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    reader = FrameReader(max_bytes=300)
    found: list[bytes] = []
    for begin, end in itertools.pairwise(edges):
        if lent:
            at = begin
            while at < end:
                room = reader.room()
                count = min(len(room), end - at)
                room[:count] = stream[at : at + count]
                reader.took(count)
                at += count
        else:
            reader.feed(stream[begin:end])
        found += _bodies(reader)
    assert found == bodies
    assert reader.at_boundary


@pytest.mark.parametrize("length", [0, 301, 0x7FFFFFFF, 0xFFFFFFFF])
def test_forbidden_length_is_refused_with_the_header_alone(length: int) -> None:
    """Four bytes suffice to refuse a frame: its body is neither awaited nor given space."""
    reader = FrameReader(max_bytes=300)
    for ask in (lambda: reader.feed(length.to_bytes(4, "big")), reader.next_body, reader.room):
        with pytest.raises(BreachError, match="allowed 1 to 300"):
            ask()


def test_end_inside_a_header_or_a_body_is_no_boundary() -> None:
    """A stream that ends after half a frame is told from one that ends after a whole one."""
    for count in (1, 3, 4, 6):
        reader = FrameReader(max_bytes=300)
        reader.feed((b"\0\0\0\4abcd")[:count])
        assert reader.next_body() is None
        assert not reader.at_boundary


def test_longest_frame_passes_and_its_buffer_is_given_back() -> None:
    """A frame of the greatest length is read, and the reader is small again afterwards."""
    reader = FrameReader(max_bytes=frames.MAX_UP_BYTES)
    body = bytes(1000) * (frames.MAX_UP_BYTES // 1000)
    reader.feed(len(body).to_bytes(4, "big"))
    reader.feed(body[:70_000])
    assert reader.next_body() is None
    reader.feed(body[70_000:])
    assert reader.next_view() == body
    assert len(reader.room()) == 64 << 10
