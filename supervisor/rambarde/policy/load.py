"""Load the policies of this program from their folder, with every fault at once. Trusted side.

A folder holds limits.toml, catastrophic.toml, protected.toml, masks.toml and one file per base
policy in sandbox/. Nothing is taken from a workspace here. A rule's examples are tried while it is
loaded, so a rule that does not do what its author wrote never comes into force.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from rambarde.errors import Fault, PolicyError
from rambarde.policy.catastrophic import load_forms
from rambarde.policy.limits import load_limits
from rambarde.policy.model import Limits, Policy, Rule
from rambarde.policy.narrow import canonical_rules
from rambarde.policy.rules import RuleShape, read_rule
from rambarde.policy.shape import Shape, Text, Texts, closest, read_shape
from rambarde.policy.source import UnreadableError, read_toml
from rambarde.policy.subject import scope_fault
from rambarde_wire.tools import TOOLS

_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\.toml")

Axis = Literal["declared", "none"]


class SandboxShape(Shape):
    """A base policy. On the last three axes, "declared" is what the person's own files declare."""

    name: Text
    reason: Text
    tools: Texts
    writable: bool
    debug: bool
    delegates: Axis
    mcp_servers: Axis
    hosts: Axis
    rule: list[RuleShape] = Field(default_factory=list)


class GroupShape(Shape):
    """Patterns with one reason."""

    reason: Text
    patterns: Texts


class PatternsShape(Shape):
    """protected.toml and masks.toml."""

    group: list[GroupShape] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Base:
    """A base policy as its file says it, with the axes that the person's files fill."""

    policy: Policy
    reason: str
    declared: frozenset[str]
    """Names among delegates, mcp_servers and hosts."""


@dataclass(frozen=True, slots=True)
class Policies:
    """All base policies by name. `sha256` is of every file read, for the session's record."""

    bases: Mapping[str, Base]
    sha256: str

    def base(
        self,
        name: str,
        *,
        delegates: frozenset[str] = frozenset(),
        mcp_servers: frozenset[str] = frozenset(),
        hosts: frozenset[str] = frozenset(),
        limits: Limits | None = None,
    ) -> Policy:
        """Return the policy a session starts with.

        Args:
            name: `workspace-write`, `workspace-ask`, `read-only` or another file of sandbox/.
            delegates: every delegable agent known at the start; ignored by a base that says none.
            mcp_servers: the servers the person's settings declare.
            hosts: the hosts the person's settings declare.
            limits: the declared limits as the person's settings changed them.

        Raises:
            PolicyError: there is no base of that name; the fault lists those there are.
        """
        found = self.bases.get(name)
        if found is None:
            known = ", ".join(sorted(self.bases))
            raise PolicyError(
                [Fault("sandbox", 0, f"no policy named {name}{closest(name, list(self.bases))}")],
                advice=f"Choose one of: {known}.",
            )
        given = {"delegates": delegates, "mcp_servers": mcp_servers, "hosts": hosts}
        kept: dict[str, Any] = {
            axis: names for axis, names in given.items() if axis in found.declared
        }
        return replace(found.policy, **kept, limits=limits or found.policy.limits)


def load_policies(folder: str) -> Policies:
    """Load every policy file of a folder.

    Args:
        folder: usually source.shipped_folder().

    Raises:
        PolicyError: with all faults of all files, sorted by file and line.
    """
    limits, faults = load_limits(folder)
    faults += load_forms(folder)[1]
    masks, found = load_patterns(folder, "masks.toml")
    faults += found
    protected, found = load_patterns(folder, "protected.toml")
    faults += found
    bases: dict[str, Base] = {}
    names, found = _sandbox_files(folder)
    faults += found
    for name in names:
        read, found = _read_base(folder, name)
        faults += found
        if read is not None and limits is not None:
            base = _base(*read, masks=masks, protected=protected, limits=limits)
            bases[base.policy.name] = base
    if faults:
        raise PolicyError(sorted(set(faults), key=lambda f: (f.path, f.line, f.text)))
    return Policies(bases, _digest(folder, names))


def load_patterns(folder: str, name: str) -> tuple[frozenset[str], list[Fault]]:
    """Return the patterns of masks.toml or protected.toml, and the faults."""
    try:
        document = read_toml(folder, name)
    except UnreadableError as exc:
        return frozenset(), [exc.fault]
    shape, faults = read_shape(PatternsShape, document)
    if shape is None:
        return frozenset(), faults
    for index, group in enumerate(shape.group):
        for pattern in group.patterns:
            wrong = "begins with !" if pattern.startswith("!") else scope_fault("read", pattern)
            if wrong:
                keys = ("group", index, "patterns")
                faults.append(document.fault(keys, f"pattern {pattern!r} {wrong}"))
    return frozenset(p for group in shape.group for p in group.patterns), faults


def _read_base(
    folder: str, name: str
) -> tuple[tuple[SandboxShape, list[Rule]] | None, list[Fault]]:
    try:
        document = read_toml(folder, name)
    except UnreadableError as exc:
        return None, [exc.fault]
    shape, faults = read_shape(SandboxShape, document)
    if shape is None:
        return None, faults
    stem = os.path.basename(name).removesuffix(".toml")
    if shape.name != stem:
        faults.append(document.fault(("name",), f"name is {shape.name!r}; the file says {stem!r}"))
    for tool in shape.tools:
        if tool not in TOOLS:
            near = closest(tool, list(TOOLS))
            faults.append(document.fault(("tools",), f"unknown tool {tool}{near}"))
    rules: list[Rule] = []
    for index, one in enumerate(shape.rule):
        rule, found = read_rule(one, document, index)
        rules.append(rule)
        faults += found
    return (shape, rules), faults


def _base(
    shape: SandboxShape,
    rules: list[Rule],
    *,
    masks: frozenset[str],
    protected: frozenset[str],
    limits: Limits,
) -> Base:
    axes = {
        "delegates": shape.delegates,
        "mcp_servers": shape.mcp_servers,
        "hosts": shape.hosts,
    }
    policy = Policy(
        name=shape.name,
        tools=frozenset(shape.tools),
        writable=shape.writable,
        debug=shape.debug,
        rules=canonical_rules(rules),
        masks=masks,
        protected=protected,
        delegates=frozenset(),
        mcp_servers=frozenset(),
        hosts=frozenset(),
        limits=limits,
    )
    declared = frozenset(axis for axis, value in axes.items() if value == "declared")
    return Base(policy, shape.reason, declared)


def _sandbox_files(folder: str) -> tuple[list[str], list[Fault]]:
    """Return the files of sandbox/ in byte order; any other name there is a fault."""
    try:
        names = sorted(os.listdir(os.fsencode(os.path.join(folder, "sandbox"))))
    except OSError as exc:
        return [], [Fault("sandbox", 0, f"cannot be read: {exc.strerror}")]
    files: list[str] = []
    faults: list[Fault] = []
    for name in map(os.fsdecode, names):
        if _FILE_NAME.fullmatch(name):
            files.append(f"sandbox/{name}")
        else:
            text = "is no name of a policy file (a-z, 0-9, - and .toml)"
            faults.append(Fault(f"sandbox/{name!r}", 0, text))
    if not names:
        faults.append(Fault("sandbox", 0, "holds no policy"))
    return files, faults


def _digest(folder: str, names: list[str]) -> str:
    digest = hashlib.sha256()
    for name in ("catastrophic.toml", "limits.toml", "masks.toml", "protected.toml", *names):
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()
