"""Probes of containment: the same lines outside, where they work, and inside, where they must not.

A probe is a short bash script with a name. Many are run in one session, each by a bash of its own
without standard input, through the session's own bash tool: as an agent would.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.program import Program, Ran
from support.scripted import ScriptedEngine

SHOWN_CHARS = 400
_LINE = re.compile(r"^(?P<name>[a-z0-9_]+): (?P<code>\d+) ?(?P<text>.*)$")
_PRELUDE = f"""\
probe() {{
  local out code
  out=$(timeout 10 bash -c "$2" 2>&1 </dev/null); code=$?
  out=${{out//$'\\n'/|}}
  printf '%s: %s %s\\n' "$1" "$code" "${{out:0:{SHOWN_CHARS}}}"
}}
"""


@dataclass(frozen=True)
class Outcome:
    """What became of one probe: exit code and both streams, lines joined by a bar."""

    code: int
    text: str

    @property
    def ok(self) -> bool:
        """True when the probe's own line succeeded."""
        return self.code == 0


def probe_script(probes: Mapping[str, str]) -> str:
    """Return one bash script that runs every probe and prints `name: code text` for each."""
    lines = [_PRELUDE]
    for name, script in probes.items():
        quoted = script.replace("'", "'\\''")
        lines.append(f"probe {name} '{quoted}'")
    return "\n".join(lines)


def parse_outcomes(text: str) -> dict[str, Outcome]:
    """Return the outcome of each probe of an output."""
    found = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            found[match["name"]] = Outcome(int(match["code"]), match["text"])
    return found


@dataclass(frozen=True)
class Session:
    """One finished session of a single bash call."""

    ran: Ran
    said: str
    """What the call returned to the model."""

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The probes' outcomes by name."""
        return parse_outcomes(self.said)


def session(
    program: Program,
    engine: ScriptedEngine,
    script: str,
    *,
    agent: str = "general",
    plan: bool = False,
    env: Mapping[str, str] | None = None,
) -> Session:
    """Run a script through a real session's bash tool; the session must end well."""
    start = len(engine.requests)
    engine.call("bash", command=script, timeout_s=60)
    engine.say("done")
    flags = ["--agent", agent, *(["--plan"] if plan else [])]
    ran = program.ask(engine.url, *flags, env=env)
    assert ran.code == 0, ran.err + ran.out
    assert len(engine.requests) == start + 2, ran.err
    return Session(ran, engine.requests[-1].last)


def inside(
    program: Program,
    engine: ScriptedEngine,
    script: str,
    *,
    agent: str = "general",
    plan: bool = False,
) -> str:
    """Return what a script prints in the sandbox, as the model sees it."""
    return session(program, engine, script, agent=agent, plan=plan).said


def probe_inside(
    program: Program,
    engine: ScriptedEngine,
    probes: Mapping[str, str],
    *,
    agent: str = "general",
    plan: bool = False,
) -> dict[str, Outcome]:
    """Return the outcome of every probe in one session."""
    found = session(program, engine, probe_script(probes), agent=agent, plan=plan).outcomes
    assert found.keys() == probes.keys(), (found, engine.requests[-1].last)
    return found


def outside(script: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Return what a script prints on the host, as the tester."""
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    return done.stdout.decode(errors="replace")


def probe_outside(
    cwd: Path, probes: Mapping[str, str], env: Mapping[str, str] | None = None
) -> dict[str, Outcome]:
    """Return the outcome of every probe on the host."""
    return parse_outcomes(outside(probe_script(probes), cwd, env))


def tree_state(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return kind and mode, size, mtime and content of all below a folder, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        if path.is_symlink():
            content = os.fsencode(os.readlink(path))
        stamp = 0 if path.is_dir() else status.st_mtime_ns
        size = 0 if path.is_dir() else status.st_size
        found[str(path.relative_to(folder))] = (status.st_mode, size, stamp, content)
    return found


def make_repository(folder: Path) -> None:
    """Make a git repository with one commit, by a git that reads no settings of the tester."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.txt").write_text("one\n")
    run_git(folder, "init", "-q", "-b", "main")
    run_git(folder, "config", "user.name", "tester")
    run_git(folder, "config", "user.email", "tester@localhost")
    run_git(folder, "add", "a.txt")
    run_git(folder, "commit", "-q", "-m", "first")


def run_git(folder: Path, *arguments: str) -> str:
    """Run git on the host and return its output; it must succeed."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "LANG": "C.UTF-8",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
