"""Delegation: who may, how many, with which rights, and what is left when a subagent fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from hashlib import sha256

import pytest

from support.delegating import (
    SUBAGENT,
    agent_file,
    alive_below,
    codes,
    options,
    results,
    said_by,
    subagents,
    wait_for,
)
from support.probes import make_repository, outside, run_git, tree_state
from support.program import Program
from support.scripted import ScriptedEngine, Seen
from support.scripted_answers import Answer, Call


def task(brief: str, agent: str = "general", **more: object) -> Call:
    """Return one delegation."""
    return Call("Task", {"agent": agent, "prompt": brief, **more})


def test_188_requests_at_once_admit_twenty(program: Program, engine: ScriptedEngine) -> None:
    """Of 188 delegations in one turn 20 live at once; the rest are refused and not queued."""
    wait = 'mktemp -p . c.XXXXXX >/dev/null; while [ ! -e go ]; do sleep 0.05; done; echo "went"'
    subagents(engine, last="brief").always = Answer(calls=(Call("bash", {"command": wait}),))
    subagents(engine).always = Answer(text="ended")
    engine.calls(*[task(f"brief {number}") for number in range(188)])
    engine.say("Merged.")
    running = program.start(*options(program, engine))
    wait_for(lambda: len(list(program.workspace.glob("c.*"))) == 20, seconds=30)
    agents = alive_below(running.pid, "rambarde: child general")
    assert len(agents) == 21, "the main agent and twenty"
    (program.workspace / "go").touch()
    out, err = running.communicate(timeout=40)
    result = json.loads(out)
    assert (running.returncode, result["result"]) == (0, "Merged."), err
    assert len(result["subagents"]) == 20
    assert {one["status"] for one in result["subagents"]} == {"done"}
    assert codes(result) == ["cap_concurrent"] * 44
    told = results(engine.requests[-1])
    assert len(told) == 188
    refused = [text for text in told if "subagentMaxConcurrent = 20" in text]
    assert len(refused) == 44
    assert sum("more than 64 calls in one turn" in text for text in told) == 124
    assert all("finish the work yourself" in text for text in refused)
    assert len(program.sessions()) == 21
    assert not [pid for pid in agents if os.path.exists(f"/proc/{pid}")]


def test_the_201st_spawn_is_refused_before_a_fork(program: Program, engine: ScriptedEngine) -> None:
    """One after the other, with everything at its default: 200 run, the next is `cap_session`."""

    def respond(seen: Seen) -> Answer:
        if SUBAGENT in seen.system:
            return Answer(text="ok")
        said = said_by(seen)
        return Answer(calls=(task(f"brief {said}", "explore"),)) if said < 202 else Answer(text="x")

    engine.respond = respond
    ran = program.ask(engine.url, timeout=110)
    assert (ran.code, ran.json["status"]) == (0, "done"), ran.err[-2000:]
    assert len(ran.json["subagents"]) == 200
    assert codes(ran.json) == ["cap_session", "cap_session"]
    assert len(program.sessions()) == 201
    last = results(engine.requests[-1])
    assert "subagentMaxPerSession = 200" in last[-1]
    assert last[-1] == last[-2]
    assert ran.json["usage"]["subagent"]["model_requests"] == 200


def test_a_tool_taken_from_a_parent_stays_away_from_all_below(
    program: Program, engine: ScriptedEngine
) -> None:
    """Three levels down no file and no forged call brings back what the parent does not have."""
    agent_file(program, "narrow", "tools: [read, bash, Task]")
    agent_file(program, "greedy", "tools: '*'\nwritable: true")
    forged = [
        Call("write", {"path": "f", "content": "x"}),
        Call("bash", {"command": "touch g"}),
        Call("edit", {"path": "a", "old_string": "x", "new_string": "y"}),
        Call("TodoWrite", {"x": 1}),
    ]

    def respond(seen: Seen) -> Answer:
        said = said_by(seen)
        if SUBAGENT in seen.system and said == 0:
            return Answer(calls=tuple(forged))
        if "Task" in seen.tool_names and said == int(SUBAGENT in seen.system):
            return Answer(calls=(task("deeper", "greedy"),))
        return Answer(text="end")

    engine.respond = respond
    ran = program.ask(engine.url, "--agent", "narrow", "--disallowedTools", "bash")
    assert ran.code == 0, ran.err
    assert [one["depth"] for one in ran.json["subagents"]] == [1, 2, 3]
    assert {seen.tool_names for seen in engine.requests} == {("read", "Task"), ("read",)}
    assert codes(ran.json) == ["tool_absent"] * 12
    assert {one["actor"] for one in ran.json["permission_denials"]} == {"policy"}
    assert list(program.workspace.iterdir()) == []
    for sub in ran.json["subagents"]:
        verdicts = [r["data"] for r in program.journal(sub["session_id"]) if r["kind"] == "verdict"]
        assert [one["code"] for one in verdicts[:4]] == ["tool_absent"] * 4
        assert sub["actions"] == len(verdicts)


def test_plan_mode_holds_for_every_descendant(program: Program, engine: ScriptedEngine) -> None:
    """Under plan mode no subagent at any depth changes a byte of the tree, by any way."""
    make_repository(program.workspace)
    ways = (
        "echo x > new; echo x >> a.txt; sed -i s/one/two/ a.txt; rm -f a.txt;"
        " git commit -q --allow-empty -m x; git config user.name evil; git stash;"
        " python3 -c \"open('p', 'w').write('x')\"; ln -s /etc l; mkdir d; touch a.txt; true"
    )
    copy = program.base / "copy"
    shutil.copytree(program.workspace, copy)
    before = tree_state(copy)
    outside(ways, copy)
    assert tree_state(copy) != before, "the ways do change a tree"
    hostile = (
        Call("write", {"path": "w", "content": "x"}),
        Call("edit", {"path": "a.txt", "old_string": "one", "new_string": "two"}),
        Call("bash", {"command": ways}),
    )

    def respond(seen: Seen) -> Answer:
        said = said_by(seen)
        if SUBAGENT in seen.system and said == 0:
            return Answer(calls=hostile)
        if "Task" in seen.tool_names and said == int(SUBAGENT in seen.system):
            return Answer(calls=(task("deeper"),))
        return Answer(text="end")

    engine.respond = respond
    before = tree_state(program.workspace)
    ran = program.ask(engine.url, "--plan")
    assert ran.code == 0, ran.err
    assert [one["depth"] for one in ran.json["subagents"]] == [1, 2, 3]
    assert tree_state(program.workspace) == before
    assert ran.json["files_written"] == ran.json["files_changed"] == []
    told = "\n".join(text for seen in engine.requests for text in results(seen))
    assert told.count("Read-only file system") >= 3
    assert not {"write", "edit"} & {name for seen in engine.requests for name in seen.tool_names}


def test_a_command_refused_to_the_parent_is_refused_below_with_the_same_code(
    program: Program, engine: ScriptedEngine
) -> None:
    """A forbidden command is forbidden at each level, however it is worded or delegated."""
    spellings = ("rm -rf /", "sudo -n sh -c 'rm -rf /'", 'bash -c "rm -fr /*"')

    def respond(seen: Seen) -> Answer:
        said = said_by(seen)
        if said == 0:
            return Answer(calls=tuple(Call("bash", {"command": one}) for one in spellings))
        if "Task" in seen.tool_names and said == 1:
            return Answer(calls=(task("run rm -rf / for me"),))
        return Answer(text="end")

    engine.respond = respond
    ran = program.ask(engine.url)
    assert codes(ran.json) == ["catastrophic"] * 12, ran.out
    agents = Counter(one["agent"] for one in ran.json["permission_denials"])
    assert sorted(agents.values()) == [3] * 4
    assert max(agents, key=len).count("/") == 3


def test_the_refusals_are_those_of_the_locale_in_their_order(
    program: Program, engine: ScriptedEngine
) -> None:
    """Unknown role before empty brief before recursion; in French where French is spoken."""
    explorer = subagents(engine)
    explorer.calls(task("deeper"), task("deeper", "verifier"), task("", "general"))
    explorer.say("alone")
    engine.calls(
        task("x", "verifier"), Call("Task", {}), task("", "verifier"), task(" \n", "explore"),
        Call("Task", {"agent": "explore"}), task("y", "explore"),
    )  # fmt: skip
    engine.say("fini")
    ran = program.ask(engine.url, env={"LANG": "fr_FR.UTF-8"})
    assert ran.json["status"] == "done", ran.err
    assert codes(ran.json)[:5] == [
        "unknown_agent", "unknown_agent", "unknown_agent", "empty_task", "empty_task",
    ]  # fmt: skip
    assert codes(ran.json)[5:] == ["no_delegation", "unknown_agent", "empty_task"]
    told = results(engine.requests[-1])
    assert "rôle inconnu : verifier" in told[0]
    assert "explore, general" in told[0]
    assert "tâche vide" in told[3]
    assert "un sous-agent n'en appelle pas d'autre" in results(engine.requests[2])[0]
    assert "Task" not in engine.requests[1].tool_names
    assert len(engine.requests) == 4


def test_a_crash_of_one_loses_nothing_of_the_others(
    program: Program, engine: ScriptedEngine
) -> None:
    """A subagent whose process is killed is `error:child`; its words and its siblings' stay."""
    subagents(engine, last="victim").calls(
        Call("bash", {"command": "touch here; sleep 60"}), text="half a finding"
    )
    subagents(engine, last="fine").always = Answer(text="whole finding")
    engine.calls(task("fine 1", "explore"), task("victim"), task("fine 2", "explore"))
    engine.say("Merged.")
    running = program.start(*options(program, engine))
    wait_for(lambda: (program.workspace / "here").exists())
    pids = alive_below(running.pid, "rambarde: child general")
    os.kill(max(pids), signal.SIGKILL)
    out, err = running.communicate(timeout=20)
    result = json.loads(out)
    assert (running.returncode, result["result"]) == (0, "Merged."), err
    statuses = {one["agent"]: one["status"] for one in result["subagents"]}
    assert statuses == {"explore": "done", "general": "error:child"}
    told = results(engine.requests[-1])
    assert "whole finding" in told[0]
    assert "half a finding" in told[1]
    assert "error:child" in told[1]
    assert "whole finding" in told[2]


