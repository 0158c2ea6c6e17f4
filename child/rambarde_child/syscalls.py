"""Linux calls that the standard library lacks, each named after the call. Inside the sandbox.

The zygote and its children run this; nothing here decides. A call that fails raises StepFailed
with the name of the step and the errno, never OSError, so that a refusal of the kernel can be
reported without a traceback.

Structures the kernel only reads are passed as bytes objects: no ctypes array type, which would be
made anew for each size, and that in every child. They live until the call returns.

`ctypes.PyDLL` keeps the interpreter lock: there is one thread, and a fork between release and
re-take of the lock would leave the child without it.

Source: syscalls(2); numbers from 424 on are the same on every architecture, older ones differ.
"""

from __future__ import annotations

import ctypes
import os
import struct

_NUMBERS = {
    "x86_64": {"pivot_root": 155, "seccomp": 317, "capset": 126, "capget": 125},
    "aarch64": {"pivot_root": 41, "seccomp": 277, "capset": 91, "capget": 90},
}

CLONE_PIDFD, CLONE_PARENT = 0x1000, 0x8000
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x20000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x08000000, 0x10000000, 0x20000000
CLONE_NEWNET = 0x40000000
_CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x200000, 0x1000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC = 0x20, 0x1000, 0x4000
MS_PRIVATE, MS_SLAVE, MS_SHARED = 1 << 18, 1 << 19, 1 << 20
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_IDMAP = 1, 2, 4, 0x100000
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_OPEN_TREE_CLONE = 1
_MNT_DETACH = 2
_MOVE_FROM_EMPTY, _MOVE_TO_EMPTY = 0x4, 0x40
_RESOLVE = 0x08 | 0x04 | 0x02
"""RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS."""
_HOW = struct.pack("=QQQ", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _RESOLVE)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
PR_GET_SECCOMP, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS = 21, 23, 24, 28
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 36, 38, 39
_PR_GET_TID_ADDRESS = 40
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAP_HEADER = struct.pack("=Ii", 0x20080522, 0)
_cap_header = ctypes.create_string_buffer(8)
_cap_data = ctypes.create_string_buffer(24)


class StepFailed(Exception):  # noqa: N818 - a state told to the supervisor, not a class of errors
    """A step of set-up was refused: `step` names it, `errno` says why (0: no errno), `text` how."""

    def __init__(self, step: str, errno: int = 0, text: str = "") -> None:
        """`text` defaults to the kernel's words for `errno`."""
        super().__init__(step)
        self.step = step
        self.errno = errno
        self.text = text or (os.strerror(errno) if errno else "")


_libc = ctypes.PyDLL(None, use_errno=True)
_python = ctypes.pythonapi
_number = _NUMBERS.get(os.uname().machine, {})


def _call(name: str, *argtypes: type) -> ctypes._NamedFuncPointer:
    """Return a fresh handle on a libc function: each use keeps its own argument types."""
    function = _libc[name]
    function.argtypes = argtypes
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    return function


_long, _int, _uint = ctypes.c_long, ctypes.c_int, ctypes.c_uint
_text, _pointer, _ulong = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_ulong
_prctl = _call("prctl", _int, _ulong, _ulong, _ulong, _ulong)
_prctl_text = _call("prctl", _int, _text, _ulong, _ulong, _ulong)
_unshare = _call("unshare", _int)
_setns = _call("setns", _int, _int)
_mount = _call("mount", _text, _text, _text, _ulong, _text)
_poll = _call("poll", _pointer, _ulong, _int)
_umount2 = _call("umount2", _text, _int)
_clone3 = _call("syscall", _long, _pointer, _long)
_pivot_root = _call("syscall", _long, _text, _text)
_open_tree = _call("syscall", _long, _int, _text, _uint)
_move_mount = _call("syscall", _long, _int, _text, _int, _text, _uint)
_mount_setattr = _call("syscall", _long, _int, _text, _uint, _text, _long)
_openat2 = _call("syscall", _long, _int, _text, _text, _long)
_close_range = _call("syscall", _long, _uint, _uint, _uint)
_landlock_create = _call("syscall", _long, _text, _long, _uint)
_landlock_add = _call("syscall", _long, _int, _int, _text, _uint)
_landlock_restrict = _call("syscall", _long, _int, _uint)
_seccomp = _call("syscall", _long, _uint, _uint, _text)
_capset = _call("syscall", _long, _text, _text)
_capget = _call("syscall", _long, _pointer, _pointer)


