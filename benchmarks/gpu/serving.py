"""Checks of executors under load: throughput against a bare loop, two servers of one device, and failing workers."""

from __future__ import annotations

import json
import time  # noqa: TID251 - loops are timed
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.asserting import BREAKS, AssertingNet
from benchmarks.gpu.stand import NETWORKS, SEED, Stand
from benchmarks.speed.hollow import routing
from calibrate.measurement_plan import powers_of_two
from hw.networks.network_files import ModelFile, Network, save_model
from hw.networks.servable import rows_of
from hw.router.local_cluster import HardwareCluster
from hw.router.run_requests import HardwareRun
from hw.router.server_port import HardwareServer
from hw.telemetry import usable_cores
from hw.transport.messages import Point
from hw.worker.cuda import GraphedInstance, own_stream
from hw.worker.instances import serve
from policies.faults import Crash, Fault, Hang, Supervision
from policies.greedy_scheduler import GreedyParams
from policies.run_records import STAGES, RunRecord
from policies.vocabulary import IMAGE, NS_PER_S
from scenarios.executors.executor_runs import on_own_cores

SIZES: Final = powers_of_two(32)
IMAGES: Final = 256
LOOP_S: Final = 2.0
LOAD_S: Final = 1.0  # of arrivals: serving them takes a few times as long, as does recording them
BREAK_IMG_S: Final = 100.0
GPU_MICRO_BATCHES: Final = 4  # outstanding ones, the default of a scenario (`scenarios.experiment.scenario_building`)
ACTIVE_STAGES: Final = ("decision", "transfer", "handover", "dispatch", "run")
GOAL_US_HOP: Final = 250.0  # per hop beyond the pass, with captured passes
STUCK_S: Final = 20  # the preload of two servers is one queue, and each load in it counts from its command
AGREE: Final = 0.98  # of the labels with the CPU's: random weights leave some of them to chance


@dataclass(frozen=True)
class EvenLoad:
    """Images that arrive evenly.

    Attributes:
        rate_img_s: images a second.
        breaks: requests whose images break their device.
    """

    rate_img_s: float
    seconds: float
    faults: tuple[Fault, ...] = ()
    breaks: tuple[int, ...] = ()


def bare_img_s(stand: Stand, batch: int, **changes: object) -> float:
    """Return images a second of a loop of whole passes at full width, in this thread, without any router."""
    instances, spec = stand.instances(**changes), stand.model.spec
    count, began_s = 0, time.monotonic()
    with torch.inference_mode(), own_stream(stand.torch_device):
        chain = [instances.make(segment, 1.0) for segment in range(1, spec.segments + 1)]
        images = stand.activations(1, IMAGE, batch).to(stand.torch_device)
        while (lasted_s := time.monotonic() - began_s) < LOOP_S:
            if lasted_s < LOOP_S / 4:
                count, from_s = 0, time.monotonic()  # kernels are selected meanwhile
            x, previous = images, IMAGE
            for instance in chain:
                rows = rows_of(x)
                x = serve(instance, rows, (1.0, previous, batch), instances.device.memory_format)
                previous = 1.0
            x.argmax(dim=1).tolist()
            count += batch
        if changes.get("graphs") and not all(isinstance(each, GraphedInstance) and each.captured for each in chain):
            raise RuntimeError("a pass could not be captured")
    return count / (time.monotonic() - from_s)


def cluster_of(stand: Stand, file: ModelFile, count: int, **changes: object) -> HardwareCluster:
    """Return `count` servers of the stand's device, each with every segment at full width, and a scenario's cores."""
    model, spec = stand.model, stand.model.spec
    sizes = {(s, w): model.instance_bytes(s, w) for s in range(1, spec.segments + 1) for w in spec.widths}
    preload = tuple((segment, 1.0) for segment in range(1, spec.segments + 1))
    padded = SIZES if stand.is_gpu else ()
    params = GreedyParams(
        spec.widths, sizes, 0, SIZES[-1], 1 << 32, idle_unload_ns=None, preload=preload, padded_sizes=padded
    )
    device = replace(stand.device, warm_sizes=padded, **changes)  # type: ignore[arg-type]
    servers = [HardwareServer(f"server{number}", device, params, 0.0, 0.0) for number in range(count)]
    supervision = Supervision(stuck_ns=STUCK_S * NS_PER_S)
    servers = on_own_cores(servers, usable_cores())
    return HardwareCluster(file, servers, warm_batches=() if stand.is_gpu else SIZES, supervision=supervision)


