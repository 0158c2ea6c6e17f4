"""One command under the sandbox, the clock and the limits, without an agent's loop. Trusted side.

An agent's process is spawned and believed, and then told nothing: it only holds the namespaces. The
command runs in them as any command of an agent does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio

from rambarde.agents.sealed import mismatches
from rambarde.app.ground import (
    Ground,
    base_policy,
    check_installation,
    find_ground,
    make_redactor,
)
from rambarde.app.start import start_zygote
from rambarde.app.streams import OwnStreams
from rambarde.children.channel import Channel, ChannelClosed
from rambarde.children.command import PROOF_S, CommandResult, kill, perform, wait_dead
from rambarde.children.zygote import Zygote
from rambarde.errors import Exit, SandboxUnavailable
from rambarde.host.cgroup import Cgroups
from rambarde.host.kuids import Kuids
from rambarde.host.quarantine import put_aside, told_aside
from rambarde.ids import new_agent_id, new_call_id
from rambarde.policy.compile import compile_agent, compile_command
from rambarde.policy.model import Policy
from rambarde.redact import Redactor
from rambarde_wire import frames
from rambarde_wire.orders import CommandPlan, Tier

_UNBOUNDED_OUTPUT = 1 << 50
"""The output goes to the caller's own descriptors, which bound it."""
_TOLD_CHARS = 1000
"""Kept of what a child says of itself that is no hello."""
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """What `rambarde exec` was asked for."""

    command: Sequence[str]
    environment: Mapping[str, str]
    repo: str = "."
    sets: Sequence[str] = ()
    tier: Tier | None = None
    policy: str = "workspace-write"
    max_duration: float | None = None


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How the command ended; `status` is done, limit:…, interrupted or error:… as in a run.

    `notices` are what a person should know: protected names that appeared and were put aside.
    """

    status: str
    exit_code: int
    signal: int
    words: str
    duration_ms: int
    stdout_bytes: int
    stderr_bytes: int
    tier: str
    notices: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """Return the object of `exec --json`."""
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "duration_ms": self.duration_ms,
            "stdout_bytes": self.stdout_bytes,
            "stderr_bytes": self.stderr_bytes,
            "tier": self.tier,
        }


def run_exec(request: ExecRequest) -> ExecResult:
    """Run the command; returns when every process of it is gone. Raises RambardeError before."""
    ground = find_ground(request.repo, request.environment, request.sets, request.tier)
    policy = base_policy(ground, request.policy)
    check_installation(ground, writable=policy.writable and ground.tier != "C")
    zygote = start_zygote(ground)
    try:
        redactor = make_redactor(ground, None)
    except BaseException:
        zygote.abandon()
        raise
    return anyio.run(_Exec(request, ground, policy, zygote, redactor).main)


class _Exec:
    def __init__(
        self,
        request: ExecRequest,
        ground: Ground,
        policy: Policy,
        zygote: Zygote,
        redactor: Redactor,
    ) -> None:
        self._request = request
        self._ground = ground
        self._policy = policy
        self._zygote = zygote
        self._redactor = redactor
        self._signal = 0
        self._stop = anyio.Event()
        self._streams = OwnStreams(self._stop.set)

    async def main(self) -> ExecResult:
        try:
            await self._zygote.wait_ready()
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_signals)
                result = await self._run()
                group.cancel_scope.cancel()
            space = self._ground.space
            return self._result(result, put_aside(space.root, space.absent))
        finally:
            with anyio.CancelScope(shield=True):
                await self._zygote.aclose()

    async def _watch_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
            async for number in received:
                self._signal = int(number)
                self._stop.set()

    async def _run(self) -> CommandResult:
        cgroups = Cgroups(self._ground.facts, f"rambarde-{os.getpid()}")
        try:
            return await self._run_in(cgroups)
        finally:
            cgroups.close()

    async def _run_in(self, cgroups: Cgroups) -> CommandResult:
        ground, policy = self._ground, self._policy
        agent_id = new_agent_id()
        sandbox = compile_agent(
            policy,
            ground.space,
            ground.facts,
            agent_id=agent_id,
            title=f"exec {agent_id}",
            tier=ground.tier,
            kuid=Kuids().take(),
            cgroup_procs=cgroups.create(
                agent_id,
                memory_bytes=policy.limits.memory_bytes,
                processes=policy.limits.processes,
            ),
            environment=ground.environment,
        )
        process = await self._zygote.spawn_agent(sandbox)
        channel = Channel(process.read_fd, process.write_fd)
        try:
            await self._believe(channel, process.pid)
            plan = compile_command(
                policy,
                sandbox,
                ground.space,
                ground.facts,
                command_id=new_call_id(),
                argv=[os.fsencode(word) for word in self._request.command],
                cwd=ground.space.cwd,
            )
            return await self._perform(plan)
        finally:
            with anyio.CancelScope(shield=True):
                kill(process.pidfd)
                with anyio.move_on_after(PROOF_S):
                    await wait_dead(process.pidfd)
                await channel.aclose()
                os.close(process.pidfd)
                os.close(process.log_fd)

    async def _perform(self, plan: CommandPlan) -> CommandResult:
        streams = self._streams
        stdin = streams.open_input()
        async with anyio.create_task_group() as group:
            group.start_soon(streams.feed)
            result = await perform(
                self._zygote,
                plan,
                timeout_s=self._request.max_duration or self._policy.limits.max_duration_s,
                shown_bytes=2,
                hard_bytes=_UNBOUNDED_OUTPUT,
                stdin=stdin,
                redact=self._redactor.stream,
                sinks=(streams.sink(1), streams.sink(2)),
                stop=self._stop,
            )
            group.cancel_scope.cancel()
        return result

    async def _believe(self, channel: Channel, pid: int) -> None:
        found: list[str]
        hello: object = "said nothing after its start"
        try:
            with anyio.move_on_after(self._policy.limits.startup_s):
                hello = await channel.receive()
        except (frames.BreachError, ChannelClosed) as exc:
            hello = exc
        if isinstance(hello, frames.TellHello):
            contained = self._ground.facts.is_contained_root
            found = mismatches(hello, pid, self._ground.tier, is_contained_root=contained)
        else:
            found = [str(hello)[:_TOLD_CHARS]]
        if found:
            raise SandboxUnavailable(
                "the sandbox is not what was planned: " + "; ".join(found),
                advice="`rambarde doctor` shows what this machine refuses.",
            )

    def _result(self, result: CommandResult, aside: Sequence[str]) -> ExecResult:
        status, code, words = self._status(result)
        return ExecResult(
            status=status,
            exit_code=code,
            signal=result.signal or 0,
            words=words,
            duration_ms=round(result.duration_s * 1000),
            stdout_bytes=result.stdout.total_bytes,
            stderr_bytes=result.stderr.total_bytes,
            tier=self._ground.tier,
            notices=tuple(map(told_aside, aside)),
        )

    def _status(self, result: CommandResult) -> tuple[str, int, str]:
        failure = self._streams.failure
        if failure is not None and not self._streams.reader_left:
            words = f"stopped: its output cannot be written: {failure.strerror}"
            return "error:output", Exit.FAILED, words
        match result.outcome:
            case "exited":
                return "done", result.exit_code or 0, ""
            case "signalled":
                return "done", 128 + (result.signal or 0), ""
            case "timeout":
                return "limit:duration", Exit.STOPPED, "stopped: its time is over"
            case "interrupted" if self._streams.reader_left and not self._signal:
                # As a program that is run directly: it dies of the pipe, and says nothing.
                return "interrupted", 128 + signal.SIGPIPE, ""
            case "interrupted":
                return "interrupted", 128 + (self._signal or signal.SIGINT), "interrupted"
            case "not_started":
                why = os.strerror(result.errno)
                code = _NOT_FOUND if result.errno == 2 else _NOT_EXECUTABLE
                name = self._request.command[0]
                return "error:start", code, f"{name}: {result.step}: {why}"
            case _:
                return f"error:{result.outcome}", Exit.FAILED, f"the command was {result.outcome}"
