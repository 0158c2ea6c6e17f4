"""Commands inside an agent's sandbox: how they end, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from rambarde.children.zygote import Zygote
from rambarde.errors import HostError
from rambarde_wire.orders import CommandStatus, Rlimit
from support import plans, spawns

pytestmark = pytest.mark.anyio


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[Zygote]:
    """A ready zygote over tmp_path with one live agent, a1."""
    async with (
        spawns.zygote_for(plans.setup(str(tmp_path))) as ready,
        spawns.agent_for(ready, plans.agent(str(tmp_path))) as agent,
    ):
        assert agent.hello
        yield ready


async def shell(zygote: Zygote, work: Path, script: str, **changes: object) -> spawns.Ran:
    """Run a shell script in the sandbox of a1."""
    return await spawns.run(zygote, plans.command(str(work), ["sh", "-c", script], **changes))


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


async def test_output_and_exit_code_come_back(zygote: Zygote, tmp_path: Path) -> None:
    """Both streams are apart, the exit code is the command's."""
    ran = await shell(zygote, tmp_path, "echo out; echo err >&2; exit 7")
    assert (ran.out, ran.err) == (b"out\n", b"err\n")
    assert ran.status == CommandStatus(7, -1)


async def test_a_signal_is_told_as_one(zygote: Zygote, tmp_path: Path) -> None:
    """A first process that kills itself is no exit code."""
    ran = await shell(zygote, tmp_path, "kill -KILL $$")
    assert ran.status == CommandStatus(-1, signal.SIGKILL)


@pytest.mark.parametrize(
    ("argv", "changes", "expected"),
    [
        (["no-such-program"], {}, ("exec", errno.ENOENT)),
        (["/etc/passwd"], {}, ("exec", errno.EACCES)),
        (["true"], {"cwd": b"/absent"}, ("chdir", errno.ENOENT)),
        (["true"], {"seccomp": b"\0" * 8}, ("seccomp", errno.EINVAL)),
    ],
)
async def test_a_command_that_never_ran_says_which_step(
    zygote: Zygote,
    tmp_path: Path,
    argv: list[str],
    changes: dict[str, object],
    expected: tuple[str, int],
) -> None:
    """A missing program or folder, or a filter the kernel refuses, is a step with an errno."""
    ran = await spawns.run(zygote, plans.command(str(tmp_path), argv, **changes))
    assert ran.status is not None
    assert (ran.status.step, ran.status.errno) == expected


async def test_no_descendant_outlives_the_first_process(zygote: Zygote, tmp_path: Path) -> None:
    """Background, setsid and double-forked processes are dead once the pidfd is readable."""
    script = (
        "sleep 4711 & setsid sleep 4711 & (setsid sh -c 'sleep 4711 & sleep 4711' &) ; "
        "nohup sleep 4711 >/dev/null 2>&1 & echo started"
    )
    ran = await shell(zygote, tmp_path, script)
    assert (ran.out, ran.status) == (b"started\n", CommandStatus(0, -1))
    assert alive("sleep\x004711") == []


async def test_a_killed_command_leaves_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """SIGKILL of the init ends setsid escapees too, and no status is told."""
    ran = await spawns.run(
        zygote,
        plans.command(str(tmp_path), ["sh", "-c", "setsid sleep 4712 & sleep 4712; echo no"]),
        kill_after_s=0.3,
    )
    assert (ran.status, ran.out) == (None, b"")
    assert alive("sleep\x004712") == []


async def test_orphans_are_reaped(zygote: Zygote, tmp_path: Path) -> None:
    """Two hundred orphans leave no zombie within the command's own pid namespace."""
    script = (
        "i=0; while [ $i -lt 200 ]; do (true &) ; i=$((i+1)); done; sleep 0.2; "
        "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"
    )
    ran = await shell(zygote, tmp_path, script)
    assert ran.out.strip() == b"0"


async def test_a_command_sees_itself_and_its_init_only(zygote: Zygote, tmp_path: Path) -> None:
    """Its /proc holds neither its agent nor another command."""
    async with spawns.agent_for(zygote, plans.agent(str(tmp_path), "a2")):
        process = await zygote.run_command(plans.command(str(tmp_path), ["sleep", "60"]))
        ran = await shell(zygote, tmp_path, "echo /proc/[0-9]*; cat /proc/1/cmdline")
        assert ran.out.replace(b"\0", b"") == b"/proc/1 /proc/2 /proc/3\nrambarde: init c1" or (
            ran.out.startswith(b"/proc/1 /proc/2")
        )
        signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
        await anyio.wait_readable(process.pidfd)
        for fd in (process.pidfd, process.stdout_fd, process.stderr_fd, process.status_fd):
            os.close(fd)


