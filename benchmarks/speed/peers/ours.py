"""Ours: one executor on the model's core behind the router, every request in four routed hops, one a segment.

The load is open: requests come when they are planned, as they do in every real run. Saturation is a plan above what the
bare loop can do; its throughput is all requests over the time until the last is done. At low load a latency counts from
the moment at which the router admitted the request, as the peers' count from the send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.speed.peers.forwards import BATCH_LIMIT, LOW_LOAD, SATURATION, Job, images
from benchmarks.speed.peers.load import WARM_UP_S
from benchmarks.speed.peers.nothing import model_file
from hw.device import DeviceSpec
from hw.networks.slimmable import SlimmableModel
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
from policies.vocabulary import NS_PER_S, WorkKey

SETTINGS: tuple[dict[str, Any], ...] = ({"outstanding_blocks": 2}, {"outstanding_blocks": 4})
_VRAM_BYTES = 1 << 30


class _NoCosts:
    """Round-robin asks for none."""

    def batch_s(self, server: int, key: WorkKey, batch: int) -> float:
        raise NotImplementedError

    def image_s(self, server: int, key: WorkKey) -> float:
        raise NotImplementedError

    def energy_j(self, server: int, key: WorkKey) -> float:
        raise NotImplementedError

    def transfer_s(self, source: int, server: int, segment: int, previous_width: float, images: int) -> float:
        raise NotImplementedError


def drive(job: Job, truth: Sequence[int]) -> dict[str, Any]:
    """Start it, load it, end it; returns what `load.measure` does, and `hops` a request."""
    file = model_file(job.path)
    model, _ = file.load()
    server = HardwareServer("server", DeviceSpec(cores=job.core, vram_bytes=_VRAM_BYTES), _knobs(model), 0.0, 0.0)
    labels = np.asarray(truth, np.int64)
    data = images(job.shape)
    with HardwareCluster(file, [server], warm_batches=range(1, BATCH_LIMIT + 1)) as cluster:

        def run(arrivals_ns: np.ndarray[Any, np.dtype[np.int64]]) -> RunRecord:
            planned = HardwareRun(arrivals_ns, data, labels, int(arrivals_ns[-1]) + 1)
            return _carry_out(cluster, model, planned, job)

        overload_ns = NS_PER_S / job.overload_per_s
        run(_every(overload_ns, round(job.overload_per_s * WARM_UP_S)))
        found: dict[str, Any] = {"hops": model.spec.segments}
        if SATURATION in job.parts:
            found |= _saturation(run(_every(overload_ns, round(job.overload_per_s * job.seconds))))
        if LOW_LOAD in job.parts:
            found |= _low_load(run(_every(job.interval_s * NS_PER_S, job.requests)))
    return found


def _carry_out(cluster: HardwareCluster, model: SlimmableModel, run: HardwareRun, job: Job) -> RunRecord:
    widths, segments = model.spec.widths, model.spec.segments
    held = (((True,) * len(widths),) * segments,)
    config = RouterConfig(segments, widths, held, outstanding_blocks=job.settings["outstanding_blocks"])
    full = (widths[-1],) * segments
    prior = AccuracyPrior({full: 0.5})
    name = f"fixed:{','.join(map(str, full))}@round-robin"
    policy = make_router(name, RouterContext(config, _NoCosts(), prior, (100.0,)))
    return cluster.run(run, config, Routing(policy, stream(0, f"router:{name}"), RewardWeights(), prior))


def _knobs(model: SlimmableModel) -> GreedyKnobs:
    """Everything is loaded before the run and stays."""
    spec = model.spec
    sizes = {(s, w): model.instance_bytes(s, w) for s in range(1, spec.segments + 1) for w in spec.widths}
    loaded = tuple((segment, spec.widths[-1]) for segment in range(1, spec.segments + 1))
    return GreedyKnobs(spec.widths, sizes, 0, BATCH_LIMIT, _VRAM_BYTES, idle_unload_ns=None, preload=loaded)


def _every(interval_ns: float, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (np.arange(1, count + 1) * interval_ns).astype(np.int64)


def _saturation(record: RunRecord) -> dict[str, float]:
    done = _completed(record)
    begin_ns = min(request.arrived_ns for request in done)
    end_ns = max(request.finished_ns for request in done)
    return {
        "images_per_s": len(done) / ((end_ns - begin_ns) / NS_PER_S),
        "mean_batch": float(np.mean([batch.size for batch in record.batches])),
        "wrong": float(np.mean([not request.correct for request in done])),
    }


def _low_load(record: RunRecord) -> dict[str, Any]:
    done = _completed(record)
    lags_ns = record.arrival_lags_ns or (0,) * len(record.requests)
    found = [(request.finished_ns - request.arrived_ns - lags_ns[request.request]) / NS_PER_S for request in done]
    return {"latencies_s": found, "wrong_single": float(np.mean([not request.correct for request in done]))}


def _completed(record: RunRecord) -> list[Any]:
    done = [request for request in record.requests if request.status == "completed"]
    if len(done) < len(record.requests):
        raise RuntimeError(f"{len(record.requests) - len(done)} of {len(record.requests)} requests did not complete")
    return done
