"""PPO on choices among any number of jobs, in torch: full batches, a bound on the KL divergence of an update. The
policy needs no padding: each job is a row, and a decision is a sequence of rows. The value network's inputs are means
and maxima over the queue (17-32-16-8-1), independent of its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from jobs.learning.learned import HIDDEN, POOLED, SIZES, fresh_weights
from jobs.policies.choices import Seen
from kit.errors import WorkError

MOMENTS: Final = ("step", "exp_avg", "exp_avg_sq")
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class JobPPOKnobs:
    """Hyperparameters of PPO; RLTune has 80 steps at 3e-4 and 1e-3.

    Attributes:
        steps: gradient steps an update, at most, of the policy; the same number of the value.
        kl_stop: the policy's steps end when the mean log-ratio exceeds 1.5 times this.
        lam: lambda of generalized advantages (with a discount of 1).
    """

    policy_rate: float = 1e-3
    value_rate: float = 3e-3
    clip: float = 0.2
    steps: int = 25
    kl_stop: float = 0.01
    lam: float = 0.97


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """Experience from one window; D decisions.

    Attributes:
        rows: (R, 8) inputs of all decisions, concatenated.
        counts: (D,) number of rows of each.
        chosen: (D,) place of the choice among its rows.
        log_prob: (D,) log-probability of the choice when it was drawn.
        pooled: (D, 17) summary of the queue.
        rewards: (D,) reward after each.
        score, base_score: the sum of the rewards, and the base policy's score.
    """

    rows: Seen
    counts: NDArray[np.int64]
    chosen: NDArray[np.int64]
    log_prob: Floats
    pooled: Floats
    rewards: Floats
    score: float
    base_score: float


@dataclass(frozen=True, slots=True)
class JobUpdateStats:
    """Statistics of one update.

    Attributes:
        steps: policy steps before the bound was reached.
        kl: mean log-ratio at the end.
        entropy: mean -log-probability of the choices, when they were drawn.
        value_loss: before the update.
    """

    decisions: int
    steps: int
    kl: float
    entropy: float
    value_loss: float
    policy_loss: float


def advantages(rewards: Floats, values: Floats, lam: float) -> tuple[Floats, Floats]:
    """Return (D,) generalized advantages without discount (Schulman et al. 2016), and (D,) sums of future rewards."""
    deltas = rewards + np.append(values[1:], 0.0) - values
    advantage, ahead = np.empty_like(deltas), 0.0
    for step in range(len(deltas) - 1, -1, -1):
        ahead = advantage[step] = deltas[step] + lam * ahead
    return advantage.astype(np.float32), np.cumsum(rewards[::-1])[::-1].astype(np.float32)


def network(sizes: tuple[int, ...], seed: int, name: str) -> nn.Sequential:
    """Build a network with ReLU between layers and the weights of `fresh_weights`."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    put(net, fresh_weights(sizes, seed, name))
    return net


def put(net: nn.Sequential, weights: dict[str, Floats]) -> None:
    """Load weights by the number of their layer."""
    with torch.no_grad():
        for i, layer in enumerate(part for part in net if isinstance(part, nn.Linear)):
            layer.weight.copy_(torch.from_numpy(weights[f"{i}.weight"]))
            layer.bias.copy_(torch.from_numpy(weights[f"{i}.bias"]))


def taken(net: nn.Sequential) -> dict[str, Floats]:
    """Return weights by the number of their layer."""
    layers = [part for part in net if isinstance(part, nn.Linear)]
    weights = {f"{i}.weight": layer.weight.detach().numpy().copy() for i, layer in enumerate(layers)}
    return weights | {f"{i}.bias": layer.bias.detach().numpy().copy() for i, layer in enumerate(layers)}


