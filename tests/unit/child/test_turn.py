"""The loop: order, company of calls, and every way to end."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from rambarde_child import turn
from rambarde_child.tools import read
from rambarde_wire import frames
from support.child_loop import ChildLoop, call, results


def _broker(call_id: str, *, joined: bool = False) -> frames.Call:
    return frames.Call(call_id, "Task", b"{}", "broker", joined)


def test_calls_are_performed_in_order(tmp_path: Path) -> None:
    """Calls of child and broker keep the model's order; joined neighbours go together."""
    (tmp_path / "f").write_bytes(b"x\n")
    with ChildLoop(tmp_path) as child:
        sent = child.perform(
            call("glob", "c1", pattern="f"),
            _broker("c2"),
            _broker("c3", joined=True),
            _broker("c4", joined=True),
            call("read", "c5", path="f"),
            _broker("c6", joined=True),
        )
    said = [
        frame.call_ids if isinstance(frame, frames.AskPerform) else frame.call_id
        for frame in sent
        if isinstance(frame, frames.AskPerform | frames.TellResult)
    ]
    assert said == ["c1", ["c2"], ["c3", "c4"], "c5", ["c6"]]


def test_batches_never_join_what_the_child_performs() -> None:
    """A call of the child stays alone whatever it is marked as."""
    calls = [frames.Call(str(n), "read", b"{}", "child", joined=True) for n in range(2)]
    assert [[calls[0]], [calls[1]]] == list(turn.batches(calls))


def test_ended_turn_ends_the_loop(tmp_path: Path) -> None:
    """After `ended` the child says nothing more and closes."""
    with ChildLoop(tmp_path) as child:
        assert child.receive() == frames.AskTurn()
        child.send(frames.ReplyTurn(ended=True, calls=[]))
        assert child.receive() is None


def test_turn_without_calls_is_followed_by_the_next(tmp_path: Path) -> None:
    """Nothing to do is not the end."""
    with ChildLoop(tmp_path) as child:
        assert child.perform() == []
        assert child.perform() == []


@pytest.mark.parametrize("wait", ["begin", "turn", "perform", "write"])
def test_interrupt_ends_the_loop_at_every_wait(tmp_path: Path, wait: str) -> None:
    """Whatever the child waits for, an interrupt ends it without a word and without a write."""
    with ChildLoop(tmp_path, begin=wait != "begin") as child:
        if wait != "begin":
            assert child.receive() == frames.AskTurn()
        if wait == "perform":
            child.send(frames.ReplyTurn(ended=False, calls=[_broker("c1")]))
            assert isinstance(child.receive(), frames.AskPerform)
        if wait == "write":
            calls = [call("write", path="f", content="x")]
            child.send(frames.ReplyTurn(ended=False, calls=calls))
            assert isinstance(child.receive(), frames.AskWrite)
        child.send(frames.OrderInterrupt("stop"))
        assert child.receive() is None
        child.wait_end()
    assert not os.listdir(tmp_path)


def test_interrupt_between_calls_stops_the_next_one(tmp_path: Path) -> None:
    """An interrupt that came while a call ran is seen before the next one starts."""
    with ChildLoop(tmp_path) as child:
        assert child.receive() == frames.AskTurn()
        both = frames.encode_down(
            frames.ReplyTurn(ended=False, calls=[call("glob", pattern="*")])
        ) + frames.encode_down(frames.OrderInterrupt("stop"))
        child.send_bytes(both)
        assert child.receive() is None


