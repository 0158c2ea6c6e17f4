"""A thousand agents one after the other: nothing may grow, no start may fail.

Run: make soak. Prints, every hundred, time of a start and descriptors, threads and resident memory
of this process and of the zygote; the last line gives the slopes per thousand.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import anyio
import psutil
from ground import bench_over


def _state(pid: int) -> tuple[int, int, float]:
    process = psutil.Process(pid)
    return process.num_fds(), process.num_threads(), process.memory_info().rss / (1 << 20)


async def soak(count: int) -> None:
    """Start and end `count` agents, each with one command."""
    with tempfile.TemporaryDirectory() as folder:
        async with bench_over(folder) as bench:
            first = None
            failed = 0
            for number in range(count):
                started = time.monotonic()
                try:
                    process, channel, _plan = await bench.start(f"k{number}")
                except Exception as exc:  # noqa: BLE001 - counted and shown
                    failed += 1
                    print(f"{number}: {exc}")
                    continue
                taken = (time.monotonic() - started) * 1000
                await bench.end(process, channel)
                await bench.zygote.release(f"k{number}")
                if number % 100 == 99:
                    own, zygote = _state(os.getpid()), _state(bench.zygote.pid)
                    first = first or (own, zygote)
                    print(f"{number + 1:5} start {taken:6.1f} ms  own {own}  zygote {zygote}")
            if first is not None:
                grown = [b - a for a, b in zip(first[0] + first[1], own + zygote, strict=True)]
                print(
                    f"grown since 100 (fds, threads, MiB; own, zygote): {grown}; failed: {failed}"
                )


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    anyio.run(soak, parser.parse_args().count)


if __name__ == "__main__":
    main()