def _checked(result: int, step: str) -> int:
    if result < 0:
        raise StepFailed(step, ctypes.get_errno())
    return result


def prctl(option: int, first: int = 0, second: int = 0, *, step: str = "prctl") -> int:
    """Pass integers to the kernel; the unused ones are zero, as newer options demand."""
    # SAFETY: integers only; no option named in this module writes through an argument.
    return _checked(_prctl(option, first, second, 0, 0), step)


def prctl_nowait(option: int, first: int = 0) -> int:
    """As prctl, but return -1 where the kernel refuses."""
    # SAFETY: integers only, as above.
    return int(_prctl(option, first, 0, 0, 0))


def set_name(name: bytes) -> None:
    """Set the name of the thread (`comm`); the kernel keeps 15 bytes."""
    # SAFETY: the kernel reads at most 16 bytes of a NUL-terminated string.
    _prctl_text(PR_SET_NAME, name[:15], 0, 0, 0)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    # SAFETY: an integer.
    _checked(_unshare(flags), "unshare")


def setns(fd: int, kind: int, step: str) -> None:
    """Join the namespace of type `kind` (CLONE_NEW*) behind `fd`."""
    # SAFETY: two integers.
    _checked(_setns(fd, kind), step)


# ── processes ────────────────────────────────────────────────────────────────────────────────

_clone_args = (ctypes.c_uint64 * 11)()
_pidfd = ctypes.c_int(-1)
_tid_address = ctypes.c_uint64(0)
# SAFETY: the kernel writes one pointer of 8 bytes, the size of the integer handed over. Without
# CONFIG_CHECKPOINT_RESTORE it writes nothing, the address stays 0 and clone leaves it alone.
_prctl(_PR_GET_TID_ADDRESS, ctypes.addressof(_tid_address), 0, 0, 0)


def clone(flags: int = 0, *, step: str = "clone3") -> tuple[int, int]:
    """Fork by clone3(2); as fork(2), but into new namespaces and with a pidfd.

    Returns:
        (0, -1) in the child; (pid, pidfd) in the caller, the pidfd close-on-exec.

    Source: clone(2); glibc's fork also hands CHILD_SETTID the thread's own tid slot, without
    which raise(3) in the child would signal a stale number. With CLONE_PARENT the exit signal
    must be 0 and is inherited.
    """
    tid_flags = _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID if _tid_address.value else 0
    _clone_args[0] = flags | CLONE_PIDFD | tid_flags
    _clone_args[1] = ctypes.addressof(_pidfd)
    _clone_args[2] = _tid_address.value
    _clone_args[4] = 0 if flags & CLONE_PARENT else 17
    _python.PyOS_BeforeFork()
    # SAFETY: 88 bytes are the eleven words of the array, which lives as long as the module; no
    # stack is given, so the child goes on with a copy of this one, as after fork.
    pid: int = _clone3(435, ctypes.addressof(_clone_args), 88)
    errno = ctypes.get_errno()
    if pid == 0:
        _python.PyOS_AfterFork_Child()
        return 0, -1
    _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise StepFailed(step, errno)
    return pid, _pidfd.value


def close_range(first: int, last: int = 0x7FFFFFFF, *, on_exec_only: bool = False) -> None:
    """Close descriptors `first` to `last`, or mark them close-on-exec. Source: Linux 5.9."""
    # SAFETY: integers.
    _checked(_close_range(436, first, last, 4 if on_exec_only else 0), "close_range")


def close_all_except(keep: set[int]) -> None:
    """Close every descriptor from 3 on that is not in `keep`."""
    first = 3
    for fd in sorted(keep):
        if fd > first:
            close_range(first, fd - 1)
        first = max(first, fd + 1)
    close_range(first)


_POLLED = 1024
_pollfds = ctypes.create_string_buffer(
    b"".join(struct.pack("=ihh", n, 0, 0) for n in range(_POLLED))
)


