"""Many gitignore-like patterns as few regular expressions, for a walk over a whole tree. Pure.

Trusted side. A pattern without a slash (or with only `**/` before it) names an entry at any depth;
one with a slash is anchored at the workspace's root. Case counts.

Source: gitignore(5), PATTERN FORMAT.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patterns:
    """`names` matches a base name (bytes) anywhere; `anchored` are patterns from the root.

    `below_git` are those of any repository's `.git` folder, as `hooks`; `plain` the names at any
    depth that hold no wildcard.
    """

    names: re.Pattern[bytes]
    anchored: tuple[str, ...]
    below_git: tuple[str, ...]
    plain: tuple[str, ...]

    @property
    def in_git(self) -> tuple[str, ...]:
        """Patterns anchored at a git folder, wherever it lies: those of the root's and of any."""
        own = (name.removeprefix(".git/") for name in self.anchored if name.startswith(".git/"))
        return tuple(sorted({*own, *self.below_git}))

    def has_name(self, name: bytes) -> bool:
        """Return True when a base name is meant at any depth."""
        return self.names.match(name) is not None


def compile_patterns(patterns: Iterable[str]) -> Patterns:
    """Sort patterns by what they ask of a walk."""
    names, anchored, below_git, simple = [], [], [], []
    for pattern in sorted(patterns):
        plain = pattern.rstrip("/")
        free = plain.removeprefix("**/")
        if plain.startswith("**/.git/"):
            below_git.append(free.removeprefix(".git/"))
        elif "/" in free.lstrip("/") or plain.startswith("/"):
            anchored.append(plain.lstrip("/"))
        else:
            names.append(fnmatch.translate(free))
            simple += [] if glob.has_magic(free) else [free]
    joined = "|".join(names) or r"(?!)"
    return Patterns(
        re.compile(os.fsencode(joined)), tuple(anchored), tuple(below_git), tuple(simple)
    )
