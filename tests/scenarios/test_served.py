"""Who was not served: shares, marks and words in every table, who can win, and runs that completed nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kit.documents import read_json
from kit.errors import WorkError
from policies.run_records import RequestRecord
from policies.vocabulary import Provenance
from scenarios.metrics.fidelity import Predictions, ValidationRun, validate_results
from scenarios.metrics.router_comparison import ComparisonDocument, compare_results
from scenarios.metrics.run_result import Result
from scenarios.metrics.statistics import Range
from scenarios.show.charts import trade_off_chart
from scenarios.show.comparison_table import comparison_table
from scenarios.show.result_words import require_completed
from scenarios.show.summary_table import format_summary
from scenarios.show.validation_table import errors_tables, saturation_tables, validation_notes
from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import summary, validation_run
from tests.scenarios.test_result import WINDOW, record, request

pytestmark = pytest.mark.usefixtures("undrawn")

IMAGES = 1000


def result(
    router: str,
    *,
    failed: int = 0,
    left: int = 0,
    latency_s: float = 1.0,
    accuracy: float = 0.7,
    seed: int = 0,
    **more: Any,
) -> Result:
    """Of a thousand images so many failed (shed) or were left; the rest completed with this latency."""
    requests: list[RequestRecord] = []
    for number in range(IMAGES):
        if number < failed:
            requests.append(replace(request(number, 3, 0.5, "failed"), reason="deadline"))
        else:
            requests.append(request(number, 3, latency_s, "in_flight" if number < failed + left else "completed"))
    found = summary(record(*requests, ended_s=20), router=router, seed=seed, **WINDOW, **more)
    return {**found, "expected_accuracy": accuracy}


def rows_of(found: ComparisonDocument) -> dict[str, Any]:
    return {row["router"]: row for row in found["rows"]}


def test_requests_left_after_the_drain_are_unserved_and_those_cut_off_are_not() -> None:
    drained = result("a", failed=20, left=30)
    assert drained["end"] == "drain"
    assert drained["shares"] == {"completed": 0.95, "unfinished": 0.03, "failed": 0.02, "unserved": 0.05}
    cut = result("a", failed=20, left=30, end="cut")
    assert (cut["end"], cut["shares"]) == ("cut", {**drained["shares"], "unserved": 0.02})
    assert summary(record(), **WINDOW)["shares"] == dict.fromkeys(drained["shares"])


def test_router_above_one_percent_unserved_is_flagged_and_on_no_front() -> None:
    """The shedder is fastest and most accurate, but on no Pareto front; exactly 1 % is allowed."""
    runs = [result("random", latency_s=2.0), result("shedder", failed=11, latency_s=0.1, accuracy=0.9)]
    found = compare_results([*runs, result("jsq", failed=10, accuracy=0.6)])
    rows = rows_of(found)
    assert {router: row["is_flagged"] for router, row in rows.items()} == {
        "random": False,
        "shedder": True,
        "jsq": False,
    }
    assert rows["shedder"]["failures"] == {"deadline": 0.011}
    assert rows["shedder"]["shares"]["unserved"]["mean"] == 0.011
    for rows_of_cost in found["pareto"]["fronts"].values():
        assert {row["router"]: row["on_front"] for row in rows_of_cost}["shedder"] is False
    on_front = {row["router"] for row in found["pareto"]["fronts"]["latency_mean_s"] if row["on_front"]}
    assert on_front == {"random", "jsq"}
    alone = compare_results([runs[0], result("jsq", failed=10, accuracy=0.6)])
    assert found["hypervolume"] == alone["hypervolume"]


def test_the_mark_is_of_all_runs_of_a_router() -> None:
    """The mean that the table shows: one bad seed of three may be no more than 1 % in all."""
    few, many = (
        [result("a", failed=of, seed=seed) for seed, of in enumerate(each)] for each in ((30, 0, 0), (30, 3, 0))
    )
    assert rows_of(compare_results(few))["a"]["is_flagged"] is False
    assert rows_of(compare_results(many))["a"]["is_flagged"] is True


def test_a_comparison_has_the_mark() -> None:
    runs = [result(router, seed=seed, failed=of, latency_s=1 + seed) for router, of in (("random", 5), ("shedder", 50))
            for seed in (0, 1)]  # fmt: skip
    first = comparison_table(compare_results(runs))
    heads = [column.header for column in first.columns]
    assert heads[:4] == ["router", "images completed", "images failed", "p99 latency"]
    assert [row[:3] for row in first.rows] == [
        ["random", "99.50 +-0.00", "0.50 +-0.00"],
        ["shedder !", "95.00 +-0.00", "5.00 +-0.00"],
    ]
    assert "random leaves 0.50 % of the images unserved (shed at the deadline 0.50 %)." in first.notes
    (warning,) = first.warnings
    assert warning.startswith("shedder ! leaves 5.00 % of the images unserved (shed at the deadline 5.00 %): ")
    assert "never called the winner" in warning
    assert {row[0]: row[-1] for row in first.rows} == {
        "random": "latency, p99, energy above idle", "shedder !": "-",
    }  # fmt: skip


def test_comparison_with_all_routers_flagged_has_no_winner() -> None:
    found = compare_results([result("random", left=20), result("jsq", failed=20)])
    assert found["hypervolume"] == {}
    assert comparison_table(found).warnings[-1] == "Every router leaves more than 1 % unserved: no router wins."
    assert comparison_table(found).base == "random !"
    heads = [column.header for column in comparison_table(found).columns]
    assert heads[1:4] == ["images completed", "images unfinished", "images failed"]
    trade_off_chart(found)


def pair(router: str, simulated: dict[str, Any], executors: dict[str, Any], **place: Any) -> ValidationRun:
    real = result(router, mode="executors", engine="torch", **executors)
    return validation_run(result(router, **simulated), real, **place)


def test_a_experiment_that_leaves_images_is_marked_and_its_row_is_not_judged() -> None:
    """Shares of simulation and executors, the reasons in words; the ranking goes on without the router."""
    runs = [pair("a", {}, {}), pair("b", {"failed": 3, "latency_s": 2.0}, {"failed": 50, "latency_s": 2.0}),
            pair("c", {"latency_s": 3.0}, {"latency_s": 0.5})]  # fmt: skip
    ranges: Predictions = {
        (router, None, 0): {"latency_mean": Range(low=1.9, median=2.0, high=2.1)} for router in ("a", "b")
    }
    found = validate_results(runs, Provenance.MEASURED, ranges)
    a, b, _ = found["rows"]
    assert (a["case"]["latency_mean"], b["case"]["latency_mean"]) == ("inside", None)
    assert b["error_pct"]["latency_mean"] == 0.0
    assert found["coverage"]["latency_mean"] == {"inside": 0, "of": 1, "least": 0}, "a alone is judged"
    assert (b["served"]["executors"]["failures"], found["ranking"][0]["left_out"]) == ({"deadline": 0.05}, ["b"])
    assert found["ranking"][0]["pairs"] == 1
    assert found["ranking_tau"] == pytest.approx(-1), "b would have agreed with a"
    (table,) = errors_tables(found)
    assert [column.title for column in table.columns][1:3] == ["completed sim./exec. %", "failed sim./exec. %"]
    assert [row[:3] for row in table.rows][:2] == [
        ["a", "100.00/100.00", "0.00/0.00"],
        ["b !", "99.70/95.00", "0.30/5.00"],
    ]
    assert table.notes == ["b in simulation leaves 0.30 % of the images unserved (shed at the deadline 0.30 %)."]
    (warning,) = table.warnings
    assert warning.startswith("b ! on executors leaves 5.00 % of the images unserved")
    assert warning in format_summary(None, found).replace("\n", " ")
    assert any("(without b: too much unserved)" in note for note in validation_notes(found))


def test_requests_cut_off_by_a_saturated_run_flag_no_router() -> None:
    growth = {"simulated": 0.2, "executors": 0.2}
    cut = {"end": "cut"}
    runs = [
        pair("a", {"left": 200, **cut}, {"left": 210, **cut}, kind="saturated", rate_img_s=500, backlog_growth=growth),
        pair(
            "b", {"failed": 200, **cut}, {"left": 210, **cut}, kind="saturated", rate_img_s=500, backlog_growth=growth
        ),
    ]
    found = validate_results([pair("a", {}, {}), *runs], Provenance.MEASURED)
    (table,) = saturation_tables(found)
    assert [row[0] for row in table.rows] == ["a", "b !"]
    assert [row["met"] for row in found["saturated"]] == [True, None]
    assert [row[2] for row in table.rows] == ["20.00/21.00", "0.00/21.00"]
    assert "flag no router" in table.notes[-1]


DOWN: dict[str, Any] = {"server": "gpu0", "cause": "planned", "planned": True, "down_s": 0.0, "up_s": None}


@pytest.mark.parametrize(
    "results, said",
    [
        ([result("a", failed=990, left=10, seed=seed) for seed in (0, 1)],
         "'a' completed nothing (simulation, seeds 0, 1): of 2000 images 1980 shed at the deadline, 20 unfinished; "
         "give more time (deadline_s), switch shed off, or lower the rate. Everything else is kept"),
        ([summary(record(), router="a", mode="executors", **WINDOW)],
         "'a' completed nothing (executors, seed 0): no image arrived; give duration_s"),
        ([{**result("a", left=1000), "restarts": [DOWN, DOWN]}],
         "1000 unfinished; 'gpu0' went down and never came back: look at restarts in the result, and at faults."),
        ([{**result("a", left=1000), "restarts": [{**DOWN, "up_s": 1.0}]}],
         ": of 1000 images 1000 unfinished; lower the rate, or give duration_s more time."),
    ],
)  # fmt: skip
def test_runs_that_completed_nothing_are_an_error_with_the_reason(results: Any, said: str) -> None:
    require_completed([result("a", failed=999)])
    with pytest.raises(WorkError, match=re.escape(said)):
        require_completed(results)


def test_simulate_ends_with_an_error_and_shows_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document is there, the exit code is 1, and the message is one line."""
    path = write_scenario(tmp_path, "duration_s: 1\n", "duration_s: 1\ndeadline_s: 0.001ms\nshed: true\n")
    assert main(["simulate", str(path), "--router", "jsq", "--json", str(tmp_path / "r.json")]) == 1
    out, err = capsys.readouterr()
    assert "0 of" in out
    assert err.splitlines()[-1].startswith("slimsched: 'jsq' completed nothing (simulation, seed 0): of ")
    assert read_json(tmp_path / "r.json")["shares"]["completed"] == 0.0


