"""How one forked process becomes a sealed agent. Inside the sandbox.

Theory of operation
-------------------
The order is fixed, each step needs what the next one takes away:

 1. own session, no terminal, the zygote's descriptors out of reach;
 2. wait: the zygote writes the id maps and puts the process in its cgroups;
 3. started by root: become the inner id (the user namespace keeps the linux caps, for inner 0 is
    not mapped), and be dumpable again, for a change of uid ends that;
 4. die with the zygote: armed here, for a change of uid and a fork both disarm it;
 5. score for the OOM killer, no further user namespaces, while the host's /proc is in sight;
 6. the root (root.py); the network namespace was made for it before it was born (life.py);
 7. resource limits; linux caps, all sets, behind locked secure bits; no_new_privs;
 8. wait until the zygote has opened the namespaces for later commands; then not dumpable;
 9. Landlock, after all mounts, which it forbids;
10. descriptors: 0 to 2 and the two pipes, all else closed; seccomp, last (the environment is
    empty since the zygote's start and stays so: an agent execs nothing that would read one);
11. try to break out, and say in the first frame what came of it.

A step that fails is told in a TellFault and the process ends. Nothing is skipped, and no weaker
tier is entered than the plan names. In tier C there are no namespaces: steps 2, 3, 6 and 8 fall
away, and Landlock and seccomp carry the promise alone.

Source: ADR 0003; credentials(7), user_namespaces(7), landlock(7), seccomp(2).
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from rambarde_wire.frames import PROTOCOL_VERSION, SelfCheck, TellFault, TellHello, encode_up
from rambarde_wire.orders import Landlock, Rlimit, SandboxPlan

from . import root
from . import syscalls as sys_
from .syscalls import StepFailed

FRAMES_IN, FRAMES_OUT = 3, 4
NAMESPACES = ("net", "user", "mnt", "ipc", "uts", "cgroup", "pid")
"""In joining order: the network's belongs to the zygote's user namespace, so it comes first."""
_FILE_RIGHTS = 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000
"""EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV: what a rule on a file may name."""


def _last_linux_cap() -> int:
    last = 0
    while sys_.prctl_nowait(sys_.PR_CAPBSET_READ, last + 1) >= 0:
        last += 1
    return last


LAST_LINUX_CAP = _last_linux_cap()


@dataclass(frozen=True, slots=True)
class Host:
    """What every child needs of the zygote.

    `seat`: the template's directory, empty in tier C. `life_fd`: read end of a pipe that only the
    zygote writes to, so its end tells that the zygote is gone; `life_write_fd` is closed first.
    """

    seat: bytes
    by_root: bool
    inner_uid: int
    inner_gid: int
    umask: int
    life_fd: int
    life_write_fd: int
    landlock_abi: int


@dataclass(frozen=True, slots=True)
class Birth:
    """One agent to be: its plan and the descriptors it was given.

    `copies`: see root.enter_root. `go_fd`: the zygote's word.
    """

    plan: SandboxPlan
    host: Host
    copies: Mapping[bytes, int]
    frames_in: int
    frames_out: int
    log: int
    go_fd: int


def become_agent(birth: Birth, run: Callable[[int, int], None]) -> NoReturn:
    """Seal this process as the plan says, greet, run the loop and exit. Never returns."""
    code = 1
    try:
        _build(birth)
        namespaces = _namespace_ids()
        _enter(birth)
        _seal(birth)
        _say(TellHello(PROTOCOL_VERSION, _check_self(birth, namespaces)))
        gc.enable()
        run(FRAMES_IN, FRAMES_OUT)
        code = 0
    except StepFailed as exc:
        _say_fault(birth, exc.step, exc.errno, exc.text)
    except OSError as exc:
        _say_fault(birth, "sandbox", exc.errno or 0, str(exc))
    except BaseException:  # noqa: BLE001 - the process ends here whatever it was; the log has it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def leave_zygote(host: Host) -> None:
    """Undo what a fork of the zygote inherits: its wake-up, umask, session, its end of life_fd.

    Its signal handlers do nothing and go by exec (Zygote.serve); to reset them costs page faults.
    """
    signal.set_wakeup_fd(-1)
    os.close(host.life_write_fd)
    os.setsid()
    os.umask(host.umask)


def die_with_zygote(host: Host) -> None:
    """Arm the parent-death signal; a zygote that died before that is seen by its pipe."""
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL, step="pdeathsig")
    poll = select.poll()
    poll.register(host.life_fd, 0)
    if poll.poll(0):
        os._exit(1)


def become_inner(host: Host, *, dumpable: int) -> None:
    """Started by root: take the inner id in all its forms, then set whether others may look."""
    if host.by_root:
        try:
            os.setresgid(host.inner_gid, host.inner_gid, host.inner_gid)
            os.setresuid(host.inner_uid, host.inner_uid, host.inner_uid)
        except OSError as exc:
            raise StepFailed("setresuid", exc.errno or 0) from None
    sys_.prctl(sys_.PR_SET_DUMPABLE, dumpable, step="dumpable")


def set_oom_score(score: int) -> None:
    """Set this process's score: children go before the zygote when memory runs out."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % score)
        finally:
            os.close(fd)
    except OSError as exc:
        raise StepFailed("oom_score_adj", exc.errno or 0) from None


