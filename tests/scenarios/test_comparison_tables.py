"""A comparison in print and drawn: the paper's layout, pairs, trade-offs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import InputError
from policies.reward import AccuracyPrior
from scenarios.metrics.comparison import Comparison, compare_results
from scenarios.metrics.result import Result
from scenarios.metrics.service import Promise
from scenarios.show.charts import save, trade_off_chart
from scenarios.show.comparison import comparison_tables, paired_table, paper_table, trade_off_table
from scenarios.show.paper import HEAVY, RANDOM, RELAXED, paper_row
from scenarios.show.result import format_result
from tests.scenarios.folders import summary
from tests.scenarios.test_comparison import run
from tests.scenarios.test_result import WINDOW, record, request


def of_paper(router: str, seed: int, latency_s: float) -> Result:
    return {**run(router, seed, 0.7, latency_s), "scenario": "paper-1.3x"}


def test_the_papers_numbers_are_beside_ours() -> None:
    """Under each router that the paper has; its changes as its text tells them, ours seed by seed."""
    runs = [of_paper("random", 0, 8.0), of_paper("ppo-heavy", 0, 2.0), of_paper("ppo_relaxed", 0, 4.0),
            of_paper("sticky", 0, 1.0)]  # fmt: skip
    rows = {row[0]: row[1:] for row in paper_table(compare_results(runs)).rows}
    assert list(rows) == [
        "random", "  paper, Table III", "ppo-heavy", "  paper, Table IV", "ppo_relaxed", "  paper, Table V", "sticky"
    ]  # fmt: skip
    assert rows["  paper, Table III"] == [
        "74.43", "8.979 (7.302)", "1967.94 (1629.53)", "0.0433 (0.0216)", "250906", "-", "-",
    ]  # fmt: skip
    assert rows["ppo-heavy"][-2] == "-75.00 %"
    assert rows["  paper, Table IV"][-2:] == ["-96.45 %", "-97.31 %"]
    assert rows["  paper, Table V"][-2:] == ["-32.00 %", "-45.00 %"]


def test_only_what_there_is_to_say_has_a_table() -> None:
    """The paper's layout is for its replicas, pairs need two seeds, and trade-offs two routers."""
    replica, other = compare_results([of_paper("random", 0, 8.0)]), compare_results([run("random", 0, 0.7, 8.0)])
    assert [table.title for table in comparison_tables(replica)][1:] == ["the paper's tables"]
    assert len(comparison_tables(other)) == 1
    seeds = [run(router, seed, 0.7, 1.0 + seed) for router in ("random", "jsq") for seed in (0, 1)]
    beginnings = [table.title.split()[0] for table in comparison_tables(compare_results(seeds))]
    assert beginnings == ["toy", "differences", "trade-offs:"]
    assert [table.title.split()[0] for table in comparison_tables(compare_results(seeds[::2]))] == [
        "toy",
        "trade-offs:",
    ]


def test_the_papers_changes_follow_from_its_tables() -> None:
    """As far as its text's digits go: -96.458 % is told as -96.45 %."""
    for row in (HEAVY, RELAXED):
        latency_pct = 100 * (row.latency_s / RANDOM.latency_s - 1)
        energy_pct = 100 * (row.energy_j / RANDOM.energy_j - 1)
        assert row.latency_change_pct == pytest.approx(latency_pct, abs=0.2)
        assert row.energy_change_pct == pytest.approx(energy_pct, abs=0.2)
    watts = [row.energy_j / row.latency_s for row in (RANDOM, HEAVY, RELAXED)]
    assert watts == pytest.approx([219, 166, 178], abs=1)  # so its latencies are seconds
    assert paper_row("jsq") is None


@pytest.fixture(name="compared")
def three_routers() -> Comparison:
    """Of three seeds each; one is better for certain, one as noisy as it is accurate."""
    latencies_s = {"random": (2.0, 2.1, 2.2), "jsq": (1.0, 1.1, 1.3), "noisy": (1.0, 2.0, 4.0)}
    runs = [
        run(router, seed, 0.76 if router == "noisy" else 0.72, latency_s)
        for router, of_seeds in latencies_s.items()
        for seed, latency_s in enumerate(of_seeds)
    ]
    return compare_results(runs, bounds={"latency_mean_s": [(0.7, 0.5)]})


def promised(promise: Promise) -> Result:
    """A run of two windows with somebody in them; the second keeps neither."""
    runs = [request(0, 3.0, 0.01), request(1, 5.0, 0.5)]
    prior = AccuracyPrior({(1.0,): 0.8})
    return summary(record(*runs), **WINDOW, promise=promise, prior=prior)


