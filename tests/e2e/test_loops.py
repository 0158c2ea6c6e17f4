"""Loop rules in real runs: what is stopped, what is progress, and that no file turns them off."""

from __future__ import annotations

from support.delegating import agent_file, codes, results, said_by, subagents
from support.program import Program
from support.scripted import ScriptedEngine, Seen
from support.scripted_answers import Answer, Call


def bash(command: str) -> Call:
    """Return one command."""
    return Call("bash", {"command": command})


def notices(engine: ScriptedEngine, word: str) -> list[int]:
    """Return how many replies were made before each request whose last result is a notice."""
    seen = [one for one in engine.requests if word in str(one.body["messages"])]
    return [said_by(one) for one in seen if "[notice]" in one.last]


def test_calls_that_come_round_are_a_cycle_at_any_period(
    program: Program, engine: ScriptedEngine
) -> None:
    """Periods 2, 3 and 5: told at the fifth round, stopped a round later; each run ends alone."""

    def respond(seen: Seen) -> Answer:
        said = said_by(seen)
        brief = str(next(m["content"] for m in seen.messages if m["role"] == "user"))
        if brief.startswith("period"):
            number = said % int(brief.split("-")[1])
            return Answer(text=f"thought {said}", calls=(bash(f"echo {number}"),))
        if said == 0:
            briefs = [{"agent": "explore", "prompt": f"period-{n}-"} for n in (2, 3, 5)]
            return Answer(calls=tuple(Call("Task", brief) for brief in briefs))
        return Answer(text="done")

    engine.respond = respond
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["status"]) == (0, "done"), ran.err
    assert [one["status"] for one in ran.json["subagents"]] == ["loop:cycle"] * 3
    assert [one["actions"] for one in ran.json["subagents"]] == [12, 18, 30]
    for period in (2, 3, 5):
        assert notices(engine, f"period-{period}-") == [5 * period]
    for told in results(engine.requests[-1]):
        assert "[loop]" in told
        assert "loop:cycle" in told
        assert "cut off, not done" in told


def test_the_same_call_with_another_result_is_progress(
    program: Program, engine: ScriptedEngine
) -> None:
    """Polling that moves, and results that differ only where they are cut for the model."""
    step = "n=$(cat {0} 2>/dev/null || echo 0); echo $((n+1)) > {0}; "
    poll = step.format("p") + "echo $n"
    long = step.format("l") + "head -c 40000 /dev/zero | tr '\\0' a; echo; echo $n; "
    long += "head -c 40000 /dev/zero | tr '\\0' b"
    for command in (long, poll):
        engine.answers.extend([Answer(calls=(bash(command),))] * 10)
    engine.say("ready")
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["status"]) == (0, "done"), ran.err
    assert (program.workspace / "p").read_text() == (program.workspace / "l").read_text() == "10\n"
    shown = results(engine.requests[-1])
    assert len(set(shown[:10])) == 1, "the model sees the same cut text each time"
    assert not any("[notice]" in text for text in shown)


def test_calls_that_cannot_be_read_end_the_run(program: Program, engine: ScriptedEngine) -> None:
    """Three turns of broken JSON are `loop:format`; broken calls of one turn count once."""
    for number in range(9):
        engine.calls(Call("bash", '{"command": ' + "x" * number), Call("read", f"[{number}]"))
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["status"]) == (3, "loop:format"), ran.err
    assert len(engine.requests) == 3
    assert codes(ran.json) == [], "nobody denied anything"


def test_a_refused_delegation_tried_again_is_told_and_stopped(
    program: Program, engine: ScriptedEngine
) -> None:
    """Refusals of one turn are no loop; turn after turn they are, whatever the brief says."""
    explore = [Call("Task", {"agent": "explore", "prompt": f"brief {n}"}) for n in range(12)]
    subagents(engine).always = Answer(text="found")
    engine.calls(*explore[:8])
    for number in range(8, 12):
        engine.calls(explore[number])
    ran = program.ask(engine.url, "--set", "subagentMaxPerSession=1")
    assert (ran.code, ran.json["status"]) == (3, "loop:error"), ran.err
    assert len(ran.json["subagents"]) == 1
    assert codes(ran.json) == ["cap_session"] * 10
    mine = [seen for seen in engine.requests if "Task" in seen.tool_names]
    assert len(mine) == 4
    told = [number for number, seen in enumerate(mine) if "[notice]" in seen.last]
    assert told == [3]
    assert "subagentMaxPerSession = 1" in ran.json["error"]


def test_the_report_of_a_loop_holds_the_error_once(
    program: Program, engine: ScriptedEngine
) -> None:
    """A subagent that fails over and over ends alone; its parent reads what failed, once."""
    agent_file(program, "stubborn", "sessionMaxActions: 1000\nmaxDuration: 1000")
    lane = subagents(engine)
    lane.always = Answer(text="Once more.", calls=(bash("echo broken pipe at 7; exit 9"),))
    engine.calls(Call("Task", {"agent": "stubborn", "prompt": "x"}))
    engine.say("I see.")
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["status"]) == (0, "done")
    (sub,) = ran.json["subagents"]
    assert (sub["status"], sub["actions"]) == ("loop:error", 4)
    (report,) = results(engine.requests[-1])
    assert report.count("broken pipe at 7") == 1
    assert "loop:error" in report
    assert "Once more." in report
    assert report.splitlines()[-1] == sub["session_id"]


def test_no_setting_turns_a_rule_off(program: Program, engine: ScriptedEngine) -> None:
    """Thresholds move within bounds; zero, one and words are refused before anything starts."""
    for value in ("0", "1", "off", "81"):
        ran = program.ask(engine.url, "--set", f"loopRepeatStop={value}")
        assert ran.code == 2, (value, ran.err)
        assert "loopRepeatStop" in ran.err
    assert engine.requests == []
    agent_file(program, "free", "loopDetection: false")
    ran = program.ask(engine.url, "--agent", "free")
    assert ran.code == 2, ran.err
    assert "loopDetection" in ran.err
