"""A comparison in print and drawn: one table, and trade-offs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import InputError
from policies.interfaces import AccuracyPrior
from scenarios.metrics.router_comparison import ComparisonDocument, compare_results
from scenarios.metrics.run_result import Result
from scenarios.metrics.slo import Slo
from scenarios.show.charts import save, trade_off_chart
from scenarios.show.command_tables import format_result
from scenarios.show.comparison_table import comparison_table
from tests.scenarios.folders import summary
from tests.scenarios.test_comparison import run
from tests.scenarios.test_result import WINDOW, record, request


@pytest.fixture(name="compared")
def three_routers() -> ComparisonDocument:
    """Of three seeds each; one is better for certain, one as noisy as it is accurate."""
    latencies_s = {"random": (2.0, 2.1, 2.2), "jsq": (1.0, 1.1, 1.3), "noisy": (1.0, 2.0, 4.0)}
    runs = [
        run(router, seed, 0.76 if router == "noisy" else 0.72, latency_s)
        for router, of_seeds in latencies_s.items()
        for seed, latency_s in enumerate(of_seeds)
    ]
    return compare_results(runs, bounds={"latency_mean_s": [(0.7, 0.5)]})


def promised(slo: Slo) -> Result:
    """A run of two windows with somebody in them; the second keeps neither."""
    runs = [request(0, 3.0, 0.01), request(1, 5.0, 0.5)]
    prior = AccuracyPrior({(1.0,): 0.8})
    return summary(record(*runs), **WINDOW, slo=slo, prior=prior)


@pytest.mark.parametrize(
    ("slo", "kept", "told"),
    [
        (Slo(0.7, 0.02), ["50.0", "100.0", "50.0"], "at least 70.00 % and a p99 of at most 20.00 ms"),
        (Slo(0.7), ["100.0"], "an accuracy of at least 70.00 % in each of 3 windows of 2.67 s"),
        (Slo(), [], ""),
    ],
)
def test_table_of_a_run_with_slo_shows_attainment_first(slo: Slo, kept: list[str], told: str) -> None:
    """Attainment comes first both in a comparison and in a single run."""
    found = promised(slo)
    table = comparison_table(compare_results([found]))
    assert table.rows[0][1 : 1 + len(kept)] == kept
    assert [column.header for column in table.columns][1 + len(kept) :][:2] == ["images completed", "p99 latency"]
    assert (told in table.notes[0], "Kept:" in table.notes[0]) == (True, bool(kept))
    first = " ".join(format_result(found).partition("\n")[2].split())
    assert first.startswith("kept " if kept else "images")
    assert told in first or not kept
    assert ("(the floor in 100.0 %, the p99 limit in 50.0 %) images" in first) == (len(kept) == 3)


def cells_of(comparison: ComparisonDocument) -> dict[str, dict[str, str]]:
    table = comparison_table(comparison)
    return {row[0]: dict(zip((column.header for column in table.columns), row, strict=True)) for row in table.rows}


def test_changes_have_their_sign_and_their_interval(compared: ComparisonDocument) -> None:
    """Seed by seed: who is faster has a minus; the baseline differs from itself by nothing."""
    cells = cells_of(compared)
    assert cells["jsq"]["latency change"] == "-46.3 (-56.7 to -33.5) %"
    assert cells["random"]["latency change"] == cells["jsq"]["energy change"] == "+0.0 (+0.0 to +0.0) %"
    assert "latency change" not in cells_of(compare_results([run("jsq", 0, 0.7, 1.0)]))["jsq"]


def test_trade_offs_have_fronts_and_gaps_to_the_bound(compared: ComparisonDocument) -> None:
    """1.133 s over 0.5 s; only a cost with a bound has a gap."""
    jsq = cells_of(compared)["jsq"]
    assert (jsq["latency over bound"], jsq["unbeaten at"]) == ("+127", "latency, p99")
    assert "energy above idle over bound" not in jsq
    assert "unbeaten at" not in cells_of(compare_results([run("jsq", 0, 0.7, 1.0)]))["jsq"]


def test_pictures_are_whole_and_the_same_each_time(tmp_path: Path) -> None:
    runs = [run("random", 0, 0.72, 2.0), run("random", 1, 0.72, 2.1), run("jsq", 0, 0.74, 90.0)]
    comparison = compare_results(runs, bounds={"latency_mean_s": [(0.7, 0.5), (0.74, 0.6)]})
    for name in ("one.svg", "two.svg", "one.png"):
        save(trade_off_chart(comparison), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "one.svg").read_text()
    assert all(text in drawn for text in ("mean latency, ms", "p99 latency, ms", "fluid bound", "jsq"))
    nothing = summary(record(request(0, 3, 7, "in_flight")), **WINDOW)
    with pytest.raises(InputError, match="nothing to draw"):
        trade_off_chart(compare_results([nothing]))
    assert len(list(tmp_path.iterdir())) == 3
