"""Monotonic and wall time behind one small protocol, so that tests need not sleep. Trusted side.

Source: clock_gettime(2). CLOCK_MONOTONIC stops while the host sleeps, CLOCK_BOOTTIME does not;
their difference is the time suspended, which is charged to nobody (decision 11).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic_s(self) -> float:
        """Seconds since some fixed instant, not counting suspend."""
        ...

    def wall_at(self) -> float:
        """Seconds since the epoch; for the record only, never for a limit."""
        ...

    def suspended_s(self) -> float:
        """Seconds the host slept since boot."""
        ...


class HostClock:
    """The host's own clocks."""

    def monotonic_s(self) -> float:
        """Return CLOCK_MONOTONIC in seconds."""
        return time.monotonic()

    def wall_at(self) -> float:
        """Return the time of day in seconds since the epoch."""
        return time.time()

    def suspended_s(self) -> float:
        """Return CLOCK_BOOTTIME less CLOCK_MONOTONIC in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
