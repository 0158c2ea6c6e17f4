"""Every exception of the trusted side. Trusted side.

    RambardeError
    ├── UsageError            the person's words on the command line             exit 2
    ├── ConfigError           files that do not load; holds every fault found    exit 2
    │   └── PolicyError       the same, in policies and agent files              exit 2
    ├── HostError             this machine cannot do what is asked               exit 1
    │   └── SandboxUnavailable   the required tier cannot be had here            exit 5
    ├── ModelError            the provider or the way to it                      exit 1
    ├── RecordError           the journal cannot be written or read              exit 1
    └── InternalError         our bug; asks for a report                         exit 70

`rambarde_wire.frames.BreachError` (a child broke the protocol) is no error of ours: it ends that
child with `error:protocol` and is never seen by a person as an exception.

A limit reached, an interruption, a refusal are outcomes, not errors (sessions/report.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the program (decision 22)."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    STOPPED = 3
    DENIED = 4
    NO_SANDBOX = 5
    BUG = 70
    INTERRUPTED = 130
    TERMINATED = 143


class RambardeError(Exception):
    """Base: `message` says what and where, `advice` what to do. Both are shown to the person."""

    exit_code = Exit.FAILED

    def __init__(self, message: str, *, advice: str = "") -> None:
        """Keep both sentences; neither holds a secret (redact before raising)."""
        super().__init__(message)
        self.message = message
        self.advice = advice

    @property
    def told(self) -> str:
        """Both sentences as one, for places that have a single field."""
        return f"{self.message}; {self.advice}" if self.advice else self.message


class UsageError(RambardeError):
    """Wrong words on the command line: nothing was started."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a file: `line` counts from 1; 0 when the whole file is meant."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        """`path:line: text`, as compilers write it."""
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


class ConfigError(RambardeError):
    """Files do not load. Unlike UsageError the mend is in a file, which each fault names."""

    exit_code = Exit.USAGE

    def __init__(self, faults: list[Fault], *, advice: str = "") -> None:
        """`faults`: all that were found, sorted by path and line; never empty."""
        super().__init__("\n".join(str(fault) for fault in faults), advice=advice)
        self.faults = faults


class PolicyError(ConfigError):
    """A policy or an agent file does not load; what it would have allowed stays denied."""


class HostError(RambardeError):
    """The machine refused something needed (disk, descriptors, a missing program)."""


class SandboxUnavailable(HostError):  # noqa: N818 - a state of the host, named as doctor names it
    """The required tier cannot be had. Nothing falls back: choose a tier or mend the host."""

    exit_code = Exit.NO_SANDBOX


class ModelError(RambardeError):
    """The provider failed: `kind` is unreachable, refused, cut, overloaded, invalid or budget."""

    def __init__(self, message: str, *, kind: str, advice: str = "", status: int = 0) -> None:
        """`status` is the HTTP status, 0 when none came."""
        super().__init__(message, advice=advice)
        self.kind = kind
        self.status = status


class RecordError(RambardeError):
    """The record cannot be kept. Work stops: an unrecorded act is not allowed."""


class InternalError(RambardeError):
    """A state that cannot be. The report should hold the text and the session."""

    exit_code = Exit.BUG


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the exception that ended a task group: an error of ours if there is one."""
    ours, _other = group.split(RambardeError)
    first: BaseException = group if ours is None else ours
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
