"""Narrow by the words of a person: `--allowedTools` and `--disallowedTools`. Trusted side. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rambarde.errors import UsageError
from rambarde.policy.model import Decision, Narrowing, Rule
from rambarde.policy.shape import closest
from rambarde.policy.subject import scope_fault

_ENTRY = re.compile(r"\s*(?P<tool>[A-Za-z_][\w-]*)\s*(?:\((?P<scope>[^()]*)\))?\s*(?:[,\s]|$)")


def narrowing_by_flags(
    allowed: str | None, disallowed: str | None, names: Mapping[str, str]
) -> Narrowing:
    """Return what two lists of tools take away.

    Args:
        allowed: `Read,Bash(git diff *)`: only these tools, a tool with patterns only for calls
            in one of them. None: all tools of the policy.
        disallowed: as above: a bare tool is taken away, one with a pattern is refused for calls
            in it. None: nothing.
        names: accepted spelling of each tool to its name.

    Returns:
        A narrowing; the empty text in `allowed` leaves no tool.

    Raises:
        UsageError: an entry is not understood, or names no tool.
    """
    kept = None if allowed is None else _entries(allowed, "--allowedTools", names)
    taken = {} if disallowed is None else _entries(disallowed, "--disallowedTools", names)
    rules = [
        _rule(tool, scope, Decision.ALLOW, "--allowedTools")
        for tool, scope in (kept or {}).items()
        if scope
    ]
    rules += [
        _rule(tool, scope, Decision.DENY, "--disallowedTools")
        for tool, scope in taken.items()
        if scope
    ]
    return Narrowing(
        tools=None if kept is None else frozenset(kept),
        without_tools=frozenset(tool for tool, scope in taken.items() if not scope) or None,
        rules=tuple(rules) or None,
    )


def _entries(text: str, flag: str, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return each tool's patterns; a bare tool beside one with patterns is the whole tool."""
    found: dict[str, tuple[str, ...]] = {}
    whole: set[str] = set()
    at = 0
    while at < len(text.rstrip()):
        entry = _ENTRY.match(text, at)
        if entry is None:
            raise UsageError(
                f"{flag} is not understood at {text[at:]!r}",
                advice="Write tools with commas: read,grep,Bash(git diff *).",
            )
        at = entry.end()
        tool = names.get(entry["tool"])
        if tool is None:
            near = closest(entry["tool"], list(names))
            raise UsageError(f"{flag} names {entry['tool']!r}, which is no tool{near}")
        scope = _pattern(entry["scope"], tool, flag)
        if not scope:
            whole.add(tool)
        found[tool] = () if tool in whole else (*found.get(tool, ()), *scope)
    return found


def _pattern(scope: str | None, tool: str, flag: str) -> tuple[str, ...]:
    if scope is None or not scope.strip() or scope.strip() == "*":
        return ()
    pattern = scope.strip()
    if tool == "bash" and pattern.endswith(":*"):
        pattern = pattern[:-2] + " *"
    if wrong := scope_fault(tool, pattern):
        raise UsageError(f"{flag}: pattern {pattern!r} of {tool} {wrong}")
    return (pattern,)


def _rule(tool: str, scope: tuple[str, ...], decision: Decision, flag: str) -> Rule:
    return Rule(tool, scope, decision, f"set by {flag}", (), (), flag)
