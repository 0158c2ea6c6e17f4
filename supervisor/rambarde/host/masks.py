"""Notice masked files that were replaced on the host, and new ones of a masked name. Trusted side.

An atomic save on the host (rename over the file) takes the mask's mount away in every child: the
kernel detaches what was mounted on a name that is gone (mount_namespaces(7)). The watch compares
what stands at each masked path; the zygote then masks it again inside the living children. Between
the save and that moment there is a window of about the watch's pause.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rambarde_wire.orders import Mask

_Seen = tuple[int, int]


class MaskWatch:
    """The masked paths of a run and what stood there last."""

    def __init__(self, masks: Iterable[Mask]) -> None:
        """`masks`: as laid at the start."""
        self._seen = {mask: _look(mask.path) for mask in masks}

    def replaced(self) -> list[Mask]:
        """Return the masks whose path holds something else than at the last look."""
        changed = []
        for mask, before in self._seen.items():
            now = _look(mask.path)
            if now != before:
                self._seen[mask] = now
                if now is not None:
                    changed.append(mask)
        return changed


def _look(path: bytes) -> _Seen | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
