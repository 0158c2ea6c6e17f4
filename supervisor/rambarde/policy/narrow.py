"""Narrowing: the only way from a parent's rights to a subagent's. Trusted side. Pure.

A meet on every axis: what grants is intersected, what restricts is united, limits take the
stricter value. So the result is never above the parent, and neither order nor repetition of
narrowings matters. tests/unit/policy/test_narrow.py states these laws as properties.

Source: ADR 0005.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rambarde.policy.model import (
    FLOORS,
    LIMIT_KINDS,
    Limits,
    LimitsNarrowing,
    Narrowing,
    Policy,
    Rule,
)


def narrow(parent: Policy, by: Narrowing) -> Policy:
    """Return the parent's policy met with a narrowing.

    Args:
        parent: the effective policy of the agent that delegates, not the one its file declares.
        by: what the persona, the plan mode or a flag takes away; None on an axis inherits it.

    Returns:
        A policy that refuses whatever the parent's refuses. Its name is the narrowing's, else the
        parent's; a name carries no right.
    """
    return Policy(
        name=by.name or parent.name,
        tools=_meet(parent.tools, by.tools) - (by.without_tools or frozenset()),
        writable=parent.writable and by.writable is not False,
        debug=parent.debug and by.debug is not False,
        rules=canonical_rules((*parent.rules, *(by.rules or ()))),
        masks=parent.masks | (by.masks or frozenset()),
        protected=parent.protected | (by.protected or frozenset()),
        delegates=_meet(parent.delegates, by.delegates),
        mcp_servers=_meet(parent.mcp_servers, by.mcp_servers),
        hosts=_meet(parent.hosts, by.hosts),
        limits=narrow_limits(parent.limits, by.limits),
    )


def narrow_limits(parent: Limits, by: LimitsNarrowing | None) -> Limits:
    """Return the stricter of each pair of limits; "not declared" is the loosest."""
    if by is None:
        return parent
    stricter: dict[str, Any] = {
        name: _stricter(name, getattr(parent, name), getattr(by, name)) for name in LIMIT_KINDS
    }
    return Limits(**stricter)


def canonical_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules once each, strictest first, in an order free of how they came together."""
    return tuple(
        sorted(
            set(rules),
            key=lambda r: (-r.decision, r.right, r.scope, r.origin, r.reason, r.allows, r.refuses),
        )
    )


def _meet(granted: frozenset[str], kept: frozenset[str] | None) -> frozenset[str]:
    return granted if kept is None else granted & kept


def _stricter(name: str, one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other) if name in FLOORS else min(one, other)