def open_fds(limit: int) -> list[int]:
    """List the open descriptors below `limit` (RLIMIT_NOFILE) and 1024: needs no /proc.

    One poll(2) marks each closed one with POLLNVAL.
    """
    count = min(limit, _POLLED)
    # SAFETY: `count` structures of 8 bytes are within the buffer; the kernel writes in no others.
    _checked(_poll(ctypes.addressof(_pollfds), count, 0), "poll")
    marks = _pollfds.raw[6 : count * 8 : 8]
    return [fd for fd in range(len(marks.rstrip(b"\x20"))) if marks[fd] != 0x20]


# ── mounts ───────────────────────────────────────────────────────────────────────────────────


def mount(
    source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None
) -> None:
    """Mount `source` at `target`; `kind` None with MS_BIND or a change of flags."""
    # SAFETY: the kernel reads NUL-terminated strings, `data` up to one page.
    done = _mount(source, target, kind, flags, data)
    if done < 0:
        raise StepFailed(f"mount {os.fsdecode(target)}", ctypes.get_errno())


def pivot_root_here() -> None:
    """Make the current directory the root and let go of the old one. Source: pivot_root(2)."""
    # SAFETY: two NUL-terminated strings each, only read.
    _checked(_pivot_root(_number["pivot_root"], b".", b"."), "pivot_root")
    _checked(_umount2(b".", _MNT_DETACH), "umount old root")


def open_tree(path: bytes, *, at_fd: int = -100, recursive: bool = True) -> int:
    """Return a detached copy of the mount at `path`, or of what `at_fd` is when `path` is empty."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    flags |= (_AT_RECURSIVE if recursive else 0) | (0 if path else _AT_EMPTY_PATH)
    # SAFETY: one NUL-terminated string, only read.
    return _checked(_open_tree(428, at_fd, path, flags), f"open_tree {os.fsdecode(path)}")


def mount_setattr(
    fd: int,
    *,
    add: int = 0,
    propagation: int = 0,
    userns_fd: int = 0,
    recursive: bool = True,
    step: str = "mount_setattr",
) -> None:
    """Add attributes to the mount behind `fd`, submounts included. Source: Linux 5.12."""
    attributes = struct.pack("=QQQQ", add, 0, propagation, userns_fd)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    # SAFETY: the kernel reads the 32 bytes of the structure.
    result = _mount_setattr(442, fd, b"", flags, attributes, 32)
    _checked(result, step)


def move_mount(fd: int, target: bytes, *, at_fd: int = -100) -> None:
    """Attach a detached mount at `target`, or on what `at_fd` is when `target` is empty."""
    flags = _MOVE_FROM_EMPTY | (0 if target else _MOVE_TO_EMPTY)
    # SAFETY: two NUL-terminated strings, only read.
    result = _move_mount(429, fd, b"", at_fd, target, flags)
    _checked(result, f"move_mount {os.fsdecode(target)}")


def open_beneath(root_fd: int, path: bytes) -> int:
    """Open a path below `root_fd` with O_PATH, through no symlink. Source: openat2(2), 5.6.

    A last component that is a symlink is opened as itself. Raises StepFailed: ENOENT when it is
    absent, ELOOP when a directory of the path is a symlink, EXDEV when it would leave the root.
    """
    # SAFETY: the kernel reads the 24 bytes of the structure and one string.
    fd = _openat2(437, root_fd, path, _HOW, 24)
    return _checked(fd, f"openat2 {os.fsdecode(path)}")


# ── restrictions ─────────────────────────────────────────────────────────────────────────────


def landlock_version(*, errata: bool = False) -> int:
    """Return the ABI of Landlock, or its bitmap of errata; 0 when there is none."""
    # SAFETY: a null pointer of size 0 asks for the version and nothing is written.
    return max(0, int(_landlock_create(444, None, 0, 2 if errata else 1)))


def landlock_ruleset(handled_fs: int, handled_net: int, scoped: int) -> int:
    """Return the descriptor of an empty ruleset that handles these rights."""
    attributes = struct.pack("=QQQ", handled_fs, handled_net, scoped)
    # SAFETY: the kernel reads 24 bytes; one that knows fewer accepts zeros past what it knows.
    return _checked(_landlock_create(444, attributes, 24, 0), "landlock_create_ruleset")


def landlock_allow(ruleset_fd: int, access: int, path_fd: int, step: str) -> None:
    """Allow `access` below the directory, or on the file, behind `path_fd`."""
    rule = struct.pack("=Qi", access, path_fd)
    # SAFETY: the kernel reads the 12 bytes of the packed structure.
    _checked(_landlock_add(445, ruleset_fd, 1, rule, 0), step)


def landlock_seal(ruleset_fd: int) -> None:
    """Put this thread, and all it will start, under the ruleset. Needs no_new_privs."""
    # SAFETY: two integers.
    _checked(_landlock_restrict(446, ruleset_fd, 0), "landlock_restrict_self")


def seccomp_seal(program: bytes) -> None:
    """Load a filter: `program` holds sock_filter structures of 8 bytes. Needs no_new_privs."""
    # SAFETY: the kernel copies `len` instructions of 8 bytes from the bytes object, which holds
    # that many and which this frame keeps alive.
    address = ctypes.cast(_text(program), _pointer).value or 0
    header = struct.pack("@HxxxxxxP", len(program) // 8, address)
    _checked(_seccomp(_number["seccomp"], 1, 0, header), "seccomp")


def drop_linux_caps(last_cap: int) -> None:
    """Empty the ambient, bounding, effective, permitted and inheritable sets, in that order.

    The secure bits are locked first: no later change of uid gives anything back. Source:
    capabilities(7).
    """
    prctl(PR_SET_SECUREBITS, 0b11101111, step="securebits")
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, step="ambient clear")
    for cap in range(last_cap + 1):
        # SAFETY: integers only.
        _checked(_prctl(PR_CAPBSET_DROP, cap, 0, 0, 0), "bounding drop")
    drop_held_linux_caps()


def bounding_linux_caps(last_cap: int) -> int:
    """Return the bounding set as a bit mask."""
    # SAFETY: integers only.
    held = [cap for cap in range(last_cap + 1) if _prctl(PR_CAPBSET_READ, cap, 0, 0, 0) > 0]
    return sum(1 << cap for cap in held)


def drop_held_linux_caps() -> None:
    """Empty the effective, permitted and inheritable sets: needs no linux cap itself."""
    # SAFETY: version 3 reads a header of 8 bytes and two structures of 12.
    _checked(_capset(_number["capset"], _CAP_HEADER, bytes(24)), "capset")


def held_linux_caps() -> tuple[int, int, int]:
    """Return this thread's effective, permitted and inheritable sets as bit masks."""
    ctypes.memmove(_cap_header, _CAP_HEADER, 8)
    # SAFETY: version 3 writes two structures of 12 bytes, the size of `_cap_data`, and may write
    # its version into the header, which is a buffer too.
    result = _capget(_number["capget"], ctypes.addressof(_cap_header), ctypes.addressof(_cap_data))
    _checked(result, "capget")
    data = _cap_data.raw
    low = struct.unpack_from("=III", data, 0)
    high = struct.unpack_from("=III", data, 12)
    return (low[0] | high[0] << 32, low[1] | high[1] << 32, low[2] | high[2] << 32)


