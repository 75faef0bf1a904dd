"""Results side by side: means, intervals and errors by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import stdtrit

from kit.errors import InputError
from policies.vocabulary import Provenance
from scenarios.metrics.metric_catalogue import COSTS, PAIRED
from scenarios.metrics.router_comparison import (
    ParetoPoint,
    Promise,
    RankedRouter,
    Ranking,
    bound_accuracies,
    compare_results,
    contributions,
    hypervolume,
    least_cost,
    pareto_front,
    share_covered,
    worst_corner,
)
from scenarios.metrics.run_result import Result
from scenarios.metrics.statistics import estimate, paired_difference, student_t
from scenarios.show.comparison_table import comparison_table
from tests.scenarios.folders import summary
from tests.scenarios.test_result import WINDOW, record, request


def result(router: str, seed: int, latency_s: float, **changes: Any) -> Result:
    return summary(record(request(0, 3, latency_s), ended_s=20), router=router, seed=seed, **WINDOW, **changes)


def test_the_interval_is_students() -> None:
    """The half-width is the 97.5 % quantile of t times the standard error; one value has none."""
    found = estimate([1.0, 2.0, 3.0])
    assert found == {"mean": 2.0, "ci95": pytest.approx(stats.t.ppf(0.975, 2) / 3**0.5)}
    assert (estimate([4.0]), estimate([4.0, None])) == ({"mean": 4.0, "ci95": None}, {"mean": None, "ci95": None})


def test_changes_are_paired_by_seed() -> None:
    """Each seed is compared with the baseline's run of that seed, in whatever order they come."""
    runs = [result("jsq", 1, 2.0), result("random", 0, 2.0), result("random", 1, 4.0), result("jsq", 0, 1.0)]
    rows = {row["router"]: row for row in compare_results(runs)["rows"]}
    assert rows["jsq"]["latency_change_pct"] == {"mean": -50.0, "ci95": 0.0}
    assert (rows["jsq"]["energy_change_pct"]["mean"], rows["random"]["latency_change_pct"]["mean"]) == (-50.0, 0.0)
    assert rows["random"]["latency_s"]["mean"]["mean"] == 3.0


def test_without_the_baseline_there_is_no_change() -> None:
    found = compare_results([result("jsq", 0, 1.0)])
    assert found["baseline"] is None
    assert found["rows"][0]["latency_change_pct"] == {"mean": None, "ci95": None}
    table = comparison_table(found)
    assert [row[0] for row in table.rows] == ["jsq"]
    assert not [column for column in table.columns if "change" in column.header]
    assert table.base is None


def test_the_weakest_provenance_counts() -> None:
    runs = [result("a", 0, 1, provenance=Provenance.MEASURED), result("b", 0, 1, provenance=Provenance.MODELLED)]
    assert compare_results(runs)["provenance"] == "modelled"


def test_an_accuracy_that_nobody_measured_is_said() -> None:
    runs = [result("a", 0, 1), result("b", 0, 1, accuracy_provenance="paper")]
    found = compare_results(runs)
    assert found["accuracy_provenance"] == "paper"
    assert comparison_table(found).title == "toy (datasheet; accuracy: paper)"
    provenance = {column.header: column.provenance for column in comparison_table(found).columns}
    assert (provenance["accuracy"], provenance["mean latency"]) == ("paper", "datasheet")
    assert comparison_table(compare_results(runs[:1])).title == "toy (datasheet)"


def run(router: str, seed: int, accuracy: float, latency_s: float, energy_j: float = 1000.0) -> Result:
    """A result whose widths are expected to be that accurate, whatever its labels."""
    found = summary(record(request(0, 3, latency_s), ended_s=20, energy_j=energy_j), router=router, seed=seed, **WINDOW)
    return {**found, "expected_accuracy": accuracy}


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=2, max_size=9), st.integers(0, 9))
def test_the_paired_interval_is_the_paired_t_tests(pairs: list[tuple[float, float]], seed: int) -> None:
    """Mean and interval as scipy's `ttest_rel` has them, and "differs" is its verdict at 5 %."""
    noise = np.random.default_rng(seed).normal(0, 0.5, (len(pairs), 2))
    values, others = (np.array(pairs) + noise).T
    found, test = paired_difference(values.tolist(), others.tolist()), stats.ttest_rel(values, others)
    low, high = test.confidence_interval(0.95)
    assert found["difference"]["mean"] == pytest.approx((low + high) / 2, abs=1e-9)
    assert found["difference"]["ci95"] == pytest.approx((high - low) / 2, abs=1e-9)
    assert found["differs"] == (test.pvalue < 0.05)


