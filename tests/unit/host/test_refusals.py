"""Folders that are no workspace, whichever way they are spelled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rambarde.errors import UsageError
from rambarde.host.refusals import check_workspace


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configuration and records of this test only, outside its home."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own" / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own" / "state"))
    (tmp_path / "own" / "config" / "rambarde" / "agents").mkdir(parents=True)
    (tmp_path / "own" / "config" / "editor").mkdir()
    return tmp_path / "own"


def check(path: Path, home: str = "/nonexistent") -> os.stat_result:
    """Check a folder as the scan does."""
    return check_workspace(os.path.realpath(os.fsencode(path)), os.fsencode(path), home)


def test_a_projects_folder_is_a_workspace(own: Path, tmp_path: Path) -> None:
    """And its status is told."""
    (tmp_path / "project").mkdir()
    assert check(tmp_path / "project").st_ino == (tmp_path / "project").stat().st_ino


@pytest.mark.parametrize("name", [".", "config", "config/rambarde", "config/rambarde/agents"])
def test_what_holds_rambardes_own_folders_or_lies_in_them_is_none(own: Path, name: str) -> None:
    """An agent there would write its own rules; a link to it does not help."""
    link = own.parent / "link"
    link.symlink_to(own / name)
    for path in (own / name, link):
        with pytest.raises(UsageError, match="rambarde's own"):
            check(path)


def test_records_that_do_not_exist_yet_are_kept_too(own: Path) -> None:
    """The folder that will hold them is refused before the first run made it."""
    (own / "state").mkdir()
    with pytest.raises(UsageError, match="records"):
        check(own / "state")


def test_a_neighbour_of_the_configuration_is_a_workspace(own: Path) -> None:
    """What other programs keep beside it is not ours to refuse."""
    check(own / "config" / "editor")


@pytest.mark.parametrize("path", ["/", "/usr/share", "/etc", "/proc/self", "/sys", "/dev/shm"])
def test_the_system_is_none_with_all_that_is_in_it(own: Path, path: str) -> None:
    """An agent is given a project, not the machine."""
    with pytest.raises(UsageError, match="system"):
        check(Path(path))


@pytest.mark.parametrize("path", ["/tmp", "/var", "/home", "/opt"])
def test_folders_of_many_are_none_but_what_is_in_them_may_be(own: Path, path: str) -> None:
    """Each is refused by itself."""
    with pytest.raises(UsageError, match="part of the system"):
        check(Path(path))


def test_the_text_of_a_refusal_cannot_drive_a_terminal(own: Path, tmp_path: Path) -> None:
    """A name with an escape sequence is written out."""
    with pytest.raises(UsageError) as caught:
        check(tmp_path / "\x1b[2J\n")
    assert str(caught.value).startswith("the workspace $'")
    assert str(caught.value).isprintable()


def test_a_folder_that_may_not_be_entered_is_refused(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To list is not enough; said before anything is started."""
    monkeypatch.setattr(os, "access", lambda *_a, **_k: False)
    with pytest.raises(UsageError, match="cannot be read"):
        check(tmp_path)
