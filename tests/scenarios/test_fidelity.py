"""simulation and executors side by side: predicted ranges, errors and rankings, by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from policies.run_records import CpuUse
from policies.vocabulary import Provenance
from scenarios.metrics.fidelity import (
    PREDICTED,
    Predictions,
    ValidationDocument,
    ValidationRun,
    farthest_stage,
    middle_load,
    reference_img_s,
    validate_results,
)
from scenarios.metrics.run_result import Result
from scenarios.metrics.statistics import (
    GOAL_PCT,
    NEW_RUNS,
    SHARE,
    SURE,
    Range,
    Ranges,
    half_width_pct,
    images_needed,
    least_inside,
    range_of,
    range_of_new_runs,
)
from scenarios.show.command_tables import format_result
from scenarios.show.summary_table import format_summary
from scenarios.show.tables import Table
from scenarios.show.validation_table import (
    disturbance_warnings,
    errors_tables,
    saturation_tables,
    stages_table,
    validation_notes,
)
from tests.scenarios.folders import summary, validation_run
from tests.scenarios.test_result import WINDOW, record, request

HARDWARE: Any = {"mode": "executors", "engine": "torch"}


def result(router: str, latency_s: float, seed: int = 0, **changes: Any) -> Result:
    return summary(record(request(0, 3, latency_s), ended_s=20), router=router, seed=seed, **WINDOW, **changes)


def pair(router: str, simulated_s: float, hardware_s: float, seed: int = 0, **place: Any) -> ValidationRun:
    return validation_run(result(router, simulated_s, seed), result(router, hardware_s, seed, **HARDWARE), **place)


def repeats(router: str, simulated_s: float, hardware_s: list[float], **place: Any) -> list[ValidationRun]:
    return [pair(router, simulated_s, each, repeat=number, **place) for number, each in enumerate(hardware_s)]


def validated(*runs: ValidationRun, ranges: Predictions = MappingProxyType({})) -> ValidationDocument:
    return validate_results(runs, Provenance.MEASURED, ranges)


def spanning(low: float, median: float, high: float) -> Ranges:
    return {each.stem: Range(low=low, median=median, high=high) for each in PREDICTED}


def test_errors_are_relative_to_hardware() -> None:
    """100 (simulated - executors) / executors, with its sign."""
    found = validated(pair("a", 0.9, 1.0))["pairs"][0]
    assert found["error_pct"]["latency_mean"] == pytest.approx(-10)
    assert found["error_pct"]["energy_per_image"] == 0.0
    assert found["not_applicable"] == {}


def test_modelled_power_has_no_error_of_energy() -> None:
    """Where the executors' power is modelled, its errors are null, and the reason is given."""
    found = validate_results([pair("a", 1, 1)], Provenance.MODELLED)
    assert found["pairs"][0]["error_pct"]["energy_per_image"] is None
    assert "energy" not in found["rows"][0]["error_pct"]
    assert "modelled" in found["pairs"][0]["not_applicable"]["energy_per_image"]
    (note,) = [note for note in validation_notes(found) if "modelled" in note]
    assert note.startswith(
        "Not compared: energy per image and mean energy (the paper's E). Why: the executors' power is modelled"
    )


def test_ranking() -> None:
    """tau is 1 for the same order, -1 for the opposite, null for a single router."""
    same = [pair("a", 1, 10), pair("b", 2, 20), pair("c", 3, 30)]
    opposite = [pair("a", 1, 3), pair("b", 2, 2), pair("c", 3, 1)]
    assert validated(*same)["ranking_tau"] == pytest.approx(1)
    assert validated(*opposite)["ranking_tau"] == pytest.approx(-1)
    assert validated(*same[:1])["ranking_tau"] is None


