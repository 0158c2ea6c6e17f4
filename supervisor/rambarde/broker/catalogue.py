"""The tools as a model is told them, made from the wire's argument structs. Trusted side. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from rambarde.models.base import ToolSpec
from rambarde_wire import tools


def catalogue(granted: frozenset[str], delegates: Mapping[str, str]) -> tuple[ToolSpec, ...]:
    """Return the specs of the granted tools, in the table's order.

    Args:
        granted: tool names of the policy.
        delegates: name and description of each subagent that may be given a brief; when it is
            empty, Task is left out: a tool that would be refused is not described.
    """
    names = [n for n in tools.TOOLS if n in granted and (n != "Task" or delegates)]
    return tuple(_spec(name, delegates) for name in names)


def _spec(name: str, delegates: Mapping[str, str]) -> ToolSpec:
    arguments = tools.TOOLS[name]
    description = (arguments.__doc__ or "").strip()
    if name == "Task":
        listed = "\n".join(f"- {agent}: {text}" for agent, text in sorted(delegates.items()))
        description = f"{description}\nAgents:\n{listed}"
    return ToolSpec(name=name, description=description, schema=_schema(arguments))


def _schema(arguments: type[tools.Arguments]) -> dict[str, Any]:
    (_,), parts = msgspec.json.schema_components([arguments])
    schema = dict(parts[arguments.__name__])
    for noise in ("title", "description"):
        schema.pop(noise, None)
    schema["additionalProperties"] = False
    return schema


def fold_aliases(tool: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments under our names; a name given twice keeps ours."""
    aliases = tools.ALIASES.get(tool, {})
    folded = {name: value for name, value in arguments.items() if name not in aliases}
    for name, value in arguments.items():
        if name in aliases:
            folded.setdefault(aliases[name], value)
    return folded


def names_of(specs: Iterable[ToolSpec]) -> frozenset[str]:
    """Return the names a model was told."""
    return frozenset(spec.name for spec in specs)
