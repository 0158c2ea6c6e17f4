"""Put aside protected names that appeared during a run. Trusted side.

A name that git or the person's tools would run from, and that did not exist at the start, cannot be
mounted over without making it. If an agent made it, it is renamed at the end, so that nothing runs
it unread; the new name says what happened.

Source: renameat2(2) semantics of rename; the parent is opened beneath the workspace, without links.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rambarde.host.beneath import open_beneath

SUFFIX = b".rambarde-quarantine"


def put_aside(root: bytes, absent: Iterable[bytes]) -> list[str]:
    """Rename what now stands at names that were absent; return the old names, shown."""
    moved = []
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in absent:
            relative = path.removeprefix(root + b"/")
            if _rename(root_fd, relative):
                moved.append(relative.decode(errors="backslashreplace"))
    finally:
        os.close(root_fd)
    return moved


def _rename(root_fd: int, relative: bytes) -> bool:
    folder, name = os.path.split(relative)
    try:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        folder_fd = open_beneath(root_fd, folder or b".", flags=flags)
    except OSError:
        return False
    try:
        os.rename(name, name + SUFFIX, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except OSError:
        return False
    finally:
        os.close(folder_fd)
    return True
