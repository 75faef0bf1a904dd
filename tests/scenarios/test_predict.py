"""Predictions: replicas differ by what executors do not repeat, and ranges are reproducible and simulated once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.documents import Memo
from policies.run_records import RunRecord
from scenarios.executors.validation_plan import ValidationPlan
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.scenario_keys import ValidateSection
from scenarios.job import validation_stage
from scenarios.job.validation_stage import length_advice, predictions_of
from scenarios.metrics.statistics import Range
from scenarios.runs.folder import RunFolder
from scenarios.runs.simulated_runs import (
    ARRIVAL_LAG_NS,
    PredictedRun,
    RunOptions,
    predict,
    run_simulation,
    simulate_metrics,
)
from tests.scenarios.folders import run_of

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "paper-live-quick.yaml"
OPTIONS: RunOptions = {"duration_s": 1.0, "warmup_s": 0.0, "engine": "compiled"}
ROUTERS = ("jsq", "sticky")


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load_experiment(SCENARIO)


def _replicas(experiment: Experiment, router: str) -> list[RunRecord]:
    options: list[RunOptions] = [{**OPTIONS, "replica": number} for number in range(3)]
    return [run_simulation(experiment, experiment.router(router), router, 0, **of)[1] for of in options]


def test_images_of_a_replica_are_late_and_in_order(experiment: Experiment) -> None:
    due_ns = experiment.run_spec(0, duration_s=1.0).arrivals_ns
    for record in _replicas(experiment, "jsq"):
        arrived_ns = np.array([request.arrived_ns for request in sorted(record.requests, key=lambda of: of.request)])
        assert (np.diff(arrived_ns) >= 0).all()
        assert (arrived_ns >= due_ns).all()
        assert (arrived_ns - due_ns).mean() == pytest.approx(ARRIVAL_LAG_NS, rel=0.25)


def test_latencies_of_a_replica_count_from_when_an_image_was_due(experiment: Experiment) -> None:
    options: RunOptions = {**OPTIONS, "replica": 0}
    result, record = run_simulation(experiment, experiment.router("jsq"), "jsq", 0, **options)
    due_ns = experiment.run_spec(0, duration_s=1.0).arrivals_ns
    latencies_ns = [request.finished_ns - due_ns[request.request] for request in record.requests]
    assert result["latency_s"]["mean"] == pytest.approx(np.mean(latencies_ns) / 1e9)


def test_replicas_part_while_the_load_is_calm(experiment: Experiment) -> None:
    options: list[RunOptions] = [{**OPTIONS, "replica": number} for number in range(6)]
    runs = [simulate_metrics(experiment, experiment.router("compass"), "compass", 0, **of) for of in options]
    means_s = [run["latency_s"]["mean"] or 0.0 for run in runs]
    assert max(means_s) > 1.01 * min(means_s)  # 1.001 without lags


def test_a_replica_draws_other_numbers_for_its_router(experiment: Experiment) -> None:
    firsts = {record.micro_batches[0].server for record in _replicas(experiment, "random")}
    assert len(firsts) > 1


@pytest.mark.parametrize("router", ROUTERS)
def test_a_replica_is_the_same_on_both_engines(experiment: Experiment, router: str) -> None:
    reference: RunOptions = {"duration_s": 1.0, "warmup_s": 0.0, "replica": 3}
    compiled: RunOptions = {**reference, "engine": "compiled"}
    found = [simulate_metrics(experiment, experiment.router(router), router, 0, **of) for of in (reference, compiled)]
    assert found[0]["latency_s"] == found[1]["latency_s"]


def test_ranges_are_those_of_the_replicas_in_any_number_of_processes(experiment: Experiment) -> None:
    runs = [PredictedRun(experiment.router_maker(router), 0, 1.0) for router in ROUTERS]
    alone, together = (dict(predict(experiment, runs, OPTIONS, jobs, 6)) for jobs in (1, 2))
    assert alone == together
    several: list[RunOptions] = [{**OPTIONS, "replica": number} for number in range(6)]
    replicas = [simulate_metrics(experiment, experiment.router("jsq"), "jsq", 0, **of) for of in several]
    means_s = sorted(result["latency_s"]["mean"] or 0.0 for result in replicas)
    found = alone[0]["latency_mean"]
    assert found is not None
    assert means_s[0] <= found["low"] < found["high"] <= means_s[-1]
    assert found["median"] == pytest.approx((means_s[2] + means_s[3]) / 2)


def test_a_prediction_that_is_kept_is_not_made_again(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ValidationPlan.of(experiment, ROUTERS, ValidateSection(seeds=(0, 1), duration_s=1.0, warmup_s=0.0))
    asked: list[int] = []

    def counted(experiment: Experiment, runs: Any, options: RunOptions, jobs: int) -> Any:
        asked.append(len(runs))
        return predict(experiment, runs, options, jobs, replicas=2)

    def made(count: int) -> Any:
        kept = Memo(tmp_path / "kept", "")
        return predictions_of(run_of(RunFolder(tmp_path), ROUTERS), experiment, plan, plan.pairs()[:count], kept)

    monkeypatch.setattr(validation_stage, "predict", counted)
    made(1)
    found = made(4)
    assert (asked, made(4), asked, {place[0] for place in found}) == ([1, 3], found, [1, 3], {*ROUTERS})
    assert len(found) == 4


def test_a_run_that_is_long_enough_gets_no_advice(experiment: Experiment) -> None:
    plan = ValidationPlan.of(experiment, ROUTERS, ValidateSection(seeds=(0,), duration_s=3.0, warmup_s=1.0))
    narrow, wide = ({"latency_p99": Range(low=1 - w, median=1.0, high=1 + w)} for w in (0.09, 0.2))
    assert length_advice(plan, {("jsq", None, 0): narrow}) == ""
    advice = length_advice(plan, {("jsq", None, 0): narrow, ("sticky", None, 0): wide})
    assert "the p99 of sticky by +-20 %" in advice
    assert "validate.duration_s: 9)" in advice, "four times the 2 s that count, and the warm-up"
