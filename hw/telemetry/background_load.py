"""Background load: use of the devices by other programs of this machine, and of a virtual machine's host.

No profile includes it, so no simulation predicts it. Its amount distinguishes its effect on latencies from the
simulator's own errors.
"""

from __future__ import annotations

import os
import time  # noqa: TID251 - a share of real time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import psutil

from hw.telemetry.nvml import other_processes, process_shares
from policies.run_records import BackgroundLoad
from policies.vocabulary import NS_PER_S

NOTABLE = 0.05  # a share of a device that is worth reporting
STRONG = 0.30  # a share that makes a measurement worthless
_NOT_BUSY = frozenset({"idle", "iowait", "guest", "guest_nice", "steal"})  # a guest's time is part of its user's
_MIN_ACCOUNTED = 0.5  # of the elapsed time, at least: cores that account for less of their time report nothing usable
_LOOK_NS = NS_PER_S  # between two polls of a GPU

CoreTimes = Callable[[], Sequence[Any]]  # for each core a named tuple of seconds, as psutil gives it
Clock = Callable[[], int]


def counted_times() -> Sequence[Any]:
    """Return the times of every core; empty if the system does not report them."""
    try:
        return psutil.cpu_times(percpu=True)
    except OSError:
        return ()


@dataclass(frozen=True, slots=True)
class Used:
    """The CPU time used by one of our processes so far, and the cores that it may run on; None for any."""

    cpu_s: float
    cores: Set[int] | None = None


Own = Callable[[], Mapping[int | str, Used]]


def ended_children() -> Used:
    """Return the use by ended children: a worker that dies meanwhile was ours, too."""
    times = os.times()
    return Used(times.children_user + times.children_system)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    at_s: float
    cores: Sequence[Mapping[str, float]]
    own: Mapping[int | str, Used]


class CoreWatch:
    """Other processes' use of cores from `start` to `take`, for each device and for all of them together.

    One of our processes that may run elsewhere as well counts whole: the reported share is a lower bound.

    Args:
        devices: the cores of each.
        own: our processes by their ids, and their use so far.
    """

    def __init__(
        self,
        devices: Sequence[Sequence[int]],
        own: Own,
        core_times: CoreTimes = counted_times,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        together = frozenset().union(*devices)
        self._core_sets = list(dict.fromkeys([*(frozenset(cores) for cores in devices), together]))
        self._own = own
        self._core_times = core_times
        self._clock = clock
        self._before = self._look()

    def start(self) -> None:
        """Forget earlier samples."""
        self._before = self._look()

    def take(self) -> BackgroundLoad | None:
        """Return the load of the device that has most; None if the system does not account for the cores' time."""
        after = self._look()
        loads = [load for cores in self._core_sets if (load := _between(self._before, after, cores)) is not None]
        return max(loads, key=lambda load: load.share, default=None)

    def _look(self) -> _Snapshot:
        cores = [times._asdict() for times in self._core_times()]
        return _Snapshot(self._clock() / NS_PER_S, cores, self._own())


def _between(before: _Snapshot, after: _Snapshot, cores: Set[int]) -> BackgroundLoad | None:
    def of_cores(snapshot: _Snapshot, fields: Callable[[str], bool]) -> float:
        return sum(value for core in cores for name, value in snapshot.cores[core].items() if fields(name))

    def spent_s(fields: Callable[[str], bool]) -> float:
        return of_cores(after, fields) - of_cores(before, fields)

    def own_s(snapshot: _Snapshot) -> float:
        return sum(used.cpu_s for used in snapshot.own.values() if used.cores is None or used.cores & cores)

    if max(cores) >= min(len(before.cores), len(after.cores)):
        return None
    time_s = (after.at_s - before.at_s) * len(cores)
    if time_s <= 0 or spent_s(lambda _: True) < _MIN_ACCOUNTED * time_s:
        return None
    programs_s = spent_s(lambda name: name not in _NOT_BUSY) - (own_s(after) - own_s(before))
    stolen_s = spent_s(lambda name: name == "steal")
    return BackgroundLoad(_share(programs_s / time_s), _share(stolen_s / time_s))


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


class GpuWatch:
    """Other processes' use of a GPU from `start` to `take`, as NVML reports it process by process.

    Args:
        own: the ids of ours. If NVML has none of them (in a container it may count otherwise) all would be others.
    """

    def __init__(self, nvml: Any, handle: Any, own: Callable[[], Sequence[int]]) -> None:
        self._nvml = nvml
        self._handle = handle
        self._own = own
        self._shares: list[float] = []
        self._since_us = 0

    def start(self) -> None:
        """Forget earlier samples."""
        self.look()
        self._shares = []

    def look(self) -> None:
        """Sample since the previous `look`: NVML keeps samples of the last seconds only."""
        pids = self._own()
        samples = process_shares(self._nvml, self._handle, self._since_us)
        self._since_us = max((self._since_us, *(sample.at_us for sample in samples)))
        running = other_processes(self._nvml, self._handle, ()) or ()
        if samples and any(pid in pids for pid in running):
            self._shares.append(_share(sum(sample.share for sample in samples if sample.pid not in pids)))

    def take(self) -> BackgroundLoad | None:
        """Return the mean over the samples; None if NVML reports nothing."""
        self.look()
        return BackgroundLoad(sum(self._shares) / len(self._shares)) if self._shares else None


class BackgroundWatch:
    """All devices of a cluster; reports the one that has most background load."""

    def __init__(self, cores: CoreWatch | None, gpus: Sequence[GpuWatch]) -> None:
        self._cores, self._gpus = cores, gpus
        self._next_ns = _LOOK_NS

    def start(self) -> None:
        """Forget earlier samples; the run's clock is 0."""
        self._next_ns = _LOOK_NS
        for gpu in self._gpus:
            gpu.start()
        if self._cores is not None:
            self._cores.start()

    def look(self, now_ns: int) -> None:
        """Sample sensors that keep no count, when it is time to."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _LOOK_NS
            for gpu in self._gpus:
                gpu.look()

    def take(self) -> BackgroundLoad | None:
        """Return the load since the start; None if no sensor reports it."""
        loads = [gpu.take() for gpu in self._gpus] + ([self._cores.take()] if self._cores else [])
        return max((load for load in loads if load is not None), key=lambda load: load.share, default=None)
