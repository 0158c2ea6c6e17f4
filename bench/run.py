"""The numbers we promise, each beside a baseline measured in the same interleaved run.

Run: make bench. Prints one table (median, p95, ratio to its baseline, promise) and writes
bench/results.json. Machines are noisy and differ: read the ratios.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import anyio
import channel as channel_bench
import psutil
from ground import Bench, bench_over
from spawn import bare_forks

from rambarde.children.command import kill, perform, wait_dead

RUNS = 40
ALIVE = (1, 20, 100)
PYTHON = sys.executable
_CHILD = "import msgspec, os; os.write(1, b'x')"
_TREE = (
    "i=0; while [ $i -lt 100 ]; do (setsid sh -c 'sleep 600 & wait' &) ;"
    " i=$((i+1)); done; echo up; sleep 600"
)


@dataclass
class Line:
    """One line of the table; times in milliseconds unless the name says otherwise."""

    name: str
    median: float
    p95: float
    baseline: str = ""
    ratio: float = 0.0
    promise: str = ""

    def __str__(self) -> str:
        ratio = f"{self.ratio:8.2f} × {self.baseline}" if self.baseline else ""
        return f"{self.name:<44} {self.median:9.2f} {self.p95:9.2f} {ratio:<44} {self.promise}"


def middle(times: list[float]) -> tuple[float, float]:
    """Return median and 95th percentile."""
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)]


def timed(argv: list[str]) -> float:
    """Milliseconds of one whole program."""
    started = time.monotonic()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.monotonic() - started) * 1000


def bwrap_python(folder: str) -> list[str]:
    """The same Python child under bubblewrap with all namespaces, started cold."""
    prefix = os.path.realpath(sys.base_prefix)
    return [
        shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session",
        "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
        "--symlink", "usr/lib64", "/lib64", "--ro-bind-try", prefix, prefix, "--ro-bind",
        os.path.realpath(sys.prefix), os.path.realpath(sys.prefix), "--proc", "/proc", "--dev",
        "/dev", "--tmpfs", "/tmp", "--bind", folder, folder, PYTHON, "-c", _CHILD,
    ]  # fmt: skip


async def clock(work: Callable[[], Awaitable[object]]) -> tuple[float, object]:
    """Milliseconds of one await, and its value."""
    started = time.monotonic()
    value = await work()
    return (time.monotonic() - started) * 1000, value


async def spawns(bench: Bench, folder: str, lines: list[Line]) -> None:
    """Order to greeting, beside bwrap + Python cold and a bare fork, in turn."""
    ours: list[float] = []
    cold: list[float] = []
    has_bwrap = shutil.which("bwrap") is not None
    forks = bare_forks(RUNS)["median"]
    for number in range(RUNS):
        taken, started = await clock(lambda number=number: bench.start(f"s{number}"))
        ours.append(taken)
        process, channel, _plan = started  # type: ignore[misc] # what start returns
        await bench.end(process, channel)
        if has_bwrap:
            cold.append(await anyio.to_thread.run_sync(timed, bwrap_python(folder)))
    forks = (forks + bare_forks(RUNS)["median"]) / 2
    median, p95 = middle(ours)
    if cold:
        base, base95 = middle(cold)
        lines.append(Line("bwrap + python + msgspec, cold", base, base95))
        lines.append(
            Line("agent: order to greeting", median, p95, "bwrap + python", median / base, "≤ 0.15")
        )
    lines.append(Line("bare fork, request to answer", forks, forks))
    lines.append(Line("agent: order to greeting", median, p95, "bare fork", median / forks, "≤ 4"))


async def crowd(bench: Bench, lines: list[Line]) -> None:
    """Many agents alive at once: seconds until all greet, PSS of each, the zygote's memory."""
    for count in ALIVE:
        held: list[Any] = []
        started = time.monotonic()
        async with anyio.create_task_group() as group:

            async def one(number: int, into: list[Any]) -> None:
                into.append(await bench.start(f"n{number}"))

            for number in range(count):
                group.start_soon(one, number, held)
        taken = (time.monotonic() - started) * 1000
        pss = [
            psutil.Process(process.pid).memory_full_info().pss / (1 << 20) for process, _, _ in held
        ]
        lines.append(
            Line(f"{count} agents at once, all ready", taken, taken, promise="100: ≤ 1500")
        )
        median, p95 = middle(pss)
        lines.append(Line(f"PSS of each with {count} alive, MiB", median, p95, promise="≤ 2.5"))
        for process, channel, _plan in held:
            await bench.end(process, channel)
    rss = psutil.Process(bench.zygote.pid).memory_info().rss / (1 << 20)
    lines.append(Line("zygote, resident MiB", rss, rss, promise="≤ 20"))


