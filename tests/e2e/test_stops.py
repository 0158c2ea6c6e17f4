"""Every way a run is stopped: limits, loops, signals; each with an honest status."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import psutil
import pytest

from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Answer, Call


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until a condition holds, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.05)


def running(mark: str) -> bool:
    """Tell whether a process with this word among its arguments lives."""
    return any(mark in (one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))


def test_five_actions_are_five_even_when_six_are_asked_at_once(
    program: Program, engine: ScriptedEngine
) -> None:
    """The sixth call is never started, the five before it are done, and no request follows."""
    engine.calls(*[Call("bash", {"command": f"touch f{number}"}) for number in range(6)])
    ran = program.ask(engine.url, "--max-actions", "5")
    assert (ran.code, ran.json["status"], ran.json["subtype"]) == (
        3,
        "limit:actions",
        "error_max_turns",
    )
    made = sorted(path.name for path in program.workspace.iterdir())
    assert made == ["f0", "f1", "f2", "f3", "f4"]
    assert len(engine.requests) == 1
    assert ran.json["permission_denials"][0]["code"] == "action_budget"


def test_the_same_call_with_the_same_result_is_told_twice_and_stopped(
    program: Program, engine: ScriptedEngine
) -> None:
    """Notice at 3 and 5, stop at 8; spelling, key order and reworded thoughts hide nothing."""
    (program.workspace / "a").write_text("x\n")
    spellings = ['{"path": "a", "offset": 1}', '{"offset": 1, "path": "./a"}']
    for number in range(8):
        text = f"Thought number {number}."
        engine.calls(Call("read", spellings[number % 2]), text=text)
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["status"]) == (3, "loop:repeat")
    assert len(engine.requests) == 8
    told = [number for number, seen in enumerate(engine.requests) if "[notice]" in seen.last]
    assert told == [3, 5]
    assert 'read {"path":"a"}' in engine.requests[5].last


def test_the_same_failure_is_told_and_stopped_at_four(
    program: Program, engine: ScriptedEngine
) -> None:
    """A call that fails in the same way: notice at 3, stop at 4, with an empty configuration."""
    engine.always = Answer(calls=[Call("bash", {"command": "ls /nowhere"})])
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["status"]) == (3, "loop:error")
    assert len(engine.requests) == 4


def test_a_run_at_its_wall_clock_tells_what_it_wrote_and_said(
    program: Program, engine: ScriptedEngine
) -> None:
    """A subagent past its duration ends alone, with its files, its words and the limit's name."""
    agents = program.config / "agents"
    agents.mkdir()
    (agents / "slow.md").write_text(
        "---\ndescription: slow\nmode: subagent\nmaxDuration: 2\n---\nBe slow.\n"
    )
    child = engine.when(no_tool="Task", system="Be slow")
    slow = engine.when(system="Be slow")
    for lane in (child, slow):
        lane.calls(Call("write", {"path": "w.txt", "content": "x"}), text="I have written.")
        lane.call("bash", command="sleep 8675309")
    engine.call("Task", agent="slow", prompt="work")
    engine.say("over")
    ran = program.ask(engine.url)
    assert ran.json["status"] == "done", ran.err
    (sub,) = ran.json["subagents"]
    assert (sub["status"], sub["files_written"]) == ("limit:duration", ["w.txt"])
    assert 2000 <= sub["duration_ms"] < 7000
    assert "limit:duration" in engine.requests[-1].last
    assert "I have written." in engine.requests[-1].last
    assert not running("8675309")


def test_an_interrupt_brings_back_partial_reports_of_all_subagents(
    program: Program, engine: ScriptedEngine
) -> None:
    """SIGINT stops the tree; each subagent is marked and its words are in the result."""
    for brief in ("one", "two"):
        lane = engine.when(no_tool="Task", last=brief)
        lane.calls(Call("bash", {"command": "sleep 8675310"}), text=f"words of {brief}")
    engine.calls(*[Call("Task", {"agent": "explore", "prompt": b}) for b in ("one", "two")])
    process = program.start(
        "-p", "x", "--engine", engine.url, "--model", "m", "--output-format", "json"
    )
    wait_for(lambda: len(engine.requests) == 3 and running("8675310"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    from json import loads

    result = loads(out)
    assert (process.returncode, result["status"]) == (130, "interrupted"), err
    assert [one["status"] for one in result["subagents"]] == ["interrupted", "interrupted"]
    assert "words of one" in result["result"]
    assert "words of two" in result["result"]
    assert not running("8675310")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_leave_the_same_clean_state(
    program: Program, engine: ScriptedEngine, number: signal.Signals
) -> None:
    """SIGTERM and SIGHUP end the tree, write the end on the record, and show in the exit code."""
    engine.call("bash", command="setsid sleep 8675311 & sleep 8675311")
    process = program.start("-p", "x", "--engine", engine.url, "--model", "m")
    wait_for(lambda: running("8675311"))
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    (journal,) = program.sessions()
    assert program.journal(journal.stem)[-1]["kind"] == "end"
    assert not running("8675311")


def test_a_killed_supervisor_leaves_nothing_and_its_session_is_lost_once(
    program: Program, engine: ScriptedEngine
) -> None:
    """After SIGKILL no descendant lives; the record is whole; the next start says `lost` once."""
    engine.call("bash", command="(setsid nohup sleep 8675312 &) ; sleep 8675312")
    process = program.start("-p", "x", "--engine", engine.url, "--model", "m")
    wait_for(lambda: running("8675312"))
    process.kill()
    process.communicate()
    wait_for(lambda: not running("8675312"), seconds=2)
    (journal,) = program.sessions()
    records = program.journal(journal.stem)
    assert [one["n"] for one in records] == list(range(len(records)))
    for _ in range(2):
        engine.say("ok")
    first, second = program.ask(engine.url), program.ask(engine.url)
    assert sum("lost" in notice for notice in first.json["notices"]) == 1
    assert second.json["notices"] == []
    assert program.journal(journal.stem)[-1]["data"]["status"] == "lost"


def test_background_leftovers_die_with_their_command(
    program: Program, engine: ScriptedEngine
) -> None:
    """A daemon that holds the pipe does not hold the call, and is dead when the call returns."""
    engine.call("bash", command="setsid nohup sleep 8675313 & (sleep 8675313 &) ; echo done")
    engine.say("ok")
    ran = program.ask(engine.url)
    assert ran.json["status"] == "done"
    assert "done" in engine.requests[1].last
    assert not running("8675313")
