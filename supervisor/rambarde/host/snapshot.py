"""What changed in a workspace during a run, whoever changed it. Trusted side.

Theory of operation
-------------------
Size, times and inode of every file before and after: so a change made by a command, or hidden from
git by its own means, is told as well. Links count with what they are. Nothing is opened and nothing
is followed. The walk goes by level, without recursion: agents may nest folders deeper than any
stack. Of git's folders only what git runs or is configured by is looked at; hooks are told as one.

Both walks are bounded. What one of them did not reach is not taken for new or gone: a file missing
before is told only if its ctime says so, one missing after only if it is really not there.

Source: stat(2): ctime cannot be set by a program. gitrepository-layout(5).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rambarde.host.shown import shown_path

MOST_FILES = 100_000
MOST_S = 2.0
MOST_SHOWN = 2000
_CLOCK_SLACK_NS = 20_000_000
"""File systems stamp by the clock of the last tick, at most 10 ms old (CONFIG_HZ=100)."""
_GIT_SKIPPED = frozenset({b"objects", b"logs", b"refs", b"lfs"})
_GIT_NAMES = frozenset({b"config", b"config.worktree", b"commondir", b"gitdir", b"attributes"})

Stamp = tuple[int, int, int, int]
"""Size, mtime and ctime in ns, inode."""
_CTIME = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Stamps by path relative to the root.

    `whole`: nothing was left out. `at_ns`: when it was begun, ns since the epoch.
    """

    stamps: Mapping[bytes, Stamp]
    whole: bool
    at_ns: int


def take_snapshot(root: bytes) -> Snapshot:
    """Return the stamps of the files below `root`; at most MOST_FILES, within about MOST_S."""
    at_ns = time.time_ns()
    deadline = time.monotonic() + MOST_S
    stamps: dict[bytes, Stamp] = {}
    waiting = deque([b""])
    while waiting:
        for path, stamp in _files(root, waiting.popleft(), waiting):
            if len(stamps) >= MOST_FILES or time.monotonic() > deadline:
                return Snapshot(stamps, False, at_ns)
            stamps[path] = stamp
    return Snapshot(stamps, True, at_ns)


def changed_paths(root: bytes, before: Snapshot) -> list[str]:
    """Return paths made, changed or removed since `before`, shown as text, in order.

    Above MOST_SHOWN the last entry is a sentence that tells how many more there are.
    """
    after = take_snapshot(root)
    changed = {
        _told_as(path)
        for path, stamp in after.stamps.items()
        if before.stamps.get(path) != stamp and (path in before.stamps or _is_new(stamp, before))
    }
    gone = before.stamps.keys() - after.stamps.keys()
    changed |= {_told_as(path) for path in gone if after.whole or not _exists(root, path)}
    shown = [shown_path(path) for path in sorted(changed)]
    if len(shown) <= MOST_SHOWN:
        return shown
    return [*shown[:MOST_SHOWN], f"... and {len(shown) - MOST_SHOWN} more"]


def _is_new(stamp: Stamp, before: Snapshot) -> bool:
    return before.whole or stamp[_CTIME] >= before.at_ns - _CLOCK_SLACK_NS


def _exists(root: bytes, path: bytes) -> bool:
    return os.path.lexists(os.path.join(root, path))


def _files(root: bytes, folder: bytes, waiting: deque[bytes]) -> Iterator[tuple[bytes, Stamp]]:
    """Yield the files of one folder (relative, with a final slash or empty); queue its folders."""
    in_git = b"/.git/" in b"/" + folder
    told = not in_git or folder.endswith(b"/hooks/")
    try:
        entries = os.scandir(os.path.join(root, folder))
    except OSError:
        return
    with entries:
        for entry in _each(entries):
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not (in_git and entry.name in _GIT_SKIPPED):
                        waiting.append(folder + entry.name + b"/")
                elif (told or entry.name in _GIT_NAMES) and (stamp := _stamp(entry)):
                    yield folder + entry.name, stamp
            except OSError:
                continue


def _each(entries: Iterator[os.DirEntry[bytes]]) -> Iterator[os.DirEntry[bytes]]:
    """Yield entries until there are no more, or the file system fails on them."""
    try:
        yield from entries
    except OSError:
        return


def _stamp(entry: os.DirEntry[bytes]) -> Stamp | None:
    """Return a regular file's or a link's stamp; None for pipes, sockets and devices."""
    if not (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
        return None
    found = entry.stat(follow_symlinks=False)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _told_as(path: bytes) -> bytes:
    """Return the name a change is told by: the hooks of a repository count as one."""
    folder, name = os.path.split(path)
    in_git = b"/.git/" in b"/" + path
    return folder if in_git and folder.endswith(b"/hooks") and name else path
