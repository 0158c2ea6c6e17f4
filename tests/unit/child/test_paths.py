"""Paths: which words lead where, and what is outside."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde_child.outcome import ToolError
from rambarde_child.tools.paths import parse_path, show
from support.child_loop import ChildLoop


@given(st.binary(min_size=1, max_size=64).filter(lambda path: b"\0" not in path))
def test_shown_path_reads_back(path: bytes) -> None:
    """Every path as shown to the model is read back to the same bytes."""
    assert parse_path(show(path)) == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (r"$'caf\xe9'", b"caf\xe9"),
        (r"$'a\nb\t\'\\'", b"a\nb\t'\\"),
        (r"$'\101\u00e9\e'", b"A\xc3\xa9\x1b"),
        ("$'", b"$'"),
        ("café", "café".encode()),
        (" a ", b" a "),
    ],
)
def test_parse_path_reads_bash_quoting(text: str, path: bytes) -> None:
    """The form `$'…'` is read as bash reads it; all else is taken as it is."""
    assert path == parse_path(text)


@pytest.mark.parametrize("text", ["a\0b", r"$'\x00'", "x" * 4096, r"$'\ud800'", "\ud800"])
def test_parse_path_refuses_what_is_no_path(text: str) -> None:
    """NUL, more than 4095 bytes and characters that do not exist are refused in words."""
    with pytest.raises(ToolError) as caught:
        parse_path(text)
    assert caught.value.code == "bad_path"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "up/x", "away/passwd", "/"])
def test_outside_is_said_in_words(tmp_path: Path, path: str) -> None:
    """Dots, absolute paths and links that lead out all have the code `outside`."""
    (tmp_path / "w" / "a").mkdir(parents=True)
    (tmp_path / "w" / "up").symlink_to("..")
    (tmp_path / "w" / "away").symlink_to("/etc")
    with ChildLoop(tmp_path / "w") as child:
        result = child.result("read", path=path)
    assert result.claimed_code == "outside"


def test_both_spellings_of_a_linked_workspace_are_accepted(tmp_path: Path) -> None:
    """A workspace reached through a link takes absolute paths in either spelling."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(b"x\n")
    (tmp_path / "link").symlink_to("real")
    for workspace in ("real", "link"):
        for spelling in ("real", "link"):
            with ChildLoop(tmp_path / workspace) as child:
                assert child.result("read", path=f"{tmp_path}/{spelling}/a").claimed_ok


def test_absolute_link_inside_is_followed(tmp_path: Path) -> None:
    """A link to an absolute path of the workspace is inside."""
    (tmp_path / "a").write_bytes(b"x\n")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with ChildLoop(tmp_path) as child:
        assert child.result("read", path="b").claimed_ok


def test_dots_after_a_link_are_those_of_its_target(tmp_path: Path) -> None:
    """`link/..` is the folder above the target, as for the kernel."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x").write_bytes(b"in a\n")
    (tmp_path / "link").symlink_to("a/b")
    with ChildLoop(tmp_path) as child:
        assert "in a" in child.result("read", path="link/../x").claimed_text


@pytest.mark.parametrize(
    "name", [b"\xff", b"a\nb", b"\x1b]52;c;x\x07", b"-rf", b"end ", b"n" * 255, b"$'x'"]
)
def test_hostile_names_are_read_and_edited(tmp_path: Path, name: bytes) -> None:
    """A file of any name can be listed, and read and edited by the name as listed."""
    path = os.fsencode(tmp_path) + b"/" + name
    with open(path, "wb") as file:
        file.write(b"one\n")
    with ChildLoop(tmp_path) as child:
        shown = child.result("glob", pattern="*").claimed_text
        assert shown.isprintable()
        assert child.result("read", path=shown).claimed_ok
        edited = child.result("edit", path=shown, old_string="one", new_string="two")
        assert edited.claimed_ok, edited.claimed_text
    with open(path, "rb") as file:
        assert file.read() == b"two\n"


def test_folder_swapped_for_a_link_never_leads_out(tmp_path: Path) -> None:
    """While a folder and a link to outside change places, only the inside is read or written."""
    work, outside = tmp_path / "w", tmp_path / "outside"
    for folder in (work / "real", outside):
        folder.mkdir(parents=True)
    (work / "real" / "x").write_bytes(b"inside\n")
    (outside / "x").write_bytes(b"canary\n")
    (work / "away").symlink_to(outside)
    os.rename(work / "real", work / "d")
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    here, there = os.fsencode(work / "d"), os.fsencode(work / "away")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            # AT_FDCWD and RENAME_EXCHANGE: at every instant one of both is there.
            assert exchange(-100, here, -100, there, 2) == 0

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        with ChildLoop(work) as child:
            seen = [child.result("read", path="d/x").claimed_text for _ in range(60)]
            for _ in range(60):
                child.result("write", path="d/new", content="written\n")
    finally:
        stop.set()
        swapper.join()
    assert not any("canary" in text for text in seen)
    assert any("inside" in text for text in seen)
    assert [entry.name for entry in outside.iterdir()] == ["x"]
