"""Agents as the zygote makes them: what they are born with, and what they cannot do."""

# ruff: noqa: ASYNC230, ASYNC240 - small local files, read between awaits

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from rambarde.children.zygote import Zygote
from rambarde.errors import HostError, SandboxUnavailable
from rambarde_wire.frames import TellFault
from rambarde_wire.orders import Entry, LandlockRule, Tmpfs
from support import plans, spawns

pytestmark = pytest.mark.anyio


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[Zygote]:
    """A ready zygote over tmp_path."""
    async with spawns.zygote_for(plans.setup(str(tmp_path))) as ready:
        yield ready


async def test_a_sealed_agent_greets_with_nothing_left(zygote: Zygote, tmp_path: Path) -> None:
    """No linux cap in any set, no new privileges, filtered, five descriptors, all acts refused."""
    async with spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent:
        checks = agent.hello.checks
    caps = (
        checks.cap_effective,
        checks.cap_permitted,
        checks.cap_inheritable,
        checks.cap_bounding,
        checks.cap_ambient,
    )
    assert caps == (0, 0, 0, 0, 0)
    assert (checks.no_new_privs, checks.seccomp_mode) == (1, 2)
    assert checks.open_fds == [0, 1, 2, 3, 4]
    assert checks.uid == (1000 if os.geteuid() == 0 else os.getuid())
    assert checks.outside_write_errno in (errno.EACCES, errno.EROFS)
    assert (checks.unshare_errno, checks.exec_errno) == (errno.EPERM, errno.EPERM)
    assert checks.socket_errno == errno.EAFNOSUPPORT


async def test_the_kernel_confirms_from_outside_what_the_agent_says(
    zygote: Zygote, tmp_path: Path
) -> None:
    """/proc/<pid>/status, read by the supervisor, shows the same sets, filter and host uid."""
    async with spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent:
        text = Path(f"/proc/{agent.process.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {
        "0000000000000000"
    }
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    expected = plans.KUID if os.geteuid() == 0 else os.getuid()
    assert fields["Uid"].split() == [str(expected)] * 4
    assert fields["NSpid"].split()[1:] == ["1"]
    assert fields["Name"] == "child test a1"


async def test_no_namespace_is_shared_with_host_or_sibling(zygote: Zygote, tmp_path: Path) -> None:
    """All seven namespaces differ from the supervisor's; those that could leak differ pairwise."""
    here = {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in os.listdir("/proc/self/ns")}
    async with (
        spawns.agent_for(zygote, plans.agent(str(tmp_path), "a1")) as one,
        spawns.agent_for(zygote, plans.agent(str(tmp_path), "a2")) as two,
    ):
        first, second = one.hello.checks.namespaces, two.hello.checks.namespaces
    assert set(first) == {"net", "user", "mnt", "ipc", "uts", "cgroup", "pid"}
    assert all(first[name] != here[name] for name in first)
    assert all(first[name] != second[name] for name in first)


async def test_titles_read_like_the_process_tree(zygote: Zygote, tmp_path: Path) -> None:
    """`ps` shows the zygote and the agent by role and name."""
    async with spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent:
        titles = [
            Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
            for pid in (zygote.pid, agent.process.pid)
        ]
    assert titles == [b"rambarde: zygote", b"rambarde: child test a1"]


async def test_after_the_fork_nothing_is_imported(zygote: Zygote, tmp_path: Path) -> None:
    """The set of modules of a greeted agent is the one the zygote loaded."""
    async with spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent:
        before, after = await agent.ask("LOADED"), await agent.ask("len(sys.modules)")
        foreign = await agent.ask(
            "[m for m in ('rambarde', 'asyncio', 'random', 'ssl') if m in sys.modules]"
        )
    # The loop itself is registered once its import is over.
    assert int(after) - int(before) <= 1
    assert foreign == "[]"


async def test_the_zygote_shows_no_environment(tmp_path: Path) -> None:
    """Neither the zygote nor an agent has a variable: not at exec, not since."""
    async with (
        spawns.zygote_for(plans.setup(str(tmp_path))) as zygote,
        spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent,
    ):
        assert Path(f"/proc/{zygote.pid}/environ").read_bytes() == b""
        assert await agent.ask("dict(os.environ)") == "{}"


