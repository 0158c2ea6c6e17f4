"""Commands that only look: nothing of a workspace runs and nothing is changed. Trusted side."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import platformdirs

from rambarde.app.ground import find_ground
from rambarde.errors import RecordError, UsageError
from rambarde.personas import discover, load_persona
from rambarde.policy.decide import decide
from rambarde.policy.environment import load_environment
from rambarde.policy.explain import diff, explain
from rambarde.policy.load import load_policies
from rambarde.policy.model import Decision, Narrowing, Policy
from rambarde.policy.narrow import narrow
from rambarde.policy.seccomp import assemble, load_table
from rambarde.policy.show import as_data, show
from rambarde.policy.source import shipped_folder
from rambarde.policy.subject import PATH_TOOLS
from rambarde.sessions.chain import Verification, read_records, verify
from rambarde.sessions.store import Store
from rambarde.settings import load_settings

_MACHINES = ("x86_64", "aarch64")


def sessions_folder() -> str:
    """Return where this user's sessions are."""
    return os.path.join(platformdirs.user_state_dir("rambarde", appauthor=False), "sessions")


def configured_engine(environment: Mapping[str, str]) -> str | None:
    """Return a word for the engine that is configured, None when there is none."""
    settings = load_settings(environment)
    if settings.model.engine:
        return str(settings.model.engine)
    keys = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
    return next((wire for wire, name in keys.items() if environment.get(name)), None)


