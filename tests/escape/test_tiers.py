"""Lower tiers hold what they promise, and a step that is impossible is told, never skipped."""

# ruff: noqa: ASYNC221 - small local files, read between awaits

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import anyio
import pytest

from rambarde.children.zygote import Zygote
from rambarde.errors import SandboxUnavailable
from rambarde_wire.orders import CommandStatus, Tier
from support import plans, spawns

pytestmark = pytest.mark.anyio


def alive(mark: str) -> list[int]:
    """Every process of this machine whose command line holds the mark."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("tier", ["A-proc", "B"])
async def test_a_lower_tier_runs_agents_and_commands(tier: Tier, tmp_path: Path) -> None:
    """Without a /proc, or without a network namespace of its own, the rest holds as in tier A."""
    async with (
        spawns.zygote_for(plans.setup(str(tmp_path), tier=tier)) as zygote,
        spawns.agent_for(zygote, plans.agent(str(tmp_path), tier=tier)) as agent,
    ):
        host_net = os.stat("/proc/self/ns/net").st_ino
        assert (agent.hello.checks.namespaces["net"] == host_net) is (tier == "B")
        assert agent.hello.checks.cap_bounding == 0
        script = "ls /proc | wc -l; setsid sleep 4720 & echo on"
        command = plans.command(str(tmp_path), ["sh", "-c", script], tier=tier)
        ran = await spawns.run(zygote, command)
        assert ran.status == CommandStatus(0, -1)
        entries = int(ran.out.split()[0])
        assert (entries == 0) is (tier == "A-proc")
        assert alive("sleep\x004720") == []


async def test_tier_c_is_for_ordinary_users_who_get_all_it_can(tmp_path: Path) -> None:
    """Root is refused by name; a user's agent is confined and what detaches is swept away."""
    setup = plans.setup(str(tmp_path), tier="C")
    if os.geteuid() == 0:
        with pytest.raises(SandboxUnavailable, match="tier"):
            async with spawns.zygote_for(setup):
                pass
        return
    async with (
        spawns.zygote_for(setup) as zygote,
        spawns.agent_for(zygote, plans.agent(str(tmp_path), tier="C")) as agent,
    ):
        assert agent.hello.checks.outside_write_errno == errno.EACCES
        assert "Permission" in await agent.ask("os.listdir(os.path.expanduser('/home'))")
        await _ends_by_itself(zygote, tmp_path)
        await _is_killed(zygote, tmp_path)


async def _ends_by_itself(zygote: Zygote, work: Path) -> None:
    script = "setsid sleep 4721 & (setsid sh -c 'sleep 4721 & sleep 4721' &); echo on"
    ran = await spawns.run(zygote, plans.command(str(work), ["sh", "-c", script], tier="C"))
    assert (ran.out, ran.status) == (b"on\n", CommandStatus(0, -1)), ran.err
    assert alive("sleep\x004721") == []


async def _is_killed(zygote: Zygote, work: Path) -> None:
    script = "setsid sleep 4722 & sleep 4722"
    process = await zygote.run_command(plans.command(str(work), ["sh", "-c", script], tier="C"))
    await anyio.sleep(0.3)
    assert alive("sleep\x004722") != []
    signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
    await anyio.sleep(0.3)
    assert alive("sleep\x004722") == []
    for fd in (process.pidfd, process.stdout_fd, process.stderr_fd, process.status_fd):
        os.close(fd)


async def test_a_workspace_that_cannot_be_id_mapped_is_named(tmp_path: Path) -> None:
    """On overlayfs root's set-up ends at `idmap`, in words; an ordinary user needs no map."""
    lower, upper, work, merged = (tmp_path / name for name in ("lower", "upper", "work", "merged"))
    for folder in (lower, upper, work, merged):
        folder.mkdir()
    if os.geteuid() != 0:
        async with (
            spawns.zygote_for(plans.setup(str(merged))) as zygote,
            spawns.agent_for(zygote, plans.agent(str(merged))) as agent,
        ):
            assert agent.hello
        return
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "none", "-o", options, merged], check=True)
    try:
        with pytest.raises(SandboxUnavailable, match=r"idmap: .*cannot be id-mapped"):
            async with spawns.zygote_for(plans.setup(str(merged))):
                pass
    finally:
        subprocess.run(["umount", merged], check=True)
