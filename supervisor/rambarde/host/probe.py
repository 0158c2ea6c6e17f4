"""Ask this host what it offers. Trusted side.

Only what a plan needs is asked here, without starting anything. Whether the namespaces of a tier
can be had is found by doing: the zygote makes a whole trial child when it starts (doctor.py asks
it for each tier).

Source: landlock_create_ruleset(2) (LANDLOCK_CREATE_RULESET_VERSION, _ERRATA since 6.15),
prctl(2) PR_GET_SECCOMP.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys

from rambarde.host.facts import CgroupPlace, HostFacts

_LANDLOCK_CREATE_RULESET = 444
_VERSION, _ERRATA = 1, 2
_ALL_IDS = ["0", "0", "4294967295"]
"""The map of the machine's own user namespace (user_namespaces(7))."""


def probe_host() -> HostFacts:
    """Return the facts of this host. Never raises: what cannot be found is absent."""
    return HostFacts(
        kernel=platform.release(),
        machine=platform.machine(),
        uid=os.geteuid(),
        gid=os.getegid(),
        landlock_abi=max(0, _landlock(_VERSION)),
        landlock_errata=max(0, _landlock(_ERRATA)),
        seccomp=os.path.exists("/proc/sys/kernel/seccomp/actions_avail"),
        interpreter=os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
        prefix=os.path.realpath(sys.base_prefix),
        rg=_find_rg(),
        cgroups=tuple(_cgroups()),
        has_all_ids=all(_ids(kind).split() == _ALL_IDS for kind in ("uid", "gid")),
        uid_outside=uid_outside(_ids("uid")),
    )


def _ids(kind: str) -> str:
    try:
        with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
            return file.read()
    except OSError:
        return " ".join(_ALL_IDS)


def uid_outside(uid_map: str) -> int:
    """Return what uid 0 of a user namespace is outside, from the text of its uid_map."""
    for line in uid_map.splitlines():
        inside, outside, _count = line.split()
        if inside == "0":
            return int(outside)
    return 0


def _landlock(flag: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    # SAFETY: a null attribute of size 0 with a query flag; the kernel writes nothing.
    return int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), flag))


def _find_rg() -> str:
    """The system's ripgrep, else the one installed beside this Python."""
    beside = os.path.join(os.path.dirname(sys.executable), "rg")
    found = shutil.which("rg", path="/usr/local/bin:/usr/bin:/bin")
    return found or (beside if os.access(beside, os.X_OK) else "")


def _cgroups() -> list[CgroupPlace]:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            own = file.read()
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return cgroup_places(own, file.read())
    except OSError:
        return []


def cgroup_places(own: str, mountinfo: str) -> list[CgroupPlace]:
    """Return where this user can make groups and move processes into them, version 2 first.

    Args:
        own: text of /proc/self/cgroup.
        mountinfo: text of /proc/self/mountinfo.
    """
    places: list[CgroupPlace] = []
    mounts = _cgroup_mounts(mountinfo)
    for line in own.splitlines():
        _number, names, path = line.split(":", 2)
        controllers = frozenset(names.split(",")) if names else frozenset[str]()
        if controllers not in mounts:
            continue
        point, root = mounts[controllers]
        # In a container the mount shows a part of the hierarchy, and paths are told from its top.
        inner = path.removeprefix(root) if root != "/" else path
        folder = os.path.join(point, inner.strip("/")).rstrip("/")
        if names:
            places += _place(1, folder, controllers)
            continue
        # Our own group holds us, so controllers can be on in the one around it only (the rule of
        # no inner processes); at the top of a hierarchy that rule does not hold.
        above = [os.path.dirname(folder)] if folder != point else []
        tried = (_place(2, one, _v2_controllers(one)) for one in (folder, *above))
        places += next((found for found in tried if found), [])
    return sorted(places, key=lambda place: -place.version)


def _place(version: int, folder: str, controllers: frozenset[str]) -> list[CgroupPlace]:
    useful = controllers & {"pids", "memory"}
    writable = all(os.access(p, os.W_OK) for p in (folder, f"{folder}/cgroup.procs"))
    return [CgroupPlace(version, folder, frozenset(useful))] if useful and writable else []


def _v2_controllers(folder: str) -> frozenset[str]:
    """Controllers that groups made here would have: those enabled for the children."""
    try:
        with open(f"{folder}/cgroup.subtree_control", encoding="utf-8") as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()


def _cgroup_mounts(mountinfo: str) -> dict[frozenset[str], tuple[str, str]]:
    """Return mount point and shown part of each hierarchy, by controllers (none: version 2)."""
    found: dict[frozenset[str], tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        before, _dash, after = line.partition(" - ")
        kind, _source, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            found.setdefault(frozenset(), (point, root))
        elif kind == "cgroup":
            names = frozenset(options.strip().split(",")) - {"rw", "ro"}
            found.setdefault(names, (point, root))
    return found
