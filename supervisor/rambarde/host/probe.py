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
_CGROUP_ROOT = "/sys/fs/cgroup"


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
    )


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
    """Return places where this user can make groups, by looking at /proc/self/cgroup."""
    places: list[CgroupPlace] = []
    mounts = _cgroup_mounts()
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return places
    for line in lines:
        _number, names, path = line.split(":", 2)
        controllers = frozenset(names.split(",")) if names else frozenset[str]()
        base = mounts.get(controllers)
        if base is None:
            continue
        folder = base + path.rstrip("/")
        if not names:
            controllers = _v2_controllers(folder)
        useful = controllers & {"pids", "memory"}
        if useful and os.access(folder, os.W_OK):
            places.append(CgroupPlace(1 if names else 2, folder or base, frozenset(useful)))
    return places


def _v2_controllers(folder: str) -> frozenset[str]:
    """Controllers that groups made here would have: those enabled for the children."""
    try:
        with open(f"{folder}/cgroup.subtree_control", encoding="utf-8") as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()


def _cgroup_mounts() -> dict[frozenset[str], str]:
    """Return the mount point of each hierarchy, by its controllers (none: version 2)."""
    found: dict[frozenset[str], str] = {}
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                before, _dash, after = line.partition(" - ")
                kind, _source, options = after.split(" ", 2)
                point = before.split(" ")[4]
                if kind == "cgroup2":
                    found.setdefault(frozenset(), point)
                elif kind == "cgroup":
                    names = frozenset(options.strip().split(",")) - {"rw", "ro"}
                    found.setdefault(names, point)
    except OSError:
        return found
    return found
