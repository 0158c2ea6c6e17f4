"""What changed in a workspace during a run, whoever changed it. Trusted side.

Size, times and inode of every regular file before and after: so a change made by a command, or
hidden from git by its own means, is told as well. Nothing is opened and nothing is followed.

Source: stat(2): ctime cannot be set back by a program.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

MOST_FILES = 100_000
MOST_S = 2.0
MOST_SHOWN = 500
_SKIPPED = frozenset({b"objects", b"logs"})
_Stamp = tuple[int, int, int, int]
Snapshot = dict[bytes, _Stamp]


def take_snapshot(root: bytes) -> Snapshot:
    """Return the stamps of all regular files below `root`, by relative path; bounded."""
    deadline = time.monotonic() + MOST_S
    found: Snapshot = {}
    for path, stamp in _files(root, b""):
        found[path] = stamp
        if len(found) >= MOST_FILES or time.monotonic() > deadline:
            break
    return found


def changed_paths(root: bytes, before: Snapshot) -> list[str]:
    """Return paths made, changed or removed since `before`, shown as text; at most MOST_SHOWN."""
    after = take_snapshot(root)
    partial = len(before) >= MOST_FILES or len(after) >= MOST_FILES
    changed = [path for path, stamp in after.items() if before.get(path, stamp) != stamp]
    if not partial:
        changed += [path for path in after if path not in before]
        changed += [path for path in before if path not in after]
    return [path.decode(errors="backslashreplace") for path in sorted(changed)[:MOST_SHOWN]]


def _files(folder: bytes, prefix: bytes) -> Iterator[tuple[bytes, _Stamp]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    inside_git = prefix.startswith(b".git/")
    for entry in entries:
        relative = prefix + entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                if not (inside_git and entry.name in _SKIPPED):
                    yield from _files(entry.path, relative + b"/")
            elif entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield (
                    relative,
                    (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino),
                )
        except OSError:
            continue
