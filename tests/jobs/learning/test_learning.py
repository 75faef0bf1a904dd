"""Windows, predictions, rewards, training that resumes, and judgement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.job_simulation import ClusterModel
from jobs.job_traces import JobTrace
from jobs.learning.scoring_network import SIZES, JobNet, Learned, LearnedSpec, NamedPolicy, fresh_weights, read_learned
from jobs.learning.training import (
    BASELINES,
    JobPPOParams,
    TrainingConfig,
    Windows,
    in_system_s,
    judge,
    mean_of,
    play,
    predicted_s,
    table_of,
    train,
)
from jobs.policies.job_cluster import NodeGroup
from jobs.policies.named_policies import JobPolicy, policy_of
from kit.errors import InputError
from kit.random_streams import stream
from tests.jobs.sim.cluster_models import S, jobs, run

EXPERIMENT = ClusterModel((NodeGroup(2, 4),))


def drawn(many: int = 200) -> JobTrace:
    rng = stream(1, "jobs")
    return JobTrace.of(np.sort(rng.integers(0, 3000, many)), rng.integers(1, 120, many), rng.choice([1, 2, 4, 8], many))


def windows(warm: int = 0) -> Windows:
    return Windows(drawn(), EXPERIMENT, 20, 150, length=30, warm=warm)


# --------------------------------------------------------------------------------------------------------- windows


def test_windows_to_learn_on_and_to_judge_by_have_no_job_in_common() -> None:
    earlier, later = Windows.split(drawn(), EXPERIMENT, 0.5, length=30, warm=20)
    assert earlier.last + earlier.length == later.first - later.warm
    assert earlier.jobs.submit_s[earlier.last + earlier.length - 1] < later.jobs.submit_s[later.first - later.warm]
    starts = earlier.drawn(500, 0, "a")
    assert {int(starts.min()), int(starts.max())} == {earlier.first, earlier.last}
    assert (starts == earlier.drawn(500, 0, "a")).all()
    assert (starts != earlier.drawn(500, 0, "b")).any()


def test_a_window_begins_cold_or_warm_and_warming_jobs_do_not_count() -> None:
    cold, warm = windows(), windows(warm=20)
    first, second = cold.run(60, JobPolicy()), warm.run(60, JobPolicy())
    assert len(first.jobs) == 30
    assert len(second.jobs) == 50
    assert (second.jobs.submit_ns[20:] == first.jobs.submit_ns).all()
    assert second.is_measured[20:].all()
    assert warm.mean_wait_s(second) == second.wait_s[20:].mean() > cold.mean_wait_s(first) == first.wait_s.mean()


def test_what_history_says_is_of_jobs_that_had_ended() -> None:
    """Of one user and size: an hour where nothing has ended; then means of what had, whoever waits in the run."""
    these = jobs((0, 10, 4), (5, 21, 4), (10, 5, 4), (26, 5, 4), user=["a"] * 4)
    assert predicted_s(these).tolist() == [3600, 3600, 10, 12]
    windows = Windows(these, EXPERIMENT, 1, 2, length=2, predicted_s=predicted_s(these))
    scheduler = windows.simulation(2, policy_of("qssf-lowest")).scheduler
    assert windows.simulation(2, policy_of("qssf-lowest")).spec.jobs.requested_s.tolist() == [10, 12]
    assert scheduler.policy.estimate == "requested"


def test_job_seconds_in_the_system_by_hand() -> None:
    record = run("fifo", jobs((0, 10, 4), (4, 5, 2)))
    times = np.array([0, 4, 8, 10, 20]) * S
    assert in_system_s(record, times).tolist() == [0, 4, 12, 16, 21]


# -------------------------------------------------------------------------------------------------------- learning


def config(**other: object) -> TrainingConfig:
    made = TrainingConfig(LearnedSpec(), windows(warm=10), epochs=2, episodes=3)
    return replace(made, **other)  # type: ignore[arg-type]


def test_an_episode_is_what_the_policy_did_and_is_paid_by_its_definition() -> None:
    this = config()
    episode = play(this, (fresh_weights(SIZES, 0, "actor"), 70, 5))
    assert len(episode.rows) == episode.counts.sum()
    assert (episode.choice < episode.counts).all()
    base = this.windows.run(70, this.base)
    most_s = max(float(base.wait_s.sum()), 60.0 * 40)
    assert episode.base_score == pytest.approx(float(base.wait_s[10:].mean()))
    assert float(base.wait_s.sum()) - float(episode.rewards.sum()) * most_s >= 0
    # without warming jobs all waits count, so the rewards are the difference of the scores
    cold = play(replace(this, windows=windows()), (fresh_weights(SIZES, 0, "actor"), 70, 5))
    sums = windows().run(70, this.base).wait_s.sum()
    assert cold.rewards.sum() * max(sums, 60.0 * 30) / 30 == pytest.approx(cold.base_score - cold.score, abs=1e-3)


def history_in(path: Path) -> list[dict[str, float]]:
    return list(json.loads(read_learned(path)[2]["training"])["history"])


def test_training_resumes_to_the_same_bits_and_refuses_another_course(tmp_path: Path) -> None:
    this = config()
    whole = train(this, tmp_path / "whole.safetensors")
    train(replace(this, epochs=1), tmp_path / "parts.safetensors")
    parts = train(this, tmp_path / "parts.safetensors")
    assert all((whole.net.weights[name] == value).all() for name, value in parts.net.weights.items())
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "parts.safetensors").read_bytes()
    assert all(epoch["decisions"] >= 3 * 40 for epoch in history_in(tmp_path / "parts.safetensors"))
    with pytest.raises(InputError, match="begun with another seed"):
        train(replace(this, seed=1), tmp_path / "parts.safetensors")
    for what, other in (
        ("jobs", replace(this.windows, jobs=replace(this.windows.jobs, submit_s=this.windows.jobs.submit_s * 2))),
        ("cluster", replace(this.windows, cluster_model=ClusterModel((NodeGroup(3, 4),)))),
    ):
        with pytest.raises(InputError, match=f"begun with another {what};"):
            train(replace(this, windows=other), tmp_path / "parts.safetensors")
    assert read_learned(tmp_path / "whole.safetensors")[0].spec == this.spec


@pytest.mark.slow
def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    one = train(config(epochs=1), tmp_path / "one.safetensors", jobs=1)
    two = train(config(epochs=1), tmp_path / "two.safetensors", jobs=2)
    assert all((one.net.weights[name] == value).all() for name, value in two.net.weights.items())


@pytest.mark.slow
def test_it_learns_to_serve_small_and_first_come_jobs(tmp_path: Path) -> None:
    """On a crowded cluster it comes to wait less than first-fit in order of arrival, from worse than that."""
    this = config(epochs=25, episodes=8, params=JobPPOParams(policy_rate=2e-3, kl_stop=0.03))
    train(this, tmp_path / "a.safetensors")
    history = history_in(tmp_path / "a.safetensors")
    early, late = ([epoch["score"] / epoch["base_score"] for epoch in part] for part in (history[:5], history[-5:]))
    assert np.mean(late) < np.mean(early) - 0.02


# -------------------------------------------------------------------------------------------------------- judging


def net(seed: int = 0) -> Learned:
    return Learned(LearnedSpec(), JobNet(fresh_weights(SIZES, seed, "actor")))


def net_policy(by: Learned) -> NamedPolicy:
    return NamedPolicy("net", by.spec.policy, by)


def test_judgement_is_the_same_twice_and_another_of_another_network() -> None:
    def waits(*candidates: NamedPolicy) -> dict[str, Any]:
        return {each.name: waits for each, waits in judge(candidates, windows(), starts)}

    these = [BASELINES[0], BASELINES[2], net_policy(net())]
    starts = windows().drawn(4, 0, "judging")
    first, again, other = waits(*these), waits(*these), waits(net_policy(net(1)))
    assert all((first[name] == again[name]).all() for name in first)
    assert (other["net"] != first["net"]).any()
    table = table_of(first, "net")
    assert table.count("\n") == 4
    assert "| fifo-first-fit |" in table


def test_an_interval_holds_the_mean_of_drawn_windows() -> None:
    """Means of 100 exponential numbers: 95 of 100 intervals or so hold the truth."""
    rng = np.random.default_rng(0)
    intervals = [mean_of(rng.exponential(1.0, 100), seed) for seed in range(100)]
    assert 85 <= sum(interval.low <= 1 <= interval.high for interval in intervals) <= 99
