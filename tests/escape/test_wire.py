"""A sealed child that breaks the protocol is ended, alone, and is told as what it was."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support import hostile_loop
from support.program import Program, Ran
from support.scripted import ScriptedEngine
from support.scripted_answers import Answer, Call

PROGRAM = Path(hostile_loop.__file__).with_name("hostile_program.py")
NO_BREACH = {"forge": "done", "linger": "done", "fault": "error:child", "crash": "error:child"}
ENDS = {"close": "error:child", "leave": "error:child", "traceback": "error:child"}
BROKERS = ("brokers_result", "perform_twice")
EARLY = [name for name in hostile_loop.PLAYS if name not in NO_BREACH | ENDS]
_MOST_AT_ONCE = 17


def run(program: Program, engine: ScriptedEngine, *plays: str) -> Ran:
    """Give the plays by so many subagents at once, beside an honest one that takes a second."""
    for play in plays:
        lane = engine.when(system="explore", last=f"play-{play};")
        if play in BROKERS:
            lane.call("bash", command=play)
        else:
            lane.call("read", path=play)
        engine.when(system="explore").always = None
    engine.when(system="explore", last="forged").always = Answer(text="told")
    honest = engine.when(no_tool="Task", last="honest")
    honest.call("bash", command="sleep 0.5; echo on > honest")
    engine.when(no_tool="Task").say("honest end")
    briefs = [Call("Task", {"agent": "explore", "prompt": f"play-{play};"}) for play in plays]
    engine.calls(Call("Task", {"agent": "general", "prompt": "honest"}), *briefs)
    engine.say("Merged.")
    command = [sys.executable, str(PROGRAM), "-p", "go", "--engine", engine.url, "--model", "m"]
    command += ["--output-format", "json", "--set", "execution.subagentMaxDepth=1"]
    done = subprocess.run(
        command,
        cwd=program.workspace,
        env=program.env({"PYTHONPATH": ":".join(sys.path)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=50,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def ends(program: Program, ran: Ran) -> dict[str, Any]:
    """The end of each subagent by its brief's play."""
    found = {}
    for sub in ran.json["subagents"]:
        records = program.journal(sub["session_id"])
        text = json.dumps(records)
        play = re.search(r"play-(\w+);", text)
        found[play[1] if play else "honest"] = sub
    return found


def check_others_lived(program: Program, ran: Ran, found: dict[str, Any], count: int) -> None:
    """The parent, the honest sibling and the supervisor are as if nothing had happened."""
    assert ran.code == 0, ran.err + ran.out
    assert ran.json["result"] == "Merged."
    assert len(found) == count + 1
    assert found["honest"]["status"] == "done"
    assert (program.workspace / "honest").read_text() == "on\n"
    assert "Traceback" not in ran.err
    assert "\x1b" not in ran.out + ran.err
    peak = re.search(r"peak (\d+) kB, (\d+) descriptors", ran.err)
    assert peak
    assert int(peak[1]) < 200_000
    assert int(peak[2]) < 12, ran.err


@pytest.mark.parametrize("half", [EARLY[:_MOST_AT_ONCE], EARLY[_MOST_AT_ONCE:]])
def test_a_breach_ends_its_child_and_nothing_else(
    program: Program, engine: ScriptedEngine, half: list[str]
) -> None:
    """IPC-01, 02, 05, 06, 14: each play from a sealed process is error:protocol, alone."""
    started = time.monotonic()
    ran = run(program, engine, *half)
    assert time.monotonic() - started < 15
    found = ends(program, ran)
    check_others_lived(program, ran, found, len(half))
    statuses = {name: found[name]["status"] for name in half}
    assert statuses == dict.fromkeys(half, "error:protocol")


def test_an_end_without_a_word_is_told_as_one(program: Program, engine: ScriptedEngine) -> None:
    """SIG-04, IPC-12: closed pipes and crashes are error:child; to forge or to stay is neither."""
    wanted = NO_BREACH | ENDS
    ran = run(program, engine, *wanted)
    found = ends(program, ran)
    check_others_lived(program, ran, found, len(wanted))
    assert {name: found[name]["status"] for name in wanted} == wanted
    journal = program.journal(found["forge"]["session_id"])
    assert journal[-1]["kind"] == "end"
    assert "t-forged" not in json.dumps(ran.json)
    assert found["linger"]["proven_dead"]
    assert 5000 <= found["linger"]["duration_ms"] < 12_000
    assert not any("x" * 5000 in text for text in (ran.out, ran.err))


def test_the_plays_are_what_an_honest_child_never_does() -> None:
    """Every play is run by one of the tests above."""
    assert {*EARLY, *NO_BREACH, *ENDS} == hostile_loop.PLAYS.keys()
    assert len(EARLY) <= 2 * _MOST_AT_ONCE
