"""One agent as the supervisor sees it, and its place in the tree. Trusted side.

The tree lives here and nowhere else: a subagent is a sibling process of its parent, joined to it
only by these objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import anyio

from rambarde.broker.caller import Caller
from rambarde.ids import TaskId
from rambarde.sessions.report import Outcome
from rambarde_wire.orders import SandboxPlan


@dataclass(slots=True, eq=False)
class Agent:
    """An agent: what the broker knows of it (`caller`), its kin, and how its life ends.

    `settled` is set once its last process is proven gone and its end is on the record.
    """

    caller: Caller
    task_id: TaskId
    parent: Agent | None
    brief: str
    children: list[Agent] = field(default_factory=list)
    stop_asked: anyio.Event = field(default_factory=anyio.Event)
    settled: anyio.Event = field(default_factory=anyio.Event)
    started_s: float = 0.0
    duration_s: float = 0.0
    pid: int = 0
    files_written: list[str] = field(default_factory=list)
    """By tools, by it and those below it, as the tree stood at its end; set when it settled."""
    command_pids: set[int] = field(default_factory=set)
    """Host pids of the inits of its running commands."""
    command_oom_kills: int = 0
    """Of its group's kills for want of memory, those that came while a command of it ran."""
    plan: SandboxPlan | None = None
    """Under which it was spawned; its commands' plans are made from it."""
    proven_dead: bool = True
    """False from the fork until the kernel says the sandbox is empty."""

    def stop(self, outcome: Outcome, *, error: str = "") -> None:
        """Ask for the end; the first outcome stands, a second call changes nothing."""
        self.caller.end(outcome, error=error)
        self.stop_asked.set()

    def descendants(self) -> Iterator[Agent]:
        """Yield every agent below this one, parents before children."""
        for child in self.children:
            yield child
            yield from child.descendants()

    @property
    def root(self) -> Agent:
        """The agent of the person's own session."""
        return self if self.parent is None else self.parent.root
