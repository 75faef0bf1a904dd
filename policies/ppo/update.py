"""One PPO update on a batch of rewarded decisions (Eq. 8-13). It knows nothing of where they came from.

All means are over images: a block's decision counts once for each of its images. Were they over blocks, a block of one
image would have as much say as one of 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil

import numpy as np
import torch
from torch import Tensor

from kit.errors import WorkError
from policies.observation import Floats
from policies.ppo.buffer import Experience
from policies.ppo.distribution import entropies, joint_log_prob, product_policy
from policies.ppo.knobs import PPOKnobs
from policies.ppo.network import PolicyNetwork

DIVERGED = "training diverged: the gradient is not finite; lower learning_rate or the reward's weights"


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Means over an update's gradient steps, but for `explained_variance`: that of R by V_old, before the update.

    `entropy_hold` is None where the policy may not hold.
    """

    policy_loss: float
    value_loss: float
    approx_kl: float
    clip_fraction: float
    entropy_server: float
    entropy_width: float
    entropy_group: float
    grad_norm: float
    explained_variance: float
    entropy_hold: float | None = None

    @classmethod
    def of(cls, means: Sequence[float], explained: float) -> UpdateStats:
        """From policy loss, value loss, KL, clipped, each head's entropy, and the gradient's norm."""
        *found, norm = means
        losses = ("policy_loss", "value_loss", "approx_kl", "clip_fraction")
        heads = ("entropy_server", "entropy_width", "entropy_group", "entropy_hold")
        named = dict(zip((*losses, *heads), found, strict=False))
        return cls(**named, grad_norm=norm, explained_variance=explained)


def advantages(reward: Floats, value: Floats, images: Floats) -> Floats:
    """A = R - V_old(s), normalized over the batch's images to mean 0 and standard deviation 1 (Eq. 8-13). All (B,)."""
    raw = reward - value
    raw -= np.average(raw, weights=images)
    return np.asarray(raw / (np.sqrt(np.average(raw * raw, weights=images)) + 1e-8))


def explained_variance(reward: Floats, value: Floats) -> float:
    """1 - Var(R - V) / Var(R); 0 where R does not vary."""
    spread = float(reward.var())
    return 1 - float((reward - value).var()) / spread if spread > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Batch:
    """An `Experience` and its advantages, as tensors."""

    observation: Tensor
    server_mask: Tensor
    width_mask: Tensor
    actions: Tensor
    log_prob: Tensor
    eps: Tensor
    value: Tensor
    reward: Tensor
    images: Tensor
    hold_mask: Tensor
    advantage: Tensor

    @classmethod
    def of(cls, experience: Experience) -> _Batch:
        arrays = [getattr(experience, field.name) for field in fields(experience)]
        arrays.append(advantages(experience.reward, experience.value, experience.images))
        return cls(*(torch.from_numpy(array) for array in arrays))

    def rows(self, rows: Tensor) -> _Batch:
        return _Batch(*(getattr(self, field.name)[rows] for field in fields(self)))


def ratio_of(network: PolicyNetwork, experience: Experience, sizes: tuple[int, ...]) -> Tensor:
    """(B,) pi(a|s) now over pi(a|s) when it was drawn, both with the exploration share it was drawn with."""
    log_ratio, _, _ = _evaluate(network, _Batch.of(experience), sizes)
    return log_ratio.exp()


def _evaluate(network: PolicyNetwork, batch: _Batch, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) log-ratio, (B, heads) entropies, (B,) values."""
    logits, value = network(batch.observation)
    policy = product_policy(logits, sizes, batch.server_mask, batch.width_mask, batch.hold_mask)
    log_prob = joint_log_prob(policy, batch.server_mask, batch.actions, batch.eps)
    return log_prob - batch.log_prob, entropies(policy), value


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """(B,) each decision's part of the policy's loss: -min(ratio A, clip(ratio) A). Both (B,)."""
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def update(
    network: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    experience: Experience,
    sizes: tuple[int, ...],
    knobs: PPOKnobs,
    rng: np.random.Generator,
) -> UpdateStats:
    """K epochs of minibatch steps; changes the network and the optimizer. `WorkError` where the gradient diverges."""
    batch = _Batch.of(experience)
    steps: list[Tensor] = []
    for _ in range(knobs.epochs):
        order = torch.from_numpy(rng.permutation(len(experience)))
        for rows in order.tensor_split(ceil(len(experience) / knobs.minibatch)):  # equal parts, no small last one
            steps.append(_step(network, optimizer, batch.rows(rows), sizes, knobs))
    means = torch.stack(steps).mean(dim=0).tolist()
    return UpdateStats.of(means, explained_variance(experience.reward, experience.value))


def _step(
    network: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    batch: _Batch,
    sizes: tuple[int, ...],
    knobs: PPOKnobs,
) -> Tensor:
    """One gradient step; what `UpdateStats.of` takes."""
    log_ratio, entropy, value = _evaluate(network, batch, sizes)
    share = batch.images / batch.images.sum()
    policy_loss = share @ clipped_surrogate(log_ratio, batch.advantage, knobs.clip)
    value_loss = share @ (0.5 * (batch.reward - value).square())
    by_head = share @ entropy
    loss = policy_loss + knobs.value_weight * value_loss - knobs.entropy_weight * by_head.sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    grad_norm = torch.nn.utils.clip_grad_norm_(network.parameters(), knobs.max_grad_norm)
    if not torch.isfinite(grad_norm):
        raise WorkError(DIVERGED)
    optimizer.step()
    with torch.no_grad():
        ratio = log_ratio.exp()
        approx_kl = share @ (ratio - 1 - log_ratio)  # Schulman's estimator: never negative, low variance
        clip_fraction = share @ ((ratio - 1).abs() > knobs.clip).float()
        return torch.stack([policy_loss, value_loss, approx_kl, clip_fraction, *by_head, grad_norm]).detach()
