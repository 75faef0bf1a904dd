"""Results are typed, are called as the catalogue calls them, and lose nothing of their documents."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import pytest

from scenarios.metrics.fidelity import validate_results
from scenarios.metrics.metric_catalogue import MEASURES, OF_SERVERS
from scenarios.metrics.router_comparison import compare_results
from slimsched import Comparison, Estimate, InputError, RunResult, ServerResult, Validation
from slimsched.results import LABELS
from tests.scenarios.folders import simulated
from tests.scenarios.test_fidelity import repeats


@pytest.fixture(scope="module")
def documents() -> list[Any]:
    return [simulated(router, seed)[0] for router in ("random", "jsq") for seed in (0, 1)]


def test_a_run_has_every_number_of_the_catalogue_by_its_name(documents: list[Any]) -> None:
    assert [field.name for field in dataclasses.fields(ServerResult)] == ["name", *(each.name for each in OF_SERVERS)]
    for document in documents:
        run = RunResult(document, remarks=("a remark",))
        assert {name: getattr(run, name) for name in MEASURES} == {
            name: measure.of(document) for name, measure in MEASURES.items()
        }
        assert [dataclasses.asdict(server) for server in run.servers] == document["servers"]
        assert run.rows()[0] == {name: getattr(run, name) for name in (*LABELS, *MEASURES)}
        assert json.loads(run.to_json()) == json.loads(json.dumps(document))
        assert run.remarks == ("a remark",)
    with pytest.raises(AttributeError, match="no 'latency_p98_s'"):
        _ = run.latency_p98_s


def test_a_result_can_not_be_changed(documents: list[Any]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunResult(documents[0]).document = documents[1]  # type: ignore[misc]


def test_a_comparison_has_means_and_all_runs(documents: list[Any], tmp_path: Any) -> None:
    document = compare_results(documents)
    table = Comparison(document, documents, tmp_path)
    assert [summary.router for summary in table.routers] == ["random", "jsq"]
    for summary, row in zip(table.routers, document["rows"], strict=True):
        assert dataclasses.asdict(summary.estimates["latency_p99_s"]) == row["latency_s"]["p99"]
        assert dataclasses.asdict(summary.latency_change_pct) == row["latency_change_pct"]
        assert (summary.seeds, summary.is_flagged) == ((0, 1), row["is_flagged"])
    values = [row["latency_mean_s"] for row in table.rows() if row["router"] == "jsq"]
    assert table.routers[1].estimates["latency_mean_s"].mean == pytest.approx(sum(values) / 2)
    assert [(row["router"], row["seed"]) for row in table.rows()] == [
        (found["router"], found["seed"]) for found in documents
    ]


def test_a_validation_has_both_experiments_of_a_pair(tmp_path: Any) -> None:
    document = validate_results(repeats("a", 1.0, [1.0, 2.0]), "measured")  # type: ignore[arg-type]
    found = Validation(document, tmp_path)
    assert [pair.error_pct for pair in found.pairs] == [pair["error_pct"] for pair in document["pairs"]]
    assert [(row["repeat"], row["mode"]) for row in found.rows()] == [
        (repeat, mode) for repeat in (0, 1) for mode in ("simulation", "executors")
    ]
    assert found.rows()[1]["latency_mean_s"] == document["pairs"][0]["executors"]["latency_s"]["mean"]


def test_a_frame_is_the_rows(documents: list[Any]) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    run = RunResult(documents[0])
    frame = run.to_frame()
    assert (list(frame.columns), frame["latency_mean_s"][0]) == ([*LABELS, *MEASURES], run.latency_mean_s)


def test_without_pandas_it_says_what_to_do(documents: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"to_frame: needs pandas.*slim-scheduler\[frames\].*rows\(\)"):
        RunResult(documents[0]).to_frame()


def test_an_estimate_is_shown_with_its_interval() -> None:
    assert (f"{Estimate(0.5, 0.25):.2f} s", f"{Estimate(0.7643, 0.0009):.2%}") == ("0.50 +-0.25 s", "76.43% +-0.09%")
    assert [f"{Estimate(mean, None):.1f}" for mean in (0.5, None)] == ["0.5", "-"]
