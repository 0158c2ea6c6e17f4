"""Notice covered paths that were replaced on the host. Trusted side.

An atomic save on the host (rename over the file) takes away what was mounted on it in every child:
the kernel detaches a mount whose name is gone (mount_namespaces(7)). The watch compares what stands
at each masked or read-only path; the zygote then covers it again inside the living children.
Between the save and that moment there is a window of about the watch's pause.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

from rambarde_wire.orders import Mask

_Seen = tuple[int, int]
KeyT = TypeVar("KeyT")


class CoverWatch:
    """The covered paths of a run and what stood there last."""

    def __init__(self, masks: Iterable[Mask], read_only: Iterable[bytes]) -> None:
        """`masks` and `read_only`: as laid at the start."""
        self._masks = {mask: _look(mask.path) for mask in masks}
        self._read_only = {path: _look(path) for path in read_only}

    def replaced(self) -> tuple[list[Mask], list[bytes]]:
        """Return the masks and leaves whose path holds something else than at the last look."""
        masks = [mask for mask in self._masks if _moved(self._masks, mask, mask.path)]
        leaves = [path for path in self._read_only if _moved(self._read_only, path, path)]
        return masks, leaves


def _moved(seen: dict[KeyT, _Seen | None], key: KeyT, path: bytes) -> bool:
    """Note what stands there now; True when it is there and is not what was there before."""
    before, now = seen[key], _look(path)
    seen[key] = now
    return now is not None and now != before


def _look(path: bytes) -> _Seen | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
