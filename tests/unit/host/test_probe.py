"""Facts of this host, and which tier they allow."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from rambarde.errors import Exit, SandboxUnavailable
from rambarde.host.probe import probe_host
from rambarde.host.tiers import LEAST_LANDLOCK, check_tier

FACTS = replace(probe_host(), uid=1000, landlock_abi=7, seccomp=True, machine="x86_64")


def test_facts_are_found_quickly_and_name_real_files():
    """Nothing is started, so it takes milliseconds; interpreter and ripgrep are there."""
    started = time.monotonic()
    facts = probe_host()
    assert time.monotonic() - started < 5
    assert os.path.isfile(facts.interpreter)
    assert not os.path.islink(facts.interpreter)
    assert facts.rg == "" or os.access(facts.rg, os.X_OK)
    assert facts.uid == os.geteuid()
    assert facts.kernel


@pytest.mark.parametrize("tier", sorted(LEAST_LANDLOCK))
def test_each_tier_has_its_least_landlock(tier):
    """One ABI less is refused with the numbers; the least is enough."""
    check_tier(replace(FACTS, landlock_abi=LEAST_LANDLOCK[tier]), tier)
    with pytest.raises(SandboxUnavailable, match=f"tier {tier} needs Landlock ABI") as caught:
        check_tier(replace(FACTS, landlock_abi=LEAST_LANDLOCK[tier] - 1), tier)
    assert caught.value.exit_code == Exit.NO_SANDBOX
    assert "Use Linux" in caught.value.advice


@pytest.mark.parametrize(
    ("change", "words"),
    [({"machine": "riscv64"}, "no system call table"), ({"seccomp": False}, "no seccomp")],
)
def test_what_no_tier_can_do_without_is_named(change, words):
    """An unknown architecture or a kernel without filters has no tier at all."""
    for tier in LEAST_LANDLOCK:
        with pytest.raises(SandboxUnavailable, match=words):
            check_tier(replace(FACTS, **change), tier)


def test_tier_c_is_refused_to_root():
    """Without a user namespace a child of root would be the machine's root."""
    with pytest.raises(SandboxUnavailable, match="tier C does not hold for root"):
        check_tier(replace(FACTS, uid=0), "C")
    check_tier(FACTS, "C")