class JobLearner:
    """The policy's and the value's networks, with their optimizers."""

    def __init__(self, knobs: JobPPOKnobs, seed: int) -> None:
        self.knobs = knobs
        self.actor = network(SIZES, seed, "actor")
        self.critic = network((POOLED, *HIDDEN, 1), seed, "critic")
        parts = ((self.actor, knobs.policy_rate), (self.critic, knobs.value_rate))
        self.optimizer = torch.optim.Adam([{"params": list(net.parameters()), "lr": rate} for net, rate in parts])

    def update(self, episodes: Sequence[Episode]) -> JobUpdateStats:
        """Learn from all episodes at once; windows without choices contribute nothing.

        Raises:
            WorkError: a loss is no longer a number.
        """
        episodes = [each for each in episodes if len(each.counts)]
        if not episodes:
            return JobUpdateStats(decisions=0, steps=0, kl=0.0, entropy=0.0, value_loss=0.0, policy_loss=0.0)
        inputs = torch.from_numpy(np.concatenate([each.pooled for each in episodes]))
        with torch.no_grad():
            values = self.critic(inputs)[:, 0].numpy()
        bounds = np.cumsum([len(each.counts) for each in episodes])[:-1]
        pairs = [
            advantages(each.rewards, value, self.knobs.lam)
            for each, value in zip(episodes, np.split(values, bounds), strict=True)
        ]
        advantage = np.concatenate([pair[0] for pair in pairs])
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        steps, kl, policy_loss = self._improve(_Choices.of(episodes, advantage))
        value_loss = self._value(inputs, torch.from_numpy(np.concatenate([pair[1] for pair in pairs])))
        entropy = -float(np.concatenate([each.log_prob for each in episodes]).mean())
        return JobUpdateStats(len(advantage), steps, kl, entropy, value_loss, policy_loss)

    def _improve(self, choices: _Choices) -> tuple[int, float, float]:
        kl, first_loss = 0.0, 0.0
        if not len(choices.picked):  # all were forced
            return 0, kl, first_loss
        for step in range(self.knobs.steps + 1):
            log_ratio = choices.log_prob_by(self.actor) - choices.log_prob
            kl = -float(log_ratio.detach().sum()) / choices.decisions
            if step == self.knobs.steps or kl > 1.5 * self.knobs.kl_stop:
                return step, kl, first_loss
            share = len(log_ratio) / choices.decisions  # forced choices have no gradient, and count in means
            ratio, clip = log_ratio.exp(), self.knobs.clip
            gains = ratio * choices.advantage, ratio.clamp(1 - clip, 1 + clip) * choices.advantage
            loss = share * -torch.minimum(*gains).mean()
            first_loss = first_loss if step else float(loss.detach())
            self._descend(loss)
        raise AssertionError("steps end within the loop")

    def _value(self, inputs: Tensor, returns: Tensor) -> float:
        first_loss = 0.0
        for step in range(self.knobs.steps):
            loss = (self.critic(inputs)[:, 0] - returns).square().mean()
            first_loss = first_loss if step else float(loss.detach())
            self._descend(loss)
        return first_loss

    def _descend(self, loss: Tensor) -> None:
        """Take a step of the network of this loss; the other has no gradient."""
        if not torch.isfinite(loss):
            raise WorkError("training diverged: the loss is no number any more; take a smaller learning rate")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    # ----------------------------------------------------------------------------------------------------- keeping

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return all that `restore` takes, except the policy's weights."""
        kept = {f"critic.{name}": value for name, value in taken(self.critic).items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            kept |= {f"adam.{number}.{moment}": state[moment].numpy().copy() for moment in MOMENTS}
        return kept

    def restore(self, actor: dict[str, Floats], tensors: dict[str, Floats]) -> None:
        """Resume from the output of `tensors`; raises `KeyError` or `RuntimeError` for another network's."""
        put(self.actor, actor)
        start = "critic."
        put(self.critic, {name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)})
        for number, parameter in enumerate((*self.actor.parameters(), *self.critic.parameters())):
            if f"adam.{number}.step" in tensors:
                moments = {name: torch.from_numpy(tensors[f"adam.{number}.{name}"].copy()) for name in MOMENTS}
                self.optimizer.state[parameter] = moments


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """Decisions with more than one row: C decisions with R rows; `decisions` counts all.

    Attributes:
        owner: (R,) the decision of each row.
        picked: (C,) the chosen row.
    """

    rows: Tensor
    owner: Tensor
    picked: Tensor
    log_prob: Tensor
    advantage: Tensor
    decisions: int

    @staticmethod
    def of(episodes: Sequence[Episode], advantage: Floats) -> _Choices:
        counts = np.concatenate([each.counts for each in episodes])
        is_free = counts > 1
        rows = np.concatenate([each.rows for each in episodes])[np.repeat(is_free, counts)]
        kept = counts[is_free]
        first = np.cumsum(kept) - kept
        chosen = np.concatenate([each.chosen for each in episodes])[is_free]
        log_prob = np.concatenate([each.log_prob for each in episodes])[is_free]
        return _Choices(
            torch.from_numpy(rows),
            torch.from_numpy(np.repeat(np.arange(len(kept)), kept)),
            torch.from_numpy(first + chosen),
            torch.from_numpy(log_prob),
            torch.from_numpy(advantage[is_free]),
            len(counts),
        )

    def log_prob_by(self, actor: nn.Module) -> Tensor:
        """Return (C,) log-probabilities of the choices, by a network's scores."""
        scores: Tensor = actor(self.rows)[:, 0]
        most: Tensor = torch.full((len(self.picked),), -torch.inf)
        most = most.scatter_reduce(0, self.owner, scores.detach(), "amax")
        sums = torch.zeros(len(self.picked)).index_add(0, self.owner, (scores - most[self.owner]).exp())
        return scores[self.picked] - most - sums.log()
