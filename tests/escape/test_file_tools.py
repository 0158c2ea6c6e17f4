"""The file tools inside a real sandbox: they work, and the kernel is what confines them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from rambarde.children.zygote import Zygote
from rambarde_wire import frames
from rambarde_wire.orders import SandboxPlan
from support import plans, spawns
from support.child_loop import call, results

pytestmark = pytest.mark.anyio


class _Loop:
    """The supervisor's end of one sandboxed loop; allows every write."""

    def __init__(self, agent: spawns.Agent) -> None:
        self._agent = agent
        self._reader = frames.FrameReader(max_bytes=frames.MAX_UP_BYTES)

    def send(self, frame: frames.DownFrame) -> None:
        os.write(self._agent.process.write_fd, frames.encode_down(frame))

    async def receive(self) -> frames.UpFrame:
        while (body := self._reader.next_body()) is None:
            data = await spawns.read_some(self._agent.process.read_fd)
            assert data, "the child ended"
            self._reader.feed(data)
        return frames.decode_up(body)

    async def perform(self, *calls: frames.Call) -> list[frames.UpFrame]:
        """Give the calls as one turn; return what the child sent for it."""
        self.send(frames.ReplyTurn(ended=False, calls=list(calls)))
        sent: list[frames.UpFrame] = []
        with anyio.fail_after(20):
            while not isinstance(frame := await self.receive(), frames.AskTurn):
                sent.append(frame)
                if isinstance(frame, frames.AskWrite):
                    self.send(frames.ReplyWrite(frame.call_id, allowed=True))
        return sent


@contextlib.asynccontextmanager
async def _loop_for(workspace: Path, plan: SandboxPlan) -> AsyncIterator[_Loop]:
    zygote = Zygote.start(plans.setup(str(workspace)), environment={})
    try:
        await zygote.wait_ready()
        async with spawns.agent_for(zygote, plan) as agent:
            assert agent.hello
            loop = _Loop(agent)
            loop.send(frames.OrderBegin(os.fsencode(workspace), True, frames.ToolLimits()))
            assert await loop.receive() == frames.AskTurn()
            yield loop
    finally:
        await zygote.aclose()


async def test_file_tools_work_inside_the_sandbox(tmp_path: Path) -> None:
    """Write, edit, read and glob do on the host's disk what they say, as the workspace's owner."""
    (tmp_path / "run.sh").write_bytes(b"echo one\n")
    (tmp_path / "run.sh").chmod(0o755)
    async with _loop_for(tmp_path, plans.agent(str(tmp_path))) as loop:
        sent = await loop.perform(
            call("write", "1", path="new/deep/a.txt", content="caf\u00e9\n"),
            call("edit", "2", path="run.sh", old_string="one", new_string="two"),
            call("read", "3", path="run.sh"),
            call("glob", "4", pattern="**/*.{txt,sh}"),
        )
    outcomes = results(sent)
    assert [outcome.claimed_ok for outcome in outcomes] == [True] * 4, outcomes
    assert "echo two" in outcomes[2].claimed_text
    assert set(outcomes[3].claimed_text.split("\n")) == {"run.sh", "new/deep/a.txt"}
    assert (tmp_path / "new" / "deep" / "a.txt").read_text() == "caf\u00e9\n"
    after = (tmp_path / "run.sh").stat()
    assert stat.S_IMODE(after.st_mode) == 0o755
    made = (tmp_path / "new" / "deep").stat()
    assert [os.stat(tmp_path).st_uid] * 2 == [after.st_uid, made.st_uid]


async def test_masked_file_is_empty_and_cannot_be_replaced(tmp_path: Path) -> None:
    """Behind a mask nothing is read, and the write fails in words and is told as none."""
    (tmp_path / ".env").write_bytes(b"KEY=canary\n")
    plan = plans.agent(str(tmp_path), masks=plans.masks(str(tmp_path / ".env")))
    async with _loop_for(tmp_path, plan) as loop:
        sent = await loop.perform(
            call("read", "1", path=".env"), call("write", "2", path=".env", content="x")
        )
    seen, written = results(sent)
    assert "canary" not in seen.claimed_text
    assert not written.claimed_ok
    assert written.claimed_code == "denied"
    told = [frame.claimed_sha256 for frame in sent if isinstance(frame, frames.TellWrote)]
    assert not any(told)
    assert (tmp_path / ".env").read_bytes() == b"KEY=canary\n"
    assert os.listdir(tmp_path) == [".env"]


async def test_read_only_sandbox_refuses_what_the_child_is_told_it_may(tmp_path: Path) -> None:
    """Even a loop that believes it may write is stopped by the kernel, with the errno in words."""
    (tmp_path / "f").write_bytes(b"old\n")
    plan = plans.agent(str(tmp_path), workspace_writable=False)
    async with _loop_for(tmp_path, plan) as loop:
        sent = await loop.perform(
            call("write", "1", path="f", content="x"),
            call("write", "2", path="d/g", content="x"),
            call("edit", "3", path="f", old_string="old", new_string="new"),
        )
    for outcome in results(sent):
        assert outcome.claimed_code == "denied"
        assert "EROFS" in outcome.claimed_text or "EACCES" in outcome.claimed_text
    assert (tmp_path / "f").read_bytes() == b"old\n"
    assert os.listdir(tmp_path) == ["f"]


async def test_link_to_the_host_leads_nowhere(tmp_path: Path) -> None:
    """A link that the host can follow is outside for the tools, to read and to write."""
    work, outside = tmp_path / "w", tmp_path / "outside"
    work.mkdir()
    outside.write_bytes(b"canary\n")
    (work / "link").symlink_to(outside)
    assert (work / "link").read_bytes() == b"canary\n"
    async with _loop_for(work, plans.agent(str(work))) as loop:
        sent = await loop.perform(
            call("read", "1", path="link"),
            call("write", "2", path="link", content="x"),
            call("read", "3", path=str(outside)),
            call("glob", "4", pattern="*", path=".."),
        )
    assert [outcome.claimed_code for outcome in results(sent)] == ["outside"] * 4
    assert outside.read_bytes() == b"canary\n"


async def test_loop_ends_its_process_when_told(tmp_path: Path) -> None:
    """After the last turn the sandboxed process is gone by itself."""
    zygote = Zygote.start(plans.setup(str(tmp_path)), environment={})
    try:
        await zygote.wait_ready()
        async with spawns.agent_for(zygote, plans.agent(str(tmp_path))) as agent:
            loop = _Loop(agent)
            loop.send(frames.OrderBegin(os.fsencode(tmp_path), True, frames.ToolLimits()))
            assert await loop.receive() == frames.AskTurn()
            loop.send(frames.ReplyTurn(ended=True, calls=[]))
            with anyio.fail_after(5):
                await anyio.wait_readable(agent.process.pidfd)
                assert await spawns.read_some(agent.process.read_fd) == b""
    finally:
        await zygote.aclose()
