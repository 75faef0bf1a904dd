"""Executors over a long time: killed at random under load, or left alone at a moderate one while memory is watched.

    python -m benchmarks.speed.endurance chaos --minutes 10
    python -m benchmarks.speed.endurance soak --minutes 60

`chaos`: one run in which random workers are killed (SIGKILL) or stopped (SIGSTOP) at random times. At its end every
request must have one record, completed or failed with a named reason, and the logs must replay through fresh cores and
agree with each other.
`soak`: one run; the memory of each process is read about every 30 seconds, and a straight line laid through it. The
router keeps a record of every request until its run has ended, by design.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from scipy import stats

from benchmarks.speed.hollow import routing
from hw.device_settings import local_devices
from hw.networks.network_files import ModelFile
from hw.router.local_cluster import HardwareCluster
from hw.router.router_loop import Routing, RunProgress
from hw.router.run_requests import HardwareRun
from hw.router.server_port import HardwareServer
from kit.random_streams import stream
from policies.faults import Crash, Fault, Hang
from policies.greedy_scheduler import GreedyParams
from policies.interfaces import RouterConfig
from policies.replay import replay_run
from policies.run_records import RunRecord
from policies.vocabulary import NS_PER_S, RequestArrived

MODEL = Path("scenarios/data/models/slimresnet-tiny.safetensors")
BATCH_LIMIT = 16
VRAM_BYTES = 1 << 30
MAX_DRAIN_S = 60
SAMPLE_S = 30.0


class SoakBench:
    """Two servers, one for each local device, and a router that sends work at random (so activations move)."""

    def __init__(self, servers: int) -> None:
        self.file = ModelFile(MODEL)
        self.model, _ = self.file.load()
        spec = self.model.spec
        sizes = {(s, w): self.model.instance_bytes(s, w) for s in range(1, spec.segments + 1) for w in spec.widths}
        self.params = GreedyParams(spec.widths, sizes, 0, BATCH_LIMIT, VRAM_BYTES, idle_unload_ns=2 * NS_PER_S)
        devices = local_devices()
        self.servers = [
            HardwareServer(f"server{i}", devices[i % len(devices)], self.params, 0.0, 0.0) for i in range(servers)
        ]
        rng = stream(0, "images")
        self.images = rng.normal(size=(256, *spec.input_shape)).astype(np.float32)
        self.labels = rng.integers(spec.classes, size=256)

    def start(self) -> HardwareCluster:
        """Build the cluster, to be entered."""
        return HardwareCluster(self.file, self.servers, warm_batches=(1, BATCH_LIMIT))

    def run(
        self, cluster: HardwareCluster, seconds: float, rate: float, seed: int, faults: Sequence[Fault] = (),
        keep_log: bool = False, on_progress: Callable[[RunProgress], None] | None = None,
    ) -> RunRecord:  # fmt: skip
        """Run with Poisson arrivals."""
        gaps_s = stream(seed, "arrivals").exponential(1 / rate, size=round(rate * seconds))
        arrivals_ns = (np.cumsum(gaps_s) * NS_PER_S).astype(np.int64)
        arrivals_ns = arrivals_ns[arrivals_ns < seconds * NS_PER_S]
        plan = HardwareRun(
            arrivals_ns, self.images, self.labels, round(seconds * NS_PER_S), faults=tuple(faults), keep_log=keep_log,
            drain_limit_ns=MAX_DRAIN_S * NS_PER_S,
        )  # fmt: skip
        return cluster.run(plan, *self.routing(seed), on_progress or _tell)

    def routing(self, seed: int) -> tuple[RouterConfig, Routing]:
        """Return the router `random`."""
        spec = self.model.spec
        return routing("random", len(self.servers), segments=spec.segments, widths=spec.widths, seed=seed)


def _tell(progress: RunProgress) -> None:
    if sys.stderr.isatty():
        done = f"{progress.completed} of {progress.arrived}"
        print(f"\r{progress.now_ns / NS_PER_S:.0f} s, {done} completed   ", end="", file=sys.stderr)


def chaos(minutes: float, rate: float, mean_gap_s: float, servers: int, seed: int) -> dict[str, Any]:
    """Kill and stop workers at random; raises `AssertionError` if a request is lost or ends twice."""
    bench = SoakBench(servers)
    seconds, rng = minutes * 60, stream(seed, "chaos")
    faults: list[Fault] = []
    at_s = float(rng.exponential(mean_gap_s))
    while at_s < seconds:
        kind = Crash if rng.random() < 0.7 else Hang
        faults.append(kind(int(rng.integers(servers)), round(at_s * NS_PER_S)))
        at_s += float(rng.exponential(mean_gap_s))
    with bench.start() as cluster:
        record = bench.run(cluster, seconds, rate, seed, faults, keep_log=True)
    arrived = [step.event.request for step in record.log if isinstance(step.event, RequestArrived)]
    ended = [request.request for request in record.requests]
    status = Counter(request.status for request in record.requests)
    failures = Counter(request.reason for request in record.requests if request.status == "failed")
    assert sorted(ended) == sorted(arrived) == list(range(len(arrived))), "a request was lost, or has two records"
    assert "" not in failures, "a failure without a reason"
    back_s = [
        (downtime.up_ns - downtime.down_ns) / NS_PER_S for downtime in record.downtimes if downtime.up_ns is not None
    ]
    done_s = [
        (request.finished_ns - request.arrived_ns) / NS_PER_S
        for request in record.requests
        if request.status == "completed"
    ]
    wrong = replay_run(record.log, record.worker_logs, bench.routing(seed)[0], [bench.params] * servers)
    return {
        "minutes": minutes,
        "rate_img_s": rate,
        "servers": servers,
        "planned_faults": len(faults),
        "arrived": len(arrived),
        "ended": dict(status),
        "failures": dict(failures),
        "retried": sum(request.retries > 0 for request in record.requests),
        "restarts": len(back_s),
        "down_s": _spread(back_s),
        "latency_s": _spread(done_s),
        "replay": f"{len(wrong)} problems: {wrong[0]:.300}" if wrong else "identical",
    }


@dataclass(slots=True)
class MemoryTrend:
    """Private memory of this process, which routes, and of every worker over time; updated by a run's progress.

    Attributes:
        pids: returns the present processes to read: a restarted worker is another process.
        sample_s: least time between two readings.
    """

    pids: Callable[[], dict[str, int]]
    sample_s: float
    at_s: list[float] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)

    def tell(self, progress: RunProgress) -> None:
        """Read memory, if it is due."""
        _tell(progress)
        now_s = progress.now_ns / NS_PER_S
        if self.at_s and now_s < self.at_s[-1] + self.sample_s:
            return
        self.at_s.append(now_s)
        self.rows.append({name: float(psutil.Process(pid).memory_full_info().uss) for name, pid in self.pids().items()})

    def slopes(self) -> dict[str, dict[str, float]]:
        """Return each process's first and last reading, and the slope in MiB an hour; the first sixth fills caches."""
        settled = len(self.rows) // 6
        hours = np.asarray(self.at_s[settled:]) / 3600
        slopes = {}
        for name in self.rows[0]:
            values = np.asarray([row[name] for row in self.rows]) / 2**20
            slope, half = _line(hours, values[settled:])
            slopes[name] = {
                "first_mib": float(values[0]), "last_mib": float(values[-1]), "slope_mib_h": slope, "ci95": half,
            }  # fmt: skip
        return slopes


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return slope and the half-width of its 95 % interval."""
    fit = stats.linregress(x, y)
    return float(fit.slope), float(stats.t.ppf(0.975, max(1, len(x) - 2)) * fit.stderr)


def soak(minutes: float, rate: float, servers: int) -> dict[str, Any]:
    """Measure memory of every process over one run, and the slope of a line through it.

    Raises:
        AssertionError: a request did not complete, or there was too little time for three readings.
    """
    bench, seconds = SoakBench(servers), minutes * 60
    with bench.start() as cluster:

        def pids() -> dict[str, int]:
            slots = zip(bench.servers, cluster.slots, strict=True)
            return {"router": os.getpid()} | {server.name: slot.worker.pid for server, slot in slots}

        memory = MemoryTrend(pids, min(SAMPLE_S, seconds / 10))
        record = bench.run(cluster, seconds, rate, 0, on_progress=memory.tell)
    assert all(request.status == "completed" for request in record.requests)
    assert len(memory.rows) >= 3, "too little time"
    return {
        "minutes": minutes,
        "rate_img_s": rate,
        "images": len(record.requests),
        "readings": len(memory.rows),
        "memory": memory.slopes(),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    p50, p99 = np.percentile(values, [50, 99])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p99": float(p99), "max": float(np.max(values))}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("chaos", "soak"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=40.0, help="images a second")
    parser.add_argument("--gap", type=float, default=8.0, help="chaos: mean seconds between two faults")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.what == "chaos":
        figures = chaos(options.minutes, options.rate, options.gap, options.servers, options.seed)
    else:
        figures = soak(options.minutes, options.rate, options.servers)
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
