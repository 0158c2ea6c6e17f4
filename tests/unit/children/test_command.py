"""Commands as real processes in a real pid namespace."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from rambarde.children.command import CommandResult, Sink, kill, perform, wait_dead
from rambarde.redact import Redactor
from support.plain_zygote import PlainZygote, plan_of

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """Every path closes what it opened."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before


async def run(script: str, *argv: str, timeout_s: float = 10.0, **options: object) -> CommandResult:
    bounds = {"shown_bytes": 2000, "hard_bytes": 1 << 20} | options
    return await perform(PlainZygote(), plan_of(script, *argv), timeout_s=timeout_s, **bounds)  # type: ignore[arg-type]


def alive(marker: str) -> list[str]:
    """The processes whose command line holds the marker."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The name first: a command line waits for the memory lock of whatever process it is.
            if Path(f"/proc/{pid}/comm").read_text() not in ("sleep\n", "sh\n", "bash\n"):
                continue
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in line and int(pid) != os.getpid():
            found.append(pid)
    return found


async def test_both_streams_and_the_exit_code_come_back() -> None:
    """A command that ends by itself is told by its code and its output."""
    result = await run("echo out; echo err >&2; exit 3")
    assert (result.outcome, result.exit_code, result.signal) == ("exited", 3, None)
    assert (result.stdout.text, result.stderr.text) == ("out\n", "err\n")
    assert result.proven_dead


async def test_death_by_a_signal_is_told_from_an_exit() -> None:
    """A first process that died of a signal is no exit code of 128 and something."""
    result = await run("kill -SEGV $$")
    assert (result.outcome, result.exit_code, result.signal) == ("signalled", None, signal.SIGSEGV)


async def test_program_that_does_not_exist_never_started() -> None:
    """What was not executed is told by the step that failed and its errno."""
    result = await run("", "/nowhere/program")
    assert (result.outcome, result.step, result.errno) == ("not_started", "exec", errno.ENOENT)


async def test_init_killed_from_outside_is_killed_without_a_status() -> None:
    """A command that vanishes is neither an exit nor a timeout."""
    zygote = PlainZygote()

    def assassin(stream: str, text: str) -> None:
        assert zygote.last is not None
        os.kill(zygote.last.pid, signal.SIGKILL)

    result = await perform(
        zygote,
        plan_of("echo begun; sleep 60"),
        timeout_s=9,
        shown_bytes=99,
        hard_bytes=999,
        on_output=assassin,
    )
    assert result.outcome == "killed"


async def test_timeout_returns_the_partial_output_and_leaves_nothing() -> None:
    """At the bound the whole tree dies and what it wrote until then is kept."""
    result = await run(
        "trap '' TERM HUP; (setsid sleep 4711001 &) ; echo partial; sleep 4711001", timeout_s=1
    )
    assert (result.outcome, result.stdout.text) == ("timeout", "partial\n")
    assert 1 <= result.duration_s < 20
    assert not alive("4711001")


async def test_next_command_runs_normally_after_a_timeout() -> None:
    """A timeout is the end of one command only."""
    await run("sleep 60", timeout_s=0.02)
    assert (await run("echo next")).stdout.text == "next\n"


async def test_daemon_that_holds_the_output_does_not_hold_the_call() -> None:
    """The call returns when the first process ends, and the daemon is dead by then."""
    result = await run("setsid nohup sleep 4711002 & (sleep 4711002 &) ; echo done")
    assert (result.outcome, result.stdout.text) == ("exited", "done\n")
    assert result.duration_s < 20
    assert not alive("4711002")


async def test_pipe_held_open_outside_the_namespace_does_not_hang() -> None:
    """Even a writer that survived elsewhere cannot keep the call: the pidfd decides."""

    class Leaky(PlainZygote):
        async def run_command(self, plan, stdin_fd=None):  # type: ignore[no-untyped-def]
            process = await super().run_command(plan, stdin_fd)
            self.held = os.open(f"/proc/self/fd/{process.stdout_fd}", os.O_WRONLY)
            return process

    zygote = Leaky()
    with anyio.fail_after(2):
        result = await perform(
            zygote, plan_of("echo x"), timeout_s=9, shown_bytes=99, hard_bytes=999
        )
    os.close(zygote.held)
    assert (result.outcome, result.stdout.text) == ("exited", "x\n")


async def test_closed_streams_are_no_end() -> None:
    """A command that closes its output lives on until it ends."""
    result = await run("exec >&- 2>&-; sleep 0.05; exit 4")
    assert (result.exit_code, result.duration_s >= 0.05) == (4, True)


async def test_flood_is_killed_at_the_hard_limit_and_memory_stays_flat() -> None:
    """An endless output is cut by its own bytes, long before its time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await run("yes", hard_bytes=50 << 20)
    assert result.outcome == "output"
    assert result.stdout.total_bytes >= 50 << 20
    assert result.stdout.elided_bytes == result.stdout.total_bytes - 2000
    assert result.stdout.head.startswith("y\ny\n")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


