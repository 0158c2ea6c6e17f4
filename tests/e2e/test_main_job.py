"""The main job from outside: a prompt, tools in a sandbox, a delegation, a report, a record."""

from __future__ import annotations

from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Call


def test_an_agent_reads_edits_and_runs_and_the_result_says_so(
    program: Program, engine: ScriptedEngine
) -> None:
    """Read, edit and bash work on the real tree; the JSON result is the supervisor's account."""
    (program.workspace / "a.txt").write_text("one\ntwo\n")
    engine.call("read", path="a.txt")
    engine.call("edit", path="a.txt", old_string="two", new_string="three")
    engine.call("bash", command="cat a.txt; id -u; pwd")
    engine.say("All done.")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    assert ran.json["status"] == "done"
    assert ran.json["result"] == "All done."
    assert ran.json["files_written"] == ["a.txt"]
    assert (program.workspace / "a.txt").read_text() == "one\nthree\n"
    assert "three" in engine.requests[3].last
    assert str(program.workspace) in engine.requests[3].last
    assert ran.json["num_turns"] == 4


def test_three_subagents_of_one_turn_run_and_report_in_call_order(
    program: Program, engine: ScriptedEngine
) -> None:
    """Parallel delegations come back in the order of the calls, each with its session's id."""
    (program.workspace / "b.txt").write_text("needle\n")
    child = engine.when(no_tool="Task")
    for number in range(3):
        child.say(f"finding {number}")
    engine.calls(*[Call("Task", {"agent": "explore", "prompt": f"brief-{n}"}) for n in range(3)])
    engine.say("Merged.")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    assert [one["status"] for one in ran.json["subagents"]] == ["done"] * 3
    assert [one["depth"] for one in ran.json["subagents"]] == [1] * 3
    results = [m for m in engine.requests[-1].messages if m["role"] == "tool"]
    assert len(results) == 3
    for result, sub in zip(results, ran.json["subagents"], strict=True):
        assert sub["session_id"] in str(result["content"])
    assert program.journal(ran.json["session_id"])[-1]["kind"] == "end"


def test_a_read_only_subagent_cannot_write_by_any_route(
    program: Program, engine: ScriptedEngine
) -> None:
    """The kernel refuses the shell of an explore subagent every write to the workspace."""
    child = engine.when(no_tool="Task")
    child.call("bash", command="echo x > f; touch g; echo rc=$?; ls")
    child.say("tried")
    engine.call("Task", agent="explore", prompt="look")
    engine.say("ok")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    assert list(program.workspace.iterdir()) == []
    said = [seen.last for seen in engine.requests if "Read-only file system" in seen.last]
    assert said


def test_a_turn_is_a_reply_and_a_request_without_one_is_none(program: Program) -> None:
    """An engine that cannot be reached leaves a run without a turn, and says what to check."""
    ran = program.ask("http://127.0.0.1:9/v1")
    assert (ran.code, ran.json["status"], ran.json["num_turns"]) == (1, "error:model", 0)
    assert "127.0.0.1:9" in ran.json["error"]
