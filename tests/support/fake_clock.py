"""A clock that stands still until told otherwise (rambarde.clock.Clock)."""

from __future__ import annotations


class FakeClock:
    """Seconds move by `run`, the host sleeps by `sleep`, somebody sets the time by `set_wall`."""

    def __init__(self) -> None:
        """Start at odd values, so that nothing passes by starting at zero."""
        self._monotonic_s = 1000.0
        self._wall_at = 1.8e9
        self._suspended_s = 77.0

    def monotonic_s(self) -> float:
        """Seconds that `run` added up."""
        return self._monotonic_s

    def wall_at(self) -> float:
        """Time of day as last set, plus what ran and what was slept."""
        return self._wall_at

    def suspended_s(self) -> float:
        """Seconds that `sleep` added up."""
        return self._suspended_s

    def run(self, seconds: float) -> None:
        """Let the host run."""
        self._monotonic_s += seconds
        self._wall_at += seconds

    def sleep(self, seconds: float) -> None:
        """Let the host sleep: the monotonic clock stands still, as on Linux."""
        self._suspended_s += seconds
        self._wall_at += seconds

    def set_wall(self, seconds: float) -> None:
        """Move the time of day by so many seconds, as a person or a time server does."""
        self._wall_at += seconds
