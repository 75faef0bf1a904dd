"""PPO on choices among any number of jobs: advantages by hand, a softmax, a bandit, files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jobs.job_simulation import ClusterModel
from jobs.job_traces import JobTrace
from jobs.learning.scoring_network import (
    SIZES,
    JobNet,
    Learned,
    LearnedSpec,
    NamedPolicy,
    fresh_weights,
    read_learned,
    write_learned,
)
from jobs.learning.training import (
    BASELINES,
    Episode,
    JobLearner,
    JobNetwork,
    JobPPOParams,
    TrainingConfig,
    Windows,
    _Choices,
    advantages,
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


def test_advantages_by_hand() -> None:
    """Rewards 0, 0, 1 and values 0.5, 0.25, 0: differences -0.25, -0.25, 1, summed backwards by a half."""
    advantage, returns = advantages(np.array([0, 0, 1.0]), np.array([0.5, 0.25, 0.0]), 0.5)
    assert (advantage.tolist(), returns.tolist()) == ([-0.25 + 0.5 * 0.25, -0.25 + 0.5, 1.0], [1, 1, 1])


def test_torch_and_numpy_give_the_same_scores() -> None:
    net = JobNetwork(SIZES, 3, "actor")
    rows = np.random.default_rng(0).random((50, 8), np.float32)
    with torch.no_grad():
        assert JobNet(net.weights()).scores(rows) == pytest.approx(net(torch.from_numpy(rows)).numpy(), abs=1e-6)
    assert all((net.weights()[name] == value).all() for name, value in fresh_weights(SIZES, 3, "actor").items())


def episode(rng: np.random.Generator, net: JobNet, most: int = 6) -> Episode:
    """A bandit with any number of arms: whoever has the largest second number pays 1, the others nothing."""
    rows, counts, chosen, log_prob, rewards = [], [], [], [], []
    for _ in range(64):
        seen = rng.random((int(rng.integers(1, most)), 8), np.float32)
        scores = net.scores(seen).astype(float)
        odds = np.exp(scores - scores.max())
        odds /= odds.sum()
        place = int(rng.choice(len(seen), p=odds))
        rows.append(seen)
        counts.append(len(seen))
        chosen.append(place)
        log_prob.append(np.log(odds[place]))
        rewards.append(float(seen[place, 1] == seen[:, 1].max()))
    pooled = np.zeros((len(rows), 17), np.float32)
    return Episode(
        np.concatenate(rows),
        np.array(counts),
        np.array(chosen),
        np.array(log_prob, np.float32),
        pooled,
        np.array(rewards, np.float32),
        0.0,
        0.0,
    )


def test_odds_are_a_softmax_over_the_rows_of_each_decision() -> None:
    rng, net = np.random.default_rng(0), JobNet(fresh_weights(SIZES, 0, "actor"))
    made = [episode(rng, net), episode(rng, net)]
    choices = _Choices.of(made, np.zeros(128, np.float32))
    with torch.no_grad():
        log_prob = choices.log_prob_by(JobLearner(JobPPOParams(), 0).actor)
    drawn = np.concatenate([each.log_prob[each.counts > 1] for each in made])
    assert log_prob.numpy() == pytest.approx(drawn, abs=1e-4)
    assert len(drawn) < choices.decisions == 128


def test_learner_finds_the_better_arm_of_a_bandit() -> None:
    learner, rng = (JobLearner(JobPPOParams(policy_rate=3e-3, kl_stop=0.03, lam=0.0), 1), np.random.default_rng(2))
    gains = []
    for _ in range(25):
        episodes = [episode(rng, JobNet(learner.actor.weights())) for _ in range(8)]
        gains.append(np.mean([each.rewards.mean() for each in episodes]))
        stats = learner.update(episodes)
        assert stats.decisions == 512
    assert gains[0] < 0.65
    assert gains[-1] > 0.85


def test_steps_end_where_the_policy_has_moved_far_enough() -> None:
    rng = np.random.default_rng(0)
    learner = JobLearner(JobPPOParams(policy_rate=3e-2, steps=80), 1)
    stats = learner.update([episode(rng, JobNet(learner.actor.weights()))])
    assert 0 < stats.steps < 80
    assert stats.kl > 0.015


def test_windows_without_a_choice_teach_nothing() -> None:
    rng = np.random.default_rng(0)
    some = episode(rng, JobNet(fresh_weights(SIZES, 1, "actor")))
    nothing = np.zeros(0, np.float32)
    none = replace(
        some,
        rows=some.rows[:0],
        counts=some.counts[:0],
        choice=some.choice[:0],
        log_prob=nothing,
        pooled=some.pooled[:0],
        rewards=nothing,
    )
    both, alone, idle = (JobLearner(JobPPOParams(steps=3), 1) for _ in range(3))
    assert both.update([none, some, none]) == alone.update([some])
    before = idle.actor.weights()
    assert idle.update([none, none]).decisions == 0
    assert all((before[name] == after).all() for name, after in idle.actor.weights().items())


SPEC = LearnedSpec("sjf", "oracle", "philly")


def written(path: Path) -> Learned:
    learned = Learned(SPEC, JobNet(fresh_weights(SIZES, 0, "actor")))
    write_learned(path, learned, {"critic.0.bias": np.zeros(3, np.float32)}, {"training": "{}"})
    return learned


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    learned = written(tmp_path / "a.safetensors")
    found, tensors, header = read_learned(tmp_path / "a.safetensors")
    assert found.spec == SPEC
    assert all((found.net.weights[name] == value).all() for name, value in learned.net.weights.items())
    assert tensors["critic.0.bias"].tolist() == [0, 0, 0]
    assert header["training"] == "{}"
    assert found.spec.policy.learned == "rltune"


def test_a_file_that_was_damaged_or_is_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    written(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="damaged or changed"):
        read_learned(path)
    with pytest.raises(InputError, match="train it again"):
        replace(SPEC, features="rltune/0")


EXPERIMENT = ClusterModel((NodeGroup(2, 4),))


def drawn(many: int = 200) -> JobTrace:
    rng = stream(1, "jobs")
    return JobTrace.of(np.sort(rng.integers(0, 3000, many)), rng.integers(1, 120, many), rng.choice([1, 2, 4, 8], many))


def windows(warm: int = 0) -> Windows:
    return Windows(drawn(), EXPERIMENT, 20, 150, length=30, warm=warm)


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
    assert (len(first.jobs), len(second.jobs)) == (30, 50)
    assert (second.jobs.submit_ns[20:] == first.jobs.submit_ns).all()
    assert second.is_measured[20:].all()
    assert warm.mean_wait_s(second) == second.wait_s[20:].mean() > cold.mean_wait_s(first) == first.wait_s.mean()


def test_predicted_run_time_uses_only_jobs_that_had_ended() -> None:
    """Without ended jobs of the user and size the prediction is one hour, then the mean of those that had ended."""
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


def test_training_resumes_to_the_same_bits_and_refuses_another_course(tmp_path: Path) -> None:
    this = config()
    whole = train(this, tmp_path / "whole.safetensors")
    train(replace(this, epochs=1), tmp_path / "parts.safetensors")
    parts = train(this, tmp_path / "parts.safetensors")
    assert all((whole.net.weights[name] == value).all() for name, value in parts.net.weights.items())
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "parts.safetensors").read_bytes()
    history = json.loads(read_learned(tmp_path / "parts.safetensors")[2]["training"])["history"]
    assert all(epoch["decisions"] >= 3 * 40 for epoch in history)
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