async def test_the_workspace_is_written_and_owned_by_its_owner(
    zygote: Zygote, tmp_path: Path
) -> None:
    """What an agent writes lands in the live tree, owned as the tree is, mode by the umask."""
    async with spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent:
        await agent.ask(f"open({str(tmp_path / 'new')!r}, 'w').write('x')")
    made = (tmp_path / "new").stat()
    assert (made.st_uid, made.st_gid) == (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
    umask = os.umask(0)
    os.umask(umask)
    assert made.st_mode & 0o777 == 0o666 & ~umask


async def test_a_read_only_agent_writes_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """The whole workspace is a read-only mount, whatever Landlock says."""
    plan = plans.agent(str(tmp_path))
    plan = msgspec.structs.replace(plan, workspace_writable=False)
    async with spawns.agent_for(zygote, plan) as agent:
        answer = await agent.ask(f"open({str(tmp_path / 'new')!r}, 'w')")
    assert f"OSError({errno.EROFS}" in answer
    assert not (tmp_path / "new").exists()


async def test_masks_hide_and_leaves_hold(zygote: Zygote, tmp_path: Path) -> None:
    """A masked file or folder is empty, a protected leaf read-only, a pin not to be renamed."""
    (tmp_path / ".env").write_text("SECRET=1")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "id").write_text("SECRET")
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / ".git" / "config").write_text("[core]")
    plan = plans.agent(
        str(tmp_path),
        masks=plans.masks(str(tmp_path / ".env"), str(tmp_path / "keys")),
        pins=[os.fsencode(tmp_path / ".git")],
        read_only=[os.fsencode(tmp_path / ".git" / n) for n in ("hooks", "config")],
    )
    async with spawns.agent_for(zygote, plan) as agent:

        async def inside(expression: str) -> str:
            return await agent.ask(expression.replace("WORK", repr(str(tmp_path))))

        assert await inside("open(WORK + '/.env').read()") == "''"
        assert await inside("os.listdir(WORK + '/keys')") == "[]"
        assert await inside("open(WORK + '/.git/config').read()") == "'[core]'"
        for act, number in (
            ("open(WORK + '/.git/config', 'w')", errno.EROFS),
            ("open(WORK + '/.git/hooks/pre-commit', 'w')", errno.EROFS),
            ("os.rename(WORK + '/.git', WORK + '/.git2')", errno.EBUSY),
            ("os.unlink(WORK + '/.env')", errno.EBUSY),
            ("open(WORK + '/.env', 'w')", errno.EROFS),
        ):
            assert f"({number}, " in await inside(act), act
        assert await inside("open(WORK + '/.git/HEAD', 'w').write('x')") == "1"
    assert (tmp_path / ".env").read_text() == "SECRET=1"


async def test_a_mask_is_laid_again_after_the_host_saved_over_it(
    zygote: Zygote, tmp_path: Path
) -> None:
    """An atomic save on the host bares the file; remask covers it in agent and running command."""
    secret = tmp_path / ".env"
    secret.write_text("OLD")
    plan = plans.agent(str(tmp_path), masks=plans.masks(str(secret)))
    async with spawns.agent_for(zygote, plan) as agent:
        script = "read go; cat .env; echo end"
        read_fd, write_fd = os.pipe()
        command = plans.command(str(tmp_path), ["sh", "-c", script])
        process = await zygote.run_command(command, stdin_fd=read_fd)
        (tmp_path / "swap").write_text("NEW SECRET")
        (tmp_path / "swap").rename(secret)
        await zygote.remask("a1", plans.masks(str(secret)))
        assert await agent.ask(f"open({str(secret)!r}).read()") == "''"
        os.write(write_fd, b"go\n")
        assert await spawns.read_all(process.stdout_fd) == b"end\n"
        for fd in (read_fd, write_fd, process.pidfd, process.stderr_fd, process.status_fd):
            os.close(fd)


async def test_a_read_only_leaf_is_covered_again_after_the_host_saved_over_it(
    zygote: Zygote, tmp_path: Path
) -> None:
    """A host-side save frees a protected file for an instant; covering it again refuses writes."""
    config = tmp_path / "config"
    config.write_text("OLD")
    plan = plans.agent(str(tmp_path), read_only=[bytes(config)])
    async with spawns.agent_for(zygote, plan) as agent:
        (tmp_path / "swap").write_text("NEW")
        (tmp_path / "swap").rename(config)
        await zygote.remask("a1", [], [bytes(config)])
        assert "Read-only" in await agent.ask(f"open({str(config)!r}, 'w')")
    assert config.read_text() == "NEW"


