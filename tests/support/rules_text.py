"""The seccomp rules as their text says, read without any code of the assembler they judge.

`expected` is the answer that policies/seccomp demands of a call, first match first; `samples` are
arguments on both sides of every condition.

Source: policies/seccomp/rules.toml; seccomp(2).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALLOW = "allow"
_LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class Rules:
    """The tables as their TOML says, for one machine."""

    machine: str
    numbers: Mapping[str, int]
    rules: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path, machine: str) -> Rules:
        """Read rules.toml and the machine's numbers."""
        numbers = tomllib.loads((folder / f"{machine}.toml").read_text())["numbers"]
        rules = tomllib.loads((folder / "rules.toml").read_text())["rule"]
        return cls(machine, numbers, rules)

    def in_force(self, profile: str, tier: str, *, debug: bool) -> Iterator[Mapping[str, Any]]:
        """Yield the rules of a profile and tier in their order."""
        for rule in self.rules:
            if (
                profile in rule.get("profiles", ("agent", "command"))
                and tier in rule.get("tiers", ("A", "A-proc", "B", "C"))
                and not (debug and rule.get("unless_debug"))
            ):
                yield rule

    def expected(
        self, call: str, arguments: Sequence[int], *, profile: str, tier: str, debug: bool
    ) -> str:
        """Return what the text of the rules demands for a call."""
        for rule in self.in_force(profile, tier, debug=debug):
            if call in rule["calls"] and all(holds(one, arguments) for one in rule.get("when", ())):
                return str(rule["action"])
        return ALLOW

    def samples(self, call: str) -> Iterator[tuple[int, ...]]:
        """Yield arguments on both sides of every condition any rule has on the call."""
        seen: set[tuple[int, ...]] = {(0,) * 6, (0xFFFFFFFF,) * 6}
        for rule in self.rules:
            if call not in rule["calls"]:
                continue
            seen |= {matching(rule), *near_misses(rule)}
        yield from sorted(seen)
        for one in sorted(seen):
            yield tuple(value | 0x7 << 32 for value in one)


def holds(condition: Mapping[str, Any], arguments: Sequence[int]) -> bool:
    """Say whether a condition of a rule holds, by the low 32 bits."""
    value = arguments[condition["arg"]] & _LOW & condition.get("mask", _LOW)
    values = condition["values"]
    match condition["test"]:
        case "equals":
            return value in values
        case "not_in" | "not_equals":
            return value not in values
        case "any_bit":
            return any(value & bits for bits in values)
        case "no_bit":
            return not any(value & bits for bits in values)
    raise AssertionError(condition)


def matching(rule: Mapping[str, Any], choice: int = 0) -> tuple[int, ...]:
    """Return arguments that meet all conditions of a rule."""
    arguments = [0] * 6
    for one in rule.get("when", ()):
        arguments[one["arg"]] |= _meeting(one, choice)
    assert all(holds(one, arguments) for one in rule.get("when", ())), rule
    return tuple(arguments)


def near_misses(rule: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    """Yield arguments that meet all conditions of a rule but one, and every way to meet them."""
    for one in rule.get("when", ()):
        for choice in range(len(_ways(one))):
            yield matching(rule, choice)
        for value in _missing(one):
            arguments = list(matching(rule))
            arguments[one["arg"]] = value
            yield tuple(arguments)


def _ways(condition: Mapping[str, Any]) -> list[int]:
    values = list(condition["values"])
    match condition["test"]:
        case "equals":
            return values
        case "any_bit":
            return [1 << bit for value in values for bit in range(32) if value >> bit & 1]
        case "no_bit":
            return [0]
    return [next(n for n in (1, 0, 5, 40, 77) if n not in values)]


def _meeting(condition: Mapping[str, Any], choice: int) -> int:
    ways = _ways(condition)
    return ways[choice % len(ways)]


def _missing(condition: Mapping[str, Any]) -> list[int]:
    values = list(condition["values"])
    match condition["test"]:
        case "equals":
            mask = condition.get("mask", _LOW)
            around = {value + step for value in values for step in (-1, 1)} | {0}
            return [one & _LOW for one in around if one & mask not in values]
        case "any_bit":
            together = 0
            for value in values:
                together |= value
            return [0, ~together & _LOW]
        case "no_bit":
            return values
    return values
