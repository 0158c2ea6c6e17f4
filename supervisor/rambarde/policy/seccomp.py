"""Seccomp tables to filter bytes. Trusted side. Pure but for `load_table`; no kernel call.

Theory of operation
-------------------
A filter is a classic BPF program over struct seccomp_data: the call's number at 0, the architecture
at 4, six 64-bit arguments at 16. It checks the architecture first (a foreign one is killed), then
walks groups of calls that share an answer. An argument is compared by its low 32 bits only: the
kernel itself looks at no more for those calls, and a filter that looks at 64 is passed by a high
bit that the kernel ignores.

The default is to allow: a shell runs whatever tool chain there is. What is denied is data, each
with its reason, in policies/seccomp; a number no table names is not hidden.

    EPERM          this operation is forbidden
    ENOSYS         this kernel feature does not exist here, so callers fall back (clone3, io_uring)
    EAFNOSUPPORT   this address family does not exist here

Source: seccomp(2), bpf classic (Documentation/networking/filter.rst), syscalls(2).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from rambarde.errors import Fault, InternalError, PolicyError
from rambarde.policy.shape import Shape, Text, Texts, read_shape
from rambarde.policy.source import Document, UnreadableError, read_toml
from rambarde_wire.orders import Tier

Profile = Literal["agent", "command"]
Action = Literal["EPERM", "ENOSYS", "EAFNOSUPPORT"]
Test = Literal["equals", "not_in", "any_bit", "no_bit"]

MOST_INSTRUCTIONS = 4096
"""BPF_MAXINSNS of linux/bpf_common.h."""

_LD, _JEQ, _JSET, _RET, _AND = 0x20, 0x15, 0x45, 0x06, 0x54
_RET_ALLOW, _RET_ERRNO, _RET_KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH, _ARGS = 0, 4, 16
_X32_BIT = 0x40000000
_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ERRNOS: dict[Action, int] = {
    "EPERM": errno.EPERM,
    "ENOSYS": errno.ENOSYS,
    "EAFNOSUPPORT": errno.EAFNOSUPPORT,
}
_JUMP_MAX = 255


class ConditionShape(Shape):
    """A test of one argument's low 32 bits, after `mask`."""

    arg: int = Field(ge=0, le=5)
    test: Test
    values: list[Annotated[int, Field(ge=0, le=0xFFFFFFFF)]] = Field(min_length=1)
    mask: int = Field(default=0xFFFFFFFF, ge=1, le=0xFFFFFFFF)

    @model_validator(mode="after")
    def _can_be_met_and_missed(self) -> Self:
        """Refuse a value that decides nothing: the rule would look in force and never be."""
        for value in self.values:
            if value & ~self.mask:
                raise ValueError(f"value {value:#x} has bits that the mask {self.mask:#x} removes")
            if not value and self.test in ("any_bit", "no_bit"):
                raise ValueError("value 0 has no bit to test")
        return self


class RuleShape(Shape):
    """Calls with one answer; with conditions, only when all of them hold."""

    calls: Texts
    action: Action
    why: Text
    profiles: list[Profile] = Field(default=["agent", "command"], min_length=1)
    tiers: list[Tier] = Field(default=list(get_args(Tier)), min_length=1)
    unless_debug: bool = False
    when: list[ConditionShape] = Field(default_factory=list)


class TableShape(Shape):
    """One architecture's file: the numbers of the calls that rules name, and those it lacks."""

    numbers: dict[str, Annotated[int, Field(ge=0, lt=_X32_BIT)]] = Field(min_length=1)
    absent: list[Text] = Field(default_factory=list)


class RulesShape(Shape):
    """rules.toml: what is denied, for every architecture."""

    rule: list[RuleShape] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Table:
    """Rules with one architecture's numbers; a call it does not have is not in `numbers`."""

    machine: str
    numbers: Mapping[str, int]
    rules: tuple[RuleShape, ...]

    def rules_for(self, profile: Profile, tier: str, *, debug: bool) -> Iterable[RuleShape]:
        """Yield the rules in force, in the order in which the filter tries them."""
        for rule in self.rules:
            if (
                profile in rule.profiles
                and tier in rule.tiers
                and not (debug and rule.unless_debug)
            ):
                yield rule


def load_table(folder: str, machine: str) -> Table:
    """Return the table of an architecture.

    Args:
        folder: policies/seccomp.
        machine: x86_64 or aarch64.

    Raises:
        PolicyError: with every fault of the two files, by file and line; a name that only one of
            them knows is a fault.
    """
    faults: list[Fault] = []
    documents: list[Document] = []
    for name in ("rules.toml", f"{machine}.toml"):
        try:
            documents.append(read_toml(folder, name))
        except UnreadableError as exc:
            faults.append(exc.fault)
    if not faults:
        rules, faults = read_shape(RulesShape, documents[0])
        table, more = read_shape(TableShape, documents[1])
        faults += more
        if rules is not None and table is not None:
            faults += _strangers(rules, table, *documents)
            if not faults:
                return Table(machine, table.numbers, tuple(rules.rule))
    raise PolicyError(faults, advice="Mend the table; a slip in a name would leave a call open.")


