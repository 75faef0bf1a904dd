"""The arithmetic of the peers' table, from figures that were made up so that the answers are known."""

from __future__ import annotations

import pytest

from benchmarks.speed.peers.figures import Repeat, format_report, repeat_of, summarise
from benchmarks.speed.peers.load import mean_batch

BARE = ({"images_per_s": 900.0, "paced_s": 0.003, "tight_s": 0.001}, {"images_per_s": 1100.0, "paced_s": 0.001,
                                                                     "tight_s": 0.001})  # fmt: skip


def _repeat(images_per_s: float, p50_s: float, hops: int = 1) -> Repeat:
    saturated = {"images_per_s": images_per_s, "mean_batch": 8.0, "hops": hops}
    low = {"latencies_s": [p50_s - 0.001, p50_s, p50_s + 0.001]}
    return repeat_of(saturated, low, BARE)


def test_overheads_are_over_the_neighbouring_bare_loops() -> None:
    """Their mean (1000 images/s, 2 ms paced, 1 ms tight) is what shares and overheads refer to."""
    figures = _repeat(500.0, 0.010, hops=4).figures
    assert figures["share_of_bare"] == pytest.approx(0.5)
    assert figures["overhead_p50_s"] == pytest.approx(0.008)
    assert figures["overhead_p50_per_hop_s"] == pytest.approx(0.002)
    assert figures["overhead_p50_over_tight_s"] == pytest.approx(0.009)
    assert figures["p50_s"] < figures["p99_s"] < 0.011


def test_ratios_are_taken_within_a_repeat() -> None:
    """Twice a machine that has slowed down by half is still twice: no spread, where that of the means is wide."""
    repeats = {
        "ours": [_repeat(800.0, 0.004), _repeat(400.0, 0.006)],
        "peer": [_repeat(400.0, 0.006), _repeat(200.0, 0.010)],
    }
    report = summarise(repeats)
    ratio = report["ours_to"]["peer"]
    assert (ratio["images_per_s"]["mean"], ratio["images_per_s"]["ci95"]) == (pytest.approx(2), pytest.approx(0))
    assert (ratio["overhead_p50_s"]["mean"], ratio["overhead_p50_s"]["ci95"]) == (pytest.approx(0.5), pytest.approx(0))
    assert report["systems"]["peer"]["images_per_s"]["ci95"] > 100
    assert "throughput 2.00 +-0.00 (goal: at least 3, missed)" in format_report(report)


def test_goals_are_met_at_their_bounds_and_a_lone_system_has_no_ratios() -> None:
    """At least 3 times is met by 4 times; half of the latency is no more than all of it."""
    text = format_report(summarise({"ours": [_repeat(800.0, 0.004)], "peer": [_repeat(200.0, 0.010)]}))
    assert text.count(", met)") == 2
    assert summarise({"ours": [_repeat(800.0, 0.004)]})["ours_to"] == {}


def test_batches_are_counted_once_though_seen_by_each_request() -> None:
    """One batch of 4 and two of 1 are three batches of six requests."""
    assert mean_batch([4, 4, 4, 4, 1, 1]) == pytest.approx(2)