SLOW = """
from policies.vocabulary import Choice


class Slow:
    def __init__(self, context):
        pass

    def choose(self, view, rng):
        return Choice(1, 1.0, 1)
"""


def test_compare_keeps_the_others_and_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables and documents of all; again, the same command says the same without running anything.

    The deadline passes while the slow server runs an image's first segment: whoever takes that one serves nobody.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)
    path = write_scenario(tmp_path, "duration_s: 1\n", "duration_s: 1\ndeadline_s: 2ms\nshed: true\n")
    path.write_text(path.read_text().replace("rate_img_s: 200", "rate_img_s: 20"))
    command = ["compare", str(path), "--router", "sticky", "--router", "slow:Slow", "--out", "run"]
    for _ in range(2):
        assert main(command) == 1
        printed, err = capsys.readouterr()
        assert err.splitlines()[-1].startswith("slimsched: 'slow:Slow' completed nothing (simulation, seeds 0, 1): of ")
        assert "slow:Slow !" in printed
    rows = {row["router"]: row for row in read_json(Path("run/comparison.json"))["rows"]}
    assert rows["sticky"]["latency_s"]["mean"]["mean"] > 0
    assert len(read_json(Path("run/results.json"))) == 4
    sys.modules.pop("slow")


def test_a_run_in_which_nothing_happened_is_reported_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tables have no rows, and so no columns; the page is where one looks for what went wrong."""
    down = "".join(f"- {{kind: server_down, server: {name}, start_s: 0}}\n" for name in ("fast", "slow"))
    scenario = write_scenario(tmp_path, "duration_s: 1\n", f"duration_s: 1\nfaults:\n{down}")
    assert main(["compare", str(scenario), "--out", str(tmp_path / "run"), "--quiet", "--jobs", "1"]) == 1
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"reports": [str(tmp_path / "run" / "report.html")]}
