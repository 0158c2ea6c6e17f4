"""Run one command to its end and the end of all its descendants. Trusted side.

Theory of operation
-------------------
A command is an init with its first process and whatever that starts (see the package's own text).
Four descriptors come back from the zygote; this module closes all four on every path.

    pidfd      readable once the whole command is dead: the only proof of an end
    stdout     read without pause, kept within bounds, never waited for alone: a daemon that was
    stderr     left behind would hold it open for ever
    status     one CommandStatus, written by the init when the first process ended; read last

The end comes by itself (the first process ends, its init ends, the kernel kills the rest), or one
of ours comes first: the timeout, too much output, the stop event, cancellation. Ours is always a
SIGKILL of the init by pidfd. Then, and also after an end by itself, the same steps follow: wait for
the pidfd, take what the pipes still hold, read the status, close. Under cancellation they are
shielded: the caller is told only after the proof.

A status that was written is believed before our own reason: the command was done, and the kill met
an empty namespace. Only `output` is kept, for it is true whatever happened after.

Source: pidfd_open(2), pidfd_send_signal(2) (Linux 5.1), memfd_create(2) sealing (Linux 3.17).
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

import anyio
import anyio.lowlevel
import msgspec

from rambarde.children.output import Capture, Cleaner, MakeFilter, Output, StreamFilter
from rambarde_wire.orders import CommandPlan, CommandStatus, status_decoder

Ending = Literal["exited", "signalled", "timeout", "output", "interrupted", "not_started", "killed"]
StreamName = Literal["stdout", "stderr"]

PROOF_S = 30.0
"""How long the kernel may take to empty a killed namespace (a disk that does not answer)."""
SINK_S = 5.0
"""How long a sink may hold up the end of a command that is dead."""
_READ_BYTES = 64 << 10
_LEFT_BYTES = 1 << 20
"""Most that is read from a pipe after the end: all that fits a pipe, no more."""


class CommandProcess(Protocol):
    """What the zygote returns: the init's pid and pidfd, and three read ends that never block."""

    @property
    def pid(self) -> int:
        """In the supervisor's numbering."""
        ...

    @property
    def pidfd(self) -> int:
        """Of the init of the command's namespace."""
        ...

    @property
    def stdout_fd(self) -> int:
        """Read end."""
        ...

    @property
    def stderr_fd(self) -> int:
        """Read end."""
        ...

    @property
    def status_fd(self) -> int:
        """Read end of the pipe that carries one CommandStatus."""
        ...


class RunsCommands(Protocol):
    """The part of the zygote that is used here."""

    async def run_command(self, plan: CommandPlan, stdin_fd: int | None = None) -> CommandProcess:
        """Fork a command; raises HostError when it cannot."""
        ...


OnOutput = Callable[[StreamName, str], None]
"""Told text to show while the command runs; returns at once and does not raise."""
Sink = Callable[[bytes], Awaitable[None]]
"""Takes the bytes of one stream, all of them, in order; a slow one slows the command."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How one command ended and what it wrote.

    outcome: `exited` (exit_code 0 to 255), `signalled` (its first process died of `signal`),
    `timeout`, `output` (it passed hard_bytes), `interrupted` (the stop event), `not_started` (it
    was never executed: `step` and `errno` say why), `killed` (dead without a word: out of memory,
    or killed from outside). exit_code and signal are None where they do not apply.
    """

    outcome: Ending
    exit_code: int | None
    signal: int | None
    stdout: Output
    stderr: Output
    duration_s: float
    step: str = ""
    errno: int = 0
    proven_dead: bool = True
    """False when the kernel did not empty the namespace within PROOF_S of the kill."""