def served(
    cluster: HardwareCluster,
    load: EvenLoad,
    labels: NDArray[np.int64],
    images: NDArray[np.float32],
    micro_batches: int = GPU_MICRO_BATCHES,
) -> RunRecord:
    """Serve a load at full width on any server, to its end; `correct` is agreement with these labels.

    Args:
        micro_batches: outstanding micro-batches at a server of a GPU.
    """
    shapes, count = cluster.served, round(load.rate_img_s * load.seconds)
    arrivals_ns = (np.arange(1, count + 1) * NS_PER_S / load.rate_img_s).astype(np.int64)
    if load.breaks:  # only these requests, not periodically
        images, labels = (np.resize(each, (count, *each.shape[1:])) for each in (images, labels))
        images[list(load.breaks)] = BREAKS
    run = HardwareRun(arrivals_ns, images, labels, int(arrivals_ns[-1]) + 1, faults=load.faults)
    name = f"fixed:{','.join(['1.0'] * shapes.segments)}@random"
    of = {"segments": shapes.segments, "widths": shapes.widths, "seed": SEED}
    config, routed = routing(name, len(cluster.servers), **of)  # type: ignore[arg-type]
    is_gpu = cluster.servers[0].device.physical[0] == "cuda"
    return cluster.run(run, replace(config, outstanding_micro_batches=micro_batches) if is_gpu else config, routed)


def _images(stand: Stand) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return images with the CPU's labels."""
    images = stand.activations(1, IMAGE, IMAGES)
    with torch.inference_mode():
        labels = stand.model(images, (1.0,) * stand.model.spec.segments).argmax(dim=1)
    return labels.numpy(), images.numpy()


def _told(record: RunRecord) -> dict[str, Any]:
    done = [request for request in record.requests if request.status == "completed"]
    lasted_s = (max(each.finished_ns for each in done) - min(each.arrived_ns for each in done)) / NS_PER_S
    hops = sum(len(request.widths) for request in record.requests)
    stages_ns = zip(*[request.stages_ns for request in record.requests], strict=True)
    return {
        "arrived": len(record.requests),
        "completed": len(done),
        "img_s": len(done) / lasted_s,
        "mean_batch": float(np.mean([batch.size for batch in record.batches])),
        "router_us_block": record.router_busy_ns / max(1, len(record.micro_batches)) / 1e3,
        "labels_as_the_cpu": float(np.mean([request.correct for request in done])),
        "moves_an_image": float(np.mean([request.moved for request in done])),
        **{f"{stage}_us_hop": sum(times) / hops / 1e3 for stage, times in zip(STAGES, stages_ns, strict=True)},
    }


def beyond_us_hop(facts: Mapping[str, Any], pass_us: float) -> float:
    """Return the time of a micro-batch's hop beyond its pass, without the waits of a backlog. A share of a bare loop
    would depend on the host of the loop.

    Args:
        facts: output of `_told`.
        pass_us: time of a pass in the bare loop.
    """
    return sum(float(facts[f"{stage}_us_hop"]) for stage in ACTIVE_STAGES) - pass_us


