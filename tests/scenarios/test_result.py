"""Numbers of hand-made records: each one is what `docs/metrics.md` says it is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.interfaces import AccuracyPrior
from policies.run_records import STAGES, DeviceTotals, Downtime, RequestRecord, RequestStatus, RunRecord, ServerTotals
from policies.vocabulary import NS_PER_S
from scenarios.metrics.router_comparison import compare_results
from scenarios.metrics.run_result import percentile
from scenarios.metrics.slo import Slo
from scenarios.show.command_tables import format_result
from scenarios.show.comparison_table import comparison_table
from tests.scenarios.folders import simulated, summary


def request(
    number: int, arrived_s: float, latency_s: float, status: RequestStatus = "completed", correct: bool = True
) -> RequestRecord:
    """One request's record."""
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
    assert found["latency_s"]["mean"] == 2.0
    assert found["accuracy"] == 1.0
    assert found["images"]["completed"] == 3


def test_what_is_cut_off_is_counted_as_censored() -> None:
    """A request in flight at the end is in no latency, but counted; one of the warm-up is not."""
    found = summary(record(request(0, 1, 9, "in_flight"), request(1, 3, 7, "in_flight"), request(2, 4, 1)), **WINDOW)
    assert found["censored"] == 1
    assert found["latency_s"]["max"] == 1.0
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


def test_nothing_completed_is_null() -> None:
    """Where nothing was completed there is no mean, and the document is still plain JSON."""
    found = summary(record(request(0, 3, 7, "in_flight")), **WINDOW)
    assert found["latency_s"]["p99"] is None
    assert found["energy_per_image_j"]["total"] is None
    json.dumps(found, allow_nan=False)
    assert "mean -" in format_result(found)


def test_a_result_says_where_its_accuracy_is_from() -> None:
    """In the document always, in print where no network was measured."""
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
    """Each request counts exactly once."""
    with pytest.raises(AssertionError, match="two records"):
        summary(record(request(0, 3, 1), request(0, 3, 2)), **WINDOW)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_percentiles_are_of_nearest_rank(values: list[float], share: float) -> None:
    """A percentile is a value that occurs, and the smallest that at least this share of the values do not exceed."""
    found = percentile(sorted(values), share)
    assert found == np.quantile(values, share, method="inverted_cdf")


def test_a_simulated_run_conserves_requests() -> None:
    """arrived = completed + in flight + failed, and server passes add up to segments of what was completed."""
    found, run = simulated("random", 0)
    images = found["images"]
    assert images["arrived"] == images["completed"] + images["in_flight"] + images["failed"] == len(run.requests)
    assert sum(server["images"] for server in found["servers"]) == 4 * images["completed"]
    total = found["energy_per_image_j"]
    assert total["total"] == pytest.approx((total["dynamic"] or 0) + (total["base"] or 0) + (total["idle"] or 0))


def test_time_without_a_reading_is_flagged_where_it_matters() -> None:
    """Of the device that has most of it; no run's first look tells anything, so a little is said to nobody."""
    for unmetered_s, is_told in ((2.5, True), (0.05, False)):
        found = summary(record(request(0, 3.0, 1.0), devices=(DeviceTotals("d", 9.0, 1.0, 3.0, 0.0, unmetered_s),)))
        assert found["unmetered_share"] == unmetered_s / 10
        assert ("for 25.00 % of the time a device's sensor told nothing" in format_result(found)) == is_told


def test_what_was_extrapolated_is_flagged() -> None:
    """The device's share of the time with more batches at once than its profile knows; silence where there is none."""
    devices = (DeviceTotals("d", 1000.0, 10.0, 30.0, extrapolated_s=2.5), DeviceTotals("e", 1000.0, 10.0, 30.0))
    found = summary(record(request(0, 3.0, 1.0), devices=devices))
    assert found["extrapolated_share"] == 0.25
    assert "25.00 % of the time more batches ran at once" in format_result(found)
    assert "extrapolated" not in format_result(summary(record(request(0, 3.0, 1.0))))
    compared = compare_results([found])
    assert compared["rows"][0]["extrapolated_share"]["mean"] == 0.25
    (warning,) = comparison_table(compared).warnings
    assert warning.startswith("Beware: up to ")
