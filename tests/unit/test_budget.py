"""An agent's own bounds, what the tree is charged, and the stopwatch below both."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.budget import Budget, BudgetLimits, LimitHit, Reservation, Stopwatch, TreeRetries
from rambarde.settings_shape import ExecutionSection
from support.fake_clock import FakeClock


def limits(
    actions: int | None = None,
    *,
    duration_s: float = 100.0,
    stall_s: float = 10.0,
    tree_requests: int | None = None,
    tree_tokens: int | None = None,
    tree_seconds: float | None = None,
) -> BudgetLimits:
    return BudgetLimits(actions, duration_s, stall_s, tree_requests, tree_tokens, tree_seconds)


def reserved(budget: Budget, tokens: int) -> Reservation:
    reservation = budget.reserve(tokens)
    assert isinstance(reservation, Reservation)
    return reservation


def test_budget_of_five_actions_runs_five_and_refuses_the_sixth() -> None:
    """Six calls asked in one turn: five are charged, the sixth never starts."""
    budget = Budget("root", limits(5), FakeClock())
    hits = [budget.spend_action() for _ in range(6)]
    assert hits[:5] == [None] * 5
    assert LimitHit("actions", 5, 6, "root") == hits[5]
    assert budget.actions == 5


def test_budget_with_all_actions_used_still_lets_the_model_report() -> None:
    """Five of five stops nobody; only asking for a sixth does."""
    budget = Budget("root", limits(1), FakeClock())
    budget.spend_action()
    assert budget.check() is None
    budget.spend_action()
    assert LimitHit("actions", 1, 2, "root") == budget.check()


def test_budget_without_actions_declared_never_refuses_one() -> None:
    """A subagent has no action ceiling unless its file says so."""
    budget = Budget("root", limits(None), FakeClock())
    assert all(budget.spend_action() is None for _ in range(1000))


def test_budget_of_a_child_starts_whole() -> None:
    """What the parent used of its own actions and time is not missing in the child."""
    clock = FakeClock()
    parent = Budget("root", limits(2, duration_s=50), clock)
    parent.spend_action()
    clock.run(49)
    child = Budget("root/explore#1", limits(2, duration_s=50), clock, parent=parent)
    assert child.left().actions == 2
    assert child.left().duration_s == 50
    assert parent.left().actions == 1


def test_budget_stops_at_its_duration_with_the_seconds_worked() -> None:
    """The bound fires at the second it names, not before."""
    clock = FakeClock()
    budget = Budget("root", limits(duration_s=30), clock)
    clock.run(29.9)
    assert budget.check() is None
    clock.run(0.1)
    hit = budget.check()
    assert hit is not None
    assert (hit.which, hit.limit, hit.whose) == ("duration", 30, "root")


def test_budget_does_not_move_with_the_wall_clock() -> None:
    """An hour forward or back on the wall neither kills nor prolongs."""
    clock = FakeClock()
    budget = Budget("root", limits(duration_s=30), clock)
    clock.set_wall(3600)
    clock.run(10)
    clock.set_wall(-7200)
    assert budget.check() is None
    assert budget.left().duration_s == pytest.approx(20)


def test_budget_pause_stops_the_clocks_up_to_the_root_but_no_sibling() -> None:
    """While a person is asked, the asker and those who wait for it are not charged."""
    clock = FakeClock()
    root = Budget("root", limits(), clock)
    asker = Budget("root/a#1", limits(), clock, parent=root)
    sibling = Budget("root/b#2", limits(), clock, parent=root)
    with asker.pause():
        clock.run(500)
        assert root.check() is None
        assert asker.check() is None
        hit = sibling.check()
    assert hit is not None
    assert hit.which == "duration"
    assert (root.stopwatch.paused_s, asker.stopwatch.paused_s) == (500, 500)


def test_stall_fires_only_while_the_model_is_awaited() -> None:
    """Silence outside a request is no stall: a tool may take long."""
    clock = FakeClock()
    budget = Budget("root", limits(stall_s=10), clock)
    clock.run(60)
    assert budget.check() is None
    reservation = reserved(budget, 10)
    clock.run(9)
    budget.touch()
    clock.run(9)
    assert budget.check() is None
    clock.run(1)
    assert LimitHit("stall", 10, 10, "root") == budget.check()
    budget.settle(reservation, 5)
    assert budget.check() is None


def test_stall_does_not_fire_while_waiting_for_the_rate_limit() -> None:
    """Retry-After is counted apart, runs the clock, and is nobody's silence."""
    clock = FakeClock()
    budget = Budget("root", limits(stall_s=10), clock)
    reserved(budget, 10)
    with budget.rate_wait():
        clock.run(40)
        assert budget.check() is None
    assert budget.check() is None
    assert budget.stopwatch.rate_wait_s == 40
    assert budget.stopwatch.worked_s == 40