async def test_a_planted_symlink_cannot_redirect_a_mask(zygote: Zygote, tmp_path: Path) -> None:
    """A folder on the way that has become a symlink is a fault, not a mount elsewhere."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / ".env").write_text("x")
    (tmp_path / "link").symlink_to("real")
    plan = plans.agent(str(tmp_path), masks=plans.masks(str(tmp_path / "link" / ".env")))
    agent = await spawns.start_agent(zygote, plan)
    await agent.end()
    assert isinstance(agent.first, TellFault)
    assert (agent.first.claimed_step, agent.first.errno) == ("openat2 link/.env", errno.ELOOP)


async def test_the_way_to_the_workspace_cannot_be_moved(zygote: Zygote, tmp_path: Path) -> None:
    """Below the agent's own /tmp, no folder on the way can be renamed and another planted."""
    top = Path(*tmp_path.parts[:3])
    async with spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent:
        for folder in (tmp_path, tmp_path.parent, top):
            answer = await agent.ask(f"os.rename({str(folder)!r}, {str(folder)!r} + 'x')")
            assert f"({errno.EBUSY}, " in answer or f"({errno.EROFS}, " in answer
        assert await agent.ask("open('/tmp/free', 'w').write('x')") == "1"


async def test_a_workspace_name_may_hold_any_byte(tmp_path: Path) -> None:
    """A path that is not UTF-8 works as workspace, file name and mask."""
    work = os.fsencode(tmp_path) + b"/caf\xe9 \xff"
    os.mkdir(work)
    with open(work + b"/s\xe9cret", "w") as file:
        file.write("x")
    plan = plans.agent(work, masks=plans.masks(work + b"/s\xe9cret"))
    async with (
        spawns.zygote_for(plans.setup(work)) as zygote,
        spawns.agent_for(zygote, plan) as agent,
    ):
        assert await agent.ask(f"open({work!r} + b'/s\\xe9cret').read()") == "''"


async def test_the_host_is_not_there(zygote: Zygote, tmp_path: Path) -> None:
    """No home, no /run, no host process, no host network; only the template and the workspace."""
    async with spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent:
        top = await agent.ask("sorted(os.listdir('/'))")
        assert not {"root", "run", "sys", "boot", "mnt"} & set(eval(top))
        processes = await agent.ask("[p for p in os.listdir('/proc') if p.isdigit()]")
        assert processes == "['1']"
        assert f"({errno.EPERM}, " in await agent.ask("os.execv('/bin/sh', ['sh'])")
        assert "PermissionError" in await agent.ask("os.fork()")
        assert await agent.ask("os.path.exists('/proc/sys')") == "False"


async def test_a_failed_step_is_told_with_its_errno(zygote: Zygote, tmp_path: Path) -> None:
    """A plan that cannot be carried out ends in a TellFault naming the step, and no agent."""
    plan = plans.agent(str(tmp_path))
    bad = msgspec.structs.replace(
        plan.landlock, rules=[*plan.landlock.rules, LandlockRule(b"/absent", 4)]
    )
    agent = await spawns.start_agent(zygote, msgspec.structs.replace(plan, landlock=bad))
    await agent.end()
    assert agent.first == TellFault("landlock /absent", errno.ENOENT, os.strerror(errno.ENOENT))
    bad_tmpfs = msgspec.structs.replace(plan, tmpfs=[Tmpfs(b"/absent", 1, 1, 0o700)])
    agent = await spawns.start_agent(zygote, bad_tmpfs)
    await agent.end()
    assert isinstance(agent.first, TellFault)
    assert agent.first.claimed_step.endswith("/absent")


async def test_a_wrong_tier_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    """A zygote set up for one tier never makes an agent of another."""
    with pytest.raises(HostError, match="set up for A, not C"):
        await zygote.spawn_agent(plans.agent(str(tmp_path), tier="C"))


async def test_a_set_up_that_fails_names_its_step(tmp_path: Path) -> None:
    """An entry whose source is absent makes the sandbox unavailable, by name."""
    setup = plans.setup(str(tmp_path))
    setup = msgspec.structs.replace(setup, entries=[*setup.entries, Entry("tree", b"/x", b"/no")])
    zygote = Zygote.start(setup, environment={}, entry="json")
    with pytest.raises((SandboxUnavailable, HostError)):
        await zygote.wait_ready()
    await zygote.aclose()