def set_rlimits(limits: list[Rlimit]) -> None:
    """Set limits; a hard limit already lower than the plan's stays."""
    for limit in limits:
        try:
            ceiling = resource.getrlimit(limit.resource)[1]
            hard = limit.hard if ceiling == resource.RLIM_INFINITY else min(limit.hard, ceiling)
            resource.setrlimit(limit.resource, (min(limit.soft, hard), hard))
        except (OSError, ValueError) as exc:
            number = exc.errno if isinstance(exc, OSError) else errno.EINVAL
            raise StepFailed(f"rlimit {limit.resource}", number or 0) from None


def seal_files(landlock: Landlock) -> None:
    """Enter a Landlock domain that allows what the rules name and nothing else it handles."""
    ruleset = sys_.landlock_ruleset(landlock.handled_fs, landlock.handled_net, landlock.scoped)
    for rule in landlock.rules:
        step = f"landlock {os.fsdecode(rule.path)}"
        try:
            fd = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
        except OSError as exc:
            if rule.optional and exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                continue
            raise StepFailed(step, exc.errno or 0) from None
        is_dir = stat.S_ISDIR(os.fstat(fd).st_mode)
        access = rule.access if is_dir else rule.access & _FILE_RIGHTS
        if access:
            sys_.landlock_allow(ruleset, access, fd, step)
        os.close(fd)
    sys_.landlock_seal(ruleset)
    os.close(ruleset)


# ── the steps of an agent ────────────────────────────────────────────────────────────────────


def _build(birth: Birth) -> None:
    """Steps 1 to 5."""
    plan, host = birth.plan, birth.host
    leave_zygote(host)
    sys_.set_title(b"rambarde: child " + plan.title.encode())
    _await_go(birth.go_fd)
    if plan.tier != "C":
        become_inner(host, dumpable=1)
    die_with_zygote(host)
    set_oom_score(plan.oom_score_adj)
    if plan.tier != "C":
        _forbid_user_namespaces()


def _await_go(go_fd: int) -> None:
    if not os.read(go_fd, 1):
        os._exit(1)


def _forbid_user_namespaces() -> None:
    """Set the namespace's own ceiling to none. A second bar: where refused, seccomp still holds."""
    try:
        fd = os.open("/proc/sys/user/max_user_namespaces", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)
    except OSError:
        return


def _namespace_ids() -> dict[str, int]:
    """Read while the host's /proc is in sight: not every tier has one inside."""
    return {name: os.stat("/proc/self/ns/" + name).st_ino for name in NAMESPACES}


