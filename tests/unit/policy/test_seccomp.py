"""Seccomp tables and filters: every rule tried both ways, from data, for both architectures."""

from __future__ import annotations

import errno
import itertools
import os
import struct

import pytest

from rambarde.errors import InternalError, PolicyError
from rambarde.policy.seccomp import (
    MOST_INSTRUCTIONS,
    ConditionShape,
    RuleShape,
    Table,
    assemble,
    load_table,
)
from rambarde.policy.source import shipped_folder
from support import bpf

FOLDER = os.path.join(shipped_folder(), "seccomp")
MACHINES = ("x86_64", "aarch64")
TIERS = ("A", "A-proc", "B", "C")
TABLES = {machine: load_table(FOLDER, machine) for machine in MACHINES}
WAYS = [
    (machine, profile, tier, debug)
    for machine in MACHINES
    for profile in ("agent", "command")
    for tier in TIERS
    for debug in (False, True)
]
FILTERS = {way: assemble(TABLES[way[0]], profile=way[1], tier=way[2], debug=way[3]) for way in WAYS}


def ask(way, call, *arguments):
    """The errno a filter answers to a named call; 0 when it allows."""
    machine = way[0]
    number = TABLES[machine].numbers[call]
    answer = bpf.run(FILTERS[way], number, arguments, arch=bpf.ARCHES[machine])
    return bpf.denied(answer)


def command(machine="x86_64", tier="A", *, debug=False):
    return (machine, "command", tier, debug)


def holds(condition: ConditionShape, value: int) -> bool:
    """What a condition means, said a second time."""
    seen = value & 0xFFFFFFFF & condition.mask
    match condition.test:
        case "equals":
            return seen in condition.values
        case "not_in":
            return seen not in condition.values
        case "any_bit":
            return any(seen & bits for bits in condition.values)
        case "no_bit":
            return not any(seen & bits for bits in condition.values)
    raise AssertionError(condition.test)


def values_for(condition: ConditionShape) -> set[int]:
    """Arguments that meet a condition and arguments that do not."""
    values = {0, 0xFFFFFFFF}
    for value in condition.values:
        values |= {value, value + 1 & 0xFFFFFFFF}
        if condition.test in ("any_bit", "no_bit"):
            values |= {1 << bit for bit in range(32) if value >> bit & 1}
            values.add(~value & 0xFFFFFFFF)
        if condition.mask != 0xFFFFFFFF:
            values.add(value | ~condition.mask & 0xFFFFFFFF)
    return values


def deciding(way, call, arguments) -> int | None:
    """The place of the first rule in force that matches, by reading the data."""
    machine, profile, tier, debug = way
    for index, rule in enumerate(TABLES[machine].rules):
        if call not in rule.calls or profile not in rule.profiles or tier not in rule.tiers:
            continue
        if debug and rule.unless_debug:
            continue
        if all(holds(one, arguments[one.arg]) for one in rule.when):
            return index
    return None


def expected(way, call, arguments) -> int:
    """The errno of the rule that decides; 0 when none does."""
    index = deciding(way, call, arguments)
    return 0 if index is None else getattr(errno, TABLES[way[0]].rules[index].action)


def arguments_for(table: Table, call: str) -> list[list[int]]:
    """All combinations of the telling values of the arguments that rules look at."""
    choices: dict[int, set[int]] = {}
    for rule in table.rules:
        for one in rule.when if call in rule.calls else ():
            choices.setdefault(one.arg, set()).update(values_for(one))
    made = []
    for picked in itertools.product(*map(sorted, choices.values())):
        arguments = [0] * 6
        for place, value in zip(choices, picked, strict=True):
            arguments[place] = value
        made.append(arguments)
    return made


def different_ways():
    """One way for each filter that differs from the others."""
    return list({program: way for way, program in FILTERS.items()}.values())


