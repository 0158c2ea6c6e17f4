"""Decode bash's `$'...'` quoting, used for names that are not UTF-8. Trusted side. Pure.

Source: bash(1), QUOTING.
"""

from __future__ import annotations

import re

_ANSI_C = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{1,4})|(.))", re.DOTALL)
_ANSI_C_NAMED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f"}


def decode_ansi_c(body: str) -> str:
    """Decode what stands between `$'` and `'`; bytes that are not UTF-8 become surrogates."""
    out = bytearray()
    at = 0
    for match in _ANSI_C.finditer(body):
        out += body[at : match.start()].encode("utf-8", "surrogateescape")
        at = match.end()
        hexadecimal, octal, point, other = match.groups()
        if hexadecimal or octal:
            out.append(int(hexadecimal or octal, 16 if hexadecimal else 8) & 0xFF)
        elif point:
            out += chr(int(point, 16)).encode("utf-8", "surrogatepass")
        else:
            out += _ANSI_C_NAMED.get(other, other).encode("utf-8", "surrogateescape")
    out += body[at:].encode("utf-8", "surrogateescape")
    return out.decode("utf-8", "surrogateescape")