def test_a_row_is_over_repeats() -> None:
    """Mean, Student's interval, least and most of what was measured; the bias is of the predicted median."""
    (row,) = validated(*repeats("a", 1.0, [0.9, 1.0, 1.1]), ranges={("a", None, 0): spanning(0.9, 1.2, 1.3)})["rows"]
    t = stats.t.ppf(0.975, 2)
    executors = row["executors"]["latency_mean"]
    assert executors["mean"] == pytest.approx(1.0)
    assert executors["ci95"] == pytest.approx(t * 0.1 / 3**0.5)
    assert dict(row["measured"]["latency_mean"] or {}) == pytest.approx({"least": 0.9, "most": 1.1})
    assert row["error_pct"]["latency_mean"] == pytest.approx(20)
    assert (row["seeds"], row["repeats"]) == ([0], 3)


@pytest.mark.parametrize(
    ("executors", "ranges", "inside", "case"),
    [
        ([1.0] * 5, (0.9, 1.0, 1.1), 5, "inside"),
        ([0.9, 1.0, 1.1, 1.2, 1.0], (0.9, 1.0, 1.1), 4, "inside"),
        ([0.9, 1.0, 1.2, 1.2, 1.0], (0.9, 1.0, 1.1), 3, "inside"),
        ([0.9, 1.2, 1.2, 1.2, 1.0], (0.9, 1.0, 1.1), 2, "outside"),
        ([1.0] * 5, (0.7, 1.0, 1.3), 5, "wide"),
        ([2.0] * 5, (0.7, 1.0, 1.3), 0, "outside"),
    ],
)
def test_a_prediction_is_a_range(executors: list[float], ranges: Any, inside: int, case: str) -> None:
    """Honest ranges of 90 % hold fewer than 3 of 5 values with a chance of 1 %; a wide one is of little use."""
    found = validated(*repeats("a", 1.0, executors), ranges={("a", None, 0): spanning(*ranges)})
    (row,) = found["rows"]
    assert row["coverage"]["latency_p99"] == {"inside": inside, "of": 5, "least": 3}
    assert row["case"]["latency_p99"] == case
    assert found["coverage"] == {each.stem: row["coverage"][each.stem] for each in PREDICTED}
    assert found["pairs"][0]["predicted"]["latency_mean"] == Range(low=ranges[0], median=ranges[1], high=ranges[2])


def test_each_seed_has_its_range_and_a_row_their_mean() -> None:
    runs = [pair("a", 1.0, value, seed) for seed, value in enumerate((1.0, 3.0))]
    seeds: Predictions = {("a", None, 0): spanning(0.9, 1.0, 1.1), ("a", None, 1): spanning(1.9, 2.0, 2.1)}
    (row,) = validated(*runs, ranges=seeds)["rows"]
    assert row["coverage"]["latency_mean"] == {"inside": 1, "of": 2, "least": 1}
    found = dict(row["predicted"]["latency_mean"] or {})
    assert found == pytest.approx({"low": 1.4, "median": 1.5, "high": 1.6})


def test_without_a_prediction_nothing_is_judged() -> None:
    found = validated(pair("a", 1.0, 1.0))
    assert found["coverage"] == dict.fromkeys(("latency_mean", "latency_p99"))
    assert found["rows"][0]["case"]["latency_mean"] is None


@pytest.mark.parametrize("number", [1, 5, 10, 20, 50])
def test_so_many_values_at_least_lie_in_honest_ranges(number: int) -> None:
    assert least_inside(number) == stats.binom.ppf(SURE, number, SHARE)


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy"])
def test_a_range_of_new_runs_holds_nine_tenths_of_further_ones(draw: str) -> None:
    values = getattr(np.random.default_rng(0), draw)(size=(5_000, NEW_RUNS + 1))
    found = [range_of_new_runs(value[:-1].tolist()) for value in values]
    held = [of is not None and of["low"] <= each[-1] <= of["high"] for of, each in zip(found, values, strict=True)]
    assert np.mean(held) == pytest.approx(0.9, abs=0.02)
    assert range_of_new_runs([None] * NEW_RUNS) is None


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40), st.integers(100, 100_000))
def test_a_range_holds_its_median_and_narrows_with_the_root_of_the_images(values: list[float], images: int) -> None:
    found = range_of(values)
    assert found is not None
    assert min(values) <= found["low"] <= found["median"] <= found["high"] <= max(values)
    width, needed = half_width_pct(found) or 0.0, images_needed(found, images) or 0
    assert needed >= images
    if width > GOAL_PCT:
        assert width * (images / needed) ** 0.5 == pytest.approx(GOAL_PCT, rel=0.01)