async def commands(bench: Bench, lines: list[Line]) -> None:
    """One command through the whole path, beside a bare fork and exec of the same program."""
    process, channel, plan = await bench.start("c")
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(RUNS):
        order = bench.command(plan, "/bin/bash", "-c", "true")
        taken, _result = await clock(
            lambda order=order: perform(
                bench.zygote, order, timeout_s=10, shown_bytes=4096, hard_bytes=1 << 20
            )
        )
        ours.append(taken)
        bare.append(await anyio.to_thread.run_sync(timed, ["/bin/bash", "-c", "true"]))
    await bench.end(process, channel)
    base, base95 = middle(bare)
    median, p95 = middle(ours)
    lines.append(Line("fork + exec of bash -c true", base, base95))
    lines.append(
        Line("command bash -c true, to proof of death", median, p95, "fork + exec", median / base)
    )
    lines.append(Line("  more than fork + exec", median - base, p95 - base, promise="≤ 7"))


async def kills(bench: Bench, folder: str, lines: list[Line]) -> None:
    """Order to empty tree with 200 double-forked, setsid descendants; survivors counted."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(5):
        process, channel, plan = await bench.start("k")
        running = await bench.zygote.run_command(bench.command(plan, "/bin/sh", "-c", _TREE))
        while b"up" not in await _read(running.stdout_fd):
            pass
        await anyio.sleep(0.3)
        started = time.monotonic()
        kill(running.pidfd)
        await wait_dead(running.pidfd)
        ours.append((time.monotonic() - started) * 1000)
        for fd in (running.pidfd, running.stdout_fd, running.stderr_fd, running.status_fd):
            os.close(fd)
        await bench.end(process, channel)
        if shutil.which("bwrap"):
            theirs.append(await anyio.to_thread.run_sync(_kill_bwrap, folder))
    median, p95 = middle(ours)
    if theirs:
        base, base95 = middle(theirs)
        lines.append(Line("bwrap: kill of 200 descendants", base, base95))
        lines.append(
            Line("kill of 200 descendants to empty", median, p95, "bwrap", median / base, "≤ 1.5")
        )
    left = sum(
        "sleep 600" in " ".join(one.info["cmdline"] or ())
        for one in psutil.process_iter(["cmdline"])
    )
    lines.append(Line("  survivors", left, left, promise="0"))


async def _read(fd: int) -> bytes:
    await anyio.wait_readable(fd)
    return os.read(fd, 4096)


def _kill_bwrap(folder: str) -> float:
    argv = [*bwrap_python(folder)[:-3], "/bin/sh", "-c", _TREE]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        inner = psutil.Process(process.pid).children()
        started = time.monotonic()
        for one in inner:
            one.kill()
        psutil.wait_procs(inner, timeout=10)
        taken = (time.monotonic() - started) * 1000
        process.kill()
    return taken


def program(lines: list[Line]) -> None:
    """The command line: start-up, and the supervisor's memory in -p."""
    version = [timed([PYTHON, "-m", "rambarde", "--version"]) for _ in range(10)]
    plain = [timed([PYTHON, "-c", "pass"]) for _ in range(10)]
    (median, p95), (base, base95) = middle(version), middle(plain)
    lines.append(Line("python -c pass", base, base95))
    lines.append(Line("rambarde --version", median, p95, "python -c pass", median / base, "< 120"))
    with tempfile.TemporaryDirectory() as folder:
        argv = [PYTHON, "-m", "rambarde", "-p", "map", "--engine", "offline", "--repo", folder]
        runs = []
        for _ in range(5):
            started = time.monotonic()
            with subprocess.Popen(
                argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                _pid, _status, used = os.wait4(process.pid, 0)
                process.returncode = 0
            runs.append((time.monotonic() - started) * 1000)
        median, p95 = middle(runs)
        lines.append(Line("-p with the offline engine, whole run", median, p95))
        rss = used.ru_maxrss / 1024
        lines.append(Line("supervisor in -p, peak resident MiB", rss, rss, promise="< 60"))


def pipes(lines: list[Line]) -> None:
    """The channel in the event loop, beside a bare pipe and a minimal loop."""
    found = channel_bench.measure(trips=2000, floods=200)
    trip, loop = found["channel_trip_us"], found["loop_trip_us"]
    lines.append(Line("bare pipe, round trip of 200 bytes, µs", found["bare_trip_us"], 0))
    lines.append(Line("minimal asyncio loop, round trip, µs", loop, 0))
    lines.append(Line("channel, round trip, µs", trip, 0, "minimal loop", trip / loop, "≤ 20"))
    rate, bare = found["channel_gib_s"], found["bare_gib_s"]
    lines.append(Line("channel, 1 MiB frames, GiB/s", rate, 0, "bare pipe", rate / bare, "≥ 1"))


async def measure(lines: list[Line]) -> None:
    """All that needs a zygote, in one run."""
    with tempfile.TemporaryDirectory() as folder:
        async with bench_over(folder) as bench:
            await spawns(bench, folder, lines)
            await crowd(bench, lines)
            await commands(bench, lines)
            await kills(bench, folder, lines)


def main() -> None:
    """Measure, print, write."""
    lines: list[Line] = []
    anyio.run(measure, lines)
    pipes(lines)
    program(lines)
    print(f"{'':<44} {'median':>9} {'p95':>9} {'ratio to its baseline':<44} promise")
    for line in lines:
        print(line)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump([asdict(line) for line in lines], file, indent=1)


if __name__ == "__main__":
    main()
