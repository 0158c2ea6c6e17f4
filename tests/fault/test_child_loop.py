"""The child's loop when the n-th thing fails: the channel, a system call, the other side."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rambarde_child.tools import paths, replacing
from rambarde_wire import frames
from support.child_loop import ChildLoop, call, results

_FALLIBLE = frozenset(
    {"open", "read", "write", "rename", "fsync", "fchmod", "fstat", "stat", "mkdir", "dup"}
)


class _FailingOs:
    """The os module, whose k-th fallible call from now on fails; 0 never."""

    def __init__(self, code: int) -> None:
        self._code = code
        self._left = 0
        self.struck = False

    def arm(self, k: int) -> None:
        self._left, self.struck = k, False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._failing(real) if name in _FALLIBLE else real

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.struck = True
                raise OSError(self._code, os.strerror(self._code))
            return real(*args, **kwargs)

        return perform


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("path", ["f", "new/deep/f"])
def test_write_with_kth_call_failing_is_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, path: str
) -> None:
    """For each k: old or new content, nothing beside it, what is told is true, the loop lives."""
    failing = _FailingOs(code)
    monkeypatch.setattr(paths, "os", failing)
    monkeypatch.setattr(replacing, "os", failing)
    with ChildLoop(tmp_path) as child:
        child.perform()
        descriptors = len(os.listdir("/proc/self/fd"))
        for k in range(1, 100):
            (tmp_path / "f").write_bytes(b"old\n")
            failing.arm(k)
            sent = child.perform(call("write", path=path, content=f"new {k}\n"))
            [result] = results(sent)
            asked = any(isinstance(frame, frames.AskWrite) for frame in sent)
            told = [frame for frame in sent if isinstance(frame, frames.TellWrote)]
            assert len(told) == asked
            target = tmp_path / path
            now = target.read_bytes() if target.exists() else None
            if result.claimed_ok:
                assert now == f"new {k}\n".encode()
            else:
                assert now in (b"old\n", None)
                assert not any(frame.claimed_sha256 for frame in told)
                assert errno.errorcode[code] in result.claimed_text
            beside = {name for _, _, names in os.walk(tmp_path) for name in names}
            assert beside <= {"f"}
            assert descriptors == len(os.listdir("/proc/self/fd"))
            if not failing.struck:
                break
        else:
            pytest.fail("no run without a fault")
        assert result.claimed_ok


def test_stream_cut_at_every_byte_ends_the_loop(tmp_path: Path) -> None:
    """Between frames the end is silent, inside one it is told as a fault; never a hang."""
    begin = frames.encode_down(
        frames.OrderBegin(os.fsencode(tmp_path), writable=True, limits=frames.ToolLimits())
    )
    turn = frames.encode_down(frames.ReplyTurn(ended=False, calls=[call("glob", pattern="*")]))
    whole = begin + turn
    for cut in range(len(whole) + 1):
        with ChildLoop(tmp_path, begin=False) as child:
            child.send_bytes(whole[:cut])
            child.close()
            sent = []
            while (frame := child.receive()) is not None:
                sent.append(frame)
            child.wait_end()
        faults = [frame for frame in sent if isinstance(frame, frames.TellFault)]
        assert (len(faults) == 0) == (cut in (0, len(begin), len(whole))), cut


def test_supervisor_gone_at_every_frame_ends_the_loop(tmp_path: Path) -> None:
    """When nobody reads any more, the loop ends at its next frame and leaves files whole."""
    for k in range(4):
        (tmp_path / "f").write_bytes(b"old")
        with ChildLoop(tmp_path) as child:
            for _ in range(k):
                frame = child.receive()
                if isinstance(frame, frames.AskTurn):
                    calls = [call("write", path="f", content="new")]
                    child.send(frames.ReplyTurn(ended=False, calls=calls))
                elif isinstance(frame, frames.AskWrite):
                    child.send(frames.ReplyWrite("c1", allowed=True))
            os.close(child.up_fd)
            child.up_fd = os.open("/dev/null", os.O_RDONLY)
            child.close()
            child.wait_end()
        assert (tmp_path / "f").read_bytes() in (b"old", b"new")
        assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x01\xc1",
        b"\0\0\0\x06\x81\xa1t\xa1zz",
        b"\0\0\x10\0" + b"\x91" * 4096,
    ],
)
def test_garbage_is_a_fault_at_once(tmp_path: Path, data: bytes) -> None:
    """Forbidden lengths, unknown frames and deep nesting end the loop with a protocol fault."""
    with ChildLoop(tmp_path, begin=False) as child:
        child.send_bytes(data)
        fault = child.receive()
        assert isinstance(fault, frames.TellFault)
        assert fault.claimed_step == "protocol"
        assert child.receive() is None


_SESSION = """
import os, sys, threading
from rambarde_child import turn
import support.child_loop
from support.child_loop import ChildLoop, call
from pathlib import Path
workspace = Path(sys.argv[1])
with ChildLoop(workspace, begin=False) as child:
    pass
before = set(sys.modules)
with ChildLoop(workspace) as child:
    child.perform(
        call("write", "1", path="a/b", content="caf\\u00e9 one\\r\\ntwo\\r\\n"),
        call("edit", "2", path="a/b", old_string="one\\ntwo", new_string="1\\n2"),
        call("edit", "3", path="a/b", old_string="nowhere", new_string="x"),
        call("read", "4", path="a/b"),
        call("read", "5", path="$'\\\\xff'"),
        call("glob", "6", pattern="**/[a-z]*.{py,js}"),
        call("glob", "7", pattern="[z-a]"),
        call("read", "8", path="/etc/passwd"),
        call("bash", "9"),
        call("read", "10", path=3),
    )
grown = sorted(set(sys.modules) - before)
assert not grown, grown
"""


def test_session_imports_nothing(tmp_path: Path) -> None:
    """Once the loop's module is loaded, no tool and no refusal imports another one."""
    search = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", _SESSION, str(tmp_path)],
        env={"PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
