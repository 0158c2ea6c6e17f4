"""The whole program, with agents that run support/hostile_loop.py: `python hostile_program.py …`.

Nothing else differs: cli, policies, zygote, sandbox and broker are the shipped ones.
"""

from __future__ import annotations

import functools
import os
import sys

from rambarde import cli
from rambarde.children.zygote import Zygote

Zygote.start = functools.partial(  # type: ignore[method-assign]
    Zygote.start,
    entry="hostile_loop",
    extra_places={"hostile_loop": os.path.dirname(os.path.abspath(__file__))},
)

if __name__ == "__main__":
    code = cli.run(sys.argv[1:])
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    print(f"peak {peak} kB, {len(os.listdir('/proc/self/fd'))} descriptors", file=sys.stderr)
    sys.exit(code)
