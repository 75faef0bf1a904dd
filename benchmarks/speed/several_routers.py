"""What several routers cost and gain on real processes: CPU time for a block, latencies, beside simulation.

    python -m benchmarks.speed.several_routers --servers 64 --routers 1 4 --slowdown 300 --load 0.4 --seconds 40

Emulated servers of seven kinds, slowed down so that this machine carries all of them; the router is `jsq`. Runs of
each number of routers are made one after the other, each on executors of its own. `--ray HOST,HOST ...` puts servers on
hosts of the Ray cluster that runs here, in turns. `--simulated` makes each run in simulation, too. The routers' CPU
time is that of their loops. Reports of sensors, some 10 a second of each server, are part of it: where blocks are few
they are most of it. One router does without a front end.
"""

from __future__ import annotations

import argparse
import time  # noqa: TID251 - it measures
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from unittest.mock import patch

from benchmarks.speed.harness import machine
from hw.router.front_end import Fates, FrontEnd
from kit import strict
from scenarios.executors.run import RealRun, RunObserver
from scenarios.executors.validating import real_side
from scenarios.files.spec import Scenario
from scenarios.metrics.result import Result
from scenarios.runs.simulate import simulate_metrics
from scenarios.world.materials import default_folder, make_world
from scenarios.world.world import World

KINDS = ("rtx-2080-ti", "gtx-980-ti", "t4", "v100", "a10", "l4", "rtx-3090")
ACCURACY = Path("scenarios/data/models/slimresnet18-paper.accuracy.json").resolve()
ROUTER, SEED = "jsq", 0


def main() -> None:
    """Measure, and print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=64)
    parser.add_argument("--routers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--slowdown", type=float, default=300.0)
    parser.add_argument("--load", type=float, default=0.4)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--ray", nargs="*", default=[])
    parser.add_argument("--simulated", action="store_true")
    wanted = parser.parse_args()
    print(machine())
    for count in wanted.routers:
        scenario = scenario_of(wanted, count)
        world = make_world(scenario, default_folder(scenario))
        if wanted.simulated:
            told("simulated", count, simulate_metrics(world, world.router(ROUTER), ROUTER, SEED))
        real_run(world, count)


def scenario_of(wanted: argparse.Namespace, routers: int) -> Scenario:
    """Servers of all kinds in turns, on hosts in turns where some are given."""
    hosts: Sequence[str] = wanted.ray
    servers = [
        {
            "name": f"gpu{number:02d}",
            "device": {"emulated": kind, "slowdown": wanted.slowdown},
            "link": "10gbe",
            **({"host": hosts[number % len(hosts)]} if hosts else {}),
        }
        for number, kind in enumerate(islice(cycle(KINDS), wanted.servers))
    ]
    return strict.validate(
        Scenario,
        {
            "schema": "slimsched.scenario/1",
            "name": f"several-{wanted.servers}-{routers}",
            "model": {"accuracy": str(ACCURACY)},
            "cluster": {
                "servers": servers,
                "greedy": {"preload": "all", "idle_unload_s": None},
                **({"backend": "ray"} if hosts else {}),
            },
            "router": {"outstanding_blocks": 4},
            "routers": {"count": routers},
            "workload": {"kind": "poisson", "load": wanted.load},
            "supervision": {"hang_s": 20},
            "duration_s": wanted.seconds,
            "warmup_s": wanted.seconds / 5,
        },
        "several_routers",
    )


class _MeteredFrontEnd(FrontEnd):
    """Keeps what its process takes during runs."""

    cpu_s = 0.0

    def carry_out(self) -> Fates:
        """See `FrontEnd`."""
        began_s = time.process_time()
        fates = super().carry_out()
        _MeteredFrontEnd.cpu_s = time.process_time() - began_s
        return fates


def real_run(world: World, count: int) -> None:
    """One run on executors."""
    scenario = world.scenario
    run = RealRun(ROUTER, world.router(ROUTER), SEED, scenario.duration_s, scenario.warmup_s, keep_log=False)
    observer = RunObserver(say=print)
    metered = patch("scenarios.executors.several.FrontEnd", _MeteredFrontEnd)
    with metered, real_side(world, None, None, observer) as side:
        result, record = side(world, run, observer)
    told("executors", count, result)
    blocks, busy_ns, ended_s = len(record.blocks), record.router_busy_ns, record.ended_ns / 1e9
    print(
        f"  {blocks} blocks, {blocks / ended_s:.0f} a second; "
        f"CPU of routers {busy_ns / 1e7 / ended_s:.1f} % of a core, {busy_ns / 1e3 / blocks:.1f} us a block; "
        f"of the front end {100 * _MeteredFrontEnd.cpu_s / ended_s:.1f} %; "
        f"servers that served: {len({batch.server for batch in record.batches})}",
        flush=True,
    )


def told(where: str, count: int, result: Result) -> None:
    """Its latencies."""
    latency = result["latency_s"]
    mean_s, p99_s = latency["mean"], latency["p99"]
    assert mean_s is not None and p99_s is not None, "something was served"  # noqa: PT018
    print(f"{where}, R = {count}: mean {1e3 * mean_s:.0f} ms, p99 {1e3 * p99_s:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
