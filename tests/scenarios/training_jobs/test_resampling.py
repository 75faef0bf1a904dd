"""The moving-block bootstrap: against what is known, and against the truth of drawn traces."""

from __future__ import annotations

import numpy as np
import pytest

from scenarios.training_jobs.resampling import WEEK_S, Resamples

ALL = np.ones(2000, bool)


def test_independent_jobs_have_the_interval_of_the_theory() -> None:
    """Where jobs are independent, the half-width is about 1.96 standard errors of a mean."""
    rng = np.random.default_rng(1)
    submit_s = np.sort(rng.uniform(0, 40 * WEEK_S, 2000))
    values = rng.exponential(10, 2000)
    found = Resamples.of(submit_s, 0).mean(values, ALL)
    assert found["value"] == pytest.approx(values.mean())
    half = (found["high"] - found["low"]) / 2  # type: ignore[operator]
    assert half == pytest.approx(1.96 * values.std() / np.sqrt(2000), rel=0.25)


def test_weeks_that_differ_widen_it() -> None:
    """The same values, all of a week alike: a mean then hangs on 40 weeks, not on 2,000 jobs."""
    rng = np.random.default_rng(2)
    submit_s = np.sort(rng.uniform(0, 40 * WEEK_S, 2000))
    by_week = rng.exponential(10, 41)[(submit_s // WEEK_S).astype(int)]
    shuffled = rng.permutation(by_week)
    resamples = Resamples.of(submit_s, 0)
    together, apart = resamples.mean(by_week, ALL), resamples.mean(shuffled, ALL)
    assert together["high"] - together["low"] > 3 * (apart["high"] - apart["low"])  # type: ignore[operator]


def test_it_covers_the_truth() -> None:
    """Of 60 drawn histories with weeks that differ, nine of ten intervals hold the true mean."""
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        submit_s = np.sort(rng.uniform(0, 20 * WEEK_S, 1000))
        level = rng.normal(10, 3, 21)[(submit_s // WEEK_S).astype(int)]
        found = Resamples.of(submit_s, seed, draws=400).mean(level + rng.normal(0, 1, 1000), np.ones(1000, bool))
        held += found["low"] <= 10 <= found["high"]  # type: ignore[operator]
    assert held >= 54


def test_differences_are_paired() -> None:
    """What two policies share cancels: a constant difference has an interval of no width, whatever the weeks do."""
    rng = np.random.default_rng(3)
    submit_s = np.sort(rng.uniform(0, 10 * WEEK_S, 2000))
    base = rng.exponential(100, 2000)
    found = Resamples.of(submit_s, 0).mean(base + 5 - base, ALL)
    assert [found["low"], found["high"]] == pytest.approx([5, 5])


def test_the_same_seed_gives_the_same() -> None:
    submit_s = np.arange(2000.0)
    values = np.random.default_rng(4).exponential(1, 2000)
    first, again, other = (Resamples.of(submit_s, seed).mean(values, ALL) for seed in (7, 7, 8))
    assert first == again != other


def test_a_short_trace_has_short_blocks() -> None:
    assert Resamples.of(np.linspace(0, 8 * 86400, 50), 0).block_s == 2 * 86400
    assert Resamples.of(np.linspace(0, 90 * 86400, 50), 0).block_s == WEEK_S


def test_a_share_of_means() -> None:
    found = Resamples.of(np.linspace(0, WEEK_S, 4), 0).ratio(
        np.array([1.0, 2, 3, 4]), np.array([2.0, 4, 6, 8]), np.ones(4, bool), less=1.0
    )
    assert (found["value"], found["low"], found["high"]) == (-0.5, -0.5, -0.5)


def test_no_wait_is_below_0() -> None:
    """A few long waits in one week of four: the widened interval would reach below what a mean of waits can be."""
    submit_s = np.linspace(0, 4 * WEEK_S, 400)
    waits = np.where(submit_s > 3.5 * WEEK_S, 1000.0, 0.0)
    resamples = Resamples.of(submit_s, 0)
    assert resamples.mean(waits, ALL[:400])["low"] == 0.0
    assert resamples.mean(-waits, ALL[:400])["low"] < -waits.mean()
    assert resamples.ratio(waits, np.full(400, 10.0), ALL[:400], less=1.0)["low"] == -1.0


def test_nothing_counts() -> None:
    found = Resamples.of(np.arange(4.0), 0).mean(np.ones(4), np.zeros(4, bool))
    assert found == {"value": None, "low": None, "high": None}


def test_all_at_once() -> None:
    assert Resamples.of(np.zeros(4), 0).mean(np.arange(4.0), np.ones(4, bool))["value"] == 1.5
