"""The hash of a file of the workspace: of what is there, of nothing else, within bounds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rambarde.host import digest
from rambarde.host.digest import ABSENT, NotRegularError, WorkspaceDigest

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> Iterator[WorkspaceDigest]:
    """The digest of the files below `tmp_path`."""
    root_fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield WorkspaceDigest(root_fd)
    os.close(root_fd)


async def test_digest_is_the_sha256_of_the_content(tmp_path: Path, files: WorkspaceDigest) -> None:
    """The same hash as the child makes of what it read, for small and larger files."""
    (tmp_path / "d").mkdir()
    for content in (b"", b"text\n", b"x" * (digest.INLINE_BYTES + 3)):
        (tmp_path / "d" / "f").write_bytes(content)
        assert await files(b"d/f") == hashlib.sha256(content).hexdigest()


async def test_digest_does_not_see_times(tmp_path: Path, files: WorkspaceDigest) -> None:
    """Touching changes nothing; other content of the same size and time does."""
    path = tmp_path / "f"
    path.write_bytes(b"one")
    before = await files(b"f")
    os.utime(path, ns=(1, 1))
    assert await files(b"f") == before
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert await files(b"f") != before


@pytest.mark.parametrize("path", [b"absent", b"no/folder", b"f/below-a-file"])
async def test_digest_of_nothing_is_empty(
    tmp_path: Path, files: WorkspaceDigest, path: bytes
) -> None:
    """No file there: absent, not an error."""
    (tmp_path / "f").write_bytes(b"x")
    assert await files(path) == ABSENT


async def test_digest_refuses_what_is_no_plain_file(tmp_path: Path, files: WorkspaceDigest) -> None:
    """Links in any part, folders, pipes: refused without reading and without waiting."""
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "g").write_bytes(b"x")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "way").symlink_to("d")
    os.mkfifo(tmp_path / "pipe")
    for path in (b"link", b"out", b"way/g", b"d", b"pipe"):
        with pytest.raises(NotRegularError):
            await files(path)


async def test_digest_of_a_big_file_is_marked_and_sees_its_ends(
    tmp_path: Path, files: WorkspaceDigest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound: size, time, inode and both ends, and never equal to a content's hash."""
    monkeypatch.setattr(digest, "WHOLE_BYTES", 100)
    monkeypatch.setattr(digest, "EDGE_BYTES", 10)
    path = tmp_path / "f"
    seen = set()
    for content in (b"x" * 101, b"y" + b"x" * 100, b"x" * 100 + b"y", b"x" * 102):
        path.write_bytes(content)
        os.utime(path, ns=(1, 1))
        seen.add(await files(b"f"))
    os.utime(path, ns=(1, 2))
    seen.add(await files(b"f"))
    assert len(seen) == 5
    assert all(entry.startswith("big:") for entry in seen)


async def test_digest_leaves_no_descriptor_open(tmp_path: Path, files: WorkspaceDigest) -> None:
    """Neither for a file nor for a refusal."""
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "d").mkdir()
    before = os.listdir("/proc/self/fd")
    await files(b"f")
    with pytest.raises(NotRegularError):
        await files(b"d")
    assert len(os.listdir("/proc/self/fd")) == len(before)