# ── the title ────────────────────────────────────────────────────────────────────────────────


def _argument_area() -> tuple[int, int]:
    """Return first address and length of the memory that /proc/self/cmdline shows, or (0, 0)."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0
    start, end = int(fields[45]), int(fields[46])
    return (start, end - start) if end - start > 64 else (0, 0)


_area_at, _area_bytes = _argument_area()


def set_title(title: bytes) -> None:
    """Make `ps` show `title` for this process.

    Source: fs/proc/base.c get_mm_cmdline: when the last byte of the argument area is not zero the
    area is shown up to its first zero. proc_pid_stat(5) fields 48 and 49 give the area.
    """
    set_name(title.rpartition(b": ")[2] or title)
    if not _area_at:
        return
    cut = title[: _area_bytes - 2]
    # SAFETY: the area is this process's own argument strings, mapped and writable since exec; it
    # is written from its first to its last byte and not past it. CPython copied argv at start.
    ctypes.memmove(_area_at, cut.ljust(_area_bytes - 1, b"\0") + b"\1", _area_bytes)


def try_unshare() -> int:
    """Return the errno of making a user namespace; 0: it was made, which is an escape."""
    # SAFETY: an integer.
    return 0 if _unshare(CLONE_NEWUSER) == 0 else ctypes.get_errno()