def list_agents(
    repo: str, environment: Mapping[str, str]
) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row for each agent, and what was set aside and why."""
    ground = find_ground(repo, environment, (), None)
    rows = [
        {
            "name": name,
            "mode": persona.mode or "human only",
            "layer": persona.layer,
            "origin": persona.origin,
            "description": persona.description,
            "sha256": persona.sha256,
        }
        for name, persona in sorted(ground.personas.by_name.items())
    ]
    found = ground.personas
    return rows, [str(one) for one in (*found.set_aside, *found.faults, *found.warnings)]


def list_sessions(limit: int, *, everything: bool) -> list[dict[str, object]]:
    """Return the newest sessions; `everything` adds those of subagents."""
    rows = Store(sessions_folder()).list(limit, roots_only=not everything)
    return [msgspec.structs.asdict(row) for row in rows]


def show_session(session_id: str, *, raw: bool) -> Iterator[str]:
    """Yield the lines of one session: raw, or one line a record in words.

    Raises:
        RecordError: after the last line that holds, when one follows that does not.
    """
    store = Store(sessions_folder())
    found = store.find(session_id)
    path = store.path(found)
    for record in read_records(path):
        if raw:
            data = {"n": record.n, "at": record.at, "kind": record.kind, "data": record.data}
            yield json.dumps(data | {"prev": record.prev, "hash": record.hash})
        else:
            yield f"{record.n:>5} {record.kind:<10} {_summary(record.data)}"
    checked = verify(path)
    if not checked.is_whole:
        raise RecordError(
            f"{path}: the chain is broken at line {checked.bad_line}: {checked.reason}",
            advice="Trust only what stands before that line: what follows was changed or damaged.",
        )
    if not raw:
        yield _chain_words(checked)
        for child in store.children(found):
            yield f"subagent: {child.session_id} {child.agent} {child.status}"


def _chain_words(found: Verification) -> str:
    cut = f"; {found.cut_bytes} bytes of an unfinished line follow" if found.cut_bytes else ""
    return f"chain: whole, {found.records} records{cut}"


def _summary(data: Mapping[str, object]) -> str:
    parts = [f"{key}={value}" for key, value in data.items() if value not in ("", None, [], {})]
    return " ".join(parts)[:400]


def policy_text(
    name: str, *, agent: str | None, plan: bool, as_json: bool, environment: Mapping[str, str]
) -> str:
    """Return a policy in force, for people or as JSON."""
    policy = _policy(name, agent, environment, plan=plan)
    return json.dumps(as_data(policy), indent=2) if as_json else "\n".join(show(policy))


def check_policies(path: str | None) -> str:
    """Load every policy, persona and table; return what was checked. Raises PolicyError."""
    folder = path or shipped_folder()
    if not os.path.isdir(folder):
        raise UsageError(
            f"policies in {folder} cannot be read: it is no folder",
            advice="Give a folder made as the shipped policies/ is.",
        )
    policies = load_policies(folder)
    personas = _check_personas(os.path.join(folder, "personas"))
    load_environment(folder)
    for machine in _MACHINES:
        table = load_table(os.path.join(folder, "seccomp"), machine)
        assemble(table, profile="agent", tier="A", debug=False)
        assemble(table, profile="command", tier="C", debug=False)
    rules = sum(len(base.policy.rules) for base in policies.bases.values())
    return (
        f"{len(policies.bases)} policies, {rules} rules with their examples,"
        f" {personas} personas, {len(_MACHINES)} seccomp tables: all load"
    )


def _check_personas(folder: str) -> int:
    """Load every agent file of a folder and return how many; raises for the first that fails."""
    files = sorted(name for name in os.listdir(folder) if name.endswith(".md"))
    for name in files:
        load_persona(os.path.join(folder, name))
    return len(files)


def explain_call(
    tool: str,
    arguments: str,
    *,
    environment: Mapping[str, str],
    name: str,
    agent: str | None,
    plan: bool,
) -> tuple[str, bool]:
    """Return the verdict on a call in words, and whether it would be allowed."""
    policy = _policy(name, agent, environment, plan=plan)
    values = _arguments(tool, arguments)
    allowed = decide(policy, tool, values).decision is Decision.ALLOW
    return "\n".join(explain(policy, tool, values)), allowed


def _arguments(tool: str, text: str) -> dict[str, object]:
    if text.startswith("{"):
        try:
            values = json.loads(text)
        except ValueError as exc:
            raise UsageError(
                f"the arguments are not JSON: {exc}",
                advice="""Give an object, as in '{"command": "ls"}', or a text alone.""",
            ) from None
        return dict(values)
    if tool == "bash":
        return {"command": text}
    if tool == "Task":
        return {"agent": text, "prompt": "-"}
    return {"path": text} if tool in PATH_TOOLS else {}


def policy_diff(first: str, second: str, *, environment: Mapping[str, str]) -> str:
    """Return how two policies (or agents on workspace-write) differ."""
    lines = diff(_named(first, environment), _named(second, environment))
    return "\n".join(lines) or "no difference in rights"


def _named(name: str, environment: Mapping[str, str]) -> Policy:
    bases = load_policies(shipped_folder()).bases
    if name in bases:
        return _policy(name, None, environment, plan=False)
    return _policy("workspace-write", name, environment, plan=False)


def _policy(name: str, agent: str | None, environment: Mapping[str, str], *, plan: bool) -> Policy:
    personas = discover(os.path.join(platformdirs.user_config_dir("rambarde"), "agents"), {})
    settings = load_settings(environment)
    policies = load_policies(shipped_folder())
    policy = policies.base(
        name,
        delegates=personas.delegable_names(),
        limits=settings.limits(policies.base(name).limits),
    )
    if plan:
        policy = narrow(policy, Narrowing(writable=False))
    return narrow(policy, personas.get(agent).narrowing) if agent else policy


def config_lines(
    environment: Mapping[str, str], sets: Sequence[str], repo: str, *, origin: bool, as_json: bool
) -> list[str]:
    """Return the settings in force for a repository, with where each value comes from."""
    settings = find_ground(repo, environment, sets, None).settings
    if as_json:
        values = {
            key: {"value": value, "origin": settings.origin(key)}
            for key, value in settings.values().items()
        }
        return [json.dumps(values, indent=2)]
    return settings.lines(origin=origin)
