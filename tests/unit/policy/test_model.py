"""What the values themselves refuse."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

import pytest

from rambarde.policy.model import LIMIT_KINDS, Decision, Limits, LimitsNarrowing, Policy
from support.policies import WORKSPACE_WRITE


def test_strictest_decision_is_the_maximum():
    """deny is stricter than ask, ask than allow."""
    assert max(Decision) is Decision.DENY
    assert max(Decision.ALLOW, Decision.ASK) is Decision.ASK


@pytest.mark.parametrize("shape", [Policy, Limits])
def test_no_field_has_a_default(shape):
    """A right or a limit that is forgotten cannot be had."""
    assert all(f.default is MISSING and f.default_factory is MISSING for f in fields(shape))


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), True, "unlimited", 1.5])
def test_limit_that_is_no_bound_is_refused(value):
    """Zero, negative, endless, fractional and worded limits are refused with the field's name."""
    with pytest.raises(ValueError, match="processes is"):
        replace(WORKSPACE_WRITE.limits, processes=value)
    with pytest.raises(ValueError, match="processes is"):
        LimitsNarrowing(processes=value)


def test_only_actions_may_be_not_declared():
    """None is a limit for max_actions alone."""
    for name in LIMIT_KINDS:
        if name == "max_actions":
            assert replace(WORKSPACE_WRITE.limits, max_actions=None).max_actions is None
        else:
            with pytest.raises(ValueError, match=name):
                replace(WORKSPACE_WRITE.limits, **{name: None})


def test_narrowing_names_every_limit():
    """Limits and LimitsNarrowing have the same fields in the same order."""
    assert [f.name for f in fields(LimitsNarrowing)] == list(LIMIT_KINDS)
