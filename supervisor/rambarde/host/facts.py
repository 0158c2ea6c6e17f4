"""What this host offers, as frozen values. Trusted side. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CgroupPlace:
    """A cgroup directory in which this user may make groups: `version` 1 or 2."""

    version: int
    path: str
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts found once per run.

    Fields: `landlock_abi` 0 when there is none; `rg` the absolute path of ripgrep, empty when
    there is none; `interpreter` the Python that runs us, all links resolved; `cgroups` where
    groups can be made, best first, empty where limits fall back to rlimits and a watch.
    """

    kernel: str
    machine: str
    uid: int
    gid: int
    landlock_abi: int
    landlock_errata: int
    seccomp: bool
    interpreter: str
    prefix: str
    rg: str
    cgroups: tuple[CgroupPlace, ...]

    @property
    def is_root(self) -> bool:
        """True when the supervisor runs as uid 0: children get a kuid of their own."""
        return self.uid == 0
