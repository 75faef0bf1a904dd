from dataclasses import astuple, replace

import numpy as np
import pytest

from kit.errors import WorkError
from policies.ppo import PPOKnobs
from policies.ppo.experience import Experience
from policies.ppo.layout import Layout
from policies.ppo.learner import Learner, advantages, explained_variance
from policies.ppo.network import PolicyNetwork
from tests.policies.ppo.problems import HOLDS_S, experience_of, hidden_of, spec_for, tensors_of, torch_update


def learner_of(network: PolicyNetwork, experience: Experience, knobs: PPOKnobs, threads: int = 2) -> Learner:
    return Learner(Layout.of(spec_for(experience), hidden_of(network)), knobs, tensors_of(network), threads)


@pytest.mark.parametrize(("servers", "holds_s"), [(1, ()), (3, ()), (10, ()), (3, HOLDS_S)])
def test_an_update_is_torchs(servers: int, holds_s: tuple[float, ...]) -> None:
    """Three epochs of ten steps on the same experience, in the same order: weights to 1e-4, figures to 1e-3."""
    network, experience = experience_of(
        servers, 1003, seed=1, holds_s=holds_s
    )  # no ratio at the very clip, where rounding decides
    knobs = PPOKnobs(batch=1000, minibatch=101, learning_rate=1e-3)
    learner = learner_of(network, experience, knobs)
    before = learner.weights.copy()
    optimizer, wanted = torch_update(network, experience, knobs, np.random.default_rng(0))
    stats = learner.update(experience, np.random.default_rng(0))
    after = learner.layout.pack(tensors_of(network))
    assert np.max(np.abs(learner.weights - after)) < 1e-4 < 0.1 * np.max(np.abs(before - after))
    means = [stats.policy_loss, stats.value_loss, stats.approx_kl, stats.clip_fraction]
    means += [stats.entropy_server, stats.entropy_width, stats.entropy_group, stats.grad_norm]
    if stats.entropy_hold is not None:
        means.insert(-1, stats.entropy_hold)
    assert means == pytest.approx(wanted, rel=1e-3, abs=1e-4)
    assert ("entropy/hold" in stats.scalars) == bool(holds_s)
    assert learner.steps == 30
    moments = learner.moments()
    for name, parameter in network.named_parameters():
        state = optimizer.state[parameter]
        for moment in ("exp_avg", "exp_avg_sq"):
            assert moments[f"{moment}.{name}"] == pytest.approx(state[moment].numpy(), rel=1e-2, abs=1e-4)
        assert moments[f"step.{name}"] == state["step"]


def test_threads_change_nothing() -> None:
    """One thread or two, twice each: the same bits."""
    (network, experience), results = experience_of(3, 700), set()
    for threads in (1, 2, 1, 2):
        learner = learner_of(network, experience, PPOKnobs(minibatch=128), threads)
        stats = learner.update(experience, np.random.default_rng(0))
        results.add((learner.weights.tobytes(), astuple(stats)))
    assert len(results) == 1


def test_tiny_batches_are_learned_from() -> None:
    """Two decisions in minibatches of one: a half is empty, and nothing breaks."""
    network, experience = experience_of(3, 2)
    learner = learner_of(network, experience, PPOKnobs(minibatch=1))
    stats = learner.update(experience, np.random.default_rng(0))
    assert all(np.isfinite(list(stats.scalars.values())))
    assert learner.steps == 6


def test_divergence_is_an_error_and_leaves_the_weights_alone() -> None:
    """A reward that is not a number stops training before it spoils the network."""
    network, experience = experience_of(3, 50)
    learner = learner_of(network, experience, PPOKnobs())
    before = learner.weights.copy()
    broken = replace(experience, reward=np.full_like(experience.reward, np.nan))
    with pytest.raises(WorkError, match="diverged"):
        learner.update(broken, np.random.default_rng(0))
    assert np.array_equal(learner.weights, before)
    assert learner.moments() == {}


def test_advantages_by_hand() -> None:
    """R - V = (1, -1, 3), of 2, 1 and 1 images, has mean 1 and standard deviation sqrt 2; if equal there is none."""
    reward, value, images = np.array([[2, 0, 4], [1, 1, 1], [2, 1, 1]], np.float32)
    assert advantages(reward, value, images).tolist() == pytest.approx([0, -(2**0.5), 2**0.5], abs=1e-6)
    assert advantages(*np.array([[3.0], [1.0], [2.0]], np.float32).repeat(5, axis=1)).tolist() == [0.0] * 5


def test_explained_variance_is_1_for_perfect_values_and_0_for_constant_ones() -> None:
    """1 - Var(R - V) / Var(R)."""
    reward = np.array([1, 2, 3, 4], np.float32)
    assert explained_variance(reward, reward) == 1
    assert explained_variance(reward, np.ones(4, np.float32)) == pytest.approx(0)
    assert explained_variance(np.ones(4, np.float32), reward) == 0
