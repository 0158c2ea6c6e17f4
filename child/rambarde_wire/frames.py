"""The wire between the supervisor and one child. Both sides. No I/O, no clock.

Theory of operation
-------------------
A channel is two pipes. On each travel frames: a 4-byte big-endian length, then one msgpack map
whose key `t` names the message. Lengths are checked before anything is allocated; unknown fields,
foreign types, trailing bytes and nesting past what a message declares are breaches. A breach ends
the child with `error:protocol`; nothing is repaired and nothing is retried.

Identity is the channel: no message says who sends it. A value that came from a child carries the
prefix `claimed_` until a check of the supervisor gives it another name.

    phase      the child may send                            the supervisor may send
    booting    TellHello | TellFault                         -
    sealed     -                                             OrderBegin
    running    AskTurn AskPerform AskWrite                   ReplyTurn ReplyPerform ReplyWrite
               TellRead TellWrote TellResult TellFault       OrderInterrupt
    closing    TellResult TellWrote                          -

The life of a turn: the child sends AskTurn; ReplyTurn carries the calls of the model's answer, each
already judged. The child performs those with place `child` itself and reports each by TellResult;
those with place `broker` it asks for by AskPerform, in order, neighbours that may run side by side
(delegations) in one request, and gets only the news that they are done: the results stay with the
supervisor. Before a write it asks AskWrite, after it it tells TellWrote. A ReplyTurn with
`ended` true is the last frame; the child exits.

Decoding has three results: a frame, `None` for not enough bytes yet, `BreachError`. A clean end is
told from an end inside a frame by `FrameReader.at_boundary`.

Source: msgpack format (github.com/msgpack/msgpack/blob/master/spec.md); ADR 0007. msgspec answers
deep nesting with RecursionError, which is not one of its own errors, so it is caught here.
"""

from __future__ import annotations

import struct
from typing import Annotated, Literal, TypeAlias, Union

import msgspec

PROTOCOL_VERSION = 1
HEADER_BYTES = 4
MAX_UP_BYTES = 8 << 20
"""Greatest body a child may send."""
MAX_DOWN_BYTES = 4 << 20
"""Greatest body the supervisor sends."""
MAX_CALLS = 64
"""Most calls in one turn; a model that asks for more has the rest refused by the supervisor."""
MAX_ID_CHARS = 64
MAX_PATH_BYTES = 4096

_SMALL_BYTES = 64 << 10
_KEPT_BYTES = 2 << 20
"""A buffer that grew past this for one long frame is given back once that frame was read."""
_unpack_length = struct.Struct(">I").unpack_from

Place = Literal["child", "broker"]
Errno = Annotated[int, msgspec.Meta(ge=0, le=4095)]
"""What the kernel can answer (MAX_ERRNO of linux/err.h); 0 is none."""


class BreachError(Exception):
    """The other side broke the protocol. End the child; never answer, never retry."""


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t"):
    """Base of every message."""


class SelfCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sealed child saw of itself. A claim: the supervisor looks from outside as well.

    Fields: linux caps as integers (0 = none); `*_errno` is the errno of an act that must fail
    (0 = it succeeded, which is a breach of the sandbox); `namespaces` maps the names under
    /proc/self/ns to inode numbers; `open_fds` lists descriptors.
    """

    uid: int
    gid: int
    cap_inheritable: int
    cap_permitted: int
    cap_effective: int
    cap_bounding: int
    cap_ambient: int
    no_new_privs: int
    seccomp_mode: int
    landlock_abi: int
    namespaces: dict[str, int]
    open_fds: list[int]
    outside_write_errno: Errno
    unshare_errno: Errno
    socket_errno: Errno
    exec_errno: Errno


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One judged tool call: `arguments` is JSON (UTF-8), already checked against the tool."""

    call_id: str
    tool: str
    arguments: bytes
    place: Place
    joined: bool = False
    """May run beside its neighbours of the same turn (delegations)."""


class ToolLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the tools that run in the child."""

    read_lines: int = 400
    read_max_lines: int = 1000
    line_chars: int = 500
    file_bytes: int = 16 << 20
    glob_hits: int = 200
    result_bytes: int = 256 << 10
    diff_bytes: int = 16 << 10


# ── child to supervisor ──────────────────────────────────────────────────────────────────────


class TellHello(Frame, frozen=True, tag="hello"):
    """First frame of a sealed child."""

    version: int
    checks: SelfCheck


class TellFault(Frame, frozen=True, tag="fault"):
    """A step failed inside the child; it exits at once. `errno` is 0 when there is none."""

    claimed_step: str
    errno: Errno
    claimed_text: str


class AskTurn(Frame, frozen=True, tag="ask_turn"):
    """Everything of the last turn is reported: what next? Answered by ReplyTurn."""


class AskPerform(Frame, frozen=True, tag="ask_perform"):
    """Perform these calls, which the child has no power for. Answered by ReplyPerform."""

    call_ids: list[str]


class AskWrite(Frame, frozen=True, tag="ask_write"):
    """May this call replace the file at this path (canonical, absolute)? Answered by ReplyWrite.

    `claimed_sha256` is the hash of the bytes about to be replaced, "" when the file is absent.
    """

    call_id: str
    claimed_path: bytes
    claimed_sha256: str


class TellRead(Frame, frozen=True, tag="tell_read"):
    """A file was shown to the model: its canonical path and the hash of its whole content."""

    call_id: str
    claimed_path: bytes
    claimed_sha256: str


class TellWrote(Frame, frozen=True, tag="tell_wrote"):
    """A write allowed by ReplyWrite took place (or, with an empty hash, did not after all)."""

    call_id: str
    claimed_path: bytes
    claimed_sha256: str
    claimed_diff: str = ""


class TellResult(Frame, frozen=True, tag="tell_result"):
    """The result of one call performed by the child.

    `claimed_code` is "" on success, else a machine code of texts/. `claimed_fingerprint` is the
    SHA-256 of the full result before it was cut.
    """

    call_id: str
    claimed_ok: bool
    claimed_code: str
    claimed_text: str
    claimed_fingerprint: str
    claimed_elided_bytes: int = 0


# ── supervisor to child ──────────────────────────────────────────────────────────────────────


class OrderBegin(Frame, frozen=True, tag="begin"):
    """The supervisor believes the sandbox: start the loop."""

    workspace: bytes
    writable: bool
    limits: ToolLimits


class ReplyTurn(Frame, frozen=True, tag="turn"):
    """The calls of the next turn in the model's order; none and `ended` true: exit."""

    ended: bool
    calls: list[Call]


class ReplyPerform(Frame, frozen=True, tag="performed"):
    """These calls are done; their results are with the supervisor."""

    call_ids: list[str]


class ReplyWrite(Frame, frozen=True, tag="write"):
    """Verdict of AskWrite. A refusal's text is what the model is told."""

    call_id: str
    allowed: bool
    code: str = ""
    text: str = ""


class OrderInterrupt(Frame, frozen=True, tag="interrupt"):
    """Stop now: 2 s later the sandbox is killed."""

    reason: str


UpFrame: TypeAlias = Union[
    TellHello, TellFault, AskTurn, AskPerform, AskWrite, TellRead, TellWrote, TellResult
]
DownFrame: TypeAlias = Union[OrderBegin, ReplyTurn, ReplyPerform, ReplyWrite, OrderInterrupt]

_encoder = msgspec.msgpack.Encoder()
_up = msgspec.msgpack.Decoder(UpFrame, strict=True)
_down = msgspec.msgpack.Decoder(DownFrame, strict=True)


