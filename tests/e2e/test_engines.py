"""What a whole run makes of its engine: busy, broken, cut, refusing; and of both wires."""

from __future__ import annotations

import json
import threading
import time

import pytest

from support.delegating import SUBAGENT, codes, results, subagents
from support.program import Program
from support.scripted import ScriptedEngine, Seen
from support.scripted_answers import Answer, Call

WIRES = ("", "anthropic:")
KEY = "sk-canary-5f3a9b1c7d2e4f60"


def explore(brief: str) -> Call:
    """Return one delegation to an explorer."""
    return Call("Task", {"agent": "explore", "prompt": brief})


def test_twenty_subagents_wait_together_when_the_engine_asks_for_it(
    program: Program, engine: ScriptedEngine
) -> None:
    """After a 429 with Retry-After nobody asks before its time; then they come spread, and end."""
    lock = threading.Lock()
    times: list[float] = []

    def respond(seen: Seen) -> Answer:
        if SUBAGENT not in seen.system:
            done = any(message["role"] == "tool" for message in seen.messages)
            return Answer(text="Merged.") if done else Answer(calls=briefs)
        with lock:
            times.append(seen.at_s)
            early = seen.at_s - times[0] < 1
        return Answer(status=429, retry_after="2") if early else Answer(text="found", delay_s=0.02)

    briefs = tuple(explore(f"part {number}") for number in range(20))
    engine.respond = respond
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["result"]) == (0, "Merged."), ran.err
    assert [one["status"] for one in ran.json["subagents"]] == ["done"] * 20
    first = [at for at in times if at - times[0] < 1]
    later = sorted(at for at in times if at - times[0] >= 1)
    assert 1 <= len(first) <= 8
    assert len(later) == 20
    assert later[0] - first[-1] >= 1.95
    assert later[-1] - later[0] > 0.3
    assert ran.json["usage"]["subagent"]["rate_wait_ms"] >= 1900 * len(first)
    assert ran.json["usage"]["subagent"]["model_requests"] == 20


def test_an_outage_is_not_multiplied_by_the_subagents(
    program: Program, engine: ScriptedEngine
) -> None:
    """The tree has twenty retries, not each agent; every report says why, the parent goes on."""
    subagents(engine).always = Answer(status=503)
    engine.calls(*[explore(f"part {number}") for number in range(12)])
    engine.say("Nothing found.")
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["result"]) == (0, "Nothing found."), ran.err
    assert [one["status"] for one in ran.json["subagents"]] == ["error:model"] * 12
    assert len(engine.requests) <= 2 + 12 + 20
    assert all("503" in text for text in results(engine.requests[-1]))


@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_that_is_cut_ends_the_run_with_its_words_and_no_half_call(
    program: Program, engine: ScriptedEngine, wire: str
) -> None:
    """The text before the cut is the result, the cause stands apart, the half call is not run."""
    engine.calls(
        Call("write", {"path": "f", "content": "x" * 4000}),
        text="What I know so far.",
        cut_after_bytes=2500,
    )
    ran = program.ask(wire + engine.url)
    assert (ran.code, ran.json["status"]) == (1, "error:model"), ran.err
    assert ran.json["subtype"] == "error_during_execution"
    assert ran.json["result"] == "What I know so far."
    assert engine.address in ran.json["error"]
    assert len(engine.requests) == 1
    assert list(program.workspace.iterdir()) == []
    end = program.journal(ran.json["session_id"])[-1]
    assert (end["kind"], end["data"]["status"]) == ("end", "error:model")


@pytest.mark.parametrize("wire", WIRES)
def test_calls_of_a_reply_at_its_length_limit_are_not_run(
    program: Program, engine: ScriptedEngine, wire: str
) -> None:
    """A reply the engine cut at its length may hold half a call: the run ends and says why."""
    engine.calls(Call("bash", {"command": "touch f"}), text="And then", finish="length")
    ran = program.ask(wire + engine.url)
    assert (ran.code, ran.json["status"]) == (3, "limit:length"), ran.err
    assert ran.json["result"] == "And then"
    assert "length" in ran.json["error"]
    assert list(program.workspace.iterdir()) == []


