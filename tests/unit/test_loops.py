"""The loop rules: what counts as the same, when an agent is told, when it is stopped."""

from __future__ import annotations

import json
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.loops import LoopNews, LoopSettings, LoopWatch


class Agent:
    """Feeds one call per turn, as a model does that waits for each result."""

    def __init__(self, settings: LoopSettings | None = None) -> None:
        """`settings` None is the empty configuration."""
        self.watch = LoopWatch(settings, workspace="/w")
        self._turns = count(1)

    def call(
        self,
        tool: str = "read",
        arguments: dict[str, object] | bytes | None = None,
        result: str = "same",
        *,
        code: str = "",
        net: bool = False,
        reads: frozenset[bytes] = frozenset(),
    ) -> LoopNews | None:
        text = arguments if isinstance(arguments, bytes) else json.dumps(arguments or {}).encode()
        return self.watch.after_call(
            next(self._turns), tool, text, not code, code, result, reads=reads, net_refusal=net
        )


def test_repeat_is_noticed_at_three_and_five_and_stopped_at_eight() -> None:
    """The same call with the same result, with nothing configured."""
    agent = Agent()
    heard = {n: news for n in range(1, 10) if (news := agent.call()) is not None}
    assert heard == {
        3: LoopNews("repeat", "notice", 3, "read"),
        5: LoopNews("repeat", "notice", 5, "read", stronger=True),
        8: LoopNews("repeat", "stop", 8, "read"),
        9: LoopNews("repeat", "stop", 9, "read"),
    }


def test_repeat_is_not_hidden_by_spelling() -> None:
    """Order of keys, `./a` for `a`, the absolute path and outer white space change nothing."""
    agent = Agent()
    spellings: list[bytes] = [
        b'{"path": "a/b", "limit": 9}',
        b'{"limit":9,"path":"./a/b"}',
        b' {"path": "/w/a//b ", "limit": 9}\n',
        b'{"path": "a/./c/../b", "limit": 9}',
    ]
    news = [agent.call("read", spelling) for spelling in spellings]
    assert news[:2] == [None, None]
    assert LoopNews("repeat", "notice", 3, "read") == news[2]


def test_repeat_is_not_hidden_by_messages_in_between() -> None:
    """What the model says beside its calls is no part of the key."""
    agent = Agent()
    news = []
    for number in range(8):
        agent.watch.after_message(f"another thought, {number}", has_calls=True)
        news.append(agent.call())
    assert news[-1] == LoopNews("repeat", "stop", 8, "read")


def test_polling_with_moving_results_is_no_loop() -> None:
    """The same call with another result is progress, for as long as it likes."""
    agent = Agent()
    assert {None} == {agent.call("bash", {"command": "wc -l log"}, str(n)) for n in range(500)}


def test_repeat_starts_again_after_another_call() -> None:
    """Only calls in a row count."""
    agent = Agent()
    heard = [agent.call("edit", {"new_string": str(n)}) or agent.call() for n in range(20)]
    assert {None} == set(heard)


def test_error_is_noticed_at_three_and_stopped_at_four() -> None:
    """The same call failing in the same way."""
    agent = Agent()
    news = [agent.call("bash", {"command": "make"}, code="exit") for _ in range(4)]
    assert news[:2] == [None, None]
    assert [LoopNews("error", "notice", 3, "bash"), LoopNews("error", "stop", 4, "bash")] == news[
        2:
    ]


def test_error_in_another_way_is_progress() -> None:
    """Another message or another code of the same failing call is news to the model."""
    agent = Agent()
    codes = ["exit", "timeout"]
    assert {None} == {agent.call(result=str(n), code=codes[n % 2]) for n in range(50)}


@pytest.mark.parametrize("period", [2, 3, 4, 5])
def test_cycle_is_noticed_after_five_and_stopped_after_six(period: int) -> None:
    """Every period from 2 to 5, at the exact call that completes the cycle."""
    agent = Agent()
    news = [agent.call("read", {"path": f"f{n % period}"}) for n in range(6 * period)]
    heard = {n + 1: entry for n, entry in enumerate(news) if entry is not None}
    assert heard == {
        5 * period: LoopNews("cycle", "notice", 5, "read"),
        6 * period: LoopNews("cycle", "stop", 6, "read"),
    }


def test_cycle_is_seen_after_a_different_beginning() -> None:
    """What came before the cycle neither hides nor feeds it."""
    agent = Agent()
    for number in range(7):
        agent.call("glob", {"pattern": str(number)})
    news = [agent.call("read", {"path": "ab"[n % 2]}) for n in range(12)]
    assert news[11] == LoopNews("cycle", "stop", 6, "read")


def test_cycle_with_one_changing_result_is_progress() -> None:
    """Edit, test, edit, test: while the edits differ this is work."""
    agent = Agent()
    heard = []
    for number in range(60):
        heard.append(agent.call("edit", {"path": "a", "new_string": str(number)}))
        heard.append(agent.call("bash", {"command": "make test"}, "1 failed", code="exit"))
    assert {None} == set(heard)


def test_calls_within_one_turn_count_once() -> None:
    """A model that has seen no result in between had no chance to learn."""
    watch = LoopWatch()
    turns = [
        [watch.after_call(turn, "read", b'{"path":"a"}', True, "", "same") for _ in range(20)]
        for turn in range(1, 9)
    ]
    assert {None} == set(turns[0])
    assert LoopNews("repeat", "notice", 3, "read") == turns[2][0]
    assert LoopNews("repeat", "stop", 8, "read") == turns[7][0]


