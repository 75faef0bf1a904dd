"""Executors over a long time: killed at random under load, or left alone at a moderate one while memory is watched.

    python -m tests.bench.endurance chaos --minutes 10
    python -m tests.bench.endurance soak --minutes 60

`chaos`: one run in which random workers are killed (SIGKILL) or stopped (SIGSTOP) at random times. At its end every
request must have one record, completed or failed with a named reason, and the log must replay through fresh cores.
`soak`: runs of a minute, one after another, on one set of workers; a straight line through the memory of each process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy import stats

from hw.cluster import HardwareCluster, HardwareRun, Progress
from hw.device import local_devices
from hw.networks import ModelFile
from hw.server import HardwareServer
from policies.baselines import RouterContext, make_router
from policies.chance import stream
from policies.faults import Crash, Fault, Hang
from policies.greedy import GreedyKnobs
from policies.records import RunRecord
from policies.replay import replay
from policies.reward import AccuracyPrior, RewardWeights
from policies.routing import RouterConfig
from policies.vocabulary import NS_PER_S, RequestArrived
from tests.bench.peers.ours import _NoCosts

MODEL = Path("scenarios/models/slimresnet-tiny.safetensors")
BATCH_LIMIT = 16
VRAM_BYTES = 1 << 30
MOST_DRAIN_S = 60


class Bench:
    """Two servers, one for each local device, and a router that sends work at random (so activations move)."""

    def __init__(self, servers: int) -> None:
        self.file = ModelFile(MODEL)
        self.model, _ = self.file.load()
        spec = self.model.spec
        sizes = {(s, w): self.model.instance_bytes(s, w) for s in range(1, spec.segments + 1) for w in spec.widths}
        self.knobs = GreedyKnobs(spec.widths, sizes, 0, BATCH_LIMIT, VRAM_BYTES, idle_unload_ns=2 * NS_PER_S)
        devices = local_devices()
        self.servers = [
            HardwareServer(f"server{i}", devices[i % len(devices)], self.knobs, 0.0, 0.0) for i in range(servers)
        ]
        held = (((True,) * len(spec.widths),) * spec.segments,) * servers
        self.config = RouterConfig(spec.segments, spec.widths, held)
        self.prior = AccuracyPrior({(spec.widths[-1],) * spec.segments: 0.5})
        rng = stream(0, "images")
        self.images = rng.normal(size=(256, *spec.input_shape)).astype(np.float32)
        self.labels = rng.integers(spec.classes, size=256)

    def start(self) -> HardwareCluster:
        """The cluster, to be entered."""
        return HardwareCluster(self.file, self.servers, warm_batches=(1, BATCH_LIMIT))

    def run(
        self, cluster: HardwareCluster, seconds: float, rate: float, seed: int, faults: Sequence[Fault] = (),
        keep_log: bool = False,
    ) -> RunRecord:  # fmt: skip
        """Poisson arrivals."""
        gaps_s = stream(seed, "arrivals").exponential(1 / rate, size=round(rate * seconds))
        arrivals_ns = (np.cumsum(gaps_s) * NS_PER_S).astype(np.int64)
        arrivals_ns = arrivals_ns[arrivals_ns < seconds * NS_PER_S]
        plan = HardwareRun(
            arrivals_ns, self.images, self.labels, round(seconds * NS_PER_S), faults=tuple(faults), keep_log=keep_log,
            drain_limit_ns=MOST_DRAIN_S * NS_PER_S,
        )  # fmt: skip
        policy = make_router("random", RouterContext(self.config, _NoCosts(), self.prior, (1.0,) * len(self.servers)))
        return cluster.run(plan, self.config, RewardWeights(), self.prior, policy, stream(seed, "router:random"), _tell)


def _tell(progress: Progress) -> None:
    if sys.stderr.isatty():
        done = f"{progress.completed} of {progress.arrived}"
        print(f"\r{progress.now_ns / NS_PER_S:.0f} s, {done} completed   ", end="", file=sys.stderr)


def chaos(minutes: float, rate: float, mean_gap_s: float, servers: int, seed: int) -> dict[str, Any]:
    """Kill and stop workers at random; raises `AssertionError` if a request is lost or ends twice."""
    bench = Bench(servers)
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
    back_s = [(up - down) / NS_PER_S for _, down, up in record.restarts_ns]
    done_s = [(r.finished_ns - r.arrived_ns) / NS_PER_S for r in record.requests if r.status == "completed"]
    parted = replay(record.log, bench.config, [bench.knobs] * servers)
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
        "replay": "identical" if parted is None else str(parted)[:300],
    }


def soak(minutes: float, rate: float, servers: int, run_s: float = 60.0) -> dict[str, Any]:
    """Resident memory (private pages) of every process after each run, and the slope of a line through it."""
    bench = Bench(servers)
    rows: list[dict[str, float]] = []
    images = 0
    with bench.start() as cluster:
        for number in range(max(3, round(minutes * 60 / run_s))):
            record = bench.run(cluster, run_s, rate, number)
            images += len(record.requests)
            assert all(request.status == "completed" for request in record.requests)
            del record
            pids = {"driver": os.getpid()} | {
                server.name: slot.worker.pid for server, slot in zip(bench.servers, cluster._slots, strict=True)
            }
            rows.append({name: psutil.Process(pid).memory_full_info().uss / 2**20 for name, pid in pids.items()})
            print(f"{number + 1} runs: {json.dumps({k: round(v, 1) for k, v in rows[-1].items()})}", file=sys.stderr)
    hours = (np.arange(len(rows)) + 1) * run_s / 3600
    settled = len(rows) // 6  # the first runs fill caches
    slopes = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        fit = stats.linregress(hours[settled:], values[settled:])
        half = float(stats.t.ppf(0.975, max(1, len(values) - settled - 2)) * fit.stderr)
        slopes[name] = {"first_mib": values[0], "last_mib": values[-1], "slope_mib_h": fit.slope, "ci95": half}
    return {"minutes": minutes, "rate_img_s": rate, "images": images, "runs": len(rows), "memory": slopes}


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    p50, p99 = np.percentile(values, [50, 99])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p99": float(p99), "max": float(np.max(values))}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("chaos", "soak"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=40.0, help="images a second")
    parser.add_argument("--gap", type=float, default=8.0, help="chaos: mean seconds between two faults")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "chaos":
        found = chaos(given.minutes, given.rate, given.gap, given.servers, given.seed)
    else:
        found = soak(given.minutes, given.rate, given.servers)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