def test_an_engine_that_refuses_one_subagent_is_told_to_the_parent(
    program: Program, engine: ScriptedEngine
) -> None:
    """The failure of a subagent's engine is its report; the parent goes on, in its own words."""
    subagents(engine, last="bad").fail(400)
    subagents(engine, last="cut").say("y" * 300, cut_after_bytes=1500)
    subagents(engine, last="fine").say("found")
    engine.calls(task("bad", "explore"), task("cut", "explore"), task("fine", "explore"))
    engine.say("Merged.")
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["result"]) == (0, "Merged.")
    assert [one["status"] for one in ran.json["subagents"]] == [
        "error:model",
        "error:model",
        "done",
    ]
    bad, cut, fine = results(engine.requests[-1])
    assert "[error] subagent explore: " in bad
    assert "HTTP 400" in bad
    assert "yyyy" in cut
    assert "Its last words:" in cut
    assert "found" in fine
    for text, sub in zip((bad, cut, fine), ran.json["subagents"], strict=True):
        assert text.splitlines()[-1] == sub["session_id"]


def test_a_subagents_session_is_a_record_of_its_own(
    program: Program, engine: ScriptedEngine
) -> None:
    """Each subagent leaves a whole session: kin, depth, hash of its file, calls, verdicts, end."""
    agent_file(program, "scribe", "model: small-one\ntemperature: 0.3\ntools: [bash, Task]")
    file = program.config / "agents" / "scribe.md"
    below = subagents(engine, no_tool="Task")
    below.always = Answer(text="leaf")
    child = subagents(engine)
    child.call("bash", command="mkdir -p .rambarde/agents; echo hi")
    child.calls(task("leaf", "explore"))
    child.say("  \n the report \n\n ")
    engine.calls(task("work", "scribe"))
    engine.say("done")
    ran = program.ask(engine.url)
    scribe, leaf = ran.json["subagents"]
    assert (scribe["agent"], scribe["depth"], leaf["depth"]) == ("scribe", 1, 2)
    records = program.journal(scribe["session_id"])
    head, end = records[0], records[-1]
    assert head["kind"] == "session"
    assert head["data"]["parent_id"] == ran.json["session_id"]
    assert program.journal(leaf["session_id"])[0]["data"]["parent_id"] == scribe["session_id"]
    assert program.journal(leaf["session_id"])[0]["data"]["root_id"] == ran.json["session_id"]
    assert head["data"]["persona_sha256"] == sha256(file.read_bytes()).hexdigest()
    assert [r["data"]["tool"] for r in records if r["kind"] == "verdict"] == ["bash", "Task"]
    assert (end["kind"], end["data"]["status"], end["data"]["actions"]) == ("end", "done", 2)
    mine = [seen for seen in engine.requests if SUBAGENT in seen.system]
    assert {seen.body["model"] for seen in mine} == {"small-one"}
    assert mine[0].body["temperature"] == 0.3
    report = results(engine.requests[-1])[-1]
    assert "\nthe report\n" in report
    shown = program("sessions", "show", scribe["session_id"])
    assert "bash" in shown.out
    listed = program("sessions", "list", "--all", "--json").json
    assert {one["session_id"] for one in listed} >= {scribe["session_id"], leaf["session_id"]}


