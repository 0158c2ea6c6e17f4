"""One agent file as a value. Trusted side. No I/O."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from rambarde.errors import Fault, PolicyError
from rambarde.frontmatter import Front, parse_front
from rambarde.policy.model import LimitsNarrowing, Narrowing
from rambarde.policy.shape import closest
from rambarde_wire.tools import TOOLS

_T = TypeVar("_T")

Mode = Literal["subagent", "all"]
Layer = Literal["builtin", "user", "repository", "path"]

TOOL_NAMES: Mapping[str, str] = {
    **{name: name for name in TOOLS},
    "Read": "read",
    "read_file": "read",
    "Grep": "grep",
    "grep_search": "grep",
    "Glob": "glob",
    "Write": "write",
    "write_file": "write",
    "Edit": "edit",
    "replace": "edit",
    "Bash": "bash",
    "run_shell_command": "bash",
    "Agent": "Task",
}
"""Our tools, and the exact names that files written for other tools give them."""

_NONE: frozenset[str] = frozenset()
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODEL = re.compile(r"[^\s\x00-\x1f]{1,200}")
_ELSEWHERE = {
    "maxTurns": "sessionMaxActions",
    "max_turns": "sessionMaxActions",
    "steps": "sessionMaxActions",
    "maxSteps": "sessionMaxActions",
    "timeout_mins": "maxDuration",
    "disallowed-tools": "disallowedTools",
    "mcp": "mcpServers",
}


@dataclass(frozen=True, slots=True)
class Persona:
    """An agent as its file declares it.

    `mode` None: a person may start it, nothing is delegated to it. `prompt` is the body.
    `narrowing` is what the file takes away. `model` None and `temperature` None: the parent's.
    `origin` is the path; `sha256` is of the file's bytes, hexadecimal.
    """

    name: str
    description: str
    mode: Mode | None
    prompt: str
    narrowing: Narrowing
    model: str | None
    temperature: float | None
    background: bool
    origin: str
    sha256: str
    layer: Layer


def parse_persona(data: bytes, path: str, layer: Layer) -> tuple[Persona, tuple[Fault, ...]]:
    """Read an agent file.

    Args:
        data: the whole file.
        path: how faults name it; its stem is the default name.
        layer: where it comes from.

    Returns:
        The agent and warnings.

    Raises:
        PolicyError: with every fault of the head, each with its line. A tool that does not exist
            is one: an agent that lost a tool by a spelling must not start.
    """
    front = parse_front(data, path)
    reader = _Head(front)
    stem = os.path.basename(path).removesuffix(".md")
    name = reader.read("name", _name, default="") or _stem_name(reader, stem)
    mode = reader.read("mode", _mode, default=None)
    description = reader.read("description", _text, default="")
    if mode is not None and not description:
        reader.fault("mode", "description is missing: an agent without one cannot be delegated to")
    tools = reader.read("tools", _tools, default=_Tools(None, frozenset()))
    without = reader.read("disallowedTools", _tools_taken, default=_NONE)
    writable = reader.read("writable", _boolean, default=None)
    limits = LimitsNarrowing(
        max_actions=reader.read("sessionMaxActions", _count, default=None),
        max_duration_s=reader.read("maxDuration", _count, default=None),
    )
    narrowing = Narrowing(
        name=name,
        tools=tools.kept,
        without_tools=(tools.taken | without) or None,
        writable=False if writable is False else None,
        mcp_servers=reader.read("mcpServers", _names, default=_NONE),
        limits=limits,
    )
    persona = Persona(
        name=name,
        description=description,
        mode=mode,
        prompt=front.body.strip("\n"),
        narrowing=narrowing,
        model=reader.read("model", _model, default=None),
        temperature=reader.read("temperature", _temperature, default=None),
        background=bool(reader.read("background", _boolean, default=False)),
        origin=path,
        sha256=hashlib.sha256(data).hexdigest(),
        layer=layer,
    )
    reader.finish()
    return persona, front.warnings


def _stem_name(reader: _Head, stem: str) -> str:
    try:
        return _name(stem)
    except ValueError as exc:
        reader.fault("name", f"the file's name {stem!r} {exc}; set name")
        return "-"


class _Head:
    """Takes keys out of a head; what nobody takes is unknown."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._known: list[str] = []
        self._faults: list[Fault] = []

    def read(self, key: str, check: Callable[[object], _T], *, default: _T) -> _T:
        """Return the checked value of a key, or the default if it is absent or faulty."""
        self._known.append(key)
        if key not in self._front.values:
            return default
        try:
            return check(self._front.values[key])
        except ValueError as exc:
            for text in exc.args:
                self.fault(key, f"{key} {text}")
            return default

    def fault(self, key: str, text: str) -> None:
        """Add a fault at the line of a key."""
        self._faults.append(Fault(self._front.path, self._front.lines.get(key, 1), text))

    def finish(self) -> None:
        """Raise PolicyError if there was any fault, unknown keys included."""
        for key in self._front.values:
            if key not in self._known:
                hint = f"; use {_ELSEWHERE[key]}" if key in _ELSEWHERE else ""
                self.fault(key, f"unknown key {key}{hint or closest(key, self._known)}")
        if self._faults:
            raise PolicyError(sorted(set(self._faults), key=lambda f: (f.line, f.text)))