def test_the_stage_that_differs_most_is_named() -> None:
    run = pair("a", 1.0, 1.0)
    run["simulated"]["stages_s"] = {"transfer": 0.3, "queue": 0.5, "run": 0.2}
    run["executors"]["stages_s"] = {"transfer": 0.1, "queue": 0.6, "run": 0.2}
    found = farthest_stage(validated(run)["rows"][0])
    assert found is not None
    assert found[0] == "transfer"
    assert found[1] == pytest.approx(-0.2)


def test_rankings_are_by_load_and_only_separated_pairs_count() -> None:
    """b and c are alike on executors and swapped in simulation: tau suffers, tau over separated pairs does not."""
    runs = [
        *repeats("a", 1.0, [0.99, 1.01, 1.0], load=0.5),
        *repeats("b", 2.1, [1.9, 2.1, 2.0], load=0.5),
        *repeats("c", 2.0, [2.15, 1.95, 2.05], load=0.5),
        *repeats("a", 1.0, [1.0, 1.0, 1.0], load=0.8),
        *repeats("b", 0.9, [2.0, 2.0, 2.0], load=0.8),
    ]
    low, high = validated(*runs)["ranking"]
    assert (low["load"], low["pairs"], low["separated_pairs"]) == (0.5, 3, 2)
    assert low["tau"] == pytest.approx(1 / 3)
    assert (low["tau_separated"], low["met"]) == (1.0, True)
    assert (high["tau_separated"], high["met"]) == (-1.0, False)


def test_ranking_pairs_repeats_so_that_shared_noise_hides_no_difference() -> None:
    """One repeat is slow for both routers: intervals overlap widely, but the differences are nearly equal."""
    runs = [*repeats("a", 1.0, [1.0, 2.0, 3.0]), *repeats("b", 1.1, [1.1, 2.12, 3.11])]
    (found,) = validated(*runs)["ranking"]
    assert (found["separated_pairs"], found["tau_separated"]) == (1, 1.0)


def test_repeats_of_one_seed_are_no_new_evidence() -> None:
    """Two seeds, repeated exactly: the interval is that of two values, however often they were repeated; so for pairs
    of routers."""
    runs = [
        pair(router, 1.0 if router == "a" else 1.1, executors, seed, repeat=n)
        for n in range(6)
        for router, by_seed in (("a", (1.0, 3.0)), ("b", (1.1, 3.6)))
        for seed, executors in enumerate(by_seed)
    ]
    found = validated(*runs)
    row = found["rows"][0]
    assert row["executors"]["latency_mean"]["mean"] == pytest.approx(2.0)
    assert row["executors"]["latency_mean"]["ci95"] == pytest.approx(stats.t.ppf(0.975, 1) * 2**0.5 / 2**0.5)
    assert found["ranking"][0]["separated_pairs"] == 0


def test_single_runs_separate_nothing() -> None:
    (found,) = validated(pair("a", 1, 1), pair("b", 2, 2))["ranking"]
    assert (found["tau"], found["separated_pairs"], found["tau_separated"], found["met"]) == (1.0, 0, None, None)


def saturated(
    router: str, simulated: float, executors: float, growths: tuple[float, float] = (0.5, 0.5)
) -> ValidationRun:
    results: list[Any] = [result(router, 1.0), result(router, 1.0, **HARDWARE)]
    for each, rate in zip(results, (simulated, executors), strict=True):
        each["throughput_img_s"] = rate
    grown: Any = dict(zip(("simulated", "executors"), growths, strict=True))
    return validation_run(*results, kind="saturated", rate_img_s=500, backlog_growth=grown)


