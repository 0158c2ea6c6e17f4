"""The filters hold what policies/seccomp says: every rule, both ways, in sealed processes.

Nothing here is listed by hand: the calls and the arguments on both sides of each condition are
made from rules.toml, and are asked of the kernel by a sealed command and a sealed agent; what the
filter should let pass must end as it does without any filter.
"""

from __future__ import annotations

import errno
import json
import platform
import re
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest

from rambarde.children.zygote import Zygote
from rambarde.policy.seccomp import Profile, assemble, load_table
from rambarde.policy.source import shipped_folder
from support import plans, spawns
from support.rules_text import ALLOW, Rules

FOLDER = Path(shipped_folder(), "seccomp")
MACHINES = ("x86_64", "aarch64")
_BATCH = 40
Case = tuple[str, tuple[int, ...]]

# One process per call: what a call does to it is gone with it. A call that returns twice says the
# same thing twice; one that does not return at all is not refused, which is told as -1.
_WORKER = """\
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
cases = json.load(sys.stdin)
found = []
for number, arguments in cases:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_fd)
        result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
        os.write(write_fd, b"%d " % (ctypes.get_errno() if result == -1 else 0))
        os._exit(0)
    os.close(write_fd)
    said = os.read(read_fd, 64).split()
    os.close(read_fd)
    os.waitpid(pid, 0)
    found.append(int(said[0]) if said else -1)
print(json.dumps(found))
"""
_CALL_32 = """\
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())
"""


def _calls(rules: Rules) -> list[str]:
    return sorted({call for rule in rules.rules for call in rule["calls"] if call in rules.numbers})


def _cases(rules: Rules) -> list[Case]:
    return [(call, arguments) for call in _calls(rules) for arguments in rules.samples(call)]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_is_the_kernels_own(machine: str) -> None:
    """Both tables agree with the number lists of Linux that came with the test, name by name."""
    rules = Rules.read(FOLDER, machine)
    known = _known_numbers(machine)
    assert {name: known.get(name) for name in rules.numbers} == dict(rules.numbers)
    absent = {call for rule in rules.rules for call in rule["calls"]} - rules.numbers.keys()
    assert not absent & known.keys(), "a call this architecture has, which no filter would stop"


