"""Agent files: prompt, mode and narrowing of each agent, read once per session. Trusted side.

A persona can only narrow: whatever its file says, it is met with the rights of the agent that
delegates to it. What a file could do beyond that is to pass for another, so names are compared by
how they look: a file found in a folder that carries a name already trusted is set aside and told,
never taken. Nothing is delegable without an exact `mode`.

Files are read at the start and frozen with their hash; one written during a session changes
nothing in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rambarde.errors import Fault, PolicyError, UsageError
from rambarde.frontmatter import MAX_FILE_BYTES
from rambarde.lookalike import looks_of
from rambarde.persona import Layer, Persona, parse_persona
from rambarde.policy.shape import closest
from rambarde.policy.source import shipped_folder

__all__ = ["Notice", "Persona", "Personas", "discover", "load_persona"]

RESERVED = ("general", "explore")
"""Agents of the program; no file that is found can take these names."""

MAX_FILES = 500
"""Of one folder; what comes after, in byte order, is set aside."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know about a file: set aside, ignored, or read with doubt."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        """`path:line: text`."""
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


@dataclass(frozen=True, slots=True)
class Personas:
    """All agents known to a session, frozen.

    `set_aside`: files not taken because of their name. `faults`: files that do not load, by fault.
    `warnings`: files that load, with a doubt.
    """

    by_name: Mapping[str, Persona]
    set_aside: tuple[Notice, ...]
    faults: tuple[Fault, ...]
    warnings: tuple[Notice, ...]

    def get(self, name: str) -> Persona:
        """Return the agent of that exact name.

        Raises:
            UsageError: there is none; names those there are, and the file set aside if one was.
        """
        found = self.by_name.get(name)
        if found is None:
            near = closest(name, list(self.by_name))
            known = ", ".join(sorted(self.by_name))
            why = "".join(f"\n  {one}" for one in self._about(name))
            raise UsageError(f"no agent named {name}{near}{why}", advice=f"Known agents: {known}.")
        return found

    def _about(self, name: str) -> Iterable[Notice | Fault]:
        """Yield what was said of the files that would have this name."""
        told: list[Notice | Fault] = [*self.set_aside, *self.faults]
        for one in told:
            if os.path.basename(one.path) == f"{name}.md":
                yield one

    def delegable_names(self) -> frozenset[str]:
        """Return the agents that work may be given to: an exact mode subagent or all."""
        return frozenset(n for n, p in self.by_name.items() if p.mode is not None)

    def invocable_names(self) -> frozenset[str]:
        """Return the agents that a person may start: mode all, or none."""
        return frozenset(n for n, p in self.by_name.items() if p.mode != "subagent")


def discover(user_folder: str | None, repo_files: Mapping[str, bytes]) -> Personas:
    """Collect the agents of the program, of the person and of the repository, in that order.

    Args:
        user_folder: the person's `agents` folder; None or absent: none.
        repo_files: name to bytes of the repository's `.rambarde/agents/*.md`. The caller opened
            them (no links, regular files, bounded): paths of a workspace are not opened here.
            What is no regular file is left out, or given empty: then it is told as a fault.

    Returns:
        The agents by name. One faulty file keeps no other from loading.

    Raises:
        PolicyError: an agent of the program itself does not load.
    """
    collected = _Collected()
    for name in RESERVED:
        path = os.path.join(shipped_folder(), "personas", f"{name}.md")
        with open(path, "rb") as file:
            collected.add(parse_persona(file.read(), f"rambarde:{name}.md", "builtin")[0])
    for name, data in _user_files(user_folder, collected):
        collected.take(name, data, os.path.join(user_folder or "", name), "user")
    for name in sorted(repo_files, key=os.fsencode):
        collected.take(name, repo_files[name], f".rambarde/agents/{name}", "repository")
    return collected.freeze()


def load_persona(path: str) -> Persona:
    """Load an agent file that a person names by its full path; any name is taken.

    Raises:
        PolicyError: it does not load, with every fault.
        UsageError: it cannot be read.
    """
    try:
        data = _read_regular(path)
    except OSError as exc:
        raise UsageError(
            f"agent file {path} cannot be read: {exc.strerror}", advice="Give the path of a .md."
        ) from exc
    return parse_persona(data, path, "path")[0]


class _Collected:
    def __init__(self) -> None:
        self.by_name: dict[str, Persona] = {}
        self.by_looks: dict[str, Persona] = {}
        self.set_aside: list[Notice] = []
        self.faults: list[Fault] = []
        self.warnings: list[Notice] = []

    def add(self, persona: Persona) -> None:
        self.by_name[persona.name] = persona
        self.by_looks[looks_of(persona.name)] = persona

    def take(self, file_name: str, data: bytes, path: str, layer: Layer) -> None:
        """Add a found file, unless its file name or its `name` looks like one that is known."""
        if not file_name.endswith(".md"):
            return
        if self._passes_for_another(file_name.removesuffix(".md"), path, reserved_only=True):
            return
        try:
            persona, doubts = parse_persona(data, path, layer)
        except PolicyError as exc:
            self.faults += exc.faults
            return
        if self._passes_for_another(persona.name, path, reserved_only=False):
            return
        self.warnings += [Notice(fault.path, fault.line, fault.text) for fault in doubts]
        self.add(persona)

    def _passes_for_another(self, name: str, path: str, *, reserved_only: bool) -> bool:
        known = self.by_looks.get(looks_of(name))
        if known is None or (reserved_only and known.layer != "builtin"):
            return False
        whose = "reserved" if known.layer == "builtin" else f"taken by {known.origin}"
        text = f"set aside: the name {name!r} reads like {known.name}, which is {whose}"
        self.set_aside.append(Notice(path, 0, text))
        return True

    def freeze(self) -> Personas:
        return Personas(
            by_name=dict(self.by_name),
            set_aside=tuple(self.set_aside),
            faults=tuple(self.faults),
            warnings=tuple(self.warnings),
        )


def _user_files(folder: str | None, collected: _Collected) -> Iterable[tuple[str, bytes]]:
    """Yield the person's agent files in byte order; what cannot be read is a fault."""
    if folder is None:
        return
    try:
        names = sorted(os.listdir(folder), key=os.fsencode)
    except FileNotFoundError:
        return
    except OSError as exc:
        collected.faults.append(Fault(folder, 0, f"cannot be read: {exc.strerror}"))
        return
    files = [name for name in names if name.endswith(".md")]
    for name in files[MAX_FILES:]:
        text = f"set aside: more than {MAX_FILES} files"
        collected.set_aside.append(Notice(os.path.join(folder, name), 0, text))
    for name in files[:MAX_FILES]:
        path = os.path.join(folder, name)
        try:
            yield name, _read_regular(path)
        except OSError as exc:
            collected.faults.append(Fault(path, 0, f"cannot be read: {exc.strerror}"))


def _read_regular(path: str) -> bytes:
    """Read a regular file, one byte more than is taken at most; never waits on a pipe.

    Raises:
        OSError: as open(2), or EINVAL for what is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(22, "it is no regular file")
        return file.read(MAX_FILE_BYTES + 1)
