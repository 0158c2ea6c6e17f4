"""Recognise commands that are refused always. Trusted side.

The forms are data (policies/catastrophic.toml) and belong to the program: no policy, persona or
setting adds to them or takes from them, so decide() applies those of the installation itself.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pydantic import Field

from rambarde.errors import Fault, PolicyError
from rambarde.policy.shape import Shape, Text, Texts, read_shape
from rambarde.policy.shellwords import Script, Simple, Word, read_script
from rambarde.policy.source import Document, UnreadableError, read_toml, shipped_folder
from rambarde.policy.unwrap import program_of, unwrap

FILE = "catastrophic.toml"

_WRITES = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})


@dataclass(frozen=True, slots=True)
class Form:
    """One form; what is empty is not asked for. `origin` is `file:line`."""

    name: str
    programs: tuple[str, ...]
    options: tuple[frozenset[str], ...]
    targets: tuple[str, ...]
    exceptions: tuple[str, ...]
    redirects: tuple[str, ...]
    text: re.Pattern[str] | None
    reason: str
    origin: str


class FormShape(Shape):
    """One form; exactly one of programs, redirects and text says what it looks at."""

    name: Text
    programs: Texts | None = None
    options: Texts | None = None
    targets: Texts | None = None
    exceptions: Texts | None = Field(default=None, alias="except")
    redirects: Texts | None = None
    text: Text | None = None
    reason: Text
    refuses: Texts
    allows: Texts


class CatastrophicShape(Shape):
    """The file: at least one form."""

    form: list[FormShape] = Field(min_length=1)


@functools.cache
def shipped_forms() -> tuple[Form, ...]:
    """Return the forms of this installation, read once.

    Raises:
        PolicyError: the file is missing or faulty. Nothing is decided without it.
    """
    forms, faults = load_forms(shipped_folder())
    if faults:
        raise PolicyError(faults, advice="Install rambarde again: this file belongs to it.")
    return forms


def load_forms(folder: str) -> tuple[tuple[Form, ...], list[Fault]]:
    """Read the forms of a folder and try their examples; faults hold the lines."""
    try:
        document = read_toml(folder, FILE)
    except UnreadableError as exc:
        return (), [exc.fault]
    shape, faults = read_shape(CatastrophicShape, document)
    if shape is None:
        return (), faults
    forms: list[Form] = []
    for index, one in enumerate(shape.form):
        form, found = _form(one, document, index)
        faults += found
        if form is not None:
            forms.append(form)
            faults += _tried(form, one, document, index)
    return tuple(forms), faults


def find_form(forms: Sequence[Form], text: str, script: Script) -> Form | None:
    """Return the first form that a call matches, or None.

    Args:
        forms: from load_forms().
        text: the whole text of the call.
        script: its commands, wrapped ones included (unwrap()).
    """
    plain = "".join(text.split())
    for form in forms:
        if form.text is not None:
            if form.text.search(plain):
                return form
        elif any(_matches(form, command) for command in script.commands):
            return form
    return None


def _form(shape: FormShape, document: Document, index: int) -> tuple[Form | None, list[Fault]]:
    asked = (shape.programs, shape.redirects, shape.text)
    if sum(part is not None for part in asked) != 1:
        text = "a form has exactly one of programs, redirects and text"
        return None, [document.fault(("form", index), text)]
    try:
        pattern = re.compile(shape.text) if shape.text else None
    except re.error as exc:
        text = f"text is no regular expression: {exc}"
        return None, [document.fault(("form", index, "text"), text)]
    form = Form(
        name=shape.name,
        programs=tuple(shape.programs or ()),
        options=tuple(frozenset(names.split()) for names in shape.options or ()),
        targets=tuple(shape.targets or ()),
        exceptions=tuple(shape.exceptions or ()),
        redirects=tuple(shape.redirects or ()),
        text=pattern,
        reason=shape.reason,
        origin=f"{document.path}:{document.line(('form', index))}",
    )
    return form, []


def _tried(form: Form, shape: FormShape, document: Document, index: int) -> list[Fault]:
    faults: list[Fault] = []
    for key, examples, wanted in (
        ("refuses", shape.refuses, True),
        ("allows", shape.allows, False),
    ):
        for example in examples:
            if (find_form([form], example, unwrap(read_script(example))) is not None) != wanted:
                text = f"example {example!r} is {'not ' if wanted else ''}matched by this form"
                faults.append(document.fault(("form", index, key), text))
    return faults


def _matches(form: Form, command: Simple) -> bool:
    if form.redirects:
        return any(
            redirect.op in _WRITES and _like(_plain_path(redirect.target.live), form.redirects)
            for redirect in command.redirects
        )
    if not _like(program_of(command), form.programs):
        return False
    words = command.words[1:]
    return all(_has_option(names, words) for names in form.options) and _has_target(form, words)


def _has_option(names: frozenset[str], words: Sequence[Word]) -> bool:
    return any(_is_option(name, word.text) for name in names for word in words)


def _is_option(name: str, text: str) -> bool:
    if not name[0].isalnum():
        return text.lower() == name
    return text.startswith("-") and not text.startswith("--") and name.lower() in text.lower()


def _has_target(form: Form, words: Sequence[Word]) -> bool:
    if not form.targets:
        return True
    operands = [_plain_path(word.live) for word in words if not word.text.startswith("-")]
    return any(_like(o, form.targets) and not _like(o, form.exceptions) for o in operands)


def _plain_path(live: str) -> str:
    """Return the path without doubled, `.` and `..` parts, and without a final slash."""
    name, equals, path = live.partition("=")
    if equals and "/" not in name:
        return f"{name}={_plain_path(path)}"
    if not live.startswith(("/", "~", "$")):
        return live
    plain = posixpath.normpath(live)
    return "/" + plain.lstrip("/") if plain.startswith("//") else plain


def _like(text: str, patterns: Sequence[str]) -> bool:
    """Compare as fnmatch(3) does, case ignored; `[*]` in a pattern is a star the person wrote."""
    return any(fnmatchcase(text.lower(), pattern.lower()) for pattern in patterns)
