"""Watches what running agents take from the host where no cgroup does. Trusted side.

Theory of operation
-------------------
Twice a second one pass over /proc reads parent and resident size of every process and adds up the
trees under the inits of each agent (its own and those of its commands, which are no descendants of
it). Resident sizes count a page shared by ten forks ten times, so they only raise a suspicion: an
agent over its bound is measured again by proportional sizes, which divide shared pages, where the
kernel lets us read them. Free space and free inodes of the workspace's file system are looked at in
the same pass.

This is the coarse net, not the fine one: a process can take much in half a second, and a tmpfs is
owned by no process (it is bounded by its mount). Where cgroups are delegated they act first.

The pass runs in a thread, so frames do not wait for it, and the pause after it is a hundred times
what it took (up to LONGEST_S), which keeps the cost at one percent of one processor.

Source: psutil's documentation (process_iter, memory_full_info: pss), statvfs(3).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import anyio
import anyio.to_thread
import psutil

INTERVAL_S = 0.5
LONGEST_S = 5.0
COST_FACTOR = 100
"""The pause is at least this many times the pass."""
FREE_INODES = 1_000

Reason = Literal["memory", "processes", "disk", "inodes"]


@dataclass(frozen=True, slots=True)
class Watched:
    """One agent: the inits (host pids) of itself and its commands, and its bounds."""

    inits: Sequence[int]
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class Excess:
    """A bound that was passed; `agent_id` is "" for the file system, which all agents share."""

    reason: Reason
    agent_id: str
    measured: int
    bound: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What a tree of processes holds; `memory_bytes` is a sum of resident sizes."""

    pids: tuple[int, ...]
    memory_bytes: int


def read_processes() -> dict[int, tuple[int, int]]:
    """Return parent pid and resident bytes of every process seen; those that end are left out."""
    return {
        process.pid: (process.info["ppid"], process.info["memory_info"].rss)
        for process in psutil.process_iter(["ppid", "memory_info"])
        if process.info["memory_info"] is not None and process.info["ppid"] is not None
    }


def add_up(inits: Sequence[int], processes: Mapping[int, tuple[int, int]]) -> Taken:
    """Return the processes under these inits, themselves included, and what they hold.

    For many agents use `add_up_all`, which orders the processes once.
    """
    return add_up_all({"": inits}, processes)[""]


def add_up_all(
    agents: Mapping[str, Sequence[int]], processes: Mapping[int, tuple[int, int]]
) -> dict[str, Taken]:
    """Return for each agent what the trees under its inits hold."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, (parent, _) in processes.items():
        children[parent].append(pid)
    found = {}
    for agent_id, inits in agents.items():
        seen: dict[int, int] = {}
        left = [pid for pid in inits if pid in processes]
        while left:
            pid = left.pop()
            if pid not in seen:
                seen[pid] = processes[pid][1]
                left += children.get(pid, ())
        found[agent_id] = Taken(tuple(seen), sum(seen.values()))
    return found


def proportional_bytes(pid: int) -> int | None:
    """Return the proportional size of a process, or None when it may not be read or is gone."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except (psutil.Error, OSError):
        return None


def _memory_of(taken: Taken, processes: Mapping[int, tuple[int, int]]) -> int:
    """Return the sum of proportional sizes, with the resident size where there is none."""
    total = 0
    for pid in taken.pids:
        size = proportional_bytes(pid)
        total += processes[pid][1] if size is None else size
    return total


class Watch:
    """Samples until cancelled and tells each excess once."""

    def __init__(
        self,
        agents: Callable[[], Mapping[str, Watched]],
        on_excess: Callable[[Excess], None],
        *,
        workspace: bytes,
        disk_free_bytes: int,
        free_inodes: int = FREE_INODES,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Prepare to watch.

        Args:
            agents: called in the loop at each pass: who runs now, by agent id.
            on_excess: called in the loop; must not raise. Told again about the same agent and
                reason only after it was below its bound, or gone, in between.
            workspace: a path on the file system whose free space is watched.
            disk_free_bytes: what must stay free there for an ordinary user.
            free_inodes: likewise; file systems that do not count inodes are passed over.
            interval_s: seconds between two passes.
        """
        self._agents = agents
        self._on_excess = on_excess
        self._workspace = workspace
        self._disk_free_bytes = disk_free_bytes
        self._free_inodes = free_inodes
        self._interval_s = interval_s
        self._told: set[tuple[Reason, str]] = set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            took_s = await self.look()
            await anyio.sleep(min(max(self._interval_s, COST_FACTOR * took_s), LONGEST_S))

    async def look(self) -> float:
        """Make one pass; return the processor seconds it took. Nothing is read without agents."""
        agents = dict(self._agents())
        if not agents:
            self._told.clear()
            return 0.0
        found, took_s = await anyio.to_thread.run_sync(
            # A read of /proc may wait for a process that holds its memory lock: the end of a run
            # does not.
            self._measure,
            agents,
            abandon_on_cancel=True,
        )
        now = {(excess.reason, excess.agent_id) for excess in found}
        for excess in found:
            if (excess.reason, excess.agent_id) not in self._told:
                self._on_excess(excess)
        self._told = now
        return took_s

    def _measure(self, agents: Mapping[str, Watched]) -> tuple[list[Excess], float]:
        begun_s = time.thread_time()
        processes = read_processes()
        found = self._file_system()
        taken = add_up_all({name: one.inits for name, one in agents.items()}, processes)
        for agent_id, watched in agents.items():
            held = taken[agent_id]
            if len(held.pids) > watched.processes:
                found.append(Excess("processes", agent_id, len(held.pids), watched.processes))
            if held.memory_bytes > watched.memory_bytes:
                memory_bytes = _memory_of(held, processes)
                if memory_bytes > watched.memory_bytes:
                    found.append(Excess("memory", agent_id, memory_bytes, watched.memory_bytes))
        return found, time.thread_time() - begun_s

    def _file_system(self) -> list[Excess]:
        try:
            state = os.statvfs(self._workspace)
        except OSError:
            # The workspace is gone or does not answer; whoever writes there is told by the kernel.
            return []
        found = []
        free_bytes = state.f_bavail * state.f_frsize
        if free_bytes < self._disk_free_bytes:
            found.append(Excess("disk", "", free_bytes, self._disk_free_bytes))
        if state.f_files and state.f_favail < self._free_inodes:
            found.append(Excess("inodes", "", state.f_favail, self._free_inodes))
        return found


class OomHint:
    """Tells whether a SIGKILL out of nowhere was the kernel's, for want of memory."""

    def __init__(self, read_kills: Callable[[], int]) -> None:
        """`read_kills`: the cgroup's counter of oom kills; OSError where there is none."""
        self._read_kills = read_kills
        self._before = self._now()

    def _now(self) -> int:
        try:
            return self._read_kills()
        except OSError:
            return 0

    def moved(self) -> bool:
        """Return True when the counter has moved since this hint was made."""
        return self._now() > self._before