@pytest.mark.parametrize("way", different_ways(), ids=lambda way: "-".join(map(str, way)))
def test_every_rule_answers_as_its_data_says(way):
    """Each named call, with arguments on both sides of each condition, is answered by its data."""
    table = TABLES[way[0]]
    for call in table.numbers:
        for arguments in arguments_for(table, call):
            assert ask(way, call, *arguments) == expected(way, call, arguments), (call, arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_no_rule_is_idle(machine):
    """Each rule decides some call, which no rule before it takes; its conditions pass another."""
    table = TABLES[machine]
    ways = [way for way in different_ways() if way[0] == machine]
    asked = [(call, args) for call in table.numbers for args in arguments_for(table, call)]
    decided = {deciding(way, call, args) for way in ways for call, args in asked}
    for index, rule in enumerate(table.rules):
        here = [(call, args) for call, args in asked if call in rule.calls]
        if not here:
            assert machine == "aarch64", rule.calls
            continue
        assert index in decided, (index, rule.calls)
        met = [all(holds(one, args[one.arg]) for one in rule.when) for _call, args in here]
        assert not all(met) or not rule.when, (index, rule.calls)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_that_no_rule_names_is_allowed(machine):
    """The default is to allow, up to the greatest number."""
    known = set(TABLES[machine].numbers.values())
    for number in set(range(600)) - known | {0x3FFFFFFF}:
        way = (machine, "command", "C", False)
        assert bpf.run(FILTERS[way], number, arch=bpf.ARCHES[machine]) == bpf.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_a_foreign_architecture_is_killed(machine):
    """Numbers mean other calls there: i386 by int 0x80, arm32, or the wrong table."""
    native = bpf.ARCHES[machine]
    for arch in (0x40000003, 0x40000028, 0, *bpf.ARCHES.values()):
        for number in (0, 1, 11, 59, 221):
            answer = bpf.run(FILTERS[command(machine)], number, arch=arch)
            assert (answer == bpf.KILL) is (arch != native)


def test_x32_does_not_exist():
    """Its numbers carry bit 30 and would pass every comparison; -1 is among them."""
    for number in (0x40000000, 0x40000000 | 59, 0x40000000 | 520, 0xFFFFFFFF):
        answer = bpf.run(FILTERS[command()], number, arch=bpf.ARCHES["x86_64"])
        assert bpf.denied(answer) == errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_high_bits_of_an_argument_hide_nothing(machine):
    """The kernel cuts these arguments to 32 bits, so the filter must judge what is left."""
    way = command(machine)
    high = 0xDEADBEEF << 32
    assert ask(way, "ioctl", 0, high | 0x5412) == errno.EPERM
    assert ask(way, "unshare", high | 0x10000000) == errno.EPERM
    assert ask(way, "clone", high | 0x10000000) == errno.EPERM
    assert ask(way, "socket", high | 40) == errno.EAFNOSUPPORT
    assert ask(way, "fchmod", 3, high | 0o4755) == errno.EPERM
    assert ask(way, "ioctl", 0, high | 0x5401) == 0


@pytest.mark.parametrize("machine", MACHINES)
def test_a_tool_chain_finds_what_it_needs(machine):
    """Threads, forks, sockets, FIFOs and plain modes work for a command in tier A."""
    way = command(machine)
    thread = 0x3D0F00
    assert ask(way, "clone", thread) == 0
    assert ask(way, "clone", 17) == 0
    assert ask(way, "clone3") == errno.ENOSYS
    for family, kind, protocol in ((1, 1, 0), (2, 1, 6), (2, 0x80802, 17), (10, 2, 0), (16, 3, 0)):
        assert ask(way, "socket", family, kind, protocol) == 0
    assert ask(way, "socketpair", 1, 1, 0) == 0
    assert ask(way, "openat", -100, 0, 0o100, 0o644) == 0
    assert ask(way, "openat", -100, 0, 0, 0o7777) == 0
    assert ask(way, "mkdirat", -100, 0, 0o1777) == 0
    assert ask(way, "mknodat", -100, 0, 0o010644, 0) == 0
    assert ask(way, "personality", 0xFFFFFFFF) == 0
    assert ask(way, "execve") == 0
    assert ask(way, "prlimit64", 4711) == 0


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("tier", TIERS)
def test_an_agent_neither_execs_nor_forks_nor_speaks(machine, tier):
    """An agent's own filter leaves it two pipes and one process, debug or not."""
    for debug in (False, True):
        way = (machine, "agent", tier, debug)
        assert ask(way, "execve") == ask(way, "execveat") == errno.EPERM
        assert ask(way, "clone", 0x3D0F00) == ask(way, "clone", 17) == errno.EPERM
        for family in (1, 2, 10, 16, 40):
            assert ask(way, "socket", family) == errno.EAFNOSUPPORT
        assert ask(way, "socketpair", 1) == errno.EAFNOSUPPORT


@pytest.mark.parametrize("machine", MACHINES)
def test_without_namespaces_the_users_other_things_are_out_of_reach(machine):
    """Tier C has no namespace to stand in for: sockets, queues and foreign processes go."""
    way = command(machine, "C")
    for family in (1, 2, 10, 16):
        assert ask(way, "socket", family, 1) != 0
    assert ask(way, "socketpair", 1) == 0
    assert ask(way, "prlimit64", 0) == 0
    assert ask(way, "prlimit64", 4711) == errno.EPERM
    assert ask(way, "setpriority", 0, 0, 5) == 0
    assert ask(way, "setpriority", 2, 0, 5) == errno.EPERM
    for call in ("shmget", "semop", "msgsnd", "mq_open"):
        assert ask(way, call) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_only_the_debug_bit_lets_a_command_trace(machine):
    """ptrace is for debuggers inside the sandbox; nothing else comes with it."""
    assert ask(command(machine), "ptrace") == errno.EPERM
    assert ask(command(machine, debug=True), "ptrace") == 0
    changed = [
        call
        for call in TABLES[machine].numbers
        if ask(command(machine), call) != ask(command(machine, debug=True), call)
    ]
    assert set(changed) == {"ptrace", "process_vm_readv", "process_vm_writev"}


def test_filters_are_short_and_load():
    """The kernel's own checks pass and the longest filter is a fraction of what it takes."""
    longest = max(len(bpf.read(program)) for program in FILTERS.values())
    assert longest < MOST_INSTRUCTIONS / 8


def test_both_architectures_hide_the_same_calls():
    """What one table lacks is a call that the other architecture never had."""
    only = set(TABLES["x86_64"].numbers) ^ set(TABLES["aarch64"].numbers)
    assert only == {
        "chmod", "creat", "create_module", "fork", "ioperm", "iopl", "mkdir", "mknod",
        "modify_ldt", "open", "vfork",
    }  # fmt: skip


def test_every_condition_test_assembles_to_its_meaning():
    """Each test, with one value and with several, masked and not, and two conditions together."""
    kinds = ("equals", "not_in", "any_bit", "no_bit")
    for kind, values, mask in itertools.product(
        kinds, ([4], [4, 9], [1, 2, 0x8000_0000]), (0xFFFFFFFF, 0x8000_000F)
    ):
        one = ConditionShape(arg=2, test=kind, values=values, mask=mask)
        other = ConditionShape(arg=5, test="equals", values=[7, 8])
        for when in ([one], [one, other], [other, one]):
            rule = RuleShape(calls=["f", "g", "h"], action="EPERM", why="a test", when=when)
            after = RuleShape(calls=["h", "k"], action="ENOSYS", why="a test")
            table = Table("x86_64", {"f": 3, "g": 5, "h": 6, "k": 7}, (rule, after))
            program = assemble(table, profile="command", tier="A", debug=False)
            for number, value, last in itertools.product(
                (3, 5, 6, 7, 8), (0, 4, 9, 0x14, 0x8000_0002), (7, 9)
            ):
                answer = bpf.run(program, number, (0, 0, value, 0, 0, last), arch=0xC000003E)
                args = [0, 0, value, 0, 0, last]
                wanted = 0
                if number in (3, 5, 6) and all(holds(c, args[c.arg]) for c in when):
                    wanted = errno.EPERM
                elif number in (6, 7):
                    wanted = errno.ENOSYS
                assert bpf.denied(answer) == wanted, (kind, values, mask, number, value, last)


def test_a_rule_too_long_for_its_jumps_is_refused():
    """A jump reaches 255 instructions: more calls in one rule are a fault, not a wrong filter."""
    names = [f"c{number}" for number in range(300)]
    rule = RuleShape(calls=names, action="EPERM", why="a test")
    table = Table("x86_64", {name: place for place, name in enumerate(names)}, (rule,))
    with pytest.raises(PolicyError, match="too long"):
        assemble(table, profile="command", tier="A", debug=False)


@pytest.mark.parametrize("where", [{"tier": "a"}, {"tier": "D"}, {"profile": "Agent"}])
def test_an_unknown_tier_or_profile_makes_no_filter(where):
    """No rule would be in force there, and the default is to allow."""
    with pytest.raises(InternalError):
        assemble(TABLES["x86_64"], **{"profile": "agent", "tier": "A", "debug": False, **where})


def folder_with(tmp_path, rules, numbers="[numbers]\nmount = 1\n"):
    """A folder of tables with this text."""
    (tmp_path / "rules.toml").write_text(rules)
    (tmp_path / "x86_64.toml").write_text(numbers)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("rules", "where"),
    [
        ('[[rule]]\ncalls = ["mount"]\naction = "EPERM"\n', "rules.toml:1: key rule.0.why"),
        ('[[rule]]\ncalls = ["mount"]\naction = "DENY"\nwhy = "w"\n', "rules.toml:3: "),
        ('[[rule]]\ncalls = []\naction = "EPERM"\nwhy = "w"\n', "rules.toml:2: "),
        (
            '[[rule]]\ncalls = ["mount"]\naction = "EPERM"\nwhy = "w"\nprofile = ["agent"]\n',
            "rules.toml:5: unknown key rule.0.profile; did you mean profiles?",
        ),
        ('[[rule]]\ncalls = ["nosuch"]\naction = "EPERM"\nwhy = "w"\n', "rules.toml:2: "),
        (
            (
                '[[rule]]\ncalls = ["mount"]\naction = "EPERM"\nwhy = "w"\n'
                'when = [{ arg = 6, test = "equals", values = [1] }]\n'
            ),
            "rules.toml:5: ",
        ),
        (
            (
                '[[rule]]\ncalls = ["mount"]\naction = "EPERM"\nwhy = "w"\n'
                'when = [{ arg = 0, test = "equals", values = [0x100000000] }]\n'
            ),
            "rules.toml:5: ",
        ),
        (
            (
                '[[rule]]\ncalls = ["mount"]\naction = "EPERM"\nwhy = "w"\n'
                'when = [{ arg = 0, mask = 0xF, test = "equals", values = [0x13] }]\n'
            ),
            "rules.toml:5: ",
        ),
        (
            (
                '[[rule]]\ncalls = ["mount"]\naction = "EPERM"\nwhy = "w"\n'
                'when = [{ arg = 0, test = "any_bit", values = [0] }]\n'
            ),
            "rules.toml:5: ",
        ),
    ],
)
def test_a_fault_names_file_and_line(tmp_path, rules, where):
    """A rule without a reason, of an unknown action, key, call, argument or value is refused."""
    with pytest.raises(PolicyError) as caught:
        load_table(folder_with(tmp_path, rules), "x86_64")
    assert where in str(caught.value)


