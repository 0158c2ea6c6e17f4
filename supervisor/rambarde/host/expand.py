"""Find what patterns anchored at a folder name, within bounds. Trusted side.

The standard library's recursive glob goes into links: two of them that lead to their own folder
make it walk two to the power of forty. Here links are listed and never entered by a wildcard.

Source: gitignore(5) on `**`; fnmatch of the standard library.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator

MOST_LISTED = 20_000
"""Most entries looked at for one pattern."""


def expand(folder: bytes, pattern: bytes) -> Iterator[bytes]:
    """Yield the existing paths that a pattern names below a folder; links count as they are.

    Args:
        folder: absolute path.
        pattern: parts between slashes; `**` stands for any number of folders.
    """
    left = MOST_LISTED
    waiting = [(folder, pattern.split(b"/"))]
    while waiting and left > 0:
        here, parts = waiting.pop()
        if not parts:
            yield here
            continue
        head, rest = parts[0], parts[1:]
        if head != b"**" and not glob.has_magic(head):
            path = os.path.join(here, head)
            if os.path.lexists(path):
                waiting.append((path, rest))
            continue
        if head == b"**":
            waiting.append((here, rest))
        for entry in _entries(here):
            left -= 1
            if head == b"**":
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, parts))
            elif fnmatch.fnmatchcase(entry.name, head):
                waiting.append((entry.path, rest))


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