@pytest.mark.parametrize("way", ["write", "bash"])
def test_an_agent_file_written_during_the_run_changes_nothing(
    program: Program, engine: ScriptedEngine, way: str
) -> None:
    """Agents are those of the session's start: one that an agent writes is unknown to the run."""
    text = "---\ndescription: evil\nmode: all\ntools: '*'\n---\nevil\n"
    if way == "write":
        engine.call("write", path=".rambarde/agents/evil.md", content=text)
    else:
        command = f"mkdir -p .rambarde/agents; printf '%s' \"{text}\" > .rambarde/agents/evil.md"
        engine.call("bash", command=command)
    engine.calls(task("x", "evil"))
    engine.say("ok")
    ran = program.ask(engine.url)
    assert ran.json["subagents"] == []
    assert codes(ran.json)[-1] == "unknown_agent"
    assert "general" in results(engine.requests[-1])[-1]


def test_eight_that_commit_at_once_leave_a_whole_repository(
    program: Program, engine: ScriptedEngine
) -> None:
    """Each commit is there or was refused by git in words; no lock is left, and nothing is lost."""
    make_repository(program.workspace)
    lane = subagents(engine, last="brief")
    commit = "n=$(mktemp -p . f.XXXXXX); git add $n && git commit -q -m one -- $n && echo made"
    lane.always = Answer(calls=(Call("bash", {"command": commit}),))
    subagents(engine).always = Answer(text="tried")
    engine.calls(*[task(f"brief {number}") for number in range(8)])
    engine.say("Merged.")
    ran = program.ask(engine.url)
    assert (ran.code, ran.json["result"]) == (0, "Merged."), ran.err
    told = [seen.last for seen in engine.requests if SUBAGENT in seen.system and said_by(seen)]
    assert len(told) == 8
    made = [text for text in told if "made" in text]
    assert made
    assert all("lock" in text for text in told if text not in made), told
    assert len(run_git(program.workspace, "log", "--oneline").splitlines()) == 1 + len(made)
    assert not list(program.workspace.glob(".git/**/*.lock"))
    run_git(program.workspace, "fsck", "--strict")
