"""Reading: what is shown, what is told, what is refused."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from rambarde_child.tools import read
from rambarde_wire import frames
from support.child_loop import ChildLoop, call, results


def _read(workspace: Path, **arguments: Any) -> frames.TellResult:
    with ChildLoop(workspace) as child:
        return child.result("read", **arguments)


def test_read_numbers_lines_and_counts_them(tmp_path: Path) -> None:
    """A small file is shown whole with its number of lines."""
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
    result = _read(tmp_path, path="a.txt")
    assert result.claimed_ok
    assert result.claimed_text == "     1\tone\n     2\ttwo\n(lines 1 to 2 of 2)"


def test_read_tells_canonical_path_and_hash_of_all(tmp_path: Path) -> None:
    """Even when one line is shown, the hash is of the whole file, the path without links."""
    content = b"".join(b"line %d\n" % n for n in range(50_000))
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "big").write_bytes(content)
    (tmp_path / "link").symlink_to("real")
    with ChildLoop(tmp_path) as child:
        sent = child.perform(call("read", path="link/../link/./big", offset=7, limit=1))
    told = frames.TellRead(
        "c1", os.fsencode(tmp_path / "real" / "big"), hashlib.sha256(content).hexdigest()
    )
    assert sent[0] == told
    [result] = results(sent)
    assert result.claimed_text == "     7\tline 6\n(lines 7 to 7 of 50000; next offset 8)"


def test_read_shows_400_lines_and_at_most_1000(tmp_path: Path) -> None:
    """Without a limit 400 lines are shown, with the greatest one 1000."""
    (tmp_path / "a").write_bytes(b"x\n" * 1500)
    assert "(lines 1 to 400 of 1500; next offset 401)" in _read(tmp_path, path="a").claimed_text
    most = _read(tmp_path, path="a", limit=1000, offset=501).claimed_text
    assert "(lines 501 to 1500 of 1500)" in most


def test_read_cuts_lines_at_500_code_points(tmp_path: Path) -> None:
    """A long line is cut by characters, not bytes, and says how long it is."""
    (tmp_path / "a").write_text("é" * 501 + "\n" + "é" * 500 + "\n")
    lines = _read(tmp_path, path="a").claimed_text.split("\n")
    assert lines[0] == "     1\t" + "é" * 500 + "…[cut: the line has 1002 bytes]"
    assert lines[1] == "     2\t" + "é" * 500


def test_read_of_one_giant_line_keeps_little(tmp_path: Path) -> None:
    """A line of megabytes does not become a result of megabytes."""
    (tmp_path / "a").write_bytes(b"x" * (3 << 20))
    result = _read(tmp_path, path="a")
    assert len(result.claimed_text) < 700
    assert "(lines 1 to 1 of 1; no newline at the end)" in result.claimed_text


def test_read_fingerprint_sees_what_a_cut_hides(tmp_path: Path) -> None:
    """Two files that differ only beyond the cut of a line look the same but are told apart."""
    (tmp_path / "a").write_bytes(b"x" * 900 + b"1\n")
    (tmp_path / "b").write_bytes(b"x" * 900 + b"2\n")
    first, second = _read(tmp_path, path="a"), _read(tmp_path, path="b")
    assert first.claimed_text == second.claimed_text
    assert first.claimed_fingerprint != second.claimed_fingerprint


def test_read_refuses_nul_in_first_8_kib(tmp_path: Path) -> None:
    """A NUL early on means binary; one after 8 KiB does not."""
    (tmp_path / "early").write_bytes(b"x" * 8191 + b"\0")
    (tmp_path / "late").write_bytes(b"x" * 8192 + b"\0")
    assert _read(tmp_path, path="early").claimed_code == "binary"
    assert _read(tmp_path, path="late").claimed_ok


def test_read_puts_one_mark_for_each_invalid_sequence(tmp_path: Path) -> None:
    """A cut three-byte sequence is one U+FFFD, two stray bytes are two."""
    (tmp_path / "a").write_bytes(b"\xe2\x82 \xff\xfe\n")
    text = _read(tmp_path, path="a").claimed_text
    assert text.startswith("     1\t\ufffd \ufffd\ufffd\n")
    assert "bytes that are not UTF-8" in text


def test_read_says_what_cannot_be_seen(tmp_path: Path) -> None:
    """CRLF, byte order mark and a missing last newline are named, not shown."""
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    text = _read(tmp_path, path="a").claimed_text
    assert text.startswith("     1\tone\n     2\ttwo\n")
    for note in ("CRLF", "byte order mark", "no newline at the end"):
        assert note in text


def test_read_of_empty_file_is_told(tmp_path: Path) -> None:
    """An empty file counts as read."""
    (tmp_path / "a").touch()
    with ChildLoop(tmp_path) as child:
        told, result = child.perform(call("read", path="a"))
    assert isinstance(told, frames.TellRead)
    assert isinstance(result, frames.TellResult)
    assert result.claimed_text == "(the file is empty)"


def test_read_past_end_is_refused_and_not_told(tmp_path: Path) -> None:
    """What was not shown does not count as read."""
    (tmp_path / "a").write_bytes(b"x\n")
    with ChildLoop(tmp_path) as child:
        [result] = child.perform(call("read", path="a", offset=2))
    assert isinstance(result, frames.TellResult)
    assert result.claimed_code == "past_end"
    assert "1 lines" in result.claimed_text


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "link_to_fifo", "loop"])
def test_read_never_waits_on_what_is_no_file(tmp_path: Path, kind: str) -> None:
    """FIFO, socket, folder, and links to such are refused in words, at once."""
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "link_to_fifo":
        os.mkfifo(tmp_path / "f")
        path.symlink_to("f")
    else:
        path.symlink_to("y")
        (tmp_path / "y").symlink_to("x")
    result = _read(tmp_path, path="x")
    assert not result.claimed_ok
    assert result.claimed_code in {"not_regular", "is_folder", "bad_path"}


def test_read_of_huge_file_ends_in_time_and_claims_no_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that takes too long is shown in part and does not count as read."""
    monkeypatch.setattr(read, "BUSY_S", 0.002)
    with open(tmp_path / "text", "wb") as file:
        file.write(b"first\n" * 2000)
        file.truncate(64 << 30)
    with ChildLoop(tmp_path) as child:
        [result] = child.perform(call("read", path="text", limit=1))
    assert isinstance(result, frames.TellResult)
    assert result.claimed_text.startswith("     1\tfirst\n(lines 1 to 1 of more than ")
    assert "next offset 2" in result.claimed_text


def test_read_names_the_part_of_the_path_that_is_missing(tmp_path: Path) -> None:
    """The folder that is not there is named, not the file in it."""
    (tmp_path / "a").mkdir()
    result = _read(tmp_path, path="a/b/c.txt")
    assert result.claimed_code == "not_found"
    assert result.claimed_text.startswith("a/b: ")


def test_read_that_would_be_too_long_goes_on_at_the_next_offset(tmp_path: Path) -> None:
    """Lines that do not fit are not cut off: the next offset is the first one not shown."""
    (tmp_path / "a").write_bytes((b"x" * 99 + b"\n") * 100)
    limits = frames.ToolLimits(result_bytes=2000)
    with ChildLoop(tmp_path, limits=limits) as child:
        first = child.result("read", path="a")
        assert first.claimed_elided_bytes == 0
        assert len(first.claimed_text.encode()) <= 2000
        assert "(lines 1 to 14 of 100; next offset 15)" in first.claimed_text
        second = child.result("read", path="a", offset=15)
    assert second.claimed_text.startswith("    15\t")
