"""The file system a child sees: a template made once, and what each child adds. Inside the sandbox.

Theory of operation
-------------------
The zygote, in its own mount namespace, builds a small tmpfs (the template): read-only binds of the
system, device nodes, generated files, the mount points, and one empty file and one empty directory
that serve as masks. Each child starts with a copy of that mount table and then

 1. binds the template onto itself: mounts inherited from a more privileged namespace are locked
    (MNT_LOCKED) and pivot_root refuses them, a fresh bind is not;
 2. mounts its tmpfs, its pseudo-terminals and its /proc;
 3. attaches the workspace, which the zygote opened and copied beforehand (id-mapped for root), so
    that no host path is looked up by a child;
 4. lays pins, read-only leaves and masks over it, each resolved beneath the workspace through no
    symlink, for an earlier agent may have planted one;
 5. pivots and lets go of the host's tree.

The workspace's mounts are shared with the commands' later copies of the namespace, so that a mask
laid anew in a live child reaches its running commands too. Nothing spreads the other way.

Source: mount_namespaces(7), pivot_root(2), open_tree and move_mount (5.2), mount_setattr (5.12).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping

from rambarde_wire.orders import Entry, Link, Mask, SandboxPlan, Tier, Tmpfs, ZygoteSetup

from . import syscalls as sys_
from .syscalls import StepFailed

EMPTY_FILE = b"/rambarde/empty-file"
EMPTY_DIR = b"/rambarde/empty-dir"
_SEATS = (b"/mnt", b"/media", b"/srv", b"/boot", b"/run", b"/tmp", b"/var")
_MOUNT_POINTS = (
    b"/proc",
    b"/dev/pts",
    b"/dev/shm",
    b"/tmp",
    b"/var/tmp",
    b"/home/agent",
    EMPTY_DIR,
)
_QUIET = sys_.MS_NOSUID | sys_.MS_NODEV
_PROC_FLAGS = _QUIET | sys_.MS_NOEXEC
_PROC_READ_ONLY = (b"sys", b"bus", b"irq", b"fs")
_PROC_EMPTY_DIRS = (b"acpi", b"scsi")
_PROC_EMPTY_FILES = (
    b"sysrq-trigger",
    b"keys",
    b"key-users",
    b"kcore",
    b"kallsyms",
    b"kmsg",
    b"timer_list",
    b"sched_debug",
)


# ── the template (zygote, once) ──────────────────────────────────────────────────────────────


def build_template(setup: ZygoteSetup) -> bytes:
    """Mount and fill the template; return the directory it covers in the zygote's own view.

    Raises:
        StepFailed: an entry cannot be made; the step names its target.
    """
    seat = _free_seat(setup)
    sys_.mount(b"tmpfs", seat, b"tmpfs", _QUIET, b"mode=0755,size=16m,nr_inodes=4k")
    before = os.umask(0o022)
    try:
        for point in (*_MOUNT_POINTS, setup.workspace, *setup.beside):
            os.makedirs(seat + point, exist_ok=True)
        _write(seat + EMPTY_FILE, b"")
        for entry in setup.entries:
            _make_entry(seat, entry)
    except OSError as exc:
        raise StepFailed(f"template {os.fsdecode(seat)}", exc.errno or 0, str(exc)) from None
    finally:
        os.umask(before)
    seat_fd = os.open(seat, os.O_PATH | os.O_CLOEXEC)
    attributes = sys_.ATTR_RDONLY | sys_.ATTR_NOSUID | sys_.ATTR_NODEV
    sys_.mount_setattr(seat_fd, add=attributes, recursive=False, step="template read-only")
    os.close(seat_fd)
    return seat


def _free_seat(setup: ZygoteSetup) -> bytes:
    """Choose a directory whose contents no child needs: the template hides it."""
    needed = [
        setup.workspace,
        *setup.beside,
        *(e.source for e in setup.entries if e.kind in _BOUND),
    ]
    for seat in _SEATS:
        if os.path.isdir(seat) and not any((p + b"/").startswith(seat + b"/") for p in needed):
            return seat
    raise StepFailed("template", errno.ENOENT, "no directory is free to mount the template on")


def _write(path: bytes, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


_BOUND = ("tree", "file", "device")


def _make_entry(seat: bytes, entry: Entry) -> None:
    target = seat + entry.target
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if entry.kind == "symlink":
            os.symlink(entry.source, target)
        elif entry.kind == "dir":
            os.makedirs(target, exist_ok=True)
        elif entry.kind == "text":
            _write(target, entry.source)
        else:
            _bind_entry(target, entry)
    except OSError as exc:
        raise StepFailed(f"entry {os.fsdecode(entry.target)}", exc.errno or 0) from None


def _bind_entry(target: bytes, entry: Entry) -> None:
    """Bind `source`, read-only. A device stays usable so: its node is read-only, not the device."""
    if os.path.isdir(entry.source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        _write(target, b"")
    copy = sys_.open_tree(entry.source, recursive=entry.kind == "tree")
    attributes = sys_.ATTR_RDONLY | sys_.ATTR_NOSUID
    attributes |= 0 if entry.kind == "device" else sys_.ATTR_NODEV
    sys_.mount_setattr(copy, add=attributes, step=f"entry {os.fsdecode(entry.target)}")
    sys_.move_mount(copy, target)
    os.close(copy)


def copy_workspace(work_fd: int, *, writable: bool, idmap_fd: int) -> int:
    """Return a detached copy of the workspace's mounts for one child.

    `idmap_fd`: a user namespace whose map turns the owner on disk into the child's kuid; 0: none.

    Raises:
        StepFailed: "idmap" with EINVAL when a file system of the workspace cannot be id-mapped
            (overlayfs, some network file systems).
    """
    copy = sys_.open_tree(b"", at_fd=work_fd)
    attributes = sys_.ATTR_NOSUID | sys_.ATTR_NODEV | (0 if writable else sys_.ATTR_RDONLY)
    try:
        sys_.mount_setattr(copy, add=attributes, step="workspace attributes")
        if idmap_fd:
            sys_.mount_setattr(copy, add=sys_.ATTR_IDMAP, userns_fd=idmap_fd, step="idmap")
    except StepFailed as exc:
        os.close(copy)
        if exc.step != "idmap" or exc.errno != errno.EINVAL:
            raise
        text = "the workspace's file system cannot be id-mapped; start as an ordinary user"
        raise StepFailed("idmap", exc.errno, text) from None
    return copy


# ── the root of one child ────────────────────────────────────────────────────────────────────


def enter_root(plan: SandboxPlan, seat: bytes, copies: Mapping[bytes, int]) -> None:
    """Build this child's root over its copy of the template and pivot into it.

    `copies`: detached mounts of the workspace and of what lies beside it, by path.
    """
    sys_.mount(seat, seat, None, sys_.MS_BIND | sys_.MS_REC)
    for one in plan.tmpfs:
        _mount_tmpfs(seat, one)
    options = b"newinstance,ptmxmode=0666,mode=620"
    sys_.mount(b"devpts", seat + b"/dev/pts", b"devpts", sys_.MS_NOSUID | sys_.MS_NOEXEC, options)
    mount_proc(seat, plan.tier, only_processes=True)
    _attach_workspace(seat, plan, copies)
    os.chdir(seat)
    sys_.pivot_root_here()
    os.chdir("/")


def _mount_tmpfs(seat: bytes, one: Tmpfs) -> None:
    options = b"size=%d,nr_inodes=%d,mode=%o" % (one.size_bytes, one.inodes, one.mode)
    sys_.mount(b"tmpfs", seat + one.target, b"tmpfs", _QUIET, options)


def _attach_workspace(seat: bytes, plan: SandboxPlan, copies: Mapping[bytes, int]) -> None:
    """Attach the copies, protect their parts, and let later mounts reach the commands."""
    for link in plan.links:
        _make_link(seat, link)
    _make_ways(seat, [one.target for one in plan.tmpfs], list(copies))
    for path in sorted(copies, key=len):
        sys_.move_mount(copies[path], seat + path)
    roots = tuple(copies)
    if plan.workspace_writable:
        _protect(seat, roots, plan.pins, plan.read_only, plan.masks)
    else:
        _protect(seat, roots, (), (), plan.masks)
    for copy in copies.values():
        sys_.mount_setattr(copy, propagation=sys_.MS_SHARED, step="workspace sharing")
        os.close(copy)


def _make_link(seat: bytes, link: Link) -> None:
    try:
        os.makedirs(os.path.dirname(seat + link.path), mode=0o755, exist_ok=True)
        os.symlink(link.target, seat + link.path)
    except OSError as exc:
        raise StepFailed(f"link {os.fsdecode(link.path)}", exc.errno or 0) from None


def _make_ways(seat: bytes, tmpfs: list[bytes], paths: list[bytes]) -> None:
    """Make the folders down to mount points that lie below a tmpfs of the child.

    The topmost are sealed by a read-only bind: the child could else rename one of them and plant
    another in its place, and a mask laid later by path would miss.
    """
    tops = set()
    for path in paths:
        above = max((one for one in tmpfs if path.startswith(one + b"/")), key=len, default=b"")
        if not above:
            continue
        try:
            os.makedirs(seat + path, mode=0o755, exist_ok=True)
        except OSError as exc:
            raise StepFailed("workspace mount point", exc.errno or 0) from None
        tops.add(above + b"/" + path[len(above) + 1 :].split(b"/", 1)[0])
    for top in sorted(tops - set(paths)):
        way = sys_.open_tree(seat + top)
        sys_.mount_setattr(way, add=sys_.ATTR_RDONLY, step="workspace mount point")
        sys_.move_mount(way, seat + top)
        os.close(way)


def cover_again(
    roots: tuple[bytes, ...], read_only: Iterable[bytes], masks: Iterable[Mask]
) -> None:
    """Cover paths inside a live child's namespace, after the host replaced what was covered."""
    _protect(b"", roots, (), read_only, masks)


