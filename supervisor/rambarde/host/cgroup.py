"""Resource groups of agents, where this user may make them. Trusted side.

One group per agent and hierarchy holds the agent and its commands; its limits are the kernel's. A
v1 hierarchy is used where it is what there is (as root). Without any, the limits are rlimits of the
agent's user namespace and the watch of children/watch.py; `doctor` says which.

Source: cgroups(7); Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, pids.rst.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from rambarde.host.facts import CgroupPlace, HostFacts

_REMOVE_TRIES = 20
_REMOVE_WAIT_S = 0.005


PREFIX = "rambarde-"


class Cgroups:
    """The groups of one run."""

    def __init__(self, facts: HostFacts, name: str) -> None:
        """Nothing is made before the first agent. `name`: PREFIX and our pid."""
        self._places = facts.cgroups
        self._name = name
        self._made: dict[str, list[str]] = {}
        self._parents: list[str] = []

    @property
    def controls(self) -> frozenset[str]:
        """Controllers in force: `pids`, `memory`, both or none."""
        return frozenset().union(*(place.controllers for place in self._places))

    def create(self, agent_id: str, *, memory_bytes: int, processes: int) -> list[bytes]:
        """Make the agent's groups; return the cgroup.procs files its processes are put in.

        A place that refuses is left out and not tried again: then the fallback holds.
        """
        if not self._parents:
            self._places = tuple(place for place in self._places if self._make_parent(place))
        folders = []
        for place in self._places:
            folder = f"{place.path}/{self._name}/{agent_id}"
            try:
                os.mkdir(folder)
                _write_limits(folder, place, memory_bytes, processes)
            except OSError:
                _remove(folder)
            else:
                folders.append(folder)
        self._made[agent_id] = folders
        return [os.fsencode(f"{folder}/cgroup.procs") for folder in folders]

    def _make_parent(self, place: CgroupPlace) -> bool:
        folder = f"{place.path}/{self._name}"
        _sweep(place.path)
        try:
            os.mkdir(folder)
            self._parents.append(folder)
            if place.version == 2:
                wanted = " ".join(f"+{name}" for name in sorted(place.controllers))
                _write(f"{folder}/cgroup.subtree_control", wanted)
        except OSError:
            return False
        return True

    def oom_kills(self, agent_id: str) -> int:
        """Return how many processes of the agent the kernel killed for want of memory."""
        kills = 0
        for folder in self._made.get(agent_id, ()):
            for name in ("memory.events", "memory.oom_control"):
                kills += _counter(f"{folder}/{name}", "oom_kill")
        return kills

    def remove(self, agent_id: str) -> None:
        """Remove the groups of an agent whose processes are gone."""
        for folder in self._made.pop(agent_id, ()):
            _remove(folder)

    def close(self) -> None:
        """Remove everything that was made."""
        for agent_id in list(self._made):
            self.remove(agent_id)
        for folder in self._parents:
            _remove(folder)
        self._parents = []


def _sweep(folder: str) -> None:
    """Remove what a killed supervisor left: a group with a process in it cannot be removed."""
    with suppress(OSError):
        for name in os.listdir(folder):
            owner = name.removeprefix(PREFIX)
            if owner == name or not owner.isdigit() or os.path.exists(f"/proc/{owner}"):
                continue
            left = os.path.join(folder, name)
            for inner in os.listdir(left):
                with suppress(OSError):
                    os.rmdir(os.path.join(left, inner))
            with suppress(OSError):
                os.rmdir(left)


def _write_limits(folder: str, place: CgroupPlace, memory_bytes: int, processes: int) -> None:
    if "pids" in place.controllers:
        _write(f"{folder}/pids.max", str(processes))
    if "memory" in place.controllers:
        if place.version == 2:
            _write(f"{folder}/memory.max", str(memory_bytes))
            with suppress(OSError):
                _write(f"{folder}/memory.swap.max", "0")
        else:
            _write(f"{folder}/memory.limit_in_bytes", str(memory_bytes))
            with suppress(OSError):
                _write(f"{folder}/memory.memsw.limit_in_bytes", str(memory_bytes))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _counter(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            pairs = dict(line.split() for line in file)
    except (OSError, ValueError):
        return 0
    return int(pairs.get(name, "0"))


def _remove(folder: str) -> None:
    """rmdir(2) says EBUSY for an instant after the last process was reaped."""
    for _attempt in range(_REMOVE_TRIES):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_REMOVE_WAIT_S)
        else:
            return
