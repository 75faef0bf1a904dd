"""What a micro-batch costs the router's process and the workers, if passes take no time.

    python -m benchmarks.speed.hops                      # blocks of 1, 8 and 32 images, of 12 kB and of 256 KiB each
    python -m benchmarks.speed.hops --rate               # the highest rate that is sustained

Three workers, four segments, `sticky`, no log. A micro-batch is one decision: a micro-batch on one server for one
segment. CPU time is without looking out for messages; the router's is the median over windows of a second. The goal is
100 us a micro-batch if the reference engine makes 10,000 decisions a CPU-second, in proportion on other hosts.

With `--emulated` the workers have the simulator's own model of an RTX 2080 Ti behind them, ten thousand times as fast.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.speed import hollow
from benchmarks.speed.driving import reference, scenario
from benchmarks.speed.harness import show, write
from benchmarks.speed.hollow import BATCH_LIMIT, SEGMENTS, SHAPES, MicroBatchLoad
from hw.router.local_cluster import HardwareCluster
from hw.router.router_loop import RunProgress
from hw.worker.emulated_lanes import EmulatedDevice
from policies.vocabulary import NS_PER_S
from sim.device_profile import Profile
from sim.emulated_device import FACTORY, Emulation, emulated, to_bytes

SERVERS: Final = 3
GOAL_US, GOAL_DECISIONS_S = 100.0, 10_000.0
PROFILE = Path("scenarios/data/profiles/rtx-2080-ti.yaml")
SPEED_UP = 1e4
USUAL_SHARE = 0.5  # share of the time in which a router at its goal would be busy
TRY_S, PRECISION = 4.0, 0.05  # of the search for the highest rate
_STANDS_S, _STANDS = 2e-3, 1.5  # allowed growth of waiting, absolute and relative; from 0 it grows 2.3 times
_SERVED = 0.98  # of the requests, while they arrived


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Figures of one run.

    Attributes:
        router_us, agents_us: CPU time a micro-batch; the workers' together.
        wait_ms: mean time in the router's FIFO a micro-batch, of arrivals in the second and the last quarter of the
            run.
        lag_ms: p99 of how late arrivals were noticed.
    """

    bytes: int
    micro_batch: int
    images_a_micro_batch: float
    asked_s: float
    micro_batches_s: float
    router_us: float
    router_share: float
    workers_us: float
    wait_ms: tuple[float, float]
    lag_ms: float
    completed: float

    @property
    def is_sustained(self) -> bool:
        """Whether all was served on time, and waiting did not grow."""
        early_ms, late_ms = self.wait_ms
        stands = late_ms <= _STANDS * early_ms + 1e3 * _STANDS_S
        return stands and self.completed == 1.0 and self.micro_batches_s >= _SERVED * self.asked_s


@dataclass
class _Windows:
    """The router's CPU time, from a run's progress."""

    readings: list[tuple[int, int]]

    def tell(self, progress: RunProgress) -> None:
        self.readings.append((progress.now_ns, progress.busy_ns))

    def us_a_micro_batch(self, sent_ns: Any) -> float:
        """Return the median over windows of at least a second, without the first one."""
        (at_ns, busy_ns), *later = self.readings
        costs_us = []
        for now_ns, now_busy_ns in later:
            if now_ns - at_ns >= NS_PER_S:
                micro_batches = int(np.searchsorted(sent_ns, now_ns) - np.searchsorted(sent_ns, at_ns))
                costs_us.append((now_busy_ns - busy_ns) / max(1, micro_batches) / 1e3)
                at_ns, busy_ns = now_ns, now_busy_ns
        return float(np.median(costs_us[1:] or costs_us))


def cluster_of(size_bytes: int, is_emulated: bool) -> HardwareCluster:
    """Build the cluster, to be entered."""
    network, devices = hollow.served(SHAPES[size_bytes]), hollow.devices(SERVERS)
    if not is_emulated:
        return hollow.HollowCluster(network, hollow.servers(devices))
    fast = emulated(Profile.from_yaml(PROFILE.read_text(), str(PROFILE)), 1 / SPEED_UP)
    as_usual = fast.device.model_copy(update={"emulated_slowdown": 1.0})  # no profile claims that it is faster
    data = to_bytes(Emulation(fast.model_copy(update={"device": as_usual}).to_yaml(), BATCH_LIMIT))
    real = [EmulatedDevice(FACTORY, data, "rtx-2080-ti", cores=device.cores) for device in devices]
    return HardwareCluster(network, hollow.servers(real))


