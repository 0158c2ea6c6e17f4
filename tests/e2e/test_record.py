"""The record seen from outside: whole, chained, private, readable at any time, and honest."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

from support.program import Program
from support.scripted import ScriptedEngine
from support.scripted_answers import Answer, Call

ZEROS = "0" * 64


def _chain(path: Path) -> list[dict[str, Any]]:
    """Check a journal by the rule of docs/json.md alone; return its records."""
    prev = ZEROS
    records = []
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b"", "it ends with a whole line"
    for number, line in enumerate(lines):
        record = json.loads(line)
        assert list(record) == ["n", "at", "kind", "data", "prev", "hash"]
        assert (record["n"], record["prev"]) == (number, prev)
        body, _comma, _rest = line.rpartition(b',"hash":"')
        assert hashlib.sha256(body).hexdigest() == record["hash"]
        prev = record["hash"]
        records.append(record)
    return records


def test_each_session_of_a_tree_has_a_journal_that_chains_and_tells_what_was_done(
    program: Program, engine: ScriptedEngine
) -> None:
    """Verdict before result, every call and its code, the end; 0600 in a folder of 0700."""
    (program.workspace / ".env").write_text("A=hidden-value-123\n")
    child = engine.when(no_tool="Task")
    child.call("bash", command="echo from the child")
    child.say("seen")
    engine.call("bash", command="echo root; exit 4")
    engine.call("bash", command="rm -rf /")
    engine.call("write", path="a.txt", content="x\n")
    engine.calls(Call("Task", {"agent": "explore", "prompt": "look"}), Call("glob", '{"pat'))
    engine.say("All done.")
    ran = program.ask(engine.url)
    assert ran.code == 0, ran.err
    folder = program.state / "sessions"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600] * 3
    root = _chain(folder / f"{ran.json['session_id']}.jsonl")
    below = _chain(folder / f"{ran.json['subagents'][0]['session_id']}.jsonl")
    header = root[0]["data"]
    assert root[0]["kind"] == "session"
    assert (header["agent"], header["tier"], header["depth"]) == ("general", "A", 0)
    assert below[0]["data"]["parent_id"] == below[0]["data"]["root_id"] == header["session_id"]
    tools = [one for one in root if one["data"].get("role") == "tool"]
    assert [one["data"]["code"] for one in tools][1:] == ["catastrophic", "", "", "bad_arguments"]
    told = {one["data"]["call_id"]: one["n"] for one in tools}
    verdicts = [one for one in root if one["kind"] == "verdict"]
    assert [one["data"]["verdict"] for one in verdicts] == ["allow", "deny", *["allow"] * 2, "deny"]
    judged = {one["data"]["call_id"]: one["n"] for one in verdicts}
    assert told.keys() == judged.keys()
    assert all(judged[call_id] < told[call_id] for call_id in told), "no act before its verdict"
    assert root[-1]["kind"] == below[-1]["kind"] == "end"
    assert root[-1]["data"]["files_written"] == ["a.txt"]
    shown = program("sessions", "show", ran.json["session_id"])
    assert "chain: whole" in shown.out
    assert f"subagent: {below[0]['data']['session_id']} explore done" in shown.out
    raw = program("sessions", "show", "--json", ran.json["session_id"][-8:])
    assert [json.loads(line) for line in raw.out.splitlines()] == root


def test_a_killed_run_is_read_while_it_runs_whole_after_and_lost_once(
    program: Program, engine: ScriptedEngine
) -> None:
    """`running`, then SIGKILL in the middle of a write or of a call: nothing that stood is gone."""
    child = engine.when(no_tool="Task")
    child.answers.append(Answer(text="late", delay_s=40))
    engine.call("bash", command="echo first")
    engine.call("Task", agent="explore", prompt="wait")
    process = program.start("-p", "go", "--engine", engine.url, "--model", "m", "-q")
    while len(engine.requests) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    during = program("sessions", "list", "--all", "--json").json
    assert [one["status"] for one in during] == ["running", "running"]
    root = next(one["session_id"] for one in during if one["depth"] == 0)
    assert "first" in program("sessions", "show", root).out
    process.kill()
    process.communicate()
    path = program.state / "sessions" / f"{root}.jsonl"
    before = _chain(path)
    assert before[-1]["kind"] != "end"
    with path.open("ab") as file:
        file.write(b'{"n":99,"half a li')
    assert {one["status"] for one in program("sessions", "list", "--all", "--json").json} == {
        "lost"
    }
    half = program("sessions", "show", root)
    assert half.code == 0
    assert "18 bytes of an unfinished line" in half.out
    engine.answers.clear()
    engine.say("fine")
    engine.say("fine")
    told = [one for one in program.ask(engine.url).json["notices"] if "was lost" in one]
    assert len(told) == 2
    assert root in "".join(told)
    after = _chain(path)
    assert after[: len(before)] == before
    assert [one["data"]["status"] for one in after[len(before) :]] == ["lost"]
    assert path.with_name(path.name + ".cut").read_bytes() == b'{"n":99,"half a li'
    assert program.ask(engine.url).json["notices"] == []
    assert _chain(path) == after


def test_a_record_that_was_changed_is_told_and_never_repaired(
    program: Program, engine: ScriptedEngine
) -> None:
    """One changed byte: exit 1 and the line's number; a removed file is no session any more."""
    engine.call("bash", command="echo harmless")
    engine.say("done")
    ran = program.ask(engine.url)
    path = Path(ran.json["record"])
    data = path.read_bytes()
    path.write_bytes(data.replace(b"echo harmless", b"echo harmful!", 1))
    line = data[: data.index(b"echo harmless")].count(b"\n") + 1
    for flags in ([], ["--json"]):
        shown = program("sessions", "show", path.stem, *flags)
        assert shown.code == 1
        assert f"the chain is broken at line {line}" in shown.err
        assert "harmful" not in shown.out
    changed = path.read_bytes()
    engine.say("again")
    assert program.ask(engine.url).code == 0
    assert path.read_bytes() == changed
    path.unlink()
    assert program("sessions", "show", path.stem).code == 2
    assert path.stem not in program("sessions", "list").out


