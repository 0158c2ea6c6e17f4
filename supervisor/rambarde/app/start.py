"""Start the zygote for what a command stands on. Trusted side."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rambarde.app.ground import Ground, git_identity
from rambarde.children.zygote import Zygote
from rambarde.host.facts import HostFacts
from rambarde.host.workspace import Workspace
from rambarde.policy.compile import compile_setup
from rambarde_wire.orders import Tier

ZYGOTE_ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
"""All that the zygote, and so every child's first memory, knows of an environment."""


def start_zygote(ground: Ground) -> Zygote:
    """Exec the zygote of a run. To be called before a key is read. Raises HostError."""
    return zygote_over(ground.space, ground.facts, ground.tier)


def zygote_over(space: Workspace, facts: HostFacts, tier: Tier) -> Zygote:
    """Exec a zygote over a workspace in a tier; returns before it is ready. Raises HostError."""
    setup = compile_setup(
        space, facts, supervisor_pid=os.getpid(), tier=tier, git_config=git_identity()
    )
    return Zygote.start(setup, environment=ZYGOTE_ENVIRONMENT)
