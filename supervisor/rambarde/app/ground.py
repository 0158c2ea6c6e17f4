"""What a run stands on, found out before anything is started. Trusted side.

Order matters in one place: the zygote is exec'ed (run.py, execute.py) before a key file is read,
and its environment is made here from nothing, so no secret can be in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import platformdirs

from rambarde.errors import UsageError
from rambarde.host.beneath import read_beneath
from rambarde.host.facts import HostFacts
from rambarde.host.probe import probe_host
from rambarde.host.tiers import check_tier
from rambarde.host.workspace import Workspace, scan_workspace
from rambarde.models.choose import EngineChoice, engine_of_keys, no_engine, parse_engine
from rambarde.persona import TOOL_NAMES
from rambarde.personas import Persona, Personas, discover, load_persona
from rambarde.policy.flags import narrowing_by_flags
from rambarde.policy.load import Policies, load_policies
from rambarde.policy.model import Narrowing, Policy
from rambarde.policy.narrow import narrow
from rambarde.policy.source import shipped_folder
from rambarde.redact import Redactor
from rambarde.settings import Settings, load_settings, user_folder
from rambarde_wire.orders import Tier

KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_SECRET_NAME = re.compile(
    r"(?i)(key|token|secret|passw(or)?d|passphrase|credential|auth|cookie|session|dsn|private)"
)
_NOT_SECRET = frozenset({"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_SESSION_ID"})
_GIT_VALUE = re.compile(r'[^\x00-\x1f\x7f"\\#;]{1,200}')
_SIGNS = re.compile(rb"(?im)^[ \t]*gpgsign[ \t]*(=[ \t]*(true|yes|on|1)[ \t]*)?$")
_MAX_AGENT_FILES = 200
_MAX_FILE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Ground:
    """Everything that is known before a process is started."""

    environment: Mapping[str, str]
    settings: Settings
    policies: Policies
    personas: Personas
    space: Workspace
    facts: HostFacts
    tier: Tier
    notices: tuple[str, ...]

    @property
    def state_folder(self) -> str:
        """Where sessions and the index live."""
        return platformdirs.user_state_dir("rambarde", appauthor=False)

    @property
    def locale(self) -> str:
        """Language of texts: `fr` for a French locale, else `en`."""
        names = ("LC_ALL", "LC_MESSAGES", "LANG")
        chosen = next((self.environment[n] for n in names if self.environment.get(n)), "")
        return "fr" if chosen.lower().startswith("fr") else "en"


def find_ground(
    repo: str, environment: Mapping[str, str], sets: Sequence[str], tier: Tier | None
) -> Ground:
    """Load, scan and probe; nothing is started and nothing is written.

    Raises:
        UsageError, ConfigError: the person's words or files.
        SandboxUnavailable: the required tier cannot be had on this host.
    """
    settings = load_settings(environment, flags=sets)
    policies = load_policies(shipped_folder())
    space = scan(_as_spelled(repo, environment), policies)
    settings = _narrowed_by_repo(settings, space)
    personas = discover(os.path.join(user_folder(), "agents"), _agent_files(space))
    facts = probe_host()
    wanted: Tier = tier or settings.execution.sandboxTier
    check_tier(facts, wanted)
    notices = [
        *map(str, settings.warnings),
        *map(str, personas.set_aside),
        *map(str, personas.faults),
        *map(str, personas.warnings),
        *space.warnings,
        *_unsigned(space),
    ]
    return Ground(environment, settings, policies, personas, space, facts, wanted, tuple(notices))


def _as_spelled(repo: str, environment: Mapping[str, str]) -> str:
    """Return a relative path below the folder as the person's shell spells it (pwd(1) -L)."""
    here = environment.get("PWD", "")
    try:
        same = bool(repo) and os.path.isabs(here) and os.path.samefile(here, ".")
    except OSError:
        same = False
    # What `..` of a linked folder is, is not a matter of spelling.
    return os.path.join(here, repo) if same and ".." not in repo.split("/") else repo


def scan(repo: str, policies: Policies) -> Workspace:
    """Return what stands in a workspace. Raises UsageError for what is none."""
    if not repo:
        raise UsageError("--repo is empty", advice="Give a project's folder with --repo DIR.")
    policy = policies.base("workspace-write")
    home = os.path.expanduser("~")
    return scan_workspace(repo, protected=policy.protected, masks=policy.masks, home=home)


def _narrowed_by_repo(settings: Settings, space: Workspace) -> Settings:
    data = read_beneath(space.root, b".rambarde/config.toml", max_bytes=64 << 10)
    return settings if data is None else settings.narrow_by_repo(data)


def _agent_files(space: Workspace) -> dict[str, bytes]:
    """Return the repository's agent files; what is no regular file is given empty."""
    names = [name for name in space.agent_files if name.endswith(b".md")][:_MAX_AGENT_FILES]
    found = {}
    for name in sorted(names):
        data = read_beneath(space.root, b".rambarde/agents/" + name, max_bytes=_MAX_FILE_BYTES)
        found[os.fsdecode(name)] = data or b""
    return found


def _unsigned(space: Workspace) -> list[str]:
    """Say that commits made inside are not signed, where the person's git would sign them."""
    folders = [(os.path.expanduser(b"~"), b".gitconfig"), (space.root, b".git/config")]
    folders += [(folder, b"config") for folder in space.beside]
    for folder, name in folders:
        if _SIGNS.search(read_beneath(folder, name, max_bytes=64 << 10) or b""):
            return ["commits made by agents are not signed: your key is not in the sandbox"]
    return []