def test_failing_tool_is_a_result_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception of a tool is told with its errno in words, and the loop goes on."""
    (tmp_path / "f").write_bytes(b"x\n")

    def break_down(*_: object) -> None:
        raise OSError(5, "Input/output error", b"f")

    with ChildLoop(tmp_path) as child:
        with monkeypatch.context() as patch:
            patch.setattr(read, "perform", break_down)
            broken = child.result("read", path="f")
        assert broken.claimed_code == "tool_failed"
        assert "EIO: Input/output error" in broken.claimed_text
        assert child.result("read", path="f").claimed_ok


@pytest.mark.parametrize("exception", [MemoryError(), RecursionError(), KeyError("x")])
def test_any_exception_of_a_tool_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exception: Exception
) -> None:
    """Even those that nobody thought of."""

    def break_down(*_: object) -> None:
        raise exception

    monkeypatch.setattr(read, "perform", break_down)
    with ChildLoop(tmp_path) as child:
        result = child.result("read", path="f")
    assert result.claimed_code == "tool_failed"
    assert type(exception).__name__ in result.claimed_text


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frames.Call("c1", "read", b'{"path":1}', "child"), "bad_arguments"),
        (frames.Call("c1", "read", b"not json", "child"), "bad_arguments"),
        (frames.Call("c1", "bash", b"{}", "child"), "tool_absent"),
    ],
)
def test_bad_call_is_a_result(tmp_path: Path, bad: frames.Call, code: str) -> None:
    """A call the child cannot perform is told, not a reason to end."""
    with ChildLoop(tmp_path) as child:
        [result] = results(child.perform(bad))
    assert code == result.claimed_code


def test_long_result_is_cut_with_the_count_of_bytes(tmp_path: Path) -> None:
    """Kept and elided bytes add up; the cut falls between characters."""
    (tmp_path / "f").write_text("é" * 400 + "\n")
    limits = frames.ToolLimits(result_bytes=100)
    with ChildLoop(tmp_path, limits=limits) as child:
        result = child.result("read", path="f")
    text = "     1\t" + "é" * 400 + "\n(lines 1 to 1 of 1)"
    kept = result.claimed_text.split("\n")[0]
    assert result.claimed_elided_bytes == len(text.encode()) - len(kept.encode())
    assert kept == text[: len(kept)]
    assert result.claimed_text.endswith(f"[{result.claimed_elided_bytes} bytes left out]")


@pytest.mark.parametrize(
    "frame",
    [
        frames.ReplyTurn(ended=True, calls=[]),
        frames.ReplyPerform(["c1"]),
        frames.ReplyWrite("c1", allowed=True),
    ],
)
def test_frame_that_is_not_due_is_a_fault(tmp_path: Path, frame: frames.DownFrame) -> None:
    """Before OrderBegin nothing else is taken; the child says so and ends."""
    with ChildLoop(tmp_path, begin=False) as child:
        child.send(frame)
        fault = child.receive()
        assert isinstance(fault, frames.TellFault)
        assert fault.claimed_step == "protocol"
        assert child.receive() is None


@pytest.mark.parametrize(
    "reply", [frames.ReplyWrite("other", allowed=True), frames.ReplyPerform(["c1"])]
)
def test_verdict_about_something_else_writes_nothing(
    tmp_path: Path, reply: frames.DownFrame
) -> None:
    """Only the verdict on this very call lets the write go on."""
    with ChildLoop(tmp_path) as child:
        child.receive()
        child.send(frames.ReplyTurn(ended=False, calls=[call("write", path="f", content="x")]))
        assert isinstance(child.receive(), frames.AskWrite)
        child.send(reply)
        assert isinstance(child.receive(), frames.TellFault)
    assert not os.listdir(tmp_path)


def test_workspace_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    """The errno of the workspace's open is told."""
    with ChildLoop(tmp_path / "nope") as child:
        fault = child.receive()
    assert isinstance(fault, frames.TellFault)
    assert (fault.claimed_step, fault.errno) == ("loop", 2)


def test_closed_channel_ends_the_loop_silently(tmp_path: Path) -> None:
    """A clean end of the supervisor's frames ends the child; there is nobody to tell."""
    with ChildLoop(tmp_path) as child:
        child.receive()
        child.close()
        assert child.receive() is None


def test_pipes_stay_open_for_the_caller(tmp_path: Path) -> None:
    """The loop closes what it opened and not what it was given."""
    read_fd, down = os.pipe()
    up, write_fd = os.pipe()
    os.close(down)
    before = set(os.listdir("/proc/self/fd"))
    turn.run(read_fd, write_fd)
    assert before == set(os.listdir("/proc/self/fd"))
    assert select.select([up], [], [], 0)[0] == []
    for fd in (read_fd, up, write_fd):
        os.close(fd)
