"""What tests of delegation share: lanes of subagents, agent files, results as a model got them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from support.program import Program
from support.scripted import Lane, ScriptedEngine, Seen

SUBAGENT = "Nobody can answer questions: choose"
"""Words that only the system prompt of a subagent has."""


def subagents(engine: ScriptedEngine, **more: str) -> Lane:
    """Return a lane that only subagents' requests meet."""
    return engine.when(system=SUBAGENT, **more)


def agent_file(program: Program, name: str, head: str = "", prompt: str = "") -> None:
    """Write one of the person's agents; `head` is more lines of its front matter."""
    folder = program.config / "agents"
    folder.mkdir(exist_ok=True)
    text = f"---\ndescription: an agent\nmode: all\n{head}\n---\n{prompt or name}\n"
    (folder / f"{name}.md").write_text(text)


def results(seen: Seen) -> list[str]:
    """Return the tool results a request holds, oldest first."""
    return [str(m["content"]) for m in seen.messages if m["role"] == "tool"]


def said_by(seen: Seen) -> int:
    """Return how many replies of the model a request holds."""
    return sum(message["role"] == "assistant" for message in seen.messages)


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """Wait until a condition gives something true and return that, or fail."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)
    return found


def alive_below(pid: int, word: str) -> list[int]:
    """Return the descendants of a process whose command line begins with a word."""
    found = []
    for one in psutil.Process(pid).children(recursive=True):
        try:
            if " ".join(one.cmdline()).startswith(word):
                found.append(one.pid)
        except psutil.Error:
            continue
    return found


def options(program: Program, engine: ScriptedEngine) -> list[str]:
    """Return the arguments of a run that is started and not waited for."""
    return [
        "-p", "do it", "--engine", engine.url, "--model", "scripted",
        "--repo", str(program.workspace), "--output-format", "json",
    ]  # fmt: skip


def codes(result: Mapping[str, Any]) -> list[str]:
    """Return the code of each refused call of a result."""
    return [one["code"] for one in result["permission_denials"]]
