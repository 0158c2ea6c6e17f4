"""Round trips and throughput of the real Channel, beside the same bytes over bare pipes.

Run: python bench/channel.py [--quick]. Prints one JSON object. Each number of the channel stands
next to the cost of the same traffic in a plain loop of os.read and os.write with a process that
does nothing else, because absolute times say little about a machine one does not know.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import signal
import statistics
import time
from collections.abc import Callable

from rambarde.children.channel import Channel, Rate
from rambarde_wire import frames

_ENDLESS = Rate(1e12, 1e12, 1e15, 1e15)
_SMALL_BYTES = 200
_LARGE_BYTES = 1 << 20


def _result(size: int) -> frames.TellResult:
    return frames.TellResult("c0123456789", True, "", "x" * (size - 100), "f" * 16)


def _fork(child: Callable[[int, int], None]) -> tuple[int, int, int]:
    """Start `child(read_fd, write_fd)` as a process; return pid, our read end, our write end."""
    up_read, up_write = os.pipe()
    down_read, down_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(up_write)
        os.close(down_read)
        return pid, up_read, down_write
    try:
        os.close(up_read)
        os.close(down_write)
        child(down_read, up_write)
    finally:
        os._exit(0)


def _echo(data: bytes) -> Callable[[int, int], None]:
    """A child that answers whatever it reads with the same bytes, decoding nothing."""

    def child(read_fd: int, write_fd: int) -> None:
        while os.read(read_fd, 1 << 16):
            os.write(write_fd, data)

    return child


def _flood(data: bytes) -> Callable[[int, int], None]:
    def child(_read_fd: int, write_fd: int) -> None:
        view = memoryview(data)
        while True:
            at = 0
            while at < len(view):
                at += os.write(write_fd, view[at:])

    return child


def _bare_trips_us(count: int) -> float:
    data = frames.encode_up(_result(_SMALL_BYTES))
    pid, read_fd, write_fd = _fork(_echo(data))
    begun = time.perf_counter()
    for _ in range(count):
        os.write(write_fd, data)
        os.read(read_fd, 1 << 16)
    took_s = time.perf_counter() - begun
    _end(pid, read_fd, write_fd)
    return took_s / count * 1e6


def _loop_trips_us(count: int) -> float:
    """The same bytes through a loop that does the least: one reader callback, one future."""
    data = frames.encode_up(_result(_SMALL_BYTES))
    pid, read_fd, write_fd = _fork(_echo(data))

    async def run() -> float:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()

        def on_readable() -> None:
            os.read(read_fd, 1 << 16)
            waiting.set_result(None)

        loop.add_reader(read_fd, on_readable)
        begun = time.perf_counter()
        for _ in range(count):
            waiting = loop.create_future()
            os.write(write_fd, data)
            await waiting
        took_s = time.perf_counter() - begun
        loop.remove_reader(read_fd)
        return took_s / count * 1e6

    found = asyncio.run(run())
    _end(pid, read_fd, write_fd)
    return found


def _channel_trips_us(count: int) -> float:
    pid, read_fd, write_fd = _fork(_echo(frames.encode_up(_result(_SMALL_BYTES))))
    reply = frames.ReplyWrite("c0123456789", True, "", "y" * (_SMALL_BYTES - 40))

    async def run() -> float:
        channel = Channel(read_fd, write_fd, rate=_ENDLESS)
        begun = time.perf_counter()
        for _ in range(count):
            await channel.send(reply)
            await channel.receive()
        took_s = time.perf_counter() - begun
        os.kill(pid, signal.SIGKILL)
        await channel.aclose()
        return took_s / count * 1e6

    found = asyncio.run(run())
    os.waitpid(pid, 0)
    return found


def _bare_gib_s(count: int) -> float:
    data = frames.encode_up(_result(_LARGE_BYTES))
    pid, read_fd, write_fd = _fork(_flood(data))
    fcntl.fcntl(read_fd, fcntl.F_SETPIPE_SZ, 1 << 20)
    room = bytearray(_LARGE_BYTES)
    left = count * len(data)
    begun = time.perf_counter()
    while left > 0:
        left -= os.readv(read_fd, [room])
    took_s = time.perf_counter() - begun
    _end(pid, read_fd, write_fd)
    return count * len(data) / took_s / (1 << 30)


def _channel_gib_s(count: int) -> float:
    data = frames.encode_up(_result(_LARGE_BYTES))
    pid, read_fd, write_fd = _fork(_flood(data))

    async def run() -> float:
        channel = Channel(read_fd, write_fd, rate=_ENDLESS)
        begun = time.perf_counter()
        for _ in range(count):
            await channel.receive()
        took_s = time.perf_counter() - begun
        os.kill(pid, signal.SIGKILL)
        await channel.aclose()
        return count * len(data) / took_s / (1 << 30)

    found = asyncio.run(run())
    os.waitpid(pid, 0)
    return found


def _end(pid: int, read_fd: int, write_fd: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.close(read_fd)
    os.close(write_fd)
    os.waitpid(pid, 0)


def measure(*, trips: int, floods: int, rounds: int = 5) -> dict[str, float]:
    """Return medians over `rounds`: microseconds a round trip, GiB a second, and their ratios."""
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, value in (
            ("bare_trip_us", _bare_trips_us(trips)),
            ("loop_trip_us", _loop_trips_us(trips)),
            ("channel_trip_us", _channel_trips_us(trips)),
            ("bare_gib_s", _bare_gib_s(floods)),
            ("channel_gib_s", _channel_gib_s(floods)),
        ):
            taken.setdefault(name, []).append(value)
    found = {name: round(statistics.median(values), 2) for name, values in taken.items()}
    found["trip_ratio_to_loop"] = round(found["channel_trip_us"] / found["loop_trip_us"], 2)
    found["flood_ratio_to_bare"] = round(found["channel_gib_s"] / found["bare_gib_s"], 2)
    return found


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    scale = 1 if parser.parse_args().quick else 10
    print(json.dumps(measure(trips=1000 * scale, floods=100 * scale), indent=2))


if __name__ == "__main__":
    main()
