"""Budgets: actions, time, silence, and the ceilings of a whole tree; each ends what it bounds."""

from __future__ import annotations

import time

import pytest

from support.delegating import SUBAGENT, agent_file, codes, results, said_by, subagents
from support.limited_program import run_limited
from support.program import Program
from support.scripted import ScriptedEngine, Seen
from support.scripted_answers import Answer, Call


def bash(command: str) -> Call:
    """Return one command."""
    return Call("bash", {"command": command})


def test_a_subagents_actions_cost_the_parent_one_and_have_a_bound_of_their_own(
    program: Program, engine: ScriptedEngine
) -> None:
    """A parent of three actions has subagents of many; one with its own bound stops there."""
    agent_file(program, "short", "sessionMaxActions: 2")
    free = subagents(engine, last="free")
    free.calls(*[bash(f"touch free{number}") for number in range(6)])
    short = subagents(engine, last="short")
    short.calls(*[bash(f"touch short{number}") for number in range(3)], text="on my way")
    subagents(engine).always = Answer(text="six made")
    engine.calls(
        Call("Task", {"agent": "general", "prompt": "free"}),
        Call("Task", {"agent": "short", "prompt": "short"}),
    )
    engine.calls(bash("touch mine"))
    engine.say("done")
    ran = program.ask(engine.url, "--max-actions", "3")
    assert (ran.code, ran.json["status"]) == (0, "done"), ran.out
    ends = {one["agent"]: (one["status"], one["actions"]) for one in ran.json["subagents"]}
    assert ends == {"general": ("done", 6), "short": ("limit:actions", 2)}
    made = sorted(path.name for path in program.workspace.iterdir())
    assert made == sorted([*(f"free{n}" for n in range(6)), "mine", "short0", "short1"])
    free_report, short_report = results(engine.requests[-1])[:2]
    assert "six made" in free_report
    assert "limit:actions" in short_report
    assert "cut off, not done" in short_report
    assert "on my way" in short_report
    assert codes(ran.json) == ["action_budget"]


def test_refused_calls_cost_an_action_each(program: Program, engine: ScriptedEngine) -> None:
    """Unknown tools, bad arguments and refused delegations are paid; the next call is not run."""
    engine.calls(Call("nothing", {}), Call("bash", "{broken"), Call("Task", {"agent": "nobody"}))
    engine.calls(bash("touch never"), bash("touch never2"))
    ran = program.ask(engine.url, "--max-actions", "3")
    assert (ran.code, ran.json["status"]) == (3, "limit:actions")
    assert ran.json["subtype"] == "error_max_turns"
    assert list(program.workspace.iterdir()) == []
    assert codes(ran.json) == [
        "tool_absent", "unknown_agent", "action_budget", "action_budget",
    ]  # fmt: skip
    assert "execution.sessionMaxActions" in ran.json["error"]


def test_each_subagent_has_its_whole_duration(program: Program, engine: ScriptedEngine) -> None:
    """Two of 1.2 s, one after the other, both fit a bound of 2 s, which a third one meets."""
    agent_file(program, "timed", "maxDuration: 2")
    lane = subagents(engine)
    for seconds in ("1.2", "1.2", "30"):
        lane.calls(bash(f"sleep {seconds}"), text=f"slept {seconds}")
        if seconds != "30":
            lane.say("in time")
    for brief in ("a", "b", "c"):
        engine.calls(Call("Task", {"agent": "timed", "prompt": brief}))
    engine.say("done")
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["status"]) == (0, "done"), ran.err
    assert [one["status"] for one in ran.json["subagents"]] == ["done", "done", "limit:duration"]
    assert 2000 <= ran.json["subagents"][2]["duration_ms"] < 6000
    told = results(engine.requests[-1])[-1]
    assert "limit:duration" in told
    assert "slept 30" in told
    assert "No file written" in told


def test_the_trees_requests_end_the_tree(program: Program, engine: ScriptedEngine) -> None:
    """A ceiling on requests holds over all levels together; not one request more is sent."""

    def respond(seen: Seen) -> Answer:
        said = said_by(seen)
        if "Task" in seen.tool_names and said < 3:
            brief = {"agent": "general", "prompt": f"go {said}"}
            return Answer(text=f"thought {said}", calls=(Call("Task", brief),) * 2)
        return Answer(calls=(bash(f"echo {said}"),))

    engine.respond = respond
    ran = program.ask(engine.url, "--set", "treeMaxModelRequests=12")
    assert (ran.code, ran.json["status"]) == (3, "limit:tree_requests"), ran.err
    assert len(engine.requests) == 12
    assert {one["status"] for one in ran.json["subagents"]} <= {"limit:tree_requests"}
    assert "12" in ran.json["error"]
    spent = ran.json["usage"]
    assert spent["model_requests"] + spent["subagent"]["model_requests"] == 12


