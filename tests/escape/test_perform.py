"""Commands performed to the end in a real sandbox: nothing survives any kind of end."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from rambarde.children.command import CommandResult, perform
from rambarde.children.watch import add_up, read_processes
from rambarde.children.zygote import Zygote
from rambarde_wire.orders import Rlimit
from support import plans, spawns

pytestmark = pytest.mark.anyio

_ESCAPEES = (
    "setsid nohup sleep {0} >/dev/null 2>&1 & (sleep {0} &) ; "
    "(setsid sh -c 'sleep {0} & sleep {0}' &)"
)


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[Zygote]:
    """A ready zygote over tmp_path with one live agent, a1."""
    async with (
        spawns.zygote_for(plans.setup(str(tmp_path))) as ready,
        spawns.agent_for(ready, plans.agent(str(tmp_path))) as agent,
    ):
        assert agent.hello
        yield ready


async def run(
    zygote: Zygote, work: Path, script: str, *, timeout_s: float = 20.0, **options: object
) -> CommandResult:
    plan = plans.command(str(work), ["bash", "-c", script])
    bounds = {"shown_bytes": 4000, "hard_bytes": 64 << 20} | options
    return await perform(zygote, plan, timeout_s=timeout_s, **bounds)  # type: ignore[arg-type]


def alive(mark: str) -> list[int]:
    """Every process of this machine whose command line holds the mark."""
    found = []
    for pid in read_processes():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in line:
            found.append(pid)
    return found


async def test_command_that_ends_by_itself_leaves_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """Leftovers of a normal end are dead when the result is told."""
    script = _ESCAPEES.format("5711001") + "; echo done; echo err >&2; exit 3"
    result = await run(zygote, tmp_path, script)
    assert (result.outcome, result.exit_code) == ("exited", 3)
    assert (result.stdout.text, result.stderr.text) == ("done\n", "err\n")
    assert result.duration_s < 30
    assert not alive("5711001")


async def test_timeout_leaves_nothing_and_the_next_call_runs(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The partial output comes back, the tree is dead, the agent's next command is normal."""
    script = "trap '' TERM HUP INT; " + _ESCAPEES.format("5711002") + "; echo half; sleep 5711002"
    result = await run(zygote, tmp_path, script, timeout_s=0.3)
    assert (result.outcome, result.stdout.text) == ("timeout", "half\n")
    assert result.proven_dead
    assert not alive("5711002")
    assert (await run(zygote, tmp_path, "echo next")).stdout.text == "next\n"


async def test_cancellation_leaves_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """After the cancellation returned there is no process and no descriptor."""
    before = set(os.listdir("/proc/self/fd"))
    with anyio.move_on_after(0.2):
        await run(zygote, tmp_path, _ESCAPEES.format("5711003") + "; sleep 5711003")
    assert not alive("5711003")
    assert set(os.listdir("/proc/self/fd")) <= before


async def test_fork_bomb_dies_at_its_time(zygote: Zygote, tmp_path: Path) -> None:
    """However fast a tree grows within its bound, one kill of its init ends it."""
    # Without a bound, as no plan of the program is, the machine itself would be the victim.
    plan = plans.command(
        str(tmp_path),
        ["bash", "-c", ":(){ :|:& };: ; sleep 5711004"],
        rlimits=[Rlimit(resource.RLIMIT_NPROC, 400, 400)],
    )
    result = await perform(zygote, plan, timeout_s=0.5, shown_bytes=4000, hard_bytes=64 << 20)
    assert result.outcome == "timeout"
    assert result.proven_dead
    assert len(add_up([zygote.pid], read_processes()).pids) == 2


async def test_flood_on_both_streams_is_ended_by_its_bytes(zygote: Zygote, tmp_path: Path) -> None:
    """An endless output is killed at the hard limit, with head and tail kept."""
    result = await run(zygote, tmp_path, "yes out & yes err >&2")
    assert result.outcome == "output"
    assert result.stdout.total_bytes + result.stderr.total_bytes >= 64 << 20
    assert len(result.stdout.head) <= 2000


async def test_program_and_folder_that_do_not_exist_are_named(
    zygote: Zygote, tmp_path: Path
) -> None:
    """What never started is told by its step and errno, not by an exit code."""
    plan = plans.command(str(tmp_path), ["/usr/bin/nowhere"])
    result = await perform(zygote, plan, timeout_s=9, shown_bytes=99, hard_bytes=999)
    assert (result.outcome, result.step, result.errno) == ("not_started", "exec", errno.ENOENT)


async def test_input_reaches_the_command_through_the_sandbox(
    zygote: Zygote, tmp_path: Path
) -> None:
    """A sealed input is readable inside and cannot be written."""
    result = await run(zygote, tmp_path, "wc -c; echo x >> /dev/stdin", stdin=b"z" * 200_000)
    assert result.stdout.text.split() == ["200000"]
    assert result.exit_code == 1


async def test_descriptors_stay_constant_over_many_commands(zygote: Zygote, tmp_path: Path) -> None:
    """Thirty commands later the supervisor and the zygote hold what they held."""
    await run(zygote, tmp_path, "true")
    ours, theirs = (len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", zygote.pid))
    for _ in range(30):
        await run(zygote, tmp_path, "exit 0")
    assert len(os.listdir("/proc/self/fd")) == ours
    assert len(os.listdir(f"/proc/{zygote.pid}/fd")) == theirs
