"""A zygote and its agents for tests: started for real, ended without a trace."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio

from rambarde.children.zygote import AgentProcess, CommandProcess, Zygote
from rambarde_wire.frames import MAX_UP_BYTES, FrameReader, TellHello, UpFrame, decode_up
from rambarde_wire.orders import (
    CommandPlan,
    CommandStatus,
    SandboxPlan,
    ZygoteSetup,
    status_decoder,
)

_SUPPORT = os.path.dirname(os.path.abspath(__file__))


@contextlib.asynccontextmanager
async def zygote_for(setup: ZygoteSetup) -> AsyncIterator[Zygote]:
    """A ready zygote whose agents run support/probe_loop.py."""
    zygote = Zygote.start(
        setup, environment={}, entry="probe_loop", extra_places={"probe_loop": _SUPPORT}
    )
    try:
        await zygote.wait_ready()
        yield zygote
    finally:
        await zygote.aclose()


async def read_some(fd: int) -> bytes:
    """Read once from a non-blocking descriptor; b"" at its end."""
    while True:
        try:
            return os.read(fd, 65536)
        except BlockingIOError:
            await anyio.wait_readable(fd)


async def read_all(fd: int) -> bytes:
    """Read to the end and close."""
    data = b""
    while more := await read_some(fd):
        data += more
    os.close(fd)
    return data


@dataclass
class Agent:
    """A greeted agent: `ask` evaluates an expression inside it."""

    process: AgentProcess
    first: UpFrame

    @property
    def hello(self) -> TellHello:
        """Its greeting; fails with its fault."""
        assert isinstance(self.first, TellHello), self.first
        return self.first

    async def ask(self, expression: str) -> str:
        """The repr of the value of an expression inside the agent."""
        data = expression.encode()
        os.write(self.process.write_fd, len(data).to_bytes(4, "big") + data)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
            more = await read_some(self.process.read_fd)
            if not more:
                raise EOFError
            answer += more
        return answer[4:].decode()

    async def end(self) -> None:
        """Kill it and wait until its namespaces are empty."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process.pidfd, signal.SIGKILL)
        await anyio.wait_readable(self.process.pidfd)
        for fd in (
            self.process.pidfd,
            self.process.read_fd,
            self.process.write_fd,
            self.process.log_fd,
        ):
            os.close(fd)


async def first_frame(fd: int) -> UpFrame:
    """The first frame of a child."""
    reader = FrameReader(max_bytes=MAX_UP_BYTES)
    while (body := reader.next_body()) is None:
        data = await read_some(fd)
        if not data:
            raise EOFError("the agent ended without a frame")
        reader.feed(data)
    return decode_up(body)


async def start_agent(zygote: Zygote, plan: SandboxPlan) -> Agent:
    """Spawn an agent and read its first frame (a greeting or a fault)."""
    process = await zygote.spawn_agent(plan)
    with anyio.fail_after(10):
        return Agent(process, await first_frame(process.read_fd))


@contextlib.asynccontextmanager
async def agent_for(zygote: Zygote, plan: SandboxPlan) -> AsyncIterator[Agent]:
    """A greeted agent, killed at the end."""
    agent = await start_agent(zygote, plan)
    try:
        yield agent
    finally:
        await agent.end()


@dataclass
class Ran:
    """How a command ended; `status` is None when it was killed as a whole."""

    status: CommandStatus | None
    out: bytes
    err: bytes
    process: CommandProcess


async def run(zygote: Zygote, plan: CommandPlan, *, kill_after_s: float | None = None) -> Ran:
    """Run a command to its end, or kill its init after a while."""
    process = await zygote.run_command(plan)
    outs: dict[str, bytes] = {}

    async def keep(name: str, fd: int) -> None:
        outs[name] = await read_all(fd)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(keep, "out", process.stdout_fd)
            group.start_soon(keep, "err", process.stderr_fd)
            group.start_soon(keep, "status", process.status_fd)
            if kill_after_s is not None:
                await anyio.sleep(kill_after_s)
                signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
            await anyio.wait_readable(process.pidfd)
    os.close(process.pidfd)
    status = status_decoder.decode(outs["status"]) if outs["status"] else None
    return Ran(status, outs["out"], outs["err"], process)
