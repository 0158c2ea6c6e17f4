"""Every message survives the wire; nothing else does."""

from __future__ import annotations

import random
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde_wire import frames
from rambarde_wire.frames import BreachError

_ID = st.text(max_size=64)
_UP = st.one_of(
    st.builds(frames.AskTurn),
    st.builds(frames.AskPerform, st.lists(_ID, max_size=8)),
    st.builds(frames.AskWrite, _ID, st.binary(max_size=64), _ID),
    st.builds(frames.TellRead, _ID, st.binary(max_size=64), _ID),
    st.builds(frames.TellWrote, _ID, st.binary(max_size=64), _ID, st.text()),
    st.builds(
        frames.TellResult, _ID, st.booleans(), _ID, st.text(), _ID, st.integers(0, 2**63 - 1)
    ),
    st.builds(frames.TellFault, _ID, st.integers(0, 200), st.text()),
)
_CALL = st.builds(
    frames.Call, _ID, _ID, st.binary(max_size=64), st.sampled_from(["child", "broker"])
)
_DOWN = st.one_of(
    st.builds(frames.ReplyTurn, st.booleans(), st.lists(_CALL, max_size=4)),
    st.builds(frames.ReplyPerform, st.lists(_ID, max_size=4)),
    st.builds(frames.ReplyWrite, _ID, st.booleans(), _ID, st.text()),
    st.builds(frames.OrderInterrupt, st.text()),
    st.builds(frames.OrderBegin, st.binary(), st.booleans(), st.builds(frames.ToolLimits)),
)


def _hello() -> frames.TellHello:
    checks = frames.SelfCheck(1, 1, 0, 0, 0, 0, 0, 1, 2, 7, {"pid": 1}, [0, 1], 13, 1, 97, 1)
    return frames.TellHello(1, checks)


@given(_UP)
def test_frames_of_a_child_come_back_equal(frame: frames.UpFrame) -> None:
    """Encoding then decoding is the identity, upwards."""
    assert frames.decode_up(frames.encode_up(frame)[4:]) == frame


@given(_DOWN)
def test_frames_of_the_supervisor_come_back_equal(frame: frames.DownFrame) -> None:
    """Encoding then decoding is the identity, downwards."""
    assert frames.decode_down(frames.encode_down(frame)[4:]) == frame


def test_hello_comes_back_equal() -> None:
    """The one nested message survives as well."""
    assert frames.decode_up(frames.encode_up(_hello())[4:]) == _hello()


@pytest.mark.parametrize("kind", get_args(frames.DownFrame))
def test_child_cannot_speak_with_the_words_of_the_supervisor(kind: type[frames.Frame]) -> None:
    """The tags of one direction are unknown in the other."""
    tag = kind.__struct_config__.tag
    with pytest.raises(BreachError):
        frames.decode_up(msgspec.msgpack.encode({"t": tag}))


@pytest.mark.parametrize(
    "value",
    [
        {"t": "ask_turn", "agent_id": "a1"},
        {"t": "ask_turn", "policy": {}},
        {"t": "ask_perform", "call_ids": "c1"},
        {"t": "ask_perform", "call_ids": [1]},
        {"t": "fault", "claimed_step": "x", "errno": 1.5, "claimed_text": ""},
        {"t": "fault", "claimed_step": "x", "errno": "1", "claimed_text": ""},
        {"t": "fault", "claimed_step": "x", "errno": 2**64 - 1, "claimed_text": 3},
        {"t": "tell_read", "call_id": "c", "claimed_path": "text", "claimed_sha256": b"\xff"},
        {"t": "nobody"},
        {"t": 7},
        {},
        [],
        None,
        float("nan"),
        msgspec.msgpack.Ext(5, b"x"),
    ],
)
def test_messages_outside_the_protocol_are_breaches(value: object) -> None:
    """An unknown field, a foreign type, an unknown tag, an extension: a typed error each time."""
    with pytest.raises(BreachError):
        frames.decode_up(msgspec.msgpack.encode(value))


@pytest.mark.parametrize("where", ["alone", "field", "unknown", "key"])
def test_deep_nesting_is_a_breach_and_not_a_crash(where: str) -> None:
    """A hundred thousand open arrays end the child, not the process."""
    deep = b"\x91" * 100_000
    key = {"field": b"\xa8call_ids", "unknown": b"\xa1x", "key": b""}.get(where)
    head = b"\x82\xa1t\xabask_perform"
    body = deep if key is None else head + key + deep
    with pytest.raises(BreachError):
        frames.decode_up(body)


def test_trailing_bytes_are_a_breach() -> None:
    """One body holds one message."""
    with pytest.raises(BreachError):
        frames.decode_up(frames.encode_up(frames.AskTurn())[4:] + b"\xc0")


def test_invalid_utf8_is_a_breach() -> None:
    """Text on the wire is UTF-8; paths, which need not be, travel as bytes."""
    with pytest.raises(BreachError):
        frames.decode_up(b"\x82\xa1t\xabask_perform\xa8call_ids\x91\xa2\xff\xfe")


def test_frame_longer_than_allowed_is_not_encoded() -> None:
    """A side that would break the bound learns it before a byte is sent."""
    with pytest.raises(BreachError, match="at most"):
        frames.encode_down(frames.OrderInterrupt("x" * frames.MAX_DOWN_BYTES))


def test_ten_thousand_mutated_frames_are_frames_or_breaches() -> None:
    """Bits flipped, bytes cut, doubled or put in: never another kind of exception."""
    chance = random.Random(7)
    seeds = [
        frames.encode_up(frame)[4:]
        for frame in (
            _hello(),
            frames.AskTurn(),
            frames.AskPerform(["c1", "c2"]),
            frames.AskWrite("c1", b"/w/a", "00"),
            frames.TellResult("c1", True, "", "texte", "ff", 3),
            frames.TellFault("mount", 1, "no"),
        )
    ]
    breaches = 0
    for _ in range(10_000):
        body = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(body) + 1)
            match chance.randrange(4):
                case 0:
                    body[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    del body[at : at + chance.randint(1, 8)]
                case 2:
                    body[at:at] = body[: chance.randint(0, 16)]
                case _:
                    body[at:at] = chance.randbytes(chance.randint(1, 8))
        try:
            frames.decode_up(bytes(body))
        except BreachError:
            breaches += 1
    assert breaches > 5_000