def test_differences_are_between_runs_of_one_seed() -> None:
    """Against the baseline, or whichever router is named; a seed that only one of the two has is left out."""
    runs = [run("random", 0, 0.7, 2.0), run("random", 1, 0.7, 4.0), run("jsq", 1, 0.7, 1.0), run("jsq", 0, 0.7, 1.0)]
    runs.append(run("jsq", 2, 0.7, 9.0))
    paired = compare_results(runs)["paired"]
    assert paired is not None
    assert (paired["against"], [row["router"] for row in paired["rows"]]) == ("random", ["random", "jsq"])
    itself, jsq = paired["rows"]
    assert (itself["latency_mean_s"]["difference"], jsq["seeds"]) == ({"mean": 0.0, "ci95": 0.0}, [1, 0])
    assert jsq["latency_mean_s"]["difference"]["mean"] == -2.0
    assert jsq["latency_mean_s"]["percent"]["mean"] == pytest.approx((-50 - 75) / 2)
    assert jsq["latency_mean_s"]["differs"] is False
    moved = compare_results(runs, "jsq")
    other, change = moved["paired"], moved["rows"][0]["latency_change_pct"]
    assert other is not None
    assert (other["against"], moved["baseline"], change["mean"]) == ("jsq", "jsq", pytest.approx((100 + 300) / 2))
    assert other["rows"][0]["latency_mean_s"]["difference"]["mean"] == 2.0
    assert {measure.name for measure in PAIRED} < set(other["rows"][0])


def test_comparison_of_one_seed_has_no_interval() -> None:
    """Without the baseline there are no differences at all."""
    paired = compare_results([run("random", 0, 0.7, 2.0), run("jsq", 0, 0.7, 1.0)])["paired"]
    assert paired is not None
    assert paired["rows"][1]["latency_mean_s"] == {
        "difference": {"mean": -1.0, "ci95": None}, "percent": {"mean": -50.0, "ci95": None}, "differs": None,
        "ratio": {"ratio": 0.5, "low": None, "high": None, "runs": 1, "differs": None},
    }  # fmt: skip
    assert compare_results([run("jsq", 0, 0.7, 1.0)])["paired"] is None
    with pytest.raises(InputError, match="did you mean 'jsq'"):
        compare_results([run("jsq", 0, 0.7, 1.0)], baseline="jqs")


def test_the_worst_seed_of_each_metric() -> None:
    """The longest latency and the least accuracy, be they of two seeds; unknown if it is of any."""
    runs = [run("a", 0, 0.75, 3.0), run("a", 1, 0.70, 1.0)]
    (worst,) = compare_results(runs)["worst"]
    assert (worst["latency_mean_s"], worst["expected_accuracy"]) == (3.0, 0.70)
    nothing = summary(record(request(0, 3, 7, "in_flight")), router="a", seed=2, **WINDOW)
    assert compare_results([*runs, nothing])["worst"][0]["latency_mean_s"] is None


def test_fronts_are_of_means_over_seeds() -> None:
    """Who is beaten is off the front; who has no number is in no front; hypervolume counts down from the worst."""
    runs = [run("fast", 0, 0.70, 1.0), run("fast", 1, 0.70, 1.2), run("good", 0, 0.76, 3.0), run("bad", 0, 0.70, 2.0)]
    nothing = summary(record(request(0, 3, 7, "in_flight")), router="stuck", seed=0, **WINDOW)
    found = compare_results([*runs, {**nothing, "expected_accuracy": 0.7}])
    rows = found["pareto"]["fronts"]["latency_mean_s"]
    assert {row["router"]: (row["accuracy"], row["on_front"]) for row in rows} == {
        "fast": (0.70, True), "good": (0.76, True), "bad": (0.70, False),
    }  # fmt: skip
    assert found["pareto"]["accuracy"] == "expected_accuracy"
    volume = found["hypervolume"]["latency_mean_s"]
    assert volume["reference"] == {"accuracy": 0.70, "cost": 3.0}
    assert (volume["area"], volume["share"]) == (0.0, 0.0)  # each is the worst in one of the two
    given = compare_results(runs, references={"latency_mean_s": ParetoPoint("corner", 0.60, 4.0)})
    area = given["hypervolume"]["latency_mean_s"]["area"]
    assert area == pytest.approx(0.10 * (4.0 - 1.1) + 0.06 * (4.0 - 3.0))


