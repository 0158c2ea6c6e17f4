"""The keys of the settings file, their kinds, defaults and bounds. Trusted side. No I/O.

The names are those a person writes, in camelCase; so are the fields, for one name per thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from rambarde.loops import LoopSettings
from rambarde.policy.shape import Text

MOST = 10**15

Net = Annotated[int, Field(ge=1, le=MOST)]
"""A whole number above zero. The upper end only keeps it within what all parts can count."""


class Section(BaseModel):
    """Base of all sections: unknown keys are faults, values are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return "loop" + head.capitalize() + "".join(part.capitalize() for part in rest)


LOOP_KEYS: Mapping[str, str] = MappingProxyType(
    {_camel(field.name): field.name for field in fields(LoopSettings)}
)
"""Key of the file (`loopRepeatStop`) to field of LoopSettings (`repeat_stop`)."""


class _Nets(Section):
    subagentMaxDepth: Net = Field(  # noqa: N815 - the file's own name
        default=3, description="levels of subagents below the person's agent; 1: none of theirs"
    )
    subagentMaxPerSession: Net = Field(  # noqa: N815
        default=200, description="subagents started in one session, ended ones included"
    )
    subagentMaxConcurrent: Net = Field(  # noqa: N815
        default=20, description="subagents alive at once"
    )
    sessionMaxActions: Net | None = Field(  # noqa: N815
        default=None, description="tool calls of one agent; left out: not bounded by itself"
    )
    sessionMaxDuration: Net = Field(  # noqa: N815
        default=1800, description="seconds of work of one agent"
    )
    treeMaxModelRequests: Net = Field(  # noqa: N815
        default=2000, description="model requests of all agents of a session together"
    )
    treeMaxTokens: Net = Field(  # noqa: N815
        default=20_000_000, description="tokens of all agents of a session together"
    )
    sandboxTier: Literal["A", "A-proc", "B", "C"] = Field(  # noqa: N815
        default="A", description="least sandbox to run with; below it nothing starts"
    )


def _loop_fields() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(LoopSettings):
        default = int(str(field.default))
        bounds = Field(
            default=default, ge=2, le=10 * default, description="threshold of a loop rule"
        )
        found[_camel(field.name)] = (int, bounds)
    return found


class ExecutionSection(
    create_model("_Execution", __base__=_Nets, **_loop_fields())  # type: ignore[misc] # dynamic
):
    """`execution`: nets, limits, tier, thresholds of the loop rules."""


class ModelSection(Section):
    """`model`: which engine."""

    engine: Text | None = Field(default=None, description="URL, anthropic:URL, openai or offline")
    model: Text | None = Field(default=None, description="name of the model at the engine")
    keyFile: Text | None = Field(  # noqa: N815
        default=None, description="path of a file that holds the engine's key"
    )


class AgentsSection(Section):
    """`agents`: which agent a person's session is."""

    default: Text = Field(default="general", description="agent when none is named")


class FileShape(Section):
    """The whole file."""

    execution: ExecutionSection = ExecutionSection()
    model: ModelSection = ModelSection()
    agents: AgentsSection = AgentsSection()


SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {"execution": ExecutionSection, "model": ModelSection, "agents": AgentsSection}
)


def number_of(key: str) -> bool:
    """Tell whether a key of `execution` holds a whole number."""
    return key in ExecutionSection.model_fields and key != "sandboxTier"


def least_of(key: str) -> int:
    """Return the smallest value of a key of `execution` that holds a number."""
    return 2 if key in LOOP_KEYS else 1


def most_of(key: str) -> int:
    """Return the largest value of a key of `execution` that holds a number."""
    return 10 * int(str(default_of(key))) if key in LOOP_KEYS else MOST


def default_of(key: str) -> object:
    """Return the default of a key of `execution`."""
    return ExecutionSection.model_fields[key].default


def tells_too_much(key: str, value: object) -> bool:
    """Tell whether a value is above ten times its default, where it has one."""
    default = default_of(key)
    return isinstance(value, int) and isinstance(default, int) and value > 10 * default
