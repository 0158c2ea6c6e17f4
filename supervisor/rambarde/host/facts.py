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
    has_all_ids: bool = True
    """False in a user namespace that maps some ids only, as rootless containers are."""
    uid_outside: int = 0
    """What uid 0 is outside of this user namespace."""

    @property
    def is_root(self) -> bool:
        """True when the supervisor is the machine's root: children get a kuid of their own.

        The root of a rootless container has no id to give away; it is served as the ordinary user
        that it is outside. One that is root outside as well is refused (tiers.py).
        """
        return self.uid == 0 and self.has_all_ids

    @property
    def is_contained_root(self) -> bool:
        """True for the root of a namespace of some ids: its children share its id, seen as 0."""
        return self.uid == 0 and not self.has_all_ids