async def test_a_command_cannot_reach_its_init(zygote: Zygote, tmp_path: Path) -> None:
    """Signals to pid 1 and looks into it are refused; only its own tree is in reach."""
    script = (
        "kill -9 1; kill -INT 1; kill -STOP 1; cat /proc/1/environ; ls /proc/1/fd; ls /proc/1/root;"
        "cat /proc/1/mem; kill -9 -1; echo unreachable"
    )
    ran = await shell(zygote, tmp_path, script)
    assert ran.err.count(b"ermission") + ran.err.count(b"not permitted") >= 6
    assert ran.status is not None
    # `kill -9 -1` takes all it may reach, which here is nothing: a shell spares itself.
    assert ran.out == b"unreachable\n"


async def test_a_command_is_born_with_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """Three descriptors, the plan's environment, default signals, no linux cap, own session."""
    script = (
        "ls /proc/self/fd | wc -l; env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | sort;"
        "grep -E '^(Cap|NoNew|Seccomp:|SigIgn|SigBlk)' /proc/self/status;"
        "cat /proc/self/oom_score_adj; nice; tty; cat </dev/tty"
    )
    ran = await shell(zygote, tmp_path, script)
    lines = ran.out.decode().replace("\t", " ").splitlines()
    ignored = int(lines.pop(4).removeprefix("SigIgn: "), 16)
    # Signals 32 and 33 are the C library's own (signal(7)): their starter may ignore them.
    assert ignored & ~(0b11 << 31) == 0
    assert lines == [
        "4",
        "HOME=/home/agent",
        "PATH=/usr/bin:/bin",
        "SigBlk: 0000000000000000",
        *(f"Cap{name}: 0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")),
        "NoNewPrivs: 1",
        "Seccomp: 2",
        "700",
        "1",
        "not a tty",
    ]
    assert b"/dev/tty" in ran.err


async def test_the_machine_is_out_of_reach(zygote: Zygote, tmp_path: Path) -> None:
    """No network but a live loopback, no kernel knobs, no mounts, no home of the host."""
    script = (
        "tail -n +3 /proc/net/dev | cut -d: -f1; cat /sys/class/net/lo/operstate 2>&1;"
        "echo x > /proc/sys/kernel/core_pattern; echo b > /proc/sysrq-trigger;"
        "wc -c < /proc/kallsyms; wc -c < /proc/keys; ls /root; mount -t tmpfs x /mnt;"
        "unshare -r true; hostname"
    )
    ran = await shell(zygote, tmp_path, script)
    lines = ran.out.decode().split()
    assert lines[0] == "lo"
    assert lines[-1] == "rambarde"
    assert lines[-3:-1] == ["0", "0"]
    assert ran.err.count(b"\n") >= 5


async def test_loopback_carries_a_test_server(zygote: Zygote, tmp_path: Path) -> None:
    """A server and a client of one command talk over 127.0.0.1."""
    script = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "server.accept()[0].sendall(b'hi')\n"
        "print(client.recv(2))\n"
    )
    ran = await spawns.run(zygote, plans.command(str(tmp_path), ["python3", "-c", script]))
    assert ran.out == b"b'hi'\n", ran.err


async def test_proc_itself_works_for_tools(zygote: Zygote, tmp_path: Path) -> None:
    """Process substitution, /dev/null, pseudo-terminals and ps: what ordinary tools lean on."""
    script = "cat <(echo sub); echo x > /dev/null && ps -o pid= -p $$; script -qc 'tty' /dev/null"
    ran = await spawns.run(zygote, plans.command(str(tmp_path), ["bash", "-c", script]))
    lines = ran.out.decode().split()
    assert lines[0] == "sub"
    assert lines[1].isdigit()
    assert lines[2].startswith("/dev/pts/")