def test_saturated_throughput() -> None:
    """Promised within 2 %; where simulation and executors kept up with the arrivals nothing is judged; who kept up is
    said."""
    runs = [saturated("a", 203, 200), saturated("b", 230, 200, (0.01, 0.2)), saturated("c", 200, 200, (0.01, 0.02))]
    found = validated(pair("a", 1, 1), *runs)
    assert [row["met"] for row in found["saturated"]] == [True, False, None]
    assert found["saturated"][0]["error_pct"] == pytest.approx(1.5)
    assert found["reference_img_s"] == 200 == reference_img_s(runs)
    (table,) = saturation_tables(found)
    assert table.rows == [
        ["a", "100.00/100.00", "500", "203.0", "200.0", "+1.5", "2.0 met", ""],
        ["b", "100.00/100.00", "500", "230.0", "200.0", "+15.0", "2.0 missed", "not saturated: simulated"],
        ["c", "100.00/100.00", "500", "200.0", "200.0", "+0.0", "2.0", "not saturated: simulated, executors"],
    ]
    assert any("single run" in note for note in validation_notes(found))


def test_each_load_has_its_table() -> None:
    """What was predicted of a latency, what was measured, how much of it lies inside; and each bias."""
    runs = [run for load in (0.3, 0.8) for run in repeats("a", 1.0, [1.0, 1.1], load=load, rate_img_s=100 * load)]
    ranges: Predictions = {("a", load, 0): spanning(0.9, 1.0, 1.05) for load in (0.3, 0.8)}
    found = validated(*runs, saturated("a", 1, 1), ranges=ranges)
    low, high = errors_tables(found)
    assert low.title == "load 0.3 (30.0 images/s), 2 runs a router on executors"
    assert high.title.startswith("load 0.8 (80.0 images/s)")
    row = dict(zip((column.title for column in low.columns), low.rows[0], strict=True))
    tiny = [row[f"mean latency {experiment} ms"] for experiment in ("predicted", "measured")]
    assert (row["router"], *tiny) == ("a", "1000 (900-1050)", "1050 (1000-1100)")
    assert (row["mean latency inside"], row["mean latency error %"]) == ("1 of 2", "-4.8")


def test_stages_of_both_experiments_stand_in_one_cell() -> None:
    """Milliseconds, simulated before executors; a stage that no run has is none; without any, no row."""
    stages: dict[str, float] = dict.fromkeys(("router_wait", "decision", "transfer"), 0.001)
    stages |= dict.fromkeys(("queue", "load", "dispatch", "run", "lost"), 0.002)
    run = pair("a", 1, 1)
    assert stages_table(validated(run)["rows"]).rows == []
    run["simulated"]["stages_s"], run["executors"]["stages_s"] = stages, {**stages, "lost": 0.003}
    (row,) = stages_table(validated(run)["rows"]).rows
    assert row == ["a", *["1.00/1.00"] * 3, "-/-", *["2.00/2.00"] * 4, "2.00/3.00"]


def loaded(programs: float, stolen: float = 0.0, router: str = "a", **place: Any) -> ValidationRun:
    return pair(router, 1, 1, background_load={"programs": programs, "stolen": stolen}, **place)


def taken(router: float, worker: float, cores: float, **place: Any) -> ValidationRun:
    """A pair during whose executor run its own processes took so much."""
    found = record(request(0, 3, 1.0), ended_s=20, cpu=CpuUse(router, worker, cores))
    return validation_run(result("a", 1), summary(found, router="a", **WINDOW, **HARDWARE), **place)


def late(p99_s: float, **place: Any) -> ValidationRun:
    """A pair whose emulated passes of a second were seen to end so late."""
    found = pair("a", 1, 1, **place)
    found["executors"]["lateness_s"] = {"p50": 0.0, "p99": p99_s, "mean_pass": 1.0}
    return found


def cell_of(table: Table, head: str) -> str:
    (row,) = table.rows
    return str(row[[column.header for column in table.columns].index(head)])


