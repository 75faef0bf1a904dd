"""Windows, rewards, training that resumes, judgement that goes on where it was, and what a table explains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.study.explaining import explain
from benchmarks.study.jobs_page import ratio_of
from benchmarks.study.jobs_results import history_in, philly_cluster
from jobs.learning.judging import BASELINES, judge, mean_of, table_of
from jobs.learning.learned import (
    FAITHFUL,
    FIXED,
    SIZES,
    JobNet,
    Learned,
    LearnedSpec,
    NamedPolicy,
    fresh_weights,
    read_learned,
)
from jobs.learning.learner import JobPPOKnobs
from jobs.learning.training import (
    TrainingConfig,
    Windows,
    gain,
    in_system_s,
    play,
    score_of,
    train,
)
from jobs.policies.cluster import NodeGroup
from jobs.policies.policy import JobPolicy
from jobs.sim.world import JobWorld
from jobs.trace import JobTrace
from kit.chance import stream
from kit.errors import InputError
from tests.jobs.sim.worlds import S, jobs, run

WORLD = JobWorld((NodeGroup(2, 4),))


def drawn(many: int = 200) -> JobTrace:
    rng = stream(1, "jobs")
    return JobTrace.of(np.sort(rng.integers(0, 3000, many)), rng.integers(1, 120, many), rng.choice([1, 2, 4, 8], many))


def windows(warm: int = 0) -> Windows:
    return Windows(drawn(), WORLD, 20, 150, length=30, warm=warm)


# --------------------------------------------------------------------------------------------------------- windows


def test_windows_to_learn_on_and_to_judge_by_have_no_job_in_common() -> None:
    earlier, later = Windows.split(drawn(), WORLD, 0.5, length=30, warm=20)
    assert earlier.last + earlier.length == later.first - later.warm
    assert earlier.jobs.submit_s[earlier.last + earlier.length - 1] < later.jobs.submit_s[later.first - later.warm]
    starts = earlier.drawn(500, 0, "a")
    assert {int(starts.min()), int(starts.max())} == {earlier.first, earlier.last}
    assert (starts == earlier.drawn(500, 0, "a")).all()
    assert (starts != earlier.drawn(500, 0, "b")).any()


def test_a_window_begins_cold_or_warm_and_warming_jobs_do_not_count() -> None:
    cold, warm = windows(), windows(warm=20)
    policy = JobPolicy("fifo", "stall", placement="lowest")
    first, second = cold.run(60, policy), warm.run(60, policy)
    assert len(first.submit_ns) == 30
    assert len(second.submit_ns) == 50
    assert (second.submit_ns[warm.count(second)] == first.submit_ns).all()
    assert second.is_measured[warm.count(second)].all()
    assert score_of(second, "wait", 8, warm.count(second)) > score_of(first, "wait", 8)


def test_the_five_scores_by_hand() -> None:
    """One node of 4: the second waits 10 s for the first and runs 5 s."""
    record = run("fifo", jobs((0, 10, 4), (0, 5, 2)))
    assert score_of(record, "wait", 4) == 5
    assert score_of(record, "turnaround", 4) == (10 + 15) / 2
    assert score_of(record, "slowdown", 4) == (1 + 3) / 2
    assert score_of(record, "bounded slowdown", 4) == (1 + 1.5) / 2
    assert score_of(record, "utilisation", 4) == -50 / 60
    assert gain(10, 5) == 0.5
    assert gain(0.2, 0.0) == 0.2
    assert gain(5, 10) == -0.5


def test_the_philly_cluster_keeps_large_jobs_off_small_nodes() -> None:
    these, world = philly_cluster(jobs(*[(0, 100, 8)] * 20, (1, 10, 8), (2, 10, 4)))
    assert sum(group.nodes * group.gpus for group in world.groups) == 192
    policy = JobPolicy("fifo", "stall", placement="lowest")
    record = run(policy, these, groups=world.groups)
    assert record.start_ns[-2] == 100 * S  # 16 small nodes are empty, and not for it


def test_job_seconds_in_the_system_by_hand() -> None:
    record = run("fifo", jobs((0, 10, 4), (4, 5, 2)))
    times = np.array([0, 4, 8, 10, 20]) * S
    assert in_system_s(record, times).tolist() == [0, 4, 12, 16, 21]


# -------------------------------------------------------------------------------------------------------- learning


def config(kind: str, **other: object) -> TrainingConfig:
    made = TrainingConfig(LearnedSpec(kind), windows(warm=10 if kind == FIXED else 0), epochs=2, episodes=3)
    return replace(made, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [FAITHFUL, FIXED])
def test_an_episode_is_what_the_policy_did_and_is_paid_by_its_definition(kind: str) -> None:
    this = config(kind)
    episode = play(this, (fresh_weights(SIZES, 0, "actor"), 70, 5))
    assert len(episode.rows) == episode.counts.sum()
    assert (episode.chosen < episode.counts).all()
    if kind == FAITHFUL:
        assert len(episode.counts) == 30  # a choice a job
        assert episode.rewards[:-1].tolist() == [0] * 29
        assert episode.rewards[-1] == pytest.approx(gain(episode.base_score, episode.score))
    else:
        base = this.windows.run(70, this.base)
        most_s = max(float(base.wait_s.sum()), 60.0 * 40)
        assert episode.base_score == pytest.approx(float(base.wait_s[10:].mean()))
        own_s = float(base.wait_s.sum()) - float(episode.rewards.sum()) * most_s
        assert own_s >= 0
        # without warming jobs all waits count, so the rewards are the difference of the scores
        cold = play(replace(this, windows=windows()), (fresh_weights(SIZES, 0, "actor"), 70, 5))
        sums = windows().run(70, this.base).wait_s.sum()
        assert cold.rewards.sum() * max(sums, 60.0 * 30) / 30 == pytest.approx(cold.base_score - cold.score, abs=1e-3)


def test_training_resumes_to_the_same_bits_and_refuses_another_course(tmp_path: Path) -> None:
    this = config(FAITHFUL)
    whole = train(this, tmp_path / "whole.safetensors")
    train(replace(this, epochs=1), tmp_path / "parts.safetensors")
    parts = train(this, tmp_path / "parts.safetensors")
    assert all((whole.net.weights[name] == value).all() for name, value in parts.net.weights.items())
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "parts.safetensors").read_bytes()
    assert [epoch["decisions"] for epoch in history_in(tmp_path / "parts.safetensors")] == [90, 90]
    with pytest.raises(InputError, match="begun with another seed"):
        train(replace(this, seed=1), tmp_path / "parts.safetensors")
    assert read_learned(tmp_path / "whole.safetensors")[0].spec == this.spec


@pytest.mark.slow
def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    one = train(config(FAITHFUL, epochs=1), tmp_path / "one.safetensors", jobs=1)
    two = train(config(FAITHFUL, epochs=1), tmp_path / "two.safetensors", jobs=2)
    assert all((one.net.weights[name] == value).all() for name, value in two.net.weights.items())


@pytest.mark.slow
def test_the_mended_policy_learns_to_serve_small_and_first_come_jobs(tmp_path: Path) -> None:
    """On a crowded cluster it comes to wait less than first-fit in order of arrival, from worse than that."""
    this = config(FIXED, epochs=25, episodes=8, knobs=JobPPOKnobs(policy_rate=2e-3, kl_stop=0.03))
    train(this, tmp_path / "a.safetensors")
    history = history_in(tmp_path / "a.safetensors")
    early, late = ([epoch["score"] / epoch["base_score"] for epoch in part] for part in (history[:5], history[-5:]))
    assert np.mean(late) < np.mean(early) - 0.02


# ---------------------------------------------------------------------------------------------- judging, explaining


def net(seed: int = 0) -> Learned:
    return Learned(LearnedSpec(FAITHFUL), JobNet(fresh_weights(SIZES, seed, "actor")))


def net_policy(by: Learned) -> NamedPolicy:
    return NamedPolicy("net", by.spec.policy, by)


def test_judgement_is_the_same_twice_and_another_of_another_network() -> None:
    def waits(*candidates: NamedPolicy) -> dict[str, Any]:
        return {each.name: waits for each, waits in judge(candidates, windows(), starts)}

    these = [BASELINES[0], BASELINES[6], net_policy(net())]
    starts = windows().drawn(4, 0, "judging")
    first, again, other = waits(*these), waits(*these), waits(net_policy(net(1)))
    assert all((first[name] == again[name]).all() for name in first)
    assert (other["net"] != first["net"]).any()
    table = table_of(first, "net")
    assert table.count("\n") == 4
    assert "| fifo-stall |" in table


def test_an_interval_holds_the_mean_of_drawn_windows() -> None:
    """Means of 100 exponential numbers: 95 of 100 intervals or so hold the truth."""
    rng = np.random.default_rng(0)
    intervals = [mean_of(rng.exponential(1.0, 100), seed) for seed in range(100)]
    assert 85 <= sum(each.low <= 1 <= each.high for each in intervals) <= 99


def test_a_ratio_is_of_means_on_the_same_windows() -> None:
    waits = np.array([0.0, 10.0, 50.0])
    ratio = ratio_of(0.5 * waits, waits)
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5), abs=1)
    assert ratio.mean == 0.5
    assert ratio_of(waits, np.zeros(3)).mean == 1


def test_a_table_explains_a_network_that_is_one() -> None:
    """A network that looks at GPUs, and at what is the same for all at one instant, is explained whole; one that was
    drawn, in part."""
    weights = {name: np.zeros_like(value) for name, value in fresh_weights(SIZES, 0, "actor").items()}
    for layer in range(3):
        weights[f"{layer}.weight"][0, 1 if layer == 0 else 0] = 1.0
        weights[f"{layer}.weight"][1, 4 if layer == 0 else 1] = 1.0  # partly used nodes
    weights["3.weight"][0, :2] = -4.0, 10.0
    table = explain(Learned(LearnedSpec(FAITHFUL), JobNet(weights)), windows(), range(40, 140, 10))
    assert table is not None
    assert table.r_squared > 0.999
    assert table.same_choice == 1.0
    column = table.scores[0]
    assert column == pytest.approx(sorted(column, reverse=True), nan_ok=True)
    other = explain(net(3), windows(), range(40, 140, 10))
    assert other is not None
    assert other.r_squared < 0.999