async def test_a_fork_bomb_is_bounded_and_ends(zygote: Zygote, tmp_path: Path) -> None:
    """With a limit of processes a bomb neither spreads nor survives its init's kill."""
    limit = [Rlimit(6, 60, 60)]
    plan = plans.command(
        str(tmp_path), ["sh", "-c", "b() { b | b & }; b; sleep 4713"], rlimits=limit
    )
    process = await zygote.run_command(plan)
    await anyio.sleep(0.4)
    signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
    with anyio.fail_after(10):
        await anyio.wait_readable(process.pidfd)
    assert alive("sleep\x004713") == []
    for fd in (process.pidfd, process.stdout_fd, process.stderr_fd, process.status_fd):
        os.close(fd)
    # The agent and its room are as before.
    assert (await shell(zygote, tmp_path, "echo on")).out == b"on\n"


async def test_stdin_is_given_or_empty(zygote: Zygote, tmp_path: Path) -> None:
    """Without a descriptor a command reads nothing; with one it reads that."""
    assert (await shell(zygote, tmp_path, "wc -c")).out.strip() == b"0"
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"four")
    os.close(write_fd)
    process = await zygote.run_command(plans.command(str(tmp_path), ["wc", "-c"]), stdin_fd=read_fd)
    assert (await spawns.read_all(process.stdout_fd)).strip() == b"4"
    for fd in (read_fd, process.pidfd, process.stderr_fd, process.status_fd):
        os.close(fd)


async def test_a_dead_agent_takes_its_commands_along(tmp_path: Path) -> None:
    """The end of an agent ends its running command, and a later command is refused by name."""
    async with spawns.zygote_for(plans.setup(str(tmp_path))) as zygote:
        agent = await spawns.start_agent(zygote, plans.agent(str(tmp_path)))
        process = await zygote.run_command(plans.command(str(tmp_path), ["sleep", "4714"]))
        await agent.end()
        with anyio.fail_after(5):
            await anyio.wait_readable(process.pidfd)
            assert await spawns.read_all(process.status_fd) == b""
        assert alive("sleep\x004714") == []
        with pytest.raises(HostError):
            await zygote.run_command(plans.command(str(tmp_path), ["true"]))
        for fd in (process.pidfd, process.stdout_fd, process.stderr_fd):
            os.close(fd)


async def test_an_agent_that_dies_while_joined_costs_no_answer(tmp_path: Path) -> None:
    """Whenever the agent dies in the middle of a join, the order is answered."""
    async with spawns.zygote_for(plans.setup(str(tmp_path))) as zygote:
        for number in range(12):
            agent = await spawns.start_agent(zygote, plans.agent(str(tmp_path), f"a{number}"))

            async def kill_soon(agent: spawns.Agent = agent, pause: float = number / 1500) -> None:
                await anyio.sleep(pause)
                await agent.end()

            with anyio.fail_after(10):
                async with anyio.create_task_group() as group:
                    group.start_soon(kill_soon)
                    plan = plans.command(str(tmp_path), ["sleep", "4715"], f"a{number}")
                    with contextlib.suppress(HostError):
                        ran = await spawns.run(zygote, plan)
                        assert ran.status is None or ran.status.step
        await anyio.sleep(0.1)
        assert alive("sleep\x004715") == []


async def test_the_death_of_the_zygote_ends_commands(tmp_path: Path) -> None:
    """No command outlives the zygote: its init has the parent-death signal."""
    async with spawns.zygote_for(plans.setup(str(tmp_path))) as zygote:
        agent = await spawns.start_agent(zygote, plans.agent(str(tmp_path)))
        process = await zygote.run_command(plans.command(str(tmp_path), ["sleep", "4716"]))
        os.kill(zygote.pid, signal.SIGKILL)
        with anyio.fail_after(5):
            await anyio.wait_readable(process.pidfd)
        assert alive("sleep\x004716") == []
        await agent.end()
        for fd in (process.pidfd, process.stdout_fd, process.stderr_fd, process.status_fd):
            os.close(fd)


async def test_a_cancelled_order_leaves_no_process(zygote: Zygote, tmp_path: Path) -> None:
    """Whoever gives up waiting for a spawn leaves neither process nor descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    os.kill(zygote.pid, signal.SIGSTOP)
    with anyio.move_on_after(0.05):
        await zygote.run_command(plans.command(str(tmp_path), ["sleep", "4717"]))
    os.kill(zygote.pid, signal.SIGCONT)
    await anyio.sleep(0.2)
    assert alive("sleep\x004717") == []
    assert len(os.listdir("/proc/self/fd")) == before