def _protect(
    seat: bytes,
    roots: tuple[bytes, ...],
    pins: Iterable[bytes],
    read_only: Iterable[bytes],
    masks: Iterable[Mask],
) -> None:
    """Pin, make read-only and mask: parents first, so that the most specific has the last word."""
    work = [(path.count(b"/"), kind, path) for kind, group in ((0, pins), (1, read_only))
            for path in group]  # fmt: skip
    work += [(mask.path.count(b"/"), 2, mask.path) for mask in masks]
    if not work:
        return
    root_fds = {path: os.open(seat + path, os.O_PATH | os.O_CLOEXEC) for path in roots}
    for _depth, kind, path in sorted(work):
        own = max((one for one in roots if path.startswith(one + b"/")), key=len, default=b"")
        if not own:
            raise StepFailed(f"protect {os.fsdecode(path)}", errno.EXDEV, "not in the workspace")
        _protect_one(seat, root_fds[own], path[len(own) + 1 :], kind)
    for fd in root_fds.values():
        os.close(fd)


def _protect_one(seat: bytes, root_fd: int, path: bytes, kind: int) -> None:
    try:
        target = sys_.open_beneath(root_fd, path)
    except StepFailed as exc:
        # What is gone since the plan was made needs no cover; a symlink in the way is an attack.
        if exc.errno in (errno.ENOENT, errno.ENOTDIR):
            return
        raise
    if kind == 2:
        # The kind of today decides: a mount of the wrong kind would be refused and leave it bare.
        is_dir = stat.S_ISDIR(os.fstat(target).st_mode)
        cover = sys_.open_tree(seat + (EMPTY_DIR if is_dir else EMPTY_FILE), recursive=False)
    else:
        cover = sys_.open_tree(b"", at_fd=target)
        if kind == 1:
            sys_.mount_setattr(cover, add=sys_.ATTR_RDONLY, step=f"read-only {os.fsdecode(path)}")
    sys_.move_mount(cover, b"", at_fd=target)
    os.close(cover)
    os.close(target)


