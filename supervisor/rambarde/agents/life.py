"""One agent's process from the fork to the proof of death. Trusted side.

Theory of operation
-------------------
    spawn    the plan goes to the zygote; pidfd and two pipes come back
    believe  the child's hello is compared with the plan, from outside too; then OrderBegin
    serve    the broker answers its frames, beside three watchers: the pidfd (it died), the clock
             (a limit was reached), the stop signal (a person or the parent ends it)
    close    OrderInterrupt where the child does not know yet, a grace in which its last reports are
             still taken, SIGKILL of the namespace's init, and the wait until the pidfd says that
             its last process is gone

The first cause of an end sets the outcome; everything after it is a consequence. The closing part
is shielded from cancellation: whatever happens above, no process and no descriptor is left.

Source: pidfd_open(2): the pidfd of a pid namespace's init becomes readable only after every
process of that namespace is gone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import anyio.lowlevel

from rambarde.agents.agent import Agent
from rambarde.agents.parts import Parts
from rambarde.agents.sealed import mismatches
from rambarde.broker.answer_turn import ChildFault, fault_text
from rambarde.broker.ports import Ports
from rambarde.broker.serve import hear_rest, serve
from rambarde.broker.table import Phase
from rambarde.children.channel import Channel, ChannelClosed
from rambarde.children.command import kill, wait_dead
from rambarde.children.processes import AgentProcess
from rambarde.errors import HostError, RecordError
from rambarde.events import Event
from rambarde.policy.compile import compile_agent
from rambarde.sessions.report import Outcome
from rambarde_wire import frames
from rambarde_wire.frames import BreachError, ToolLimits

GRACE_S = 2.0
"""From the interrupt to the kill."""
EXIT_S = 5.0
"""For a child that knows its end to leave by itself."""
PROOF_S = 30.0
"""How long the kernel may take to empty a killed sandbox before the slot is given up for good."""
TICK_S = 0.25
_REST_S = 1.0
"""For what the pipe of a dead child still holds."""
_TOLD_CHARS = 1000
"""Kept of a cause that may hold a child's words."""


async def run_process(agent: Agent, parts: Parts, ports: Ports) -> None:
    """Run the agent's child until it is gone. Sets the caller's outcome; never raises for it.

    An agent that was asked to stop before is not started.
    """
    if agent.stop_asked.is_set():
        return
    try:
        process = await _spawn(agent, parts)
    except (HostError, TimeoutError) as exc:
        text = exc.message if isinstance(exc, HostError) else "the sandbox did not start in time"
        agent.stop(Outcome("error:sandbox"), error=text)
        return
    channel = Channel(process.read_fd, process.write_fd)
    try:
        await _serve_watched(agent, parts, ports, process, channel)
    finally:
        with anyio.CancelScope(shield=True):
            await _close(agent, parts, ports, process, channel)


async def _spawn(agent: Agent, parts: Parts) -> AgentProcess:
    """Fork the agent's process; without one no group is left. Raises HostError, TimeoutError."""
    caller = agent.caller
    limits = caller.policy.limits
    group_paths = parts.cgroups.create(
        caller.agent_id, memory_bytes=limits.memory_bytes, processes=limits.processes
    )
    kuid = parts.kuids.take()
    try:
        plan = compile_agent(
            caller.policy,
            parts.space,
            parts.facts,
            agent_id=caller.agent_id,
            title=f"{caller.persona.name} {caller.agent_id}",
            tier=parts.tier,
            kuid=kuid,
            cgroup_procs=group_paths,
            environment=parts.environment,
        )
        with anyio.fail_after(limits.startup_s):
            process = await parts.zygote.spawn_agent(plan)
    except BaseException:
        # The uid is not taken again: of a spawn that failed nobody knows how far it came.
        parts.cgroups.remove(caller.agent_id)
        raise
    agent.pid, agent.proven_dead, agent.plan = process.pid, False, plan
    return process