async def test_long_output_that_ends_keeps_head_and_tail() -> None:
    """Below the hard limit everything is read, and the middle left out by count."""
    result = await run("seq 1 20000")
    whole = "".join(f"{number}\n" for number in range(1, 20001))
    assert result.outcome == "exited"
    assert result.stdout.head == whole[:1000]
    assert result.stdout.tail == whole[-1000:]
    assert result.stdout.elided_bytes == len(whole) - 2000


async def test_stop_event_ends_it_with_what_there_is() -> None:
    """An interruption is told from a timeout and keeps the output."""
    stop = anyio.Event()

    def on_output(stream: str, text: str) -> None:
        assert (stream, text) == ("stdout", "begun\n")
        stop.set()

    result = await run("echo begun; sleep 60", stop=stop, on_output=on_output)
    assert (result.outcome, result.stdout.text) == ("interrupted", "begun\n")


async def test_cancellation_returns_after_the_proof_of_death() -> None:
    """Whoever cancels finds the processes gone, not going."""
    with anyio.move_on_after(0.1):
        await run("(setsid sleep 4711003 &) ; sleep 4711003")
    assert not alive("4711003")


async def test_standard_input_is_given_whole_and_ends() -> None:
    """A long input needs no reader on our side, and its end is seen."""
    data = b"0123456789" * 100_000
    result = await run("wc -c", stdin=data)
    assert result.stdout.text == "1000000\n"
    assert (await run("cat")).stdout.text == ""


async def test_standard_input_cannot_be_changed_by_the_command() -> None:
    """The command holds our bytes to read, not a file to write."""
    result = await run("echo more >> /proc/self/fd/0 || cat", stdin=b"input")
    assert result.stdout.text == "input"


async def test_live_output_is_cleaned_redacted_and_bounded() -> None:
    """What is shown while it runs has no powers, no secret and no flood in it."""
    shown: list[str] = []
    await run(
        "printf '\\033[31mkey hunter2-'; sleep 0.02; echo correct-horse-battery;"
        "yes | head -c 100000",
        on_output=lambda _, text: shown.append(text),
        redact=Redactor({"KEY": "hunter2-correct-horse-battery"}).stream,
    )
    assert "".join(shown).startswith("key [redacted:KEY]\ny\n")
    assert len("".join(shown)) < 2100


async def test_sinks_get_every_byte_redacted() -> None:
    """A program run on behalf of a script passes its whole output on."""
    taken: tuple[list[bytes], list[bytes]] = ([], [])

    def sink(into: list[bytes]) -> Sink:
        async def take(data: bytes) -> None:
            await anyio.sleep(0.0001)
            into.append(data)

        return take

    await run(
        "seq 1 30000; echo hunter2-correct-horse-battery >&2",
        sinks=(sink(taken[0]), sink(taken[1])),
        redact=Redactor({"KEY": "hunter2-correct-horse-battery"}).stream,
    )
    assert b"".join(taken[0]) == "".join(f"{n}\n" for n in range(1, 30001)).encode()
    assert b"".join(taken[1]) == b"[redacted:KEY]\n"


async def test_binary_output_is_text_and_nothing_else() -> None:
    """Random bytes on a stream neither break the result nor reach the screen as they are."""
    result = await run("head -c 3000 /dev/urandom; printf '\\033]52;c;eA==\\007'")
    assert "\x1b" not in result.stdout.text
    assert result.stdout.total_bytes == 3012


async def test_kill_of_a_dead_process_touches_nobody() -> None:
    """A pidfd never names a stranger that got the same number."""
    zygote = PlainZygote()
    process = await zygote.run_command(plan_of("exit 0"))
    await wait_dead(process.pidfd)
    kill(process.pidfd)
    for fd in (process.pidfd, process.stdout_fd, process.stderr_fd, process.status_fd):
        os.close(fd)


async def test_twenty_commands_at_once_do_not_wait_for_each_other() -> None:
    """Each command has its own clock and its own end."""
    begun = time.monotonic()
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(run, "sleep 1; echo x")
    assert time.monotonic() - begun < 15