@pytest.mark.parametrize("wire", WIRES)
def test_both_wires_carry_a_whole_job(program: Program, engine: ScriptedEngine, wire: str) -> None:
    """Tools, a delegation, counts and a key: the same job ends the same way on either wire."""
    (program.workspace / "a.txt").write_text("one\n")
    child = subagents(engine)
    child.calls(
        Call("grep", {"pattern": "one"}), reasoning="PRIVATE", cached_tokens=4, text="Looking."
    )
    child.say("a.txt:1 has it", reasoning="PRIVATE")
    engine.calls(
        Call("read", {"path": "a.txt"}), Call("bash", {"command": "echo two >> a.txt"}),
        explore("find one"), text="Working.", reasoning="hm",
    )  # fmt: skip
    engine.calls(Call("edit", {"path": "a.txt", "old_string": "one", "new_string": "1"}))
    engine.calls(Call("read", {"path": "a.txt"}))
    engine.calls(Call("edit", {"path": "a.txt", "old_string": "one", "new_string": "1"}))
    engine.say("Done.")
    name = "ANTHROPIC_API_KEY" if wire else "OPENAI_API_KEY"
    ran = program.ask(wire + engine.url, env={name: KEY})
    assert (ran.code, ran.json["result"]) == (0, "Done."), ran.err
    assert (program.workspace / "a.txt").read_text() == "1\ntwo\n"
    assert ran.json["usage"] == {
        "input_tokens": 50, "output_tokens": 25, "model_requests": 5, "rate_wait_ms": 0,
        "subagent": {
            "input_tokens": 20, "output_tokens": 10, "model_requests": 2, "rate_wait_ms": 0,
        },
    }  # fmt: skip
    mine = [seen for seen in engine.requests if SUBAGENT not in seen.system]
    assert {seen.wire for seen in engine.requests} == {"anthropic" if wire else "openai"}
    assert all(KEY in str(seen.headers) for seen in engine.requests)
    assert KEY not in json.dumps([dict(seen.body) for seen in engine.requests])
    assert KEY not in ran.out + ran.err + "".join(path.read_text() for path in program.sessions())
    assert "a.txt:1 has it" in str(mine[1].body)
    assert "PRIVATE" not in str([seen.body for seen in mine])
    told = str(mine[2].body["messages"])
    assert "changed" in told, "the command wrote what was read before"


@pytest.mark.parametrize("status", [400, 401, 404])
def test_an_engine_that_refuses_ends_the_run_at_once(
    program: Program, engine: ScriptedEngine, status: int
) -> None:
    """What will not get better is asked once: exit 1, the endpoint, the status, and what to do."""
    engine.fail(status, error={"error": {"message": f"no, {KEY}", "type": "x"}})
    began = time.monotonic()
    ran = program.ask(engine.url, env={"OPENAI_API_KEY": KEY})
    assert time.monotonic() - began < 5
    assert (ran.code, ran.json["status"]) == (1, "error:model")
    assert len(engine.requests) == 1
    assert str(status) in ran.json["error"]
    assert engine.address in ran.json["error"]
    assert KEY not in ran.out + ran.err


def test_bad_calls_are_told_and_can_be_mended(program: Program, engine: ScriptedEngine) -> None:
    """A call that cannot be read is an answer for the model, not an end: the next one works."""
    engine.calls(
        Call("bash", '{"command": "true"'), Call("Bash", {"command": "true"}),
        Call("bash", {"cmd": 1}), Call("read", {"path": "a", "offset": -5}),
    )  # fmt: skip
    engine.call("bash", command="echo mended")
    engine.say("ok")
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["status"]) == (0, "done")
    told = results(engine.requests[1])
    assert len(told) == 4
    assert all("[error]" in text for text in told)
    assert "bash" in told[1]
    assert set(codes(ran.json)) <= {"tool_absent"}
    assert "mended" in engine.requests[2].last