def test_cycle_within_turns_is_seen_across_them() -> None:
    """The same pair of calls asked side by side in each turn is a cycle of two."""
    watch = LoopWatch()
    news = [
        watch.after_call(turn, "read", b'{"path":"%d"}' % path, True, "", "same")
        for turn in range(6)
        for path in (1, 2)
    ]
    assert news[-1] == LoopNews("cycle", "stop", 6, "read")


def test_refusals_of_a_net_in_one_turn_are_no_loop() -> None:
    """168 of 188 delegations refused side by side stop nobody."""
    watch = LoopWatch()
    heard = {
        watch.after_call(
            1, "Task", b'{"prompt":"%d"}' % n, False, "cap_concurrent", "", net_refusal=True
        )
        for n in range(168)
    }
    assert heard == {None}


def test_refusals_of_a_net_turn_after_turn_are_an_error_loop() -> None:
    """Other words in the brief do not help against a net, so they do not hide the loop."""
    watch = LoopWatch()
    news = [
        watch.after_call(
            turn,
            "Task",
            b'{"prompt":"%d"}' % (10 * turn + n),
            False,
            "cap_session",
            "",
            net_refusal=True,
        )
        for turn in range(1, 5)
        for n in range(2)
    ]
    assert news[4] == LoopNews("error", "notice", 3, "Task")
    assert news[6] == LoopNews("error", "stop", 4, "Task")


def test_unreadable_calls_are_stopped_at_three() -> None:
    """Calls that break their schema, whatever they hold, three in a row."""
    agent = Agent()
    news = [agent.call("read", b"{%d" % n, code="bad_arguments") for n in range(3)]
    assert [None, None, LoopNews("format", "stop", 3, "read")] == news


def test_unreadable_calls_between_good_ones_are_forgiven() -> None:
    """One readable call starts the count again."""
    agent = Agent()
    for number in range(10):
        assert agent.call("read", b"{%d" % number, code="bad_arguments") is None
        assert agent.call("read", b"[%d" % number, code="bad_arguments") is None
        assert agent.call("read", {"path": str(number)}) is None


def test_stop_is_told_before_a_notice() -> None:
    """The same broken call three times is a stop by `format`, not a notice by `error`."""
    agent = Agent()
    news = [agent.call("read", b"{", code="bad_arguments") for _ in range(3)]
    assert news[2] == LoopNews("format", "stop", 3, "read")


@pytest.mark.parametrize(("text", "rule"), [("let me think", "words"), (" \n", "empty")])
def test_messages_without_calls_are_noticed_then_stopped(text: str, rule: str) -> None:
    """Three replies that neither call nor end, of words or of nothing."""
    watch = LoopWatch()
    news = [watch.after_message(text, has_calls=False) for _ in range(4)]
    assert news[:2] == [None, None]
    assert [(rule, "notice", 3), (rule, "stop", 4)] == [
        (entry.rule, entry.action, entry.count) for entry in news[2:] if entry is not None
    ]


def test_messages_start_again_after_a_call() -> None:
    """A call between the words shows work."""
    agent = Agent()
    for number in range(10):
        for _ in range(2):
            assert agent.watch.after_message("hm", has_calls=False) is None
        agent.call(result=str(number))


def test_external_write_gives_a_reason_to_read_again() -> None:
    """Calls that read a file another agent wrote start from one."""
    agent = Agent()
    reads = frozenset({b"/w/a"})
    for _ in range(7):
        agent.call("read", {"path": "a"}, reads=reads)
    agent.watch.external_write(b"/w/other")
    agent.watch.external_write(b"/w/a")
    assert [agent.call("read", {"path": "a"}, reads=reads) for _ in range(2)] == [None, None]


def test_external_write_elsewhere_changes_nothing() -> None:
    """Busy siblings do not hide a loop over other files."""
    agent = Agent()
    news = None
    for _ in range(8):
        agent.watch.external_write(b"/w/other")
        news = agent.call("read", {"path": "a"}, reads=frozenset({b"/w/a"}))
    assert news == LoopNews("repeat", "stop", 8, "read")


@pytest.mark.parametrize(
    "values",
    [
        {"repeat_stop": 0},
        {"repeat_stop": 81},
        {"repeat_notice": 5},
        {"error_stop": 10**9},
        {"error_stop": 3},
        {"format_stop": True},
        {"cycle_stop": 2.5},
    ],
)
def test_settings_cannot_switch_a_rule_off(values: dict[str, int]) -> None:
    """A threshold is a whole number near its default, a notice comes before its stop."""
    with pytest.raises(ValueError):
        LoopSettings(**values)


def test_settings_move_the_thresholds() -> None:
    """Within its range each number is the user's."""
    agent = Agent(LoopSettings(error_notice=2, error_stop=3))
    news = [agent.call(code="exit") for _ in range(3)]
    assert [entry and entry.action for entry in news] == [None, "notice", "stop"]


@given(st.lists(st.integers(0, 2), min_size=60, max_size=60))
def test_only_calls_that_go_round_are_stopped(picks: list[int]) -> None:
    """A stop always means that the last calls were 8 equal ones or 6 equal cycles."""
    agent = Agent()
    for at, pick in enumerate(picks, 1):
        news = agent.call("read", {"path": str(pick)})
        if news is None or news.action != "stop":
            continue
        if news.rule == "repeat":
            assert len(set(picks[at - 8 : at])) == 1
        else:
            assert any(
                at >= 6 * p and picks[at - 6 * p : at - p] == picks[at - 5 * p : at]
                for p in range(2, 6)
            )
