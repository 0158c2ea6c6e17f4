"""How runs end: the shape of the result, exit codes, interrupts at any moment, nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from support.delegating import (
    alive_below,
    codes,
    options,
    results,
    subagents,
    wait_for,
)
from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Answer, Call

DOCS = Path(__file__).parents[2] / "docs" / "json.md"


def documented(heading: str) -> set[str]:
    """Return the names that a row of docs/json.md lists in its braces; all rows' for ''."""
    text = DOCS.read_text()
    if not heading:
        table = text[: text.index("`stream-json`")]
        return set(
            re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
        )
    row = re.search(rf"^\| `{heading}` \|(.*)\|$", text, re.MULTILINE)
    assert row
    return set(re.findall(r"\w+", row[1][row[1].index("{") : row[1].index("}")]))


def test_the_result_has_the_documented_shape_in_every_ending(
    program: Program, engine: ScriptedEngine
) -> None:
    """Done, stopped and failed runs print one object with exactly the fields of docs/json.md."""
    brief = {"agent": "explore", "prompt": "x"}
    subagents(engine).always = Answer(text="found")
    engine.calls(Call("Task", brief), Call("nothing", {}), Call("write", {"path": "w"}))
    engine.calls(Call("write", {"path": "w", "content": "x"}))
    engine.say("done")
    done = program.ask(engine.url, "--fail-on-denied")
    engine.calls(*[Call("bash", {"command": "true"})] * 2)
    stopped = program.ask(engine.url, "--max-actions", "1", "--set", "sessionMaxActions=9")
    engine.fail(400)
    failed = program.ask(engine.url)
    endings = {
        ran.json["status"]: (ran.code, ran.json["subtype"]) for ran in (done, stopped, failed)
    }
    assert endings == {
        "done": (4, "success"),
        "limit:actions": (3, "error_max_turns"),
        "error:model": (1, "error_during_execution"),
    }
    for ran in (done, stopped, failed):
        assert set(ran.json) == documented("")
        assert ran.out.count("\n") == 1
        assert ran.json["type"] == "result"
        assert ran.json["is_error"] == (ran.json["status"] != "done")
        assert bool(ran.json["error"]) == ran.json["is_error"]
        assert Path(ran.json["record"]).is_file()
        kinds = {
            "num_turns": int, "duration_ms": int, "usage": dict, "permission_denials": list,
            "files_written": list, "files_changed": list, "subagents": list, "notices": list,
            "result": str, "session_id": str,
        }  # fmt: skip
        assert {name: type(ran.json[name]) for name in kinds} == kinds
    (sub,) = done.json["subagents"]
    assert set(sub) == documented("subagents")
    assert set(done.json["permission_denials"][0]) == documented("permission_denials")
    assert done.json["files_written"] == done.json["files_changed"] == ["w"]


def test_stream_json_tells_the_run_line_by_line(program: Program, engine: ScriptedEngine) -> None:
    """init first, result last and the same as with json; calls and subagents between, in order."""
    child = subagents(engine)
    child.call("bash", command="echo hi")
    child.say("found")
    brief = {"agent": "explore", "prompt": "x"}
    engine.calls(Call("Task", brief), Call("nothing", {}), text="I delegate.")
    engine.say("done")
    ran = program.ask(engine.url, "--output-format", "stream-json")
    assert ran.code == 0, ran.err
    lines = ran.lines
    kinds = [(one["type"], one.get("subtype", "")) for one in lines]
    assert kinds[0] == ("system", "init")
    assert kinds[-1][0] == "result"
    assert set(lines[-1]) >= documented("")
    for kind in ("task_started", "task_notification"):
        assert kinds.count(("system", kind)) == 1
    assert kinds.index(("system", "task_started")) < kinds.index(("system", "task_notification"))
    said = [one for one in lines if one["type"] == "assistant"]
    uses = [
        (part["name"], one["parent_tool_use_id"] is None)
        for one in said
        for part in one["message"]["content"]
        if part["type"] == "tool_use"
    ]
    assert uses == [("Task", True), ("nothing", True), ("bash", False)]
    texts = [p["text"] for one in said for p in one["message"]["content"] if p["type"] == "text"]
    assert texts == ["I delegate.", "found", "done"]
    assert all(one.get("session_id") for one in lines)


def test_text_goes_to_stdout_and_all_else_to_stderr(
    program: Program, engine: ScriptedEngine
) -> None:
    """The answer alone is on standard output; an ephemeral run leaves no record of anybody."""
    subagents(engine).say("found")
    engine.calls(Call("Task", {"agent": "explore", "prompt": "x"}), text="Thinking aloud.")
    engine.say("  The answer.\nLine two.  ")
    ran = program("-p", "x", "--engine", engine.url, "--model", "m", "--ephemeral")
    assert ran.code == 0, ran.err
    assert ran.out.strip() == "The answer.\nLine two."
    assert "explore" in ran.err
    assert program.sessions() == []
    engine.say("y")
    quiet = program("-p", "x", "--engine", engine.url, "--model", "m", "--quiet")
    assert (quiet.out, quiet.err) == ("y\n", "")