def test_tree_requests_are_refused_before_they_are_sent() -> None:
    """The request above the ceiling holds nothing and names who declared it."""
    clock = FakeClock()
    root = Budget("root", limits(tree_requests=3), clock)
    child = Budget("root/a#1", limits(tree_requests=50), clock, parent=root)
    for budget in (root, child, child):
        budget.settle(reserved(budget, 1), 1)
    assert LimitHit("tree_requests", 3, 4, "root") == child.reserve(1)
    assert (root.requests, child.requests) == (3, 2)
    assert root.check() is None, "the last answer may still be worked on"


def test_tree_tokens_reserved_by_one_are_missing_for_its_siblings() -> None:
    """Twenty at the same instant cannot all spend the same remainder."""
    clock = FakeClock()
    root = Budget("root", limits(tree_tokens=100), clock)
    children = [Budget(f"root/a#{n}", limits(), clock, parent=root) for n in range(20)]
    outcomes = [child.reserve(30) for child in children]
    assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 3
    assert {LimitHit("tree_tokens", 100, 120, "root")} == {
        outcome for outcome in outcomes if isinstance(outcome, LimitHit)
    }


def test_outermost_ceiling_fires_first() -> None:
    """When several ceilings are passed, the one nearest the root is named."""
    clock = FakeClock()
    root = Budget("root", limits(tree_tokens=10), clock)
    child = Budget("root/a#1", limits(tree_tokens=5, duration_s=1), clock, parent=root)
    child.settle(reserved(child, 1), 11)
    clock.run(2)
    assert LimitHit("tree_tokens", 10, 11, "root") == child.check()


def test_overshot_tokens_stop_running_siblings() -> None:
    """A bill higher than its estimate stops the whole subtree at the next look."""
    clock = FakeClock()
    root = Budget("root", limits(tree_tokens=10), clock)
    first = Budget("root/a#1", limits(), clock, parent=root)
    second = Budget("root/b#2", limits(), clock, parent=root)
    first.settle(reserved(first, 5), 12)
    assert LimitHit("tree_tokens", 10, 12, "root") == second.check()


def test_settling_replaces_the_estimate_and_happens_once() -> None:
    """What was held is let go, what was used is charged, a second settling is nothing."""
    clock = FakeClock()
    root = Budget("root", limits(tree_tokens=100), clock)
    child = Budget("root/a#1", limits(), clock, parent=root)
    reservation = reserved(child, 60)
    assert root.left().tree_tokens == 40
    child.settle(reservation, 10, waited_s=2)
    child.settle(reservation, 10, waited_s=2)
    assert root.left().tree_tokens == 90
    assert (root.tokens, child.tokens, root.held_tokens) == (10, 10, 0)
    assert child.stopwatch.rate_wait_s == 2


def test_request_that_never_left_is_given_back() -> None:
    """Settled as not sent, a request counts nowhere."""
    root = Budget("root", limits(tree_requests=1), FakeClock())
    root.settle(reserved(root, 5), 0, sent=False)
    assert root.left().tree_requests == 1


def test_closed_budget_holds_nothing_and_stands_still() -> None:
    """An agent that died in the middle of a request is charged its estimate."""
    clock = FakeClock()
    root = Budget("root", limits(tree_tokens=100), clock)
    child = Budget("root/a#1", limits(), clock, parent=root)
    reserved(child, 30)
    child.close()
    clock.run(10)
    assert (root.held_tokens, root.tokens) == (0, 30)
    assert child.stopwatch.worked_s == 0


def test_tree_seconds_add_up_over_agents() -> None:
    """Two agents at work for ten seconds below a root are thirty agent-seconds."""
    clock = FakeClock()
    root = Budget("root", limits(tree_seconds=30), clock)
    for name in ("a#1", "b#2"):
        Budget(f"root/{name}", limits(), clock, parent=root)
    clock.run(9)
    assert root.check() is None
    clock.run(1)
    assert LimitHit("tree_seconds", 30, 30, "root") == root.check()


