"""Uids of the host for children of a root-started supervisor. Trusted side. Pure.

Each living child has one that nothing else on the host uses. They come from a small block of a high
range, chosen by chance for this run, and are taken again once a child's death is proven: the zygote
keeps the id-map of each, which costs a process to make.

Source: user_namespaces(7); useradd(8): uids given to people and services lie far below.
"""

from __future__ import annotations

import secrets

_FIRST = 2_000_000_000
_BLOCKS = 1_000_000
_BLOCK = 64


class Kuids:
    """The uids of one run; of two alive at once, no two are the same."""

    def __init__(self) -> None:
        """Choose this run's block."""
        self._next = _FIRST + secrets.randbelow(_BLOCKS) * _BLOCK
        self._free: list[int] = []

    def take(self) -> int:
        """Return a uid that no living child of this run has."""
        if self._free:
            return self._free.pop()
        self._next += 1
        return self._next - 1

    def give_back(self, kuid: int) -> None:
        """Take back the uid of a child whose last process is gone."""
        self._free.append(kuid)
