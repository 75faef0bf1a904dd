"""What tests run as programs of one host of a cluster: links measured, or a run of tiny networks. They print JSON.

python -m tests.hw.on_hosts links ADDRESS
python -m tests.hw.on_hosts run ADDRESS MODEL SECONDS HOST ...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from hw.router.local_cluster import HardwareCluster
from hw.router.ray_cluster import joined
from hw.router.ray_workers import RayHosts
from hw.router.router_loop import Routing, RunProgress
from hw.router.server_port import HardwareServer
from policies.faults import Supervision
from policies.interfaces import AccuracyPrior, RewardWeights
from policies.replay import replay_run
from policies.vocabulary import NS_PER_S
from scenarios.executors.device_choice import Hosts
from scenarios.executors.preflight import measure_links
from tests.hw.tiny import Wanderer, params, router, tiny_model, true_run

WIDTHS = (1.0, 0.5, 1.0)
PRIOR = AccuracyPrior({(1.0,) * 3: 0.9})
RULES = Supervision(hang_ns=2 * NS_PER_S, backoff_ns=NS_PER_S // 10, backoff_limit_ns=NS_PER_S)
RATE_PER_S = 40.0


def links(address: str) -> None:
    with joined(address, "cluster", "address", beyond_loopback=True) as cluster:
        hosts = Hosts(cluster, "scenario")
        print(json.dumps(msgspec.to_builtins(measure_links(hosts, hosts.names()))))


def run(address: str, model: Path, seconds: float, names: Sequence[str]) -> None:
    """One server on each host. Each move is to another host. A line `begun` comes first."""
    servers = [
        HardwareServer(host, DeviceSpec(channels_last=False), params(), 1.0, 2.0, sensor_period_s=0.05)
        for host in names
    ]
    routing = Routing(Wanderer(WIDTHS), np.random.default_rng(1), RewardWeights(), PRIOR)
    told: list[str] = []

    def begin(_: RunProgress) -> None:
        if not told:
            told.append("begun")
            print(told[0], flush=True)

    with (
        joined(address, "cluster", "address", beyond_loopback=True) as joined_cluster,
        HardwareCluster(
            ModelFile(model),
            servers,
            warm_batches=(1, 4),
            supervision=RULES,
            carrier=RayHosts(joined_cluster, names, model),
        ) as cluster,
    ):
        record = cluster.run(true_run(tiny_model(), WIDTHS, seconds, RATE_PER_S), router(len(names)), routing, begin)
    served = record.requests
    print(
        json.dumps(
            {
                "asked": int(RATE_PER_S * seconds),
                "requests": len({request.request for request in served}),
                "answers": len(served),
                "completed": sum(request.status == "completed" and bool(request.correct) for request in served),
                "differences": replay_run(record.log, record.worker_logs, router(len(names)), [params()] * len(names)),
                "downtimes": [
                    {"server": down.server, "reason": down.reason, "down_ns": down.down_ns, "up_ns": down.up_ns}
                    for down in record.downtimes
                ],
                "batches": [[batch.server, batch.started_ns] for batch in record.batches],
            },
            default=str,
        )
    )


if __name__ == "__main__":
    if sys.argv[1] == "links":
        links(sys.argv[2])
    else:
        run(sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
