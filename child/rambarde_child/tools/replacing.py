"""Put new content in a file's place, whole or not at all. Inside the sandbox.

Theory of operation
-------------------
The order is: read what is there, ask the supervisor (which locks the path and may wait for a
human), then open the folder, look again, write a new file beside the old one and rename it over.
From the opening of the folder on, every step is relative to its descriptor and follows no link:
whatever is swapped meanwhile, the new content lands in that folder under that name, or nowhere.
What is there must still be what was asked about, else nothing is written.

A link, a FIFO or a device put in the file's place after the last look is replaced by the rename,
never written through. Other hard links of the old file keep the old content.

Source: rename(2), openat(2), fsync(2).
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256

from rambarde_child import ask
from rambarde_child.outcome import ToolError, error_of
from rambarde_child.tools import paths
from rambarde_child.tools.diff import unified_diff
from rambarde_child.tools.paths import Names, Place

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_whole(place: Place, names: Names) -> bytes | None:
    """Return a regular file's content, None when there is no file.

    Raises:
        ToolError: `too_large`, or not a regular file, or an errno in words.
    """
    paths.check_names(names)
    try:
        folder = paths.open_folder(place, names[:-1])
    except ToolError as exc:
        if exc.missing:
            return None
        raise
    with paths.opened(folder):
        return _read_in(folder, names[-1], paths.show_names(names), place.limits.file_bytes)


def _read_in(folder_fd: int, name: bytes, shown: str, most_bytes: int) -> bytes | None:
    try:
        fd = paths.open_regular(folder_fd, name, shown)
    except ToolError as exc:
        if exc.missing:
            return None
        raise
    with paths.opened(fd), open(fd, "rb", buffering=0, closefd=False) as file:
        if (size := os.fstat(fd).st_size) > most_bytes:
            text = f"{shown} has {size} bytes, at most {most_bytes} can be edited; use a command"
            raise ToolError("too_large", text)
        return file.read()


def replace_file(place: Place, names: Names, old: bytes | None, new: bytes) -> None:
    """Ask for the write, do it, and tell what became of it.

    Args:
        place: the workspace and the call.
        names: canonical path of the file; folders on the way are made.
        old: content that the new one is meant to replace, None when there was no file.
        new: the whole new content.

    Raises:
        ToolError: the supervisor said no, `old` is there no more, or an errno in words.
    """
    shown, most = paths.show_names(names), place.limits.file_bytes
    if not place.writable:
        raise ToolError("read_only", f"{shown}: this agent may not write files")
    if len(new) > most:
        raise ToolError("too_large", f"{shown} would have {len(new)} bytes, at most {most}")
    path = place.canonical(names)
    diff = unified_diff(old or b"", new, most_bytes=place.limits.diff_bytes)
    before = "" if old is None else sha256(old).hexdigest()
    verdict = ask.ask_write(place.pipe, place.call_id, path, before)
    if not verdict.allowed:
        raise ToolError(verdict.code, verdict.text)
    written = ""
    try:
        _commit(place, names, old, new)
        written = sha256(new).hexdigest()
    finally:
        ask.tell_wrote(place.pipe, place.call_id, path, written, diff if written else "")


def _commit(place: Place, names: Names, old: bytes | None, new: bytes) -> None:
    shown = paths.show_names(names)
    with paths.opened(paths.open_folder(place, names[:-1], make=True)) as folder:
        if _read_in(folder, names[-1], shown, place.limits.file_bytes) != old:
            raise ToolError("stale", f"{shown} changed just now; read it again and redo the change")
        try:
            _write_beside(folder, names[-1], new, shown)
        except OSError as exc:
            raise error_of(exc, shown) from None


def _write_beside(folder_fd: int, name: bytes, new: bytes, shown: str) -> None:
    # Short enough for any name, and hidden from patterns such as *.py.
    beside = b".%s.rambarde-%s" % (name[:200], os.urandom(8).hex().encode())
    fd = os.open(beside, _CREATE, 0o600, dir_fd=folder_fd)
    try:
        with paths.opened(fd):
            left = memoryview(new)
            while left:
                left = left[os.write(fd, left) :]
            os.fchmod(fd, _mode_for(folder_fd, name, fd, shown))
            os.fsync(fd)
        os.rename(beside, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder_fd)
        raise


def _mode_for(folder_fd: int, name: bytes, new_fd: int, shown: str) -> int:
    """Return the permission bits the new file gets: the old file's, else after the folder's."""
    try:
        old = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return os.fstat(folder_fd).st_mode & 0o664
    paths.check_regular(old.st_mode, shown)
    if old.st_uid != os.fstat(new_fd).st_uid:
        text = f"{shown} belongs to another user, whom replacing it would take it from"
        raise ToolError("denied", text)
    return old.st_mode & 0o777
