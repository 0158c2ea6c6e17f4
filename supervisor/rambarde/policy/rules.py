"""Read one rule of a policy file and try its examples. Trusted side. Pure.

A rule whose examples fail is not loaded, so that no rule is in force which does not do what its
author wrote down beside it.
"""

from __future__ import annotations

from typing import Literal

from rambarde.errors import Fault
from rambarde.policy.model import Decision, Rule
from rambarde.policy.shape import Shape, Text, Texts, closest
from rambarde.policy.source import Document, Keys
from rambarde.policy.subject import lies_in, scope_fault, subject_from_text, touches
from rambarde_wire.tools import TOOLS

DECISIONS = {"allow": Decision.ALLOW, "ask": Decision.ASK, "deny": Decision.DENY}


class RuleShape(Shape):
    """One `[[rule]]`; it needs at least one example of either kind."""

    right: Text
    scope: Texts
    verdict: Literal["allow", "ask", "deny"]
    reason: Text
    allows: Texts | None = None
    refuses: Texts | None = None


def read_rule(shape: RuleShape, document: Document, index: int) -> tuple[Rule, list[Fault]]:
    """Return the rule at an index of `[[rule]]`, and what its examples and patterns show wrong."""
    keys = ("rule", index)
    rule = Rule(
        right=shape.right,
        scope=tuple(shape.scope),
        decision=DECISIONS[shape.verdict],
        reason=shape.reason,
        allows=tuple(shape.allows or ()),
        refuses=tuple(shape.refuses or ()),
        origin=f"{document.path}:{document.line(keys)}",
    )
    if rule.right not in TOOLS:
        near = closest(rule.right, list(TOOLS))
        return rule, [document.fault((*keys, "right"), f"unknown tool {rule.right}{near}")]
    faults = [
        document.fault((*keys, "scope"), f"pattern {pattern!r} {wrong}")
        for pattern in rule.scope
        if (wrong := scope_fault(rule.right, pattern))
    ]
    if not rule.allows and not rule.refuses:
        faults.append(document.fault(keys, "the rule has no example: give allows or refuses"))
    return rule, faults or _try_examples(rule, document, keys)


def _try_examples(rule: Rule, document: Document, keys: Keys) -> list[Fault]:
    faults: list[Fault] = []
    for key, examples in (("allows", rule.allows), ("refuses", rule.refuses)):
        for example in examples:
            subject = subject_from_text(rule.right, example)
            if rule.decision is Decision.ALLOW:
                admitted = lies_in(rule.scope, subject)
            else:
                admitted = not touches(rule.scope, subject)
            if admitted != (key == "allows"):
                does = "admits" if admitted else "does not admit"
                text = f"example {example!r} stands in {key}, but the rule {does} it"
                faults.append(document.fault((*keys, key), text))
    return faults