def mount_proc(seat: bytes, tier: Tier, *, only_processes: bool) -> None:
    """Mount the /proc of this pid namespace; an empty tmpfs in tier A-proc.

    `only_processes` hides all that is not a process (an agent needs no more); else the entries
    that tell of, or act on, the whole machine are read-only or empty.
    """
    target = seat + b"/proc"
    if tier == "A-proc":
        sys_.mount(b"tmpfs", target, b"tmpfs", _PROC_FLAGS | sys_.MS_RDONLY, b"size=4k,mode=0555")
        return
    options = b"subset=pid" if only_processes else None
    sys_.mount(b"proc", target, b"proc", _PROC_FLAGS, options)
    if only_processes:
        return
    for name in _PROC_READ_ONLY:
        _cover(target + b"/" + name, None)
    for name in _PROC_EMPTY_DIRS:
        _cover(target + b"/" + name, seat + EMPTY_DIR)
    for name in _PROC_EMPTY_FILES:
        _cover(target + b"/" + name, seat + EMPTY_FILE)


def _cover(target: bytes, cover: bytes | None) -> None:
    """Bind `cover` over an entry of /proc, or make the entry itself read-only; absent: nothing."""
    try:
        sys_.mount(cover or target, target, None, sys_.MS_BIND)
        if cover is None:
            flags = sys_.MS_BIND | sys_.MS_REMOUNT | sys_.MS_RDONLY | _PROC_FLAGS
            sys_.mount(b"none", target, None, flags)
    except StepFailed as exc:
        if exc.errno != errno.ENOENT:
            raise
