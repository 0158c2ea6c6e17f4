"""What a hostile child does to its channel ends that child and nothing else."""

from __future__ import annotations

import os
import resource
import time

import anyio
import pytest

from rambarde.children.channel import Channel, ChannelClosed
from rambarde_wire import frames
from rambarde_wire.frames import BreachError
from support.pipes import FarEnd, closed, forked, pipe_pair, receive_on

pytestmark = pytest.mark.anyio

_SOON_S = 0.05
_BIG = frames.ReplyWrite("c1", False, "stale", "x" * (3 << 20))


def _rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


async def test_huge_length_header_is_refused_at_once_and_costs_nothing() -> None:
    """0xFFFFFFFF ends the child with the fourth byte."""

    def play(far: FarEnd) -> None:
        far.say(b"\xff\xff\xff\xff")
        time.sleep(60)

    with forked(play) as (_, read_fd, write_fd):
        channel = Channel(read_fd, write_fd)
        before = _rss_bytes()
        with anyio.fail_after(1), pytest.raises(BreachError, match="frame length 4294967295"):
            await channel.receive()
        assert _rss_bytes() - before < 1 << 20
        await closed(channel)


async def test_announced_but_unsent_body_costs_addresses_only() -> None:
    """A child that announces the longest frame allowed and stops does not grow the supervisor."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd, frame_s=_SOON_S)
        before = _rss_bytes()
        far.say(frames.MAX_UP_BYTES.to_bytes(4, "big") + b"x")
        with pytest.raises(BreachError):
            await channel.receive()
        assert _rss_bytes() - before < 2 << 20
        await closed(channel)


@pytest.mark.parametrize("head", [b"\0", b"\0\0\0\x0c", b"\0\0\0\x0cabcd"])
async def test_half_a_frame_then_silence_is_a_breach(head: bytes) -> None:
    """A frame begun has its time, whether the header or the body is missing."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd, frame_s=_SOON_S)
        far.say(head)
        with anyio.fail_after(1), pytest.raises(BreachError, match="not finished in time"):
            await channel.receive()
        with pytest.raises(BreachError):
            await channel.send(frames.OrderInterrupt("stopped"))
        await closed(channel)


async def test_half_a_frame_behind_a_whole_one_has_a_deadline_too() -> None:
    """Whole frames before it do not hide a frame that never ends."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd, frame_s=_SOON_S)
        far.say(frames.encode_up(frames.AskTurn()) + b"\0\0")
        assert await channel.receive() == frames.AskTurn()
        with anyio.fail_after(1), pytest.raises(BreachError, match="not finished in time"):
            await channel.receive()
        await closed(channel)


async def test_slow_drip_does_not_move_the_deadline() -> None:
    """One byte now and then is not progress."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd, frame_s=_SOON_S)

        async def drip() -> None:
            for byte in frames.encode_up(frames.AskPerform(["c"] * 100)):
                far.say(bytes([byte]))
                await anyio.sleep(_SOON_S / 5)

        async with anyio.create_task_group() as group:
            group.start_soon(drip)
            with anyio.fail_after(1), pytest.raises(BreachError):
                await channel.receive()
            group.cancel_scope.cancel()
        await closed(channel)


async def test_silence_between_frames_is_no_breach() -> None:
    """A child may think as long as its budget lets it; only a begun frame is timed."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd, frame_s=0.01)
        far.say(frames.AskTurn())
        await channel.receive()
        await anyio.sleep(0.03)
        far.say(frames.AskTurn())
        assert await channel.receive() == frames.AskTurn()
        await closed(channel)


async def test_reader_that_stops_reading_is_a_breach_and_blocks_nobody() -> None:
    """A reply that is not taken ends its child while a sibling's channel goes on."""
    with pipe_pair() as (read_fd, write_fd, _), pipe_pair() as (read2_fd, write2_fd, far2):
        deaf = Channel(read_fd, write_fd, frame_s=_SOON_S)
        sibling = Channel(read2_fd, write2_fd)
        trips = 0

        async def talk() -> None:
            nonlocal trips
            while True:
                far2.say(frames.AskTurn())
                await sibling.receive()
                await sibling.send(frames.ReplyTurn(True, []))
                far2.hear()
                trips += 1

        async with anyio.create_task_group() as group:
            group.start_soon(talk)
            with anyio.fail_after(1), pytest.raises(BreachError, match="does not read"):
                await deaf.send(_BIG)
            group.cancel_scope.cancel()
        assert trips > 10
        await closed(deaf)
        await closed(sibling)


async def test_queue_out_is_bounded() -> None:
    """However many tasks send, what waits for a deaf child stays below the bound."""
    with pipe_pair() as (read_fd, write_fd, _):
        channel = Channel(read_fd, write_fd)
        refused = 0

        async def send() -> None:
            nonlocal refused
            try:
                await channel.send(_BIG)
            except BreachError:
                refused += 1

        with anyio.fail_after(1):
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(send)
        assert refused == 5
        await closed(channel)


async def test_child_killed_inside_a_frame_is_an_unclean_end() -> None:
    """SIGKILL between header and body is seen as an end, not as a breach or a hang."""

    def play(far: FarEnd) -> None:
        far.say(frames.encode_up(frames.AskPerform(["c"] * 50))[:100])
        os.kill(os.getpid(), 9)

    with forked(play) as (_, read_fd, write_fd):
        channel = Channel(read_fd, write_fd)
        with anyio.fail_after(1), pytest.raises(ChannelClosed) as caught:
            await channel.receive()
        assert not caught.value.clean
        await closed(channel)


async def test_interleaved_writers_are_a_breach() -> None:
    """Two writers that mix their long frames are never read as another valid message."""

    def play(far: FarEnd) -> None:
        one = frames.encode_up(frames.TellResult("c1", True, "", "a" * 9000, "00"))
        two = frames.encode_up(frames.TellResult("c2", True, "", "b" * 9000, "00"))
        far.say(one[:5000] + two[:5000] + one[5000:] + two[5000:])
        time.sleep(60)

    with forked(play) as (_, read_fd, write_fd):
        channel = Channel(read_fd, write_fd)
        with anyio.fail_after(1), pytest.raises(BreachError):
            await receive_on(channel)
        await closed(channel)


async def test_random_bytes_are_breaches_each_time() -> None:
    """Whatever bytes come, the end is a typed one, and no descriptor is left."""

    def play(far: FarEnd) -> None:
        os.set_blocking(far.write_fd, True)
        far.say(os.urandom(200_000))

    for _ in range(5):
        with forked(play) as (_, read_fd, write_fd):
            channel = Channel(read_fd, write_fd, frame_s=_SOON_S)
            with anyio.fail_after(1), pytest.raises((BreachError, ChannelClosed)):
                await receive_on(channel)
            await closed(channel)


async def test_deadline_missed_by_a_stopped_supervisor_is_not_held_against_the_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After Ctrl-Z and fg the child gets its time anew."""
    monkeypatch.setattr("rambarde.children.channel._LATE_S", 0.02)
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd, frame_s=_SOON_S)
        data = frames.encode_up(frames.AskTurn())
        far.say(data[:5])
        await anyio.sleep(0.01)
        time.sleep(_SOON_S + 0.05)  # noqa: ASYNC251 - the loop stands still, as when stopped
        await anyio.sleep(0.01)
        far.say(data[5:])
        assert await channel.receive() == frames.AskTurn()
        await closed(channel)