def test_accuracy_with_noise_where_nothing_better_is_known() -> None:
    labelled: Result = {**run("b", 0, 0.7, 1.0), "expected_accuracy": None}
    found = compare_results([run("a", 0, 0.7, 1.0), labelled])
    assert found["pareto"]["accuracy"] == "accuracy"
    assert [row["accuracy"] for row in found["pareto"]["fronts"]["latency_mean_s"]] == [1.0, 1.0]


def test_the_gap_is_to_the_bound_at_no_more_accuracy() -> None:
    """Between two points the bound is not known, but more accuracy can't be cheaper; below the first nothing is."""
    curve = [(0.70, 1.0), (0.74, 2.0), (0.76, 4.0)]
    asked = (0.69, 0.70, 0.73, 0.74, 0.7599999999999, 0.80)
    assert [least_cost(curve, accuracy) for accuracy in asked] == [None, 1.0, 1.0, 2.0, 4.0, 4.0]
    runs = [run("a", 0, 0.75, 3.0), run("b", 0, 0.60, 3.0)]
    found = compare_results(runs, bounds={"latency_mean_s": curve})
    a, b = found["pareto"]["fronts"]["latency_mean_s"]
    assert (a["bound"], a["gap_pct"]) == (2.0, 50.0)
    assert (b["bound"], b["gap_pct"]) == (None, None)
    assert list(found["pareto"]["bounds"]) == ["latency_mean_s"]
    assert found["pareto"]["fronts"]["latency_p99_s"][0]["bound"] is None
    asked_for = bound_accuracies(found, between=2)
    assert asked_for == pytest.approx([0.60, 0.65, 0.70, 0.75], abs=1e-8)
    assert all(least_cost([(x, 1.0) for x in asked_for], y) == 1.0 for y in (0.60, 0.75))
    assert set(found["pareto"]["fronts"]) == {cost.name for cost in COSTS}


@pytest.mark.parametrize("freedom", [1, 2, 9, 19, 20, 200])
def test_students_quantiles_are_those_of_scipy(freedom: int) -> None:
    assert student_t(freedom) == stdtrit(freedom, 0.975)


SOME = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8)  # few values: many ties


def points_of(pairs: list[tuple[int, int]]) -> list[ParetoPoint]:
    return [ParetoPoint(f"r{index}", accuracy / 8, float(cost)) for index, (accuracy, cost) in enumerate(pairs)]


@given(SOME)
def test_the_front_is_what_nobody_beats(pairs: list[tuple[int, int]]) -> None:
    points = points_of(pairs)
    expected = {
        one.name
        for one in points
        if not any(
            (other.accuracy > one.accuracy and other.cost <= one.cost)
            or (other.accuracy >= one.accuracy and other.cost < one.cost)
            for other in points
        )
    }
    front = pareto_front(points)
    assert {point.name for point in front} == expected
    assert all(a.cost <= b.cost and a.accuracy <= b.accuracy for a, b in pairwise(front))


@given(SOME, st.integers(0, 6), st.integers(0, 6))
def test_hypervolume_counts_covered_cells(pairs: list[tuple[int, int]], accuracy: int, cost: int) -> None:
    """All values lie on a grid, so the area is a number of cells; whatever the reference."""
    points, reference = points_of(pairs), ParetoPoint("reference", accuracy / 8, float(cost))
    cells = sum(
        any(high >= row + 1 and low <= column for high, low in pairs)
        for row in range(accuracy, 8)
        for column in range(cost)
    )
    assert hypervolume(points, reference) == pytest.approx(cells / 8)


