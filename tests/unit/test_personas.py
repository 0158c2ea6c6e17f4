"""Agent files: what they may say, and whose names they may take."""

from __future__ import annotations

import os

import pytest

from rambarde.errors import PolicyError, UsageError
from rambarde.lookalike import looks_of
from rambarde.persona import parse_persona
from rambarde.personas import discover, load_persona
from rambarde.policy.explain import is_within
from rambarde.policy.narrow import narrow
from support.policies import WORKSPACE_WRITE


def agent(text="", body="Do it."):
    return f"---\n{text}\n---\n{body}\n".encode()


def persona(text, path="x.md"):
    return parse_persona(agent(text), path, "repository")[0]


def faults(text):
    with pytest.raises(PolicyError) as caught:
        persona(text)
    return [str(fault) for fault in caught.value.faults]


def test_file_becomes_a_persona():
    """All keys are read; the body is the prompt; the hash is of the bytes."""
    one = persona(
        "name: reviewer\ndescription: Reviews.\nmode: subagent\ntools: [read, Bash]\n"
        "disallowedTools: bash\nmodel: m-1\ntemperature: 0.5\nsessionMaxActions: 40\n"
        "maxDuration: 600\nmcpServers: docs, db\nbackground: true\nwritable: false"
    )
    assert (one.name, one.description, one.mode) == ("reviewer", "Reviews.", "subagent")
    assert (one.model, one.temperature, one.background) == ("m-1", 0.5, True)
    assert one.prompt == "Do it."
    assert len(one.sha256) == 64
    by = one.narrowing
    assert (by.tools, by.without_tools) == ({"read", "bash"}, {"bash"})
    assert (by.writable, by.mcp_servers) == (False, {"docs", "db"})
    assert (by.limits.max_actions, by.limits.max_duration_s) == (40, 600)


def test_absent_keys_inherit_and_servers_do_not():
    """Without a key the parent's tools, model and limits hold; an undeclared server is not had."""
    one = persona("description: x", path="a/side-1.md")
    assert (one.name, one.mode, one.model, one.temperature) == ("side-1", None, None, None)
    child = narrow(WORKSPACE_WRITE, one.narrowing)
    assert child.tools == WORKSPACE_WRITE.tools
    assert child.limits == WORKSPACE_WRITE.limits
    assert child.mcp_servers == frozenset()


@pytest.mark.parametrize(
    ("text", "kept", "taken"),
    [
        ("tools: []", frozenset(), None),
        ("tools: read, Grep", {"read", "grep"}, None),
        ("tools: '*'", None, None),
        ("tools: ['*']", None, None),
        ("tools: {write: false, bash: true}", None, {"write"}),
    ],
)
def test_tools_in_all_shapes(text, kept, taken):
    """A list, a text with commas, a map and * are read; an empty list is no tool."""
    by = persona(text).narrowing
    assert (by.tools, by.without_tools) == (kept, taken)


def test_every_fault_is_told_with_its_line():
    """A file that asks for more than there is says nothing: it does not load."""
    assert faults(
        "description: d\ntools: [bash, Wrte, mcp__a__b]\nnetwork: true\nsandbox: off\nmaxTurns: 3\n"
        "writable: ['/']\nmode: Subagent\ntemprature: 1\nsessionMaxActions: 0\nmaxDuration: 1.5\n"
        "background: no\nmodel: ''\ndescripton: x"
    ) == [
        "x.md:3: tools names 'Wrte', which is no tool; did you mean write?",
        "x.md:3: tools names mcp__a__b: a server is named under mcpServers",
        "x.md:4: unknown key network",
        "x.md:5: unknown key sandbox",
        "x.md:6: unknown key maxTurns; use sessionMaxActions",
        "x.md:7: writable is ['/']; it must be true or false",
        "x.md:8: mode is 'Subagent'; it must be exactly subagent or all, or left out",
        "x.md:9: unknown key temprature; did you mean temperature?",
        "x.md:10: sessionMaxActions is 0; it must be a whole number above zero",
        "x.md:11: maxDuration is 1.5; it must be a whole number above zero",
        "x.md:12: background is 'no'; it must be true or false",
        "x.md:13: model must be the name of a model, or inherit",
        "x.md:14: unknown key descripton; did you mean description?",
    ]


@pytest.mark.parametrize(
    "mode", ["[subagent]", "Subagent", '"subagent\\n"', "'subagent '", "true", "primary", "~"]
)
def test_mode_is_exact_or_the_file_does_not_load(mode):
    """Nothing is delegable by a value that is nearly a mode."""
    assert any("must be exactly" in text for text in faults(f"description: d\nmode: {mode}"))


