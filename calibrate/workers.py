"""The real bench: a worker process on a device, a second one to send activations to, and the device's power sensor.

It translates; what is asked of it was decided by the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.bench import Loop, Shared, SteadyLoad
from calibrate.meter import Meter, sampled
from calibrate.plan import Point
from hw.messages import BenchmarkPoint
from hw.worker import Worker, transfer_round

RISE_SHARE = 2 / 3  # of a short steady load may be dropped as its rise, no more
# A served batch finds its thread asleep and its caches used by others; a loop without a pause flatters the device.
PAUSE_S = 500e-6


@dataclass(frozen=True, slots=True)
class WorkerBench:
    """`calibrate.bench.Bench` on a worker.

    Attributes:
        probe_batch: on a GPU, the batch whose workspace counts as part of an instance; 0 elsewhere.
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

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float) -> Loop:
        """See `Bench`."""
        result = self.worker.benchmark(_to_worker(point), warmup, repeats, min_s, PAUSE_S)
        return Loop(result.samples_s, result.wall_s, result.cpu_s)

    def together(self, points: Sequence[Point], duration_s: float) -> Sequence[Shared]:
        """See `Bench`."""
        results = self.worker.benchmark_together([_to_worker(point) for point in points], duration_s)
        return [Shared(result.completed, result.elapsed_s) for result in results]

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
        power = self.meter.mean(watched, min(self.meter.rise_s, RISE_SHARE * duration_s))
        return SteadyLoad(
            images=len(result.samples_s) * point.batch,
            elapsed_s=result.wall_s,
            power_w=power.power_w,
            utilization=power.utilization,
            provenance=power.provenance,
        )


def _to_worker(point: Point) -> BenchmarkPoint:
    return BenchmarkPoint(point.segment, point.width, point.previous_width, point.batch)
