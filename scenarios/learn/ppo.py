"""Trains the paper's policy (Eq. 1-13) in simulation: network, loss, update and loop, in this order. It needs torch.

Simulated clusters (`sim.compiled.rollout`) provide the decisions. The policy is fixed while a batch is collected, and
so is the share of exploration. The same seed gives the same weights, whatever the number of threads that decide.

All means are over images: a micro-batch's decision counts once for each of its images. With means over micro-batches, a
micro-batch of one image would have the weight of one of 32.

A checkpoint is written between updates. Resuming from one continues with the very weights, optimizer, counters and
stream; episodes restart (decisions still without a reward are lost), each with the seed of its next episode. So a
resumed run is a valid one, but equals the uninterrupted run only if its clusters have no state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from hw.host_resources import core_count
from kit import checkpoint
from kit.errors import WorkError
from kit.random_streams import derived_seed, stream
from policies.observation import Floats
from policies.ppo.kernels import Experience, Layout, joined
from policies.ppo.ppo_router import CHECKPOINT, PPORouter, header, policy_weights
from policies.ppo.spec import PolicySpec
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.files.scenario_keys import TrainingSection
from scenarios.learn.ppo_training import episode, spec_of
from sim.compiled.rollout import Rollouts

OnProgress = Callable[[int, Mapping[str, float]], None]
"""Called after every update with the decisions so far and the log's scalars."""

MAX_THREADS: Final = 2  # the learner takes no more
_TINY: Final = 1e-37  # below any probability that float32 can hold
_FIGURES: Final = (
    *("loss/policy", "loss/value", "update/approx_kl", "update/clip_fraction"),
    *("entropy/server", "entropy/width", "entropy/micro_batch_size", "entropy/batching_delay"),
)
_OPTIMIZER: Final = "optimizer."


