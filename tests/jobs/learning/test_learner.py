"""PPO on choices among any number of jobs: advantages by hand, a softmax, a bandit, files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from jobs.learning.scoring_network import (
    SIZES,
    JobNet,
    Learned,
    LearnedSpec,
    fresh_weights,
    read_learned,
    write_learned,
)
from jobs.learning.training import (
    Episode,
    JobLearner,
    JobNetwork,
    JobPPOParams,
    _Choices,
    advantages,
)
from kit.errors import InputError


def test_advantages_by_hand() -> None:
    """Rewards 0, 0, 1 and values 0.5, 0.25, 0: differences -0.25, -0.25, 1, summed backwards by a half."""
    advantage, returns = advantages(np.array([0, 0, 1.0]), np.array([0.5, 0.25, 0.0]), 0.5)
    assert advantage.tolist() == [-0.25 + 0.5 * 0.25, -0.25 + 0.5, 1.0]
    assert returns.tolist() == [1, 1, 1]


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
    """Of several episodes; where there is one row there is no choice."""
    rng, net = np.random.default_rng(0), JobNet(fresh_weights(SIZES, 0, "actor"))
    made = [episode(rng, net), episode(rng, net)]
    choices = _Choices.of(made, np.zeros(128, np.float32))
    with torch.no_grad():
        log_prob = choices.log_prob_by(JobLearner(JobPPOParams(), 0).actor)
    drawn = np.concatenate([each.log_prob[each.counts > 1] for each in made])
    assert log_prob.numpy() == pytest.approx(drawn, abs=1e-4)
    assert len(drawn) < choices.decisions == 128


def test_it_learns_which_arm_pays() -> None:
    """From as good as chance to nearly always, though the number of arms changes."""
    learner, rng = (
        JobLearner(JobPPOParams(policy_rate=3e-3, kl_stop=0.03, lam=0.0), 1),
        np.random.default_rng(2),
    )
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
    """Beside others they change nothing; alone they leave the networks as they are."""
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


# ----------------------------------------------------------------------------------------------------------- files

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
    path.write_bytes(b"no")
    with pytest.raises(InputError, match="not a safetensors file"):
        read_learned(path)
    with pytest.raises(InputError, match="what training of a job policy wrote"):
        read_learned(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="train it again"):
        replace(SPEC, features="rltune/0")
