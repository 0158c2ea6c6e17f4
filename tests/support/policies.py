"""Policies, narrowings and rules for tests, made by hand and by hypothesis."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from rambarde.policy.load import load_policies
from rambarde.policy.model import (
    FLOORS,
    LIMIT_KINDS,
    Decision,
    Limits,
    LimitsNarrowing,
    Narrowing,
    Policy,
    Rule,
)
from rambarde.policy.narrow import canonical_rules
from rambarde.policy.source import shipped_folder
from rambarde_wire.tools import TOOLS

SHIPPED = load_policies(shipped_folder())

WORKSPACE_WRITE = SHIPPED.base(
    "workspace-write", delegates=frozenset({"general", "explore"}), mcp_servers=frozenset({"docs"})
)


def policy(**changes: object) -> Policy:
    """Return workspace-write with some fields changed."""
    return replace(WORKSPACE_WRITE, **changes)  # type: ignore[arg-type] # by name


def rule(right: str, *scope: str, decision: Decision = Decision.DENY, origin: str = "t:1") -> Rule:
    """Return a rule without examples."""
    return Rule(right, scope, decision, "a test says so", (), (), origin)


_COMMANDS = ("git status", "git push", "rm a", "make", "sudo make", "git status; rm a", "x=1 make")
_PATHS = ("a.py", "src/a.py", ".env", ".git/hooks/x", "../a", "/w/src/a.py", "docs/../.env")
_SCOPES = {
    "bash": ("git *", "git status", "rm *", "make", "*", "!git push"),
    "write": ("*.py", "src/", "*", "!a.py", "docs/"),
    "edit": ("*.py", "src/", "*"),
    "read": (".env", "src/", "*"),
    "Task": ("explore", "general", "*"),
}


def _subsets(names: tuple[str, ...] | frozenset[str]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(sorted(names)))


def rules() -> st.SearchStrategy[Rule]:
    """Rules of every verdict, over scopes that overlap."""
    return st.sampled_from(sorted(_SCOPES)).flatmap(
        lambda right: st.builds(
            Rule,
            right=st.just(right),
            scope=st.lists(st.sampled_from(_SCOPES[right]), min_size=1, max_size=3).map(tuple),
            decision=st.sampled_from(Decision),
            reason=st.just("r"),
            allows=st.just(()),
            refuses=st.just(()),
            origin=st.sampled_from(("a:1", "a:2", "b:1")),
        )
    )


def _limit_values(name: str) -> st.SearchStrategy[float]:
    if name in FLOORS or LIMIT_KINDS[name] is int:
        return st.integers(1, 9)
    return st.integers(1, 9).map(float)


def limits() -> st.SearchStrategy[Limits]:
    """Limits with small values, so that either side is often the stricter."""
    fields = {name: _limit_values(name) for name in LIMIT_KINDS}
    fields["max_actions"] = st.none() | st.integers(1, 9)
    return st.fixed_dictionaries(fields).map(lambda values: Limits(**values))


def policies() -> st.SearchStrategy[Policy]:
    """Policies on every axis."""
    return st.builds(
        Policy,
        name=st.just("p"),
        tools=_subsets(frozenset(TOOLS)),
        writable=st.booleans(),
        debug=st.booleans(),
        rules=st.lists(rules(), max_size=3).map(canonical_rules),
        masks=_subsets((".env", "*.pem")),
        protected=_subsets((".git/hooks", ".claude")),
        delegates=_subsets(("general", "explore", "other")),
        mcp_servers=_subsets(("docs", "db")),
        hosts=_subsets(("a.example", "b.example")),
        limits=limits(),
    )


def narrowings() -> st.SearchStrategy[Narrowing]:
    """Narrowings with each axis set or inherited."""
    return st.builds(
        Narrowing,
        tools=st.none() | _subsets(frozenset(TOOLS)),
        without_tools=st.none() | _subsets(frozenset(TOOLS)),
        writable=st.none() | st.booleans(),
        debug=st.none() | st.booleans(),
        rules=st.none() | st.lists(rules(), max_size=2).map(tuple),
        masks=st.none() | _subsets((".env", "*.key")),
        protected=st.none() | _subsets((".claude", ".vscode")),
        delegates=st.none() | _subsets(("general", "explore")),
        mcp_servers=st.none() | _subsets(("docs", "db", "web")),
        hosts=st.none() | _subsets(("a.example", "c.example")),
        limits=st.none()
        | st.fixed_dictionaries(
            {name: st.none() | _limit_values(name) for name in LIMIT_KINDS}
        ).map(lambda values: LimitsNarrowing(**values)),
    )


def calls() -> st.SearchStrategy[tuple[str, dict[str, object]]]:
    """Calls of every tool, of servers, and of a tool that does not exist."""
    commands = st.sampled_from(_COMMANDS).map(lambda c: ("bash", {"command": c}))
    paths = st.tuples(
        st.sampled_from(("read", "write", "edit", "grep", "glob")), st.sampled_from(_PATHS)
    ).map(lambda pair: (pair[0], {"path": pair[1]}))
    others = st.sampled_from(
        (
            ("Task", {"agent": "explore"}),
            ("Task", {"agent": "other"}),
            ("mcp__docs__find", {}),
            ("mcp__web__get", {}),
            ("Bash", {"command": "make"}),
            ("bash", {"command": "rm -rf /"}),
        )
    )
    return commands | paths | others
