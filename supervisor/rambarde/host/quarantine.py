"""Put aside protected names that appeared during a run. Trusted side.

A name that git or the person's tools would run from, and that did not exist at the start, cannot be
mounted over without making it. If an agent made it, it is renamed at the end, so that nothing runs
it unread; the new name says what happened. A whole repository made where none was stays, if it is
plain.

Source: rename(2). Parents are opened from the root of the file system, through no link: the paths
were canonical at the start, so a link on the way was planted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rambarde.host.beneath import open_beneath
from rambarde.host.new_repository import is_plain_repository

SUFFIX = b".rambarde-quarantine"
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def put_aside(root: bytes, absent: Iterable[bytes]) -> list[str]:
    """Rename what now stands at names that were absent; return the old names, shown.

    Args:
        root: the workspace; names below it are shown without it.
        absent: canonical absolute paths.
    """
    top_fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        moved = [path for path in absent if _rename(top_fd, path)]
    finally:
        os.close(top_fd)
    return [path.removeprefix(root + b"/").decode(errors="backslashreplace") for path in moved]


def told_aside(name: str) -> str:
    """Return the notice for a name that was put aside."""
    return (
        f"{name} appeared during the run and was put aside as {name}{SUFFIX.decode()}:"
        " read it before you use it"
    )


def _rename(top_fd: int, path: bytes) -> bool:
    folder, name = os.path.split(path)
    if name == b".git" and is_plain_repository(path):
        return False
    try:
        folder_fd = open_beneath(top_fd, folder.lstrip(b"/") or b".", flags=_FOLDER)
    except OSError:
        return False
    try:
        os.rename(name, _free_name(folder_fd, name), src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except OSError:
        return False
    finally:
        os.close(folder_fd)
    return True


def _free_name(folder_fd: int, name: bytes) -> bytes:
    """Return a name that nothing has: an earlier find, or an agent's bait, is left as it is."""
    for number in range(1000):
        candidate = name + SUFFIX + (b".%d" % number if number else b"")
        try:
            os.stat(candidate, dir_fd=folder_fd, follow_symlinks=False)
        except FileNotFoundError:
            return candidate
    raise FileExistsError(os.fsdecode(name))
