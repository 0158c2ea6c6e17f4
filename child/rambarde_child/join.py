"""How one judged command is run inside the sandbox of its agent. Inside the sandbox.

Theory of operation
-------------------
Four processes, of which two remain:

    zygote ─ joiner      enters the cgroups and the agent's namespaces, by descriptors opened
       │                 while the agent could still be looked at; waits for the next one
       ├─── starter      first inside the agent's pid namespace (a process itself never changes
       │                 its own); makes the init, answers the supervisor with its pidfd, ends
       └─── init         pid 1 of a pid and a mount namespace of its own; mounts its /proc, drops
              │          its linux caps, reaps; when the first process ends it tells how and
              │          exits, and the kernel kills every descendant, however it detached
              └ command  own session, limits, Landlock with the signal scope, seccomp, execve

`CLONE_PARENT` makes starter and init children of the zygote, so the init can be told to die with
it. No process here can be looked at by the agent: not dumpable before it enters, and outside the
agent's Landlock domain. The joiner stays in the outer pid namespace, so that the end of the agent
in the middle of this cannot keep the answer from the supervisor.

In tier C there are no namespaces. The init is forked by the zygote at once, is the reaper of what
detaches (PR_SET_CHILD_SUBREAPER) and kills it all when the first process ends; what outlives the
init falls to the zygote, which kills it likewise. That is not atomic: SECURITY.md says so.

Source: pid_namespaces(7), setns(2), clone(2); ADR 0009.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from rambarde_wire.orders import (
    Answer,
    CommandPlan,
    CommandStatus,
    OrderRemask,
    ReplyDone,
    ReplyFailed,
    ReplySpawned,
    Tier,
    encode,
)

from . import root, sandbox
from . import syscalls as sys_
from .sandbox import Host
from .syscalls import StepFailed

STARTER_EXIT = 113
"""Exit code of a starter: the zygote reaps it and tells nobody."""
_KINDS = {
    "user": sys_.CLONE_NEWUSER,
    "mnt": sys_.CLONE_NEWNS,
    "net": sys_.CLONE_NEWNET,
    "ipc": sys_.CLONE_NEWIPC,
    "uts": sys_.CLONE_NEWUTS,
    "cgroup": sys_.CLONE_NEWCGROUP,
    "pid": sys_.CLONE_NEWPID,
}

Answering = Callable[[Answer, int], None]
"""Send an answer with one descriptor, or -1 for none."""


@dataclass(frozen=True, slots=True)
class Room:
    """A live agent's sandbox as the zygote keeps it: its namespaces by name, in joining order."""

    agent_id: str
    pid: int
    tier: Tier
    roots: tuple[bytes, ...]
    """The workspace and what is beside it."""
    namespaces: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Errand:
    """A command to be started: descriptors of stdin, stdout, stderr and the status pipe."""

    request_id: int
    plan: CommandPlan
    room: Room
    host: Host
    stdio: tuple[int, int, int]
    status_fd: int
    answer: Answering
    orders_fd: int


# ── the joiner and the starter ───────────────────────────────────────────────────────────────


def join(errand: Errand) -> NoReturn:
    """Be the joiner: enter, start the starter, see that an answer was given. Never returns."""
    try:
        _join(errand)
    except StepFailed as exc:
        errand.answer(ReplyFailed(errand.request_id, exc.step, exc.errno, exc.text), -1)
    except OSError as exc:
        errand.answer(ReplyFailed(errand.request_id, "join", exc.errno or 0, str(exc)), -1)
    os._exit(0)


def _join(errand: Errand) -> None:
    proc_fd = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
    _prepare(errand, proc_fd)
    enter_room(errand.room, errand.host)
    done_fd, done_write_fd = os.pipe2(os.O_CLOEXEC)
    pid, pidfd = sys_.clone(sys_.CLONE_PARENT, step="clone starter")
    if pid == 0:
        os.close(done_fd)
        _start(errand, proc_fd, done_write_fd)
    os.close(pidfd)
    os.close(done_write_fd)
    if not os.read(done_fd, 1):
        raise StepFailed("join", errno.ESRCH, "the agent ended while its command was started")


