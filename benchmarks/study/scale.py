"""From ten servers to a thousand: the built-in router untuned, tuned rules and the fluid bound (docs/scale.md).

    python -m benchmarks scale                            # every size, a crowd and a night; docs/data/scale.csv
    python -m benchmarks scale --size 100 --only crowd    # one

Rules are tuned as `slimsched train` does it, for the load and the size, up to a size at which that takes minutes. Every
size has the same mix of servers in racks, a load that is the same share of the capacity, and faults at the same rate a
server. `decision_us` is the cost of a decision of Compass in compiled code, on observations in the middle of a run.
Other rules have no state, so a compiler would skip repeated calls without effect.
"""

from __future__ import annotations

import time  # noqa: TID251 - it measures
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
import pandas as pd

from benchmarks.grid import GridRow, Row, code_state
from kit.documents import inputs_hash
from kit.random_streams import stream
from policies.compiled.plan_layout import Draws, ObservationRecord, Plan, blank_observation
from policies.compiled.rule_kernels import choose
from policies.interfaces import RoutingPolicy, batching_delay_rule_of
from policies.router_kinds import COMPASS
from policies.router_plans import plan_of
from policies.rules.rule_params import RuleSpec
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import make_experiment
from scenarios.files.bundled_files import made_kind
from scenarios.files.scenario_reading import load_scenario
from scenarios.learn.tune import params_of, tune_experiment
from scenarios.metrics.statistics import estimate
from scenarios.runs.fluid_bound import FluidModel
from scenarios.runs.simulated_runs import simulate_metrics
from sim.compiled.cluster_rows import program_of
from sim.compiled.compiled_run import NO_ANSWER, RouterAnswer, RunRow, go_on
from sim.compiled.event_loop import write_observation
from sim.compiled.row_layout import ASKED, ENDED, Cluster, Parameters

SIZES: Final = (10, 30, 100, 300, 1000)
LOADS: Final = ("crowd", "night")
SAMPLES: Final = 64
ALL: Final = ", all seen"  # suffix of the name of a router that considers every server
ROUTERS: Final = ("compass", f"compass{ALL}", "tuned:compass", "tuned:ladder", "tuned:fixed", "sticky")
TUNED_UP_TO: Final = 100  # servers; larger clusters use the rules of this size
SERVER_GAP_S: Final = 1000.0  # mean time between a server's faults
RACK: Final = 10  # servers
TIMED: Final = 40  # decisions
ASKED_AGAIN: Final = 500  # times, of each of them
FIGURES: Final = {
    "mean_s": ("latency_s", "mean"),
    "p99_s": ("latency_s", "p99"),
    "accuracy": ("expected_accuracy",),
    "energy_j": ("energy_per_image_j", "total"),
}


def points(
    folder: Path, loads: Sequence[str], sizes: Sequence[int], routers: Sequence[str], seeds: int
) -> list[GridRow]:
    """Return a row a load, a size and router."""
    code = code_state()
    return [
        GridRow(
            {"scenario": f"scale-{load}", "servers": size, "router": router},
            inputs_hash(folder / f"{load}.yaml", code, seeds),
            folder / f"{load}.yaml",
        )
        for load in loads
        for size in sizes
        for router in routers
    ]


