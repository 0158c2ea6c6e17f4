"""Show a policy as text and as data for JSON. Trusted side. Pure."""

from __future__ import annotations

from rambarde.policy.model import LIMIT_KINDS, Policy, Rule

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def show(policy: Policy) -> list[str]:
    """Return lines for a person: every axis, every rule with its reason, every limit."""
    lines = [
        f"policy {policy.name}",
        f"  tools        {_names(policy.tools)}",
        f"  writes       {'the workspace' if policy.writable else 'nothing (read-only)'}",
        f"  debuggers    {'inside its own sandbox' if policy.debug else 'no'}",
        f"  delegates to {_names(policy.delegates)}",
        f"  MCP servers  {_names(policy.mcp_servers)}",
        f"  hosts        {_names(policy.hosts)}",
        f"  hidden       {_names(policy.masks)}",
        f"  protected    {_names(policy.protected)}",
    ]
    lines += [f"  rule         {rule_line(rule)}" for rule in policy.rules]
    for name in LIMIT_KINDS:
        value = shown_limit(name, getattr(policy.limits, name))
        lines.append(f"  limit        {name.ljust(20)} {value}")
    return lines


def as_data(policy: Policy) -> dict[str, object]:
    """Return the policy for JSON: sets as sorted lists, decisions by name."""
    return {
        "name": policy.name,
        "tools": sorted(policy.tools),
        "writable": policy.writable,
        "debug": policy.debug,
        "delegates": sorted(policy.delegates),
        "mcp_servers": sorted(policy.mcp_servers),
        "hosts": sorted(policy.hosts),
        "masks": sorted(policy.masks),
        "protected": sorted(policy.protected),
        "rules": [
            {
                "right": rule.right,
                "scope": list(rule.scope),
                "verdict": rule.decision.name.lower(),
                "reason": rule.reason,
                "origin": rule.origin,
            }
            for rule in policy.rules
        ],
        "limits": {name: getattr(policy.limits, name) for name in LIMIT_KINDS},
    }


def rule_line(rule: Rule) -> str:
    """Return `verdict tool: patterns (reason) [file:line]`."""
    scope = ", ".join(rule.scope)
    return f"{rule.decision.name.lower()} {rule.right}: {scope} ({rule.reason}) [{rule.origin}]"


def shown_limit(name: str, value: float | None) -> str:
    """Return a limit with its unit, as a person would write it."""
    if value is None:
        return "not declared"
    if name.endswith("_bytes"):
        for size, unit in _SIZES:
            if value >= size and value % size == 0:
                return f"{int(value // size)} {unit}"
        return f"{int(value)} B"
    if name.endswith("_s"):
        return f"{value:g} s"
    return f"{int(value):,}".replace(",", " ")


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"
