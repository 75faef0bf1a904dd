"""Figures from columns: bit for bit what a plain reading of the records gives, from both engines."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kit.random_streams import stream
from policies.interfaces import AccuracyPrior
from policies.run_records import NOT_PASSED, STAGES, STATUSES, RequestColumns, RequestRecord, RunRecord
from policies.vocabulary import NS_PER_S
from scenarios.metrics.run_result import Simulator
from scenarios.runs.simulated_runs import run_simulation, simulate_metrics
from tests.scenarios.folders import simulated, summary
from tests.scenarios.test_engines import SIDES, experiment_of

ENGINES: tuple[Simulator, ...] = ("simpy", "compiled")


def latency_of_s(request: RequestRecord) -> float:
    """From its arrival at the router to the end of its last segment."""
    return (request.finished_ns - request.arrived_ns) / NS_PER_S


def plain_metrics(record: RunRecord, warmup_s: float, horizon_s: float, deadline_s: float | None) -> dict[str, Any]:
    """What rests on requests, request by request and in Python's own arithmetic, as `docs/metrics.md` defines it."""
    start_ns, end_ns = round(warmup_s * NS_PER_S), round(horizon_s * NS_PER_S)
    counted = [request for request in record.requests if start_ns <= request.arrived_ns <= end_ns]
    done = [request for request in counted if request.status == "completed"]
    latencies_s = [latency_of_s(request) for request in done]
    ascending = sorted(latencies_s)
    in_window = [r for r in record.requests if r.status == "completed" and start_ns <= r.finished_ns <= end_ns]
    in_time = [r for r in in_window if deadline_s is not None and latency_of_s(r) <= deadline_s]
    stages_ns = np.array([request.stages_ns for request in done], np.float64)

    def rate(requests: Sequence[RequestRecord]) -> float:
        return len(requests) * NS_PER_S / (end_ns - start_ns)

    def at(share: float) -> float:
        return ascending[max(0, ceil(share * len(ascending)) - 1)]

    by_status = {status: sum(request.status == status for request in record.requests) for status in STATUSES}
    return {
        "images": {"arrived": len(record.requests), **by_status},
        "accuracy": sum(request.correct for request in done) / len(done),
        "latency_s": {
            "mean": float(np.mean(latencies_s)), "std": float(np.std(latencies_s)), "p50": at(0.5), "p95": at(0.95),
            "p99": at(0.99), "max": max(latencies_s),
        },
        "energy_j": {
            "mean": float(np.mean([r.energy_j for r in done])), "std": float(np.std([r.energy_j for r in done])),
        },
        "gpu_var": {"mean": float(np.mean(record.gpu_var)), "std": float(np.std(record.gpu_var))},
        "throughput_img_s": rate(in_window),
        "censored": sum(request.status == "in_flight" for request in counted),
        "goodput_img_s": None if deadline_s is None else rate(in_time),
        "failures": dict(Counter(request.reason for request in record.requests if request.status == "failed")),
        "stages_s": dict(zip(STAGES, (np.mean(stages_ns, axis=0) / NS_PER_S).tolist(), strict=True)),
        "moves_per_image": sum(request.moved for request in done) / len(done),
    }  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("changes", SIDES.values(), ids=SIDES)
def test_metrics_are_those_of_the_records(changes: str, engine: Simulator, tmp_path: Path) -> None:
    """Every metric that rests on requests, to the last bit and in the same order, with and without the record."""
    experiment = experiment_of(tmp_path, changes)
    scenario = experiment.scenario
    for router in ("random", "jsq"):
        result, record = run_simulation(experiment, experiment.router(router), router, 3, engine=engine)
        plain = plain_metrics(record, scenario.warmup_s, scenario.duration_s, scenario.deadline_s)
        assert json.dumps({key: result[key] for key in plain}) == json.dumps(plain)  # type: ignore[literal-required]
        alone = simulate_metrics(experiment, experiment.router(router), router, 3, engine=engine)
        assert json.dumps({**alone, "wall_s": 0}) == json.dumps({**result, "wall_s": 0})
    assert ("faults" in changes) == bool(result["failures"])


@pytest.mark.parametrize("changes", SIDES.values(), ids=SIDES)
def test_columns_are_the_records(changes: str, tmp_path: Path) -> None:
    """What the compiled engine gives without making records is what its records give, column by column."""
    experiment = experiment_of(tmp_path, changes)
    for detail in (True, False):
        simulation = experiment.simulation(experiment.run_spec(5, detail=detail), "compiled")
        simulation.finish(experiment.router("random"), stream(5, "router:random"))
        ours, record = simulation.columns(), simulation.record()
        theirs = RequestColumns.of(record.requests)
        for name in ("request", "arrived_ns", "finished_ns", "status", "correct", "energy_j", "moves"):
            np.testing.assert_array_equal(getattr(ours.requests, name), getattr(theirs, name), err_msg=name)
        assert ours.requests.energy_j.tobytes() == theirs.energy_j.tobytes()
        assert (
            _words(ours.requests) == _words(theirs) == [(request.reason, request.widths) for request in record.requests]
        )
        assert (ours.requests.stages_ns is None) == (theirs.stages_ns is None) == (not detail)
        if detail:
            np.testing.assert_array_equal(ours.requests.stages_ns, theirs.stages_ns)
        assert (ours.ended_ns, ours.servers, ours.devices) == (record.ended_ns, record.servers, record.devices)
        assert (ours.decisions, ours.downtimes) == (record.decisions, record.downtimes)
        assert tuple(ours.gpu_var.tolist()) == record.gpu_var


def _words(columns: RequestColumns) -> list[tuple[str, tuple[float, ...]]]:
    return [
        (columns.reasons[reason], tuple(columns.widths[place] for place in places if place != NOT_PASSED))
        for reason, places in zip(columns.reason, columns.width, strict=True)
    ]


def test_expected_accuracy_has_no_noise_of_labels() -> None:
    """The prior's mean over the tuples that ran; labels don't matter, and without a prior nothing is known."""
    _, record = simulated("random", 0)
    tuples = {request.widths for request in record.requests}
    assert len(tuples) > 5
    prior = AccuracyPrior({widths: sum(widths) / 8 for widths in tuples})
    done = [request.widths for request in record.requests if request.arrived_ns >= 0.2e9]
    found = summary(record, prior=prior)["expected_accuracy"]
    assert found == pytest.approx(np.mean([prior(widths) for widths in done]), rel=1e-12)
    flipped = (replace(request, correct=not request.correct) for request in record.requests)
    assert summary(_with_requests(record, flipped), prior=prior)["expected_accuracy"] == found
    assert summary(record)["expected_accuracy"] is None
    backwards = _with_requests(record, reversed(record.requests))
    assert summary(backwards, prior=prior)["expected_accuracy"] == found  # whatever the order, the same sum


def _with_requests(record: RunRecord, requests: Iterable[RequestRecord]) -> RunRecord:
    return dataclasses.replace(record, requests=tuple(requests))
