"""Faults, in simulation and on executors: those that a scenario plans, and the one rule by which a failed server
restarts.

Simulator and executors inject the same faults by different means: a `Crash` is a simulated failure in one and a real
`SIGKILL` in the other. No core receives a fault before it is an event. This module has no clock and touches no process.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.vocabulary import NS_PER_S


@dataclass(frozen=True, slots=True)
class Outage:
    """The failure of a server at `start_ns`; it is back, empty, at `end_ns` (None: never)."""

    server: int
    start_ns: int
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Slowness:
    """A period from `start_ns` to `end_ns` in which a server's batches run `factor` times slower."""

    server: int
    start_ns: int
    end_ns: int
    factor: float


@dataclass(frozen=True, slots=True)
class Crash:
    """The kill of a server's process; its supervisor restarts it (`Supervision`)."""

    server: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Hang:
    """A server's process that hangs; it is detected after `Supervision.hang_ns`, killed and restarted."""

    server: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Squeeze:
    """A limit of a device's memory to `batch` images at once: larger batches run in halves.

    With 0 none fits: batches fail as `out_of_memory`.
    """

    server: int
    start_ns: int
    end_ns: int
    batch: int


@dataclass(frozen=True, slots=True)
class Poison:
    """Broken images of these requests: the last segment finds no prediction for them."""

    requests: frozenset[int]


Fault = Outage | Slowness | Crash | Hang | Squeeze | Poison


@dataclass(frozen=True, slots=True)
class Impairment:
    """All faults of a server that still runs.

    Attributes:
        slow_factor: each batch takes this many times as long.
        room_images: number of images that fit in its memory at once; None for no limit.
    """

    slow_factor: float = 1.0
    room_images: int | None = None


PLANNED = "planned"  # of an outage
DRAINED = "drained"  # by the operator; a drained server may be up
WORKER_DIED = "worker_died"
WORKER_HUNG = "worker_hung"
NO_PREDICTION = "no_prediction"
OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class Supervision:
    """The settings for supervising and restarting a server's process.

    Attributes:
        hang_ns: after this time without a sign of life a process is hung.
        stuck_ns: a batch, load or move that takes longer than this is hung, too.
        backoff_ns: the wait before a restart; it doubles with each failure in a row.
        backoff_limit_ns: the longest such wait.
        stable_ns: after this time in service, the next failure is the first of a new row.
        start_ns: simulated time from the start of the process until it is ready (a real one's time is measured).
    """

    hang_ns: int = 3 * NS_PER_S
    stuck_ns: int = 60 * NS_PER_S
    backoff_ns: int = NS_PER_S // 10
    backoff_limit_ns: int = 5 * NS_PER_S
    stable_ns: int = 10 * NS_PER_S
    start_ns: int = 3 * NS_PER_S


class RestartPlan:
    """The restart times of one server's process: exponential back-off over failures in a row."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._deaths_in_a_row = 0
        self._up_since_ns: int | None = None

    def came_up(self, now_ns: int) -> None:
        """Note that the process is in service."""
        self._up_since_ns = now_ns

    def restart_at_ns(self, now_ns: int) -> int:
        """Note a failure; returns when the process may restart."""
        rules = self._supervision
        if self._up_since_ns is not None and now_ns - self._up_since_ns >= rules.stable_ns:
            self._deaths_in_a_row = 0
        self._up_since_ns = None
        doublings = min(self._deaths_in_a_row, 30)
        self._deaths_in_a_row += 1
        return now_ns + min(rules.backoff_ns << doublings, rules.backoff_limit_ns)