@lru_cache(maxsize=4)
def experiment_of(path: Path, servers: int, samples: int | None) -> Experiment:
    """Return the scenario at a size."""
    changes: dict[str, Any] = {"cluster.racks.0.count": servers // RACK, "router.samples": samples}
    changes["faults.0.mean_gap_s"] = SERVER_GAP_S / servers
    return make_experiment(load_scenario(path, changes=changes), Path("runs/scale"))


def measure(seeds: int, point: GridRow) -> Row:
    """Return means over `seeds` of the scenario's seeds, the fluid bound, and the cost of tuning and of a decision."""
    name, servers = point.key["router"].removesuffix(ALL), point.key["servers"]
    experiment = experiment_of(point.source, servers, None if point.key["router"].endswith(ALL) else SAMPLES)
    row: Row = {"tuned_at": None, "tuning_cpu_s": None}
    if (kind := made_kind(name)) is not None:
        row["tuned_at"] = min(servers, TUNED_UP_TO)
        _, row["tuning_cpu_s"] = tuned(point.source, row["tuned_at"], kind)
    begun_s, decided = time.process_time(), 0
    results = []
    for seed in experiment.scenario.compare.seeds[:seeds]:
        router = router_of(experiment, name, point.source, servers)
        results.append(simulate_metrics(experiment, router, name, seed, engine="compiled", detail=False))
        decided += results[-1]["decisions"]
    row |= {"cpu_s": time.process_time() - begun_s, "decisions": decided}
    for figure, path in FIGURES.items():
        mean = estimate([_at(result, path) for result in results])
        row[figure], row[f"{figure}_ci95"] = mean["mean"], mean["ci95"]
    bound = FluidModel(experiment).bound(experiment.scenario.slo.floor or 0.0, experiment.mean_rate_img_s)
    row |= {"bound_mean_s": bound.latency_mean_s, "bound_energy_j": bound.energy_per_image_j}
    row["bound_img_s"], row["rate_img_s"] = bound.capacity_img_s, experiment.mean_rate_img_s
    return row | {"decision_us": decision_us(experiment, name) if name == COMPASS else None}


@lru_cache
def tuned(path: Path, servers: int, kind: str) -> tuple[RuleSpec, float]:
    """Return a rule tuned for a load and a size, as by `slimsched train`, and the CPU time of tuning."""
    experiment, begun_s = experiment_of(path, servers, SAMPLES), time.process_time()
    return tune_experiment(experiment, kind, params_of(experiment)).spec, time.process_time() - begun_s


def router_of(experiment: Experiment, name: str, path: Path, servers: int) -> RoutingPolicy:
    """Return a fresh router."""
    kind = made_kind(name)
    if kind is None:
        return experiment.router(name)
    return tuned(path, min(servers, TUNED_UP_TO), kind)[0].make(experiment.context)


def _at(result: Any, path: Sequence[str]) -> float:
    for key in path:
        result = result[key]
    return float(result)


def _ask_again(row: Any, parameters: Any, plan_row: Any, observation_row: Any, times: int) -> int:
    c, p = Cluster(row), Parameters(parameters)
    plan, observation = Plan(plan_row), ObservationRecord(observation_row)
    total = 0
    for _ in range(times):
        plan.draw = 0
        write_observation(c, p, plan, observation)
        choose(plan, observation)
        total += plan.server
    return total


_asked_again: Any = numba.njit(nogil=True, error_model="numpy")(_ask_again)  # as in benchmarks.speed.driving


def decision_us(experiment: Experiment, name: str) -> float:
    """Return the CPU time of one decision, including observation: the median over decisions in the middle of a run."""
    run = RunRow(
        program_of(experiment.cluster),
        experiment.run_spec(0, duration_s=experiment.scenario.duration_s / 2),
        keeps=False,
    )
    router = experiment.router(name)
    planned, costs_us = plan_of(router, experiment.cluster.router), list[float]()
    assert planned is not None, f"{name} has no compiled form here"
    observation, rule = blank_observation(run.program.servers), batching_delay_rule_of(router)
    if rule is not None:
        run.set_batching_delay_rule(rule)
    plan, outside = planned.row, np.zeros(Plan.size, np.int64)
    Draws(plan, stream(0, "router")).draw()
    answer = NO_ANSWER
    while len(costs_us) < TIMED:
        status = go_on(run, answer, outside, observation)
        answer = NO_ANSWER
        if status == ENDED:
            break
        if status != ASKED:
            run.grow(status)
            continue
        is_late = run.cluster.now_ns > run.cluster.horizon_ns // 3
        again = ASKED_AGAIN if is_late and run.cluster.decision % 7 == 0 else 1
        begun_s = time.process_time()
        _asked_again(run.row, run.shape.parameters, plan, observation, again)
        if again > 1:
            costs_us.append((time.process_time() - begun_s) / again * 1e6)
        answer = RouterAnswer(Plan(plan).server, Plan(plan).width, Plan(plan).micro_batch_size)
    return float(np.median(costs_us))


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a row a load, size and router, with the bound as a share of its mean latency and of its joules."""
    frame = pd.DataFrame(rows).drop(columns="inputs", errors="ignore")
    frame["bound_share_of_mean"] = frame.bound_mean_s / frame.mean_s
    frame["bound_share_of_energy"] = frame.bound_energy_j / frame.energy_j
    return frame