def test_mode_needs_a_description():
    """An agent that a model chooses by its description has to have one."""
    assert faults("mode: all") == [
        "x.md:2: description is missing: an agent without one cannot be delegated to"
    ]


def test_no_persona_widens():
    """The most that a file can ask for is what the parent has."""
    one = persona("tools: '*'\nwritable: true\nsessionMaxActions: 999999\nmcpServers: [docs, x]")
    assert is_within(narrow(WORKSPACE_WRITE, one.narrowing), WORKSPACE_WRITE)


def test_program_has_its_two_agents():
    """general works, explore looks only and does not delegate; both can be delegated to."""
    known = discover(None, {})
    assert known.delegable_names() == {"general", "explore"} == known.invocable_names()
    explore = narrow(WORKSPACE_WRITE, known.get("explore").narrowing)
    assert explore.tools == {"read", "grep", "glob", "bash"}
    assert not explore.writable
    assert narrow(WORKSPACE_WRITE, known.get("general").narrowing).writable
    assert (known.set_aside, known.faults, known.warnings) == ((), (), ())


@pytest.mark.parametrize(
    "name",
    ["general", "General", "general ", "ｇeneral", "gen-eral", "gen_eral", "genera1", "gеneral",
     "généràl", "gene​ral", "explore", "EXPLORE", "ex.plore", "exp1ore", "expIore", "ехрlore",
     "ехplоrе", "εxplοre"],
)  # fmt: skip
def test_name_that_looks_reserved_is_set_aside(name):
    """A found file that passes for an agent of the program is neither taken nor silent."""
    known = discover(None, {f"{name}.md": agent("description: d\nmode: all")})
    assert set(known.by_name) == {"general", "explore"}
    (notice,) = known.set_aside
    assert notice.path == f".rambarde/agents/{name}.md"
    assert "reserved" in notice.text


def test_reserved_name_inside_another_file_is_set_aside():
    """The name in the head counts as well as the file's."""
    known = discover(None, {"innocent.md": agent("name: Explore\ndescription: d\nmode: all")})
    assert len(known.set_aside) == 1
    assert known.get("explore").layer == "builtin"


def test_other_names_do_not_look_alike():
    """Ordinary names stay apart."""
    names = ["reviewer", "planner", "generator", "explorer", "tester", "docs", "general-2"]
    assert len({looks_of(name) for name in [*names, "general", "explore"]}) == len(names) + 2


def test_explicit_path_loads_any_name(tmp_path):
    """A file named by its full path is a deliberate act, even under a reserved name."""
    path = tmp_path / "general.md"
    path.write_bytes(agent("description: mine"))
    one = load_persona(str(path))
    assert (one.name, one.layer, one.origin) == ("general", "path", str(path))
    with pytest.raises(UsageError, match="cannot be read"):
        load_persona(str(tmp_path / "none.md"))
    os.mkfifo(tmp_path / "pipe.md")
    with pytest.raises(UsageError, match="no regular file"):
        load_persona(str(tmp_path / "pipe.md"))


def test_persons_agents_go_before_the_repositorys(tmp_path):
    """A repository's file does not replace an agent of the person, nor one that looks like it."""
    (tmp_path / "mine.md").write_bytes(agent("description: mine\nmode: all"))
    (tmp_path / "link.md").symlink_to("mine.md")
    (tmp_path / "dir.md").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    theirs = agent("description: theirs\nmode: subagent")
    known = discover(str(tmp_path), {"Mine.md": theirs, "mine.md": theirs, "other.md": theirs})
    assert known.get("mine").description == "mine"
    assert known.get("other").layer == "repository"
    assert sorted(known.by_name) == ["explore", "general", "link", "mine", "other"]
    assert [n.path for n in known.set_aside] == [
        ".rambarde/agents/Mine.md", ".rambarde/agents/mine.md",
    ]  # fmt: skip
    assert [f.path for f in known.faults] == [str(tmp_path / "dir.md")]


def test_faulty_file_keeps_no_other_from_loading():
    """One broken file is told and left out."""
    known = discover(None, {"a.md": b"", "b.md": agent("description: d"), "c.txt": b"x"})
    assert "b" in known.by_name
    assert [str(fault) for fault in known.faults] == [
        ".rambarde/agents/a.md:1: has no head: the first line must be ---"
    ]
    assert "b" not in known.delegable_names()
    assert "b" in known.invocable_names()


def test_unknown_agent_is_told_with_the_nearest():
    """A misspelt name stops with the names there are."""
    with pytest.raises(UsageError, match="no agent named explor; did you mean explore") as caught:
        discover(None, {}).get("explor")
    assert "general" in caught.value.advice
