"""Bounds that hold whatever a call asks for."""

from __future__ import annotations

from pathlib import Path

from rambarde_wire import frames
from support.child_loop import ChildLoop, call


def test_edit_whose_result_is_too_large_is_not_asked_for(tmp_path: Path) -> None:
    """A replacement that blows a file up past the limit is refused with both sizes."""
    (tmp_path / "f").write_bytes(b"x" * 50)
    with ChildLoop(tmp_path, limits=frames.ToolLimits(file_bytes=100)) as child:
        arguments = {"old_string": "x", "new_string": "yyy", "replace_all": True}
        [result] = child.perform(call("edit", path="f", **arguments))
    assert isinstance(result, frames.TellResult)
    assert result.claimed_code == "too_large"
    assert "150 bytes, at most 100" in result.claimed_text


def test_claimed_diff_is_bounded(tmp_path: Path) -> None:
    """The diff that goes with a write stays within its limit, plus one line that says so."""
    limits = frames.ToolLimits(diff_bytes=1000)
    with ChildLoop(tmp_path, limits=limits) as child:
        _, wrote, _ = child.perform(call("write", path="f", content="line\n" * 10_000))
    assert isinstance(wrote, frames.TellWrote)
    assert len(wrote.claimed_diff.encode()) < 1100
    assert wrote.claimed_diff.endswith("the rest is left out]")
