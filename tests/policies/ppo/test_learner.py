from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kit.errors import WorkError
from policies.ppo.kernels import Experience
from scenarios.files.scenario_keys import TrainingSection
from scenarios.learn.ppo import PolicyNetwork, Trainer, advantages, explained_variance, loss_of
from tests.policies.ppo.problems import BATCHING_DELAYS_S, Doubles, experience_of, hidden_of, masked_softmax, spec_for

PARAMS = TrainingSection()


def trainer_of(network: PolicyNetwork, experience: Experience, **params: Any) -> Trainer:
    section = PARAMS.model_copy(update={"hidden": hidden_of(network), "learning_rate": 1e-3, **params})
    trainer = Trainer(lambda _: None, spec_for(experience), section, 0)  # type: ignore[arg-type, return-value]
    trainer.network.load_state_dict(network.state_dict())
    return trainer


def shares_of(network: PolicyNetwork, e: Experience) -> list[Doubles]:
    """Each head's probabilities (Eq. 2-4), by numpy."""
    with torch.inference_mode():
        logits = network(torch.from_numpy(e.observation))[0].numpy()
    masks = [e.server_mask, e.width_mask, np.ones((len(e), 6), np.bool_), e.batching_delay_mask]
    starts = np.cumsum([mask.shape[1] for mask in masks])[:-1]
    parts = zip(np.split(logits, starts, axis=1), masks, strict=True)
    return [masked_softmax(part, mask) for part, mask in parts if mask.shape[1]]


@pytest.mark.parametrize(("servers", "batching_delays_s"), [(1, ()), (3, ()), (10, ()), (3, BATCHING_DELAYS_S)])
@pytest.mark.parametrize("eps", [0.0, 0.1, 1.0])
def test_the_loss_is_the_papers(servers: int, batching_delays_s: tuple[float, ...], eps: float) -> None:
    """Eq. 5, 6 and 8-13 written down once more, in float64: what is lost, and each figure of it, over images."""
    network, e = experience_of(servers, 2000, eps=eps, batching_delays_s=batching_delays_s)
    advantage, rows = advantages(e.reward, e.value, e.images), np.arange(2000)
    shares = shares_of(network, e)
    chosen = [share[rows, e.actions[:, head]] for head, share in enumerate(shares)]
    chosen[0] = (1 - e.eps) * chosen[0] + e.eps / e.server_mask.sum(axis=1)
    ratio = np.prod(chosen, axis=0) / np.exp(e.log_prob)
    gain = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    with torch.inference_mode():
        miss = network(torch.from_numpy(e.observation))[1].numpy() - e.reward
    entropies = [-(share * np.log(np.where(share > 0, share, 1))).sum(axis=1) for share in shares]
    each = [-gain, miss**2 / 2, ratio - 1 - np.log(ratio), np.abs(ratio - 1) > 0.2, *entropies]
    wanted = [float(np.average(figure, weights=e.images)) for figure in each]
    loss, figures = loss_of(network, e, advantage, PARAMS)
    assert figures.tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert loss.item() == pytest.approx(wanted[0] + 0.5 * wanted[1] - 0.01 * sum(wanted[4:]), rel=1e-4)
    assert 0.2 < wanted[3] < 0.5  # some are clipped, some not: both branches were there


def test_a_block_counts_as_often_as_it_has_images() -> None:
    """What is learned from micro-batches is what is learned where each image was decided about alone."""
    network, micro_batches = experience_of(3, 300)
    apart = micro_batches.rows(np.repeat(np.arange(300), micro_batches.images.astype(int)))
    gradients = []
    for e in (micro_batches, replace(apart, images=np.ones(len(apart), np.float32))):
        network.zero_grad()
        loss, _ = loss_of(network, e, advantages(e.reward, e.value, e.images), PARAMS)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients.append(np.hstack([each.grad.ravel() for each in network.parameters() if each.grad is not None]))
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("batching_delays_s", [(), BATCHING_DELAYS_S])
def test_an_update_makes_what_gained_likelier(batching_delays_s: tuple[float, ...]) -> None:
    """Three epochs in minibatches that are nearly equal; the figures have their names."""
    network, e = experience_of(3, 1003, batching_delays_s=batching_delays_s)
    trainer = trainer_of(network, e, minibatch=101)
    advantage = advantages(e.reward, e.value, e.images)
    before = loss_of(network, e, advantage, PARAMS)[0].item()
    figures = trainer.update(e)
    assert loss_of(trainer.network, e, advantage, PARAMS)[0].item() < before
    assert ("entropy/batching_delay" in figures) == bool(batching_delays_s)
    assert all(state["step"] == 30 for state in trainer.optimizer.state.values())


def test_tiny_batches_are_learned_from() -> None:
    network, experience = experience_of(3, 2)
    figures = trainer_of(network, experience, minibatch=1).update(experience)
    assert all(np.isfinite(list(figures.values())))


def test_divergence_is_an_error_and_leaves_the_weights_alone() -> None:
    """A reward that is not a number stops training before it spoils the network."""
    network, experience = experience_of(3, 50)
    trainer = trainer_of(network, experience)
    broken = replace(experience, reward=np.full_like(experience.reward, np.nan))
    with pytest.raises(WorkError, match="diverged"):
        trainer.update(broken)
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in trainer.network.state_dict().items())


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
