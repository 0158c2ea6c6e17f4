"""The shipped policies keep what the rest of the program, and its readers, rely on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rambarde.personas import discover
from rambarde.policy.catastrophic import load_forms, shipped_forms
from rambarde.policy.explain import is_within
from rambarde.policy.model import LIMIT_KINDS
from rambarde.policy.schema import policy_schema
from rambarde.policy.source import read_toml, shipped_folder
from rambarde.settings import load_settings
from rambarde_wire.tools import TOOLS
from support.policies import SHIPPED, WORKSPACE_WRITE

FOLDER = Path(shipped_folder())


def test_every_shipped_policy_loads_and_its_examples_hold():
    """Loading tries each example; that there are any is seen here."""
    assert set(SHIPPED.bases) == {"workspace-write", "workspace-ask", "read-only"}
    assert load_forms(str(FOLDER))[1] == []
    assert len(shipped_forms()) >= 8


def test_schema_file_is_the_models_schema():
    """Editors check files against what the loader accepts."""
    assert policy_schema() == json.loads((FOLDER / "schema.json").read_text())


def test_base_policies_are_ordered():
    """Reading only and asking are both within workspace-write."""
    names = {"delegates": frozenset({"general"}), "mcp_servers": frozenset({"docs"})}
    widest = SHIPPED.base("workspace-write", **names)
    for name in SHIPPED.bases:
        assert is_within(SHIPPED.base(name, **names), widest)


def test_base_of_nobody_delegates_nowhere():
    """Without names from a person's files no base reaches an agent, a server or a host."""
    for name in SHIPPED.bases:
        base = SHIPPED.base(name)
        assert base.delegates == base.mcp_servers == base.hosts == frozenset()


def test_each_limit_has_value_unit_and_reason():
    """limits.toml names every limit of the model, in its order, each with a reason."""
    values = read_toml(str(FOLDER), "limits.toml").values
    assert list(values) == list(LIMIT_KINDS)
    assert all(len(entry["reason"]) > 20 for entry in values.values())


def test_declared_limits_agree_with_default_settings():
    """The two places that state a default state the same one."""
    execution = load_settings({}, folder="/nonexistent").execution
    limits = WORKSPACE_WRITE.limits
    assert limits.max_actions == execution.sessionMaxActions
    assert limits.max_duration_s == execution.sessionMaxDuration
    assert limits.tree_model_requests == execution.treeMaxModelRequests
    assert limits.tree_tokens == execution.treeMaxTokens


@pytest.mark.parametrize(
    "pattern",
    [".git/hooks", ".git/config", ".git/config.worktree", ".git/commondir", ".gitmodules",
     ".git/info/attributes", ".rambarde", ".claude", ".codex", ".cursor", ".agents", ".mcp.json",
     ".vscode", ".idea", ".envrc", ".bashrc", ".zshrc", ".profile"],
)  # fmt: skip
def test_what_runs_later_is_protected(pattern):
    """Files that the person's own tools run or obey cannot be written by an agent."""
    assert pattern in WORKSPACE_WRITE.protected


def test_built_in_agents_name_known_tools_and_are_alike_to_read():
    """The program's own agents load like any file and say what a report is."""
    known = discover(None, {})
    for name in ("general", "explore"):
        persona = known.get(name)
        assert (persona.narrowing.tools or frozenset()) <= set(TOOLS)
        assert "file:line" in persona.prompt


def test_policy_files_have_plain_names_and_no_tabs():
    """Names come from a fixed alphabet; text is spaces and line ends."""
    for path in FOLDER.rglob("*.toml"):
        assert re.fullmatch(r"[a-z0-9_-]+\.toml", path.name)
        assert "\t" not in path.read_text()
