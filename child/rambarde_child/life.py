"""Births as the zygote sees them: ids, groups, namespaces of a child. Inside the sandbox.

A new agent waits at a pipe twice. First until its id maps are written and its cgroups joined;
then, already building its root, until the zygote holds its namespaces: from the moment it is not
dumpable nobody of its own uid can open them any more.

Source: user_namespaces(7) on id maps; proc_pid_ns(5) on who may open them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct
import time

from rambarde_wire.orders import SandboxPlan, Tier, ZygoteSetup

from . import sandbox
from . import syscalls as sys_
from .syscalls import StepFailed

_CACHED_MAPS = 256
_LOOPBACK_UP = struct.pack("16sH14x", b"lo", 0x49)
_BACK_OFF_S = (0.02, 0.06, 0.2, 0.7)


def namespace_flags(tier: Tier) -> int:
    """Return the CLONE_NEW* flags of an agent in this tier; none in tier C.

    The network namespace is not among them: see fresh_network.
    """
    if tier == "C":
        return 0
    flags = sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWIPC
    return flags | sys_.CLONE_NEWUTS | sys_.CLONE_NEWCGROUP


def fresh_network() -> None:
    """Move the zygote into a new network namespace with only loopback, for its next child.

    Making one costs as much as all else of a fork, so it is made ahead, while nobody waits. The
    child has it to itself, for the zygote moves on, and holds no linux cap over it from the start.

    Raises:
        StepFailed: ENOSPC when user.max_net_namespaces is met and stays so for a second (the
            kernel takes dead ones away late).
    """
    for pause_s in (*_BACK_OFF_S, None):
        try:
            sys_.unshare(sys_.CLONE_NEWNET)
            break
        except StepFailed as exc:
            if exc.errno != errno.ENOSPC or pause_s is None:
                raise StepFailed("network namespace", exc.errno) from None
            time.sleep(pause_s)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as lever:
            fcntl.ioctl(lever.fileno(), 0x8914, _LOOPBACK_UP)
    except OSError as exc:
        raise StepFailed("loopback", exc.errno or 0) from None


def write_maps(pid: int, uid_map: tuple[int, int], gid_map: tuple[int, int]) -> None:
    """Write a child's maps, each (id inside, id outside), one id long.

    Raises StepFailed: EPERM where an ordinary user may not map, with the file as the step.
    """
    for name, text in (
        ("setgroups", b"deny"),
        ("uid_map", b"%d %d 1" % uid_map),
        ("gid_map", b"%d %d 1" % gid_map),
    ):
        try:
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text)
            finally:
                os.close(fd)
        except OSError as exc:
            raise StepFailed(name, exc.errno or 0) from None


def map_child(pid: int, setup: ZygoteSetup, kuid: int) -> None:
    """Map a new agent: its inner id to its kuid when started by root, else to the user's own."""
    if setup.started_by_root:
        write_maps(pid, (setup.inner_uid, kuid), (setup.inner_gid, kuid))
    else:
        own_uid, own_gid = os.getuid(), os.getgid()
        write_maps(pid, (setup.inner_uid, own_uid), (setup.inner_gid, own_gid))


def open_namespaces(pid: int, tier: Tier) -> dict[str, int]:
    """Open the namespaces of a child, in joining order; the caller closes them."""
    opened: dict[str, int] = {}
    if tier == "C":
        return opened
    folder = os.open(f"/proc/{pid}/ns", os.O_PATH | os.O_CLOEXEC)
    try:
        for name in sandbox.NAMESPACES:
            if name != "net" or tier != "B":
                opened[name] = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError as exc:
        for fd in opened.values():
            os.close(fd)
        raise StepFailed("open namespaces", exc.errno or 0) from None
    finally:
        os.close(folder)
    return opened


class IdMaps:
    """User namespaces that id-map the workspace, one per kuid, made once and kept.

    Each holds "owner on disk, kuid, 1": through a mount mapped by it the owner's files appear as
    the kuid's, and what the kuid makes lands on disk as the owner's.
    """

    def __init__(self, owner_uid: int, owner_gid: int) -> None:
        """`owner_uid`, `owner_gid`: the owner of the workspace on disk."""
        self._owner = owner_uid, owner_gid
        self._fds: dict[int, int] = {}

    def fd_for(self, kuid: int) -> int:
        """Return the namespace for this kuid, making it by a throw-away process if need be."""
        if kuid not in self._fds:
            if len(self._fds) >= _CACHED_MAPS:
                os.close(self._fds.pop(next(iter(self._fds))))
            self._fds[kuid] = self._make(kuid)
        return self._fds[kuid]

    def _make(self, kuid: int) -> int:
        pid, pidfd = sys_.clone(sys_.CLONE_NEWUSER, step="clone id map")
        if pid == 0:
            while True:
                signal.pause()
        try:
            write_maps(pid, (self._owner[0], kuid), (self._owner[1], kuid))
            return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise StepFailed("id map", exc.errno or 0) from None
        finally:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pidfd)


def settle_zygote(setup: ZygoteSetup) -> None:
    """Leave the host's namespaces: a place of its own for the zygote and all it forks.

    An ordinary user needs a user namespace for it, mapped to itself; root does without.
    """
    if setup.tier == "C":
        if setup.started_by_root:
            text = "tier C cannot take root's rights away; start as an ordinary user"
            raise StepFailed("tier", errno.EPERM, text)
        return
    flags = namespace_flags(setup.tier) & ~sys_.CLONE_NEWPID
    uid, gid = os.getuid(), os.getgid()
    if setup.started_by_root:
        os.setgroups([])
        flags &= ~sys_.CLONE_NEWUSER
    sys_.unshare(flags)
    if not setup.started_by_root:
        write_maps(os.getpid(), (uid, uid), (gid, gid))
    sys_.mount(b"none", b"/", None, sys_.MS_REC | sys_.MS_PRIVATE)


def plan_is_possible(plan: SandboxPlan, setup: ZygoteSetup) -> None:
    """Refuse a plan that this zygote was not set up for."""
    if plan.tier != setup.tier:
        raise StepFailed("tier", 0, f"the zygote was set up for {setup.tier}, not {plan.tier}")
