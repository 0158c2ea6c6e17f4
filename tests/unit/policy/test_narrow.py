"""The laws of narrowing, as properties."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from rambarde.policy.decide import decide
from rambarde.policy.explain import canonical, is_within
from rambarde.policy.model import Decision, LimitsNarrowing, Narrowing
from rambarde.policy.narrow import narrow
from support.policies import WORKSPACE_WRITE, calls, narrowings, policies, policy, rule

quick = settings(max_examples=60, deadline=None)


@quick
@given(policies(), narrowings())
def test_narrow_is_never_above_the_parent(parent, by):
    """A narrowed policy is on no axis above its parent."""
    assert is_within(narrow(parent, by), parent)


@quick
@given(policies(), narrowings())
def test_narrow_repeated_changes_nothing(parent, by):
    """Narrowing twice by the same is narrowing once."""
    once = narrow(parent, by)
    assert once == narrow(once, by)


@quick
@given(policies(), narrowings(), narrowings())
def test_narrow_does_not_depend_on_order(parent, one, other):
    """Two narrowings give the same rights in either order, to the byte of the hash."""
    there = narrow(narrow(parent, one), other)
    back = narrow(narrow(parent, other), one)
    assert canonical(there) == canonical(back)


@quick
@given(policies(), narrowings(), narrowings(), narrowings(), calls())
def test_refused_call_stays_refused_three_levels_down(parent, one, two, three, call):
    """No chain of personas makes a call less strictly judged."""
    tool, arguments = call
    strictness = decide(parent, tool, arguments).decision
    for by in (one, two, three):
        parent = narrow(parent, by)
        now = decide(parent, tool, arguments).decision
        assert now >= strictness
        strictness = now


@quick
@given(policies(), narrowings(), calls())
def test_refused_command_keeps_its_code_below(parent, by, call):
    """A command refused to an agent is refused with that code to each descendant with the tool."""
    tool, arguments = call
    child = narrow(replace(parent, tools=parent.tools | {"bash"}), by)
    above = decide(replace(parent, tools=parent.tools | {"bash"}), tool, arguments)
    if tool == "bash" and above.decision is Decision.DENY and "bash" in child.tools:
        assert decide(child, tool, arguments).code == above.code


def test_narrow_empty_set_is_no_tool():
    """An empty set of tools leaves none; no set leaves the parent's."""
    assert narrow(WORKSPACE_WRITE, Narrowing(tools=frozenset())).tools == frozenset()
    assert narrow(WORKSPACE_WRITE, Narrowing()).tools == WORKSPACE_WRITE.tools


def test_narrow_cannot_name_what_the_parent_lacks():
    """A tool, a server and a writable workspace that the parent lacks are not had by asking."""
    parent = policy(tools=frozenset({"read"}), writable=False, mcp_servers=frozenset())
    asked = Narrowing(
        tools=frozenset({"read", "bash"}), writable=True, mcp_servers=frozenset({"docs"})
    )
    child = narrow(parent, asked)
    assert child.tools == {"read"}
    assert not child.writable
    assert child.mcp_servers == frozenset()


def test_narrow_two_allow_rules_both_have_to_admit():
    """A second list of admitted commands cuts the first and never adds to it."""
    parent = policy(rules=(rule("bash", "git *", decision=Decision.ALLOW),))
    child = narrow(parent, Narrowing(rules=(rule("bash", "*", decision=Decision.ALLOW),)))
    assert decide(child, "bash", {"command": "make"}).decision is Decision.DENY
    assert decide(child, "bash", {"command": "git log"}).decision is Decision.ALLOW


def test_narrow_limits_take_the_stricter_value():
    """Bounds take the minimum, floors the maximum, and not declared is the loosest."""
    by = LimitsNarrowing(max_actions=5, max_duration_s=9000, memory_bytes=1024, nice=1)
    child = narrow(WORKSPACE_WRITE, Narrowing(limits=by)).limits
    parent = WORKSPACE_WRITE.limits
    assert (child.max_actions, child.memory_bytes) == (5, 1024)
    assert (child.max_duration_s, child.nice) == (parent.max_duration_s, parent.nice)
