"""The clock of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

NEVER_NS: Final = 1 << 62  # later than any clock will show


class RunClock:
    """Nanoseconds since the start of a run: 0 until `start`, and never decreasing.

    Args:
        clock_ns: this host's monotonic clock.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._origin_ns = NEVER_NS
        self._last_ns = 0

    @property
    def origin_ns(self) -> int | None:
        """The reading of the host's clock at which the run began; None before."""
        return self._origin_ns if self.runs else None

    @property
    def runs(self) -> bool:
        """Whether it has started."""
        return self._origin_ns < NEVER_NS

    def start(self, origin_ns: int) -> None:
        """Start the run at this reading of the host's clock."""
        self._origin_ns = origin_ns

    def now_ns(self) -> int:
        """Return the present."""
        now_ns = self._clock_ns() - self._origin_ns
        if now_ns > self._last_ns:
            self._last_ns = now_ns
        return self._last_ns

    def of(self, clock_ns: int) -> int:
        """Convert a reading of the host's clock to the run's time; not before its start."""
        return max(0, clock_ns - self._origin_ns)

    def back(self, run_ns: int) -> int:
        """Convert a time of the run to the host's clock; never, while the run's clock is stopped."""
        return run_ns + self._origin_ns if self.runs else NEVER_NS
