"""Whatever ends the supervisor or the zygote, nothing they started stays."""

# ruff: noqa: ASYNC240 - small local files, read between awaits

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from rambarde.children import zygote as client
from rambarde.errors import HostError
from support import plans, spawns

_SUPERVISOR = """
import sys, anyio
sys.path[:0] = sys.argv[2:]
from support import plans, spawns
async def main():
    async with spawns.zygote_for(plans.setup(sys.argv[1])) as zygote:
        agent = await spawns.start_agent(zygote, plans.agent(sys.argv[1]))
        command = await zygote.run_command(
            plans.command(sys.argv[1], ["sh", "-c", "setsid sleep 4730 & sleep 4730"]))
        print(zygote.pid, agent.process.pid, command.pid, flush=True)
        await anyio.sleep(60)
anyio.run(main)
"""


def _gone(pids: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    """SIGKILL of the supervisor ends zygote, agent, init and a detached descendant."""
    places = [os.path.dirname(os.path.dirname(os.path.abspath(plans.__file__)))]
    places += [path for path in sys.path if path.endswith(("/supervisor", "/child"))]
    with subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, str(tmp_path), *places], stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(word) for word in supervisor.stdout.readline().split()]
        assert len(pids) == 3
        supervisor.kill()
    deadline = time.monotonic() + 5
    while not _gone(pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _gone(pids)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert b"sleep\x004730" not in Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue


@pytest.mark.anyio
async def test_a_stopped_zygote_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zygote that does not answer in time is killed, and the call says so."""
    monkeypatch.setattr(client, "_ANSWER_S", 0.2)
    async with spawns.zygote_for(plans.setup(str(tmp_path))) as zygote:
        agent = await spawns.start_agent(zygote, plans.agent(str(tmp_path)))
        os.kill(zygote.pid, signal.SIGSTOP)
        with pytest.raises(HostError, match="did not answer"):
            await zygote.run_command(plans.command(str(tmp_path), ["true"]))
        with anyio.fail_after(5):
            await anyio.wait_readable(agent.process.pidfd)
        await agent.end()


@pytest.mark.anyio
async def test_cgroups_are_joined_before_the_first_step(tmp_path: Path) -> None:
    """Agent and command are in the groups of their plans; a group out of reach is named."""
    absent = plans.agent(str(tmp_path), cgroup_procs=[b"/sys/fs/cgroup/absent/cgroup.procs"])
    async with spawns.zygote_for(plans.setup(str(tmp_path))) as zygote:
        with pytest.raises(HostError, match="cgroup /sys/fs/cgroup/absent"):
            await zygote.spawn_agent(absent)
        root = "/sys/fs/cgroup/pids"
        if not os.access(root, os.W_OK):
            return
        group = f"{root}/rambarde-test-{os.getpid()}"
        os.mkdir(group)
        try:
            procs = [os.fsencode(f"{group}/cgroup.procs")]
            plan = plans.agent(str(tmp_path), cgroup_procs=procs)
            async with spawns.agent_for(zygote, plan) as agent:
                text = Path(f"/proc/{agent.process.pid}/cgroup").read_text()
                assert os.path.basename(group) in text
                command = plans.command(str(tmp_path), ["sleep", "4731"], cgroup_procs=procs)
                process = await zygote.run_command(command)
                members = Path(group, "cgroup.procs").read_text().split()
                assert {str(agent.process.pid), str(process.pid)} <= set(members)
                for fd in (
                    process.pidfd,
                    process.stdout_fd,
                    process.stderr_fd,
                    process.status_fd,
                ):
                    os.close(fd)
            await anyio.sleep(0.1)
        finally:
            os.rmdir(group)


@pytest.mark.anyio
async def test_the_zygote_has_one_thread_and_knows_its_kernel(tmp_path: Path) -> None:
    """What it reports on being ready is what the kernel says."""
    zygote = client.Zygote.start(
        plans.setup(str(tmp_path)),
        environment={},
        entry="probe_loop",
        extra_places={"probe_loop": os.path.dirname(plans.__file__)},
    )
    ready = await zygote.wait_ready()
    assert ready.threads == 1
    assert ready.landlock_abi >= 3
    assert ready.trial_ms > 0
    await zygote.aclose()
    assert not os.path.exists(f"/proc/{zygote.pid}")


@pytest.mark.anyio
async def test_the_real_loop_loads_under_the_restricted_finder(tmp_path: Path) -> None:
    """rambarde_child.turn and all it needs come from three packages and the standard library."""
    zygote = client.Zygote.start(plans.setup(str(tmp_path)), environment={})
    await zygote.wait_ready()
    agent = await spawns.start_agent(zygote, plans.agent(str(tmp_path)))
    assert agent.hello
    await agent.end()
    await zygote.aclose()
