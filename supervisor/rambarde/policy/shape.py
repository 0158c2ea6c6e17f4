"""The keys a file may hold, checked with the line of every fault. Trusted side. No I/O."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rambarde.errors import Fault
from rambarde.policy.source import Document, Keys

Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*\S[^\x00]*$")]
"""A text that says something."""

Texts = Annotated[list[Text], Field(min_length=1, max_length=1024)]
"""One text or more: an empty list is refused, since some would read it as "all"."""


class Shape(BaseModel):
    """Base of all file shapes: unknown keys are faults, values are not converted."""

    # Validators are built when a file of the shape is read: most runs need few of them.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, populate_by_name=False, defer_build=True
    )


AnyShape = TypeVar("AnyShape", bound=BaseModel)


def read_shape(
    shape: type[AnyShape], document: Document, *, ignore: frozenset[str] = frozenset()
) -> tuple[AnyShape | None, list[Fault]]:
    """Check a document against a shape.

    Args:
        shape: the keys that may be there.
        document: what was read.
        ignore: top-level keys that say nothing to us (`$schema`).

    Returns:
        The values and no fault, or None and every fault found, in the order of lines.
    """
    values = {key: value for key, value in document.values.items() if key not in ignore}
    try:
        return shape.model_validate(values), []
    except ValidationError as exc:
        faults = {_fault(shape, document, error) for error in exc.errors(include_url=False)}
        return None, sorted(faults, key=lambda fault: (fault.line, fault.text))


def closest(word: str, known: list[str]) -> str:
    """Return `; did you mean x?` for a near miss, letter case aside, else empty."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.65)
    return f"; did you mean {names[near[0]]}?" if near else ""


def _fault(shape: type[BaseModel], document: Document, error: Any) -> Fault:
    keys: Keys = tuple(error["loc"])
    name = ".".join(str(key) for key in keys)
    if error["type"] == "extra_forbidden":
        siblings = _keys_at(shape, keys[:-1])
        near = closest(str(keys[-1]), siblings)
        return document.fault(keys, f"unknown key {name}{near}")
    if error["type"] == "missing":
        return document.fault(keys, f"key {name} is missing")
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return document.fault(keys, f"{name} is {_shown(error['input'])}: {message}")


def _keys_at(shape: type[BaseModel], keys: Keys) -> list[str]:
    """Return the keys known at a path, as far as it leads through shapes and lists of shapes."""
    for key in keys:
        if isinstance(key, int):
            continue
        field = next((f for n, f in shape.model_fields.items() if key in (n, f.alias)), None)
        inner = _shape_in(field.annotation) if field else None
        if inner is None:
            return []
        shape = inner
    return [field.alias or name for name, field in shape.model_fields.items()]


def _shape_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        if (found := _shape_in(part)) is not None:
            return found
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
