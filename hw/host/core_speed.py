"""The present speed of a CPU's core, measured by a fixed piece of arithmetic."""

from __future__ import annotations

import time  # noqa: TID251 - it is a clock of sorts
from collections.abc import Callable

_PERIOD_NS = 20_000_000  # while it serves, an agent spends 0.2 % of its time on it


class Reference:
    """A fixed piece of arithmetic that touches no memory: its CPU time measures the core's present speed.

    A virtual machine's core may be half of a physical one: while another tenant computes on the other half, everything
    takes half as long again, and no counter of the guest shows it. One call into C that keeps the interpreter's lock:
    other threads can neither get in between nor cool its caches.


    Attributes:
        spent_ns: CPU time in all.
    """

    def __init__(self) -> None:
        self._items = range(4000)
        self.spent_ns = 0

    def cpu_ns(self) -> int:
        """Return the shorter time of two: the first one finds cold caches after a pass, and one may be interrupted."""
        return min(self._once(), self._once())

    def _once(self) -> int:
        begin_ns = time.thread_time_ns()
        sum(self._items)
        took_ns = time.thread_time_ns() - begin_ns
        self.spent_ns += took_ns
        return took_ns


class SpeedMeter:
    """Reads the reference now and then, between the batches that an agent serves; by its clock."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._reference = Reference()
        self._due_ns = 0
        self._read: tuple[int, float] = (0, 0.0)

    def look(self) -> None:
        """Read, if it is time to."""
        now_ns = self._clock_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _PERIOD_NS
            self._read = (now_ns, self._reference.cpu_ns() / 1e9)

    def take(self) -> tuple[int, float]:
        """Return the last reading, once: when, and how many seconds; (0, 0.0) if there is none."""
        read, self._read = self._read, (0, 0.0)
        return read
