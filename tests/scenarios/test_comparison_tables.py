"""A comparison in print and drawn: the paper's layout, pairs, trade-offs."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import InputError
from scenarios.metrics.comparison import compare_results
from scenarios.metrics.result import Result
from scenarios.show.comparison import format_all, format_paper
from scenarios.show.paper import HEAVY, RANDOM, RELAXED, paper_row
from scenarios.show.trade_offs import save_trade_offs
from tests.scenarios.folders import summary
from tests.scenarios.test_comparison import run
from tests.scenarios.test_result import WINDOW, record, request


def of_paper(router: str, seed: int, latency_s: float) -> Result:
    return {**run(router, seed, 0.7, latency_s), "scenario": "paper-1.3x"}


def test_the_papers_numbers_are_beside_ours() -> None:
    """Under each router that the paper has; its changes as its text tells them, ours seed by seed."""
    runs = [of_paper("random", 0, 8.0), of_paper("ppo-heavy", 0, 2.0), of_paper("ppo_relaxed", 0, 4.0),
            of_paper("sticky", 0, 1.0)]  # fmt: skip
    comparison = compare_results(runs)
    lines = format_paper(comparison).splitlines()
    assert [line.split()[0] for line in lines[3:-1]] == [
        "random", "paper,", "ppo-heavy", "paper,", "ppo_relaxed", "paper,", "sticky"
    ]  # fmt: skip
    assert lines[4].split() == [
        "paper,", "Table", "III", "74.43", "8.979", "(7.302)", "1967.94", "(1629.53)", "0.0433", "(0.0216)", "250906",
        "-", "-",
    ]  # fmt: skip
    assert "-75.00 %" in lines[5]
    assert lines[6].split()[-4:] == ["-96.45", "%", "-97.31", "%"]
    assert lines[8].split()[-4:] == ["-32.00", "%", "-45.00", "%"]
    assert "the paper's tables" in format_all(comparison)
    assert "the paper's tables" not in format_all(compare_results([run("random", 0, 0.7, 8.0)]))


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


def test_pairs_and_trade_offs_in_print() -> None:
    """A star where the interval leaves 0 out, the gap to the bound, who is on which front."""
    latencies_s = {"random": (2.0, 2.1, 2.2), "jsq": (1.0, 1.1, 1.3), "noisy": (1.0, 2.0, 4.0)}
    runs = [
        run(router, seed, 0.76 if router == "noisy" else 0.72, latency_s)
        for router, of_seeds in latencies_s.items()
        for seed, latency_s in enumerate(of_seeds)
    ]
    text = format_all(compare_results(runs, bounds={"latency_mean_s": [(0.7, 0.5)]}))
    pairs = text[text.index("differences to 'random'") : text.index("trade-offs")].splitlines()
    assert [line.split()[0] for line in pairs[3:5]] == ["jsq", "noisy"]  # and random is not set beside itself
    assert "-967 +-143*" in pairs[3]
    assert "+233 +-3551 " in pairs[4]
    assert "+0.00 +-0.00" in pairs[3]  # of labels that were all right
    trades = text[text.index("trade-offs") :]
    assert "mean over bound" in trades
    assert "energy over bound" not in trades
    assert "+127 %" in trades  # 1.133 s over 0.5 s
    assert "mean, p99, energy" in trades
    assert trades.splitlines()[-1].startswith("Hypervolume")
    one = format_all(compare_results(runs[:1]))
    assert "differences" not in one
    assert "trade-offs" not in one


def test_pictures_are_whole_and_the_same_each_time(tmp_path: Path) -> None:
    """One panel a cost, as SVG or PNG by the name; nothing to draw is said."""
    runs = [run("random", 0, 0.72, 2.0), run("random", 1, 0.72, 2.1), run("jsq", 0, 0.74, 90.0)]
    comparison = compare_results(runs, bounds={"latency_mean_s": [(0.7, 0.5), (0.74, 0.6)]})
    for name in ("one.svg", "two.svg", "one.png"):
        save_trade_offs(comparison, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "one.svg").read_text()
    assert all(text in drawn for text in ("mean latency, ms", "p99 latency, ms", "fluid bound", "jsq"))
    nothing = summary(record(request(0, 3, 7, "in_flight")), **WINDOW)
    with pytest.raises(InputError, match="nothing to draw"):
        save_trade_offs(compare_results([nothing]), tmp_path / "none.png")
    assert len(list(tmp_path.iterdir())) == 3
