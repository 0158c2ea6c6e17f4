"""Hash a file of the workspace without trusting its name or its kind. Trusted side.

Theory of operation
-------------------
The path comes from a child, and agents at work may swap any part of it meanwhile. So it is opened
beneath the workspace's descriptor, without links, by rambarde.host.beneath; only a regular file is
read; and what is read is bounded. What is hashed is the open file, whatever its name has become.

A file above WHOLE_BYTES is not read to its end: its digest is made of size, mtime, inode and the
first and last EDGE_BYTES, and is marked so that it never equals the hash of a content. No file tool
can have read such a file whole, so nothing is lost but the finer answer.

Source: openat2(2) RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS; stat(2).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat

import anyio.to_thread

from rambarde.errors import HostError
from rambarde.host.beneath import open_beneath

WHOLE_BYTES = 64 << 20
"""Greatest file hashed whole."""
EDGE_BYTES = 1 << 20
CHUNK_BYTES = 256 << 10
INLINE_BYTES = 1 << 20
"""Up to here hashing takes about a millisecond and is done in the event loop."""

ABSENT = ""
"""The digest of a path at which there is no file."""
_BIG_MARK = "big:"


class NotRegularError(HostError):
    """Something else than a regular file is there: a link, a folder, a device, a pipe."""


def digest_open_file(file_fd: int) -> str:
    """Return the digest of an open regular file: 64 hex digits, marked when it is too big.

    The file may change meanwhile: then the digest is that of no state it ever had, which reads as
    "changed" to whoever compares it.
    """
    found = os.fstat(file_fd)
    if found.st_size > WHOLE_BYTES:
        return _digest_edges(file_fd, found)
    digest = hashlib.sha256()
    offset = 0
    while offset <= WHOLE_BYTES:
        chunk = os.pread(file_fd, CHUNK_BYTES, offset)
        if not chunk:
            return digest.hexdigest()
        digest.update(chunk)
        offset += len(chunk)
    return _digest_edges(file_fd, os.fstat(file_fd))


def _digest_edges(file_fd: int, found: os.stat_result) -> str:
    facts = f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
    digest = hashlib.sha256(facts.encode())
    digest.update(os.pread(file_fd, EDGE_BYTES, 0))
    digest.update(os.pread(file_fd, EDGE_BYTES, max(0, found.st_size - EDGE_BYTES)))
    return _BIG_MARK + digest.hexdigest()


class WorkspaceDigest:
    """Digests of files below one open folder."""

    def __init__(self, root_fd: int) -> None:
        """`root_fd`: descriptor of the workspace's folder; stays the caller's to close."""
        self._root_fd = root_fd

    async def __call__(self, relative: bytes) -> str:
        """Return the digest of the file at `relative`, or ABSENT.

        Args:
            relative: path below the workspace, no empty, `.` or `..` part; made by a child.

        Raises:
            NotRegularError: a link, folder, pipe or device is there, or a part of the path is a
                link. Refuse what was asked.
            HostError: the supervisor may not read it, or the disk failed. Refuse as well.
        """
        file_fd = self._open(relative)
        if file_fd is None:
            return ABSENT
        try:
            found = os.fstat(file_fd)
            if not stat.S_ISREG(found.st_mode):
                raise NotRegularError(
                    f"{os.fsdecode(relative)!r} is no regular file",
                    advice="name a plain file of the workspace",
                )
            if found.st_size <= INLINE_BYTES:
                return digest_open_file(file_fd)
            return await anyio.to_thread.run_sync(digest_open_file, file_fd)
        except OSError as exc:
            raise _unreadable(relative, exc) from None
        finally:
            os.close(file_fd)

    def _open(self, relative: bytes) -> int | None:
        try:
            return open_beneath(self._root_fd, relative)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            if exc.errno in (errno.ELOOP, errno.EXDEV, errno.ENXIO, errno.EISDIR):
                raise NotRegularError(
                    f"{os.fsdecode(relative)!r} is behind a link or no regular file",
                    advice="name a plain file of the workspace by its real path",
                ) from None
            raise _unreadable(relative, exc) from None


def _unreadable(relative: bytes, exc: OSError) -> HostError:
    return HostError(
        f"{os.fsdecode(relative)!r} cannot be read: {os.strerror(exc.errno or 0)}",
        advice="look at its permissions and at the disk",
    )
