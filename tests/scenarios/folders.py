"""Run folders for tests: small simulated runs, stored the way a real run stores them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

from hw.networks.network_files import ModelFile
from kit.documents import write_json, write_text
from policies.run_records import RunRecord
from policies.vocabulary import Provenance
from scenarios.metrics.failure_signs import diagnosed
from scenarios.metrics.fidelity import PREDICTED, Place, ValidationRun, validate_results
from scenarios.metrics.router_comparison import compare_results
from scenarios.metrics.run_result import Result, RunLabel, Window, summarise
from scenarios.metrics.statistics import Ranges, range_of
from scenarios.runs.folder import OWN, RunFolder, environment
from scenarios.runs.run_store import write_run
from scenarios.show import charts
from sim.simulated_cluster import Simulation
from tests import tiny

HORIZON_S = 2.0
WARMUP_S = 0.2


@cache
def _cluster() -> Any:
    return tiny.cluster()


def simulated(
    router: str, seed: int, micro_batch_size: int = 32, *, rate: float = 300, keep_log: bool = False
) -> tuple[Result, RunRecord]:
    """A short run of the toy cluster; `micro_batch_size` makes routers differ."""
    spec = _cluster()
    arrivals = tiny.poisson_s(rate, HORIZON_S, seed)
    policy = tiny.Uniform(micro_batch_sizes=(micro_batch_size,))
    simulation = Simulation(spec, tiny.run(spec, arrivals, HORIZON_S, keep_log=keep_log))
    record = simulation.run(policy, np.random.default_rng(seed))
    return summary(record, router=router, seed=seed), record


LABEL = RunLabel("toy", "random", 0, "simulation", "simpy", Provenance.DATASHEET, "measured")
WINDOW = Window(WARMUP_S, HORIZON_S)


def summary(record: RunRecord, **changes: Any) -> Result:
    """A record's result with plain settings; changes are of the label or of the window, a `prior`, or a `context`."""
    prior, context = changes.pop("prior", None), changes.pop("context", None)
    of_window = {
        key: changes.pop(key) for key in ("warmup_s", "horizon_s", "deadline_s", "end", "slo") if key in changes
    }
    result = summarise(record, replace(LABEL, **changes), replace(WINDOW, **of_window), wall_s=0.1, prior=prior)
    return result if context is None else diagnosed(result, context)


def validation_run(simulated: Result, executors: Result, **changes: Any) -> ValidationRun:
    told: ValidationRun = {
        "kind": "pair", "router": simulated["router"], "load": None, "rate_img_s": None, "seed": simulated["seed"],
        "repeat": 0, "simulated": simulated, "executors": executors, "backlog_growth": None,
        "slowdown": None, "background_load": None, "clocks": [],
    }  # fmt: skip
    return {**told, **changes}  # type: ignore[typeddict-item]


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Charts are made, but not drawn, which takes most of a report's time."""
    patch.setattr(charts, "to_svg", lambda figure: Markup("<svg></svg>"))


def flagged(path: Path) -> RunFolder:
    (path / OWN).mkdir(parents=True, exist_ok=True)
    return RunFolder(path)


def run_of(folder: RunFolder, routers: tuple[str, ...]) -> Any:
    """As much of a run as its validation needs of it, with a network that nobody opens."""
    scenario = SimpleNamespace(validate_=SimpleNamespace(routers=routers))
    model = ModelFile(folder.path / "none", None)
    return SimpleNamespace(folder=folder, scenario=scenario, model_to_serve=model, say=folder.say, quiet=True)


def run_folder(
    path: Path,
    routers: tuple[str, ...] = ("random", "jsq", "ppo"),
    seeds: tuple[int, ...] = (0, 1),
    slower: Callable[[int, int], float] = lambda index, seed: 1.05 + 0.02 * index,
    profiles: tuple[str, ...] = ("a",),
) -> RunFolder:
    """A complete folder: every part of the report has its files. `slower`: times the simulated mean latency, what
    executors have of the router with this index and this seed. `profiles`: their figures take most of a report's time.
    """
    folder = flagged(path)
    results, pairs = [], []
    ranges: dict[Place, Ranges] = {}
    for index, router in enumerate(routers):
        for seed in seeds:
            result, record = simulated(router, seed, 32 >> index)
            results.append(result)
            write_run(folder, result, record)
            real: Result = {**copy.deepcopy(result), "mode": "executors", "engine": "torch"}
            real["latency_s"]["mean"] = (real["latency_s"]["mean"] or 0.0) * slower(index, seed)
            write_run(folder, real, record)
            pairs.append(validation_run(result, real))
            ranges[router, None, seed] = {each.stem: range_of([each.of(result)] * 2) for each in PREDICTED}
    write_json(folder / "comparison.json", compare_results(results))
    write_json(folder / "results.json", results)
    write_json(folder / "validation.json", validate_results(pairs, Provenance.MODELLED, ranges))
    write_text(folder / "scenario.yaml", "name: toy\n")
    device = {"name": "toy", "kind": "cpu", "telemetry": {"power": "polled"}}
    for stage in ("compare", "validate"):
        folder.note_environment(stage, environment([device], {"seed": 0}))
    write_json(
        folder / "training-ppo.json",
        [{"decisions": 100 * i, "reward": 1 - 1 / (i + 1), "entropy": 2.0 - i / 9} for i in range(9)],
    )
    for name in profiles:
        write_text(folder / "profiles" / f"{name}.yaml", tiny.measured(name, segments=2).to_yaml())
    return folder