def test_the_trees_tokens_end_the_tree_and_no_subagent_is_started_then(
    program: Program, engine: ScriptedEngine
) -> None:
    """Tokens of subagents are the root's too; what was found before the end is in the result."""
    child = subagents(engine)
    child.say("found much", input_tokens=50_000, output_tokens=10)
    brief = {"agent": "explore", "prompt": "look"}
    engine.calls(Call("Task", brief), text="I will look.")
    engine.say("never")
    ran = program.ask(engine.url, "--set", "treeMaxTokens=40000")
    assert (ran.code, ran.json["status"]) == (3, "limit:tree_tokens"), ran.err
    assert [one["status"] for one in ran.json["subagents"]] == ["done"]
    assert len(engine.requests) == 2
    assert "found much" in ran.json["result"] or "I will look." in ran.json["result"]
    assert "40000" in ran.json["error"]


@pytest.mark.parametrize("wire", ["", "anthropic:"])
def test_a_silent_stream_is_a_stall_and_keeps_its_text(
    program: Program, engine: ScriptedEngine, wire: str
) -> None:
    """A subagent whose model falls silent ends as limit:stall; its sibling and its words live."""
    child = subagents(engine, last="silent")
    child.say("the answer is 42, and more", chunk_chars=4, stall_after_bytes=1400)
    slow = subagents(engine, last="slow")
    slow.say("slow but alive, word by word", chunk_chars=4, between_s=0.3)
    engine.calls(
        Call("Task", {"agent": "explore", "prompt": "silent"}),
        Call("Task", {"agent": "explore", "prompt": "slow"}),
    )
    engine.say("done")
    ran = run_limited(program, wire + engine.url, {"stall_s": 1})
    assert (ran.code, ran.json["status"]) == (0, "done"), ran.err + ran.out
    assert [one["status"] for one in ran.json["subagents"]] == ["limit:stall", "done"]
    assert ran.json["subagents"][1]["duration_ms"] > 1500
    shown = str(engine.requests[-1].body["messages"])
    assert "the ans" in shown
    assert "limit:stall" in shown
    assert "slow but alive, word by word" in shown
    assert engine.gone.is_set()


def test_a_long_silent_command_is_no_stall(program: Program, engine: ScriptedEngine) -> None:
    """The bound on a model's silence does not count while a tool works without a word."""
    engine.call("bash", command="sleep 2.5; echo compiled")
    engine.say("built")
    ran = run_limited(program, engine.url, {"stall_s": 1})
    assert (ran.code, ran.json["result"]) == (0, "built"), ran.err
    assert "compiled" in engine.requests[1].last


def test_a_command_past_its_time_ends_alone_and_the_next_one_runs(
    program: Program, engine: ScriptedEngine
) -> None:
    """The partial output comes back with the word timeout; the session goes on at once."""
    command = "echo began; (setsid sleep 8675401 &); sleep 8675401"
    engine.calls(Call("bash", {"command": command, "timeout_s": 1}))
    engine.call("bash", command="pgrep -f '[s]leep 8675401' || echo gone")
    engine.say("done")
    began = time.monotonic()
    ran = program.ask(engine.url)
    assert ran.json["status"] == "done"
    assert time.monotonic() - began < 10
    assert "began" in engine.requests[1].last
    assert "[timeout]" in engine.requests[1].last
    assert "gone" in engine.requests[2].last


def test_the_run_itself_ends_at_its_duration_with_what_it_had(
    program: Program, engine: ScriptedEngine
) -> None:
    """`--max-duration` ends the main session and its subagents: status, words, files, exit 3."""
    lane = subagents(engine)
    lane.calls(
        Call("write", {"path": "w.txt", "content": "x"}), bash("sleep 60"), text="child at work"
    )
    engine.calls(Call("Task", {"agent": "general", "prompt": "x"}), text="I delegate.")
    began = time.monotonic()
    ran = program.ask(engine.url, "--max-duration", "2")
    assert time.monotonic() - began < 12
    assert (ran.code, ran.json["status"]) == (3, "limit:duration"), ran.err
    assert ran.json["files_written"] == ["w.txt"]
    assert "child at work" in ran.json["result"]
    (sub,) = ran.json["subagents"]
    assert sub["status"] in ("interrupted", "limit:duration")
    assert SUBAGENT in engine.requests[1].system
    assert "duration" in ran.json["error"]