class PolicyNetwork(nn.Module):
    """A network from observation (B, 2 + 3N) to logits (B, L), the heads next to each other, and value (B,).

    L is the sum of `PolicySpec.head_sizes`: N + W + G, and 1 + H if the policy may delay. It has no masks.

    Args:
        spec: the sizes of observation and heads.
        hidden: the sizes of the shared tanh layers.
        seed: seed of the weights: orthogonal, the heads' scaled by 0.01 so that training starts near uniform.
    """

    def __init__(self, spec: PolicySpec, hidden: tuple[int, ...], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)  # no other draws shift
        sizes = (spec.observation.size, *hidden)
        self.trunk = nn.ModuleList([_linear(inputs, outputs, 2**0.5, generator) for inputs, outputs in pairwise(sizes)])
        self.heads = _linear(hidden[-1], sum(spec.head_sizes), 0.01, generator)
        self.value = _linear(hidden[-1], 1, 1.0, generator)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, 2 + 3N) to (B, L), (B,)."""
        hidden = observation
        for layer in self.trunk:
            hidden = torch.tanh(layer(hidden))
        return self.heads(hidden), self.value(hidden).squeeze(-1)

    def tensors(self) -> checkpoint.Tensors:
        """Return a copy of the weights, by name."""
        return {name: value.numpy().copy() for name, value in self.state_dict().items()}


def _linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


# ------------------------------------------------------------------------------------------------------------ the loss


def exploration(params: TrainingSection, decisions: int) -> float:
    """Return eps_t of Eq. 5 after this number of decisions."""
    return params.eps_max + (params.eps_min - params.eps_max) * min(1.0, decisions / params.eps_decay)


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


def loss_of(
    network: PolicyNetwork, decisions: Experience, advantage: Floats, params: TrainingSection
) -> tuple[Tensor, Tensor]:
    """Return PPO's loss and its figures: losses, divergence, share of clipped ratios, the heads' entropies.

    The divergence is Schulman's estimator, ratio - 1 - log ratio: never negative, of low variance.

    Args:
        decisions: (B,) of a minibatch.
        advantage: (B,) normalized.
    """
    logits, value = network(torch.from_numpy(decisions.observation))
    chances = _chances(logits, decisions)
    actions = torch.from_numpy(decisions.actions)
    server, *others = (each.gather(1, actions[:, [head]]).squeeze(1) for head, each in enumerate(chances))
    eps, valid = torch.from_numpy(decisions.eps), torch.from_numpy(decisions.server_mask.sum(axis=1))
    log_prob = torch.log(((1 - eps) * server.exp() + eps / valid).clamp_min(_TINY)) + sum(others)  # Eq. 5, 6
    log_ratio = log_prob - torch.from_numpy(decisions.log_prob)
    ratio, better = log_ratio.exp(), torch.from_numpy(advantage)
    gain = torch.minimum(ratio * better, ratio.clamp(1 - params.clip, 1 + params.clip) * better)
    divergence, is_clipped = (ratio - 1 - log_ratio).detach(), ((ratio - 1).abs() > params.clip).float()
    value_error = 0.5 * (torch.from_numpy(decisions.reward) - value).square()
    entropies = [-(chance.exp() * chance).sum(1) for chance in chances]
    share = torch.from_numpy(decisions.images / decisions.images.sum())
    figures = torch.stack([-gain, value_error, divergence, is_clipped, *entropies]) @ share
    loss = figures[0] + params.value_weight * figures[1] - params.entropy_weight * figures[4:].sum()
    return loss, figures.detach()


def _chances(logits: Tensor, decisions: Experience) -> list[Tensor]:
    """Return log-probabilities of each head; masked entries have none."""
    micro_batch_sizes = (
        logits.shape[1]
        - decisions.server_mask.shape[1]
        - decisions.width_mask.shape[1]
        - decisions.batching_delay_mask.shape[1]
    )
    masks = [
        decisions.server_mask,
        decisions.width_mask,
        np.ones((len(decisions), micro_batch_sizes), np.bool_),
        decisions.batching_delay_mask,
    ]
    parts = torch.split(logits, [mask.shape[1] for mask in masks], dim=-1)
    return [
        torch.log_softmax(part.masked_fill(~torch.from_numpy(mask), -1e9), dim=1)
        for part, mask in zip(parts, masks, strict=True)
        if mask.shape[1]
    ]


# ------------------------------------------------------------------------------------------------- an update, the loop


class Trainer:
    """Training for `params.decisions` decisions, over all clusters together.

    Args:
        begin: creates the clusters from the number of their first episode, 0 unless a training is resumed.
        spec: the router's shape.
        params: Eq. 5 and Eq. 8-13.
        seed: of weights, minibatches and episodes.
        path: its checkpoint; resumes from an existing one.
    """

    def __init__(
        self,
        begin: Callable[[int], Rollouts],
        spec: PolicySpec,
        params: TrainingSection,
        seed: int,
        path: Path | None = None,
    ) -> None:
        self.spec = spec
        self.params = params
        self._path = path
        self.network = PolicyNetwork(spec, params.hidden, derived_seed(seed, "ppo:weights"))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=params.learning_rate, eps=1e-5)
        self.progress = {"decisions": 0, "updates": 0, "episodes": 0}
        self._minibatches, self._forgotten = stream(seed, "ppo:minibatches"), 0
        if path is not None and path.is_file():
            self._restore(path)
        self.rollouts = begin(self.progress["episodes"])

    def run(self, log: OnProgress | None = None) -> PPORouter:
        """Train to the end; returns the router. `WorkError` if training diverges."""
        while self.progress["decisions"] < self.params.decisions:
            scalars = self.iterate()
            if scalars is not None and log is not None:
                log(self.progress["decisions"], scalars)
            if scalars is not None and self.progress["updates"] % self.params.checkpoint_every == 0:
                self._save()
        self._save()
        return PPORouter(self.spec, self.network.tensors(), deterministic=self.params.deterministic)

    def iterate(self) -> dict[str, float] | None:
        """Decide until an update is due and make it; returns the log's scalars, or None if the decisions ran out
        before."""
        weights = Layout(self.spec, self.params.hidden).pack(self.network.tensors())
        rollouts, parts = self.rollouts, list[Experience]()
        complete = 0
        while complete < self.params.batch:
            decisions = self.progress["decisions"]
            if decisions >= self.params.decisions:
                return None
            before, limit = rollouts.decisions, min(self.params.decisions - decisions, self.params.batch - complete)
            parts.append(rollouts.collect(weights, exploration(self.params, decisions), limit))
            complete += len(parts[-1])
            self.progress["decisions"] += rollouts.decisions - before
            self.progress["episodes"] = rollouts.episodes
        experience = joined(parts)
        figures = self.update(experience)
        self.progress["updates"] += 1
        terms, forgotten = rollouts.take_terms(), rollouts.forgotten - self._forgotten
        assert terms is not None, "a batch was rewarded"
        self._forgotten = rollouts.forgotten
        return {
            "reward/mean": float(experience.reward.mean()),
            **{f"reward/{name}": float(getattr(terms, name)) for name in terms.__struct_fields__},
            **figures,
            "eps": exploration(self.params, self.progress["decisions"]),
            "episodes": float(self.progress["episodes"]),
            "decisions/waiting": float(rollouts.waiting),
            "decisions/forgotten": float(forgotten),
        }

    def update(self, experience: Experience) -> dict[str, float]:
        """Run K epochs of minibatch steps; returns means over the steps. The explained variance is of R by V_old.

        Raises:
            WorkError: the gradient diverges; that step changes nothing.
        """
        params, steps = self.params, list[list[float]]()
        advantage = advantages(experience.reward, experience.value, experience.images)
        parts = ceil(len(experience) / params.minibatch)  # equal ones, no small last one
        for _ in range(params.epochs):
            for rows in np.array_split(self._minibatches.permutation(len(experience)), parts):
                loss, figures = loss_of(self.network, experience.rows(rows), advantage[rows], params)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                norm = float(nn.utils.clip_grad_norm_(self.network.parameters(), params.max_grad_norm))
                if not np.isfinite(norm):
                    remedy = "lower learning_rate or the reward's weights"
                    raise WorkError(f"training diverged: the gradient is not finite; {remedy}")
                self.optimizer.step()
                steps.append([*figures.tolist(), norm])
        *means, norm = np.mean(steps, axis=0).tolist()
        figures_by_name = dict(zip(_FIGURES, means, strict=False))
        explained = explained_variance(experience.reward, experience.value)
        return {**figures_by_name, "update/grad_norm": norm, "update/explained_variance": explained}

    def _save(self) -> None:
        """Write everything that `_restore` needs; the router alone can be read from it, too."""
        if self._path is None:
            return
        tensors = {checkpoint.POLICY + name: value for name, value in self.network.tensors().items()}
        for name, parameter in self.network.named_parameters():
            moments = self.optimizer.state[parameter].items()
            tensors |= {f"{_OPTIMIZER}{moment}.{name}": value.numpy() for moment, value in moments}
        training = {"progress": self.progress, "minibatches": self._minibatches.bit_generator.state}
        metadata = header(self.spec, self.params.deterministic) | {"training": json.dumps(training)}
        checkpoint.write(self._path, tensors, metadata)

    def _restore(self, path: Path) -> None:
        tensors, metadata = checkpoint.read(path)
        training = json.loads(metadata["training"])
        self.progress, self._minibatches.bit_generator.state = training["progress"], training["minibatches"]
        weights = {name: torch.from_numpy(value) for name, value in policy_weights(tensors).items()}
        self.network.load_state_dict(weights)
        parameters = dict(self.network.named_parameters())
        for key, value in tensors.items():
            if key.startswith(_OPTIMIZER):
                moment, name = key.removeprefix(_OPTIMIZER).split(".", 1)
                self.optimizer.state[parameters[name]][moment] = torch.from_numpy(value)


def train_experiment(
    experiment: Experiment, folder: Path, *, seed: int, on_progress: OnProgress | None = None
) -> PPORouter:
    """Train the paper's PPO for an experiment; resumes from the folder's checkpoint.

    Args:
        folder: gets the checkpoint and a TensorBoard log; of this very training.
        on_progress: gets decisions and scalars.
    """
    params, spec = experiment.scenario.training, spec_of(experiment)

    def begin(first_episode: int) -> Rollouts:
        return Rollouts(
            experiment.cluster,
            partial(episode, experiment, load_range=params.load_range),
            spec,
            params.hidden,
            seed,
            clusters=params.environments,
            threads=min(core_count(), MAX_THREADS),
            first_episode=first_episode,
        )

    folder.mkdir(parents=True, exist_ok=True)
    with SummaryWriter(str(folder)) as writer:

        def log(done: int, scalars: Mapping[str, float]) -> None:
            for name, value in scalars.items():
                writer.add_scalar(name, value, done)
            if on_progress is not None:
                on_progress(done, scalars)

        return Trainer(begin, spec, params, seed, folder / CHECKPOINT).run(log)
