"""How far a yes reaches, and what a person is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.approvals import Choice, Grants, Request, visible

ASKER = Request("root/a#1", "id-a", "bash", "make", "sha of make", "ask_command")


def reaches(choice: Choice, **values: str) -> bool:
    """Say whether a yes to ASKER covers the same request with these fields changed."""
    grants = Grants()
    grants.remember(ASKER, choice)
    return grants.covers(replace(ASKER, **values))


@pytest.mark.parametrize("choice", ["once", "no"])
def test_single_answer_leaves_nothing_behind(choice: Choice) -> None:
    """The next time the person is asked again."""
    assert not reaches(choice)


def test_yes_for_an_agent_covers_that_agent_alone() -> None:
    """Not its child, its parent, its sibling, nor another in its place."""
    assert reaches("agent")
    assert not reaches("agent", agent_path="root/a#1/b#2", agent_id="id-b")
    assert not reaches("agent", agent_path="root", agent_id="id-root")
    assert not reaches("agent", agent_path="root/c#3", agent_id="id-c")


@pytest.mark.parametrize("path", ["root/a#1/b#2", "root/a#1/b#2/c#3"])
def test_yes_for_a_subtree_covers_its_descendants(path: str) -> None:
    """At any depth below the agent."""
    assert reaches("subtree", agent_path=path, agent_id="id-x")
    assert reaches("subtree")


@pytest.mark.parametrize("path", ["root", "root/a#12", "root/a#12/b#3", "root/c#3", "root/b#2/a#1"])
def test_yes_for_a_subtree_goes_neither_up_nor_sideways(path: str) -> None:
    """A name that begins alike is another agent."""
    assert not reaches("subtree", agent_path=path, agent_id="id-x")


def test_yes_covers_the_same_call_only() -> None:
    """Without a wider right, another command, tool or rule is another question."""
    assert not reaches("subtree", call_sha256="sha of make install")
    assert not reaches("subtree", tool="edit")
    assert not reaches("subtree", code="ask_network")


def test_calls_that_look_the_same_and_are_not_are_asked_for_each() -> None:
    """Two commands that differ in a secret are shown alike: a yes is for the one that was meant."""
    assert not reaches("agent", call_sha256="sha of another")
    assert reaches("agent", shown="what was shown does not count")


def test_yes_for_a_right_covers_all_its_calls() -> None:
    """Where the rule names what a lasting yes covers, that is covered and no more."""
    grants = Grants()
    asked = replace(ASKER, right="git commit *")
    grants.remember(asked, "agent")
    assert grants.covers(replace(asked, shown="git commit -m x", call_sha256="other"))
    assert not grants.covers(replace(asked, right="git push *"))
    assert not grants.covers(replace(asked, right="", shown="git commit *"))
    assert not grants.covers(replace(asked, right="", call_sha256="git commit *"))


def test_yes_ends_with_its_agent() -> None:
    """What was granted to an agent that ended covers nobody any more."""
    grants = Grants()
    grants.remember(ASKER, "subtree")
    grants.forget("id-a", "root/a#1")
    assert not grants.covers(ASKER)
    assert not grants.covers(replace(ASKER, agent_path="root/a#1/b#2", agent_id="id-b"))


PATHS = st.lists(st.sampled_from("abc"), max_size=4).map(lambda parts: "/".join(["r", *parts]))


@given(PATHS, PATHS, st.sampled_from(["once", "agent", "subtree", "no"]))
def test_yes_never_reaches_outside_the_subtree(granted: str, asking: str, choice: Choice) -> None:
    """Whatever the tree, only the agent itself and, for a subtree, those below are covered."""
    grants = Grants()
    grants.remember(Request(granted, granted, "bash", "x", "sha", "c"), choice)
    covered = grants.covers(Request(asking, asking, "bash", "x", "sha", "c"))
    same, below = asking == granted, asking.startswith(granted + "/")
    assert covered == {"subtree": same or below, "agent": same}.get(choice, False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("make -j2", "make -j2"),
        ("été 日本 🎉", "été 日本 🎉"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x1b]0;x\x07", "\\x1b]0;x\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("\x7f\x00", "\\x7f\\x00"),
        ("rm\u00a0-rf", "rm\\xa0-rf"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\u2028line", "\\u2028line"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_visible_spells_out_what_a_terminal_would_act_on(text: str, shown: str) -> None:
    """Escapes, direction marks, hidden and look-alike blanks; letters of all scripts stay."""
    assert visible(text) == shown


@given(st.text())
def test_visible_text_is_printable(text: str) -> None:
    """Nothing that is shown can move a cursor or hide a character."""
    assert visible(text).isprintable()
    assert visible(visible(text)) == visible(text)
