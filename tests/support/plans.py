"""Hand-made set-ups and plans: the least that runs a real agent and a real shell.

They stand beside policy/compile.py on purpose: a test of the kernel half must not fall, or pass,
with the compiler of policies.
"""

from __future__ import annotations

import errno
import os
import platform
import resource
import struct
from collections.abc import Iterable, Mapping

import msgspec

from rambarde_wire.orders import (
    ORDERS_VERSION,
    CommandPlan,
    Entry,
    Landlock,
    LandlockRule,
    Mask,
    Rlimit,
    SandboxPlan,
    Tier,
    Tmpfs,
    ZygoteSetup,
)

KUID = 2_000_000_123
_X86 = platform.machine() == "x86_64"
_NUMBERS = {
    "execve": 59 if _X86 else 221,
    "execveat": 322 if _X86 else 281,
    "unshare": 272 if _X86 else 97,
    "mount": 165 if _X86 else 40,
    "setns": 308 if _X86 else 268,
    "clone": 56 if _X86 else 220,
    "clone3": 435,
    "socket": 41 if _X86 else 198,
}
_READ = 0x4 | 0x8
_EXECUTE = 0x1
_WRITE = 0x2
_ALL_FS = (1 << 16) - 1
_ALL_BUT_DEVICES = _ALL_FS & ~(1 << 6 | 1 << 11 | 1 << 15)


def filter_denying(calls: Mapping[str, int]) -> bytes:
    """A filter that answers these calls with these errnos and allows every other."""
    program = [struct.pack("=HBBI", 0x20, 0, 0, 0)]
    for name, number in calls.items():
        program.append(struct.pack("=HBBI", 0x15, 0, 1, _NUMBERS[name]))
        program.append(struct.pack("=HBBI", 0x06, 0, 0, 0x0005_0000 | number))
    program.append(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF_0000))
    return b"".join(program)


AGENT_FILTER = filter_denying(
    dict.fromkeys(("execve", "execveat", "unshare", "mount", "setns", "clone"), errno.EPERM)
    | {"clone3": errno.ENOSYS, "socket": errno.EAFNOSUPPORT}
)
COMMAND_FILTER = filter_denying(
    dict.fromkeys(("unshare", "mount", "setns"), errno.EPERM) | {"clone3": errno.ENOSYS}
)


def entries() -> list[Entry]:
    """The system a shell needs: /usr, its links, a few files of /etc, the harmless devices."""
    made = [Entry("tree", b"/usr", b"/usr")]
    for name in (b"bin", b"sbin", b"lib", b"lib64"):
        if os.path.islink(b"/" + name):
            made.append(Entry("symlink", b"/" + name, os.readlink(b"/" + name)))
        elif os.path.isdir(b"/" + name):
            made.append(Entry("tree", b"/" + name, b"/" + name))
    for name in (b"ld.so.cache", b"alternatives"):
        if os.path.exists(b"/etc/" + name):
            kind = "tree" if os.path.isdir(b"/etc/" + name) else "file"
            made.append(Entry(kind, b"/etc/" + name, b"/etc/" + name))  # type: ignore[arg-type]
    devices = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom")
    made += [Entry("device", name, name) for name in devices]
    made.append(Entry("symlink", b"/dev/fd", b"/proc/self/fd"))
    made.append(Entry("symlink", b"/dev/ptmx", b"pts/ptmx"))
    made.append(Entry("text", b"/etc/passwd", b"agent:x:1000:1000::/home/agent:/bin/sh\n"))
    return made


def setup(workspace: str | bytes, *, tier: Tier = "A", probe: bool = True) -> ZygoteSetup:
    """The set-up for this process's user over one workspace."""
    path = os.fsencode(workspace)
    status = os.stat(path)
    by_root = os.geteuid() == 0
    return ZygoteSetup(
        version=ORDERS_VERSION,
        supervisor_pid=os.getpid(),
        tier=tier,
        started_by_root=by_root,
        owner_uid=status.st_uid,
        owner_gid=status.st_gid,
        inner_uid=1000 if by_root else os.getuid(),
        inner_gid=1000 if by_root else os.getgid(),
        workspace=path,
        hostname=b"rambarde",
        entries=entries(),
        probe=probe,
    )


