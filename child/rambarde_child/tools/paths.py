r"""From the model's words to an open file of the workspace, without a race. Inside the sandbox.

Theory of operation
-------------------
The kernel confines this process; nothing here is what keeps it in. What this adds is that a tool
acts on the file it has named to the supervisor, whatever others swap meanwhile, and says
"outside the workspace" instead of ENOENT.

`locate` follows links and gives the canonical names below the workspace. Everything after that
walks those names one by one from the workspace's descriptor and follows no link: if a folder has
become a link since, the walk fails, it never goes elsewhere.

Paths are bytes. In text, one that is not printable UTF-8 has bash's form `$'caf\xe9'`.

Source: openat(2), symlink(7), path_resolution(7) (40 links), bash(1) QUOTING.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rambarde_child.outcome import ToolError, error_of
from rambarde_child.pipe import Pipe
from rambarde_wire.frames import MAX_PATH_BYTES, OrderBegin, ToolLimits

_MOST_LINKS = 40
_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: the open of a FIFO, should one be swapped in, does not wait for its other end.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Names = tuple[bytes, ...]
"""Canonical path below the workspace: no empty name, no dot, no link when it was located."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where tools work. `roots`: spellings of the workspace; the first is the supervisor's."""

    roots: tuple[bytes, ...]
    root_fd: int
    writable: bool
    limits: ToolLimits
    pipe: Pipe
    call_id: str = ""

    def canonical(self, names: Names) -> bytes:
        """Return the absolute path as the supervisor spells it."""
        return b"/".join((self.roots[0], *names))


def open_place(begin: OrderBegin, pipe: Pipe) -> Place:
    """Open the workspace that the supervisor named. Raises OSError when it is not there."""
    workspace = begin.workspace.rstrip(b"/")
    roots = (workspace, os.path.realpath(workspace))
    root_fd = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return Place(roots, root_fd, begin.writable, begin.limits, pipe)


# Read exactly as the supervisor reads it (rambarde.policy.ansi_c), which judges the same words.
_ESCAPE = re.compile(rb"\\(?:x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|[0-7]{1,3}|.)", re.DOTALL)
_NAMED = dict(zip(b"abefnrt", b"\a\b\x1b\f\n\r\t", strict=True))


def _unescape(match: re.Match[bytes]) -> bytes:
    escape = match.group()[1:]
    kind, digits = escape[:1], escape[1:]
    if kind == b"x" and digits:
        return bytes([int(digits, 16)])
    if kind == b"u" and digits:
        return chr(int(digits, 16)).encode()
    if kind in b"01234567":
        return bytes([int(escape, 8) & 0xFF])
    return bytes([_NAMED.get(escape[0], escape[0])])


def parse_path(text: str) -> bytes:
    """Return the bytes of a path in the model's words. Raises ToolError on no path at all."""
    try:
        path = text.encode()
        if path.startswith(b"$'") and path.endswith(b"'") and len(path) > 2:
            path = _ESCAPE.sub(_unescape, path[2:-1])
    except UnicodeEncodeError:
        raise ToolError("bad_path", "the path holds a character that does not exist") from None
    if not path or b"\0" in path:
        raise ToolError("bad_path", "a path is at least one byte and holds no NUL")
    if len(path) >= MAX_PATH_BYTES:
        raise ToolError("bad_path", f"the path has {len(path)} bytes, at most {MAX_PATH_BYTES - 1}")
    return path


