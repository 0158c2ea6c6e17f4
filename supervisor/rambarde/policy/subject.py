"""What a call is about, and whether a scope covers it. Trusted side. Pure.

The subject of a command is its script, of a file tool its path, of a delegation the agent's name.
The matching is lopsided on purpose: a rule that restricts looks inside wrappers and tries each way
a path can be meant; a rule that admits takes the plain reading only, and every part must be in it.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pathspec import GitIgnoreSpec

from rambarde.policy.ansi_c import decode_ansi_c
from rambarde.policy.shellwords import Script, Simple, read_script
from rambarde.policy.unwrap import program_of, unwrap

PATH_TOOLS = frozenset({"read", "grep", "glob", "write", "edit"})
WRITE_TOOLS = frozenset({"write", "edit"})
COMMAND_TOOLS = frozenset({"bash"})

_HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})


@dataclass(frozen=True, slots=True)
class Subject:
    """`text` as the call wrote it; `paths`, relative and plain, for path tools; scripts for bash.

    `paths` holds each way the path can be meant inside a workspace whose place is not known here:
    one for a relative path, one for each suffix of an absolute path. `escapes`: a relative path
    that leads above the workspace by its own words.
    """

    tool: str
    text: str
    paths: tuple[str, ...] = ()
    escapes: bool = False
    script: Script | None = None
    unwrapped: Script | None = None


def subject_of(tool: str, arguments: Mapping[str, object]) -> Subject:
    """Return what a call with these arguments is about; absent arguments count as empty."""
    if tool in COMMAND_TOOLS:
        text = str(arguments.get("command", ""))
        script = read_script(text)
        return Subject(tool, text, script=script, unwrapped=unwrap(script))
    if tool in PATH_TOOLS:
        return _path_subject(tool, str(arguments.get("path", ".")))
    return Subject(tool, str(arguments.get("agent", "")))


def subject_from_text(tool: str, text: str) -> Subject:
    """Return the subject of a call from its text alone, as rule examples are written."""
    key = "command" if tool in COMMAND_TOOLS else "path" if tool in PATH_TOOLS else "agent"
    return subject_of(tool, {key: text})


def touches(scope: Sequence[str], subject: Subject) -> bool:
    """Tell whether any part of the subject is in a scope that refuses or asks."""
    if subject.unwrapped is not None:
        return any(_command_in(scope, one, exactly=False) for one in subject.unwrapped.commands)
    if subject.tool in PATH_TOOLS:
        return any_path_in(scope, subject.paths)
    return _name_in(scope, subject.text)


def lies_in(scope: Sequence[str], subject: Subject) -> bool:
    """Tell whether the whole subject is in a scope that admits.

    A command must be understood, have no variable set in front and write to no file by a
    redirection: each of these can make an admitted program do what was not meant. An absolute path
    lies in a scope only if each way it can be meant does.
    """
    if subject.script is not None:
        commands = subject.script.commands
        return (
            subject.script.whole
            and not subject.script.excess
            and bool(commands)
            and all(_command_in(scope, one, exactly=True) for one in commands)
        )
    if subject.tool in PATH_TOOLS:
        return bool(subject.paths) and all(any_path_in(scope, [p]) for p in subject.paths)
    return _name_in(scope, subject.text)


def any_path_in(scope: Iterable[str], paths: Iterable[str]) -> bool:
    """Tell whether one of the paths matches a rule's patterns; the last match of a path counts."""
    return any(_spec(tuple(scope)).match_file(path) for path in paths)


def any_path_hit(patterns: frozenset[str], paths: Iterable[str]) -> bool:
    """Tell whether one of the paths matches one pattern of a set (masks, protected).

    `!` has no meaning here: a set that grows by narrowing must never match less.
    """
    return any_path_in(sorted(p for p in patterns if not p.startswith("!")), paths)


def scope_fault(tool: str, pattern: str) -> str:
    """Return what is wrong with a pattern of a rule's scope, or empty."""
    bare = pattern.removeprefix("!")
    if tool in COMMAND_TOOLS:
        words = bare.split()
        if not words:
            return "is empty"
        if any("*" in word for word in words[:-1]) or ("*" in words[-1] and words[-1] != "*"):
            return "has a * that is not the last word by itself"
    elif tool in PATH_TOOLS:
        if "\\" in bare or "\n" in bare or ".." in bare.split("/"):
            return "has a backslash, a line end or a .. part"
        if bare.startswith("~") or "$" in bare:
            return "has a ~ or a $, which nothing expands; paths are relative to the workspace"
    elif "*" in bare and bare != "*":
        return "has a * that is not the whole pattern"
    return ""


def _path_subject(tool: str, text: str) -> Subject:
    path = text
    if text.startswith("$'") and text.endswith("'") and len(text) > 2:
        path = decode_ansi_c(text[2:-1])
    plain = posixpath.normpath(path) if path else "."
    if not plain.startswith("/"):
        escapes = plain == ".." or plain.startswith("../")
        return Subject(tool, text, paths=(plain,), escapes=escapes)
    parts = plain.strip("/").split("/")
    suffixes = tuple("/".join(parts[at:]) for at in range(len(parts)))
    return Subject(tool, text, paths=suffixes)


def _command_in(scope: Sequence[str], command: Simple, *, exactly: bool) -> bool:
    if exactly and (command.assigns or _writes_by_redirect(command)):
        return False
    words = [word.text for word in command.words]
    if not words:
        return False
    if not exactly:
        words[0] = program_of(command)
    wanted = [p for p in scope if not p.startswith("!")]
    unwanted = [p[1:] for p in scope if p.startswith("!")]
    if not any(_words_fit(pattern.split(), words) for pattern in wanted):
        return False
    if not exactly and (command.assigns or _writes_by_redirect(command)):
        return True
    literal = [word.text for word in command.words]
    return not any(_words_fit(pattern.split(), literal) for pattern in unwanted)


def _words_fit(pattern: list[str], words: list[str]) -> bool:
    if pattern[-1:] == ["*"]:
        return words[: len(pattern) - 1] == pattern[:-1]
    return words == pattern


def _writes_by_redirect(command: Simple) -> bool:
    return any(
        redirect.op not in ("<", "<<", "<<-", "<<<", "<&")
        and redirect.target.text not in _HARMLESS_TARGETS
        and not (redirect.op == ">&" and redirect.target.text.rstrip("-").isdigit())
        for redirect in command.redirects
    )


def _name_in(scope: Sequence[str], name: str) -> bool:
    wanted = [p for p in scope if not p.startswith("!")]
    return ("*" in wanted or name in wanted) and f"!{name}" not in scope


@functools.lru_cache(maxsize=256)
def _spec(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(patterns)