@given(SOME)
def test_contributions_are_nobody_elses(pairs: list[tuple[int, int]]) -> None:
    """Never negative, nothing for what is beaten or has a twin, together no more than the whole."""
    points = points_of(pairs)
    reference = worst_corner(points)
    found = contributions(points, reference)
    assert min(found.values()) >= 0
    assert sum(found.values()) <= hypervolume(points, reference) + 1e-12
    front = {point.name for point in pareto_front(points)}
    assert all(found[point.name] == 0 for point in points if point.name not in front)


def test_hypervolume_by_hand_and_by_chance() -> None:
    """Two steps: 0.2 x 3 and 0.1 x 1 above the reference at 0.7 and 5; a drawn point hits that share of the box."""
    points = [
        ParetoPoint("a", 0.8, 1.0),
        ParetoPoint("b", 0.9, 2.0),
        ParetoPoint("beaten", 0.75, 4.0),
        ParetoPoint("c", 0.7, 5.0),
    ]
    corner = worst_corner(points)
    assert (corner.accuracy, corner.cost) == (0.7, 5.0)
    assert hypervolume(points, corner) == pytest.approx(0.2 * 3 + 0.1 * 1)
    share = share_covered(points, corner)
    assert share == pytest.approx(0.7 / 0.8)
    drawn = np.random.default_rng(0).uniform((0.7, 1.0), (0.9, 5.0), (20_000, 2))
    hit = np.any([(drawn[:, 0] <= p.accuracy) & (drawn[:, 1] >= p.cost) for p in points], axis=0)
    assert hit.mean() == pytest.approx(share, abs=0.01)
    assert contributions(points, corner) == pytest.approx({"a": 0.1, "b": 0.3, "beaten": 0.0, "c": 0.0})


def test_hypervolume_of_one_router_or_one_accuracy_is_zero() -> None:
    """Shares of an area of zero are undefined."""
    alone = [ParetoPoint("a", 0.8, 1.0)]
    assert hypervolume(alone, worst_corner(alone)) == 0
    assert share_covered(alone, worst_corner(alone)) is None
    flat = [ParetoPoint("a", 0.8, 1.0), ParetoPoint("b", 0.8, 2.0)]
    assert share_covered(flat, worst_corner(flat)) is None


P99S = (0.0080, 0.0085, 0.0090, 0.0082, 0.0088)


def router(name: str, accuracy: float, slower: float = 1.0) -> RankedRouter:
    values = {seed: slower * p99_s * (1.1 if seed % 2 else 0.9) for seed, p99_s in enumerate(P99S)}
    own = dict(enumerate(P99S)) if slower == 1.0 else values
    return RankedRouter(name, accuracy, max(own.values()), own, {})


def test_ranking_without_floor_drops_an_equally_fast_less_accurate_router() -> None:
    """With a floor that both routers keep, accuracy above it decides nothing."""
    routers = [router("ladder", 0.7643), router("own", 0.7299, 1.06), router("near", 0.7638, 1.07)]
    free = Ranking.by(Promise(), routers)
    assert free.first == ("ladder", "near")
    assert Ranking.by(Promise(), routers[:2]).winner is routers[0]
    assert Ranking.by(Promise(floor=0.7), routers).first == ("ladder", "own", "near")
    better = [router("quick", 0.73), router("accurate", 0.76, 1.06)]
    assert Ranking.by(Promise(), better).first == ("quick", "accurate")


def test_of_one_run_nobody_wins_by_accuracy_either() -> None:
    """Without a floor the less accurate one is out, which leaves no tie; but one run tells nothing of chance."""
    one, other = (
        RankedRouter(name, top1, p99_s, {0: p99_s}, {}) for name, top1, p99_s in (("a", 0.73, 1), ("b", 0.69, 2))
    )
    ranking = Ranking.by(Promise(), [one, other])
    assert ranking.is_open
    assert ranking.winner is None


def test_a_p99_at_its_limit_keeps_it() -> None:
    promise = Promise(p99_limit_s=0.1)
    assert not promise.missed_by(RankedRouter("a", 0.7, 0.1, {0: 0.1}, {}))
    assert promise.missed_by(RankedRouter("a", 0.7, 0.1001, {0: 0.1001}, {}))
