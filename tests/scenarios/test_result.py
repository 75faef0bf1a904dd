"""Numbers of hand-made records: each one is what `docs/metrics.md` says it is."""

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
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.random_streams import stream
from policies.interfaces import AccuracyPrior
from policies.run_records import (
    NOT_PASSED,
    STAGES,
    STATUSES,
    DeviceTotals,
    Downtime,
    RequestColumns,
    RequestRecord,
    RequestStatus,
    RunRecord,
    ServerTotals,
)
from policies.vocabulary import NS_PER_S
from scenarios.metrics.router_comparison import compare_results
from scenarios.metrics.run_result import Simulator, percentile
from scenarios.metrics.slo import Slo
from scenarios.runs.simulated_runs import run_simulation, simulate_metrics
from scenarios.show.command_tables import format_result
from scenarios.show.comparison_table import comparison_table
from tests.scenarios.folders import simulated, summary
from tests.scenarios.test_engines import SIDES, experiment_of


def request(
    number: int, arrived_s: float, latency_s: float, status: RequestStatus = "completed", correct: bool = True
) -> RequestRecord:
    arrived_ns = round(arrived_s * NS_PER_S)
    finished_ns = arrived_ns + round(latency_s * NS_PER_S)
    return RequestRecord(number, arrived_ns, finished_ns, status, "", 0, (1.0,), (0,), correct, 2.0 * latency_s)


def record(*requests: RequestRecord, ended_s: float = 10.0, energy_j: float = 1000.0, **changes: Any) -> RunRecord:
    """A run of one server on one device that idles at 10 W bare and 30 W ready."""
    return RunRecord(
        **{
            "ended_ns": round(ended_s * NS_PER_S),
            "requests": requests,
            "micro_batches": (),
            "batches": (),
            "telemetry": (),
            "servers": (ServerTotals("s", 0, 4.0, 30, 10, 3, 2, 5_000_000),),
            "devices": (DeviceTotals("d", energy_j, 10.0, 30.0),),
            "gpu_var": (0.1, 0.3),
            "decisions": 7,
            **changes,
        }
    )


WINDOW = {"warmup_s": 2.0, "horizon_s": 10.0}


def test_requests_outside_the_window_do_not_count() -> None:
    """Only arrivals from the end of the warm-up to the end of the arrivals are in the statistics, ends included."""
    found = summary(
        record(request(0, 1.999, 5.0, correct=False), request(1, 2.0, 1.0), request(2, 10.0, 3.0), ended_s=13), **WINDOW
    )
    assert (found["latency_s"]["mean"], found["accuracy"], found["images"]["completed"]) == (2.0, 1.0, 3)


def test_request_in_flight_at_the_end_is_counted_as_censored() -> None:
    """A request in flight at the end is in no latency, but counted; one of the warm-up is not."""
    found = summary(record(request(0, 1, 9, "in_flight"), request(1, 3, 7, "in_flight"), request(2, 4, 1)), **WINDOW)
    assert (found["censored"], found["latency_s"]["max"]) == (1, 1.0)
    assert found["images"] == {"arrived": 3, "completed": 1, "in_flight": 2, "failed": 0}


def test_throughput_counts_completions_within_the_window() -> None:
    """Completions between the warm-up's end and the arrivals' end, whenever they arrived, over that time."""
    found = summary(record(request(0, 1, 2), request(1, 3, 1), request(2, 9, 5), ended_s=14), **WINDOW)
    assert found["throughput_img_s"] == 2 / 8


def test_goodput_counts_what_kept_the_deadline() -> None:
    """Goodput leaves out late ones, by the deadline or else by the p99 limit; without either there is none."""
    run = record(request(0, 3, 0.5), request(1, 3, 1.5), request(2, 4, 1.0))
    assert summary(run, **WINDOW, deadline_s=1.0)["goodput_img_s"] == 2 / 8
    assert summary(run, **WINDOW, slo=Slo(p99_limit_s=1.2))["goodput_img_s"] == 2 / 8
    assert summary(run, **WINDOW, slo=Slo(p99_limit_s=1.2), deadline_s=0.6)["goodput_img_s"] == 1 / 8
    assert summary(run, **WINDOW)["goodput_img_s"] is None
    for floor, rate in ((0.8009, 2 / 8), (0.8011, 0.0)):
        prior = AccuracyPrior({(1.0,): 0.8})
        assert summary(run, **WINDOW, slo=Slo(floor, 1.2), prior=prior)["goodput_img_s"] == rate


def test_energy_is_split_into_its_parts() -> None:
    """idle = 10 W, base = 20 W over 10 s; the rest of 1000 J is dynamic; all over 2 completed images."""
    found = summary(record(request(0, 1, 1), request(1, 3, 1), request(2, 4, 1, "failed")), **WINDOW)
    assert found["energy_per_image_j"] == {"total": 500.0, "dynamic": 350.0, "base": 100.0, "idle": 50.0}
    assert found["energy_j"]["mean"] == 2.0


