r"""One line of a journal: JSON values, canonical bytes, the chain of hashes. Trusted side. No I/O.

A line is one JSON object with the keys n, at, kind, data, prev, hash, in this order. `hash` is the
SHA-256 of the line's own bytes before `,"hash":`; `prev` is the hash of the line before, 64 zeros
on the first. So a chain is checked without knowing how some library would write the same value:

    printf %s "${line%,\"hash\":*}" | sha256sum

Source: RFC 8259 (JSON), FIPS 180-4 (SHA-256); bash(1), QUOTING, for `$'..'`.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import os
from collections.abc import Callable, Mapping

import msgspec

from rambarde.errors import InternalError

FIRST_PREV = "0" * 64
MAX_LINE_BYTES = 32 << 20
"""No record is longer; results and texts are bounded before they come here."""
MAX_DEPTH = 32

_BEFORE_HASH = b',"hash":"'
_TAIL_BYTES = len(_BEFORE_HASH) + 64 + 2
_NAMED = {0x07: "\\a", 0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0B: "\\v", 0x0C: "\\f",
          0x0D: "\\r", 0x1B: "\\e", 0x27: "\\'", 0x5C: "\\\\"}  # fmt: skip
_FIRST_PLAIN, _FIRST_HIGH = 0x20, 0x7F

Redact = Callable[[str], str]
"""Takes known secrets out of a text; must not raise."""


class Record(msgspec.Struct, frozen=True):
    """One fact. `n` counts from 0; `at` is the time of day in seconds; `data` holds JSON values."""

    n: int
    at: float
    kind: str
    data: dict[str, object]
    prev: str
    hash: str


class _Body(msgspec.Struct, frozen=True):
    n: int
    at: float
    kind: str
    data: dict[str, object]
    prev: str


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record, strict=True)


def encode_record(
    n: int, at: float, kind: str, data: Mapping[str, object], prev: str, redact: Redact | None
) -> tuple[bytes, str]:
    """Return the line, with its newline, and its hash.

    Args:
        n: number of the record.
        at: seconds since the epoch.
        kind: what kind of fact.
        data: JSON values; bytes are taken as paths, sets and tuples as lists.
        prev: hash of the record before.
        redact: applied to each text in `data`.

    Raises:
        InternalError: a value that is none of these, or a line above MAX_LINE_BYTES.
    """
    values = {str(key): _plain(value, redact, MAX_DEPTH) for key, value in data.items()}
    body = _encoder.encode(_Body(n, at, kind, values, prev))[:-1]
    if len(body) > MAX_LINE_BYTES - _TAIL_BYTES:
        raise InternalError(
            f"a record of kind {kind} has {len(body)} bytes, at most {MAX_LINE_BYTES}",
            advice="Report this with the session.",
        )
    digest = hashlib.sha256(body).hexdigest()
    return body + _BEFORE_HASH + digest.encode() + b'"}\n', digest


def decode_record(line: bytes) -> Record | None:
    """Return the record of a line without its newline, or None when it is none.

    Its own hash is checked; that `n` and `prev` follow on the line before is the caller's matter.
    """
    body, tail = line[:-_TAIL_BYTES], line[-_TAIL_BYTES:]
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    expected = _BEFORE_HASH + hashlib.sha256(body).hexdigest().encode() + b'"}'
    return record if tail == expected else None


def is_object(line: bytes) -> bool:
    """Return True for a line that is a JSON object, whatever it says."""
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False


def path_text(path: bytes) -> str:
    r"""Return a path as text: itself where it is UTF-8, else in bash's `$'caf\xe9'`.

    A path that itself begins like that form is put in it too, so that each text means one path.
    """
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return _bash(path)
    return _bash(path) if text.startswith("$'") else text


def _bash(path: bytes) -> str:
    def shown(byte: int) -> str:
        if byte in _NAMED:
            return _NAMED[byte]
        return chr(byte) if _FIRST_PLAIN <= byte < _FIRST_HIGH else f"\\x{byte:02x}"

    return "$'" + "".join(map(shown, path)) + "'"


def _plain(value: object, redact: Redact | None, depth: int) -> object:
    """Return a value as JSON has it; every text redacted and encodable."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, str | bytes):
        text = _text(value.value if isinstance(value, enum.Enum) else value)
        return redact(text) if redact is not None else text
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else str(value)
    if depth == 0:
        raise InternalError(f"a value of a record is nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        return {_text(str(key)): _plain(one, redact, depth - 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, redact, depth - 1) for one in value]
    if isinstance(value, set | frozenset):
        return [_plain(one, redact, depth - 1) for one in sorted(value, key=str)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {one.name: _plain(getattr(value, one.name), redact, depth - 1) for one in fields}
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return {name: _plain(getattr(value, name), redact, depth - 1) for name in names}
    raise InternalError(f"a value of type {type(value).__name__} cannot be put on the record")


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return path_text(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        try:
            return path_text(os.fsencode(value))
        except UnicodeEncodeError:
            return value.encode("utf-8", "replace").decode()
    return value
