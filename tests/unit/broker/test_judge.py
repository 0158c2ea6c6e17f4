"""Calls of a model are judged in order, within bounds, and shown without secrets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rambarde.approvals import Choice, Request
from rambarde.broker.answer_turn import answer_turn
from rambarde.broker.caller import Caller
from rambarde.broker.judge import judge_calls
from rambarde.errors import ModelError
from rambarde.models.base import Delta, DeltaListener, ModelReply, ToolCall
from rambarde.policy.model import Decision, Rule
from rambarde.sessions.report import Outcome
from rambarde_wire import frames
from support.broker import SECRET, Bench

pytestmark = pytest.mark.anyio


def call(tool: str, **arguments: object) -> ToolCall:
    return ToolCall(f"model-{tool[:8]}", tool, json.dumps(arguments))


async def test_a_tool_that_is_none_of_ours_is_named_within_a_bound(tmp_path: Path) -> None:
    """A long made-up name is not carried into record, screen and refusal."""
    bench = Bench(tmp_path)
    (judged,) = await judge_calls(bench.caller, (call("x" * 100_000),), bench.ports)
    assert judged.result is not None
    assert judged.result.code == "tool_absent"
    assert len(judged.result.text) < 1000
    assert len(str(bench.records("verdict"))) < 1000
    assert len(str(bench.events)) < 1000


async def test_a_secret_on_the_edge_of_what_is_shown_is_not_shown(tmp_path: Path) -> None:
    """Arguments are redacted before they are cut for a progress line."""
    bench = Bench(tmp_path)
    for start in range(100, 160, 7):
        await judge_calls(bench.caller, (call("bash", command="#" * start + SECRET),), bench.ports)
    assert SECRET[:10] not in str(bench.events)


async def test_a_verdict_on_the_record_names_the_models_call(tmp_path: Path) -> None:
    """It holds our id and the model's, who decided and why."""
    bench = Bench(tmp_path)
    calls = (call("read", path="a"), call("bash", command="rm -rf /"))
    await judge_calls(bench.caller, calls, bench.ports)
    allowed, denied = bench.records("verdict")
    assert (allowed["id"], allowed["verdict"], allowed["actor"]) == (
        "model-read",
        "allow",
        "policy",
    )
    assert (denied["id"], denied["verdict"], denied["code"]) == (
        "model-bash",
        "deny",
        "catastrophic",
    )
    assert denied["reason"]


async def test_what_does_not_fit_one_turn_is_refused_and_the_rest_is_not(tmp_path: Path) -> None:
    """A write above the room is refused; a small one after it is handed down."""
    bench = Bench(tmp_path)
    calls = (call("write", path="a", content="x" * (3 << 20)), call("read", path="a"))
    large, small = await judge_calls(bench.caller, calls, bench.ports)
    assert large.result is not None
    assert small.result is None


async def test_a_slip_of_the_model_is_told_and_is_no_denial(tmp_path: Path) -> None:
    """Broken JSON, a wrong type and one call too many are not rights that were denied."""
    bench = Bench(tmp_path)
    calls = (ToolCall("m1", "bash", '{"command": '), call("read", path=7))
    calls += tuple(call("read", path=str(number)) for number in range(63))
    judged = await judge_calls(bench.caller, calls, bench.ports)
    slips = [one for one in judged if one.result is not None]
    assert {one.result.code for one in slips if one.result} == {"bad_arguments"}
    assert len(slips) == 3
    assert bench.caller.denials == []
    denied = [one for one in bench.records("verdict") if one["verdict"] == "deny"]
    assert [one["actor"] for one in denied] == ["", "", ""]
    shown = [event.data["shown"] for event in bench.events if event.kind == "tool/settled"]
    assert shown[:2] == ['{"command": ', '{"path": 7}']


async def test_what_is_asked_is_known_by_its_own_words(tmp_path: Path) -> None:
    """Two commands that differ in a secret are shown alike to a person, and are two questions."""
    asked: list[Request] = []

    class Screen:
        async def decide(self, request: Request, waiting: int) -> Choice:
            asked.append(request)
            return "agent"

    bench = Bench(tmp_path, approver=Screen())
    rule = Rule("bash", ("curl *",), Decision.ASK, "asks", (), (), "x:1")
    bench.caller.policy = replace(bench.caller.policy, rules=(rule,))
    other = SECRET[::-1]
    bench.ports.redactor.add("test", other)
    for secret in (SECRET, other, SECRET):
        await judge_calls(bench.caller, (call("bash", command=f"curl {secret}"),), bench.ports)
    assert len(asked) == 2
    assert len({one.shown for one in asked}) == 1
    assert SECRET not in str(asked)
    assert other not in str(asked)


async def test_the_first_cause_of_an_end_after_the_calls_stands(tmp_path: Path) -> None:
    """Its words stay with it when another cause comes later, or first."""
    bench = Bench(tmp_path, actions=1)
    await judge_calls(bench.caller, (call("read", path="a"), call("read", path="b")), bench.ports)
    bench.caller.end_after_calls(Outcome("error:memory"), error="later")
    assert bench.caller.ending == Outcome("limit:actions")
    assert bench.caller.error_text == ""
    bench.caller.end(Outcome("interrupted"), error="SIGINT")
    assert bench.caller.error_text == "SIGINT"


class CutModels:
    """Streams pieces of a text, then fails."""

    async def next_reply(self, _caller: Caller, on_delta: DeltaListener) -> ModelReply:
        for piece in ("so far ", SECRET[:9], SECRET[9:], " and"):
            on_delta(Delta("text", piece))
        raise ModelError("cut", kind="cut")


async def test_the_last_words_of_a_cut_request_are_redacted(tmp_path: Path) -> None:
    """They go up in a report and out in the result."""
    bench = Bench(tmp_path)
    bench.models = CutModels()
    reply = await answer_turn(frames.AskTurn(), bench.caller, bench.ports)
    assert reply.ended
    assert bench.caller.status == "error:model"
    assert bench.caller.last_text == "so far [redacted:test] and"
