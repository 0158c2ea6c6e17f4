"""Writing: whole or not at all, asked first, told after."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from rambarde_wire import frames
from support.child_loop import ChildLoop, call, results


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_write_asks_then_writes_then_tells(tmp_path: Path) -> None:
    """The question carries the old hash, the news the new one; the result comes last."""
    (tmp_path / "f").write_bytes(b"old\n")
    with ChildLoop(tmp_path) as child:
        sent = child.perform(call("write", path="f", content="new\r\n"))
    path = os.fsencode(tmp_path / "f")
    assert sent[:2] == [
        frames.AskWrite("c1", path, _sha256(b"old\n")),
        frames.TellWrote("c1", path, _sha256(b"new\r\n"), "@@ -1,1 +1,1 @@\n-old\n+new␍"),
    ]
    assert results(sent)[0].claimed_ok
    assert (tmp_path / "f").read_bytes() == b"new\r\n"


def test_write_makes_folders_and_leaves_nothing_beside(tmp_path: Path) -> None:
    """Missing folders are made with the rights of the one above; no temporary file stays."""
    os.chmod(tmp_path, 0o755)
    old = os.umask(0o077)
    try:
        with ChildLoop(tmp_path) as child:
            assert child.result("write", path="a/b/c", content="x").claimed_ok
    finally:
        os.umask(old)
    assert os.listdir(tmp_path / "a" / "b") == ["c"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c").stat().st_mode) == 0o644


def test_write_keeps_mode(tmp_path: Path) -> None:
    """An executable stays one."""
    (tmp_path / "f").write_bytes(b"x")
    os.chmod(tmp_path / "f", 0o751)
    with ChildLoop(tmp_path) as child:
        assert child.result("write", path="f", content="y").claimed_ok
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o751


def test_write_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    """The target inside the workspace gets the content, its canonical path is asked for."""
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    with ChildLoop(tmp_path) as child:
        ask = child.perform(call("write", path="link", content="y"))[0]
    assert isinstance(ask, frames.AskWrite)
    assert ask.claimed_path == os.fsencode(tmp_path / "real")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"y"


def test_refused_write_changes_nothing_and_says_why(tmp_path: Path) -> None:
    """The supervisor's words reach the model; nothing is made, nothing is told as written."""

    def refuse(ask: frames.AskWrite) -> frames.ReplyWrite:
        return frames.ReplyWrite(ask.call_id, allowed=False, code="not_read", text="read it first")

    with ChildLoop(tmp_path) as child:
        ask, result = child.perform(call("write", path="a/f", content="x"), answer=refuse)
    assert isinstance(ask, frames.AskWrite)
    assert isinstance(result, frames.TellResult)
    assert (
        result.claimed_ok,
        result.claimed_code,
        result.claimed_text,
    ) == (False, "not_read", "read it first")
    assert not os.listdir(tmp_path)


def test_write_is_refused_where_workspace_is_read_only(tmp_path: Path) -> None:
    """An agent without the right to write does not even ask."""
    with ChildLoop(tmp_path, writable=False) as child:
        [result] = child.perform(call("write", path="f", content="x"))
    assert isinstance(result, frames.TellResult)
    assert result.claimed_code == "read_only"


@pytest.mark.parametrize("kind", ["fifo", "folder", "link_out", "below_file", "root"])
def test_write_refuses_what_is_no_file(tmp_path: Path, kind: str) -> None:
    """Only a regular file or nothing may be at the path; nothing is asked otherwise."""
    work = tmp_path / "w"
    work.mkdir()
    path = "x"
    if kind == "fifo":
        os.mkfifo(work / "x")
    elif kind == "folder":
        (work / "x").mkdir()
    elif kind == "link_out":
        (work / "x").symlink_to(tmp_path / "outside")
    elif kind == "below_file":
        (work / "x").touch()
        path = "x/y"
    else:
        path = "."
    with ChildLoop(work) as child:
        [result] = child.perform(call("write", path=path, content="x"))
    assert isinstance(result, frames.TellResult)
    assert result.claimed_code in {"not_regular", "is_folder", "outside", "not_found"}
    assert not (tmp_path / "outside").exists()


def _to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _to_other_content(path: Path) -> None:
    path.write_bytes(b"other")


def _parent_to_link(path: Path) -> None:
    os.rename(path.parent, path.parent.with_name("moved"))
    path.parent.symlink_to("/etc")


@pytest.mark.parametrize("swap", [_to_fifo, _to_link, _to_other_content, _parent_to_link])
def test_swap_while_the_supervisor_decides_stops_the_write(
    tmp_path: Path, swap: Callable[[Path], None]
) -> None:
    """What is there must still be what was asked about; the lock is given back either way."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"old")

    def swap_then_allow(ask: frames.AskWrite) -> frames.ReplyWrite:
        swap(tmp_path / "d" / "f")
        return frames.ReplyWrite(ask.call_id, allowed=True)

    with ChildLoop(tmp_path) as child:
        _, wrote, result = child.perform(
            call("write", path="d/f", content="new"), answer=swap_then_allow
        )
    assert isinstance(wrote, frames.TellWrote)
    assert isinstance(result, frames.TellResult)
    assert (wrote.claimed_sha256, wrote.claimed_diff) == ("", "")
    assert not result.claimed_ok
    assert result.claimed_code in {"stale", "not_regular", "changed", "not_found"}
    assert not any(name.startswith(".f") for name in os.listdir(tmp_path / "d"))


def test_failing_write_names_path_and_errno(tmp_path: Path) -> None:
    """A name that is too long is refused by the kernel's words, before anything is asked."""
    with ChildLoop(tmp_path) as child:
        [result] = child.perform(call("write", path="n" * 256, content="x"))
    assert isinstance(result, frames.TellResult)
    assert result.claimed_code == "bad_path"
    assert "ENAMETOOLONG" in result.claimed_text


def test_parent_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Of a/b/c where a is a file, the part that failed is named."""
    (tmp_path / "a").touch()
    with ChildLoop(tmp_path) as child:
        result = child.result("write", path="a/b/c", content="x")
    assert result.claimed_text.startswith("a: ")
    assert "ENOTDIR" in result.claimed_text
