"""Say in words what a policy decides, and how two policies differ. Trusted side. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from rambarde.policy.decide import decide, verdicts
from rambarde.policy.model import FLOORS, LIMIT_KINDS, Decision, Policy
from rambarde.policy.show import rule_line, shown_limit
from rambarde.policy.subject import COMMAND_TOOLS, subject_of

_GRANTING = ("tools", "delegates", "mcp_servers", "hosts")
_RESTRICTING = ("masks", "protected")


def explain(policy: Policy, tool: str, arguments: Mapping[str, object]) -> list[str]:
    """Return lines for a person: the verdict, each reason with its place, the commands seen.

    The first line is `allow`, `ask` or `deny`, with the code; the judgement is decide()'s own.
    """
    verdict = decide(policy, tool, arguments)
    lines = [f"{verdict.decision.name.lower()}: {verdict.code} (policy {policy.name})"]
    for one in verdicts(policy, tool, arguments):
        place = f" [{one.rule}]" if one.rule else ""
        lines.append(f"  {one.decision.name.lower()} by {one.layer}: {one.reason}{place}")
    if verdict.decision is Decision.ALLOW:
        lines.append(f"  {verdict.reason}, and nothing in it is stricter")
    if tool in COMMAND_TOOLS:
        lines += _commands(tool, arguments)
    return lines


def diff(one: Policy, other: Policy) -> list[str]:
    """Return one line for each difference, `-` for what only `one` grants, `+` for `other`.

    Axes that restrict are told the same way: `+ masks .env` is a path that only `other` hides. No
    lines: the policies give the same rights, whatever their names.
    """
    lines: list[str] = []
    for axis in (*_GRANTING, *_RESTRICTING):
        lines += _set_diff(axis, getattr(one, axis), getattr(other, axis))
    for axis in ("writable", "debug"):
        before, after = getattr(one, axis), getattr(other, axis)
        if before != after:
            lines.append(f"~ {axis} {_yes(before)} -> {_yes(after)}")
    lines += [f"- rule {rule_line(rule)}" for rule in one.rules if rule not in other.rules]
    lines += [f"+ rule {rule_line(rule)}" for rule in other.rules if rule not in one.rules]
    for name in LIMIT_KINDS:
        before, after = getattr(one.limits, name), getattr(other.limits, name)
        if before != after:
            lines.append(f"~ {name} {shown_limit(name, before)} -> {shown_limit(name, after)}")
    return lines


def is_within(inner: Policy, outer: Policy) -> bool:
    """Tell whether a policy is on no axis above another: the order that narrow() goes down."""
    return (
        all(getattr(inner, axis) <= getattr(outer, axis) for axis in _GRANTING)
        and all(getattr(inner, axis) >= getattr(outer, axis) for axis in _RESTRICTING)
        and inner.writable <= outer.writable
        and inner.debug <= outer.debug
        and set(inner.rules) >= set(outer.rules)
        and all(_limit_within(inner, outer, name) for name in LIMIT_KINDS)
    )


def canonical(policy: Policy) -> bytes:
    """Return one spelling of a policy, for its hash: equal policies have equal bytes."""

    def plain(value: object) -> object:
        if isinstance(value, frozenset):
            return sorted(value)
        raise TypeError(f"a policy holds {type(value).__name__}")

    text = json.dumps(asdict(policy), default=plain, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")


def _limit_within(inner: Policy, outer: Policy, name: str) -> bool:
    mine, theirs = getattr(inner.limits, name), getattr(outer.limits, name)
    if theirs is None or mine is None:
        return theirs is None
    return bool(mine >= theirs if name in FLOORS else mine <= theirs)


def _commands(tool: str, arguments: Mapping[str, object]) -> list[str]:
    script = subject_of(tool, arguments).unwrapped
    if script is None:
        return []
    lines = [
        f"  command seen: {' '.join(word.text for word in command.words)}"
        for command in script.commands
        if command.words
    ]
    if not script.whole:
        lines.append("  the text was not understood to its end: no allow rule admits it")
    return lines


def _set_diff(axis: str, one: frozenset[str], other: frozenset[str]) -> list[str]:
    return [f"- {axis} {name}" for name in sorted(one - other)] + [
        f"+ {axis} {name}" for name in sorted(other - one)
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
