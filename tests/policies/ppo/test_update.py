from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import WorkError
from policies.ppo import PPOKnobs
from policies.ppo.acting import Acted
from policies.ppo.buffer import Experience, TransitionBuffer
from policies.ppo.network import PolicyNetwork
from policies.ppo.trainer import Trainer, images_of
from policies.ppo.update import advantages, clipped_surrogate, explained_variance, ratio_of, update
from policies.vocabulary import Choice, Hold
from tests.policies.ppo.bandit import SPEC, Bandit


def collected(knobs: PPOKnobs, environments: int = 3) -> tuple[Trainer, Experience]:
    """A trainer just before its first update, and what it would learn from."""
    trainer = Trainer([Bandit() for _ in range(environments)], knobs, 0, SPEC)
    for environment in trainer.environments:
        environment.reset(0)
    while trainer._buffer.complete < knobs.batch:
        trainer.decide_once()
    return trainer, trainer._buffer.take()


def test_ratio_is_one_before_the_first_step_whatever_eps_is_by_then() -> None:
    """The stored eps is the one in the ratio: it is 1 though eps has fallen since, and is not with another eps."""
    trainer, experience = collected(PPOKnobs(batch=60, eps_max=0.9, eps_min=0.1, eps_decay=60))
    assert experience.eps.max() - experience.eps.min() > 0.5
    ratio = ratio_of(trainer.network, experience, SPEC.head_sizes)
    assert ratio.tolist() == pytest.approx([1.0] * len(experience), abs=2e-6)
    trainer.network.heads.weight.data *= 200  # far from uniform, so that the mixture matters
    wrong = replace(experience, eps=np.full_like(experience.eps, 0.1))
    assert not torch.allclose(
        ratio_of(trainer.network, experience, SPEC.head_sizes), ratio_of(trainer.network, wrong, SPEC.head_sizes)
    )


def test_first_epoch_of_one_batch_has_no_divergence() -> None:
    """With one step an update, nothing is clipped and the divergence is 0."""
    knobs = PPOKnobs(batch=60, minibatch=1000, epochs=1)
    trainer, experience = collected(knobs)
    rng = np.random.default_rng(0)
    stats = update(trainer.network, trainer.optimizer, experience, SPEC.head_sizes, knobs, rng)
    assert stats.approx_kl == pytest.approx(0, abs=1e-6)
    assert stats.clip_fraction == 0
    again = update(trainer.network, trainer.optimizer, experience, SPEC.head_sizes, replace(knobs, epochs=9), rng)
    assert again.approx_kl > 1e-6


def test_a_decision_counts_for_the_images_of_its_block() -> None:
    """As many as its group and those who wait allow; a hold for one: its reward is that of its oldest image's block."""
    view = msgspec.structs.replace(Bandit().view(), candidates=3)
    assert [images_of(Choice(1, 0.5, group), view) for group in (1, 2, 8)] == [1, 2, 3]
    assert images_of(Hold(4, 1), view) == 1
    _, experience = collected(PPOKnobs(batch=60))
    assert experience.images.tolist() == [1] * len(experience)  # where one waits


def test_advantages_by_hand() -> None:
    """R - V = (1, -1, 3), of 2, 1 and 1 images, has mean 1 and standard deviation sqrt 2."""
    reward, value, images = np.array([[2, 0, 4], [1, 1, 1], [2, 1, 1]], np.float32)
    assert advantages(reward, value, images).tolist() == pytest.approx([0, -(2**0.5), 2**0.5], abs=1e-6)


def test_equal_rewards_give_no_advantage() -> None:
    """A batch in which R - V never varies teaches the policy nothing, and divides by nothing."""
    assert advantages(*np.array([[3.0], [1.0], [2.0]], np.float32).repeat(5, axis=1)).tolist() == [0.0] * 5


def test_clipped_surrogate_by_hand() -> None:
    """min(r A, clip(r) A): a good action counts up to 1.2, a bad one is never excused by the clip."""
    log_ratio = torch.log(torch.tensor([1.5, 0.5, 1.5, 0.5]))
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert clipped_surrogate(log_ratio, advantage, 0.2).tolist() == pytest.approx([-1.2, -0.5, 1.5, 0.8])


def test_explained_variance_is_1_for_perfect_values_and_0_for_constant_ones() -> None:
    """1 - Var(R - V) / Var(R)."""
    reward = np.array([1, 2, 3, 4], np.float32)
    assert explained_variance(reward, reward) == 1
    assert explained_variance(reward, np.ones(4, np.float32)) == pytest.approx(0)
    assert explained_variance(np.ones(4, np.float32), reward) == 0


