"""The environment of agents and commands, from policies/environment.toml. Trusted side.

Source: environ(7). Names are exact: a prefix such as LC_ would let through what nobody listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import Field

from rambarde.errors import PolicyError
from rambarde.policy.shape import Shape, Text, Texts, read_shape
from rambarde.policy.source import UnreadableError, read_toml

MOST_VALUE_CHARS = 256


class PassedShape(Shape):
    """Names taken over from the supervisor's environment."""

    names: Texts
    why: Text


class FixedShape(Shape):
    """Names with their values."""

    why: Text
    values: dict[str, str] = Field(min_length=1)


class EnvironmentShape(Shape):
    """environment.toml."""

    passed: list[PassedShape] = Field(min_length=1)
    fixed: list[FixedShape] = Field(min_length=1)


@cache
def load_environment(folder: str) -> EnvironmentShape:
    """Return the table. Raises PolicyError with all faults."""
    try:
        document = read_toml(folder, "environment.toml")
    except UnreadableError as exc:
        raise PolicyError([exc.fault]) from exc
    shape, faults = read_shape(EnvironmentShape, document)
    if shape is None or faults:
        raise PolicyError(faults)
    return shape


def child_environment(folder: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child.

    Args:
        folder: of the policies.
        own: the supervisor's environment; only listed names with a plain value are taken.
    """
    shape = load_environment(folder)
    names = [name for group in shape.passed for name in group.names]
    made = {name: own[name] for name in names if name in own and _is_plain(own[name])}
    for group in shape.fixed:
        made.update(group.values)
    return made


def _is_plain(value: str) -> bool:
    return len(value) <= MOST_VALUE_CHARS and value.isascii() and value.isprintable()