def _prepare(errand: Errand, proc_fd: int) -> None:
    """Own session, cgroups and score, while the host's files are in sight."""
    sandbox.leave_zygote(errand.host)
    keep = {*errand.stdio, errand.status_fd, errand.orders_fd, errand.host.life_fd, proc_fd}
    sys_.close_all_except(keep | set(errand.room.namespaces.values()))
    join_cgroups(errand.plan.cgroup_procs, 0)
    sandbox.set_oom_score(errand.plan.oom_score_adj)


def join_cgroups(files: list[bytes], pid: int) -> None:
    """Put a process (0: this one) in the group of each cgroup.procs file."""
    for path in files:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, b"%d" % pid)
            finally:
                os.close(fd)
        except OSError as exc:
            raise StepFailed(f"cgroup {os.fsdecode(path)}", exc.errno or 0) from None


def enter_room(room: Room, host: Host) -> None:
    """Join the agent's namespaces; not dumpable before the first, for the agent sees who comes."""
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0, step="dumpable")
    for name, fd in room.namespaces.items():
        sys_.setns(fd, _KINDS[name], f"setns {name}")
    sandbox.become_inner(host, dumpable=0)


def _start(errand: Errand, proc_fd: int, done_write_fd: int) -> NoReturn:
    """Be the starter: make the init and hand its pidfd to the supervisor."""
    go_fd, go_write_fd = os.pipe2(os.O_CLOEXEC)
    try:
        flags = sys_.CLONE_PARENT | sys_.CLONE_NEWPID | sys_.CLONE_NEWNS
        pid, pidfd = sys_.clone(flags, step="clone init")
        if pid == 0:
            be_init(errand, go_fd)
        answer: Answer = ReplySpawned(errand.request_id, _outer_pid(proc_fd, pidfd))
    except StepFailed as exc:
        answer, pidfd = ReplyFailed(errand.request_id, exc.step, exc.errno, exc.text), -1
    errand.answer(answer, pidfd)
    os.write(done_write_fd, b"1")
    os.write(go_write_fd, b"1")
    os._exit(STARTER_EXIT)


def _outer_pid(proc_fd: int, pidfd: int) -> int:
    """Read the init's pid as the outer /proc numbers it; the init waits meanwhile."""
    fd = os.open(f"self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    text = os.read(fd, 4096)
    os.close(fd)
    return int(text.partition(b"\nPid:")[2].split()[0])


# ── the init ─────────────────────────────────────────────────────────────────────────────────


def be_init(errand: Errand, go_fd: int) -> NoReturn:
    """Be the init of one command: build, seal, start it, reap, report, exit. Never returns."""
    try:
        status = _init(errand, go_fd)
    except StepFailed as exc:
        status = CommandStatus(-1, -1, exc.step, exc.errno)
    except OSError as exc:
        status = CommandStatus(-1, -1, "init", exc.errno or 0)
    try:
        os.write(errand.status_fd, encode(status))
    except OSError:
        os._exit(1)
    os._exit(0)


def _init(errand: Errand, go_fd: int) -> CommandStatus:
    tier, host = errand.room.tier, errand.host
    if tier == "C":
        sandbox.leave_zygote(host)
    sys_.close_all_except({*errand.stdio, errand.status_fd, go_fd, host.life_fd})
    sandbox.die_with_zygote(host)
    if tier == "C":
        join_cgroups(errand.plan.cgroup_procs, 0)
        sandbox.set_oom_score(errand.plan.oom_score_adj)
        sys_.prctl(sys_.PR_SET_CHILD_SUBREAPER, 1, step="subreaper")
        sys_.drop_held_linux_caps()
    else:
        sys_.mount(b"none", b"/", None, sys_.MS_REC | sys_.MS_SLAVE)
        if tier != "A-proc":
            root.mount_proc(b"", tier, only_processes=False)
        sys_.drop_linux_caps(sandbox.LAST_LINUX_CAP)
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1, step="no_new_privs")
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0, step="dumpable")
    sys_.set_title(b"rambarde: init " + errand.plan.command_id.encode())
    if not os.read(go_fd, 1):
        os._exit(1)
    status = _run_first(errand)
    if tier == "C":
        kill_descendants(set())
    return status


