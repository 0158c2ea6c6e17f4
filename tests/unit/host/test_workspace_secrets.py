"""Secrets of a workspace are hidden wherever they lie, and stay where they were hidden."""

from __future__ import annotations

import os
import sys
import time
import venv
from pathlib import Path

import pytest

from rambarde.host import workspace as module
from rambarde.host.workspace import Workspace, scan_workspace
from support.policies import WORKSPACE_WRITE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace, empty yet."""
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def scan(root: Path | bytes) -> Workspace:
    """Scan with the shipped patterns."""
    return scan_workspace(
        os.fspath(root),
        protected=WORKSPACE_WRITE.protected,
        masks=WORKSPACE_WRITE.masks,
        home="/nonexistent",
    )


def put(root: Path, *names: str, content: bytes = b"x\n") -> None:
    """Make files with their folders."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def masked(space: Workspace) -> set[str]:
    """The masked paths, relative, as text."""
    return {
        os.path.relpath(os.fsdecode(mask.path), os.fsdecode(space.root)) for mask in space.masks
    }


def test_the_folders_above_a_mask_cannot_be_renamed(root: Path) -> None:
    """An agent that moved one would hand the secret, under its new path, to the next agent."""
    put(root, "deploy/prod/.env")
    space = scan(root)
    pins = [os.path.relpath(os.fsdecode(pin), root) for pin in space.pins]
    assert pins == ["deploy", "deploy/prod"]


def test_secrets_in_protected_folders_are_hidden(root: Path) -> None:
    """Read-only is not unreadable; and a protected folder has no leaves within."""
    put(
        root, ".devcontainer/.env", ".vscode/deep/id_rsa", ".claude/.envrc", ".claude/x/.git/config"
    )
    space = scan(root)
    assert masked(space) == {".devcontainer/.env", ".vscode/deep/id_rsa"}
    leaves = {os.path.basename(path) for path in space.read_only}
    assert leaves == {b".devcontainer", b".vscode", b".claude"}


@pytest.mark.parametrize(
    ("content", "hidden"),
    [
        (b"-----BEGIN CERTIFICATE-----\nMII\n", False),
        (b"-----BEGIN PUBLIC KEY-----\nMII\n", False),
        (b"# a bundle\n-----BEGIN CERTIFICATE-----\n" + b"MII\n" * 75_000, False),
        (b"", False),
        (b"-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\n", True),
        (b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n", True),
        (b"\x30\x82\x04\xa4\x02\x01\x00", True),
        (b"d41d8cd98f00b204e9800998ecf8427e\n", True),
        (b"-----BEGIN CERTIFICATE-----\n" * 40_000, True),
    ],
    ids=[
        "certificate",
        "public",
        "bundle",
        "empty",
        "both",
        "encrypted",
        "der",
        "bare words",
        "too long",
    ],
)
def test_a_key_file_is_hidden_unless_all_of_it_is_public(
    root: Path, content: bytes, hidden: bool
) -> None:
    """Whatever its form: text, binary, the bare words; what is too long to look at counts too."""
    put(root, "a.pem", "b.key", content=content)
    assert masked(scan(root)) == ({"a.pem", "b.key"} if hidden else set())


def test_a_second_name_of_a_secret_is_told(root: Path) -> None:
    """A hard link shows the same bytes."""
    put(root, ".env")
    os.link(root / ".env", root / "copy.txt")
    assert any(".env has a second name" in line for line in scan(root).warnings)


def test_folders_of_packages_are_looked_at_last(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They eat no budget that the person's own files need; what is left out of them is told."""
    put(root, *(f"node_modules/p{number}/index.js" for number in range(30)))
    put(root, "a/b/c/.env", "node_modules/p1/deep/.env")
    space = scan(root)
    assert masked(space) == {"a/b/c/.env", "node_modules/p1/deep/.env"}
    assert space.warnings == ()
    monkeypatch.setattr(module, "MOST_ENTRIES", 20)
    space = scan(root)
    assert masked(space) == {"a/b/c/.env"}
    (line,) = space.warnings
    assert "node_modules" in line


def test_a_crowded_root_hides_no_secret(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called by name at the root is hidden, whatever the budget."""
    monkeypatch.setattr(module, "MOST_ENTRIES", 10)
    monkeypatch.setattr(module, "MOST_IN_ROOT", 15)
    put(root, *(f"{number}.txt" for number in range(40)), ".env", "id_rsa", ".netrc")
    space = scan(root)
    assert {".env", "id_rsa", ".netrc"} <= masked(space)
    assert any("stopped at" in line for line in space.warnings)


def test_a_crowded_folder_is_read_to_the_budget_and_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with more entries than the budget holds neither memory nor time."""
    monkeypatch.setattr(module, "MOST_ENTRIES", 10)
    put(root, *(f"many/{number}" for number in range(30)))
    (line,) = scan(root).warnings
    assert f"stopped at {root}/many" in line


def test_a_warning_cannot_drive_a_terminal(root: Path) -> None:
    """Names in warnings are somebody else's: control characters are written out."""
    put(root, "\x1b[2Jx\n/.envrc")
    os.link(root / "\x1b[2Jx\n" / ".envrc", root / "other")
    (line,) = scan(root).warnings
    assert line.isprintable()


def test_a_scan_of_a_large_tree_is_quick(root: Path) -> None:
    """The budget of entries and time bounds it; the bound here only tells an end from a hang."""
    for number in range(40):
        folder = root / f"d{number}"
        folder.mkdir()
        for inner in range(50):
            (folder / f"f{inner}").touch()
    started = time.monotonic()
    assert scan(root).warnings == ()
    assert time.monotonic() - started < 5


def test_a_links_parent_is_that_of_its_landing(root: Path, tmp_path: Path) -> None:
    """`link/..` is read as the kernel reads it, not letter by letter."""
    (root / "sub").mkdir()
    (tmp_path / "link").symlink_to(root / "sub")
    space = scan(os.fsencode(tmp_path / "link") + b"/..")
    assert space.root == os.fsencode(root)
    assert space.links == ()


def test_a_real_venv_shows_the_interpreter_it_was_made_of(root: Path) -> None:
    """Made by the standard library with links: its interpreter's parts, unless of the system."""
    venv.create(root / ".venv", symlinks=True, with_pip=False)
    program = os.path.realpath(root / ".venv" / "bin" / "python")
    space = scan(root)
    shown = (*space.interpreters, b"/usr", b"/opt")
    assert any(os.fsencode(program).startswith(one + b"/") for one in shown), space.interpreters


def test_an_interpreter_in_the_workspace_is_part_of_the_installation(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write the running interpreter may write the guard."""
    monkeypatch.setattr(sys, "base_prefix", str(root / "python"))
    assert scan(root).holds_installation == str(root / "python")
