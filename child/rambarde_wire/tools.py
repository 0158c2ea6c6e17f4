r"""The arguments of every tool, one struct each. Both sides. No I/O.

The supervisor makes the model's JSON Schema from these structs and checks every call against them;
the child decodes the same structs. Field names are what models are trained on; other tools'
spellings are folded by ALIASES before a call is checked.

A path is text relative to the workspace, or absolute inside it. A name that is not UTF-8 is shown
and accepted in bash's form `$'caf\xe9'`, which bash itself reads back.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Path = Annotated[str, Meta(min_length=1, max_length=8192)]


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all arguments."""


class Read(Arguments, frozen=True):
    """Read a text file of the workspace, numbered lines."""

    path: Path
    offset: Annotated[int, Meta(ge=1, description="first line, counted from 1")] = 1
    limit: Annotated[int, Meta(ge=1, le=1000, description="most lines")] = 400


class Grep(Arguments, frozen=True):
    """Search file contents with a regular expression (ripgrep syntax)."""

    pattern: Annotated[str, Meta(min_length=1, max_length=4096)]
    path: Path = "."
    glob: Annotated[str, Meta(max_length=512, description="only files whose path matches")] = ""
    ignore_case: bool = False


class Glob(Arguments, frozen=True):
    """List files whose path matches a pattern, newest first; ignore files are respected."""

    pattern: Annotated[str, Meta(min_length=1, max_length=4096)]
    path: Path = "."


class Write(Arguments, frozen=True):
    """Write a whole file; an existing file must have been read before."""

    path: Path
    content: str


class Edit(Arguments, frozen=True):
    """Replace an exact text, which must occur once, in a file that was read before."""

    path: Path
    old_string: Annotated[str, Meta(min_length=1)]
    new_string: str
    replace_all: bool = False


class Bash(Arguments, frozen=True):
    """Run a command with bash in the sandbox: no network, its whole process tree ends with it."""

    command: Annotated[str, Meta(min_length=1, max_length=100_000)]
    timeout_s: Annotated[int, Meta(ge=1, le=300, description="seconds")] = 30


class Task(Arguments, frozen=True):
    """Give a brief to a subagent, which works in its own session; returns its report."""

    agent: Annotated[str, Meta(max_length=64, description="name of the subagent")]
    prompt: Annotated[str, Meta(max_length=65536, description="all the subagent is told")]
    background: bool = False


TOOLS: dict[str, type[Arguments]] = {
    "read": Read,
    "grep": Grep,
    "glob": Glob,
    "write": Write,
    "edit": Edit,
    "bash": Bash,
    "Task": Task,
}

CHILD_TOOLS = frozenset({"read", "glob", "write", "edit"})
"""Performed by the child itself; all others are asked of the broker."""

ALIASES: dict[str, dict[str, str]] = {
    "read": {"file_path": "path", "filePath": "path"},
    "write": {"file_path": "path", "filePath": "path"},
    "edit": {
        "file_path": "path",
        "filePath": "path",
        "oldString": "old_string",
        "newString": "new_string",
        "replaceAll": "replace_all",
    },
    "bash": {"timeout": "timeout_s", "cmd": "command"},
    "Task": {
        "subagent_type": "agent",
        "agent_type": "agent",
        "run_in_background": "background",
        "task": "prompt",
        "brief": "prompt",
    },
}
