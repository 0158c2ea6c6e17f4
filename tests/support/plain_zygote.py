"""A zygote without a sandbox: real processes in a real pid namespace, ended the same way.

For tests of what the supervisor does with a command's descriptors. Works without privilege.
"""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass

from rambarde_wire import orders
from rambarde_wire.orders import CommandPlan, CommandStatus, Landlock
from support.fork import fork

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWPID = 0x20000000
_CLONE_NEWUSER = 0x10000000


@dataclass
class PlainProcess:
    """As the real zygote returns it."""

    pid: int
    pidfd: int
    stdout_fd: int
    stderr_fd: int
    status_fd: int


def plan_of(script: str, *argv: str) -> CommandPlan:
    """A plan that runs `bash -c script`, or `argv` when the script is empty."""
    words = ["/bin/bash", "-c", script] if script else list(argv)
    return CommandPlan(
        command_id="c1",
        agent_id="a1",
        argv=[os.fsencode(word) for word in words],
        cwd=b"/",
        environment={"PATH": "/usr/bin:/bin"},
        landlock=Landlock(0, 0, 0, []),
        seccomp=b"",
        rlimits=[],
        oom_score_adj=0,
        nice=0,
        cgroup_procs=[],
    )


class PlainZygote:
    """Forks an init into a new pid namespace, which forks, waits, reports and exits."""

    def __init__(self) -> None:
        """Nothing runs yet; `last` is the newest process."""
        self.last: PlainProcess | None = None

    async def run_command(self, plan: CommandPlan, stdin_fd: int | None = None) -> PlainProcess:
        """Fork a command; its init's pid as seen here comes back through a pipe."""
        null_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        pipes = [os.pipe() for _ in range(4)]
        (out_r, out_w), (err_r, err_w), (status_r, status_w), (pid_r, pid_w) = pipes
        between = fork()
        if not between:
            try:
                if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID):
                    os._exit(1)
                init = fork()
                if init:
                    os.write(pid_w, str(init).encode())
                    os._exit(0)
                os.dup2(null_fd if stdin_fd is None else stdin_fd, 0)
                os.dup2(out_w, 1)
                os.dup2(err_w, 2)
                _run_init(plan, status_w)
            finally:
                os._exit(1)
        for fd in (null_fd, out_w, err_w, status_w, pid_w):
            os.close(fd)
        os.waitpid(between, 0)  # noqa: ASYNC222 - it ends at once
        pid = int(os.read(pid_r, 32))
        os.close(pid_r)
        for fd in (out_r, err_r, status_r):
            os.set_blocking(fd, False)
        self.last = PlainProcess(pid, os.pidfd_open(pid), out_r, err_r, status_r)
        return self.last


def _run_init(plan: CommandPlan, status_w: int) -> None:
    first = fork()
    if not first:
        try:
            os.setsid()
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execve(plan.argv[0], plan.argv, plan.environment)
        except OSError as exc:
            status = CommandStatus(-1, -1, "exec", exc.errno or 0)
            os.write(status_w, orders.encode(status))
        os._exit(127)
    # Only the init and a failing first process hold the status pipe: it is close-on-exec.
    while True:
        pid, raw = os.wait()
        if pid == first:
            break
    code = os.waitstatus_to_exitcode(raw)
    status = CommandStatus(code, -1) if code >= 0 else CommandStatus(-1, -code)
    if code != 127:
        os.write(status_w, orders.encode(status))
    os._exit(0)