def test_the_index_is_never_the_truth(program: Program, engine: ScriptedEngine) -> None:
    """Damaged, replaced or removed, it is made anew from the journals; --ephemeral leaves none."""
    engine.say("one")
    ran = program.ask(engine.url)
    index = program.state / "sessions" / "index.sqlite"
    listed = program("sessions", "list").out
    assert ran.json["session_id"] in listed
    index.write_bytes(b"SQLite format 3\0" + b"\xff" * 4000)
    assert program("sessions", "list").out == listed
    index.unlink()
    index.symlink_to(program.home / "elsewhere")
    assert program("sessions", "list").out == listed
    assert not (program.home / "elsewhere").exists()
    child = engine.when(no_tool="Task")
    child.say("x")
    engine.call("Task", agent="explore", prompt="look")
    engine.say("two")
    gone = program.ask(engine.url, "--ephemeral")
    assert gone.code == 0
    assert len(gone.json["subagents"]) == 1
    assert [path.stem for path in program.sessions()] == [ran.json["session_id"]]


def test_without_a_place_for_the_record_nothing_is_started(
    program: Program, engine: ScriptedEngine
) -> None:
    """A file in its place, or a disk that takes no byte: 1, the path, what to do, no request."""
    (program.home / ".local").write_text("no folder")
    ran = program("-p", "go", "--engine", engine.url, "--model", "m")
    assert ran.code == 1
    assert str(program.state) in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) == 2, "a cause and what to do"
    (program.home / ".local").unlink()
    most = 4 << 10
    process = program.start(
        "-p",
        "go" * most,
        "--engine",
        engine.url,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )
    _out, err = process.communicate(timeout=30)
    assert process.returncode == 1, err
    assert b"cannot write" in err
    assert b": File too large" in err
    assert b"Traceback" not in err
    assert engine.requests == []


def test_a_full_disk_ends_the_run_and_keeps_what_was_recorded(
    program: Program, engine: ScriptedEngine
) -> None:
    """error:record with what to do; the chain is whole, and with room again all works."""
    for number in range(40):
        engine.call("bash", command=f"head -c {9000 + number} /dev/zero | tr '\\0' x")
    sessions = program.state / "sessions"
    sessions.mkdir(parents=True, mode=0o700)
    arguments = ["-p", "go", "--engine", engine.url, "--model", "m", "--json"]
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", sessions], check=True)
        process = program.start(*arguments)
    else:
        most = 96 << 10
        process = program.start(
            *arguments,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        )
    try:
        out, err = process.communicate(timeout=50)
        result = json.loads(out)
        assert (process.returncode, result["status"]) == (1, "error:record"), err
        assert "cannot write" in result["error"]
        assert "then run again" in result["error"]
        (path,) = program.sessions()
        assert len(_chain(path)) > 10
        if os.geteuid() == 0:
            subprocess.run(["mount", "-o", "remount,size=8m", sessions], check=True)
        engine.answers.clear()
        engine.say("room again")
        ran = program.ask(engine.url)
        assert ran.code == 0, ran.err
        assert len([one for one in ran.json["notices"] if "was lost" in one]) == 1
        _chain(path)
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", sessions], check=True)
