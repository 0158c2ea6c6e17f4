"""Paths of the workspace are opened through no link, without waiting, and bounded."""

from __future__ import annotations

import errno
import os
import time

import pytest

from rambarde.host.around import all_but
from rambarde.host.beneath import open_beneath, read_beneath
from rambarde.host.expand import expand
from rambarde_wire.orders import Mask


def read(root, name, most=100):
    return read_beneath(os.fsencode(root), os.fsencode(name), max_bytes=most)


def test_a_regular_file_is_read_up_to_its_bound(tmp_path):
    """One byte more than the bound is no content at all."""
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert read(tmp_path, "a") == b"x" * 100
    assert read(tmp_path, "a", most=99) is None
    assert read(tmp_path, "absent") is None


def test_a_huge_sparse_file_costs_no_memory(tmp_path):
    """Reading ends one byte after the bound."""
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert read(tmp_path, "huge", most=1 << 20) is None


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "device"])
def test_what_is_no_regular_file_has_no_content(tmp_path, kind):
    """And nobody waits for the other end of a pipe."""
    if kind == "fifo":
        os.mkfifo(tmp_path / "x")
    elif kind == "folder":
        (tmp_path / "x").mkdir()
    elif kind == "socket":
        os.mknod(tmp_path / "x", 0o140600)
    started = time.monotonic()
    assert (
        read("/dev" if kind == "device" else tmp_path, "zero" if kind == "device" else "x") is None
    )
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("path", ["link", "folder/f", "../out", "a/../../out", "/etc/passwd"])
def test_no_way_leads_out(tmp_path, path):
    """Neither a link at the end, nor one on the way, nor dots, nor a leading slash."""
    (tmp_path / "out").write_text("secret")
    root = tmp_path / "ws"
    (root / "a").mkdir(parents=True)
    (root / "link").symlink_to("../out")
    (root / "folder").symlink_to("a")
    (root / "a" / "f").write_text("x")
    assert read(root, path) is None


def test_the_error_tells_a_link_from_a_way_out(tmp_path):
    """ELOOP and EXDEV, as openat2(2) has them."""
    (tmp_path / "link").symlink_to("x")
    root_fd = os.open(tmp_path, os.O_PATH)
    try:
        for path, number in ((b"link", errno.ELOOP), (b"..", errno.EXDEV), (b"no", errno.ENOENT)):
            with pytest.raises(OSError) as caught:
                open_beneath(root_fd, path)
            assert caught.value.errno == number
        fd = open_beneath(root_fd, b".", flags=os.O_PATH)
        os.close(fd)
    finally:
        os.close(root_fd)


def test_a_name_with_a_zero_byte_names_nothing_else(tmp_path):
    """The C string would end there and name another file."""
    (tmp_path / "a").write_text("x")
    assert read(tmp_path, "a\0b") is None


def test_patterns_find_names_and_enter_no_link(tmp_path):
    """One star stands for one part, two for any number, hidden names included."""
    for name in ("m/a/hooks", "m/.b/c/hooks", "m/d/hook"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "m" / "loop").symlink_to(".")
    root = os.fsencode(tmp_path)

    def found(pattern):
        return sorted(os.fsdecode(p.removeprefix(root + b"/")) for p in expand(root, pattern))

    assert found(b"m/**/hooks") == ["m/.b/c/hooks", "m/a/hooks"]
    assert found(b"m/*/hook*") == ["m/a/hooks", "m/d/hook"]
    assert found(b"m/d") == ["m/d"]
    assert found(b"m/absent") == []


def test_all_but_the_masks_is_granted(tmp_path):
    """Folders on the way are listed, their other entries granted, links left out."""
    for name in ("a/b/secret", "a/b/open", "a/c/x", "d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "a" / "alias").symlink_to("b/secret")
    root = os.fsencode(tmp_path)
    found = all_but(root, [Mask(root + b"/a/b/secret", is_dir=False)])
    assert found.listed == (root, root + b"/a", root + b"/a/b")
    assert found.granted == (root + b"/a/b/open", root + b"/a/c", root + b"/d")
    assert all_but(root, []).granted == (root,)
