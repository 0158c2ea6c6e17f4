"""Root of a user namespace is told from the machine's root by the maps of its ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rambarde.errors import SandboxUnavailable
from rambarde.host.facts import HostFacts
from rambarde.host.probe import probe_host, uid_outside
from rambarde.host.tiers import check_tier

FACTS = replace(probe_host(), uid=0, landlock_abi=7, seccomp=True, machine="x86_64")


def facts(*, all_ids: bool, outside: int) -> HostFacts:
    """Facts of a supervisor that is uid 0 in its namespace."""
    return replace(FACTS, has_all_ids=all_ids, uid_outside=outside)


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        ("         0          0 4294967295\n", 0),
        ("         0       1000          1\n", 1000),
        ("         0       1000          1\n         1     100000      65536\n", 1000),
        ("      1000          0          1\n", 0),
        ("", 0),
    ],
)
def test_the_uid_outside_is_read_from_the_map(text: str, outside: int) -> None:
    """The line that begins at 0 says what 0 is; a map without one leaves no doubt to use."""
    assert uid_outside(text) == outside


def test_only_the_machines_root_gives_its_children_other_ids() -> None:
    """With some ids only, root counts as the user it is outside."""
    assert facts(all_ids=True, outside=0).is_root
    assert not facts(all_ids=False, outside=1000).is_root
    assert facts(all_ids=False, outside=1000).is_contained_root


def test_a_namespace_whose_root_is_root_outside_is_refused() -> None:
    """Its children would be the machine's root, without capabilities but owning its files."""
    check_tier(facts(all_ids=True, outside=0), "A")
    check_tier(facts(all_ids=False, outside=1000), "A")
    with pytest.raises(SandboxUnavailable, match="no other id"):
        check_tier(facts(all_ids=False, outside=0), "A")


def test_no_uid_0_has_tier_c() -> None:
    """There a child keeps its uid, and programs take 0 for root."""
    with pytest.raises(SandboxUnavailable, match="tier C"):
        check_tier(facts(all_ids=False, outside=1000), "C")
