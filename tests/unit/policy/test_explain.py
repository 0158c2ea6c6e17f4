"""Policies in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rambarde.errors import UsageError
from rambarde.persona import TOOL_NAMES
from rambarde.policy.decide import decide
from rambarde.policy.explain import canonical, diff, explain, is_within
from rambarde.policy.flags import narrowing_by_flags
from rambarde.policy.narrow import narrow
from rambarde.policy.show import as_data, show, shown_limit
from support.policies import SHIPPED, WORKSPACE_WRITE, policy, rule


def test_explain_names_verdict_reason_place_and_commands():
    """The words follow the judgement and show what was seen."""
    lines = explain(WORKSPACE_WRITE, "bash", {"command": "ls && sudo rm -rf /"})
    assert lines[0] == "deny: catastrophic (policy workspace-write)"
    assert "catastrophic.toml:" in lines[1]
    assert lines[2:] == [
        "  command seen: ls", "  command seen: sudo rm -rf /", "  command seen: rm -rf /",
    ]  # fmt: skip
    assert explain(WORKSPACE_WRITE, "read", {"path": "a"})[0].startswith("allow: granted")


def test_explain_says_when_text_was_not_understood():
    """A person learns why no allow rule admits a call."""
    assert "not understood" in explain(WORKSPACE_WRITE, "bash", {"command": "echo 'a"})[-1]


def test_diff_tells_each_axis():
    """What one policy grants and the other does not is one line each; equal rights are none."""
    assert diff(WORKSPACE_WRITE, replace(WORKSPACE_WRITE, name="other")) == []
    lines = diff(WORKSPACE_WRITE, SHIPPED.base("read-only", delegates=frozenset({"general"})))
    assert lines == [
        "- tools edit", "- tools write", "- delegates explore", "- mcp_servers docs",
        "~ writable yes -> no",
    ]  # fmt: skip
    limits = replace(WORKSPACE_WRITE.limits, memory_bytes=1 << 20)
    assert diff(WORKSPACE_WRITE, policy(limits=limits)) == ["~ memory_bytes 4 GiB -> 1 MiB"]
    assert diff(WORKSPACE_WRITE, policy(rules=(rule("bash", "git *"),))) == [
        "+ rule deny bash: git * (a test says so) [t:1]"
    ]


def test_show_holds_every_axis_and_limit():
    """Nothing in force is left out of what is shown."""
    text = "\n".join(show(SHIPPED.base("workspace-ask")))
    for part in ("bash", "hidden", ".git/hooks", "ask write", "max_actions", "not declared"):
        assert part in text
    assert as_data(WORKSPACE_WRITE)["tools"] == sorted(WORKSPACE_WRITE.tools)


def test_canonical_is_equal_for_equal_policies_only():
    """The hash of a policy changes with any right."""
    assert canonical(policy()) == canonical(WORKSPACE_WRITE)
    assert canonical(policy(debug=False)) != canonical(WORKSPACE_WRITE)


def test_limit_is_shown_with_its_unit():
    """Sizes, durations and counts are written as a person would."""
    assert shown_limit("memory_bytes", 1000) == "1000 B"
    assert shown_limit("stall_s", 300.0) == "300 s"
    assert shown_limit("tree_tokens", 20_000_000) == "20 000 000"


def test_flags_admit_only_what_is_named():
    """A tool with patterns is admitted for calls in one of them; spellings of others are known."""
    by = narrowing_by_flags("Read, Bash(git diff:*) Bash(git log *)", None, TOOL_NAMES)
    chosen = narrow(WORKSPACE_WRITE, by)
    assert chosen.tools == {"read", "bash"}
    assert is_within(chosen, WORKSPACE_WRITE)
    assert decide(chosen, "bash", {"command": "git diff a | git log"}).code == "granted"
    assert decide(chosen, "bash", {"command": "git push"}).code == "denied_rule"


def test_flags_take_away_what_is_named():
    """A bare tool is gone, one with a pattern is refused there only."""
    chosen = narrow(WORKSPACE_WRITE, narrowing_by_flags(None, "write,Edit(docs/)", TOOL_NAMES))
    assert decide(chosen, "write", {"path": "a"}).code == "tool_absent"
    assert decide(chosen, "edit", {"path": "docs/a"}).code == "denied_rule"
    assert decide(chosen, "edit", {"path": "a"}).code == "granted"
    assert narrowing_by_flags("", None, TOOL_NAMES).tools == frozenset()


@pytest.mark.parametrize("text", ["Bsh", "Bash(", "Bash(a * b)", "Read(../x)", "read;write"])
def test_flag_that_is_not_understood_is_refused(text):
    """A misspelt flag stops before anything runs."""
    with pytest.raises(UsageError):
        narrowing_by_flags(text, None, TOOL_NAMES)
