"""What a child tells is bounded, counted and believed only where it cannot matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from rambarde.broker.answer_file import answer_write, note_read, note_wrote
from rambarde.broker.answer_perform import answer_perform
from rambarde.broker.answer_turn import RESULT_CHARS, note_result
from rambarde.sessions.report import Outcome
from rambarde_wire import frames
from rambarde_wire.frames import BreachError
from support.broker import SECRET, Bench

pytestmark = pytest.mark.anyio
HASH = "a" * 64


def result(**changes: object) -> frames.TellResult:
    said: dict[str, object] = {
        "call_id": "c1",
        "claimed_ok": False,
        "claimed_code": "not_found",
        "claimed_text": "no",
        "claimed_fingerprint": HASH,
    }
    return frames.TellResult(**(said | changes))  # type: ignore[arg-type] # by name


@pytest.mark.parametrize(
    "lie",
    [
        {"claimed_code": "cap_depth"},
        {"claimed_code": "x" * 33},
        {"claimed_code": "limit:actions"},
        {"claimed_fingerprint": "a" * 63},
        {"claimed_fingerprint": "é" * 64},
        {"call_id": "c2"},
    ],
)
async def test_a_result_that_no_honest_child_tells_is_a_breach(
    tmp_path: Path, lie: dict[str, object]
) -> None:
    """Codes of the supervisor's own nets, other forms and foreign ids end the child."""
    bench = Bench(tmp_path)
    bench.open("read")
    with pytest.raises(BreachError):
        await note_result(result(**lie), bench.caller, bench.ports)


async def test_a_result_is_cut_and_redacted_and_told_once(tmp_path: Path) -> None:
    """Its text is kept up to a bound; a second result of the call is a breach."""
    bench = Bench(tmp_path)
    call = bench.open("read")
    text = SECRET + "x" * (2 * RESULT_CHARS)
    await note_result(result(claimed_text=text), bench.caller, bench.ports)
    assert call.result is not None
    assert len(call.result.text) <= RESULT_CHARS
    assert SECRET not in call.result.text
    with pytest.raises(BreachError):
        await note_result(result(), bench.caller, bench.ports)


async def test_a_call_reads_one_file(tmp_path: Path) -> None:
    """Telling of a second path is a breach, so nothing grows with what a child tells."""
    bench = Bench(tmp_path)
    bench.open("read")
    for _ in range(3):
        await note_read(frames.TellRead("c1", bench.path("a"), HASH), bench.caller, bench.ports)
    with pytest.raises(BreachError):
        await note_read(frames.TellRead("c1", bench.path("b"), HASH), bench.caller, bench.ports)


async def test_a_call_writes_one_file_once(tmp_path: Path) -> None:
    """A second request for a write of the same call is a breach."""
    bench = Bench(tmp_path)
    bench.open("write")
    ask = frames.AskWrite("c1", bench.path("a"), "")
    assert (await answer_write(ask, bench.caller, bench.ports)).allowed
    (bench.workspace / "a").write_text("new")
    told = frames.TellWrote("c1", bench.path("a"), HASH, f"+{SECRET}")
    await note_wrote(told, bench.caller, bench.ports)
    assert [one["call_id"] for one in bench.records("wrote")] == ["c1"]
    assert SECRET not in str(bench.records("wrote"))
    with pytest.raises(BreachError):
        await answer_write(ask, bench.caller, bench.ports)
    with pytest.raises(BreachError):
        await note_wrote(told, bench.caller, bench.ports)


async def test_a_write_that_is_told_of_no_more_gives_its_lock_back(tmp_path: Path) -> None:
    """The result of the call lets go of the path, so others do not wait for it."""
    bench = Bench(tmp_path)
    bench.open("write")
    ask = frames.AskWrite("c1", bench.path("a"), "")
    assert (await answer_write(ask, bench.caller, bench.ports)).allowed
    await note_result(result(), bench.caller, bench.ports)
    verdict = await bench.ports.tracker.check_write("other", bench.path("a"))
    assert verdict.allowed


async def test_nothing_is_begun_for_a_run_that_has_an_outcome(tmp_path: Path) -> None:
    """A call asked for, or a write, after the stop is answered as interrupted and not done."""
    bench = Bench(tmp_path)
    call = bench.open("bash", place="broker")
    bench.open("write", call_id="c2")
    bench.caller.end(Outcome("limit:duration"))
    await answer_perform(frames.AskPerform(["c1"]), bench.caller, bench.ports)
    assert call.result is not None
    assert call.result.code == "interrupted"
    ask = frames.AskWrite("c2", bench.path("a"), "")
    assert not (await answer_write(ask, bench.caller, bench.ports)).allowed


async def test_the_end_of_a_side_by_side_call_is_raised_as_itself(tmp_path: Path) -> None:
    """A call that breaks the rules among joined ones is a breach, not a group of errors."""
    bench = Bench(tmp_path)
    bench.open("read", place="broker").joined = True
    bench.open("read", place="broker", call_id="c2").joined = True
    for call in bench.caller.open_calls.values():
        call.arguments = b'{"path":"a"}'
    with pytest.raises(BreachError):
        await answer_perform(frames.AskPerform(["c1", "c2"]), bench.caller, bench.ports)
