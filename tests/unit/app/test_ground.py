"""What a person says for one run, against what the settings say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rambarde.app.ground import find_ground, find_persona, root_policy


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, for the folders of settings and state."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ws").mkdir()
    return tmp_path


def test_flags_stand_in_place_of_the_settings_and_are_never_clamped(home: Path) -> None:
    """A duration or a count said on the command line is in force, above or below the settings'."""
    sets = ["sessionMaxDuration=60", "sessionMaxActions=5"]
    ground = find_ground(str(home / "ws"), dict(os.environ), sets, None)
    persona = find_persona(ground, "general")
    plain = root_policy(ground, persona).limits
    assert (plain.max_duration_s, plain.max_actions) == (60, 5)
    said = root_policy(ground, persona, max_actions=50, max_duration=9000.5).limits
    assert (said.max_duration_s, said.max_actions) == (9000.5, 50)
    less = root_policy(ground, persona, max_actions=2, max_duration=1.5).limits
    assert (less.max_duration_s, less.max_actions) == (1.5, 2)