def encode_frame(frame: Frame, *, max_bytes: int) -> bytes:
    """Return header and body. Raises BreachError when the body is longer than `max_bytes`."""
    body = _encoder.encode(frame)
    if len(body) > max_bytes:
        raise BreachError(f"frame of {len(body)} bytes, at most {max_bytes}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def encode_up(frame: UpFrame) -> bytes:
    """Encode a frame of the child."""
    return encode_frame(frame, max_bytes=MAX_UP_BYTES)


def encode_down(frame: DownFrame) -> bytes:
    """Encode a frame of the supervisor."""
    return encode_frame(frame, max_bytes=MAX_DOWN_BYTES)


def decode_up(body: bytes | bytearray | memoryview) -> UpFrame:
    """Decode one body sent by a child. Raises BreachError on anything but one whole message."""
    try:
        return _up.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise BreachError(f"not a frame of this protocol: {exc}") from None


def decode_down(body: bytes | bytearray | memoryview) -> DownFrame:
    """Decode one body sent by the supervisor. Raises BreachError likewise."""
    try:
        return _down.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise BreachError(f"not a frame of this protocol: {exc}") from None


class FrameReader:
    """Bytes in, bodies out: the sans-I/O half of reading.

    Bytes come in either by `feed`, or without a copy: `room` lends the space to read into and
    `took` says how much of it was filled. Bodies go out by `next_body` (a copy of its own) or
    `next_view` (no copy, valid until the next call of any other method).

    The length is checked as soon as the header is there, before the body is awaited or stored.
    Space for a long body is asked of the kernel zeroed and untouched, so a child that announces
    MAX_UP_BYTES and sends nothing costs addresses, not memory.
    """

    __slots__ = ("_buffer", "_end", "_max_bytes", "_need", "_start", "_view")

    def __init__(self, *, max_bytes: int) -> None:
        """`max_bytes`: greatest body accepted (MAX_UP_BYTES or MAX_DOWN_BYTES)."""
        self._max_bytes = max_bytes
        self._buffer = bytearray(_SMALL_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        # Bytes of the frame at `_start`, header included; 0 while its header is not whole.
        self._need = 0

    @property
    def at_boundary(self) -> bool:
        """True when an end of the stream here is a clean one."""
        return self._start == self._end

    def room(self) -> memoryview:
        """Lend the space to read into; never empty. Raises BreachError on a forbidden length."""
        need = self._need or self._read_header()
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _KEPT_BYTES:
                self._move(_SMALL_BYTES)
        elif self._start + need > len(self._buffer) or self._end == len(self._buffer):
            self._move(max(need, 2 * (self._end - self._start), _SMALL_BYTES))
        return self._view[self._end :]

    def took(self, count: int) -> bool:
        """Say that the first `count` bytes of what `room` lent hold data now.

        Returns True when `next_body` has a body. Raises BreachError on a forbidden length.
        """
        self._end += count
        need = self._need or self._read_header()
        return 0 < need <= self._end - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes from the stream, in order. Raises BreachError on a forbidden length."""
        rest = memoryview(data)
        while rest:
            room = self.room()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            self.took(count)
            rest = rest[count:]

    def next_view(self) -> memoryview | None:
        """Return the next whole body in place, or None. Raises BreachError on a forbidden length.

        The view shows the reader's own buffer: decode it before anything else is called.
        """
        need = self._need or self._read_header()
        body_at = self._start + HEADER_BYTES
        if not 0 < need <= self._end - self._start:
            return None
        self._start += need
        self._need = 0
        return self._view[body_at : self._start]

    def next_body(self) -> bytes | None:
        """Return the next whole body, or None. Raises BreachError on a forbidden length."""
        view = self.next_view()
        return None if view is None else bytes(view)

    def _read_header(self) -> int:
        if self._end - self._start < HEADER_BYTES:
            return 0
        length = _unpack_length(self._buffer, self._start)[0]
        if length == 0 or length > self._max_bytes:
            raise BreachError(f"frame length {length}, allowed 1 to {self._max_bytes}")
        self._need = HEADER_BYTES + int(length)
        return self._need

    def _move(self, capacity: int) -> None:
        """Put what is unread at the start of a new buffer."""
        held = self._end - self._start
        moved = bytearray(capacity)
        moved[:held] = self._view[self._start : self._end]
        self._buffer, self._view = moved, memoryview(moved)
        self._start, self._end = 0, held
