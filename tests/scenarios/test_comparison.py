"""Results side by side: means, intervals and errors by hand."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from policies.vocabulary import Provenance
from scenarios.comparison import compare_results, estimate
from scenarios.result import Result
from scenarios.tables import format_comparison
from tests.scenarios.folders import summary
from tests.scenarios.test_result import WINDOW, record, request


def result(router: str, seed: int, latency_s: float, **changes: Any) -> Result:
    """A result with this mean latency."""
    return summary(record(request(0, 3, latency_s), ended_s=20), router=router, seed=seed, **WINDOW, **changes)


def test_the_interval_is_students() -> None:
    """The half-width is the 97.5 % quantile of t times the standard error; one value has none."""
    found = estimate([1.0, 2.0, 3.0])
    assert found == {"mean": 2.0, "ci95": pytest.approx(stats.t.ppf(0.975, 2) / 3**0.5)}
    assert estimate([4.0]) == {"mean": 4.0, "ci95": None}
    assert estimate([4.0, None]) == {"mean": None, "ci95": None}


def test_changes_are_paired_by_seed() -> None:
    """Each seed is compared with the baseline's run of that seed, in whatever order they come."""
    runs = [result("jsq", 1, 2.0), result("random", 0, 2.0), result("random", 1, 4.0), result("jsq", 0, 1.0)]
    rows = {row["router"]: row for row in compare_results(runs)["rows"]}
    assert rows["jsq"]["latency_change_pct"] == {"mean": -50.0, "ci95": 0.0}
    assert rows["jsq"]["energy_change_pct"]["mean"] == -50.0
    assert rows["random"]["latency_change_pct"]["mean"] == 0.0
    assert rows["random"]["latency_s"]["mean"]["mean"] == 3.0


def test_without_the_baseline_there_is_no_change() -> None:
    """No baseline, no change: null, and the table still prints."""
    found = compare_results([result("jsq", 0, 1.0)])
    assert found["baseline"] is None
    assert found["rows"][0]["latency_change_pct"] == {"mean": None, "ci95": None}
    assert "jsq" in format_comparison(found)


def test_the_weakest_provenance_counts() -> None:
    """A comparison rests on all its results."""
    runs = [result("a", 0, 1, provenance=Provenance.MEASURED), result("b", 0, 1, provenance=Provenance.MODELLED)]
    assert compare_results(runs)["provenance"] == "modelled"


def test_an_accuracy_that_nobody_measured_is_said() -> None:
    """One result on the paper's table marks the comparison and its print; one stored without the key is measured."""
    runs = [result("a", 0, 1), result("b", 0, 1, accuracy_provenance="paper")]
    found = compare_results(runs)
    assert found["accuracy_provenance"] == "paper"
    assert "accuracy: paper" in format_comparison(found).splitlines()[0]
    old: Any = {key: value for key, value in runs[0].items() if key != "accuracy_provenance"}
    measured = compare_results([old])
    assert measured["accuracy_provenance"] == "measured"
    assert "accuracy:" not in format_comparison(measured)


def test_columns_are_aligned() -> None:
    """Every line of a table ends where its head's columns end."""
    text = format_comparison(compare_results([result("random", 0, 1.0), result("a-long-name", 0, 123.0)]))
    head, rule, *rows = text.splitlines()[1:-1]
    assert all(len(line) <= len(rule) for line in (head, *rows))
    assert rule.index("  ") == len("a-long-name")
