"""Settings shared by every test: one async backend, the kernel's features demanded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.program import Program
from support.scripted import ScriptedEngine


@pytest.fixture
def anyio_backend() -> str:
    """The supervisor runs on asyncio: its channel registers descriptors with that loop."""
    return "asyncio"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program with a home and a workspace of its own."""
    return Program(tmp_path)


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """The scripted engine, serving on loopback."""
    with ScriptedEngine() as started:
        yield started