def test_an_interrupt_deep_in_the_tree_brings_every_word_up(
    program: Program, engine: ScriptedEngine
) -> None:
    """Three levels down, amid a reply and a command: all are interrupted; words and files stay."""
    leaf = subagents(engine, last="leaf")
    leaf.calls(
        Call("write", {"path": "w.txt", "content": "x"}),
        Call("bash", {"command": "touch here; setsid nohup sleep 8675421 & sleep 8675421"}),
        text="leaf words",
    )
    for level in ("two", "one"):
        lane = subagents(engine, last=level)
        brief = {"agent": "general", "prompt": "two" if level == "one" else "leaf"}
        lane.calls(Call("Task", brief), text=f"level {level} words")
    silent = subagents(engine, last="silent")
    silent.say("half a sentence", chunk_chars=4, stall_after_bytes=1000)
    engine.calls(
        Call("Task", {"agent": "general", "prompt": "one"}),
        Call("Task", {"agent": "explore", "prompt": "silent"}),
        text="root words",
    )
    running = program.start(*options(program, engine))
    wait_for(lambda: (program.workspace / "here").exists() and len(engine.requests) == 5)
    assert alive_below(running.pid, "sleep 8675421")
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    took = time.monotonic() - began
    result = json.loads(out)
    assert (running.returncode, result["status"]) == (130, "interrupted"), err
    assert took < 12
    assert sorted(one["depth"] for one in result["subagents"]) == [1, 1, 2, 3]
    assert {one["status"] for one in result["subagents"]} == {"interrupted"}
    for words in ("root words", "level one words", "level two words", "leaf words", "half a"):
        assert words in result["result"], words
    texts = {one["session_id"]: str(program.journal(one["session_id"])) for one in _all(result)}
    assert any("leaf words" in text for text in texts.values())
    assert result["files_written"] == ["w.txt"]
    for one in _all(result):
        end = program.journal(one["session_id"])[-1]
        assert (end["kind"], end["data"]["status"]) == ("end", "interrupted")
    assert not _runs("8675421")


def _all(result: dict[str, Any]) -> list[dict[str, Any]]:
    subs: list[dict[str, Any]] = result["subagents"]
    return [result, *subs]


def _runs(mark: str) -> bool:
    return any(mark in (one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))


def test_a_signal_at_any_moment_is_an_end_and_no_accident(
    program: Program, engine: ScriptedEngine
) -> None:
    """From the first process on: the signal's code, the record closed, no word of a fault."""
    engine.always = Answer(calls=(Call("bash", {"command": "sleep 0.05; date +%N"}),))
    moments: dict[str, Callable[[int], object]] = {
        "zygote": lambda pid: alive_below(pid, "rambarde: zygote"),
        "session": lambda _: len(program.sessions()) > 0,
        "agent": lambda pid: alive_below(pid, "rambarde: child general"),
        "model": lambda _: len(engine.requests) > asked,
    }
    for name, has_come in moments.items():
        asked, started = len(engine.requests), time.monotonic()
        running = program.start(*options(program, engine))
        while not has_come(running.pid):
            assert time.monotonic() - started < 20, name
            time.sleep(0.003)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
        assert running.returncode in (130, -signal.SIGINT), (name, running.returncode, err)
        assert b"internal error" not in err, (name, err)
        for journal in program.sessions():
            assert program.journal(journal.stem)[-1]["kind"] == "end", name
            journal.unlink()
        if name != "zygote":
            assert json.loads(out)["status"] == "interrupted"
            assert b"Traceback" not in err, (name, err)


def test_a_second_signal_does_not_wait_for_a_child_that_does_not_answer(
    program: Program, engine: ScriptedEngine
) -> None:
    """A stopped agent has two seconds' grace at the first signal and none at the second."""
    engine.call("bash", command="touch here; sleep 60")
    running = program.start(*options(program, engine))
    wait_for(lambda: (program.workspace / "here").exists())
    for pid in alive_below(running.pid, "rambarde: child"):
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    time.sleep(0.3)  # two at once would be one
    assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=20)
    assert time.monotonic() - began < 1.9
    assert running.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM), err
    assert json.loads(out)["status"] == "interrupted"
    end = program.journal(json.loads(out)["session_id"])[-1]
    assert (end["kind"], end["data"]["status"]) == ("end", "interrupted")


def test_files_are_what_was_written_and_not_what_was_said(
    program: Program, engine: ScriptedEngine
) -> None:
    """Claims of a subagent are words; the list is of real writes that made a difference."""
    (program.workspace / "same").write_text("x")
    (program.workspace / "back").write_text("x")
    child = subagents(engine)
    child.calls(Call("read", {"path": "same"}), Call("read", {"path": "back"}))
    child.calls(
        Call("write", {"path": "same", "content": "x"}),
        Call("edit", {"path": "back", "old_string": "x", "new_string": "y"}),
        Call("write", {"path": "real", "content": "x"}),
        Call("bash", {"command": "echo z > shell"}),
    )
    child.call("edit", path="back", old_string="y", new_string="x")
    child.say("Files written: claimed.txt, /etc/passwd. I edited claimed.txt.")
    engine.calls(Call("Task", {"agent": "general", "prompt": "x"}))
    engine.say("done")
    ran = program.ask(engine.url)
    assert ran.json["files_written"] == ["real"]
    assert ran.json["subagents"][0]["files_written"] == ["real"]
    assert set(ran.json["files_changed"]) >= {"real", "shell"}
    (report,) = results(engine.requests[-1])
    assert report.splitlines()[-2] == "Files written: real."
    assert codes(ran.json) == []


def test_the_first_text_without_a_call_ends_a_run(program: Program, engine: ScriptedEngine) -> None:
    """One request after the last result, and never another: the report is that text alone."""
    child = subagents(engine)
    child.calls(Call("bash", {"command": "true"}), text="Narration before a tool.")
    child.always = Answer(text="The final word.")
    engine.calls(Call("Task", {"agent": "explore", "prompt": "x"}), text="I delegate.")
    engine.always = Answer(text="And done.")
    ran = program.ask(engine.url)
    assert ran.json["result"] == "And done."
    assert len(engine.requests) == 4
    (report,) = results(engine.requests[-1])
    assert "The final word." in report
    assert "Narration" not in report