def _known_numbers(machine: str) -> dict[str, int]:
    text = Path(__file__).with_name("numbers").joinpath(f"{machine}.txt").read_text()
    return {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[Zygote]:
    """A ready zygote over tmp_path with two live agents, a1 and a2, apart in every namespace."""
    async with (
        spawns.zygote_for(plans.setup(str(tmp_path))) as ready,
        spawns.agent_for(ready, plans.agent(str(tmp_path))),
        spawns.agent_for(ready, plans.agent(str(tmp_path), "a2")),
    ):
        yield ready


def _shipped(profile: Profile, *, debug: bool = False) -> bytes:
    table = load_table(str(FOLDER), platform.machine())
    return assemble(table, profile=profile, tier="A", debug=debug)


async def _by_command(
    zygote: Zygote, work: Path, rules: Rules, cases: Iterable[Case], seccomp: bytes, agent_id: str
) -> list[int]:
    numbered = [(rules.numbers[call], arguments) for call, arguments in cases]
    (work / "cases").write_text(json.dumps(numbered))
    (work / "worker.py").write_text(_WORKER)
    script = "exec python3 worker.py < cases"
    argv = ["sh", "-c", script]
    plan = plans.command(str(work), argv, agent_id, seccomp=seccomp, nice=0)
    ran = await spawns.run(zygote, plan)
    assert ran.status is not None
    assert ran.status.code == 0, ran.err
    found: list[int] = json.loads(ran.out)
    assert len(found) == len(numbered)
    return found


def _errno(name: str) -> int:
    return int(getattr(errno, name))


@pytest.mark.anyio
@pytest.mark.parametrize("debug", [False, True])
async def test_a_sealed_command_meets_every_rule(
    zygote: Zygote, tmp_path: Path, debug: bool
) -> None:
    """SYS-02, SYS-03, SYS-05, SYS-06, SYS-14, TTY-05, NET-08: refused as written, else as free."""
    rules = Rules.read(FOLDER, platform.machine())
    cases = _cases(rules)
    sealed = await _by_command(
        zygote, tmp_path, rules, cases, _shipped("command", debug=debug), "a1"
    )
    free = await _by_command(zygote, tmp_path, rules, cases, plans.filter_denying({}), "a2")
    turned: set[str] = set()
    for (call, arguments), got, without in zip(cases, sealed, free, strict=True):
        wanted = rules.expected(call, arguments, profile="command", tier="A", debug=debug)
        case = (call, [hex(one) for one in arguments], got, without)
        if wanted == ALLOW:
            assert got == without, case
        else:
            assert got == _errno(wanted), case
            if got != without:
                turned.add(call)
    # The same calls without the filter went further: the kernel alone would not have refused them.
    assert {"clone3", "unshare", "clone", "keyctl", "personality", "ioctl"} <= turned
    assert ("ptrace" in turned) is not debug
    assert {"open", "openat", "chmod", "mkdir", "mknod", "socket", "openat2"} <= turned


@pytest.mark.anyio
async def test_a_sealed_agent_meets_every_rule(tmp_path: Path) -> None:
    """The agent's own process is refused the same and, besides, sockets, exec and forks."""
    rules = Rules.read(FOLDER, platform.machine())
    refused = [
        (call, arguments)
        for call, arguments in _cases(rules)
        if rules.expected(call, arguments, profile="agent", tier="A", debug=False) != ALLOW
    ]
    assert {"execve", "execveat", "fork", "vfork", "clone", "socket"} & rules.numbers.keys() <= {
        call for call, _ in refused
    }
    plan = plans.agent(str(tmp_path), seccomp=_shipped("agent"))
    async with (
        spawns.zygote_for(plans.setup(str(tmp_path))) as zygote,
        spawns.agent_for(zygote, plan) as agent,
    ):
        for start in range(0, len(refused), _BATCH):
            batch = refused[start : start + _BATCH]
            got = await _by_agent(agent, [(rules.numbers[call], args) for call, args in batch])
            wanted = [
                _errno(rules.expected(call, args, profile="agent", tier="A", debug=False))
                for call, args in batch
            ]
            assert list(zip(batch, got, strict=True)) == list(zip(batch, wanted, strict=True))


async def _by_agent(
    agent: spawns.Agent, numbered: Sequence[tuple[int, tuple[int, ...]]]
) -> list[int]:
    answer = await agent.ask(
        "(lambda c: (lambda libc: [c.get_errno() if libc.syscall(c.c_long(n), *map(c.c_ulong, a))"
        f" == -1 else 0 for n, a in {numbered!r}])(c.CDLL(None, use_errno=True)))"
        "(sys.modules['ctypes'])"
    )
    found: list[int] = json.loads(answer)
    return found


@pytest.mark.anyio
async def test_the_32_bit_entry_kills(zygote: Zygote, tmp_path: Path) -> None:
    """`int 0x80` ends the process by SIGSYS where this kernel has that entry, else by itself."""
    if platform.machine() != "x86_64":
        return

    async def ended_by(seccomp: bytes) -> tuple[int, int]:
        argv = ["python3", "-c", _CALL_32]
        plan = plans.command(str(tmp_path), argv, seccomp=seccomp)
        ran = await spawns.run(zygote, plan)
        assert ran.status is not None
        return ran.status.code, ran.status.signal

    free = await ended_by(plans.filter_denying({}))
    assert free in ((0, -1), (-1, signal.SIGSEGV))
    wanted = signal.SIGSYS if free == (0, -1) else signal.SIGSEGV
    assert await ended_by(_shipped("command")) == (-1, wanted)
