"""Births of agents and commands, beside bare forks of a process like the zygote.

Run: python bench/spawn.py [--quick]. Prints one JSON object, milliseconds. Every number stands next
to the cost of a request answered by a plain fork of an interpreter with the same modules, because
absolute times say little about a machine one does not know. Promise: a greeting costs at most
four such forks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import anyio

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests")
)

from support import plans, spawns

_BARE = """
import gc, os, sys
sys.path += sys.argv[1:]
import rambarde_child.zygote, rambarde_child.turn
gc.disable(); gc.collect(); gc.freeze()
os.write(1, b"r")
while os.read(0, 1):
    if os.fork() == 0:
        os.write(1, b"x")
        os._exit(0)
    os.wait()
"""


def _summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median": round(statistics.median(ordered), 2),
        "p10": round(ordered[len(ordered) // 10], 2),
        "p95": round(ordered[len(ordered) * 95 // 100], 2),
    }


def bare_forks(count: int) -> dict[str, float]:
    """Time from a request to the first word of a child that is forked and nothing else."""
    import msgspec

    places = [os.path.dirname(os.path.dirname(msgspec.__file__))]
    places += [path for path in sys.path if path.endswith("/child")]
    times = []
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _BARE, *places],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.read(1)
        for _ in range(count):
            started = time.monotonic()
            process.stdin.write(b"x")
            process.stdout.read(1)
            times.append((time.monotonic() - started) * 1000)
            time.sleep(0.01)
        process.stdin.close()
    return _summary(times)


async def births(workspace: str, count: int) -> dict[str, dict[str, float]]:
    """Time agents from order to greeting, and `true` from order to status and to proof of death."""
    hello: list[float] = []
    status: list[float] = []
    dead: list[float] = []
    async with spawns.zygote_for(plans.setup(workspace)) as zygote:
        for number in range(count):
            plan = plans.agent(workspace, f"a{number}")
            started = time.monotonic()
            agent = await spawns.start_agent(zygote, plan)
            hello.append((time.monotonic() - started) * 1000)
            assert agent.hello
            await agent.end()
            await anyio.sleep(0.02)
        async with spawns.agent_for(zygote, plans.agent(workspace, "host")):
            for _ in range(count):
                plan_true = plans.command(workspace, ["/bin/true"], "host")
                started = time.monotonic()
                process = await zygote.run_command(plan_true)
                await anyio.wait_readable(process.status_fd)
                status.append((time.monotonic() - started) * 1000)
                await anyio.wait_readable(process.pidfd)
                dead.append((time.monotonic() - started) * 1000)
                for fd in (process.pidfd, process.stdout_fd, process.stderr_fd, process.status_fd):
                    os.close(fd)
                await anyio.sleep(0.01)
    return {
        "agent_greets": _summary(hello),
        "true_status": _summary(status),
        "true_dead": _summary(dead),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    count = 20 if parser.parse_args().quick else 80
    with tempfile.TemporaryDirectory() as workspace:
        before = bare_forks(count)
        found = anyio.run(births, workspace, count)
        after = bare_forks(count)
    bare = (before["median"] + after["median"]) / 2
    ratios = {name: round(value["median"] / bare, 2) for name, value in found.items()}
    print(json.dumps({"bare_fork": [before, after], **found, "in_bare_forks": ratios}, indent=1))


if __name__ == "__main__":
    main()