def _strangers(
    rules: RulesShape, table: TableShape, rules_file: Document, table_file: Document
) -> list[Fault]:
    """Return a fault for each name that only one of the two files knows, and for each double."""
    known = {*table.numbers, *table.absent}
    faults = [
        rules_file.fault(("rule", index, "calls"), f"{call} has no number for this architecture")
        for index, rule in enumerate(rules.rule)
        for call in rule.calls
        if call not in known
    ]
    named = {call for rule in rules.rule for call in rule.calls}
    faults += [
        table_file.fault(("absent",), f"{call} is absent, and no rule names it")
        for call in table.absent
        if call not in named
    ]
    seen: dict[int, str] = {}
    for call, number in table.numbers.items():
        if call not in named or call in table.absent:
            faults.append(table_file.fault(("numbers", call), f"{call} is in no rule, or absent"))
        if seen.setdefault(number, call) != call:
            text = f"{call} has the number of {seen[number]}"
            faults.append(table_file.fault(("numbers", call), text))
    return faults


def assemble(table: Table, *, profile: Profile, tier: str, debug: bool) -> bytes:
    """Return the filter: struct sock_filter[], 8 bytes each, little endian as both architectures.

    Raises:
        PolicyError: the program is longer than the kernel takes.
        InternalError: a profile or tier that rules do not know; no rule would be in force.
    """
    if profile not in get_args(Profile) or tier not in get_args(Tier):
        raise InternalError(f"no system call rules for the profile {profile!r} in tier {tier!r}")
    program = _prologue(table.machine)
    for rule in table.rules_for(profile, tier, debug=debug):
        numbers = [table.numbers[name] for name in rule.calls if name in table.numbers]
        if numbers:
            program += _rule(rule, numbers)
    program.append(_op(_RET, _RET_ALLOW))
    if len(program) > MOST_INSTRUCTIONS:
        text = f"{len(program)} instructions, the kernel takes {MOST_INSTRUCTIONS}"
        raise PolicyError([Fault("seccomp", 0, text)])
    return b"".join(program)


def _prologue(machine: str) -> list[bytes]:
    program = [
        _op(_LD, _ARCH),
        _op(_JEQ, _ARCHES[machine], yes=1),
        _op(_RET, _RET_KILL),
        _op(_LD, _NR),
    ]
    if machine == "x86_64":
        program += [_op(_JSET, _X32_BIT, no=1), _op(_RET, _RET_ERRNO | errno.ENOSYS)]
    return program


def _rule(rule: RuleShape, numbers: Sequence[int]) -> list[bytes]:
    """One rule: match any of the numbers, then its conditions, then its answer.

    The accumulator holds the call's number on entry and on every way out that goes on.
    """
    answer = [_op(_RET, _RET_ERRNO | _ERRNOS[rule.action])]
    body = _conditions(rule.when) + answer
    if rule.when:
        body.append(_op(_LD, _NR))
    if len(body) >= _JUMP_MAX or len(numbers) >= _JUMP_MAX:
        raise PolicyError([Fault("seccomp", 0, f"a rule over {len(numbers)} calls is too long")])
    program = []
    for index, number in enumerate(numbers):
        left = len(numbers) - index - 1
        # A match jumps over the numbers left; the last one that differs jumps over the body.
        program.append(_op(_JEQ, number, yes=left, no=0 if left else len(body)))
    return program + body


def _conditions(conditions: Sequence[ConditionShape]) -> list[bytes]:
    """All conditions; the first that fails jumps behind the answer, to the reload."""
    blocks = [_condition(one) for one in conditions]
    program: list[bytes] = []
    for index, (load, tests) in enumerate(blocks):
        after = sum(len(one[0]) + len(one[1]) for one in blocks[index + 1 :])
        program += load
        for place, (code, value, on_match) in enumerate(tests):
            left = len(tests) - place - 1
            fails = left + after + 1
            program.append(_test(code, value, on_match, left=left, fails=fails))
    return program


_Check = tuple[int, int, Literal["holds", "fails"]]


def _condition(one: ConditionShape) -> tuple[list[bytes], list[_Check]]:
    load = [_op(_LD, _ARGS + 8 * one.arg)]
    if one.mask != 0xFFFFFFFF:
        load.append(_op(_AND, one.mask))
    match one.test:
        case "equals":
            return load, [(_JEQ, value, "holds") for value in one.values]
        case "any_bit":
            return load, [(_JSET, value, "holds") for value in one.values]
        case "not_in":
            return load, [(_JEQ, value, "fails") for value in one.values]
        case "no_bit":
            return load, [(_JSET, value, "fails") for value in one.values]


def _test(
    code: int, value: int, on_match: Literal["holds", "fails"], *, left: int, fails: int
) -> bytes:
    if on_match == "holds":
        return _op(code, value, yes=left, no=0 if left else fails)
    return _op(code, value, yes=fails, no=0)


def _op(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value & 0xFFFFFFFF)
