"""The trial agent: proof, at set-up, that a whole sandbox can be made here. Inside the sandbox.

Only the act tells: a kernel may allow a user namespace and refuse its mounts, or allow both and
refuse /proc. The trial takes the same path as every agent, under a plan of its own: read-only
workspace, no right but reading, a filter that allows everything.
"""

from __future__ import annotations

import os
import select
import struct

from rambarde_wire.frames import (
    MAX_UP_BYTES,
    BreachError,
    FrameReader,
    TellFault,
    TellHello,
    decode_up,
)
from rambarde_wire.orders import Landlock, LandlockRule, SandboxPlan, Tmpfs, ZygoteSetup

from .syscalls import StepFailed

_KUID = 0x6FFF_FFFE
_ALLOW_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF_0000)
_READ, _EXECUTE, _WRITE, _READ_DIR = 0x4, 0x1, 0x2, 0x8
_MAKE_REGULAR = 0x100
_WAIT_MS = 10_000


def make_plan(setup: ZygoteSetup) -> SandboxPlan:
    """Return the plan of the trial agent for this set-up."""
    handled = _READ | _EXECUTE | _WRITE | _READ_DIR | _MAKE_REGULAR
    return SandboxPlan(
        agent_id="trial",
        title="trial",
        tier=setup.tier,
        workspace=setup.workspace,
        workspace_writable=False,
        kuid=_KUID,
        tmpfs=[Tmpfs(b"/tmp", 1 << 20, 64, 0o1777)],
        pins=[],
        read_only=[],
        masks=[],
        landlock=Landlock(handled, 0, 0, [LandlockRule(b"/", _READ | _READ_DIR)]),
        seccomp=_ALLOW_ALL,
        rlimits=[],
        oom_score_adj=1000,
        environment={},
        cgroup_procs=[],
    )


def open_ends() -> tuple[list[int], int]:
    """Return the trial agent's three descriptors and the read end of its frames."""
    hello_fd, frames_out = os.pipe2(os.O_CLOEXEC)
    log = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    frames_in = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    return [frames_in, frames_out, log], hello_fd


def await_hello(fd: int) -> None:
    """Wait for the trial agent's greeting.

    Raises:
        StepFailed: the step that failed in it; "trial" when it ended or hung without a word.
    """
    reader = FrameReader(max_bytes=MAX_UP_BYTES)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while (body := reader.next_body()) is None:
        if not poll.poll(_WAIT_MS):
            raise StepFailed("trial", 0, f"no greeting within {_WAIT_MS / 1000:.0f} s")
        data = os.read(fd, 65536)
        if not data:
            raise StepFailed("trial", 0, "the trial agent ended without a greeting")
        reader.feed(data)
    try:
        frame = decode_up(body)
    except BreachError as exc:
        raise StepFailed("trial", 0, str(exc)) from None
    if isinstance(frame, TellFault):
        raise StepFailed(frame.claimed_step, frame.errno, frame.claimed_text)
    if not isinstance(frame, TellHello):
        raise StepFailed("trial", 0, "the trial agent did not greet")
