"""Uids of children of a root-started supervisor."""

from __future__ import annotations

from rambarde.host.kuids import Kuids


def test_no_two_living_children_share_a_uid_and_a_dead_ones_is_taken_again() -> None:
    """Uids alive at once differ; one given back is the next, so few are ever used."""
    kuids = Kuids()
    alive = [kuids.take() for _ in range(70)]
    assert len(set(alive)) == 70
    assert min(alive) >= 2_000_000_000
    kuids.give_back(alive[3])
    assert kuids.take() == alive[3]
    assert kuids.take() not in alive
