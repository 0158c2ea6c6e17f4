"""Frames through two real pipes, both ends in this process."""

from __future__ import annotations

import fcntl
import os

import anyio
import anyio.lowlevel
import pytest

from rambarde.children.channel import Channel, ChannelClosed, Rate
from rambarde.errors import InternalError
from rambarde_wire import frames
from support.pipes import closed, pipe_pair, receive_on

pytestmark = pytest.mark.anyio

_BIG = frames.ReplyWrite("c1", False, "stale", "x" * (3 << 20))


async def test_frames_pass_both_ways() -> None:
    """A question goes up and its answer comes down."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        far.say(frames.AskPerform(["c1"]))
        assert await channel.receive() == frames.AskPerform(["c1"])
        await channel.send(frames.ReplyPerform(["c1"]))
        assert far.hear() == frames.ReplyPerform(["c1"])
        await closed(channel)


async def test_pipes_are_enlarged() -> None:
    """A long frame fits a pipe, so that a child seldom waits for the supervisor."""
    with pipe_pair() as (read_fd, write_fd, _):
        channel = Channel(read_fd, write_fd)
        assert fcntl.fcntl(read_fd, fcntl.F_GETPIPE_SZ) == 1 << 20
        await closed(channel)


async def test_frames_sent_before_anybody_receives_are_kept_in_order() -> None:
    """Nothing is lost while the supervisor waits for a model."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        for number in range(100):
            far.say(frames.AskPerform([f"c{number}"]))
        await anyio.lowlevel.checkpoint()
        found = [await channel.receive() for _ in range(100)]
        assert found == [frames.AskPerform([f"c{number}"]) for number in range(100)]
        await closed(channel)


async def test_frame_in_pieces_is_received_whole() -> None:
    """A frame written byte by byte is one frame."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)

        async def drip() -> None:
            for byte in frames.encode_up(frames.AskTurn()):
                far.say(bytes([byte]))
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(drip)
            assert await channel.receive() == frames.AskTurn()
        await closed(channel)


async def test_reading_pauses_when_nobody_receives() -> None:
    """A child that talks while nobody listens fills its pipe, not the supervisor."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        os.set_blocking(far.write_fd, False)
        data = frames.encode_up(frames.TellResult("c1", True, "", "x" * 60_000, "ff"))
        sent = 0
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
            try:
                sent += os.write(far.write_fd, data)
            except BlockingIOError:
                break
        assert sent <= (1 << 20) + 2 * len(data)
        os.close(far.write_fd)
        count = 0
        with pytest.raises(ChannelClosed):  # noqa: PT012
            while True:
                await channel.receive()
                count += 1
        assert count == sent // len(data)
        await closed(channel)


async def test_end_between_frames_is_clean() -> None:
    """What was said before the end is still received, then the end, again and again."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        far.say(frames.AskTurn())
        os.close(far.write_fd)
        assert await channel.receive() == frames.AskTurn()
        for _ in range(2):
            with pytest.raises(ChannelClosed, match="between two frames") as caught:
                await channel.receive()
            assert caught.value.clean
        await closed(channel)


async def test_end_inside_a_frame_is_not_clean() -> None:
    """A child that dies between header and body is told from one that leaves."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        far.say(b"\0\0\0\x0cabc")
        os.close(far.write_fd)
        with pytest.raises(ChannelClosed) as caught:
            await channel.receive()
        assert not caught.value.clean
        await closed(channel)


async def test_send_to_a_closed_end_says_so_and_receiving_goes_on() -> None:
    """A child may close one pipe and still report by the other."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        os.close(far.read_fd)
        for _ in range(2):
            with pytest.raises(ChannelClosed):
                await channel.send(frames.OrderInterrupt("stopped"))
        far.say(frames.AskTurn())
        assert await channel.receive() == frames.AskTurn()
        await closed(channel)


async def test_frame_longer_than_the_pipe_is_sent_as_it_is_read() -> None:
    """Sending waits for the reader without holding up the loop."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        async with anyio.create_task_group() as group:
            group.start_soon(channel.send, _BIG)
            group.start_soon(channel.send, frames.ReplyPerform(["c2"]))
            heard = await anyio.to_thread.run_sync(far.hear)
        assert heard == _BIG
        await closed(channel)


async def test_cancelled_send_is_completed_by_the_loop() -> None:
    """Half a frame never spoils the next: the rest follows although its sender is gone."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        with anyio.move_on_after(0.005) as scope:
            await channel.send(_BIG)
        assert scope.cancelled_caught
        assert await anyio.to_thread.run_sync(far.hear) == _BIG
        await channel.send(frames.ReplyPerform(["c2"]))
        assert far.hear() == frames.ReplyPerform(["c2"])
        await closed(channel)


async def test_cancelled_receive_loses_nothing() -> None:
    """A frame that comes after a receive was given up is the next one's."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        with anyio.move_on_after(0.002):
            await channel.receive()
        far.say(frames.AskTurn())
        assert await channel.receive() == frames.AskTurn()
        await closed(channel)


async def test_two_receivers_are_a_bug() -> None:
    """The order of frames is the protocol: only one task may take them."""
    with pipe_pair() as (read_fd, write_fd, _):
        channel = Channel(read_fd, write_fd)
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
            async with anyio.create_task_group() as group:
                group.start_soon(channel.receive)
                group.start_soon(channel.receive)
        assert caught.group_contains(InternalError)
        await closed(channel)


async def test_close_wakes_those_who_wait() -> None:
    """Closing is an end like another for a task that receives or sends."""
    with pipe_pair() as (read_fd, write_fd, _):
        channel = Channel(read_fd, write_fd)
        ends = []

        async def until_closed(receiving: bool) -> None:
            with pytest.raises(ChannelClosed, match="closed by the supervisor"):
                await (channel.receive() if receiving else channel.send(_BIG))
            ends.append(receiving)

        async with anyio.create_task_group() as group:
            group.start_soon(until_closed, True)
            group.start_soon(until_closed, False)
            await anyio.sleep(0.002)
            await closed(channel)
        assert len(ends) == 2
        await channel.aclose()


async def test_flood_of_ready_frames_lets_other_tasks_run() -> None:
    """A child with many frames ready does not keep the loop from its siblings."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd)
        far.say(frames.encode_up(frames.AskTurn()) * 1000)
        turns = 0

        async def sibling() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(sibling)
            for _ in range(1000):
                await channel.receive()
            group.cancel_scope.cancel()
        assert turns >= 1000 // 32 - 1
        await closed(channel)


@pytest.mark.parametrize(
    "rate", [Rate(frames_per_s=1, frames_burst=10), Rate(bytes_per_s=1, bytes_burst=200)]
)
async def test_flood_past_the_rate_is_a_breach(rate: Rate) -> None:
    """Frames and bytes are counted by time; what is past the bucket ends the child."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd, rate=rate)
        far.say(frames.encode_up(frames.AskTurn()) * 50)
        with pytest.raises(frames.BreachError, match="a second"):
            await receive_on(channel)
        await closed(channel)


async def test_tokens_come_back_with_time() -> None:
    """The bucket fills again while a child is quiet."""
    with pipe_pair() as (read_fd, write_fd, far):
        channel = Channel(read_fd, write_fd, rate=Rate(frames_per_s=1000, frames_burst=5))
        for _ in range(3):
            far.say(frames.encode_up(frames.AskTurn()) * 5)
            for _ in range(5):
                await channel.receive()
            await anyio.sleep(0.006)
        await closed(channel)
