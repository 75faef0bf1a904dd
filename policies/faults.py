"""What goes wrong, in both worlds: the faults that a scenario plans, and the one rule by which a dead server returns.

The simulator and the hardware bring the same faults about, each in its way: a `Crash` is a simulated death here and a
real `SIGKILL` there. No core knows a fault before it is an event. It knows no clock and touches no process.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.vocabulary import NS_PER_S


@dataclass(frozen=True, slots=True)
class Outage:
    """A server dies at `start_ns` and is back, empty, at `end_ns` (None: never)."""

    server: int
    start_ns: int
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Slowness:
    """A server's batches run `factor` times slower from `start_ns` to `end_ns`."""

    server: int
    start_ns: int
    end_ns: int
    factor: float


@dataclass(frozen=True, slots=True)
class Crash:
    """A server's process is killed; whoever watches over it starts it again (`Supervision`)."""

    server: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Hang:
    """A server's process stops without dying; it is noticed after `Supervision.hang_ns`, killed and started again."""

    server: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Squeeze:
    """A server's device has memory for no more than `batch` images at once: larger batches run in halves.

    With 0 none fits: batches fail as `out_of_memory`.
    """

    server: int
    start_ns: int
    end_ns: int
    batch: int


@dataclass(frozen=True, slots=True)
class Poison:
    """These requests' images are broken: the last segment finds no label for them."""

    requests: frozenset[int]


Fault = Outage | Slowness | Crash | Hang | Squeeze | Poison


@dataclass(frozen=True, slots=True)
class Impairment:
    """All that is wrong with a server that goes on.

    Attributes:
        slow_factor: it takes so many times as long for every batch.
        room_images: it has memory for so many at once; None for as many as fit.
    """

    slow_factor: float = 1.0
    room_images: int | None = None


PLANNED = "planned"  # of an outage
DRAINED = "drained"  # by the operator; a server that is drained may be up
WORKER_DIED = "worker_died"
WORKER_HUNG = "worker_hung"
NO_LABEL = "no_label"
OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class Supervision:
    """How a server's process is watched and brought back.

    Attributes:
        hang_ns: without a sign of life for so long it is hung.
        stuck_ns: a batch, load or move that takes longer means the same.
        backoff_ns: the wait before it is started again; it doubles with each death in a row.
        backoff_limit_ns: the longest such wait.
        stable_ns: once up for so long, the next death is the first of a new row.
        start_ns: simulated time from the start of the process until it is ready (a real one takes what it takes).
    """

    hang_ns: int = 3 * NS_PER_S
    stuck_ns: int = 60 * NS_PER_S
    backoff_ns: int = NS_PER_S // 10
    backoff_limit_ns: int = 5 * NS_PER_S
    stable_ns: int = 10 * NS_PER_S
    start_ns: int = 3 * NS_PER_S


class RestartPlan:
    """When one server's process may start again: exponential back-off over deaths in a row."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._deaths_in_a_row = 0
        self._up_since_ns: int | None = None

    def came_up(self, now_ns: int) -> None:
        """It is in service."""
        self._up_since_ns = now_ns

    def restart_at_ns(self, now_ns: int) -> int:
        """It has died now: when its process may be started again."""
        rules = self._supervision
        if self._up_since_ns is not None and now_ns - self._up_since_ns >= rules.stable_ns:
            self._deaths_in_a_row = 0
        self._up_since_ns = None
        doublings = min(self._deaths_in_a_row, 30)
        self._deaths_in_a_row += 1
        return now_ns + min(rules.backoff_ns << doublings, rules.backoff_limit_ns)
