"""Check a hash that a child claims. Trusted side. Pure."""

from __future__ import annotations

import re

from rambarde_wire.frames import BreachError

_SHA256 = re.compile(r"(?:[0-9a-f]{64})?")


def check_hash(claimed_sha256: str) -> str:
    """Return a SHA-256 in hexadecimal, or "" for none; anything else is a breach."""
    if not _SHA256.fullmatch(claimed_sha256):
        raise BreachError("not a SHA-256")
    return claimed_sha256