def _landlock(workspace: bytes, *, execute: bool, writable: bool, tier: Tier) -> Landlock:
    read = _READ | (_EXECUTE if execute else 0)
    rules = [
        LandlockRule(b"/usr", read),
        LandlockRule(b"/bin", read),
        LandlockRule(b"/lib", read, optional=True),
        LandlockRule(b"/lib64", read, optional=True),
        LandlockRule(b"/etc", _READ),
        LandlockRule(b"/proc", _READ | _WRITE),
        LandlockRule(b"/dev", _READ | _WRITE),
        LandlockRule(b"/dev/pts", _READ | _WRITE | 1 << 15, optional=True),
        LandlockRule(workspace, _ALL_BUT_DEVICES if writable else read),
    ]
    if tier != "C":
        rules.append(LandlockRule(b"/", 0x8))
        rules += [LandlockRule(p, _ALL_BUT_DEVICES) for p in (b"/tmp", b"/home/agent", b"/dev/shm")]
    return Landlock(_ALL_FS, 0 if tier in ("A", "A-proc") else 3, 3, rules)


def agent(workspace: str | bytes, agent_id: str = "a1", **changes: object) -> SandboxPlan:
    """A writable agent; `changes` replace fields."""
    path = os.fsencode(workspace)
    tier: Tier = changes.pop("tier", "A")  # type: ignore[assignment]
    writable = bool(changes.get("workspace_writable", tier != "C"))
    plan = SandboxPlan(
        agent_id=agent_id,
        title=f"test {agent_id}",
        tier=tier,
        workspace=path,
        workspace_writable=writable,
        kuid=KUID if os.geteuid() == 0 else 0,
        tmpfs=[
            Tmpfs(b"/tmp", 8 << 20, 1000, 0o1777),
            Tmpfs(b"/dev/shm", 1 << 20, 100, 0o1777),
            Tmpfs(b"/home/agent", 8 << 20, 1000, 0o700),
        ],
        pins=[],
        read_only=[],
        masks=[],
        landlock=_landlock(path, execute=False, writable=writable, tier=tier),
        seccomp=AGENT_FILTER,
        rlimits=[Rlimit(resource.RLIMIT_NOFILE, 256, 256), Rlimit(resource.RLIMIT_CORE, 0, 0)],
        oom_score_adj=500,
        environment={"HOME": "/home/agent"},
        cgroup_procs=[],
    )
    return msgspec.structs.replace(plan, **changes) if changes else plan


def command(
    workspace: str | bytes,
    argv: Iterable[str | bytes],
    agent_id: str = "a1",
    *,
    tier: Tier = "A",
    **changes: object,
) -> CommandPlan:
    """One command in the sandbox of an agent made by `agent`."""
    path = os.fsencode(workspace)
    plan = CommandPlan(
        command_id="c1",
        agent_id=agent_id,
        argv=[os.fsencode(word) for word in argv],
        cwd=path,
        environment={"PATH": "/usr/bin:/bin", "HOME": "/home/agent"},
        landlock=_landlock(path, execute=True, writable=tier != "C", tier=tier),
        seccomp=COMMAND_FILTER,
        rlimits=[Rlimit(resource.RLIMIT_NOFILE, 256, 256), Rlimit(resource.RLIMIT_CORE, 0, 0)],
        oom_score_adj=700,
        nice=1,
        cgroup_procs=[],
    )
    return msgspec.structs.replace(plan, **changes) if changes else plan


def masks(*paths: str | bytes) -> list[Mask]:
    """Masks of existing paths."""
    return [Mask(os.fsencode(path), os.path.isdir(path)) for path in paths]
