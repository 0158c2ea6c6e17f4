"""Notice covered paths that were replaced on the host. Trusted side.

Theory of operation
-------------------
An atomic save on the host (rename over the file) takes away what was mounted on it in every child:
the kernel detaches a mount whose name is gone (mount_namespaces(7)). The watch compares what stands
at each masked or read-only path; the zygote then covers it again inside the living children.
Between the save and that moment there is a window of about the watch's pause.

A file system gives the inode number of a removed file to the next one made: a file removed and made
again looks like the old one. So what was seen is held open, which keeps its number taken. Above
MOST_HELD paths, ctime tells them apart instead; there a change in place is taken for a replacement,
and one mount is laid over another, which hides as well.

Source: mount_namespaces(7), open(2) O_PATH, stat(2).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable

from rambarde_wire.orders import Mask

MOST_HELD = 200
"""Descriptors held at most: the usual limit of a process is 1024."""
_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_Identity = tuple[int, int, int]


class CoverWatch:
    """The covered paths of a run and what stood there last."""

    def __init__(self, masks: Iterable[Mask], read_only: Iterable[bytes]) -> None:
        """`masks` and `read_only`: as laid at the start."""
        self._masks = tuple(masks)
        self._read_only = tuple(read_only)
        self._held: dict[bytes, int] = {}
        weakref.finalize(self, _close_all, self._held)
        self._seen: dict[bytes, _Identity | None] = {}
        for path in (*(mask.path for mask in self._masks), *self._read_only):
            self._seen[path] = self._look(path)

    def replaced(self) -> tuple[list[Mask], list[bytes]]:
        """Return the masks and leaves whose path holds something else than at the last look."""
        moved = {path for path in self._seen if self._has_moved(path)}
        masks = [mask for mask in self._masks if mask.path in moved]
        return masks, [path for path in self._read_only if path in moved]

    def _has_moved(self, path: bytes) -> bool:
        """Note what stands there now; True when it is there and is not what was there before."""
        before = self._seen[path]
        if before is not None and _identity(path, held=path in self._held) == before:
            return False
        now = self._seen[path] = self._look(path)
        return now is not None and now != before

    def _look(self, path: bytes) -> _Identity | None:
        """Hold what stands at a path and return what tells it from any other."""
        old = self._held.pop(path, None)
        try:
            if len(self._held) < MOST_HELD:
                self._held[path] = os.open(path, _HOLD)
        except OSError:
            return None
        finally:
            # Only now: until here the number of what was seen before stays taken.
            if old is not None:
                os.close(old)
        return _identity(path, held=path in self._held, fd=self._held.get(path))


def _identity(path: bytes, *, held: bool, fd: int | None = None) -> _Identity | None:
    try:
        found = os.lstat(path) if fd is None else os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino, 0 if held else found.st_ctime_ns


def _close_all(held: dict[bytes, int]) -> None:
    for fd in held.values():
        os.close(fd)
    held.clear()
