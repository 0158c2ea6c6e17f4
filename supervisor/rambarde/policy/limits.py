"""Read the declared limits, each with its value, unit and reason. Trusted side."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model

from rambarde.errors import Fault
from rambarde.policy.model import LIMIT_KINDS, NOT_DECLARED_LIMITS, Limits, check_limit
from rambarde.policy.shape import Shape, Text, read_shape
from rambarde.policy.source import Document, UnreadableError, read_toml

FILE = "limits.toml"

NICEST = 19
"""The highest nice value there is. Source: setpriority(2)."""

_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class LimitShape(Shape):
    """One limit. `value` or `not_declared`, never both."""

    value: Any = None
    not_declared: bool = False
    unit: Text
    reason: Text


LimitsShape: type[BaseModel] = create_model(
    "LimitsShape",
    __base__=Shape,
    __doc__="The file: every limit of Limits, none else.",
    **dict.fromkeys(LIMIT_KINDS, (LimitShape, ...)),  # type: ignore[call-overload] # dynamic
)


def load_limits(folder: str) -> tuple[Limits | None, list[Fault]]:
    """Return the limits declared in a folder, or None and every fault."""
    try:
        document = read_toml(folder, FILE)
    except UnreadableError as exc:
        return None, [exc.fault]
    shape, faults = read_shape(LimitsShape, document)
    if shape is None:
        return None, faults
    values: dict[str, Any] = {}
    for name, kind in LIMIT_KINDS.items():
        try:
            values[name] = _value(name, kind, getattr(shape, name))
        except ValueError as exc:
            faults.append(_fault(document, name, str(exc)))
    return (None, faults) if faults else (Limits(**values), [])


def _value(name: str, kind: type, entry: LimitShape) -> float | None:
    """Return the value in the base unit.

    Raises:
        ValueError: it is no bound, or its unit does not fit its name.
    """
    if entry.not_declared:
        if entry.value is not None or name not in NOT_DECLARED_LIMITS:
            raise ValueError(f"{name} must have a value above zero, not not_declared")
        return None
    if entry.value is None:
        raise ValueError(f"{name} has no value")
    check_limit(name, entry.value, kind)
    if name == "nice" and entry.value > NICEST:
        raise ValueError(f"nice is {entry.value}; it goes to {NICEST}")
    return float(entry.value) if kind is float else int(entry.value) * _factor(name, entry.unit)


def _factor(name: str, unit: str) -> int:
    if name.endswith("_bytes"):
        if unit not in _SIZES:
            raise ValueError(f"unit of {name} is {unit!r}; it must be one of {', '.join(_SIZES)}")
        return _SIZES[unit]
    if unit in _SIZES or (unit == "s") != name.endswith("_s"):
        raise ValueError(f"unit of {name} is {unit!r}, which does not fit its name")
    return 1


def _fault(document: Document, name: str, text: str) -> Fault:
    line = document.line((name, "value")) if (name, "value") in document.lines else 0
    return Fault(document.path, line or document.line((name,)), text)
