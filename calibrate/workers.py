"""The real bench: a worker process on a device, a second one to send activations to, and the device's power sensor.

It translates; what is asked of it was decided by the plan.
"""

from __future__ import annotations

import time  # noqa: TID251 - what others use of the cores is a share of real time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from calibrate.bench import Loop, Shared, SharedLoop, SteadyLoad
from calibrate.meter import Meter, sampled
from calibrate.plan import Point, rise_dropped_s
from hw.messages import BenchmarkPoint
from hw.telemetry import process_cpu_s
from hw.worker import Worker, transfer_round
from policies.vocabulary import NS_PER_S

# A served batch finds its thread asleep and its caches used by others; a loop without a pause flatters the device.
PAUSE_S = 500e-6


@dataclass(frozen=True, slots=True)
class WorkerBench:
    """`calibrate.bench.Bench` on a worker.

    Attributes:
        peer: another server's process, to move activations to; None where no link is measured.
        sibling: a second process on the same device, for sets across processes; None without such sets.
        probe_batch: on a GPU, the batch whose workspace counts as part of an instance; 0 elsewhere.
        cores: of a CPU device.
    """

    worker: Worker
    peer: Worker | None
    meter: Meter
    probe_batch: int
    sibling: Worker | None = None
    cores: tuple[int, ...] = ()

    def load(self, instance: int, segment: int, width: float, from_disk: bool) -> tuple[float, int]:
        """See `Bench`."""
        timing = self.worker.load(instance, segment, width, from_disk=from_disk, probe_batch=self.probe_batch)
        return timing.load_s, timing.vram_bytes

    def unload(self, instance: int) -> float:
        """See `Bench`."""
        return self.worker.unload(instance)

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float, *, paused: bool = True) -> Loop:
        """See `Bench`."""
        result = self.worker.benchmark(_to_worker(point), warmup, repeats, min_s, PAUSE_S if paused else 0.0)
        return Loop(result.samples_s, result.wall_s, result.cpu_s, result.waited_s, result.references_s)

    def together(self, points: Sequence[Point], duration_s: float, *, across: bool = False) -> SharedLoop:
        """See `Bench`."""
        workers = [self.worker]
        if across:
            assert self.sibling is not None, "a plan without a second process asks for no set across processes"
            workers.append(self.sibling)
        before = _CoreUse.of(self.cores, workers)
        for index, worker in enumerate(workers):
            worker.start_together([_to_worker(point) for point in points[index :: len(workers)]], duration_s)
        found = [worker.finish_together() for worker in workers]
        foreign_share = _CoreUse.of(self.cores, workers).foreign_share(before)
        results = [found[index % len(workers)].results[index // len(workers)] for index in range(len(points))]
        members = [Shared(result.completed, result.elapsed_s, result.reference_s) for result in results]
        return SharedLoop(members, foreign_share)

    def dispatch(self, point: Point, number: int) -> Sequence[float]:
        """See `Bench`; a clock's grain may leave a difference below zero, which counts as nothing."""
        trips_s = self.worker.dispatch_round_trips(_to_worker(point), number, pause_s=PAUSE_S)
        return [max(0.0, trip_s) for trip_s in trips_s]

    def transfer(self, size_bytes: int, number: int) -> Sequence[float]:
        """See `Bench`."""
        assert self.peer is not None, "a plan without a peer asks for no transfer"
        return transfer_round(self.worker, self.peer, size_bytes, number, PAUSE_S)

    def steady(self, point: Point, duration_s: float) -> SteadyLoad:
        """See `Bench`."""
        with sampled(self.meter.sensor) as take:
            result = self.worker.benchmark(_to_worker(point), warmup=5, repeats=2, min_s=duration_s)
            watched = take()
        power = self.meter.mean(watched, rise_dropped_s(duration_s, self.meter.rise_s))
        return SteadyLoad(
            images=len(result.samples_s) * point.batch,
            elapsed_s=result.wall_s,
            power_w=power.power_w,
            utilization=power.utilization,
            provenance=power.provenance,
            sm_utilization=power.sm_utilization,
        )


@dataclass(frozen=True, slots=True)
class _CoreUse:
    """The cores of a CPU device at one moment: CPU time that anything, and that our workers, have used so far."""

    cores: int
    at_s: float
    busy_s: float
    own_s: float

    @classmethod
    def of(cls, cores: Sequence[int], workers: Sequence[Worker]) -> _CoreUse:
        everywhere = psutil.cpu_times(percpu=True)
        times = [everywhere[core] for core in cores]
        idle_s = sum(used.idle + getattr(used, "iowait", 0.0) for used in times)
        own_s = sum(process_cpu_s(worker.pid) for worker in workers)
        return cls(len(cores), time.monotonic_ns() / NS_PER_S, sum(map(sum, times)) - idle_s, own_s)

    def foreign_share(self, before: _CoreUse) -> float:
        """What others used of the cores since then; 0 where the device has none."""
        foreign_s = self.busy_s - before.busy_s - (self.own_s - before.own_s)
        return max(0.0, foreign_s) / (self.cores * (self.at_s - before.at_s)) if self.cores else 0.0


def _to_worker(point: Point) -> BenchmarkPoint:
    return BenchmarkPoint(point.segment, point.width, point.previous_width, point.batch)