def git_identity() -> bytes:
    """Return a git configuration with the person's name and address and nothing else of theirs.

    The global file is read as text, bounded, by us: git itself would run what it says.
    """
    found = {"name": "agent", "email": "agent@localhost"}
    section = ""
    try:
        with open(os.path.expanduser("~/.gitconfig"), encoding="utf-8", errors="replace") as file:
            lines = file.read(64 << 10).splitlines()
    except OSError:
        lines = []
    for line in map(str.strip, lines):
        if line.startswith("["):
            section = line.strip("[] ").lower()
        elif section == "user" and "=" in line:
            key, value = (part.strip() for part in line.split("=", 1))
            if key in found and _GIT_VALUE.fullmatch(value):
                found[key] = value
    return f'[user]\n\tname = "{found["name"]}"\n\temail = "{found["email"]}"\n'.encode()


def find_persona(ground: Ground, name: str) -> Persona:
    """Return the agent a person names: a known one, or a file by its path.

    Raises:
        UsageError: there is none, or it is for delegation only.
    """
    if name.endswith(".md") and os.sep in name:
        return load_persona(name)
    persona = ground.personas.get(name)
    if name not in ground.personas.invocable_names():
        raise UsageError(
            f"agent {name} can only be delegated to (mode: subagent)",
            advice="Name another agent, or give the full path of its file.",
        )
    return persona


def root_policy(
    ground: Ground,
    persona: Persona,
    *,
    base: str = "workspace-write",
    plan: bool = False,
    max_actions: int | None = None,
    max_duration: float | None = None,
    allowed: str | None = None,
    disallowed: str | None = None,
) -> Policy:
    """Return the rights of the session: the base policy met with every narrowing there is.

    The two bounds are the person's words of this moment: they stand in place of the settings' and
    are never clamped unseen; a persona's own are met with them.

    Raises:
        UsageError: a flag that names no tool.
    """
    policy = base_policy(ground, base)
    bounds = {"max_actions": max_actions, "max_duration_s": max_duration}
    said: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
    policy = replace(policy, limits=replace(policy.limits, **said))
    policy = narrow(policy, narrowing_by_flags(allowed, disallowed, TOOL_NAMES))
    if plan or ground.tier == "C":
        policy = narrow(policy, Narrowing(writable=False))
    return narrow(policy, persona.narrowing)


def base_policy(ground: Ground, name: str) -> Policy:
    """Return a base policy with the person's settings in it. Raises PolicyError for its name."""
    declared = ground.policies.base(name).limits
    return ground.policies.base(
        name,
        delegates=ground.personas.delegable_names(),
        limits=ground.settings.limits(declared),
    )


def check_installation(ground: Ground, *, writable: bool) -> None:
    """Refuse agents the right to rewrite the program that guards them.

    Raises:
        UsageError: the workspace is writable and holds the running installation.
    """
    held = ground.space.holds_installation
    if held and writable:
        raise UsageError(
            f"the workspace {ground.space.shown} holds the running installation of rambarde"
            f" ({held}): an agent could rewrite its own guard",
            advice="Use it read-only (--plan; exec: --policy read-only), give another folder with"
            " --repo DIR, or run a rambarde that is installed outside of it.",
        )


def choose_engine(ground: Ground, named: str | None) -> EngineChoice:
    """Return the engine: the flag, else the settings, else the one whose key there is.

    Raises:
        UsageError: none is configured; the ways are named.
    """
    text = named or ground.settings.model.engine
    if text:
        return parse_engine(text)
    keys = {wire: ground.environment.get(name) for wire, name in KEY_VARIABLES.items()}
    if not any(keys.values()):
        raise no_engine()
    return engine_of_keys(openai_key=keys["openai"], anthropic_key=keys["anthropic"])


def read_key(ground: Ground, choice: EngineChoice, key_file: str | None) -> str | None:
    """Return the engine's key: from the file or descriptor named, else from the environment.

    To be called after the zygote was exec'ed.

    Raises:
        UsageError: the file cannot be read or holds no key.
    """
    named = key_file or ground.settings.model.keyFile
    if not named:
        return ground.environment.get(KEY_VARIABLES.get(choice.wire, "")) or None
    try:
        with open(int(named) if named.isdigit() else os.path.expanduser(named), "rb") as file:
            data = file.read(64 << 10)
    except OSError as exc:
        raise UsageError(
            f"--key-file {named}: {exc.strerror}", advice="Give a readable file or descriptor."
        ) from exc
    key = data.decode(errors="replace").strip()
    if not key or "\n" in key:
        raise UsageError(f"--key-file {named} does not hold one key on one line")
    return key


def make_redactor(ground: Ground, key: str | None) -> Redactor:
    """Return what takes known secrets out of everything that leaves the supervisor.

    Known are the values of the environment whose names say secret, the key in use, and what stands
    in the workspace's masked files.
    """
    secrets: dict[str, str | bytes] = {
        name: value
        for name, value in ground.environment.items()
        if _SECRET_NAME.search(name) and name not in _NOT_SECRET
    }
    if key:
        secrets["engine-key"] = key
    for mask in ground.space.masks:
        if not mask.is_dir:
            relative = os.path.relpath(mask.path, ground.space.root)
            data = read_beneath(ground.space.root, relative, max_bytes=_MAX_FILE_BYTES)
            if data:
                secrets[f"file:{os.fsdecode(relative)}"] = data
    return Redactor(secrets)