@given(st.floats(0.01, 2.0))
def test_gradient_clipping_bounds_the_step(limit: float) -> None:
    """With plain descent at rate 1 the weights move by no more than the limit, however large the rewards."""
    knobs = PPOKnobs(batch=20, minibatch=1000, epochs=1, max_grad_norm=limit)
    trainer, experience = collected(knobs)
    huge = replace(experience, reward=experience.reward * 1e4)
    before = torch.nn.utils.parameters_to_vector(trainer.network.parameters()).detach().clone()
    descent = torch.optim.SGD(trainer.network.parameters(), lr=1.0)
    stats = update(trainer.network, descent, huge, SPEC.head_sizes, knobs, np.random.default_rng(0))
    moved = torch.nn.utils.parameters_to_vector(trainer.network.parameters()).detach() - before
    assert stats.grad_norm > limit
    assert float(moved.norm()) == pytest.approx(limit, rel=1e-3)


def test_divergence_is_an_error_and_leaves_the_weights_alone() -> None:
    """A reward that is not a number stops training before it spoils the network."""
    knobs = PPOKnobs(batch=20)
    trainer, experience = collected(knobs)
    before = {name: value.clone() for name, value in trainer.network.state_dict().items()}
    broken = replace(experience, reward=np.full_like(experience.reward, np.nan))
    with pytest.raises(WorkError, match="diverged"):
        update(trainer.network, trainer.optimizer, broken, SPEC.head_sizes, knobs, np.random.default_rng(0))
    assert all(torch.equal(value, before[name]) for name, value in trainer.network.state_dict().items())


def test_weights_come_from_their_seed_and_no_global_state() -> None:
    """Equal seeds give equal networks, other seeds others, and torch's own generator is not touched."""
    state = torch.get_rng_state()
    first, same, other = (PolicyNetwork(SPEC, (8, 8), seed).heads.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------------------------------------------------- buffer


def add(buffer: TransitionBuffer, decisions: list[int], mark: float) -> None:
    count = len(decisions)
    acted = Acted(np.full((count, 3), 1, np.int64), np.full(count, -mark))
    seen = np.full((count, SPEC.observation.size), mark, np.float32)
    widths = np.zeros((count, 3, 4), np.bool_)
    widths[:, 1, :2] = True  # those of the chosen server
    values, holds = np.full(count, mark, np.float32), np.zeros((count, 0), np.bool_)
    numbered = [(decision, 1) for decision in decisions]
    buffer.add(numbered, seen, np.ones((count, 3), np.bool_), widths, acted, mark, values, holds)


def test_reward_finds_its_own_decision() -> None:
    """Ids are each environment's own; rewards come in any order; only rewarded decisions are taken, once."""
    buffer = TransitionBuffer(SPEC, 2, capacity=2)
    for decision in (1, 2, 3):
        add(buffer, [decision, decision], float(decision))
    buffer.credit(1, 3, 30.0)
    buffer.credit(0, 1, 10.0)
    taken = buffer.take()
    assert taken.reward.tolist() == [30.0, 10.0]
    assert taken.value.tolist() == [3.0, 1.0]
    assert taken.observation[:, 0].tolist() == [3.0, 1.0]
    assert taken.width_mask.tolist() == [[True, True, False, False]] * 2
    assert (buffer.complete, buffer.waiting) == (0, 4)
    with pytest.raises(KeyError):
        buffer.credit(0, 1, 1.0)


def test_taken_rows_are_used_again() -> None:
    """A buffer that is emptied as fast as it is filled does not grow."""
    buffer = TransitionBuffer(SPEC, 2, capacity=4)
    for decision in range(1, 50):
        add(buffer, [decision, decision], 1.0)
        buffer.credit(0, decision, 1.0)
        assert buffer.forget(1) == 1
        assert len(buffer.take()) == 1
    assert len(buffer._rows) == 4


@given(st.lists(st.sampled_from(["add", "credit", "forget", "take"]), max_size=60), st.integers(1, 4))
def test_rows_are_never_shared_or_lost(steps: list[str], capacity: int) -> None:
    """Whatever happens in whatever order, each taken row still says what was put in for its decision."""
    buffer, waiting, rewarded = TransitionBuffer(SPEC, 1, capacity), [], []
    for number, step in enumerate(steps, start=1):
        if step == "add":
            add(buffer, [number], float(number))
            waiting.append(number)
        elif step == "credit" and waiting:
            rewarded.append(waiting.pop(0))
            buffer.credit(0, rewarded[-1], -float(rewarded[-1]))
        elif step == "forget":
            assert buffer.forget(0) == len(waiting)
            waiting = []
        elif step == "take":
            taken = buffer.take()
            assert taken.value.tolist() == rewarded
            assert taken.reward.tolist() == [-each for each in rewarded]
            rewarded = []
    assert (buffer.waiting, buffer.complete) == (len(waiting), len(rewarded))