async def _serve_watched(
    agent: Agent, parts: Parts, ports: Ports, process: AgentProcess, channel: Channel
) -> None:
    async with anyio.create_task_group() as group:

        async def until(work: Callable[[], Awaitable[None]]) -> None:
            await work()
            group.cancel_scope.cancel()

        group.start_soon(until, lambda: _answer(agent, parts, ports, process, channel))
        group.start_soon(until, lambda: _stopped(agent))
        group.start_soon(until, lambda: _died(agent, parts, process))
        group.start_soon(_clock, agent, parts)
        group.start_soon(_drain, process.log_fd)


async def _answer(
    agent: Agent, parts: Parts, ports: Ports, process: AgentProcess, channel: Channel
) -> None:
    try:
        await _believe(agent, parts, process, channel)
        await serve(channel, agent.caller, ports)
    except _NotSealed as exc:
        agent.stop(Outcome("error:sandbox"), error=_told(exc, ports))
    except BreachError as exc:
        agent.stop(Outcome("error:protocol"), error=_told(exc, ports))
    except ChildFault as exc:
        agent.stop(Outcome("error:child"), error=_told(exc, ports))
    except ChannelClosed as exc:
        # The reason of its death, where there is one, is said by _died.
        await anyio.sleep(0.2)
        agent.stop(Outcome("error:child"), error=f"its channel closed: {exc}")
    except RecordError as exc:
        agent.caller.end_unrecorded(error=exc.told)
        agent.stop(Outcome("error:record"), error=exc.told)
    except HostError as exc:
        agent.stop(Outcome("error:host"), error=exc.told)


class _NotSealed(Exception):  # noqa: N818 - it carries no error of ours, it ends one child
    """A child could not seal itself, or is not what its plan says."""


def _told(exc: Exception, ports: Ports) -> str:
    """Return the cause of an end in words that may be a child's: redacted and bounded."""
    return ports.redactor.text(str(exc)[: 64 << 10])[:_TOLD_CHARS]


async def _believe(agent: Agent, parts: Parts, process: AgentProcess, channel: Channel) -> None:
    caller = agent.caller
    with anyio.move_on_after(caller.policy.limits.startup_s) as scope:
        hello = await channel.receive()
    if scope.cancelled_caught:
        raise BreachError("said nothing after its start")
    if isinstance(hello, frames.TellFault):
        raise _NotSealed(fault_text(hello))
    if not isinstance(hello, frames.TellHello):
        raise BreachError("did not introduce itself")
    caller.phase = Phase.SEALED
    if found := mismatches(
        hello, process.pid, parts.tier, is_contained_root=parts.facts.is_contained_root
    ):
        raise _NotSealed("; ".join(found))
    caller.journal.write("sealed", {"pid": process.pid, "landlock": hello.checks.landlock_abi})
    await channel.send(
        frames.OrderBegin(
            workspace=parts.space.root, writable=caller.policy.writable, limits=ToolLimits()
        )
    )
    caller.phase = Phase.RUNNING


async def _drain(log_fd: int) -> None:
    """Read and drop what the agent's process prints: it is never control, and must not block."""
    while True:
        await anyio.wait_readable(log_fd)
        try:
            if not os.read(log_fd, 64 << 10):
                return
        except BlockingIOError:
            continue


async def _stopped(agent: Agent) -> None:
    """Wait for the stop signal, then for the subagents: their reports come before our end."""
    await agent.stop_asked.wait()
    for child in list(agent.children):
        child.stop(Outcome("interrupted"))
    with anyio.move_on_after(GRACE_S + EXIT_S):
        for child in agent.children:
            await child.settled.wait()
        await anyio.lowlevel.checkpoint()


async def _died(agent: Agent, parts: Parts, process: AgentProcess) -> None:
    await wait_dead(process.pidfd)
    killed = 0
    if agent.caller.outcome is None:
        await anyio.sleep(0.1)
        with anyio.move_on_after(_REST_S), suppress(HostError):
            killed = (await parts.zygote.wait_ended(process.pid)).signal
    status, text = _death(agent, parts, killed)
    agent.stop(Outcome(status), error=text)