async def test_every_end_is_told_once(zygote: Zygote, tmp_path: Path) -> None:
    """The zygote tells how an agent ended: by its loop (0) or by a signal."""
    agent = await spawns.start_agent(zygote, plans.agent(str(tmp_path), "a1"))
    pid = agent.process.pid
    os.close(agent.process.write_fd)
    with anyio.fail_after(5):
        end = await zygote.wait_ended(pid)
    assert (end.code, end.signal) == (0, -1)
    for fd in (agent.process.read_fd, agent.process.log_fd, agent.process.pidfd):
        os.close(fd)
    agent = await spawns.start_agent(zygote, plans.agent(str(tmp_path), "a1"))
    await agent.end()
    with anyio.fail_after(5):
        end = await zygote.wait_ended(agent.process.pid)
    assert (end.code, end.signal) == (-1, signal.SIGKILL)


async def test_the_death_of_the_zygote_ends_all_and_fails_all(tmp_path: Path) -> None:
    """Agents die with the zygote at once; calls in flight and later ones fail; told once."""
    reasons: list[str] = []
    async with spawns.zygote_for(plans.setup(str(tmp_path))) as zygote:
        zygote.on_death = reasons.append
        agents = [
            await spawns.start_agent(zygote, plans.agent(str(tmp_path), f"a{n}")) for n in range(3)
        ]
        os.kill(zygote.pid, signal.SIGSTOP)
        failures: list[str] = []

        async def spawn_one() -> None:
            try:
                await zygote.spawn_agent(plans.agent(str(tmp_path), "late"))
            except HostError as exc:
                failures.append(str(exc))

        async with anyio.create_task_group() as group:
            group.start_soon(spawn_one)
            await anyio.sleep(0.05)
            os.kill(zygote.pid, signal.SIGKILL)
        started = time.monotonic()
        with anyio.fail_after(5):
            for agent in agents:
                await anyio.wait_readable(agent.process.pidfd)
        assert time.monotonic() - started < 20
        assert failures == ["the zygote died"]
        assert reasons == ["the zygote died"]
        with pytest.raises(HostError, match="the zygote died"):
            await zygote.spawn_agent(plans.agent(str(tmp_path), "later"))
        for agent in agents:
            await agent.end()


@contextlib.contextmanager
def _room_for(free: int) -> Iterator[None]:
    """Leave this process room for so many more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


async def test_a_full_descriptor_table_is_an_error_by_name(zygote: Zygote, tmp_path: Path) -> None:
    """Without descriptors a spawn fails with advice, leaks nothing, and the next one works."""
    before = len(os.listdir("/proc/self/fd"))
    for room in range(7):
        with _room_for(room), pytest.raises(HostError) as caught:
            await zygote.spawn_agent(plans.agent(str(tmp_path), "starved"))
        assert "descriptor" in str(caught.value)
        assert "ulimit" in caught.value.advice
        await anyio.sleep(0.02)
        assert len(os.listdir("/proc/self/fd")) == before
    async with spawns.agent_for(zygote, plans.agent(str(tmp_path), "fed")) as agent:
        assert agent.hello


async def test_a_plan_too_long_for_a_datagram_travels(zygote: Zygote, tmp_path: Path) -> None:
    """Four hundred masks with long names go by memfd and are all laid."""
    names = [tmp_path / ("x" * 200 + str(n)) for n in range(400)]
    for name in names:
        name.write_text("x")
    plan = plans.agent(str(tmp_path), masks=plans.masks(*map(str, names)))
    assert len(msgspec.msgpack.encode(plan)) > 64 << 10
    async with spawns.agent_for(zygote, plan) as agent:
        work = repr(str(tmp_path))
        got = await agent.ask(f"sum(os.stat({work} + '/' + n).st_size for n in os.listdir({work}))")
    assert got == "0"


async def test_many_lives_leave_nothing_in_the_zygote(zygote: Zygote, tmp_path: Path) -> None:
    """Twenty births and deaths later the zygote has the descriptors and children it began with."""

    def held() -> tuple[int, str]:
        children = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children").read_text()
        return len(os.listdir(f"/proc/{zygote.pid}/fd")), children

    async with spawns.agent_for(zygote, plans.agent(str(tmp_path))):
        pass
    await anyio.sleep(0.05)
    before = held()
    for number in range(20):
        async with spawns.agent_for(zygote, plans.agent(str(tmp_path), f"a{number}")):
            await spawns.run(zygote, plans.command(str(tmp_path), ["true"], f"a{number}"))
    await anyio.sleep(0.2)
    assert held() == before
    assert before[1] == ""