@pytest.mark.parametrize(
    ("head", "make", "shares", "cell", "warning"),
    [
        ("background load", loaded, [(0.02,), (0.55,), (0.5, 0.01)], "55 busy", "in rows that the report flags `busy`"),
        ("background load", loaded, [(0.0,), (0.2, 0.15)], "35 (15 stolen) busy", "took more than 30 % of a device"),
        ("background load", loaded, [(0.2, 0.05)], "25", None),
        (
            "busiest core",
            taken,
            [(0.3, 0.2, 0.4), (0.95, 0.1, 0.6)],
            "95 starved",
            "Starved: in rows that the report flags `starved`",
        ),
        ("busiest core", taken, [(0.1, 0.91, 0.5)], "91 starved", "took more than 90 % of a core"),
        ("busiest core", taken, [(0.9, 0.9, 0.9)], "90", None),
        ("ends late", late, [(0.05,), (0.2,)], "20 late", "Late: in rows that the report flags `late`"),
        ("ends late", late, [(0.1,)], "10", None),
    ],
)
def test_disturbance_column_shows_the_worst_repeat_and_flags_it(
    head: str, make: Callable[..., ValidationRun], shares: list[Any], cell: str, warning: str | None
) -> None:
    """A mean over repeats would hide a disturbed one; a row beyond its limit is flagged and explained."""
    found = validated(*(make(*each, repeat=number) for number, each in enumerate(shares)))
    assert cell_of(errors_tables(found)[0], head) == cell
    text = " ".join(format_summary(None, found).split())
    assert warning in text if warning else "in rows that the report flags" not in text
    assert any(note.startswith(f"{head.capitalize()}: ") for note in validation_notes(found))


@pytest.mark.parametrize(
    ("make", "head", "cell"),
    [(loaded, "background load", "95 busy"), (taken, "busiest core", "95 starved"), (late, "ends late", "95 late")],
)
def test_a_saturated_run_is_marked_alike(make: Callable[..., ValidationRun], head: str, cell: str) -> None:
    share = (0.95, 0.0, 0.0) if make is taken else (0.95,)
    found = validated(
        pair("b", 1, 1), make(*share, kind="saturated", backlog_growth={"simulated": 1.0, "executors": 1.0})
    )
    assert cell_of(saturation_tables(found)[0], head) == cell
    assert found["busy"] is (make is loaded)


def test_a_result_says_what_its_processes_took() -> None:
    starved, calm = taken(0.2, 0.0, 0.95)["executors"], taken(0.2, 0.0, 0.3)["executors"]
    assert "beware      the router took 20.00 % of a core; the fullest of their cores 95.00 %" in format_result(starved)
    assert "CPU         the router took" in format_result(calm)
    assert "of a core" not in format_result(result("a", 1))


@given(st.lists(st.sampled_from([0.3, 0.6, 0.8, 0.9]), max_size=6))
def test_the_middle_load_is_one_of_them(loads: list[float]) -> None:
    middle = middle_load([*loads, None])
    if middle is None:
        assert not loads
        return
    different = set(loads)
    below, above = sum(load < middle for load in different), sum(load > middle for load in different)
    assert middle in different
    assert above - below in (0, 1)


@pytest.mark.parametrize(
    "simulated, executors, is_named", [(16, 16, False), (16, 31, True), (20, 19, False), (3, 0, True)]
)
def test_loads_that_the_other_side_did_not_have_are_named(simulated: int, executors: int, is_named: bool) -> None:
    """Something else was served there; a tenth apart is the timing of a server that is short of memory."""
    run = pair("a", 1.0, 1.0)
    run["simulated"]["servers"][0]["loads"] = simulated
    run["executors"]["servers"][0]["loads"] = executors
    warnings = [line for line in disturbance_warnings(validated(run)) if line.startswith("Other loads")]
    assert len(warnings) == is_named
    if is_named:
        assert f"on executors and {simulated} in simulation" in warnings[0]
