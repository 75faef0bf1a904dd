"""Waits for deadlines that compensate for the late wake-up of a core that sleeps, and the clock of a run.

A sleep ends late: after the timer's slack, and after the core has left its idle state. A `Waker` measures both
together, once. From then on it sleeps until the thread is likely to be awake in time, and polls for the rest.

`RunClock` counts the time since the start of a run.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import time  # noqa: TID251 - it waits for real time
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PR_SET_TIMERSLACK: Final = 29
_SLEEP_S: Final = 200e-6
_SLEEPS: Final = 300
_MEASURING_NS: Final = 200_000_000
_SHARE: Final = 0.9  # of sleeps that overrun by no more than the assumed time
_MOST_NS: Final = 1_000_000  # a core takes no longer to wake up; a longer overrun is another process's time slice

Sleep = Callable[[float], bool]  # until an event, or for this number of seconds; returns whether there was one
Wait = Callable[[Collection[int], float | None], list[int]]  # see `readable`


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_ppoll = getattr(_libc, "ppoll", None)  # None if the system is not Linux
_POLLIN: Final = 1 << 32  # in a `pollfd` read as one number: the descriptor, the requested event, the event
_HAPPENED: Final = 48


def readable(descriptors: Collection[int], wait_s: float | None) -> list[int]:
    """Return the descriptors that can be read now; as soon as one can, or after a number of seconds (None: never).

    By `ppoll`: Python's `select` takes no descriptor above 1,023, its `poll` and `epoll` wait for whole milliseconds.
    """
    if _ppoll is None:
        return select.select(descriptors, (), (), wait_s)[0]
    table = array("q", [descriptor | _POLLIN for descriptor in descriptors])
    until_s = None if wait_s is None else time.monotonic() + wait_s
    while True:
        timeout = None if wait_s is None else ctypes.byref(_Timespec(int(wait_s), int(wait_s % 1 * 1e9)))
        count = _ppoll(ctypes.c_void_p(table.buffer_info()[0]), len(table), timeout, None)
        if count >= 0:
            return [entry & 0xFFFFFFFF for entry in table if entry >> _HAPPENED] if count else []
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))
        if until_s is not None:  # a signal has come, and did not end the program
            wait_s = max(0.0, until_s - time.monotonic())


@dataclass(frozen=True, slots=True)
class Host:
    """A loop's interface to its machine; another one gives it a virtual clock and waits that take no time.

    Attributes:
        clock_ns: a monotonic clock.
        cpu_ns: the CPU time of the calling thread.
        wait: see `readable`.
        cores: that it has to itself, so that it may poll for messages instead of sleeping.
    """

    clock_ns: Callable[[], int] = time.monotonic_ns
    cpu_ns: Callable[[], int] = time.thread_time_ns
    wait: Wait = readable
    cores: tuple[int, ...] = ()


def no_timer_slack() -> None:
    """End this thread's sleeps as soon as the kernel can, not up to 50 us later; do nothing if unsupported."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (OSError, AttributeError, TypeError):  # not Linux
        return


def overruns_ns(sleeps: int = _SLEEPS, limit_ns: int = _MEASURING_NS) -> list[int]:
    """Return the overruns of some short sleeps, ascending; stops after `limit_ns`."""
    overruns: list[int] = []
    began_ns = now_ns = time.monotonic_ns()
    while len(overruns) < sleeps and now_ns - began_ns < limit_ns:
        due_ns = time.monotonic_ns() + round(_SLEEP_S * 1e9)
        select.select((), (), (), _SLEEP_S)
        now_ns = time.monotonic_ns()
        overruns.append(max(0, now_ns - due_ns))
    return sorted(overruns)


def waited_ns() -> int:
    """Return how long this process's threads have waited for a core so far: reads a file for each of them (40 us)."""
    return sum(_waited_ns(thread) for thread in Path("/proc/self/task").glob("*"))


def thread_waited_ns() -> int:
    """Return how long the calling thread has waited for a core so far."""
    return _waited_ns(Path("/proc/thread-self"))


def _waited_ns(thread: Path) -> int:
    """Read Linux's scheduler statistics: time on a core, time ready without one, times that it got one."""
    try:
        return int((thread / "schedstat").read_text().split()[1])
    except (OSError, IndexError):  # a thread that has just ended; a kernel without statistics
        return 0


class Waker:
    """Waits for deadlines in the thread that made it, and compensates for its sleeps' measured overruns.

    Attributes:
        overrun_ns: how much earlier than its deadline it wakes up.
        looked_ns: CPU time spent polling so far; it does not count as work.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns, overrun_ns: int | None = None) -> None:
        no_timer_slack()
        self._clock_ns = clock_ns
        if overrun_ns is None:
            overruns = overruns_ns()
            overrun_ns = min(overruns[round(_SHARE * (len(overruns) - 1))], _MOST_NS)
        self.overrun_ns = overrun_ns
        self.looked_ns = 0

    def wait(self, sleep: Sleep, deadline_ns: int | None) -> bool:
        """Wait until an event or the deadline; return whether there was an event.

        Args:
            sleep: waits for events; with 0.0 it only polls.
            deadline_ns: by the clock of this object; None: there is none.
        """
        if deadline_ns is None:
            return sleep(1.0)
        left_ns = deadline_ns - self.overrun_ns - self._clock_ns()
        if left_ns > 0 and sleep(left_ns / 1e9):
            return True
        if self._clock_ns() >= deadline_ns:
            return sleep(0.0)
        began_ns = time.thread_time_ns()
        try:
            while not sleep(0.0):
                if self._clock_ns() >= deadline_ns:
                    return False
                os.sched_yield()  # other threads on this core go first
            return True
        finally:
            self.looked_ns += time.thread_time_ns() - began_ns


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
