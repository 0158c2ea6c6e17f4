"""Editing: bytes in, bytes out, and one place or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde_child.tools.folded import FoldedText
from rambarde_wire import frames
from support.child_loop import ChildLoop, call


def _edit(
    workspace: Path, content: bytes, old: str, new: str, *, replace_all: bool = False
) -> tuple[frames.TellResult, bytes]:
    (workspace / "f").write_bytes(content)
    with ChildLoop(workspace) as child:
        result = child.result(
            "edit", path="f", old_string=old, new_string=new, replace_all=replace_all
        )
    return result, (workspace / "f").read_bytes()


@pytest.mark.parametrize(
    ("content", "old", "new", "expected"),
    [
        (b"\xef\xbb\xbfone\r\ntwo", "two", "2", b"\xef\xbb\xbfone\r\n2"),
        (b"caf\xe9 one\n\xff\xfe", "one", "1", b"caf\xe9 1\n\xff\xfe"),
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\nb\n", "a\nb", "a\r\nb", b"a\r\nb\n"),
        (b"a\nb\n", "a\r\nb", "c\r\nd", b"c\nd\n"),
        (b"a\r\nb\nc\r\nd\n", "a\nb\nc\nd", "a\nB\nc\nd", b"a\r\nB\nc\r\nd\n"),
        (b"a\r\nb\nc\r\nd\n", "a\nb\nc", "a\nb\nnew\nc", b"a\r\nb\nnew\nc\r\nd\n"),
        (b"a\r\nb", "\nb", "\nc", b"a\r\nc"),
        (b"a\r\r\nb", "\nb", "", b"a\r"),
        (b"x\ry\r\n", "y", "z", b"x\rz\r\n"),
        (b"one", "one", "", b""),
        (b"a\0b", "a", "c", b"c\0b"),
        ("é\n".encode(), "é", "è", "è\n".encode()),
    ],
)
def test_edit_keeps_every_untouched_byte(
    tmp_path: Path, content: bytes, old: str, new: str, expected: bytes
) -> None:
    """Line ends (mixed too), mark, encoding and last newline stay; only the place changes."""
    result, after = _edit(tmp_path, content, old, new)
    assert result.claimed_ok, result.claimed_text
    assert expected == after


_PIECES = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r\n", b"\r", b"\xe9"]), max_size=12)


@given(before=_PIECES, after=_PIECES)
def test_edit_law_outside_bytes_stay(before: list[bytes], after: list[bytes]) -> None:
    """Whatever surrounds the place, its bytes are the same after as before."""
    head, tail = b"".join(before), b"".join(after)
    text = FoldedText(head + b"<x\r\ny>" + tail)
    assert text.count(b"<x\ny>") == 1
    spots = text.spots(b"<x\ny>", most=2)
    assert head + b"<X\r\ny\r\nz>" + tail == text.replaced(spots, b"<x\ny>", b"<X\ny\nz>")


def test_edit_found_twice_is_refused_with_count_and_lines(tmp_path: Path) -> None:
    """Two places: nothing is written, and the model is told how many and where."""
    result, after = _edit(tmp_path, b"x\ny\nx\n", "x", "z")
    assert result.claimed_code == "not_unique"
    assert "2 times, at line 1, 3" in result.claimed_text
    assert after == b"x\ny\nx\n"


def test_edit_sees_same_text_under_both_line_ends(tmp_path: Path) -> None:
    """A text once with LF and once with CRLF is there twice."""
    result, _ = _edit(tmp_path, b"a\nb\n-\na\r\nb\r\n", "a\nb", "c")
    assert result.claimed_code == "not_unique"


def test_edit_of_text_overlapping_itself_is_refused(tmp_path: Path) -> None:
    """`aa` in `aaa` has two places."""
    result, _ = _edit(tmp_path, b"aaa", "aa", "b")
    assert result.claimed_code == "not_unique"


def test_edit_replaces_all_when_told(tmp_path: Path) -> None:
    """With replace_all every place is replaced, each with its own line ends."""
    result, after = _edit(tmp_path, b"a\nb\na\r\nb\r\n", "a\nb", "1\n2", replace_all=True)
    assert result.claimed_ok
    assert after == b"1\n2\n1\r\n2\r\n"
    assert "replaced 2 at line 1, 3" in result.claimed_text


def test_edit_already_done_is_up_to_date(tmp_path: Path) -> None:
    """When only the new text is there nothing is asked or written, and it is a success."""
    (tmp_path / "f").write_bytes(b"new\n")
    with ChildLoop(tmp_path) as child:
        sent = child.perform(call("edit", path="f", old_string="old", new_string="new"))
    [result] = sent
    assert isinstance(result, frames.TellResult)
    assert (result.claimed_ok, result.claimed_code) == (True, "up_to_date")


def test_edit_never_matches_nearly(tmp_path: Path) -> None:
    """Other spacing is no match; the refusal says where the first line is."""
    result, after = _edit(tmp_path, b"a\n    def f():\n        pass\n", "def f():\n    pass", "x")
    assert result.claimed_code == "no_match"
    assert "first line is at line 2" in result.claimed_text
    assert after.startswith(b"a\n")


def test_edit_of_missing_file_names_write(tmp_path: Path) -> None:
    """An edit makes no file."""
    with ChildLoop(tmp_path) as child:
        result = child.result("edit", path="a/b", old_string="x", new_string="y")
    assert result.claimed_code == "not_found"
    assert not os.listdir(tmp_path)


def test_edit_of_same_text_is_refused(tmp_path: Path) -> None:
    """Old and new text being equal is an error of the call."""
    assert _edit(tmp_path, b"x", "x", "x")[0].claimed_code == "no_change"


def test_edit_refuses_file_above_limit(tmp_path: Path) -> None:
    """A file larger than the limit is refused with both sizes, before it is read."""
    (tmp_path / "f").write_bytes(b"x" * 101)
    with ChildLoop(tmp_path, limits=frames.ToolLimits(file_bytes=100)) as child:
        result = child.result("edit", path="f", old_string="x", new_string="y")
    assert result.claimed_code == "too_large"
    assert "101 bytes, at most 100" in result.claimed_text


def test_ten_edits_in_a_row_pass(tmp_path: Path) -> None:
    """Each edit asks with the hash that the one before it told."""
    (tmp_path / "f").write_bytes(b"0\n")
    told = ""
    with ChildLoop(tmp_path) as child:
        for n in range(10):
            ask, wrote, result = child.perform(
                call("edit", path="f", old_string=str(n), new_string=str(n + 1))
            )
            assert isinstance(ask, frames.AskWrite)
            assert isinstance(wrote, frames.TellWrote)
            assert isinstance(result, frames.TellResult)
            assert result.claimed_ok
            assert told in ("", ask.claimed_sha256)
            told = wrote.claimed_sha256