def show(path: bytes) -> str:
    """Return a path as text that `parse_path` reads back to the same bytes."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable() and not text.startswith("$'"):
        return text
    plain = frozenset(range(0x20, 0x7F)) - frozenset(b"'\\")
    return "$'" + "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in path) + "'"


def show_names(names: Sequence[bytes]) -> str:
    """Return a path below the workspace as text, `.` for the workspace itself."""
    return show(b"/".join(names) or b".")


def locate(place: Place, path: bytes) -> Names:
    """Return where a path leads, links followed; it need not exist.

    Args:
        place: the workspace.
        path: relative to it, or absolute inside it, from `parse_path`.

    Raises:
        ToolError: `outside` when it leads out of the workspace, else `bad_path`.
    """
    pending = _parts(place, path, path)
    found: list[bytes] = []
    links = 0
    while pending:
        name = pending.pop()
        if name == b"..":
            if not found:
                raise _outside(path)
            found.pop()
        elif (target := _link(place, (*found, name), path)) is None:
            found.append(name)
        else:
            links += 1
            if links > _MOST_LINKS:
                raise ToolError("bad_path", f"{show(path)}: more than {_MOST_LINKS} links in a row")
            if target.startswith(b"/"):
                found.clear()
            pending += _parts(place, target, path)
    return tuple(found)


def _parts(place: Place, path: bytes, asked: bytes) -> list[bytes]:
    """Return the names of a path, last first; of an absolute one those below the workspace."""
    if path.startswith(b"/"):
        path = _below(place, path, asked)
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


def _below(place: Place, path: bytes, asked: bytes) -> bytes:
    # The second look is for spellings through a link above the workspace.
    for candidate in (path, os.path.realpath(path)):
        for root in place.roots:
            if candidate == root or candidate.startswith(root + b"/"):
                return candidate[len(root) :]
    raise _outside(asked)


def _link(place: Place, names: Names, asked: bytes) -> bytes | None:
    try:
        return os.readlink(b"/".join(names), dir_fd=place.root_fd)
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            raise error_of(exc, show(asked)) from None
        # No link, or nothing there, or not to be seen: the walk that opens it tells which.
        return None


def _outside(asked: bytes) -> ToolError:
    text = f"{show(asked)}: outside the workspace; file tools work on paths inside it"
    return ToolError("outside", text)


@contextmanager
def opened(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_folder(place: Place, names: Names, *, make: bool = False) -> int:
    """Open a folder by canonical names (O_PATH), following no link.

    `make` creates what is missing, with the rights of the folder above it.

    Raises:
        ToolError: names the part of the path that failed.
    """
    fd = os.dup(place.root_fd)
    for depth, name in enumerate(names, 1):
        try:
            try:
                below = os.open(name, _WALK, dir_fd=fd)
            except FileNotFoundError:
                if not make:
                    raise
                below = _make_folder(fd, name)
        except OSError as exc:
            raise error_of(exc, show_names(names[:depth])) from None
        finally:
            os.close(fd)
        fd = below
    return fd


def _make_folder(above_fd: int, name: bytes) -> int:
    try:
        os.mkdir(name, 0o700, dir_fd=above_fd)
    except FileExistsError:
        return os.open(name, _WALK, dir_fd=above_fd)
    mode = os.fstat(above_fd).st_mode & 0o775
    with opened(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above_fd)) as fd:
        os.fchmod(fd, mode)
        return os.open(b".", _WALK, dir_fd=fd)


_KINDS = {
    stat.S_IFDIR: "a folder; list it with glob",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link put there just now",
}


def check_regular(mode: int, shown: str) -> None:
    """Refuse whatever is not a regular file, saying what it is."""
    kind = stat.S_IFMT(mode)
    if kind != stat.S_IFREG:
        code = "is_folder" if kind == stat.S_IFDIR else "not_regular"
        raise ToolError(code, f"{shown} is not a regular file but {_KINDS.get(kind, 'unknown')}")


def open_regular(folder_fd: int, name: bytes, shown: str) -> int:
    """Open a regular file of an open folder for reading; never waits, follows no link."""
    try:
        # Looked at first, for the open alone can already do something to a device.
        check_regular(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode, shown)
        fd = os.open(name, READ_FLAGS, dir_fd=folder_fd)
        try:
            check_regular(os.fstat(fd).st_mode, shown)
        except BaseException:
            os.close(fd)
            raise
    except OSError as exc:
        raise error_of(exc, shown) from None
    return fd


def check_names(names: Names) -> None:
    """Refuse the workspace itself where a file is meant."""
    if not names:
        raise ToolError("is_folder", "the workspace is a folder; list it with glob")
