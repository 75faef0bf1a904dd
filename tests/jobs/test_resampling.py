"""Intervals from blocks: against what is known, and against the truth of drawn histories."""

from __future__ import annotations

import numpy as np
import pytest

from jobs.job_records import WEEK_S, Blocks, Interval, chance_explains

ALL = np.ones(2000, bool)


def factor(found: Interval) -> float:
    """How many times its value an interval reaches."""
    assert found["value"] is not None
    assert found["low"] is not None
    assert found["high"] is not None
    assert found["high"] * found["low"] == pytest.approx(found["value"] ** 2)  # as far up as down
    return found["high"] / found["value"]


def test_independent_jobs_have_the_interval_of_the_theory() -> None:
    """Where jobs are independent, it is about 1.96 relative standard errors of a mean, in logarithms."""
    rng = np.random.default_rng(1)
    submit_s = np.sort(rng.uniform(0, 40 * WEEK_S, 2000))
    values = rng.exponential(10, 2000)
    found = Blocks.of(submit_s).mean(values, ALL)
    assert found["value"] == pytest.approx(values.mean())
    assert np.log(factor(found)) == pytest.approx(1.96 * values.std() / values.mean() / np.sqrt(2000), rel=0.25)


def test_weeks_that_differ_widen_it() -> None:
    """The same values, all of a week alike: a mean then hangs on 40 weeks, not on 2,000 jobs."""
    rng = np.random.default_rng(2)
    submit_s = np.sort(rng.uniform(0, 40 * WEEK_S, 2000))
    by_week = rng.exponential(10, 41)[(submit_s // WEEK_S).astype(int)]
    blocks = Blocks.of(submit_s)
    together, apart = (blocks.mean(values, ALL) for values in (by_week, rng.permutation(by_week)))
    assert np.log(factor(together)) > 3 * np.log(factor(apart))


def test_it_covers_the_truth() -> None:
    """Of 60 drawn histories with weeks that differ, nine of ten intervals hold the true mean."""
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        submit_s = np.sort(rng.uniform(0, 20 * WEEK_S, 1000))
        level = rng.normal(10, 1.5, 21)[(submit_s // WEEK_S).astype(int)]
        found = Blocks.of(submit_s).mean(level + rng.normal(0, 1, 1000), np.ones(1000, bool))
        held += found["low"] <= 10 <= found["high"]  # type: ignore[operator]
    assert held >= 54


def test_shares_are_paired() -> None:
    """What two policies share cancels: twice the wait has an interval of no width, whatever the weeks do."""
    rng = np.random.default_rng(3)
    submit_s = np.sort(rng.uniform(0, 10 * WEEK_S, 2000))
    base = rng.exponential(100, 2000)
    found = Blocks.of(submit_s).share(2 * base, base, ALL)
    assert [found["value"], found["low"], found["high"]] == pytest.approx([1, 1, 1])


def test_it_is_the_same_whose_wait_stands_above() -> None:
    """Ends of the one are those of the other turned over, so both tell chance alike."""
    rng = np.random.default_rng(4)
    submit_s = np.sort(rng.uniform(0, 10 * WEEK_S, 2000))
    one, other = rng.exponential(100, 2000) ** 2, rng.exponential(110, 2000) ** 2
    blocks = Blocks.of(submit_s)
    found, turned = blocks.share(one, other, ALL), blocks.share(other, one, ALL)
    assert 1 + found["low"] == pytest.approx(1 / (1 + turned["high"]))  # type: ignore[operator]
    assert chance_explains(found) == chance_explains(turned)


@pytest.mark.parametrize("crises, is_chance", [(1, True), (6, False)])
def test_one_crisis_says_nothing_of_others(crises: int, is_chance: bool) -> None:
    """All waits fall to a tenth: where all are of one week, chance explains it; of six weeks, it does not."""
    submit_s = np.linspace(0, 20 * WEEK_S, 2000)
    before = np.zeros(2000)
    for crisis in range(crises):
        before[110 + 300 * crisis : 150 + 300 * crisis] = 1000.0 + 10 * crisis
    found = Blocks.of(submit_s).share(before / 10, before, ALL)
    assert found["value"] == pytest.approx(-0.9)
    assert chance_explains(found) == is_chance


def test_no_wait_is_below_0_and_no_interval_endless() -> None:
    """All waits in one week of four: it reaches as far as it may."""
    submit_s = np.linspace(0, 4 * WEEK_S, 400)
    waits = np.where(submit_s > 3.9 * WEEK_S, 1000.0, 0.0)
    assert factor(Blocks.of(submit_s).mean(waits, ALL[:400])) == pytest.approx(1000)
