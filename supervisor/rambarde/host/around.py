"""Name everything of a workspace but what is masked. Trusted side.

Landlock allows by hierarchy and cannot say "all but this". Where there are no mounts to hide a
file (tier C), the folders on the way to it are granted for listing only, and each of their other
entries by itself. Links are left out: a rule is laid where a link leads, which may be the very
file that is to be hidden; what they lead to has its own rule.

Source: landlock(7), path beneath rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from rambarde.errors import HostError
from rambarde_wire.orders import Mask

MOST_RULES = 4000
"""About 40 ms for each process that is sealed."""


@dataclass(frozen=True, slots=True)
class Around:
    """`granted` paths, whole; `listed` folders, of which only the names. Both sorted."""

    granted: tuple[bytes, ...]
    listed: tuple[bytes, ...] = ()


def all_but(root: bytes, masks: Iterable[Mask]) -> Around:
    """Return what to grant so that everything below `root` can be read except the masks.

    Raises:
        HostError: it takes more than MOST_RULES rules.
    """
    hidden = {mask.path for mask in masks}
    way = {folder for path in hidden for folder in _folders_to(root, path)}
    if not way:
        return Around((root,))
    granted = [
        entry.path
        for folder in sorted(way)
        for entry in _entries(folder)
        if entry.path not in hidden and entry.path not in way and not entry.is_symlink()
    ]
    if len(granted) > MOST_RULES:
        raise HostError(
            f"hiding {len(hidden)} secret files without mounts takes {len(granted)} rules",
            advice="Use tier A, or move the secret files out of the workspace.",
        )
    return Around(tuple(sorted(granted)), tuple(sorted(way)))


def _folders_to(root: bytes, path: bytes) -> Iterable[bytes]:
    folder = os.path.dirname(path)
    while len(folder) > len(root):
        yield folder
        folder = os.path.dirname(folder)
    yield root


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
