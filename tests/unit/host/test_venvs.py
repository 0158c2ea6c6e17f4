"""What a venv's links show of the host: an interpreter's parts, and never a home."""

from __future__ import annotations

import os

import pytest

from rambarde.host.venvs import find_interpreters, installation_parts


@pytest.fixture
def root(tmp_path):
    """A workspace with a venv that leads nowhere yet."""
    (tmp_path / "ws" / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "ws" / ".venv" / "pyvenv.cfg").write_text("home = /nowhere/bin\n")
    return tmp_path / "ws"


def install(prefix, *, library=True):
    """A pretended installation of Python."""
    (prefix / "bin").mkdir(parents=True)
    program = prefix / "bin" / "python3.12"
    program.write_text("#!/bin/true\n")
    program.chmod(0o755)
    if library:
        (prefix / "lib" / "python3.12").mkdir(parents=True)
        (prefix / "lib" / "python3.12" / "os.py").write_text("")
    return program


def find(root):
    return find_interpreters([os.fsencode(root / ".venv")], os.fsencode(root))


def text(paths):
    return [os.fsdecode(path) for path in paths]


def test_only_the_parts_that_run_are_shown(root, tmp_path):
    """An installation in somebody's ~/.local shows its bin and lib, not its share."""
    local = tmp_path / "ann" / ".local"
    program = install(local)
    (local / "share" / "keyrings").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").symlink_to(program)
    found = find(root)
    assert text(found.folders) == [str(local / "bin"), str(local / "lib")]
    assert found.links == ()


def test_each_hop_is_made_anew_as_a_link(root, tmp_path):
    """Over a link to a program and a link to a folder; neither's folder is shown."""
    program = install(tmp_path / "pythons" / "3.12.4")
    (tmp_path / "pythons" / "3.12").symlink_to("3.12.4")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "python").symlink_to(f"../pythons/3.12/bin/{program.name}")
    (root / ".venv" / "bin" / "python").symlink_to(tmp_path / "tools" / "python")
    found = find(root)
    assert text(found.folders) == [
        str(tmp_path / "pythons" / "3.12.4" / "bin"),
        str(tmp_path / "pythons" / "3.12.4" / "lib"),
    ]
    assert found.links == (
        (os.fsencode(tmp_path / "pythons" / "3.12"), b"3.12.4"),
        (os.fsencode(tmp_path / "tools" / "python"), b"../pythons/3.12/bin/python3.12"),
    )


def test_the_home_of_a_pyvenv_cfg_is_followed_too(root, tmp_path):
    """A venv made with copies has no link; its file names the folder of the program."""
    program = install(tmp_path / "py")
    (program.parent / "python3").symlink_to("python3.12")
    (root / ".venv" / "pyvenv.cfg").write_text(f"home = {program.parent}\nversion = 3.12\n")
    assert text(find(root).folders) == [str(tmp_path / "py" / "bin"), str(tmp_path / "py" / "lib")]


@pytest.mark.parametrize(
    "target",
    ["ann/x/python", "ann/.ssh/id", "ann/bin/python3", "ann/bin/tool", "ann", "/", "/etc/shadow",
     "ann/lonely/bin/python3.12"],
)  # fmt: skip
def test_a_link_to_anything_else_shows_nothing(root, tmp_path, target):
    """Whoever wrote the workspace wrote the link: a home, a key, a program that is no Python."""
    home = tmp_path / "ann"
    for name in ("x/python", ".ssh/id", "bin/python3", "bin/tool"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
        (home / name).chmod(0o755)
    install(home / "lonely", library=False)
    (root / ".venv" / "bin" / "python").symlink_to(tmp_path / target)
    found = find(root)
    assert found.folders == ()
    assert found.links == ()


def test_links_in_a_circle_end_nowhere(root):
    """As the kernel, which follows forty."""
    (root / ".venv" / "bin" / "python").symlink_to("python3")
    (root / ".venv" / "bin" / "python3").symlink_to("python")
    assert find(root).folders == ()


def test_the_system_and_the_workspace_are_shown_anyway(root, tmp_path):
    """Nothing is added for /usr, nor for an interpreter that lies in the workspace."""
    (root / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    assert find(root).folders == ()
    inner = install(root / "py")
    (root / ".venv" / "bin" / "python").unlink()
    (root / ".venv" / "bin" / "python").symlink_to(inner)
    assert find(root) == find_interpreters([], os.fsencode(root))


def test_parts_that_are_links_are_left_out(tmp_path):
    """`lib` of a crafted installation may lead to a home."""
    install(tmp_path / "py")
    (tmp_path / "py" / "include").symlink_to("/")
    parts = text(installation_parts(os.fsencode(tmp_path / "py")))
    assert parts == [str(tmp_path / "py" / "bin"), str(tmp_path / "py" / "lib")]
