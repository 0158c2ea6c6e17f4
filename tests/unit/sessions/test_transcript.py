"""From records back to messages (rambarde.sessions.transcript)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.models.base import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from rambarde.sessions.chain import read_records
from rambarde.sessions.journal import Journal
from rambarde.sessions.record import Record
from rambarde.sessions.transcript import transcript
from support.sessions import Ticks, conversation


def _records(*messages: dict[str, object]) -> list[Record]:
    return [Record(n, 0.0, "message", data, "", "") for n, data in enumerate(messages, 1)]


def _check_fit(messages: list[Message]) -> None:
    """Each call has exactly one result, right behind it and in order; no result stands alone."""
    at = 0
    while at < len(messages):
        message = messages[at]
        assert not isinstance(message, ToolMessage)
        at += 1
        for call in message.calls if isinstance(message, AssistantMessage) else ():
            result = messages[at]
            assert isinstance(result, ToolMessage)
            assert result.call_id == call.call_id
            at += 1


def test_a_whole_journal_gives_its_conversation_back(tmp_path: Path) -> None:
    """Message for message, with the calls' ids, results and errors."""
    journal = Journal.create(str(tmp_path / "s"), {}, now=Ticks())
    conversation(journal)
    journal.close()
    calls = (ToolCall("c1", "glob", '{"pattern":"*"}'), ToolCall("c2", "bash", '{"command":"ls"}'))
    assert transcript(journal.records()) == [
        UserMessage("count the files"),
        AssistantMessage("I look.", calls),
        ToolMessage("c1", "glob", "a.txt"),
        ToolMessage("c2", "bash", "no", is_error=True),
        AssistantMessage("One file, é."),
    ]


def test_a_journal_cut_at_any_byte_gives_a_history_that_can_be_sent(tmp_path: Path) -> None:
    """Calls that lost their result get one that says so."""
    journal = Journal.create(str(tmp_path / "s"), {}, now=Ticks())
    conversation(journal)
    journal.close()
    path = tmp_path / "s"
    whole = path.read_bytes()
    seen = set()
    for size in [*range(0, len(whole), 5), len(whole)]:
        path.write_bytes(whole[:size])
        messages = transcript(read_records(str(path)))
        _check_fit(messages)
        seen.add(len(messages))
    assert seen == {0, 1, 4, 5}


def test_a_made_result_says_that_the_call_may_not_have_happened() -> None:
    """It is an error result, in the session's language."""
    records = _records({"role": "assistant", "text": "", "calls": [{"id": "c", "name": "bash"}]})
    result = transcript(records, "fr")[-1]
    assert isinstance(result, ToolMessage)
    assert result.is_error
    assert result.text.startswith("[interrompu]")


def test_results_with_one_id_twice_stay_in_order() -> None:
    """Some models number the calls of each reply from zero, or give all the same id."""
    calls = [{"id": "c", "name": "read"}, {"id": "c", "name": "read"}]
    results = [{"role": "tool", "id": "c", "name": "read", "text": text} for text in "ab"]
    messages = transcript(_records({"role": "assistant", "calls": calls}, *results))
    assert [one.text for one in messages[1:]] == ["a", "b"]


@pytest.mark.parametrize(
    "data",
    [
        {"role": "tool", "id": "c9", "text": "alone"},
        {"role": "assistant", "text": "", "calls": []},
        {"role": "user", "text": ""},
        {"role": "system", "text": "x"},
        {"role": ["user"], "text": 3},
        {},
    ],
)
def test_what_no_provider_takes_is_left_out(data: dict[str, object]) -> None:
    """Results without a call, empty messages, foreign roles, other types."""
    assert transcript(_records(data)) == []


_ids = st.sampled_from(["a", "b", "c"])
_calls = st.lists(st.fixed_dictionaries({"id": _ids, "name": st.just("read")}), max_size=3)
_messages = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "text": st.sampled_from(["", "x"])}),
    st.fixed_dictionaries({"role": st.just("assistant"), "text": st.just("y"), "calls": _calls}),
    st.fixed_dictionaries({"role": st.just("tool"), "id": _ids, "text": st.just("z")}),
)


@given(st.lists(_messages, max_size=12))
def test_any_records_give_a_history_that_can_be_sent(data: list[dict[str, object]]) -> None:
    """Whatever is on the record."""
    _check_fit(transcript(_records(*data)))
