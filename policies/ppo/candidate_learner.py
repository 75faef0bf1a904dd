"""PPO for `ppo`: clipped updates on what candidates were drawn, with credit over the decisions that follow (GAE).

Decisions come at times of their own, so what is still to come counts exp(-time / `discount`) as much (a semi-Markov
process). It costs what is inside the cluster, image by image, for as long as it is there, above the running average of
that; a width is worth what it adds to the accuracy of the images that it is chosen for, at a price that a controller
leads to the floor. So both count image by image, and each decision once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from kit.checkpoint import Tensors
from policies.ppo.candidate_experience import MASKED, CandidateExperience
from policies.ppo.knobs import PPOKnobs
from policies.ppo.steps import Surrogate, gradient_step
from policies.rules.candidates import SERVER, SETTING, SHAPES, CandidateNetwork

Reals = npt.NDArray[np.float64]
_AVERAGED = 20  # updates over which the running average of the cost forgets
WARM = 10  # updates of the value alone: while it is wrong, time by itself looks like a gain or a loss


class Multiplier(Protocol):
    """The price of a point of accuracy: rises while the floor is missed (`scenarios.learn.search.FloorMultiplier`)."""

    value: float
    state: tuple[float, float, float]

    def update(self, shortfall: float) -> float:
        """After a shortfall, in points."""
        ...


class CandidatePolicy(nn.Module):
    """Preferences (B, N, W) of candidates, and the value (B,) of a decision.

    Args:
        hidden: of the network that scores candidates.
        critic: the sizes of the tanh layers of the value, which sees the setting, and the mean and the largest of the
            servers' inputs; no router has it.
        seed: of the weights.
        from_scratch: begin without Compass' costs.
    """

    def __init__(self, hidden: int, critic: Sequence[int], seed: int, from_scratch: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.setting = nn.Linear(SETTING, hidden)
            self.server, self.width = (nn.Linear(SHAPES[name], hidden, bias=False) for name in ("server", "width"))
            self.last = nn.Linear(hidden, 1, bias=False)
            sizes = [SETTING + 2 * SERVER, *critic]
            layers = [(nn.Linear(a, b), nn.Tanh()) for a, b in itertools.pairwise(sizes)]
            last_of_value = nn.Linear(sizes[-1], 1)
            self.value = nn.Sequential(*(part for layer in layers for part in layer), last_of_value)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(last_of_value.weight)
        self.sharpness = nn.Parameter(torch.full((1,), 0.0 if from_scratch else 1.0), requires_grad=not from_scratch)

    def preferences(self, setting: Tensor, server: Tensor, width: Tensor, reluctance: Tensor) -> Tensor:
        """(B, SETTING), (B, N, SERVER), (B, N, W, WIDTH), (B, N W) -> (B, N W) logits; no candidate: none."""
        hidden = (self.setting(setting)[:, None] + self.server(server))[:, :, None] + self.width(width)
        score = self.last(torch.relu(hidden)).flatten(1)
        logits: Tensor = (score - self.sharpness * reluctance).masked_fill(reluctance == MASKED, -1e9)
        return logits

    def values(self, setting: Tensor, server: Tensor) -> Tensor:
        """(B, SETTING), (B, N, SERVER) -> (B,)."""
        seen = torch.cat([setting, server.mean(1), server.amax(1)], dim=1)
        values: Tensor = self.value(seen).squeeze(-1)
        return values

    def network_tensors(self) -> Tensors:
        """The weights of what decides, by name."""
        return {name: value for name, value in self.tensors().items() if not name.startswith("value.")}

    def network(self) -> CandidateNetwork:
        """What decides."""
        return CandidateNetwork.of(self.network_tensors())

    def tensors(self) -> Tensors:
        """All weights, by name."""
        return {name: value.detach().numpy().copy() for name, value in self.state_dict().items()}


def rewards(cost: Reals, worth: Reals, time: Reals, average: float) -> Reals:
    """(E, T - 1) what each decision but the last got until the next one.

    Args:
        cost: (E, T) what is inside at each decision.
        worth: (E, T) of what was chosen.
        time: (E, T) of the decisions.
        average: of the cost.
    """
    between = (cost[:, :-1] + cost[:, 1:]) / 2.0 - average
    return worth[:, :-1] - between * np.diff(time, axis=1)


def advantages(reward: Reals, value: Reals, time: Reals, ended: npt.NDArray[np.bool_], fade: Fade) -> Reals:
    """(E, T - 1) generalized advantage estimates in continuous time.

    Args:
        reward: (E, T - 1) until the next decision.
        value: (E, T).
        time: (E, T) of the decisions.
        ended: (E, T) whether the episode ended before the next decision; nothing is known of what came then.
        fade: of what is to come.
    """
    keep = np.exp(-np.diff(time, axis=1) / fade.time)
    error = reward + keep * value[:, 1:] - value[:, :-1]
    gains, later = np.zeros_like(error), np.zeros(len(error))
    for step in range(error.shape[1] - 1, -1, -1):
        later = np.where(ended[:, step], 0.0, error[:, step] + fade.trace * keep[:, step] * later)
        gains[:, step] = later
    return gains


@dataclass(frozen=True, slots=True)
class Fade:
    """How what comes later counts: exp(-1) as much after `time`, and `trace` as much with each decision (GAE)."""

    time: float
    trace: float


class CandidateLearner:
    """Policy, value and optimizer.

    Args:
        knobs: PPO's.
        seed: of the weights.
        unit_ns: Compass' unit of time.
        worth: (S, W) share of accuracy that a width adds at a segment.
        multiplier: of a point of accuracy, in units of time.
        floor: of accuracy.
    """

    def __init__(
        self, knobs: PPOKnobs, seed: int, unit_ns: float, worth: Reals, multiplier: Multiplier, floor: float
    ) -> None:
        self.knobs, self.unit_ns, self.worth, self.multiplier, self.floor = knobs, unit_ns, worth, multiplier, floor
        self.policy = CandidatePolicy(knobs.candidate_hidden, knobs.hidden, seed, knobs.from_scratch)
        critic = list(self.policy.value.parameters())
        deciding = [each for name, each in self.policy.named_parameters() if not name.startswith("value.")]
        groups = [{"params": [each for each in deciding if each.requires_grad]}, {"params": critic}]
        self.optimizer = torch.optim.Adam(groups, lr=knobs.learning_rate, eps=1e-5)
        self.average, self.updates = 0.0, 0

    def update(self, batch_of: CandidateExperience, rng: np.random.Generator, left: float) -> dict[str, float]:
        """K epochs of minibatch steps; returns the log's scalars. `WorkError` where the gradient diverges.

        Args:
            batch_of: one batch.
            rng: of minibatches.
            left: share of the training that is still to come, by which the steps become smaller.
        """
        is_warm = self.updates >= WARM
        self.optimizer.param_groups[0]["lr"] = self.knobs.candidate_learning_rate * left * is_warm
        accuracy = self._served(batch_of)
        if is_warm:
            self.multiplier.update(100.0 * (self.floor - accuracy))
        batch, scalars = self._batch(batch_of)
        parts = ceil(len(batch["actions"]) / self.knobs.minibatch)
        steps = []
        for _ in range(self.knobs.epochs):
            for rows in np.array_split(rng.permutation(len(batch["actions"])), parts):
                steps.append(self._step({name: part[torch.from_numpy(rows)] for name, part in batch.items()}))
        self.updates += 1
        names = ("loss/policy", "loss/value", "update/approx_kl", "update/clip_fraction", "entropy", "update/grad_norm")
        means = dict(zip(names, np.mean(steps, axis=0).tolist(), strict=True))
        return {**scalars, **means, "accuracy": accuracy, "price": self.multiplier.value, "inside": self.average}

    def _served(self, experience: CandidateExperience) -> float:
        """The mean accuracy of what was served meanwhile."""
        goes_on = ~experience.whole("ended")[:, :-1].astype(bool)
        served = (np.diff(experience.whole("completed"), axis=1) * goes_on).sum()
        return float((np.diff(experience.accuracy, axis=1) * goes_on).sum() / max(1, served))

    def _batch(self, experience: CandidateExperience) -> tuple[dict[str, Tensor], dict[str, float]]:
        parts = (experience.setting, experience.server, experience.width, experience.reluctance)
        setting, server, width, reluctance = (torch.from_numpy(part.astype(np.float32)) for part in parts)
        with torch.no_grad():
            value = self.policy.values(setting.flatten(0, 1), server.flatten(0, 1)).double().numpy()
            chances = torch.log_softmax(
                self.policy.preferences(*(part.flatten(0, 1) for part in (setting, server, width, reluctance))), dim=1
            )
        shape, ended = setting.shape[:2], experience.whole("ended").astype(bool)
        inside, time = experience.whole("in_flight").astype(float), experience.whole("time_ns") / self.unit_ns
        self._follow(inside, time, ended)
        scale = 1.0 / (self.average * self.knobs.discount)
        reward = scale * rewards(inside, self._worth(experience), time, self.average)
        fade = Fade(self.knobs.discount, self.knobs.trace)
        gained = advantages(reward, value.reshape(shape), time, ended, fade)
        kept = np.flatnonzero(~ended[:, :-1].ravel())

        def chosen(part: Any) -> Tensor:
            tensor = torch.as_tensor(part)[:, :-1].flatten(0, 1)
            return tensor[torch.from_numpy(kept)]

        actions = chosen(experience.whole("chosen"))
        log_prob = chosen(chances.reshape(*shape, -1)).gather(1, actions[:, None]).squeeze(1)
        advantage = torch.from_numpy(gained.astype(np.float32).ravel()[kept])
        target = advantage + chosen(value.reshape(shape).astype(np.float32))
        explained = 1.0 - float(advantage.var() / target.var())
        advantage = (advantage - advantage.mean()) / advantage.std().clamp_min(1e-8)
        batch = {"setting": chosen(setting), "server": chosen(server), "width": chosen(width)}
        batch |= {"reluctance": chosen(reluctance), "actions": actions, "log_prob": log_prob}
        return batch | {"advantage": advantage, "target": target}, {"update/explained_variance": explained}

    def _follow(self, inside: Reals, time: Reals, ended: npt.NDArray[np.bool_]) -> None:
        """The running average of what is inside."""
        spans = np.diff(time, axis=1) * ~ended[:, :-1]
        mean = float((spans * (inside[:, :-1] + inside[:, 1:]) / 2.0).sum() / spans.sum())
        self.average += (mean - self.average) / (_AVERAGED if self.updates >= WARM else 1)

    def _worth(self, experience: CandidateExperience) -> Reals:
        """(E, T) what the accuracy of the widths chosen is worth, above the mean of their segment."""
        segment, images = experience.whole("segment"), experience.whole("images")
        share = self.worth[segment, experience.whole("chosen") % experience.widths]
        counts = [
            np.bincount(segment.ravel(), weights.ravel(), len(self.worth)) for weights in (images, images * share)
        ]
        mean = counts[1] / np.maximum(counts[0], 1.0)
        worth: Reals = 100.0 * self.multiplier.value * images * (share - mean[segment])
        return worth

    def _step(self, rows: Mapping[str, Tensor]) -> list[float]:
        knobs = self.knobs
        logits = self.policy.preferences(rows["setting"], rows["server"], rows["width"], rows["reluctance"])
        chances = torch.log_softmax(logits, dim=1)
        log_ratio = chances.gather(1, rows["actions"][:, None]).squeeze(1) - rows["log_prob"]
        surrogate = Surrogate.of(log_ratio, rows["advantage"], knobs.clip)
        miss = self.policy.values(rows["setting"], rows["server"]) - rows["target"]
        entropy = -(chances.exp() * chances).sum(1)
        figures = torch.stack([-surrogate.gain, 0.5 * miss**2, surrogate.kl, surrogate.clipped, entropy]).mean(1)
        loss = figures[0] + knobs.value_weight * figures[1] - knobs.entropy_weight * figures[4]
        norm = gradient_step(self.policy, self.optimizer, loss, knobs.max_grad_norm, "candidate_learning_rate")
        return [*figures.tolist(), norm]