@dataclass(frozen=True, slots=True)
class _Tools:
    """`kept` None: all of the parent's; `taken`: those a map sets to false."""

    kept: frozenset[str] | None
    taken: frozenset[str]


def _tools(value: object) -> _Tools:
    if isinstance(value, dict):
        if not all(isinstance(on, bool) for on in value.values()):
            raise ValueError("is a map: each value must be true or false")
        names = {tool: _tool(tool) for tool in value}
        return _Tools(None, frozenset(names[tool] for tool, on in value.items() if not on))
    listed = _listed(value)
    if "*" in listed:
        if listed != ["*"]:
            raise ValueError("holds * beside other tools; * alone is all of the parent's")
        return _Tools(None, frozenset())
    return _Tools(_tool_set(listed), frozenset())


def _tools_taken(value: object) -> frozenset[str]:
    return _tool_set(_listed(value))


def _tool_set(listed: list[str]) -> frozenset[str]:
    unknown = [text for text in map(_tool_fault, listed) if text]
    if unknown:
        raise ValueError(*unknown)
    return frozenset(map(_tool, listed))


def _tool(name: str) -> str:
    if fault := _tool_fault(name):
        raise ValueError(fault)
    return TOOL_NAMES[name]


def _tool_fault(name: str) -> str:
    if name in TOOL_NAMES:
        return ""
    if name.startswith("mcp__"):
        return f"names {name}: a server is named under mcpServers"
    return f"names {name!r}, which is no tool{closest(name, list(TOOLS))}"


def _listed(value: object) -> list[str]:
    """Take a list of texts, or one text with commas."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ValueError("must be a list of names; [] is none, and no key at all is the parent's")
    return value


def _names(value: object) -> frozenset[str]:
    names = _listed(value)
    for name in names:
        if not _NAME.fullmatch(name) or "__" in name:
            raise ValueError(f"holds {name!r}, which is no name of a server")
    return frozenset(names)


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("must be 1 to 64 of A-Z, a-z, 0-9, dot, - and _, a letter or digit first")
    return value


def _mode(value: object) -> Mode:
    if value == "subagent":
        return "subagent"
    if value == "all":
        return "all"
    raise ValueError(f"is {value!r}; it must be exactly subagent or all, or left out")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text")
    return " ".join(value.split())


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is {value!r}; it must be true or false")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"is {value!r}; it must be a whole number above zero")
    return value


def _temperature(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 2:
        raise ValueError(f"is {value!r}; it must be a number from 0 to 2")
    return float(value)


def _model(value: object) -> str | None:
    if not isinstance(value, str) or not _MODEL.fullmatch(value):
        raise ValueError("must be the name of a model, or inherit")
    return None if value == "inherit" else value
