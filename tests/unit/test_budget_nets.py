"""The nets over the tree of agents: depth, spawns in all, alive at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rambarde.budget import NetRefusal, Nets, Slot


def admitted(nets: Nets, depth: int = 0, label: str = "") -> Slot:
    slot = nets.admit(depth, label)
    assert isinstance(slot, Slot)
    return slot


def test_nets_admit_twenty_of_188_at_once() -> None:
    """The 168 others are refused, not queued, and count nowhere."""
    nets = Nets()
    outcomes = [nets.admit(0, f"a#{n}") for n in range(188)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, NetRefusal)]
    assert len(refused) == 168
    assert {("cap_concurrent", "subagentMaxConcurrent", 20)} == {
        (refusal.code, refusal.limit, refusal.value) for refusal in refused
    }
    assert refused[0].running[:2] == ("a#0", "a#1")
    assert nets.spawned == 20


def test_nets_refuse_the_201st_spawn_in_a_row() -> None:
    """Dead subagents stay counted."""
    nets = Nets()
    for _ in range(200):
        admitted(nets).release(proof_of_death=True)
    assert NetRefusal("cap_session", "subagentMaxPerSession", 200) == nets.admit(0)
    assert nets.running == ()


def test_nets_end_at_the_third_level() -> None:
    """Depth 3: agents at 0, 1 and 2 delegate, those at 3 are not told of delegation."""
    nets = Nets()
    assert [admitted(nets, depth).depth for depth in range(3)] == [1, 2, 3]
    assert NetRefusal("cap_depth", "subagentMaxDepth", 3) == nets.admit(3)
    assert [nets.may_delegate(depth) for depth in range(4)] == [True, True, True, False]


def test_nets_of_depth_one_forbid_nesting() -> None:
    """The root delegates, its subagents do not."""
    nets = Nets(max_depth=1)
    assert isinstance(nets.admit(0), Slot)
    assert isinstance(nets.admit(1), NetRefusal)


def test_slot_without_proof_of_death_stays_taken() -> None:
    """A process that may be alive keeps counting, however often its place is given back."""
    nets = Nets(max_concurrent=1)
    slot = admitted(nets, label="lost#1")
    slot.release(proof_of_death=False)
    refusal = nets.admit(0)
    assert isinstance(refusal, NetRefusal)
    assert refusal.running == ("lost#1",)
    slot.release(proof_of_death=True)
    slot.release(proof_of_death=True)
    assert isinstance(nets.admit(0), Slot)
    assert isinstance(nets.admit(0), NetRefusal), "a place given back twice is one place"


def test_grant_raises_the_session_cap_and_no_other() -> None:
    """A person lets a live session go on; depth and concurrency stay."""
    nets = Nets(3, 1, 20)
    admitted(nets).release(proof_of_death=True)
    assert isinstance(nets.admit(0), NetRefusal)
    assert nets.grant(2) == 3
    assert isinstance(nets.admit(0), Slot)
    assert (nets.max_depth, nets.max_concurrent) == (3, 20)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "unlimited", None])
def test_nets_cannot_be_removed(value: object) -> None:
    """Zero, negative, fractional and worded values are refused for each net and for a grant."""
    for name in ("max_depth", "max_per_session", "max_concurrent"):
        with pytest.raises(ValueError, match="subagentMax"):
            Nets(**{name: value})  # type: ignore[arg-type] - wrong values are the subject
    with pytest.raises(ValueError, match="grant"):
        Nets().grant(value)  # type: ignore[arg-type] - wrong values are the subject


def test_resumed_session_counts_on() -> None:
    """Spawns of before the resume are not forgotten."""
    nets = Nets(max_per_session=3, spawned=2)
    assert admitted(nets).number == 3
    assert isinstance(nets.admit(0), NetRefusal)


@given(st.lists(st.tuples(st.sampled_from(["admit", "dead", "lost"]), st.integers(0, 5))))
def test_nets_hold_whatever_is_asked(acts: list[tuple[str, int]]) -> None:
    """No order of admissions and releases passes a net or miscounts the living."""
    nets = Nets(2, 10, 3)
    alive: list[Slot] = []
    spawned = 0
    for act, number in acts:
        if act == "admit":
            outcome = nets.admit(number)
            if isinstance(outcome, Slot):
                alive.append(outcome)
                spawned += 1
        elif alive:
            slot = alive[number % len(alive)]
            slot.release(proof_of_death=act == "dead")
            if act == "dead":
                alive.remove(slot)
        assert len(nets.running) == len(alive) <= 3
        assert nets.spawned == spawned <= 10
        assert all(slot.depth <= 2 for slot in alive)
