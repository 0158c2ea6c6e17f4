"""Open paths of the workspace without trusting them. Trusted side.

Theory of operation
-------------------
Everything in a workspace may be swapped by an agent between two looks. So the supervisor opens by
one system call: beneath a descriptor, through no link of any kind, and without waiting on a pipe or
a device; then it asks the open file what it is.

Source: openat2(2) (Linux 5.6) RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_RESOLVE = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY
_TRIES = 16

_libc = ctypes.CDLL(None, use_errno=True)


def open_beneath(root_fd: int, relative: bytes, *, flags: int = _READ) -> int:
    """Open a path beneath a directory, through no link; return a new descriptor.

    Args:
        root_fd: of the directory; an O_PATH descriptor will do.
        relative: path below it, without a leading slash; b"." is the directory itself.
        flags: of open(2); never O_CREAT.

    Raises:
        OSError: as open(2); ELOOP for a link on the way, EXDEV for a way out, EINVAL for a NUL.
    """
    if b"\0" in relative:
        # The kernel would read up to there and open another file than the one that was judged.
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fsdecode(relative))
    how = struct.pack("=QQQ", flags, 0, _RESOLVE)
    for _attempt in range(_TRIES):
        # SAFETY: `how` is the 24 bytes of struct open_how, read only; the path is NUL-terminated
        # by c_char_p; both live until the call returns.
        fd = int(_libc.syscall(_OPENAT2, root_fd, ctypes.c_char_p(relative), how, len(how)))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            # EAGAIN: a rename raced the walk (openat2(2)); all else stands.
            break
    raise OSError(number, os.strerror(number), os.fsdecode(relative))


def read_beneath(root: bytes, relative: bytes, *, max_bytes: int) -> bytes | None:
    """Return a regular file's content; None when it is absent, no such file, or longer.

    Args:
        root: absolute path of the workspace.
        relative: path below it.
        max_bytes: longest content that is returned.
    """
    try:
        root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fd = open_beneath(root_fd, relative)
    except OSError:
        return None
    finally:
        os.close(root_fd)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = bytearray()
        while len(data) <= max_bytes:
            piece = os.read(fd, min(1 << 20, max_bytes + 1 - len(data)))
            if not piece:
                return bytes(data)
            data += piece
    except OSError:
        return None
    finally:
        os.close(fd)
    return None
