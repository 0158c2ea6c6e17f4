"""Texts by code and language (rambarde.texts)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rambarde import texts
from rambarde.errors import InternalError
from rambarde.texts import LOCALES, messages, placeholders, text

_SUPERVISOR = Path(texts.__file__).parent
_LIMITS = ("cap_depth", "cap_session", "cap_concurrent", "cap_tree")
_USED = re.compile(r"""(?:\bsay|_refusal|\btext)\(\s*(?:ports,\s*)?"([a-z_]+)\"""")


@pytest.mark.parametrize("locale", LOCALES)
def test_every_language_has_every_code_with_the_same_placeholders(locale: str) -> None:
    """A language has the codes of English, sentence by sentence with the same placeholders."""
    shape = {c: [placeholders(s) for s in sentences] for c, sentences in messages("en").items()}
    other = {c: [placeholders(s) for s in sentences] for c, sentences in messages(locale).items()}
    assert other == shape


@pytest.mark.parametrize("locale", LOCALES)
def test_braces_are_placeholders_only(locale: str) -> None:
    """No sentence holds a brace that is not part of a placeholder, nor is one empty."""
    for code, sentences in messages(locale).items():
        assert sentences, code
        for sentence in sentences:
            assert sentence.strip(), code
            assert not set("{}") & set(re.sub(r"\{[a-z_]+\}", "", sentence)), code


def test_every_code_the_program_names_has_a_text() -> None:
    """Each code that appears as a literal where a sentence is asked for is there."""
    named = {
        code
        for path in _SUPERVISOR.rglob("*.py")
        for code in _USED.findall(path.read_text(encoding="utf-8"))
    }
    assert named - {*messages("en")} == set()


@pytest.mark.parametrize("rule", ["repeat", "error", "cycle", "words", "empty", "format"])
def test_every_loop_rule_has_a_notice(rule: str) -> None:
    """The notices are asked for by the rule's name."""
    assert "7" in text(f"loop_notice_{rule}", count=7, tool="bash")


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("code", _LIMITS)
def test_a_limit_names_itself_its_value_and_the_way_on(code: str, locale: str) -> None:
    """A text that does not say how to go on makes a model try again and again."""
    said = text(code, locale, limit="subagentMaxThings", value=17, running="a, b")
    assert "subagentMaxThings = 17" in said
    assert ("finish the work yourself" if locale == "en" else "finis le travail toi-même") in said


@pytest.mark.parametrize(
    ("code", "start"),
    [
        ("unknown_agent", "[erreur] rôle inconnu : x"),
        ("empty_task", "[erreur] tâche vide"),
        ("report_error", "[erreur] sous-agent explorer : cut"),
        ("empty_report", "[erreur] le sous-agent explorer n'a rien répondu"),
        ("report_cut", "…[tronqué]"),
    ],
)
def test_french_is_word_for_word_where_it_is_given(code: str, start: str) -> None:
    """These sentences are matched by others."""
    agent = "explorer" if "report" in code else "x"
    assert text(code, "fr", agent=agent, agents="a, b", error="cut").startswith(start)


def test_an_unknown_language_is_told_in_english() -> None:
    """Only messages/ says which languages there are; no path is made of a locale."""
    assert text("empty_task") == text("empty_task", "../../fr")


def test_the_first_sentence_that_can_be_filled_is_told() -> None:
    """One code serves callers that know more and callers that know less."""
    assert "by b" in text("stale", path="p", by="b")
    assert "by" not in text("stale", path="p").split("read it")[1][:4]


def test_a_value_brings_no_placeholder_and_no_control_character() -> None:
    """Values come from models: they are shown as they are, escapes made visible, and bounded."""
    said = text("tool_absent", tool="{tools}\x1b[2J\u202e", tools="read")
    assert "{tools}\\u001b[2J\\u202e" in said
    assert len(text("bad_arguments", detail="x" * 10**6)) < texts.VALUE_CHARS + 200


def test_a_code_or_value_that_is_missing_is_our_fault() -> None:
    """Neither is papered over."""
    with pytest.raises(InternalError, match="no_such_code"):
        text("no_such_code")
    with pytest.raises(InternalError, match="cap_depth"):
        text("cap_depth", limit="x")
