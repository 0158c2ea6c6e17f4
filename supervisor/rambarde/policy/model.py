"""The rights of an agent, as values. Trusted side. No I/O.

A Policy is what one agent may do; a Narrowing is what a persona or a flag takes away from it;
narrow() joins the two. No field that grants a right has a default, so nothing is allowed by being
forgotten: an empty set is no right, never every right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import get_type_hints

NOT_DECLARED_LIMITS = frozenset({"max_actions"})
"""Limits that may be None, which is "not declared": then only the ceilings of the tree hold."""


class Decision(IntEnum):
    """How a call is judged. Ordered so that max() is the strictest."""

    ALLOW = 0
    ASK = 1
    DENY = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement and where it comes from.

    `code` is stable for machines: `granted`, `asked`, `tool_absent`, `catastrophic`,
    `outside_workspace`, `denied_rule`, `read_only`, `masked_path`, `protected_path`,
    `unknown_agent`, `server_absent`. `reason` is a sentence for a person and a model; `layer` is
    the axis of the policy that spoke (`tools`, `rules`, `writable`...); `rule` is the file and
    line of the rule, or empty.
    """

    decision: Decision
    code: str
    reason: str
    layer: str
    rule: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A judgement of the calls of one tool by their subject.

    Every rule can only restrict, so that adding rules is always narrowing: DENY refuses the calls
    in scope, ASK asks about them, and ALLOW admits only them, refusing all other calls of the
    tool. Two ALLOW rules of one tool both have to admit a call.

    `right` is a tool's name. `scope` holds patterns, any of which may match, less those that begin
    with `!`: for bash, words with an optional `*` as the last; for tools with a path, gitignore
    patterns; for Task, names of agents. `allows` and `refuses` are examples of subjects, tried
    when the file is loaded. `origin` is `file:line`.
    """

    right: str
    scope: tuple[str, ...]
    decision: Decision
    reason: str
    allows: tuple[str, ...]
    refuses: tuple[str, ...]
    origin: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one agent. Every field is above zero; only `max_actions` may be None.

    Names say the unit: `_s` seconds, `_bytes` bytes, `_chars` code points, else a count.
    `output_bytes` is what a model is shown of each stream; a command that writes more than
    `output_hard_bytes` is killed; `disk_free_bytes` is the free space below which work stops.
    """

    max_actions: int | None
    max_duration_s: float
    stall_s: float
    startup_s: float
    tool_timeout_s: float
    tree_model_requests: int
    tree_tokens: int
    memory_bytes: int
    processes: int
    open_files: int
    file_bytes: int
    tmp_bytes: int
    home_bytes: int
    shm_bytes: int
    tmp_inodes: int
    output_bytes: int
    output_hard_bytes: int
    report_chars: int
    disk_free_bytes: int
    nice: int

    def __post_init__(self) -> None:
        """Refuse what is no bound.

        Raises:
            ValueError: naming the field, for a value that is zero, negative, not finite, of the
                wrong kind, or None where "not declared" has no meaning.
        """
        for name, kind in LIMIT_KINDS.items():
            check_limit(name, getattr(self, name), kind)


@dataclass(frozen=True, slots=True)
class Policy:
    """All that one agent may do.

    `rules` are kept in a canonical order without doubles. `masks` are gitignore patterns of paths
    hidden from the agent, `protected` of paths it may see and never write. `delegates` are the
    agents it may give work to, `mcp_servers` and `hosts` what it may speak to, by exact name.
    `debug` admits ptrace inside the agent's own sandbox.
    """

    name: str
    tools: frozenset[str]
    writable: bool
    debug: bool
    rules: tuple[Rule, ...]
    masks: frozenset[str]
    protected: frozenset[str]
    delegates: frozenset[str]
    mcp_servers: frozenset[str]
    hosts: frozenset[str]
    limits: Limits


@dataclass(frozen=True, slots=True)
class LimitsNarrowing:
    """Stricter limits asked for; None inherits. A value looser than the parent's has no effect."""

    max_actions: int | None = None
    max_duration_s: float | None = None
    stall_s: float | None = None
    startup_s: float | None = None
    tool_timeout_s: float | None = None
    tree_model_requests: int | None = None
    tree_tokens: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None
    tmp_bytes: int | None = None
    home_bytes: int | None = None
    shm_bytes: int | None = None
    tmp_inodes: int | None = None
    output_bytes: int | None = None
    output_hard_bytes: int | None = None
    report_chars: int | None = None
    disk_free_bytes: int | None = None
    nice: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no bound.

        Raises:
            ValueError: as Limits, but None is accepted everywhere.
        """
        for name, kind in LIMIT_KINDS.items():
            value = getattr(self, name)
            if value is not None:
                check_limit(name, value, kind)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is taken away from a policy. None inherits the axis; an empty set takes all of it.

    `name` names the result; empty keeps the parent's. `without_tools` is subtracted after `tools`
    is met. `rules`, `masks` and `protected` are added, since they only restrict.
    """

    name: str = ""
    tools: frozenset[str] | None = None
    without_tools: frozenset[str] | None = None
    writable: bool | None = None
    debug: bool | None = None
    rules: tuple[Rule, ...] | None = None
    masks: frozenset[str] | None = None
    protected: frozenset[str] | None = None
    delegates: frozenset[str] | None = None
    mcp_servers: frozenset[str] | None = None
    hosts: frozenset[str] | None = None
    limits: LimitsNarrowing | None = None


def check_limit(name: str, value: object, kind: type) -> None:
    """Check one bound; `kind` is int or float.

    Raises:
        ValueError: with the field's name and what it must be.
    """
    if value is None and name in NOT_DECLARED_LIMITS:
        return
    wanted = "a whole number" if kind is int else "a number of seconds"
    accepted = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise ValueError(f"{name} is {value!r}; it must be {wanted} above zero")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value!r}; it must be {wanted} above zero")


def _limit_kinds() -> dict[str, type]:
    hints = get_type_hints(Limits)
    return {field.name: float if hints[field.name] is float else int for field in fields(Limits)}


LIMIT_KINDS: dict[str, type] = _limit_kinds()
"""Every limit's name and its kind, int or float, in the order of Limits."""

FLOORS = frozenset({"disk_free_bytes", "nice"})
"""Limits that bind by being high: narrowing takes their maximum, that of all others the minimum."""
