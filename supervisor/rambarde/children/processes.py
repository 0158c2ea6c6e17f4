"""What a spawn by the zygote yields, and the errors it may end in. Trusted side.

A spawn needs up to eight descriptors; whichever step fails, none of them stays open.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from rambarde.errors import HostError
from rambarde_wire.orders import ReplyFailed


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """A forked agent. The holder closes all four descriptors; `read_fd`, `write_fd` never block.

    `pid` is in this process's numbering; `pidfd` is readable once the agent and every process of
    its namespaces are gone. `log_fd` carries what the agent writes to its standard output.
    """

    pid: int
    pidfd: int
    read_fd: int
    write_fd: int
    log_fd: int


@dataclass(frozen=True, slots=True)
class CommandProcess:
    """A forked command: `pid` and `pidfd` are its init's. The holder closes the descriptors.

    `status_fd` carries one CommandStatus, or ends without one when the command was killed.
    """

    pid: int
    pidfd: int
    stdout_fd: int
    stderr_fd: int
    status_fd: int


class Descriptors:
    """Descriptors of one spawn, so that a failure half way leaves none open."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def pipe(self) -> tuple[int, int]:
        """Open a pipe: (read end, write end). Raises HostError naming descriptors."""
        try:
            ends = os.pipe2(os.O_CLOEXEC)
        except OSError as exc:
            raise no_descriptors("a child's pipe", exc) from None
        self._open.update(ends)
        return ends

    def null(self) -> int:
        """Open an empty input. Raises HostError naming descriptors."""
        try:
            fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise no_descriptors("/dev/null", exc) from None
        self._open.add(fd)
        return fd

    def close(self, *fds: int) -> None:
        """Close some that are no longer needed here."""
        for fd in fds:
            self._open.discard(fd)
            os.close(fd)

    def close_all(self) -> None:
        """Close what is left: the spawn failed."""
        self.close(*tuple(self._open))


def refusal(answer: ReplyFailed) -> HostError:
    """Turn the zygote's account of a failed step into an error with advice where there is any."""
    text = f"{answer.step}: {answer.text or os.strerror(answer.errno)}"
    if answer.errno in (errno.EMFILE, errno.ENFILE):
        advice = "the zygote's descriptor table is full: raise the limit on open files (ulimit -n)"
        return HostError(text, advice=advice)
    if answer.errno in (errno.ENOSPC, errno.EUSERS):
        advice = "a limit of namespaces is met (sysctl user.max_*_namespaces); try again shortly"
        return HostError(text, advice=advice)
    return HostError(text)


def no_descriptors(what: str, exc: OSError) -> HostError:
    """Say for what no descriptor could be had."""
    advice = "raise the limit on open files (ulimit -n)"
    return HostError(f"no descriptor for {what}: {exc.strerror}", advice=advice)