def test_a_number_that_no_rule_names_is_a_fault(tmp_path):
    """An idle number is a rule that got lost, or a slip in a name."""
    rules = '[[rule]]\ncalls = ["mount"]\naction = "EPERM"\nwhy = "w"\n'
    folder = folder_with(tmp_path, rules, "[numbers]\nmount = 1\nmuont = 2\n")
    with pytest.raises(PolicyError, match=r"x86_64.toml:3: .*muont"):
        load_table(folder, "x86_64")


def test_a_call_said_absent_that_no_rule_names_is_a_fault(tmp_path):
    """A list of what is lacking stays as true as the list of what is there."""
    rules = '[[rule]]\ncalls = ["mount"]\naction = "EPERM"\nwhy = "w"\n'
    folder = folder_with(tmp_path, rules, 'absent = ["mkdir"]\n[numbers]\nmount = 1\n')
    with pytest.raises(PolicyError, match=r"x86_64.toml:1: mkdir"):
        load_table(folder, "x86_64")


def test_the_assembled_bytes_are_what_the_kernel_reads():
    """The program starts with the load of the architecture, in struct sock_filter's layout."""
    code, yes, no, value = struct.unpack("<HBBI", FILTERS[command()][:8])
    assert (code, yes, no, value) == (0x20, 0, 0, 4)