def saturated(stand: Stand) -> str:
    """Measure one server with a backlog against a bare loop, eager and (on a GPU) with captured passes, as shipped.

    The goal is `GOAL_US_HOP` at two micro-batches outstanding: with more, each also waits for the others' passes.
    """
    labels, images = _images(stand)
    wrong = []
    for mode in ("graphs", "eager") if stand.is_gpu else ("eager",):
        changes = {"graphs": mode == "graphs"}
        stand.tell({f"bare_{mode}_32_img_s": (bare := bare_img_s(stand, 32, **changes))})
        load, pass_us = EvenLoad(1.5 * bare, LOAD_S), 1e6 * 32 / bare / stand.model.spec.segments
        with cluster_of(stand, stand.file, 1, **changes) as cluster:
            for micro_batches in (GPU_MICRO_BATCHES, 2) if mode == "graphs" else (GPU_MICRO_BATCHES,):
                facts = _told(served(cluster, load, labels, images, micro_batches))
                name = mode if micro_batches == GPU_MICRO_BATCHES else f"{mode}_{micro_batches}_micro_batches"
                stand.tell({f"{name}_{key}": value for key, value in _with_beyond(facts, pass_us).items()})
                wrong += [f"{name}: {problem}" for problem in _wrong(facts)]
    return "; ".join(wrong)


def _with_beyond(facts: Mapping[str, Any], pass_us: float) -> dict[str, Any]:
    return {**facts, "beyond_us_hop": beyond_us_hop(facts, pass_us)}


def _wrong(facts: Mapping[str, Any]) -> list[str]:
    lost = ["some were lost"] if facts["completed"] < facts["arrived"] else []
    return lost + (["other labels"] if facts["labels_as_the_cpu"] < AGREE else [])


def two_servers(stand: Stand) -> str:
    """Measure two servers of one device with free routing of micro-batches: half of all activations move."""
    labels, images = _images(stand)
    changes = {"graphs": stand.is_gpu}  # the default
    bare = bare_img_s(stand, 32, **changes)
    with cluster_of(stand, stand.file, 2, **changes) as cluster:
        facts = _told(served(cluster, EvenLoad(bare, LOAD_S), labels, images))
    stand.tell({"bare_32_img_s": bare, **_with_beyond(facts, 1e6 * 32 / bare / stand.model.spec.segments)})
    return "; ".join(_wrong(facts))


def broken_workers(stand: Stand) -> str:
    """Check failures on two servers (killed, stopped, broken by an image): all are reported, and servers restart."""
    labels, images = _images(stand)
    network = Network("benchmarks.gpu.asserting:AssertingNet", {"name": NETWORKS[stand.kind]})
    model = AssertingNet(NETWORKS[stand.kind])
    model.load_state_dict(stand.model.state_dict())
    path = Path(stand.file.path).with_name("asserting.safetensors")
    save_model(path, model, network.label, {})
    faults = (Crash(0, 1 * NS_PER_S), Hang(1, 3 * NS_PER_S))
    load = EvenLoad(BREAK_IMG_S, 35.0, faults, breaks=(round(15.0 * BREAK_IMG_S),))
    with cluster_of(stand, ModelFile(path, network), 2) as cluster:
        record = served(cluster, load, labels, images)
    status = [request.status for request in record.requests]
    reasons = sorted({request.reason for request in record.requests if request.status == "failed"})
    stand.tell({**_told(record), "failed": status.count("failed"), "reasons": ", ".join(reasons)})
    downtimes = [
        [downtime.server, downtime.reason, downtime.down_ns / NS_PER_S, downtime.up_ns and downtime.up_ns / NS_PER_S]
        for downtime in record.downtimes
    ]
    stand.tell({"downtimes_s": json.dumps(downtimes)})
    wrong = [] if len(status) == status.count("completed") + status.count("failed") else ["some have no end"]
    at_once = stand.model.spec.segments * SIZES[-1] if stand.is_gpu else 1  # a broken context ends all work on it
    wrong += [] if 1 <= status.count("failed") <= at_once else ["more failed than break anything, or none"]
    wrong += [] if len(record.downtimes) >= len(faults) + (1 if stand.is_gpu else 0) else ["a fault was not seen"]
    wrong += [] if all(downtime.up_ns is not None for downtime in record.downtimes) else ["a server did not come back"]
    return "; ".join(wrong)


def points(stand: Stand, batches: Sequence[int]) -> list[Point]:
    """Return points of the last segment but one at full width."""
    return [Point(stand.model.spec.segments - 1, 1.0, 1.0, batch) for batch in batches]
