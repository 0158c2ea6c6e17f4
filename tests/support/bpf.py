"""A small interpreter of classic BPF, and a reading of the rules that shares no code with it.

`answer_of` runs a filter as the kernel would, for machines that a test does not run on; a jump or
a load that the kernel's checker would refuse is an error. `expected` says what the rules' text
demands, straight from the TOML, first match first: assembler and tables are held against it.

Source: Documentation/networking/filter.rst; seccomp(2), struct seccomp_data; linux/bpf_common.h.
"""

from __future__ import annotations

import errno
import struct
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALLOW = "allow"
KILL = "kill"
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_I386 = 0x40000003
FOREIGN = {"x86_64": (_I386, ARCHES["aarch64"]), "aarch64": (0x40000028, ARCHES["x86_64"])}
_DATA_BYTES = 64
_LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class Event:
    """One system call as a filter sees it: arguments are 64 bits wide."""

    number: int
    arch: int
    arguments: tuple[int, ...] = (0, 0, 0, 0, 0, 0)

    def data(self) -> bytes:
        """As struct seccomp_data: number, architecture, instruction pointer, six arguments."""
        return struct.pack("<IIQ6Q", self.number & _LOW, self.arch, 0, *self.arguments)


def answer_of(program: bytes, event: Event) -> str:
    """Return `allow`, `kill` or the name of an errno."""
    code = list(struct.iter_unpack("<HBBI", program))
    data = event.data()
    assert len(data) == _DATA_BYTES
    accumulator = place = 0
    while True:
        operation, yes, no, value = code[place]
        place += 1
        match operation:
            case 0x20:
                assert value % 4 == 0
                assert value < _DATA_BYTES
                accumulator = int.from_bytes(data[value : value + 4], "little")
            case 0x54:
                accumulator &= value
            case 0x15:
                place += yes if accumulator == value else no
            case 0x45:
                place += yes if accumulator & value else no
            case 0x06:
                return _return(value)
            case _:
                raise AssertionError(f"operation {operation:#x} at {place - 1}")


def _return(value: int) -> str:
    match value & 0xFFFF0000:
        case 0x7FFF0000:
            return ALLOW
        case 0x80000000:
            return KILL
        case 0x00050000:
            return errno.errorcode[value & 0xFFFF]
    raise AssertionError(f"answer {value:#x}")


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
