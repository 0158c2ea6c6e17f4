"""What agents take is added up by tree, and each excess is told once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from rambarde.children import watch
from rambarde.children.watch import Excess, OomHint, Watch, Watched, add_up, add_up_all
from support.fork import fork

pytestmark = pytest.mark.anyio

_ENDLESS = 1 << 60


@contextmanager
def family(size: int, *, eats_bytes: int = 0) -> Iterator[int]:
    """A process with `size - 1` children, all asleep; yields its pid."""
    ready, told = os.pipe()
    pid = fork()
    if not pid:
        try:
            for _ in range(size - 1):
                if not fork():
                    time.sleep(60)
                    os._exit(0)
            food = bytearray(eats_bytes)
            food[::4096] = b"x" * len(food[::4096])
            os.write(told, b"x")
            time.sleep(60)
        finally:
            os._exit(0)
    os.read(ready, 1)
    try:
        yield pid
    finally:
        for one in add_up([pid], watch.read_processes()).pids:
            os.kill(one, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)


def watching(agents: dict[str, Watched], **options: int) -> tuple[Watch, list[Excess]]:
    found: list[Excess] = []
    bounds = {"disk_free_bytes": 0, "free_inodes": 0} | options
    return Watch(lambda: agents, found.append, workspace=b"/", **bounds), found


def test_trees_are_added_up_from_all_inits_of_an_agent() -> None:
    """Commands are no descendants of their agent: each init is a root of its own."""
    processes = {1: (0, 5), 10: (1, 100), 11: (10, 10), 12: (11, 1), 20: (1, 1000), 30: (1, 7)}
    assert add_up_all({"a": [10, 20], "b": [30], "c": [99]}, processes) == {
        "a": watch.Taken((20, 10, 11, 12), 1111),
        "b": watch.Taken((30,), 7),
        "c": watch.Taken((), 0),
    }


def test_circle_of_parents_ends() -> None:
    """Pids reused during the pass can look like a circle; it is walked once."""
    assert add_up([1], {1: (2, 1), 2: (1, 1)}).memory_bytes == 2


async def test_too_many_processes_are_told_once_until_they_are_fewer() -> None:
    """One excess is one piece of news, and a new one after a recovery."""
    with family(4) as pid:
        agents = {"a": Watched([pid], _ENDLESS, 3), "b": Watched([pid], _ENDLESS, 4)}
        watch_, found = watching(agents)
        for _ in range(3):
            await watch_.look()
        assert found == [Excess("processes", "a", 4, 3)]
        agents["a"] = Watched([pid], _ENDLESS, 4)
        await watch_.look()
        agents["a"] = Watched([pid], _ENDLESS, 2)
        await watch_.look()
        assert found[1:] == [Excess("processes", "a", 4, 2)]


async def test_memory_is_measured_by_proportional_sizes() -> None:
    """Pages that forks share are not held against each of them; what one really takes is."""
    with family(5) as lean, family(1, eats_bytes=64 << 20) as greedy:
        resident_bytes = add_up([lean], watch.read_processes()).memory_bytes
        agents = {
            "lean": Watched([lean], resident_bytes // 2, 100),
            "greedy": Watched([greedy], 48 << 20, 100),
        }
        watch_, found = watching(agents)
        await watch_.look()
        assert [(one.reason, one.agent_id) for one in found] == [("memory", "greedy")]
        assert found[0].measured > 64 << 20


async def test_memory_falls_back_on_resident_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where proportional sizes may not be read, the coarser number decides."""
    monkeypatch.setattr(watch, "proportional_bytes", lambda pid: None)
    with family(1) as pid:
        watch_, found = watching({"a": Watched([pid], 1 << 20, 100)})
        await watch_.look()
        assert found[0].reason == "memory"


def test_own_proportional_size_can_be_read() -> None:
    """The kernel tells it for a process of one's own, and nothing for one that is gone."""
    own = watch.proportional_bytes(os.getpid())
    assert own is not None
    assert own > 1 << 20
    assert watch.proportional_bytes(2**22 + 1) is None


async def test_free_space_and_inodes_are_watched_for_all() -> None:
    """A file system that runs full is nobody's own excess."""
    with family(1) as pid:
        agents = {"a": Watched([pid], _ENDLESS, 9)}
        watch_, found = watching(agents, disk_free_bytes=_ENDLESS, free_inodes=_ENDLESS)
        await watch_.look()
        reasons = {excess.reason: excess for excess in found}
        assert reasons["disk"].agent_id == ""
        assert reasons["disk"].bound == _ENDLESS
        assert set(reasons) <= {"disk", "inodes"}


async def test_workspace_that_is_gone_is_no_excess(tmp_path: Path) -> None:
    """A path that cannot be asked about stops nobody."""
    found: list[Excess] = []
    agents = {"a": Watched([os.getpid()], _ENDLESS, _ENDLESS)}
    gone = os.fsencode(tmp_path / "gone")
    await Watch(lambda: agents, found.append, workspace=gone, disk_free_bytes=_ENDLESS).look()
    assert found == []


async def test_nothing_is_read_while_nobody_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without agents a pass costs nothing."""
    monkeypatch.setattr(watch, "read_processes", lambda: pytest.fail("read"))
    watch_, _ = watching({})
    assert await watch_.look() == 0.0


async def test_a_pass_over_twenty_agents_is_cheap() -> None:
    """The pause after a pass keeps the cost at one percent of one processor."""
    with family(20) as pid:
        pids = add_up([pid], watch.read_processes()).pids
        agents = {f"a{one}": Watched([one], _ENDLESS, _ENDLESS) for one in pids}
        watch_, _ = watching(agents)
        took_s = min([await watch_.look() for _ in range(5)])
        assert took_s < 0.05


async def test_run_looks_again_and_again() -> None:
    """The watch goes on until it is cancelled."""
    looks = 0

    def agents() -> dict[str, Watched]:
        nonlocal looks
        looks += 1
        return {}

    watch_ = Watch(agents, print, workspace=b"/", disk_free_bytes=0, interval_s=0.002)
    with anyio.move_on_after(0.05):
        await watch_.run()
    assert looks > 3


def test_oom_hint_tells_a_counter_that_moved() -> None:
    """Only a kill counted since the start is the kernel's."""
    kills = [3]
    hint = OomHint(lambda: kills[0])
    assert not hint.moved()
    kills[0] = 4
    assert hint.moved()


def test_oom_hint_without_a_counter_says_no() -> None:
    """No cgroup, no claim."""

    def read() -> int:
        raise FileNotFoundError

    assert not OomHint(read).moved()