KEPT_SHARES = {
    "windows kept": "50.0",
    "windows that kept the floor": "100.0",
    "windows that kept the p99 limit": "50.0",
}
FELT = ("p99 latency", "accuracy", "energy per image", "throughput", "mean latency", "mean energy (the paper's E)")


@pytest.mark.parametrize(
    ("promise", "heads", "told"),
    [
        (Promise(0.7, 0.02), list(KEPT_SHARES), "at least 70.00 % and a p99 of at most 20.00 ms"),
        (Promise(0.7), list(KEPT_SHARES)[:1], "an accuracy of at least 70.00 % in each of 3 windows of 2.67 s"),
        (Promise(None, 0.02), list(KEPT_SHARES)[:1], "a p99 of at most 20.00 ms in each of 3 windows of 2.67 s"),
        (Promise(), [], ""),
    ],
)
def test_what_a_user_feels_is_first_then_means(promise: Promise, heads: list[str], told: str) -> None:
    """What is kept where something is promised, in a comparison, on its page and in a single run; two parts of two."""
    found = promised(promise)
    table = comparison_tables(compare_results([found]))[0]
    titles = [column.head for column in table.columns]
    assert titles == ["router", *heads, "images completed", *FELT, "energy change", "latency change"]
    if promise.p99_limit_s is not None:
        assert table.rows[0][1 : 1 + len(heads)] == [KEPT_SHARES[head] for head in heads]
    assert told in table.notes[0]
    assert ("Kept:" in table.notes[0]) == bool(heads)
    first = format_result(found).splitlines()[1]
    assert first.startswith("  kept " if heads else "  images")
    assert told in first or not heads
    if len(heads) == 3:
        assert first.endswith("(the floor in 100.0 %, the p99 limit in 50.0 %)")


def test_energy_differences_have_their_sign() -> None:
    """In every table: who spends more has a plus."""
    runs: list[Result] = []
    for router, joules in (("random", 2.0), ("dear", 3.0), ("lean", 1.0)):
        for seed in (0, 1):
            one = run(router, seed, 0.7, 1.0)
            runs.append({**one, "energy_per_image_j": {**one["energy_per_image_j"], "total": joules}})
    first, paired, _ = comparison_tables(compare_results(runs))
    place = [column.head for column in first.columns].index("energy change")
    assert [row[place].split()[0] for row in first.rows] == ["+0.0", "+50.0", "-50.0"]
    place = [column.head for column in paired.columns].index("energy")
    assert [(row[place][0], row[place + 1][:5]) for row in paired.rows] == [("+", "+50.0"), ("-", "-50.0")]


def test_differences_have_a_star_where_they_are_no_chance(compared: Comparison) -> None:
    """Two digits of the interval count; the router itself is not set beside itself."""
    table = paired_table(compared)
    assert [row[0] for row in table.rows] == ["jsq", "noisy"]
    assert [row[1] for row in table.rows] == ["-967 +-143*", "+233 +-3551 "]
    assert table.rows[0][-1] == "+0.00 +-0.00 "  # of labels that were all right


def test_trade_offs_have_fronts_and_gaps_to_the_bound(compared: Comparison) -> None:
    """1.133 s over 0.5 s; only a cost with a bound has a gap; and everybody's worst seed."""
    table = trade_off_table(compared)
    rows = [dict(zip((column.head for column in table.columns), row, strict=True)) for row in table.rows]
    jsq = next(row for row in rows if row["router"] == "jsq")
    assert (jsq["latency over bound"], jsq["unbeaten at"]) == ("+127 %", "latency, p99")
    assert "energy above idle over bound" not in jsq
    assert (jsq["accuracy"], jsq["latency"], jsq["worst latency"]) == ("72.00", "1133.33", "1300.00")
    assert [note.partition(" ")[0] for note in table.notes] == ["Hypervolume"]


def test_a_hypervolume_that_is_none_says_of_whom() -> None:
    """Who is marked does not count, and may well be another."""
    one, same = run("jsq", 0, 0.7, 1.0), run("random", 0, 0.7, 1.0)
    marked: Result = {**run("quick", 0, 0.9, 0.1), "shares": {**one["shares"], "failed": 0.5, "unserved": 0.5}}
    for runs, said in (
        ([one, same], "all routers are equally accurate or equally costly."),
        ([one, same, marked], "all who serve enough are equally accurate or equally costly."),
        ([one, marked], "only jsq serves enough to count."),
    ):
        assert trade_off_table(compare_results(runs)).notes[0] == f"Hypervolume: none, {said}"


def test_pictures_are_whole_and_the_same_each_time(tmp_path: Path) -> None:
    """One panel a cost, as SVG or PNG by the name; nothing to draw is said."""
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
