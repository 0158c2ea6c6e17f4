"""The settings of a run: layers, bounds, and where each value comes from. Trusted side.

Layers, each over the one before: defaults, the environment (`RAMBARDE_…`), the person's file
(`config.toml` or `config.json`), flags (`--set key=value`). Afterwards a repository's own file may
lower the numbers of `execution`, and nothing else: a cloned repository is not the person.

The nets can be set and not removed: zero, negative, fractional and "unlimited" are refused with
file and line, and a value above ten times its default is told.

Nothing here reads the environment: the mapping is passed in.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import platformdirs
from pydantic import ValidationError

from rambarde.errors import ConfigError, Fault
from rambarde.loops import LoopSettings
from rambarde.policy.model import Limits
from rambarde.policy.shape import closest
from rambarde.policy.source import Document, Keys, UnreadableError, parse_toml
from rambarde.settings_json import parse_json
from rambarde.settings_shape import (
    LOOP_KEYS,
    SECTIONS,
    AgentsSection,
    ExecutionSection,
    FileShape,
    ModelSection,
    default_of,
    least_of,
    most_of,
    number_of,
    tells_too_much,
)

__all__ = ["Settings", "load_settings", "schema", "user_folder"]

ENVIRONMENT_PREFIX = "RAMBARDE_"
OTHER_VARIABLES = frozenset({"RAMBARDE_CONFIG"})
"""Names with the prefix that are no settings."""

MAX_REPO_BYTES = 64 << 10
MAX_REPO_WARNINGS = 50
"""Of a repository's file: a stranger's file does not fill the screen."""

REPO_PATH = ".rambarde/config.toml"
FILE_NAMES = ("config.toml", "config.json")

_LIMIT_OF = {
    "sessionMaxActions": "max_actions",
    "sessionMaxDuration": "max_duration_s",
    "treeMaxModelRequests": "tree_model_requests",
    "treeMaxTokens": "tree_tokens",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a run, frozen.

    `origins`: dotted key to where its value comes from, for keys that no default gave.
    `warnings`: what a person should know and nothing stopped for.
    """

    execution: ExecutionSection
    model: ModelSection
    agents: AgentsSection
    origins: Mapping[str, str]
    warnings: tuple[Fault, ...]

    @property
    def loops(self) -> LoopSettings:
        """The thresholds of the loop rules."""
        return _loops(self.execution)

    def limits(self, declared: Limits) -> Limits:
        """Return the declared limits with those this person set.

        A limit that no layer set keeps its declared value.
        """
        changed: dict[str, Any] = {}
        for key, name in _LIMIT_OF.items():
            if f"execution.{key}" in self.origins:
                changed[name] = getattr(self.execution, key)
        return replace(declared, **changed)

    def origin(self, key: str) -> str:
        """Return where a value comes from: default, a variable, file:line, a flag.

        Args:
            key: dotted (`execution.subagentMaxDepth`), or a key of execution alone.
        """
        dotted = key if "." in key else f"execution.{key}"
        return self.origins.get(dotted, "default")

    def values(self) -> dict[str, object]:
        """Return every dotted key and its value, in the order of the schema."""
        return {
            f"{section}.{key}": getattr(getattr(self, section), key)
            for section, shape in SECTIONS.items()
            for key in shape.model_fields
        }

    def lines(self, *, origin: bool) -> list[str]:
        """Return `key = value` for each setting, with its origin if asked; warnings at the end."""
        lines = []
        for key, value in self.values().items():
            shown = "not declared" if value is None else str(value)
            lines.append(f"{key} = {shown}" + (f"  ({self.origin(key)})" if origin else ""))
        return lines + [f"warning: {warning}" for warning in self.warnings]

    def narrow_by_repo(self, data: bytes) -> Settings:
        """Return the settings with the numbers that a repository's file lowers.

        Args:
            data: the bytes of `.rambarde/config.toml`, opened by the caller.

        Returns:
            New settings. What the file may not say (a higher number, another section, a tier, a
            key that is unknown or faulty) changes nothing and is among the warnings: a hostile
            file can neither widen nor stop a run.
        """
        try:
            if len(data) > MAX_REPO_BYTES:
                raise UnreadableError(Fault(REPO_PATH, 0, f"is above {MAX_REPO_BYTES} bytes"))
            document = parse_toml(data, REPO_PATH)
        except UnreadableError as exc:
            return replace(self, warnings=(*self.warnings, exc.fault))
        taken: dict[str, tuple[int, str]] = {}
        warnings = list(self.warnings)
        for keys, value in _flat(document.values):
            if why := self._no_narrowing(keys, value):
                text = f"ignored: {'.'.join(map(str, keys))} {why}"
                warnings.append(document.fault(keys, text))
            else:
                line = document.line(keys)
                taken[str(keys[-1])] = (int(str(value)), f"{REPO_PATH}:{line}")
        if fault := _loop_fault(self._lowered(taken)):
            warnings.append(Fault(REPO_PATH, 0, f"ignored: the loop thresholds: {fault}"))
            taken = {key: entry for key, entry in taken.items() if key not in LOOP_KEYS}
        origins = {f"execution.{key}": place for key, (_, place) in taken.items()}
        return replace(
            self,
            execution=self._lowered(taken),
            origins={**self.origins, **origins},
            warnings=tuple(warnings[: len(self.warnings) + MAX_REPO_WARNINGS]),
        )

    def _lowered(self, taken: Mapping[str, tuple[int, str]]) -> ExecutionSection:
        lower = {key: value for key, (value, _) in taken.items()}
        execution: ExecutionSection = self.execution.model_copy(update=lower)
        return execution

    def _no_narrowing(self, keys: Keys, value: object) -> str:
        """Return why a repository's value is not taken, or empty."""
        key = str(keys[-1])
        if len(keys) != 2 or keys[0] != "execution" or not number_of(key):
            return _not_a_repositorys(keys)
        least = least_of(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            return f"is {value!r}; it must be a whole number, {least} or more"
        mine = getattr(self.execution, key)
        if mine is not None and value > mine:
            return f"is {value}, above {mine}; a repository can only lower it"
        return ""


@dataclass(slots=True)
class _Layers:
    """Values as they are laid over each other, with their origins and all faults."""

    values: dict[str, dict[str, object]]
    places: dict[str, tuple[str, int]]
    faults: list[Fault]

    def put(self, section: str, key: str, value: object, place: tuple[str, int]) -> None:
        self.values[section][key] = value
        self.places[f"{section}.{key}"] = place


def load_settings(
    environment: Mapping[str, str],
    *,
    folder: str | None = None,
    flags: Sequence[str] = (),
) -> Settings:
    """Return the settings from all layers of the person.

    Args:
        environment: the process's variables. `RAMBARDE_CONFIG` names a file to read in place of
            those of the folder.
        folder: the person's configuration folder; None: user_folder().
        flags: `key=value` texts, the last of a key wins.

    Raises:
        ConfigError: with all faults of all layers.
    """
    layers = _Layers({section: {} for section in SECTIONS}, {}, [])
    warnings = _from_environment(environment, layers)
    document = _find_file(environment, user_folder() if folder is None else folder, layers)
    if document is not None:
        _from_file(document, layers)
    _from_flags(flags, layers)
    sections = {name: _section(name, layers) for name in SECTIONS}
    execution = sections["execution"]
    if isinstance(execution, ExecutionSection) and (fault := _loop_fault(execution)):
        layers.faults.append(_fault_of_loops(fault, layers))
    if layers.faults:
        faults = sorted(set(layers.faults), key=lambda f: (f.path, f.line, f.text))
        raise ConfigError(faults, advice="`rambarde config schema` prints what each key takes.")
    origins = {key: _shown(place) for key, place in layers.places.items()}
    return Settings(
        **sections,
        origins=origins,
        warnings=(*warnings, *_too_much(sections["execution"], layers)),
    )


def user_folder() -> str:
    """Return the person's configuration folder (XDG_CONFIG_HOME is honoured); it may not exist."""
    return platformdirs.user_config_dir("rambarde", appauthor=False)


def schema() -> dict[str, object]:
    """Return the JSON Schema of the settings file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FileShape.model_json_schema(),
        "title": "rambarde settings",
    }


def environment_name(section: str, key: str) -> str:
    """Return the variable of a key: `RAMBARDE_SUBAGENT_MAX_DEPTH`, `RAMBARDE_MODEL_ENGINE`."""
    snake = "".join(f"_{char}" if char.isupper() else char.upper() for char in key)
    return ENVIRONMENT_PREFIX + ("" if section == "execution" else f"{section.upper()}_") + snake


def _from_environment(environment: Mapping[str, str], layers: _Layers) -> list[Fault]:
    known = {
        environment_name(section, key): (section, key)
        for section, shape in SECTIONS.items()
        for key in shape.model_fields
    }
    unknown: list[Fault] = []
    for name in sorted(environment):
        if name in known:
            section, key = known[name]
            layers.put(section, key, _typed(section, key, environment[name]), (name, 0))
        elif name.startswith(ENVIRONMENT_PREFIX) and name not in OTHER_VARIABLES:
            near = closest(name, list(known))
            unknown.append(Fault(name, 0, f"is no setting and has no effect{near}"))
    return unknown


def _find_file(environment: Mapping[str, str], folder: str, layers: _Layers) -> Document | None:
    named = environment.get("RAMBARDE_CONFIG")
    paths = [named] if named else [os.path.join(folder, name) for name in FILE_NAMES]
    found = [path for path in paths if os.path.lexists(path)]
    if named and not found:
        layers.faults.append(Fault(named, 0, "named by RAMBARDE_CONFIG, does not exist"))
    if len(found) > 1:
        text = f"stands beside {os.path.basename(found[0])}: keep one of them"
        layers.faults.append(Fault(found[1], 0, text))
    if not found:
        return None
    try:
        with open(found[0], "rb") as file:
            data = file.read((1 << 20) + 1)
        return (parse_json if found[0].endswith(".json") else parse_toml)(data, found[0])
    except OSError as exc:
        layers.faults.append(Fault(found[0], 0, f"cannot be read: {exc.strerror}"))
    except UnreadableError as exc:
        layers.faults.append(exc.fault)
    return None


def _from_file(document: Document, layers: _Layers) -> None:
    for name, value in document.values.items():
        if name == "$schema":
            continue
        if name not in SECTIONS:
            near = closest(name, list(SECTIONS))
            layers.faults.append(document.fault((name,), f"unknown key {name}{near}"))
        elif not isinstance(value, Mapping):
            layers.faults.append(document.fault((name,), f"{name} must hold keys"))
        else:
            for key, inner in value.items():
                place = (document.path, document.line((name, key)))
                layers.put(name, key, inner, place)


def _from_flags(flags: Iterable[str], layers: _Layers) -> None:
    for flag in flags:
        key, equals, text = flag.partition("=")
        section, dot, inner = key.strip().partition(".")
        if not dot:
            section, inner = "execution", key.strip()
        place = (f"--set {key.strip()}", 0)
        if not equals:
            layers.faults.append(Fault(f"--set {flag}", 0, "must be key=value"))
        elif section not in SECTIONS:
            near = closest(section, list(SECTIONS))
            layers.faults.append(Fault(place[0], 0, f"unknown key {key.strip()}{near}"))
        else:
            layers.put(section, inner, _typed(section, inner, text.strip()), place)


def _typed(section: str, key: str, text: str) -> object:
    """Return a whole number where one is wanted and written; else the text, for the check."""
    wanted = section == "execution" and number_of(key)
    return int(text) if wanted and text.isascii() and text.isdigit() and len(text) < 19 else text


def _section(name: str, layers: _Layers) -> Any:
    shape = SECTIONS[name]
    try:
        return shape.model_validate(layers.values[name])
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            layers.faults.append(_fault(name, shape, layers, error))
    return None


def _fault(name: str, shape: Any, layers: _Layers, error: Any) -> Fault:
    key = str(error["loc"][0])
    path, line = layers.places[f"{name}.{key}"]
    if error["type"] == "extra_forbidden":
        return Fault(path, line, f"unknown key {key}{closest(key, list(shape.model_fields))}")
    value = error["input"]
    if name == "execution" and number_of(key):
        wanted = f"a whole number from {least_of(key)} to {most_of(key)}"
        text = f"{key} is {value!r}; it must be {wanted}"
        return Fault(path, line, text)
    message = str(error["msg"]).removeprefix("Value error, ")
    return Fault(path, line, f"{key} is {value!r}: {message[:1].lower()}{message[1:]}")


def _loops(execution: ExecutionSection) -> LoopSettings:
    """Raise ValueError when the thresholds do not fit together."""
    return LoopSettings(**{name: getattr(execution, key) for key, name in LOOP_KEYS.items()})


def _loop_fault(execution: ExecutionSection) -> str:
    try:
        _loops(execution)
    except ValueError as exc:
        text = str(exc)
        for key, name in LOOP_KEYS.items():
            text = text.replace(name, key)
        return text
    return ""


def _fault_of_loops(text: str, layers: _Layers) -> Fault:
    """Place the fault at the last set key that it names."""
    for key in LOOP_KEYS:
        if key in text and f"execution.{key}" in layers.places:
            path, line = layers.places[f"execution.{key}"]
            return Fault(path, line, text)
    return Fault("execution", 0, text)


def _too_much(execution: ExecutionSection, layers: _Layers) -> list[Fault]:
    warnings: list[Fault] = []
    for key in ExecutionSection.model_fields:
        place = layers.places.get(f"execution.{key}")
        value = getattr(execution, key)
        if place is not None and tells_too_much(key, value):
            text = f"{key} is {value}, more than ten times its default {default_of(key)}"
            warnings.append(Fault(place[0], place[1], text))
    return warnings


def _not_a_repositorys(keys: Keys) -> str:
    """Say of a key that it is none, or that it is the person's and where it is set."""
    dotted = ".".join(map(str, keys))
    known = [f"{name}.{key}" for name, shape in SECTIONS.items() for key in shape.model_fields]
    if dotted not in known:
        return f"is no setting{closest(dotted, known)}"
    own = os.path.join(user_folder(), FILE_NAMES[0])
    return f"is not a repository's to set; it is yours: in {own}, or by --set {dotted}=VALUE"


def _flat(values: Mapping[str, object], above: Keys = ()) -> Iterable[tuple[Keys, object]]:
    for key, value in values.items():
        keys = (*above, key)
        if isinstance(value, Mapping) and len(keys) < 8:
            yield from _flat(value, keys)
        else:
            yield keys, value


def _shown(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}" if place[1] else place[0]
