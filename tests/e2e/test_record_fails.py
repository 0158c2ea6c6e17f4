"""A record that cannot be kept ends the run it belongs to, and is told as that."""

from __future__ import annotations

import json
import resource
from typing import Any

from support.program import Program
from support.scripted import ScriptedEngine

_MOST_BYTES = 96 << 10


def fill(engine: Any) -> None:
    """Have an agent of this engine, or of a lane of it, make more results than the record holds."""
    for number in range(30):
        engine.call("bash", command=f"head -c 9000 /dev/zero | tr '\\0' {'ab'[number % 2]}")


def ask_with_small_disk(program: Program, engine: ScriptedEngine) -> Any:
    """Run with files that cannot grow past _MOST_BYTES; the program's own end comes back."""

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))

    arguments = ["-p", "go", "--engine", engine.url, "--model", "m", "--output-format", "json"]
    process = program.start(*arguments, preexec_fn=small)
    out, err = process.communicate(timeout=50)
    return process.returncode, out.decode(), err.decode()


def test_a_full_disk_ends_the_run_as_an_error_of_the_record(
    program: Program, engine: ScriptedEngine
) -> None:
    """The status is error:record, the exit code 1, and the result still comes out."""
    fill(engine)
    engine.say("never")
    code, out, err = ask_with_small_disk(program, engine)
    assert code == 1, err
    result = json.loads(out)
    assert result["status"] == "error:record"
    assert "cannot write" in result["error"]
    assert "Traceback" not in err


def test_a_subagent_without_a_record_ends_alone(program: Program, engine: ScriptedEngine) -> None:
    """Its parent is told so and goes on; nothing of it keeps running."""
    child = engine.when(no_tool="Task")
    fill(child)
    engine.call("Task", agent="explore", prompt="much")
    engine.say("Told.")
    code, out, err = ask_with_small_disk(program, engine)
    result = json.loads(out)
    assert result["subagents"][0]["status"] == "error:record", err
    assert result["result"] == "Told."
    assert code == 0
