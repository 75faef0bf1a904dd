"""Figures of a run of training jobs: by hand, and by laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jobs.job_records import WEEK_S, Blocks, Interval, by_job, chance_explains, figures, groups_of
from tests.jobs.sim.cluster_models import S, jobs, run

# one node of 4 GPUs: the first job fills it for 100 s; the second waits 90 s, the third 80 s
THREE = [(0, 100, 4), (10, 50, 2), (20, 5, 1)]


def test_figures_by_hand() -> None:
    record = run("fifo", jobs(*THREE, user=["a", "b", "b"]))
    found = figures(record, 4)
    assert found["jobs"] == {"measured": 3, "refused": 0, "unfinished": 0}
    assert found["jct_s"]["mean"] == pytest.approx((100 + 140 + 85) / 3)
    assert (found["wait_s"]["mean"], found["wait_s"]["p50"], found["wait_s"]["max"]) == (pytest.approx(170 / 3), 80, 90)
    # 140 / 50; the last is shorter than ten seconds, which count: 85 / 10
    assert (found["slowdown"]["mean"], found["makespan_s"]) == (pytest.approx((1 + 2.8 + 8.5) / 3), 150)
    assert (found["utilization"], found["goodput_share"]) == (pytest.approx((400 + 100 + 5) / 600), 1)
    assert (found["preemptions_per_job"], found["kills_per_job"]) == (0, 0)
    means = np.array([1, (2.8 + 8.5) / 2])
    assert found["jain_users"] == pytest.approx(means.sum() ** 2 / (2 * (means**2).sum()))
    assert found["jain_vcs"] is None


def test_finish_time_fairness_by_hand() -> None:
    """Over the first job's attempt 1 is there for 10 s, 2 for 10 s, 3 for 80 s.

    So N = 2.7, and on 1/N of 4 GPUs it takes 2.7 times as long. The third needs less than its share: there it would run
    as fast as it can.
    """
    record = run("fifo", jobs(*THREE))
    found = by_job(record, 4)["finish_time_fairness"]
    assert found[0] == pytest.approx(100 / (100 * 2.7))
    crowd = (80 * 3 + 5 * 2) / 85
    assert crowd / 4 < 1
    assert found[2] == pytest.approx(85 / 5)


def test_shares_of_a_gpu_count_as_shares() -> None:
    record = run("fifo", jobs((0, 100, 1), (100, 100, 4), gpu_share=[0.25, 1.0]))
    found = figures(record, 4)
    assert (found["utilization"], found["goodput_share"]) == (pytest.approx((25 + 400) / 800), 1)
    assert found["finish_time_fairness"]["max"] == 1


def test_figures_exclude_and_count_refused_warm_up_and_unfinished_jobs() -> None:
    """Refused jobs, those of the warm-up and those that are not done are in no mean, and are counted."""
    record = run("fifo", jobs((0, 10, 1), (0, 10, 9), (50, 10, 1)), run_options={"warmup_s": 40.0})
    found = figures(record, 4)
    assert found["jobs"] == {"measured": 1, "refused": 0, "unfinished": 0}
    all_of_it = figures(run("fifo", jobs((0, 10, 1), (0, 10, 9), (50, 10, 1))), 4)
    assert all_of_it["jobs"]["refused"] == 1
    late = figures(run("fifo", jobs((0, 10, 1), (0, 1000, 1)), run_options={"longest_ns": 100 * S}), 4)
    assert (late["jobs"]["unfinished"], late["jct_s"]["max"]) == (1, 10)


def test_groups_share_all_jobs() -> None:
    """Each job is in one class of sizes and one VC; where all are alike there are no groups."""
    sizes = [1, 2, 3, 4, 8, 9, 16, 64, 100]
    rows = [(float(at), 10.0, gpus) for at, gpus in enumerate(sizes)]
    record = run("fifo", jobs(*rows, vc=["a", "b", "b", *[""] * 6]), nodes=[128])
    everybody = np.ones(len(sizes), bool)
    groups = list(groups_of(record, everybody))
    names = [group["name"] for group, _ in groups if group["kind"] == "size"]
    assert names == ["1", "2", "3-4", "5-8", "9-16", "33-64", "above 64"]
    for kind in ("size", "vc"):
        members = np.array([members for group, members in groups if group["kind"] == kind])
        assert members.sum(axis=0).tolist() == [1] * len(sizes)
    assert [group["name"] for group, _ in groups if group["kind"] == "vc"] == ["(none)", "b", "a"]
    assert list(groups_of(run("fifo", jobs((0, 1, 1), (0, 1, 1))), everybody[:2])) == []


def test_sums_do_not_overflow() -> None:
    """A hundred thousand GPU-years in nanoseconds are beyond 64 bits."""
    record = run("fifo", jobs((0, 1e8, 4), (0, 1e8, 4)))
    large = replace(
        record, jobs=replace(record.jobs, gpus=record.jobs.gpus * 10**6), capacity_gpu_ns=record.capacity_gpu_ns * 10**6
    )
    assert figures(large, 4)["utilization"] == pytest.approx(figures(record, 4)["utilization"])


ALL = np.ones(2000, bool)


def factor(found: Interval) -> float:
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


def test_block_interval_covers_the_true_mean_in_nine_of_ten_histories() -> None:
    """The histories are drawn with weeks that differ."""
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


def test_share_interval_inverts_when_the_compared_waits_are_swapped() -> None:
    rng = np.random.default_rng(4)
    submit_s = np.sort(rng.uniform(0, 10 * WEEK_S, 2000))
    one, other = rng.exponential(100, 2000) ** 2, rng.exponential(110, 2000) ** 2
    blocks = Blocks.of(submit_s)
    found, turned = blocks.share(one, other, ALL), blocks.share(other, one, ALL)
    assert 1 + found["low"] == pytest.approx(1 / (1 + turned["high"]))  # type: ignore[operator]
    assert chance_explains(found) == chance_explains(turned)


@pytest.mark.parametrize("crises, is_chance", [(1, True), (6, False)])
def test_gain_in_one_crisis_is_not_significant_and_in_six_is(crises: int, is_chance: bool) -> None:
    """All waits fall to a tenth: in one week that isn't significant, in six weeks it is."""
    submit_s = np.linspace(0, 20 * WEEK_S, 2000)
    before = np.zeros(2000)
    for crisis in range(crises):
        before[110 + 300 * crisis : 150 + 300 * crisis] = 1000.0 + 10 * crisis
    found = Blocks.of(submit_s).share(before / 10, before, ALL)
    assert found["value"] == pytest.approx(-0.9)
    assert chance_explains(found) == is_chance


def test_no_wait_is_below_0_and_no_interval_endless() -> None:
    submit_s = np.linspace(0, 4 * WEEK_S, 400)
    waits = np.where(submit_s > 3.9 * WEEK_S, 1000.0, 0.0)
    assert factor(Blocks.of(submit_s).mean(waits, ALL[:400])) == pytest.approx(1000)