def measure(cluster: HardwareCluster, size_bytes: int, load: MicroBatchLoad) -> RunFigures:
    """Measure one run."""
    windows = _Windows([])
    config, routing = hollow.routing("sticky", SERVERS, (load.micro_batch,))
    run = load.run(SHAPES[size_bytes], is_correct=lambda request, widths: True)
    record = cluster.run(run, config, routing, windows.tell)
    sent_ns = np.sort([micro_batch.sent_ns for micro_batch in record.micro_batches])
    done = sorted((each for each in record.requests if each.status == "completed"), key=lambda each: each.arrived_ns)
    waits_ms = np.array([each.stages_ns[0] for each in done]) / 1e6 / SEGMENTS
    quarter = max(1, len(done) // 4)
    served = [each for each in record.micro_batches if each.ended_ns <= load.seconds * NS_PER_S]
    return RunFigures(
        bytes=size_bytes,
        micro_batch=load.micro_batch,
        images_a_micro_batch=float(np.mean([micro_batch.size for micro_batch in record.micro_batches])),
        asked_s=len(record.requests) / load.micro_batch * SEGMENTS / load.seconds,
        micro_batches_s=len(served) / load.seconds,
        router_us=windows.us_a_micro_batch(sent_ns),
        router_share=record.router_busy_ns / record.ended_ns,
        workers_us=sum(record.workers_busy_ns) / max(1, len(record.micro_batches)) / 1e3,
        wait_ms=(float(np.mean(waits_ms[quarter : 2 * quarter])), float(np.mean(waits_ms[-quarter:]))),
        lag_ms=float(np.percentile(record.arrival_lags_ns, 99)) / 1e6,
        completed=len(done) / len(record.requests),
    )


def highest(cluster: HardwareCluster, size_bytes: int, micro_batch: int, from_s: float) -> float:
    """Find the highest sustained blocks a second: doubling, then bisection."""

    def holds(micro_batches_s: float) -> bool:
        figures = measure(cluster, size_bytes, MicroBatchLoad(micro_batch, micro_batches_s, TRY_S))
        print(f"  {micro_batches_s:,.0f}/s: {'' if figures.is_sustained else 'not '}sustained", flush=True)
        return figures.is_sustained

    low, high = 0.0, from_s
    while holds(high):
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def decisions_s() -> float:
    """Return the reference engine's decisions a CPU-second: the best of three."""
    return max(reference(*scenario(SERVERS, 5.0)).rate for _ in range(3))


# ------------------------------------------------------------------------------------------------------- command line

HEAD = ("activations, bytes", "images a micro-batch", "asked, micro-batches/s",
        "micro-batches/s", "router, us a micro-batch", "goal, us", "router's core, %",
        "workers together, us a micro-batch", "waits at the router, ms, early and late",
        "arrivals noticed late, p99 ms")  # fmt: skip


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[1, 8, 32], help="images")
    parser.add_argument("--micro-batches-s", type=float, help="default: half of what a router at the goal could do")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--rate", action="store_true", help="look for the highest rate first, and run at that")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine_s = decisions_s()
    goal_us = GOAL_US * GOAL_DECISIONS_S / engine_s
    print(f"reference engine: {engine_s:,.0f} decisions/CPU-s; so the goal is {goal_us:.0f} us a micro-batch")
    figures: list[RunFigures] = []
    for size_bytes in options.bytes:
        with cluster_of(size_bytes, options.emulated) as cluster:
            for micro_batch in options.micro_batch:
                micro_batches_s = options.micro_batches_s or USUAL_SHARE * 1e6 / goal_us
                if options.rate:
                    micro_batches_s = highest(cluster, size_bytes, micro_batch, micro_batches_s)
                figures.append(
                    measure(cluster, size_bytes, MicroBatchLoad(micro_batch, micro_batches_s, options.seconds))
                )
    show("Hops with passes of no time", HEAD, [_row(figure, goal_us) for figure in figures])
    runs = [asdict(figure) | {"is_sustained": figure.is_sustained} for figure in figures]
    write(options.json, {"decisions_s": engine_s, "goal_us": goal_us, "runs": runs})


def _row(of: RunFigures, goal_us: float) -> tuple[object, ...]:
    waits = f"{of.wait_ms[0]:.2f}, {of.wait_ms[1]:.2f}{'' if of.is_sustained else ' (growing)'}"
    share = 100 * of.router_share
    return (of.bytes, of.images_a_micro_batch, of.asked_s, of.micro_batches_s, of.router_us, goal_us, share,
            of.workers_us, waits, of.lag_ms)  # fmt: skip


if __name__ == "__main__":
    main()