def _run_first(errand: Errand) -> CommandStatus:
    """Start the command's first process and reap until it ends."""
    fault_fd, fault_write_fd = os.pipe2(os.O_CLOEXEC)
    first, pidfd = sys_.clone(step="clone command")
    if first == 0:
        _be_command(errand, fault_write_fd)
    for fd in (*errand.stdio, fault_write_fd, pidfd):
        os.close(fd)
    while True:
        pid, state = os.waitpid(-1, 0)
        if pid == first:
            break
    fault = os.read(fault_fd, 512)
    if fault:
        return CommandStatus(-1, -1, fault[4:].decode(), struct.unpack("=i", fault[:4])[0])
    if os.WIFSIGNALED(state):
        return CommandStatus(-1, os.WTERMSIG(state))
    return CommandStatus(os.WEXITSTATUS(state), -1)


def kill_descendants(spared: set[int]) -> None:
    """Kill every child that is not spared until none is left; what they leave comes here too."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            found = {int(pid) for pid in file.read().split()} - spared
        if not found:
            return
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        for pid in found:
            os.waitpid(pid, 0)


# ── the command ──────────────────────────────────────────────────────────────────────────────


def _be_command(errand: Errand, fault_fd: int) -> NoReturn:
    """Seal and become the program. A fault goes to the init: its pipe closes by the exec."""
    plan = errand.plan
    try:
        os.setsid()
        _change_directory(plan.cwd)
        os.nice(plan.nice)
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (*errand.stdio, fault_fd)]
        fault_fd = high[3]
        for place in range(3):
            os.dup2(high[place], place)
        sys_.close_range(3, on_exec_only=True)
        sandbox.set_rlimits(plan.rlimits)
        sandbox.seal_files(plan.landlock)
        sys_.seccomp_seal(plan.seccomp)
        _exec(plan.argv, plan.environment)
    except StepFailed as exc:
        fault = struct.pack("=i", exc.errno) + exc.step.encode()[:200]
    except OSError as exc:
        fault = struct.pack("=i", exc.errno or 0) + b"command"
    os.write(fault_fd, fault)
    os._exit(127)


def _change_directory(path: bytes) -> None:
    try:
        os.chdir(path)
    except OSError as exc:
        raise StepFailed("chdir", exc.errno or 0) from None


def _exec(argv: list[bytes], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process; a name without a slash is sought along PATH, as execvp(3) does."""
    if not argv:
        raise StepFailed("exec", errno.EINVAL)
    name = argv[0]
    folders = [b""] if b"/" in name else os.fsencode(environment.get("PATH", "")).split(b":")
    worst = errno.ENOENT
    for folder in folders:
        try:
            os.execve(os.path.join(folder, name), argv, environment)  # noqa: S606 - judged outside
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENOTDIR):
                worst = exc.errno or errno.EIO
    raise StepFailed("exec", worst)


# ── masks in a live sandbox ──────────────────────────────────────────────────────────────────


def remask(order: OrderRemask, room: Room, host: Host, answer: Answering) -> None:
    """Be a short-lived process that covers paths anew inside a live sandbox. Never returns."""
    try:
        sandbox.leave_zygote(host)
        enter_room(room, host)
        root.cover_again(room.roots, order.read_only, order.masks)
        answer(ReplyDone(order.request_id), -1)
    except StepFailed as exc:
        answer(ReplyFailed(order.request_id, exc.step, exc.errno, exc.text), -1)
    except OSError as exc:
        answer(ReplyFailed(order.request_id, "remask", exc.errno or 0, str(exc)), -1)
    os._exit(0)