def _death(agent: Agent, parts: Parts, killed: int) -> tuple[str, str]:
    """Return status and cause of a death that nobody asked for; `killed` is its signal, if any.

    Want of memory is the cause only when the kernel killed in the agent's group without a command
    of it running: it takes commands first (their score is higher), and what befell one of them is
    no death of the agent's own. One whose run was to end by that anyway ends by that.
    """
    caller = agent.caller
    if caller.ending == Outcome("error:memory"):
        return caller.ending.status, caller.ending_error
    kills = parts.cgroups.oom_kills(caller.agent_id)
    if killed == signal.SIGKILL and kills > agent.command_oom_kills and not agent.command_pids:
        bound = caller.policy.limits.memory_bytes
        return "error:memory", f"its process was killed out of memory: the limit is {bound} bytes"
    how = f" (signal {killed})" if killed > 0 else ""
    return "error:child", f"its process ended before its run did{how}"


async def _clock(agent: Agent, parts: Parts) -> None:
    """Stop the agent once a bound is reached: its own or one of the tree, the outermost first."""
    caller, budget = agent.caller, agent.caller.budget
    while True:
        await anyio.sleep(TICK_S)
        hit = budget.check()
        # A refused action ends the run only once the calls before it are done (answer_turn).
        if hit is not None and hit.which != "actions":
            data = {"limit": hit.which, "text": str(hit)}
            parts.publish(Event("agent/limit", caller.session_id, caller.path, data))
            agent.stop(Outcome(f"limit:{hit.which}"), error=str(hit))
            return


async def _close(
    agent: Agent, parts: Parts, ports: Ports, process: AgentProcess, channel: Channel
) -> None:
    caller = agent.caller
    knows = caller.phase is Phase.RUNNING and not agent.stop_asked.is_set()
    was_heard = caller.phase is Phase.RUNNING
    caller.phase = Phase.CLOSING
    try:
        await _end(agent, ports, process, channel, knows=knows, was_heard=was_heard)
    finally:
        kill(process.pidfd)
        await channel.aclose()
        os.close(process.pidfd)
        os.close(process.log_fd)
        with suppress(HostError):
            # A zygote that dies meanwhile takes its namespaces along.
            await parts.zygote.release(caller.agent_id)
        parts.cgroups.remove(caller.agent_id)
    if agent.proven_dead and agent.plan is not None:
        parts.kuids.give_back(agent.plan.kuid)
    if not agent.proven_dead:
        text = "its processes are not proven gone: its slot stays taken"
        parts.publish(Event("notice", caller.session_id, caller.path, {"text": text}))


async def _end(
    agent: Agent,
    ports: Ports,
    process: AgentProcess,
    channel: Channel,
    *,
    knows: bool,
    was_heard: bool,
) -> None:
    """Tell the child to leave where it does not know, hear its rest, kill it, await the proof."""
    async with anyio.create_task_group() as listening:
        if was_heard:
            listening.start_soon(_hear_rest, agent, ports, channel)
        with suppress(BreachError, ChannelClosed, OSError):
            if not knows:
                with anyio.move_on_after(GRACE_S):
                    await channel.send(frames.OrderInterrupt("stopped"))
        with anyio.move_on_after(EXIT_S if knows else GRACE_S):
            await wait_dead(process.pidfd)
        kill(process.pidfd)
        with anyio.move_on_after(PROOF_S) as proof:
            await wait_dead(process.pidfd)
        agent.proven_dead = not proof.cancelled_caught
        listening.cancel_scope.deadline = anyio.current_time() + _REST_S


async def _hear_rest(agent: Agent, ports: Ports, channel: Channel) -> None:
    try:
        await hear_rest(channel, agent.caller, ports)
    except (BreachError, ChannelClosed):
        return
    except RecordError as exc:
        agent.caller.end_unrecorded(error=exc.told)
