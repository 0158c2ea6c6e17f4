"""A real project to work on: a published source archive, its tests, and a virtual environment.

The archive is pinned by its hash and fetched with pip; without a registry that has it, the tests
that need it fail and say so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from support.probes import run_git

NAME = "click"
VERSION = "8.5.1"
_SHA256 = "9bbfada76703fd1d784b83eea012e3e8c6a001a876543ef104fa56aaaeb072b4"
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11.0 to 3.11.3 have none; the archive is known by its hash."""
_TEST_TOOLS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")


def fetch_archive(folder: Path) -> Path:
    """Return the project's source archive, fetched into a folder and checked against its hash."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{NAME}=={VERSION} --hash=sha256:{_SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run(
        [*pip, "-d", str(folder), "-r", str(wanted)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    archives = list(folder.glob(f"{NAME}-*.tar.gz"))
    if done.returncode or len(archives) != 1:
        pytest.fail(
            f"the source archive of {NAME} {VERSION} could not be fetched with pip: this test needs"
            f" a package registry (pip's settings say which).\n{done.stderr[-2000:]}",
            pytrace=False,
        )
    return archives[0]


def unpack(archive: Path, workspace: Path) -> None:
    """Unpack the project into an empty workspace and commit it there, as a person's clone is."""
    shutil.unpack_archive(archive, workspace.parent / "unpacked", **_FILTER)
    workspace.rmdir()
    (workspace.parent / "unpacked" / f"{NAME}-{VERSION}").rename(workspace)
    (workspace / ".gitignore").write_text(".venv/\n")
    run_git(workspace, "init", "-q", "-b", "main")
    run_git(workspace, "config", "user.name", "tester")
    run_git(workspace, "config", "user.email", "tester@localhost")
    run_git(workspace, "add", "-A")
    run_git(workspace, "commit", "-q", "-m", "as published")


def add_environment(workspace: Path) -> None:
    """Make the project's virtual environment, with the tester's own pytest copied into it."""
    folder = workspace / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in _TEST_TOOLS:
        for file in metadata.files(name) or ():
            if file.parts[0] == ".." or "__pycache__" in file.parts:
                continue
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(str(file.locate())), site / file)
    # What an editable install leaves: the way to the sources, and the distribution's own words.
    (site / "project.pth").write_text(f"{workspace / 'src'}\n")
    (site / f"{NAME}-{VERSION}.dist-info").mkdir()
    shutil.copyfile(workspace / "PKG-INFO", site / f"{NAME}-{VERSION}.dist-info/METADATA")


def count_passed(text: str) -> int:
    """Return how many tests pytest's last line says have passed; none may have failed."""
    found = re.search(r"(\d+) passed", text)
    assert found, text
    assert not re.search(r"\d+ (failed|errors?)\b", text), text
    return int(found[1])