def _enter(birth: Birth) -> None:
    """Step 6."""
    plan = birth.plan
    if plan.tier == "C":
        os.chdir(plan.workspace)
        return
    root.enter_root(plan, birth.host.seat, birth.copies)
    os.chdir(plan.workspace)


def _seal(birth: Birth) -> None:
    """Steps 7 to 10."""
    plan = birth.plan
    set_rlimits(plan.rlimits)
    if plan.tier == "C":
        sys_.drop_held_linux_caps()
    else:
        sys_.drop_linux_caps(LAST_LINUX_CAP)
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1, step="no_new_privs")
    _await_go(birth.go_fd)
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0, step="dumpable")
    seal_files(plan.landlock)
    _keep_only_pipes(birth)
    sys_.seccomp_seal(plan.seccomp)


def _keep_only_pipes(birth: Birth) -> None:
    """Put the descriptors in their places by way of high numbers, so that none is overwritten."""
    wanted = (birth.log, birth.log, birth.frames_in, birth.frames_out)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FRAMES_OUT + 1) for fd in wanted]
    for place, fd in enumerate(high, start=1):
        os.dup2(fd, place, inheritable=False)
    sys_.close_range(FRAMES_OUT + 1)


# ── the self-check ───────────────────────────────────────────────────────────────────────────


def _check_self(birth: Birth, namespaces: dict[str, int]) -> SelfCheck:
    """Try what must fail and read what must be nothing. Nothing here is assumed."""
    effective, permitted, inheritable = sys_.held_linux_caps()
    return SelfCheck(
        uid=os.getuid(),
        gid=os.getgid(),
        cap_inheritable=inheritable,
        cap_permitted=permitted,
        cap_effective=effective,
        cap_bounding=sys_.bounding_linux_caps(LAST_LINUX_CAP),
        # The kernel keeps the ambient set within both (capabilities(7)): it can be no more.
        cap_ambient=permitted & inheritable,
        no_new_privs=sys_.prctl(sys_.PR_GET_NO_NEW_PRIVS),
        seccomp_mode=sys_.prctl(sys_.PR_GET_SECCOMP),
        landlock_abi=birth.host.landlock_abi,
        namespaces=namespaces,
        open_fds=sys_.open_fds(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        outside_write_errno=_try_outside_write(birth.plan),
        unshare_errno=sys_.try_unshare(),
        socket_errno=_try_socket(),
        exec_errno=_try_exec(),
    )


def _try_outside_write(plan: SandboxPlan) -> int:
    """Try the root of the sandbox; in tier C, which has none, the folder of the workspace."""
    folder = os.path.dirname(plan.workspace) if plan.tier == "C" else b"/"
    path = os.path.join(folder, b".rambarde-outside")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        return exc.errno or errno.EIO
    os.close(fd)
    os.unlink(path)
    return 0


def _try_socket() -> int:
    """AF_VSOCK: no network namespace confines it, so the filter alone can."""
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError as exc:
        return exc.errno or errno.EIO
    return 0


def _try_exec() -> int:
    """An exec that succeeds ends this process: the supervisor then gets no greeting at all."""
    try:
        os.execve("/bin/true", ["true"], {})  # noqa: S606 - must fail
    except OSError as exc:
        return exc.errno or errno.EIO


def _say(frame: TellHello | TellFault, fd: int = FRAMES_OUT) -> None:
    data = encode_up(frame)
    while data:
        data = data[os.write(fd, data) :]


def _say_fault(birth: Birth, step: str, number: int, text: str) -> None:
    """Tell on the pipe under its first number or its final one, whichever it is by now."""
    frame = TellFault(step[:200], number, text[:500])
    for fd in (birth.frames_out, FRAMES_OUT):
        try:
            _say(frame, fd)
            return
        except OSError:
            continue
