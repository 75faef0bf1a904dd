"""One PPO update on a batch of rewarded decisions (Eq. 8-13), independent of their source.

All means are over images: a block's decision counts once for each of its images. With means over blocks, a block of one
image would have the weight of one of 32.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kit.checkpoint import Tensors
from kit.jit import Singles
from policies.observation import Floats
from policies.ppo.experience import Experience
from policies.ppo.knobs import PPOKnobs
from policies.ppo.layout import Layout
from policies.ppo.network import PolicyNetwork
from policies.ppo.steps import Surrogate, gradient_step

_TINY: Final = 1e-37  # below any probability that float32 can hold
_LOSSES: Final = ("policy_loss", "value_loss", "approx_kl", "clip_fraction")
_ENTROPIES: Final = ("entropy_server", "entropy_width", "entropy_group", "entropy_hold")


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Means over an update's gradient steps, except for `explained_variance`: that of R by V_old, before the update.

    `approx_kl` is `Surrogate.kl`; `entropy_hold` is None if the policy may not hold.
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

    @property
    def scalars(self) -> dict[str, float]:
        """The figures by the log's names."""
        groups = {"policy_loss": "loss/policy", "value_loss": "loss/value"}
        groups |= {name: name.replace("_", "/") for name in _ENTROPIES}
        return {groups.get(name, f"update/{name}"): value for name, value in asdict(self).items() if value is not None}


def advantages(reward: Floats, value: Floats, images: Floats) -> Floats:
    """Return A = R - V_old(s), normalized over the batch's images to mean 0 and standard deviation 1 (Eq. 8-13). All
    (B,)."""
    raw = reward - value
    raw -= np.average(raw, weights=images)
    return np.asarray(raw / (np.sqrt(np.average(raw * raw, weights=images)) + 1e-8))


def explained_variance(reward: Floats, value: Floats) -> float:
    """Return 1 - Var(R - V) / Var(R); 0 if R does not vary."""
    spread = float(reward.var())
    return 1 - float((reward - value).var()) / spread if spread > 0 else 0.0


class Learner:
    """The network and Adam.

    Args:
        layout: the network's.
        knobs: Eq. 8-13.
        network: the network with its initial weights.
    """

    def __init__(self, layout: Layout, knobs: PPOKnobs, network: PolicyNetwork) -> None:
        self.layout = layout
        self.knobs = knobs
        self.network = network
        self.optimizer = torch.optim.Adam(network.parameters(), lr=knobs.learning_rate, eps=1e-5)

    def tensors(self) -> Tensors:
        """Return the weights, by name."""
        return {name: value.numpy().copy() for name, value in self.network.state_dict().items()}

    def weights(self) -> Singles:
        """Return the weights in the kernels' layout."""
        return self.layout.pack(self.tensors())

    def update(self, experience: Experience, rng: np.random.Generator) -> UpdateStats:
        """Run K epochs of minibatch steps. `WorkError` if the gradient diverges; that step changes nothing."""
        knobs, advantage = self.knobs, advantages(experience.reward, experience.value, experience.images)
        parts = ceil(len(experience) / knobs.minibatch)  # equal ones, no small last one
        steps = []
        for _ in range(knobs.epochs):
            for rows in np.array_split(rng.permutation(len(experience)), parts):
                loss, figures = self.loss(experience.rows(rows), advantage[rows])
                remedy = "learning_rate or the reward's weights"
                norm = gradient_step(self.network, self.optimizer, loss, knobs.max_grad_norm, remedy)
                steps.append([*figures.tolist(), norm])
        *means, norm = np.mean(steps, axis=0).tolist()
        return UpdateStats(
            **dict(zip((*_LOSSES, *_ENTROPIES), means, strict=False)),
            grad_norm=norm,
            explained_variance=explained_variance(experience.reward, experience.value),
        )

    def loss(self, decisions: Experience, advantage: Floats) -> tuple[Tensor, Tensor]:
        """Return PPO's loss and its figures: losses, divergence, clipped, the heads' entropies.

        Args:
            decisions: (B,) of a minibatch.
            advantage: (B,) normalized.
        """
        e, knobs = decisions, self.knobs
        logits, value = self.network(torch.from_numpy(e.observation))
        chances = self._chances(logits, e)
        actions = torch.from_numpy(e.actions)
        server, *others = (each.gather(1, actions[:, [place]]).squeeze(1) for place, each in enumerate(chances))
        eps, valid = torch.from_numpy(e.eps), torch.from_numpy(e.server_mask.sum(axis=1))
        log_prob = torch.log(((1 - eps) * server.exp() + eps / valid).clamp_min(_TINY)) + sum(others)  # Eq. 5, 6
        surrogate = Surrogate.of(log_prob - torch.from_numpy(e.log_prob), torch.from_numpy(advantage), knobs.clip)
        missed = 0.5 * (torch.from_numpy(e.reward) - value).square()
        entropies = [-(each.exp() * each).sum(1) for each in chances]
        share = torch.from_numpy(e.images / e.images.sum())
        figures = torch.stack([-surrogate.gain, missed, surrogate.kl, surrogate.clipped, *entropies]) @ share
        loss = figures[0] + knobs.value_weight * figures[1] - knobs.entropy_weight * figures[4:].sum()
        return loss, figures.detach()

    def _chances(self, logits: Tensor, e: Experience) -> list[Tensor]:
        """Return log-probabilities of each head; masked entries have none."""
        sizes = self.layout.head_sizes
        masks = [e.server_mask, e.width_mask, np.ones((len(e), sizes[2]), np.bool_), e.hold_mask]
        parts = torch.split(logits, list(sizes), dim=-1)
        return [
            torch.log_softmax(part.masked_fill(~torch.from_numpy(mask), -1e9), dim=1)
            for part, mask in zip(parts, masks, strict=False)
        ]
