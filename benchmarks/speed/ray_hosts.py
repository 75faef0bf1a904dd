"""What it costs that agents are on hosts of a Ray cluster, beside agents of one host: a moved block, and throughput.

    python -m benchmarks.speed.ray_hosts
    python -m benchmarks.speed.ray_hosts --rounds 5 --seconds 6 --json hosts.json

Two servers of `slimresnet-tiny` on one machine, which is both hosts: so what differs is the port alone, and no wire.
Both kinds serve in turns. A block of 16 images moves after segment 1 with 1 MiB of activations, at light load: its way
is from the router's command until its server has it. Then both are saturated, with sticky and with random routing;
ratios are taken within a round. Intervals (95 %) are over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.hollow import EvenCosts
from benchmarks.speed.peers.forwards import BATCH_LIMIT, MODEL, images
from benchmarks.speed.tables import show
from benchmarks.speed.tiny import with_interval
from hw.device import DeviceSpec
from hw.networks.registry import ModelFile
from hw.ray.agents import RayHosts
from hw.ray.cluster import RayCluster, joined
from hw.router.agents import Carrier
from hw.router.cluster import HardwareCluster
from hw.router.loop import Routing
from hw.router.run_spec import HardwareRun
from hw.router.server import HardwareServer
from hw.telemetry import usable_cores
from kit.chance import stream
from policies.greedy import GreedyKnobs
from policies.interfaces import RouterConfig
from policies.names import make_router
from policies.records import RunRecord
from policies.reward import AccuracyPrior, RewardWeights
from policies.rules.context import RouterContext
from policies.vocabulary import NS_PER_S
from scenarios.metrics.statistics import estimate
from tests.ray_nodes import ray_nodes

HOSTS: Final = ("alpha", "beta")
EACH_S: Final = 0.06  # between two blocks at light load
WARM_UP: Final = 0.2
OVERLOAD_PER_S: Final = 6000.0


@contextlib.contextmanager
def cluster(carrier: Carrier | None) -> Iterator[HardwareCluster]:
    """Two servers, each with everything loaded."""
    file = ModelFile(MODEL)
    model, _ = file.load()
    spec, cores = model.spec, usable_cores()
    sizes = {(s, w): model.instance_bytes(s, w) for s in range(1, spec.segments + 1) for w in spec.widths}
    preload = tuple((segment, spec.widths[-1]) for segment in range(1, spec.segments + 1))
    knobs = GreedyKnobs(spec.widths, sizes, 0, BATCH_LIMIT, 1 << 30, idle_unload_ns=None, preload=preload)
    servers = [
        HardwareServer(host, DeviceSpec(cores=(cores[place % len(cores)],)), knobs, 0.0, 0.0)
        for place, host in enumerate(HOSTS)
    ]
    with HardwareCluster(file, servers, warm_batches=range(1, BATCH_LIMIT + 1), carrier=carrier) as opened:
        yield opened


def run(opened: HardwareCluster, router: str, arrivals_ns: NDArray[np.int64]) -> RunRecord:
    """Until all are served; at full width."""
    served = opened.served
    pictures = images(served.input_shape)
    wanted = HardwareRun(arrivals_ns, pictures, np.zeros(len(pictures), np.int64), int(arrivals_ns[-1]) + 1)
    holds = tuple(((True,) * len(served.widths),) * served.segments for _ in HOSTS)
    config = RouterConfig(served.segments, served.widths, holds, groups=(1, 2, 4, 8, BATCH_LIMIT))
    full = (served.widths[-1],) * served.segments
    prior = AccuracyPrior({full: 0.5})
    name = f"fixed:{','.join(map(str, full))}@{router}"
    policy = make_router(name, RouterContext(config, EvenCosts(), prior, (100.0,) * len(HOSTS)))
    return opened.run(wanted, config, Routing(policy, stream(0, f"router:{name}"), RewardWeights(), prior))


def moved_us(opened: HardwareCluster, seconds: float) -> NDArray[np.float64]:
    """Of each block of 16 that changed its server for segment 2: from its command until its server has it."""
    times_s = np.repeat(np.arange(1, round(seconds / EACH_S)) * EACH_S, BATCH_LIMIT)
    record = run(opened, "round-robin", (times_s * NS_PER_S).astype(np.int64))
    return np.array([
        (block.arrived_ns - block.sent_ns) / 1e3
        for block in record.blocks
        if block.head.segment == 2 and block.size == BATCH_LIMIT and block.head.location != block.server
        and block.snapshot_ns >= WARM_UP * seconds * NS_PER_S
    ])  # fmt: skip


def images_per_s(opened: HardwareCluster, router: str, seconds: float) -> float:
    """Of a backlog, until it is worked off."""
    count = round(OVERLOAD_PER_S * seconds)
    record = run(opened, router, (np.arange(1, count + 1) * NS_PER_S / OVERLOAD_PER_S).astype(np.int64))
    assert all(request.status == "completed" for request in record.requests), "some failed"
    lasted_ns = max(each.finished_ns for each in record.requests) - min(each.arrived_ns for each in record.requests)
    return count * NS_PER_S / lasted_ns


def measure(found_in: RayCluster, rounds: int, seconds: float) -> dict[str, Any]:
    """Both kinds in turns."""
    found: dict[str, dict[str, list[float]]] = {"one host": {}, "Ray": {}}
    for _ in range(rounds):
        for kind, of_kind in found.items():
            carrier = RayHosts(found_in, HOSTS, MODEL) if kind == "Ray" else None
            with cluster(carrier) as opened:
                way = moved_us(opened, seconds)
                values = {
                    "moved p50, us": float(np.percentile(way, 50)),
                    "moved p90, us": float(np.percentile(way, 90)),
                }
                for router in ("sticky", "random"):
                    values[f"{router}, images/s"] = images_per_s(opened, router, seconds / 2)
            for name, value in values.items():
                of_kind.setdefault(name, []).append(value)
    rows = []
    for name, local in found["one host"].items():
        far = found["Ray"][name]
        ratio = [b / a for a, b in zip(local, far, strict=True)]
        rows.append((
            name, with_interval(estimate(local)), with_interval(estimate(far)), with_interval(estimate(ratio), 2),
            with_interval(estimate([b - a for a, b in zip(local, far, strict=True)])),
        ))  # fmt: skip
    show(f"Two servers, {rounds} rounds in turns", ("", "one host", "Ray", "Ray / one host", "difference"), rows)
    return found


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with ray_nodes(HOSTS) as nodes, joined(nodes.address, "bench", "") as found_in:
        found = measure(found_in, asked.rounds, asked.seconds)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
