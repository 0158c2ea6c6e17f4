"""Compare a child that says it is sealed with its plan, from outside. Trusted side.

The child's own account (`SelfCheck`) is a claim; what /proc shows of it is the supervisor's own
look, and both must agree with the plan. One mismatch ends the child before its first order.

Without a user namespace (tier C) an ordinary user cannot empty the bounding set; no_new_privs makes
it a set of nothing that could be gained.

Source: proc_pid_status(5), capabilities(7), namespaces(7). /proc/<pid>/ns of a process that is not
dumpable is refused to an ordinary user; then only the status is compared from outside.
"""

from __future__ import annotations

import errno
import os

from rambarde_wire.frames import PROTOCOL_VERSION, TellHello
from rambarde_wire.orders import Tier

_CAPS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_NAMESPACES = {
    "A": frozenset({"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}),
    "A-proc": frozenset({"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}),
    "B": frozenset({"user", "mnt", "pid", "ipc", "uts", "cgroup"}),
    "C": frozenset[str](),
}
_DESCRIPTORS = 5
"""0, 1, 2 and the two pipes."""
_FORBIDDEN = frozenset({errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.EAFNOSUPPORT})


def mismatches(
    hello: TellHello, pid: int, tier: Tier, *, is_contained_root: bool = False
) -> list[str]:
    """Return what differs from a sealed child of this tier; an empty list means it is one.

    Args:
        hello: the child's account.
        pid: its number on the host.
        tier: what the plan promised.
        is_contained_root: this program's own uid is 0 in a user namespace, and an ordinary user's
            outside; its children are that user too.
    """
    found = _claimed(hello, tier)
    found += _seen_status(pid, tier, zero_is_root=not is_contained_root)
    found += _seen_namespaces(hello, pid, tier)
    return found


def _claimed(hello: TellHello, tier: Tier) -> list[str]:
    checks = hello.checks
    found = []
    if hello.version != PROTOCOL_VERSION:
        found.append(f"protocol version {hello.version}, wanted {PROTOCOL_VERSION}")
    caps = (
        checks.cap_inheritable,
        checks.cap_permitted,
        checks.cap_effective,
        checks.cap_bounding if tier != "C" else 0,
        checks.cap_ambient,
    )
    if any(caps):
        found.append(f"linux caps left: {caps}")
    if checks.no_new_privs != 1 or checks.seccomp_mode != 2:
        found.append("no_new_privs or seccomp is not in force")
    if len(checks.open_fds) > _DESCRIPTORS:
        found.append(f"open descriptors: {checks.open_fds}")
    acts = ("outside_write_errno", "unshare_errno", "socket_errno", "exec_errno")
    found += [
        f"{act} is {getattr(checks, act)}: the act was not refused as planned"
        for act in acts
        if getattr(checks, act) not in _FORBIDDEN
    ]
    if tier != "C" and checks.uid == 0:
        found.append("runs as uid 0")
    return found


def _seen_status(pid: int, tier: Tier, *, zero_is_root: bool) -> list[str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as lines:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)
    except OSError as exc:
        return [f"its /proc entry cannot be read: {exc.strerror}"]
    caps = _CAPS if tier != "C" else [cap for cap in _CAPS if cap != "CapBnd"]
    found = [f"{cap} is {status.get(cap)}" for cap in caps if int(status.get(cap, "1"), 16)]
    if status.get("NoNewPrivs") != "1" or status.get("Seccomp") != "2":
        found.append("the kernel shows no_new_privs or seccomp not in force")
    if zero_is_root and status.get("Uid", "0").split()[0] == "0":
        found.append("the kernel shows uid 0")
    if status.get("Threads") != "1":
        found.append("more than one thread")
    return found


def _seen_namespaces(hello: TellHello, pid: int, tier: Tier) -> list[str]:
    found = []
    for name in sorted(_NAMESPACES[tier]):
        own = os.stat(f"/proc/self/ns/{name}").st_ino
        if hello.checks.namespaces.get(name) == own:
            found.append(f"shares the supervisor's {name} namespace")
        try:
            seen = os.stat(f"/proc/{pid}/ns/{name}").st_ino
        except PermissionError:
            continue
        except OSError as exc:
            return [f"its /proc entry cannot be read: {exc.strerror}"]
        if seen == own:
            found.append(f"the kernel shows the supervisor's {name} namespace")
    return found
