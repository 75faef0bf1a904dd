"""What the executors cost this host: its router's process and the ways to servers, for the datasheet profiles.

    python -m benchmarks.speed.router_host --runs 5 --out scenarios/data/host.yaml    # then: make profiles

Three emulated servers play `scenarios/paper-live.yaml` five times as slow as the GPUs: only the router computes. Each
run has two parts, both with the router `random`. Steady arrivals, few at a time, show the ways: no two micro-batches
meet there. Bursts, in blocks of 1 to 128, show what an image costs. What the router's process costs is fitted to all
runs together, as the stage `serving` does it (`scenarios.executors.serving_costs`); the ways are those of the run whose
mean is the median.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.speed.harness import machine
from calibrate.datasheet import MeasuredHost
from hw.router.local_cluster import HardwareCluster
from kit.documents import write_text
from policies.run_records import RunRecord
from scenarios.executors.executor_runs import RealRun, real_cluster, run_on_hardware
from scenarios.executors.serving_costs import costs_of
from scenarios.executors.serving_measurement import ROUTER
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import default_folder, make_experiment
from scenarios.files.scenario_keys import GammaWorkload, PoissonWorkload, Scenario
from scenarios.files.scenario_reading import load_scenario
from sim.device_profile import HandoverTimes, RouterHost

SCENARIO = Path("scenarios/paper-live.yaml")
SLOWDOWN = 5.0
LARGEST = 128  # images of a micro-batch, and of a batch
MICRO_BATCH_SIZES = (1, 2, 8, 32, LARGEST)
STEADY_IMG_S, BURSTS_IMG_S = 100.0, 900.0
CV = 8.0  # of the bursts
PART_S, WARMUP_S = 8.0, 1.0


@dataclass(frozen=True)
class HostRun:
    """Result of one run."""

    records: tuple[RunRecord, RunRecord]
    host: RouterHost
    handovers: tuple[HandoverTimes, ...]
    busy: float

    @property
    def handover(self) -> HandoverTimes:
        """The handover times of the median server."""
        return _middle(self.handovers)

    def __str__(self) -> str:
        host = self.host
        return (
            f"decision {_cost(host.decision.micro_batch_s, host.decision.image_s)}, "
            f"returned {_cost(host.returned.micro_batch_s, host.returned.image_s)}, sent after {host.sent_share:.2f}, "
            f"received after {host.received_share:.2f}; "
            f"there {1e6 * self.handover.there_s:.0f} us, back {1e6 * self.handover.back_s:.0f} us; "
            f"the router was busy for {100 * self.busy:.0f} % of the time in bursts"
        )


def main() -> None:
    """Measure, print every run, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    experiment = make_experiment(slowed(load_scenario(SCENARIO)), default_folder(load_scenario(SCENARIO)))
    runs = []
    for number in range(options.runs):
        runs.append(measured_run(experiment, number))
        print(f"run {number}: {runs[-1]}", flush=True)
    host = together(
        experiment, runs, f"python -m benchmarks.speed.router_host --runs {options.runs} --out {options.out}"
    )
    write_text(options.out, host.to_yaml())
    print(f"{host.spread}\nwritten: {options.out}")


def slowed(scenario: Scenario) -> Scenario:
    """Return the scenario with this bench's slowdown and micro-batches."""
    cluster, router = scenario.cluster, scenario.router
    devices = [(server, server.device) for server in cluster.named_servers]
    servers = tuple(
        server.model_copy(update={"device": device and device.model_copy(update={"slowdown": SLOWDOWN})})
        for server, device in devices
    )
    greedy = cluster.greedy.model_copy(update={"batch_limit": LARGEST})
    return scenario.model_copy(
        update={
            "cluster": cluster.model_copy(update={"servers": servers, "greedy": greedy}),
            "router": router.model_copy(update={"micro_batch_sizes": MICRO_BATCH_SIZES}),
        }
    )


def measured_run(experiment: Experiment, seed: int) -> HostRun:
    """Run both parts on fresh executors."""
    steady = PoissonWorkload(kind="poisson", rate_img_s=STEADY_IMG_S)
    bursts = GammaWorkload(kind="gamma", rate_img_s=BURSTS_IMG_S, cv=CV)
    parts = [
        replace(experiment, scenario=experiment.scenario.model_copy(update={"workload": each}))
        for each in (steady, bursts)
    ]
    with real_cluster(experiment, None) as cluster:
        light, busy = (_record(part, cluster, seed) for part in parts)
    owners = [server.device for server in experiment.cluster.servers]
    costs = costs_of([light, busy], experiment.cluster.devices, owners)
    handovers = tuple(device.handover for device in costs.devices if device.handover is not None)
    assert costs.router_host is not None, "it decided"
    return HostRun((light, busy), costs.router_host, handovers, use_of_router(busy))


def _record(experiment: Experiment, cluster: HardwareCluster, seed: int) -> RunRecord:
    plan = RealRun(
        ROUTER,
        experiment.router(ROUTER),
        seed,
        PART_S,
        WARMUP_S,
        emulate_links=False,
        keep_log=False,
        measures_costs=True,
    )
    return run_on_hardware(experiment, cluster, None, plan)[1]


def use_of_router(record: RunRecord) -> float:
    """Return the share of the time for which the router's process was busy."""
    return record.router_busy_ns / record.ended_ns


def together(experiment: Experiment, runs: Sequence[HostRun], command: str) -> MeasuredHost:
    """Combine all runs into a host, with their spread."""
    owners = [server.device for server in experiment.cluster.servers]
    pooled = costs_of(
        [record for run in runs for record in run.records], experiment.cluster.devices, owners
    ).router_host
    assert pooled is not None, "every run has one"
    when = datetime.now(UTC).date().isoformat()
    return MeasuredHost(
        schema="slimsched.host/1",
        measured=f"{machine()}, {when}, by `{command}`",
        spread=spread_of(runs),
        router_host=pooled,
        handover=_middle([run.handover for run in runs]),
    )


def spread_of(runs: Sequence[HostRun]) -> str:
    """Describe the smallest and largest values of single runs, in microseconds."""
    columns: list[tuple[str, Callable[[HostRun], float]]] = [
        ("a decision", lambda run: 1e6 * run.host.decision.micro_batch_s),
        ("an image of it", lambda run: 1e6 * run.host.decision.image_s),
        ("a message back", lambda run: 1e6 * run.host.returned.micro_batch_s),
        ("an image of it", lambda run: 1e6 * run.host.returned.image_s),
        ("there", lambda run: 1e6 * run.handover.there_s),
        ("back", lambda run: 1e6 * run.handover.back_s),
    ]
    parts = [f"{name} {min(map(of, runs)):.3g} to {max(map(of, runs)):.3g}" for name, of in columns]
    return f"{len(runs)} runs, us: " + ", ".join(parts)


def _middle(handovers: Sequence[HandoverTimes]) -> HandoverTimes:
    return sorted(handovers, key=lambda each: each.there_s + each.back_s)[(len(handovers) - 1) // 2]


def _cost(micro_batch_s: float, image_s: float) -> str:
    return f"{1e6 * micro_batch_s:.0f} + {1e6 * image_s:.1f} us an image"


if __name__ == "__main__":
    main()
