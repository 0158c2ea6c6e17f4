"""The loop that answers, and what is still heard of a child that was told to stop."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from rambarde.broker.serve import hear_rest
from rambarde.broker.table import Phase
from rambarde.children.channel import Channel, ChannelClosed
from rambarde.sessions.report import Outcome
from rambarde_wire import frames
from support.broker import Bench

pytestmark = pytest.mark.anyio
HASH = "a" * 64


async def test_finished_work_is_kept_and_what_crossed_the_stop_is_dropped(tmp_path: Path) -> None:
    """A write and a result that were under way count; an ask is not answered and ends nothing."""
    bench = Bench(tmp_path)
    call = bench.open("write")
    other = bench.open("read", call_id="c2")
    path = bench.path("a")
    assert (await bench.ports.tracker.check_write(bench.caller.agent_id, path)).allowed
    (bench.workspace / "a").write_text("new")
    bench.caller.end(Outcome("limit:duration"))
    bench.caller.phase = Phase.CLOSING
    up_read, up_write = os.pipe()
    down_read, down_write = os.pipe()
    channel = Channel(up_read, down_write)
    for frame in (
        frames.TellWrote("c1", path, HASH),
        frames.TellResult("c1", True, "", "written", HASH),
        frames.TellRead("c2", path, HASH),
        frames.TellResult("c2", True, "", "1 new", HASH),
        frames.AskTurn(),
    ):
        os.write(up_write, frames.encode_up(frame))
    os.close(up_write)
    with anyio.fail_after(5), pytest.raises(ChannelClosed):
        await hear_rest(channel, bench.caller, bench.ports)
    await channel.aclose()
    assert os.read(down_read, 1) == b""
    os.close(down_read)
    assert call.result is not None
    assert other.result is not None
    assert [one["call_id"] for one in bench.records("wrote")] == ["c1"]