def test_resumed_spending_is_charged_upwards() -> None:
    """What a session spent before it was resumed counts on."""
    root = Budget("root", limits(tree_requests=5, tree_tokens=50), FakeClock())
    root.charge(requests=4, tokens=20)
    assert (root.left().tree_requests, root.left().tree_tokens) == (1, 30)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_limits_without_a_finite_positive_value_are_refused(value: float) -> None:
    """No bound can be switched off by a number."""
    with pytest.raises(ValueError, match="duration_s"):
        limits(duration_s=value)
    with pytest.raises(ValueError, match="tree_seconds"):
        limits(tree_seconds=value)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40), st.integers(0, 60)), max_size=40))
def test_tree_is_charged_exactly_what_its_agents_were(
    spent: list[tuple[int, int, int]],
) -> None:
    """Whatever the order, a node's tokens are those of its subtree, and nothing stays held."""
    clock = FakeClock()
    nodes = [Budget("0", limits(tree_tokens=500, tree_requests=20), clock)]
    for number in range(1, 7):
        parent = nodes[(number - 1) // 2]
        nodes.append(Budget(f"{parent.name}/{number}", limits(), clock, parent=parent))
    own = [0] * len(nodes)
    for who, estimate, used in spent:
        outcome = nodes[who].reserve(estimate)
        if isinstance(outcome, Reservation):
            nodes[who].settle(outcome, used)
            own[who] += used
    for node in nodes:
        below = [n for n, other in enumerate(nodes) if f"{other.name}/".startswith(f"{node.name}/")]
        assert sum(own[n] for n in below) == node.tokens
        assert node.held_tokens == 0
    assert nodes[0].requests <= 20


def test_stopwatch_counts_overlapping_pauses_once() -> None:
    """Two questions at once stop the clock once."""
    clock = FakeClock()
    watch = Stopwatch(clock)
    with watch.pause():
        clock.run(1)
        with watch.pause():
            clock.run(2)
        clock.run(4)
        assert watch.paused_s == 7
    clock.run(3)
    assert (watch.worked_s, watch.paused_s) == (3, 7)


def test_stopwatch_charges_sleep_of_the_host_to_nobody() -> None:
    """The hours a laptop was closed are shown apart."""
    clock = FakeClock()
    watch = Stopwatch(clock)
    clock.run(5)
    clock.sleep(7200)
    assert (watch.worked_s, watch.suspended_s) == (5, 7200)


def test_stopwatch_stopped_stands_still() -> None:
    """After the end of a run its seconds do not grow."""
    clock = FakeClock()
    watch = Stopwatch(clock)
    clock.run(5)
    watch.stop()
    clock.run(5)
    watch.stop()
    assert watch.worked_s == 5


def test_retries_run_out_and_come_back_with_successes() -> None:
    """An outage ends the retries of all; ten good requests earn one."""
    retries = TreeRetries(capacity=2)
    assert [retries.take() for _ in range(3)] == [True, True, False]
    for _ in range(9):
        retries.note_success()
    assert not retries.take()
    retries.note_success()
    assert retries.take()
    for _ in range(100):
        retries.note_success()
    assert retries.left == 2


@pytest.mark.parametrize(
    ("which", "setting"),
    [
        ("actions", "execution.sessionMaxActions (or --max-actions"),
        ("duration", "execution.sessionMaxDuration (or --max-duration"),
        ("tree_requests", "execution.treeMaxModelRequests"),
        ("tree_tokens", "execution.treeMaxTokens"),
    ],
)
def test_a_bound_that_was_met_says_where_it_is_set(which: Any, setting: str) -> None:
    """The words name the setting a person can change, which is one there is."""
    hit = LimitHit(which, 5, 6, "root")
    assert str(hit).startswith(f"{which}: 6 of 5 allowed to root; set by {setting}")
    assert hit.setting in ExecutionSection.model_fields


def test_a_bound_that_is_no_setting_names_none() -> None:
    """Nobody is sent to look for what is not there."""
    assert str(LimitHit("stall", 5, 6, "root")) == "stall: 6 of 5 allowed to root"
