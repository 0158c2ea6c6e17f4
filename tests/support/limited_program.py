"""The whole program under limits of a test's choice: `python limited_program.py POLICIES …`.

POLICIES is a copy of the shipped policies with other numbers in limits.toml; all else is shipped.
At the end the supervisor's own peak of memory and its open descriptors are told on standard error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from support.program import Program, Ran


def limited_policies(base: Path, limits: Mapping[str, int]) -> Path:
    """Return a copy of the shipped policies with other limits, in the base unit of each."""
    from rambarde.policy.source import shipped_folder

    made = base / "policies"
    shutil.copytree(shipped_folder(), made)
    declared = tomllib.loads((made / "limits.toml").read_text())
    lines = []
    for name, one in declared.items():
        if name in limits:
            small = "B" if name.endswith("_bytes") else one["unit"]
            one = {**one, "value": limits[name], "unit": small}
        lines.append(f"[{name}]")
        lines += [f"{key} = {_toml(value)}" for key, value in one.items()]
    (made / "limits.toml").write_text("\n".join(lines) + "\n")
    return made


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else f'"{value}"'


def run_limited(
    program: Program, url: str, limits: Mapping[str, int], *arguments: str, prompt: str = "go"
) -> Ran:
    """Run one prompt under these limits, JSON result."""
    policies = program.base / "policies"
    if not policies.exists():
        limited_policies(program.base, limits)
    command = [sys.executable, __file__, str(policies), "-p", prompt, "--engine", url]
    done = subprocess.run(
        [*command, "--model", "m", "--output-format", "json", *arguments],
        cwd=program.workspace,
        env=program.env({"PYTHONPATH": os.pathsep.join(sys.path)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=55,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


if __name__ == "__main__":
    from rambarde.policy import source

    folder = sys.argv[1]
    source.shipped_folder = lambda: folder
    from rambarde import cli

    code = cli.run(sys.argv[2:])
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    print(f"peak {peak} kB, {len(os.listdir('/proc/self/fd'))} descriptors", file=sys.stderr)
    sys.exit(code)
