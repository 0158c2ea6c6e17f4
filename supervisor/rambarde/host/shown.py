r"""Paths of the workspace as text for a person. Trusted side. Pure.

Names are bytes that somebody else chose: they may be no text, or text that moves a terminal's
cursor. What is not plain is put in bash's form `$'caf\xe9'`, which can be pasted back.

Source: bash(1), QUOTING.
"""

from __future__ import annotations

_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b"'\\")


def shown_path(path: bytes) -> str:
    r"""Return a path itself when it is printable UTF-8, else in the form `$'..'`.

    A path that begins like that form is put in it too, so that each text means one path.
    """
    try:
        text = path.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable() and not text.startswith("$'"):
        return text
    return "$'" + "".join(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in path) + "'"
