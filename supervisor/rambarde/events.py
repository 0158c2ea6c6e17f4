"""What screens and streams are told; plain values. Trusted side.

An event is news, never an order: nothing changes because somebody listens. Its texts are redacted
before it is made. Kinds (slash words): session/started, session/ended, model/started,
model/settled, tool/started, tool/settled, task/started, task/settled, approval/decided,
agent/limit, agent/loop, notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Event:
    """`agent_path` is the place in the tree, as `root/explore#2`; `data` holds JSON values only."""

    kind: str
    session_id: str
    agent_path: str
    data: Mapping[str, object] = field(default_factory=dict)


Listener = Callable[[Event], None]
"""Called in the event loop; must return at once and must not raise."""
