"""One real server of `slimresnet-tiny`: its hops when it is idle, its throughput when it is not, and the bare loop."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.hollow import EvenCosts
from benchmarks.speed.peers.forwards import BATCH_LIMIT, MODEL, SATURATION, Job, images, measure_bare
from hw.device import DeviceSpec
from hw.networks.registry import ModelFile
from hw.router.agents import Carrier
from hw.router.cluster import HardwareCluster
from hw.router.loop import Routing
from hw.router.run_spec import HardwareRun
from hw.router.server import HardwareServer
from kit.chance import stream
from policies.greedy import GreedyKnobs
from policies.interfaces import RouterConfig
from policies.names import make_router
from policies.records import RunRecord
from policies.reward import AccuracyPrior, RewardWeights
from policies.rules.context import RouterContext
from policies.vocabulary import NS_PER_S
from scenarios.metrics.statistics import Estimate

IDLE_PER_S: Final = 50.0
OVERLOAD: Final = 1.5  # times the bare loop
AGENT_NICENESS: Final = 5  # as `hw.devices.instances` has it: whoever else runs here disturbs both alike
_WARM_UP: Final = 0.2  # of a run, which is not looked at
STAGES: Final = ("decide", "handover", "start", "end", "back")
"""Of a hop: snapshot to the block sent; sent until its server has it; there until its pass begins; the pass's end until
the scheduler knows; from there until the router's core has it."""


def cluster(cores: tuple[int, ...], carrier: Carrier | None = None) -> HardwareCluster:
    """To be entered; the server may run on these cores."""
    file = ModelFile(MODEL)
    model, _ = file.load()
    spec = model.spec
    sizes = {(s, w): model.instance_bytes(s, w) for s in range(1, spec.segments + 1) for w in spec.widths}
    preload = tuple((segment, spec.widths[-1]) for segment in range(1, spec.segments + 1))
    knobs = GreedyKnobs(spec.widths, sizes, 0, BATCH_LIMIT, 1 << 30, idle_unload_ns=None, preload=preload)
    server = HardwareServer("server", DeviceSpec(cores=cores), knobs, 0.0, 0.0)
    return HardwareCluster(file, [server], warm_batches=range(1, BATCH_LIMIT + 1), carrier=carrier)


def _run(cluster: HardwareCluster, per_s: float, seconds: float) -> RunRecord:
    """Requests that come at even intervals, until all are served."""
    served = cluster.served
    arrivals_ns = (np.arange(1, round(per_s * seconds) + 1) * NS_PER_S / per_s).astype(np.int64)
    run = HardwareRun(
        arrivals_ns, images(served.input_shape), np.zeros(len(images(served.input_shape)), np.int64),
        int(arrivals_ns[-1]) + 1,
    )  # fmt: skip
    config = RouterConfig(served.segments, served.widths, (((True,) * len(served.widths),) * served.segments,))
    full = (served.widths[-1],) * served.segments
    prior = AccuracyPrior({full: 0.5})
    name = f"fixed:{','.join(map(str, full))}@round-robin"
    policy = make_router(name, RouterContext(config, EvenCosts(), prior, (100.0,)))
    return cluster.run(run, config, Routing(policy, stream(0, f"router:{name}"), RewardWeights(), prior))


@dataclass(frozen=True, slots=True)
class Hops:
    """Of one request at a time: (hops, len(STAGES)) microseconds."""

    stages_us: NDArray[np.float64]

    def percentiles(self, *stages: str) -> tuple[float, ...]:
        """p50, p90 and p99 of the sum of these stages; of all where none is named."""
        chosen = [STAGES.index(stage) for stage in stages or STAGES]
        return tuple(np.percentile(self.stages_us[:, chosen].sum(axis=1), (50, 90, 99)).tolist())


def idle(cluster: HardwareCluster, seconds: float) -> Hops:
    """One request at a time, on a server with nothing else to do."""
    record = _run(cluster, IDLE_PER_S, seconds)
    batches = sorted(record.batches, key=lambda batch: batch.started_ns)
    starts_ns = [batch.started_ns for batch in batches]
    rows = []
    for block in record.blocks:
        if block.snapshot_ns >= _WARM_UP * seconds * NS_PER_S:
            batch = batches[int(np.searchsorted(starts_ns, block.snapshot_ns))]
            to_start_ns, to_end_ns = batch.started_ns - block.arrived_ns, batch.ended_ns - batch.forward_ended_ns
            rows.append((
                block.sent_ns - block.snapshot_ns, block.arrived_ns - block.sent_ns, to_start_ns, to_end_ns,
                block.ended_ns - batch.ended_ns,
            ))  # fmt: skip
    return Hops(np.array(rows) / 1e3)


def saturated(cluster: HardwareCluster, per_s: float, seconds: float) -> dict[str, float]:
    """Images a second of a backlog that grows, until it is worked off; and CPU time."""
    record = _run(cluster, per_s, seconds)
    done = [request for request in record.requests if request.status == "completed"]
    assert len(done) == len(record.requests), "some failed"
    lasted_s = (max(each.finished_ns for each in done) - min(each.arrived_ns for each in done)) / NS_PER_S
    return {
        "images_per_s": len(done) / lasted_s,
        "mean_batch": float(np.mean([batch.size for batch in record.batches])),
        "router_us_image": record.router_busy_ns / len(done) / 1e3,
        "agent_us_image": record.agents_busy_ns[0] / len(done) / 1e3,
    }


def bare(core: Sequence[int], seconds: float) -> float:
    """Images a second of a loop of the same forwards at batch 16, in a process of its own."""
    job = Job("bare", str(MODEL), (), {}, (SATURATION,), seconds, 0.01, 0.0, tuple(core), ())
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_bare, job).result()


def _bare(job: Job) -> float:
    os.nice(AGENT_NICENESS)
    try:
        return measure_bare(job)["images_per_s"]
    finally:
        gc.unfreeze()  # else libraries tell of leaks as the process ends


def with_interval(of: Estimate, decimals: int = 0) -> str:
    """`1,234 +-56`."""
    mean, half = of["mean"], of["ci95"]
    return "-" if mean is None else f"{mean:,.{decimals}f}" + ("" if half is None else f" +-{half:,.{decimals}f}")
