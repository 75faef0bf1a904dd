"""The real bench: a worker process on a device, a second one to send activations to, and the device's power sensor.

It translates; what is asked of it was decided by the plan.
"""

from __future__ import annotations

import threading
import time  # noqa: TID251 - power is sampled beside a real loop
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from calibrate.bench import Loop, Shared, SteadyLoad
from calibrate.plan import Point
from hw.messages import BenchmarkPoint
from hw.telemetry import Reading, Sensor
from hw.worker import Worker, transfer_round
from policies.errors import WorkError
from policies.vocabulary import NS_PER_S, Provenance

SAMPLE_PERIOD_S = 0.05
RISE_S = 1.0  # the first second under load says what was before
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
    sensor: Sensor
    probe_batch: int

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
        with sampled(self.sensor) as take:
            result = self.worker.benchmark(_to_worker(point), warmup=5, repeats=2, min_s=duration_s)
            watched = take()
        rise_s = min(RISE_S, duration_s / 3)
        power = mean_power(watched, rise_s)
        return SteadyLoad(
            images=len(result.samples_s) * point.batch,
            elapsed_s=result.wall_s,
            power_w=power.power_w,
            utilization=power.utilization,
            provenance=power.provenance,
        )


@dataclass(frozen=True, slots=True)
class Watched:
    """One look at a sensor; `energy_j` is a counter from any origin, None where there is none."""

    at_s: float
    reading: Reading
    energy_j: float | None


@dataclass(frozen=True, slots=True)
class MeanPower:
    """What a sensor showed over a while."""

    power_w: float
    utilization: float | None
    provenance: Provenance


@contextmanager
def sampled(sensor: Sensor, period_s: float = SAMPLE_PERIOD_S) -> Iterator[Callable[[], list[Watched]]]:
    """Look at a sensor every period, in a thread; the function given back returns the looks so far."""
    seen: list[Watched] = []
    end = threading.Event()

    def watch() -> None:
        while not end.wait(period_s):
            seen.append(Watched(time.monotonic_ns() / NS_PER_S, sensor.sample(), sensor.energy_j()))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: list(seen)
    finally:
        end.set()
        thread.join()


def mean_power(watched: Sequence[Watched], rise_s: float) -> MeanPower:
    """The mean after the first `rise_s` seconds: from the energy counter where there is one, else of the samples.

    Raises:
        WorkError: the sensor gave no power in that time.
    """
    kept = [look for look in watched if look.at_s >= watched[0].at_s + rise_s]
    used = [look.reading.utilization for look in kept if look.reading.utilization is not None]
    utilization = float(np.mean(used)) if used else None
    if len(kept) > 1:
        first, last = kept[0], kept[-1]
        if first.energy_j is not None and last.energy_j is not None and last.energy_j > first.energy_j:
            power_w = (last.energy_j - first.energy_j) / (last.at_s - first.at_s)
            return MeanPower(power_w, utilization, Provenance.MEASURED)
    powers = [look.reading.power_w for look in kept if look.reading.power_w is not None]
    if not powers:
        raise WorkError("the power sensor said nothing for a whole measurement")
    provenance = kept[-1].reading.provenance.get("power_w", Provenance.POLLED)
    return MeanPower(float(np.mean(powers)), utilization, provenance)


def _to_worker(point: Point) -> BenchmarkPoint:
    return BenchmarkPoint(point.segment, point.width, point.previous_width, point.batch)