def kill(pidfd: int) -> None:
    """SIGKILL the process of this pidfd; nothing when it is gone. Never another process."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


async def wait_dead(pidfd: int) -> None:
    """Wait until the process of this pidfd, and with an init its whole namespace, is gone.

    One task at a time may wait for one descriptor.
    """
    await anyio.wait_readable(pidfd)


async def perform(
    zygote: RunsCommands,
    plan: CommandPlan,
    *,
    timeout_s: float,
    shown_bytes: int,
    hard_bytes: int,
    stdin: bytes | int | None = None,
    on_output: OnOutput | None = None,
    redact: MakeFilter | None = None,
    sinks: tuple[Sink, Sink] | None = None,
    stop: anyio.Event | None = None,
) -> CommandResult:
    """Run a command and return once it and all its descendants are dead.

    Args:
        zygote: who forks it.
        plan: what to run, resolved and judged.
        timeout_s: seconds from now until it is killed, its start included.
        shown_bytes: kept of each stream, half head and half tail.
        hard_bytes: written on both streams together before it is killed.
        stdin: its whole input, or a descriptor to read it from, which is closed here; None for an
            empty one.
        on_output: told what to show while it runs, the first shown_bytes of each stream only.
        redact: makes the filter each stream passes before anybody sees it.
        sinks: take all of stdout and of stderr, redacted, uncleaned.
        stop: set by whoever wants it ended; the result comes back with what there is.

    Raises:
        HostError: the zygote could not start it. Nothing is left.
        Cancellation: after the proof of death.
    """
    begun_s = time.monotonic()
    stdin_fd = _sealed(stdin) if isinstance(stdin, bytes) else stdin
    try:
        process = await zygote.run_command(plan, stdin_fd)
    finally:
        if stdin_fd is not None:
            os.close(stdin_fd)
    streams = (
        _Stream("stdout", process.stdout_fd, shown_bytes, redact, on_output, sinks and sinks[0]),
        _Stream("stderr", process.stderr_fd, shown_bytes, redact, on_output, sinks and sinks[1]),
    )
    run = _Run(process, streams, hard_bytes)
    try:
        await run.until_dead(timeout_s - (time.monotonic() - begun_s), stop)
    finally:
        with anyio.CancelScope(shield=True):
            await run.end()
    return run.result(time.monotonic() - begun_s)


class _Stream:
    """One output pipe: reads it, keeps it, passes it on."""

    def __init__(
        self,
        name: StreamName,
        fd: int,
        shown_bytes: int,
        redact: MakeFilter | None,
        on_output: OnOutput | None,
        sink: Sink | None,
    ) -> None:
        self._name = name
        self._fd = fd
        self.capture = Capture(shown_bytes, redact)
        self._sink = sink
        self._sink_filter: StreamFilter | None = redact() if redact and sink else None
        self._on_output = on_output
        self._live_filter: StreamFilter | None = redact() if redact and on_output else None
        self._live_bytes = shown_bytes if on_output else 0
        self._cleaner = Cleaner()
        self._waiting: anyio.CancelScope | None = None
        self._left: int | None = None

    def command_died(self) -> None:
        """Read what is there and stop; do not wait for the end of the pipe."""
        self._left = _LEFT_BYTES
        if self._waiting is not None:
            self._waiting.cancel()

    async def pump(self, count: Callable[[int], None]) -> None:
        """Read until the end of the pipe, or until it is empty and the command is dead."""
        room = bytearray(_READ_BYTES)
        view = memoryview(room)
        while self._left is None or self._left > 0:
            try:
                taken = os.readv(self._fd, (room,))
            except BlockingIOError:
                if self._left is not None:
                    break
                with anyio.CancelScope() as self._waiting:
                    await anyio.wait_readable(self._fd)
                self._waiting = None
                continue
            if not taken:
                break
            if self._left is not None:
                self._left -= taken
            count(taken)
            await self._take(view[:taken])
        await self._finish()

    async def _take(self, data: memoryview) -> None:
        self.capture.feed(data)
        if self._live_bytes > 0:
            piece = bytes(data[: self._live_bytes])
            self._live_bytes -= len(piece)
            self._show(self._live_filter.feed(piece) if self._live_filter else piece)
        if self._sink is not None:
            piece = bytes(data)
            await self._sink(self._sink_filter.feed(piece) if self._sink_filter else piece)
        await anyio.lowlevel.checkpoint()

    async def _finish(self) -> None:
        if self._on_output is not None:
            # Past the bound the filter's rest is a beginning without its end: it is not shown.
            if self._live_filter is not None and self._live_bytes > 0:
                self._show(self._live_filter.finish())
            if text := self._cleaner.finish():
                self._on_output(self._name, text)
        if self._sink is not None and self._sink_filter is not None:
            await self._sink(self._sink_filter.finish())

    def _show(self, data: bytes) -> None:
        text = self._cleaner.feed(data)
        if text and self._on_output is not None:
            self._on_output(self._name, text)


class _Run:
    """One command from the fork to the proof of death."""

    def __init__(
        self, process: CommandProcess, streams: tuple[_Stream, _Stream], hard_bytes: int
    ) -> None:
        self._process = process
        self._streams = streams
        self._left_bytes = hard_bytes
        self._reason: Ending | None = None
        self._dead = False
        self._status: CommandStatus | None = None

    async def until_dead(self, timeout_s: float, stop: anyio.Event | None) -> None:
        """Read both streams until the command is dead, by itself or by one of our reasons."""
        async with anyio.create_task_group() as pumps:
            for stream in self._streams:
                pumps.start_soon(stream.pump, self._count)
            with anyio.move_on_after(max(0.0, timeout_s)) as clock:
                await self._die_or_be_stopped(stop)
            if clock.cancelled_caught:
                self._kill("timeout")
                await self._wait_proof()
            for stream in self._streams:
                stream.command_died()
            pumps.cancel_scope.deadline = anyio.current_time() + SINK_S

    async def _die_or_be_stopped(self, stop: anyio.Event | None) -> None:
        async with anyio.create_task_group() as watchers:
            if stop is not None:
                watchers.start_soon(self._kill_at, stop)
            await wait_dead(self._process.pidfd)
            self._dead = True
            watchers.cancel_scope.cancel()

    async def _kill_at(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._kill("interrupted")

    async def _wait_proof(self) -> None:
        with anyio.move_on_after(PROOF_S):
            await wait_dead(self._process.pidfd)
            self._dead = True

    def _count(self, taken: int) -> None:
        self._left_bytes -= taken
        if self._left_bytes < 0:
            self._kill("output")

    def _kill(self, reason: Ending) -> None:
        if self._reason is None and not self._dead:
            self._reason = reason
            kill(self._process.pidfd)

    async def end(self) -> None:
        """Kill what still lives, wait for the proof, read the status, close every descriptor."""
        process = self._process
        try:
            if not self._dead:
                kill(process.pidfd)
                await self._wait_proof()
            self._status = _read_status(process.status_fd)
        finally:
            for fd in (process.stdout_fd, process.stderr_fd, process.status_fd, process.pidfd):
                os.close(fd)

    def result(self, duration_s: float) -> CommandResult:
        """Say how it ended; to be called after `end`."""
        status, stdout, stderr = self._status, *(one.capture.finish() for one in self._streams)
        outcome, exit_code, signalled = _ending(self._reason, status)
        return CommandResult(
            outcome,
            exit_code,
            signalled,
            stdout,
            stderr,
            duration_s,
            step=status.step if status else "",
            errno=status.errno if status else 0,
            proven_dead=self._dead,
        )


def _ending(
    reason: Ending | None, status: CommandStatus | None
) -> tuple[Ending, int | None, int | None]:
    if status is None:
        return reason or "killed", None, None
    if status.step:
        return "not_started", None, None
    exit_code = status.code if status.code >= 0 else None
    signalled = status.signal if exit_code is None else None
    if reason == "output":
        return reason, exit_code, signalled
    return "exited" if signalled is None else "signalled", exit_code, signalled


def _read_status(status_fd: int) -> CommandStatus | None:
    """Return what the init wrote, or None: it was killed first, or wrote what is no status."""
    try:
        data = os.read(status_fd, _READ_BYTES)
        return status_decoder.decode(data) if data else None
    except (BlockingIOError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _sealed(stdin: bytes) -> int:
    """Return a descriptor to read these bytes from, which nobody can change.

    A pipe would need somebody to write into it while the command runs; a sealed file does not.
    """
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(stdin)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(fd)
        raise
    return fd
