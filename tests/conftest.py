"""Settings shared by every test: one async backend, the kernel's features demanded."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The supervisor runs on asyncio: its channel registers descriptors with that loop."""
    return "asyncio"