def test_servers_metrics() -> None:
    """Utilization and power are means over the run; a batch's mean size is passes over batches."""
    server = summary(record(request(0, 3, 1)), **WINDOW)["servers"][0]
    assert (server["utilization"], server["mean_power_w"], server["mean_batch"]) == (0.4, 100.0, 3.0)


def test_result_without_completed_requests_has_null_metrics() -> None:
    """The document is still plain JSON."""
    found = summary(record(request(0, 3, 7, "in_flight")), **WINDOW)
    assert found["latency_s"]["p99"] is None
    assert found["energy_per_image_j"]["total"] is None
    json.dumps(found, allow_nan=False)
    assert "mean -" in format_result(found)


def test_a_result_says_where_its_accuracy_is_from() -> None:
    run = record(request(0, 3, 1))
    measured, paper = summary(run, **WINDOW), summary(run, **WINDOW, accuracy_provenance="paper")
    assert (measured["accuracy_provenance"], paper["accuracy_provenance"]) == ("measured", "paper")
    assert "datasheet; accuracy: paper" in format_result(paper)
    assert "accuracy:" not in format_result(measured)


def test_the_generators_lag_restarts_and_failures() -> None:
    """Lag over all arrivals (null where none is known); downtimes by the server's name; failures by their reason."""
    requests = [replace(request(number, 3, 1, "failed"), reason=reason) for number, reason in enumerate("bba")]
    downs = (Downtime(0, 10**9, 2 * 10**9, "worker_died"), Downtime(0, 3 * 10**9, None, "worker_hung", False))
    run = record(*requests, arrival_lags_ns=(1_000_000, 3_000_000), downtimes=downs)
    found = summary(run, **WINDOW)
    assert found["arrival_lag_s"] == {"mean": pytest.approx(0.002), "p99": 0.003, "max": 0.003}
    assert found["restarts"] == [
        {"server": "s", "cause": "worker_died", "planned": True, "down_s": 1.0, "up_s": 2.0},
        {"server": "s", "cause": "worker_hung", "planned": False, "down_s": 3.0, "up_s": None},
    ]
    rows = [line.split() for line in format_result(found).splitlines()[-2:]]
    assert rows[0] == ["s", "random", "simulation,", "seed", "0", "worker", "died,", "planned", "1.00", "2.00"]
    assert rows[1] == ["s", "random", "simulation,", "seed", "0", "worker", "hung", "3.00", "never"]
    assert list(found["failures"].items()) == [("b", 2), ("a", 1)]  # in the order in which they first occurred
    assert sum(found["failures"].values()) == found["images"]["failed"]
    assert summary(record(), **WINDOW)["arrival_lag_s"] is None


def test_stages_add_up_to_the_mean_latency() -> None:
    """Means over the completed requests of the window, each stage by its name; null where a run kept no detail."""
    found, _ = simulated("random", 0)
    stages = found["stages_s"]
    assert stages is not None
    assert tuple(stages) == STAGES
    assert sum(stages.values()) == pytest.approx(found["latency_s"]["mean"])
    assert min(stages["run"], stages["transfer"], stages["decision"]) > 0
    assert summary(record(request(0, 3, 1)), **WINDOW)["stages_s"] is None


def test_two_records_of_a_request_are_refused() -> None:
    with pytest.raises(AssertionError, match="two records"):
        summary(record(request(0, 3, 1), request(0, 3, 2)), **WINDOW)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_percentiles_are_of_nearest_rank(values: list[float], share: float) -> None:
    """A percentile is a value that occurs, and the smallest that at least this share of the values do not exceed."""
    found = percentile(sorted(values), share)
    assert found == np.quantile(values, share, method="inverted_cdf")


def test_time_without_a_reading_is_flagged_where_it_matters() -> None:
    """Of the device that has most of it; no run's first look tells anything, so a little is said to nobody."""
    for unmetered_s, is_told in ((2.5, True), (0.05, False)):
        found = summary(record(request(0, 3.0, 1.0), devices=(DeviceTotals("d", 9.0, 1.0, 3.0, 0.0, unmetered_s),)))
        assert found["unmetered_share"] == unmetered_s / 10
        assert ("for 25.00 % of the time a device's sensor reported nothing" in format_result(found)) == is_told


def test_result_with_extrapolated_batches_is_flagged() -> None:
    """The share is of the time with more concurrent batches than the profile has; without any there is no note."""
    devices = (DeviceTotals("d", 1000.0, 10.0, 30.0, extrapolated_s=2.5), DeviceTotals("e", 1000.0, 10.0, 30.0))
    found = summary(record(request(0, 3.0, 1.0), devices=devices))
    assert found["extrapolated_share"] == 0.25
    assert "25.00 % of the time more batches ran at once" in format_result(found)
    assert "extrapolated" not in format_result(summary(record(request(0, 3.0, 1.0))))
    compared = compare_results([found])
    assert compared["rows"][0]["extrapolated_share"]["mean"] == 0.25
    (warning,) = comparison_table(compared).warnings
    assert warning.startswith("Beware: up to ")


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
