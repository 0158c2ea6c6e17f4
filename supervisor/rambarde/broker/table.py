"""Which request is answered in which phase of a child; all else ends the child. Trusted side.

Theory of operation
-------------------
A child is in exactly one phase. A frame that its phase's row does not hold is a breach: the child
ends with `error:protocol`, nothing is repaired, nothing is answered. Once-only requests are struck
out by moving to a phase that no longer holds them (the hello). There is no row for "anything".

    booting   nothing is believed yet; the child may introduce itself or say what failed
    sealed    the supervisor compares the child with its plan; the child is silent
    running   the loop
    closing   the child was told to stop; what it still reports of finished work is kept
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from rambarde_wire import frames


class Phase(Enum):
    """Where a child is in its life."""

    BOOTING = "booting"
    SEALED = "sealed"
    RUNNING = "running"
    CLOSING = "closing"


TABLE: Mapping[Phase, frozenset[type[frames.Frame]]] = {
    Phase.BOOTING: frozenset({frames.TellHello, frames.TellFault}),
    Phase.SEALED: frozenset(),
    Phase.RUNNING: frozenset(
        {
            frames.AskTurn,
            frames.AskPerform,
            frames.AskWrite,
            frames.TellRead,
            frames.TellWrote,
            frames.TellResult,
            frames.TellFault,
        }
    ),
    Phase.CLOSING: frozenset({frames.TellResult, frames.TellWrote}),
}


def check_permitted(phase: Phase, frame: frames.Frame) -> None:
    """Raise BreachError unless the phase's row holds this kind of frame."""
    if type(frame) not in TABLE[phase]:
        raise frames.BreachError(f"{type(frame).__name__} is not allowed while {phase.value}")
