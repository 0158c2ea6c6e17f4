"""What every agent of a run shares; built once by app/run.py. Trusted side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rambarde.budget import Nets, TreeRetries
from rambarde.children.zygote import Zygote
from rambarde.clock import Clock
from rambarde.events import Event
from rambarde.host.cgroup import Cgroups
from rambarde.host.facts import HostFacts
from rambarde.host.kuids import Kuids
from rambarde.host.workspace import Workspace
from rambarde.personas import Personas
from rambarde.sessions.store import Store
from rambarde.settings import Settings
from rambarde_wire.orders import Tier


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one run."""

    zygote: Zygote
    space: Workspace
    facts: HostFacts
    tier: Tier
    cgroups: Cgroups
    kuids: Kuids
    clock: Clock
    environment: Mapping[str, str]
    personas: Personas
    settings: Settings
    store: Store
    nets: Nets
    retries: TreeRetries
    publish: Callable[[Event], None]
    say: Callable[..., str]
    locale: str
