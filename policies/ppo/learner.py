"""One PPO update on a batch of rewarded decisions (Eq. 8-13). It knows nothing of where they came from.

All means are over images: a block's decision counts once for each of its images. Were they over blocks, a block of one
image would have as much say as one of 32. `kernels` has the loss and its gradient; a test holds both against torch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil, isfinite
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kit.checkpoint import Tensors
from kit.errors import WorkError
from kit.jit import Singles
from policies.observation import Floats
from policies.ppo import kernels
from policies.ppo.experience import Experience
from policies.ppo.knobs import PPOKnobs
from policies.ppo.layout import IMAGES, RECORD, Layout

_HALVES: Final = 2  # of a minibatch: its gradient is the sum of theirs, whoever computes them
_LOSSES: Final = ("policy_loss", "value_loss", "approx_kl", "clip_fraction")
_ENTROPIES: Final = ("entropy_server", "entropy_width", "entropy_group", "entropy_hold")
_MOMENTS: Final = ("step", "exp_avg", "exp_avg_sq")  # Adam's state of one parameter, by torch's names


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Means over an update's gradient steps, but for `explained_variance`: that of R by V_old, before the update.

    `approx_kl` is Schulman's estimator, mean of ratio - 1 - log ratio: never negative, of low variance. `entropy_hold`
    is None where the policy may not hold.
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
    """A = R - V_old(s), normalized over the batch's images to mean 0 and standard deviation 1 (Eq. 8-13). All (B,)."""
    raw = reward - value
    raw -= np.average(raw, weights=images)
    return np.asarray(raw / (np.sqrt(np.average(raw * raw, weights=images)) + 1e-8))


def explained_variance(reward: Floats, value: Floats) -> float:
    """1 - Var(R - V) / Var(R); 0 where R does not vary."""
    spread = float(reward.var())
    return 1 - float((reward - value).var()) / spread if spread > 0 else 0.0


class Learner:
    """The weights and Adam's moments, each one row of float32, in compiled code at millions of decisions a second.

    Args:
        layout: the network's.
        knobs: Eq. 8-13.
        tensors: the weights to begin with, by the names of `PolicyNetwork`.
        threads: 1 or 2; the result does not depend on it.
    """

    def __init__(
        self, layout: Layout, knobs: PPOKnobs, tensors: Mapping[str, npt.NDArray[Any]], threads: int = _HALVES
    ) -> None:
        self.layout, self.knobs, self.threads = layout, knobs, threads
        self.weights = layout.pack(tensors)
        self.first, self.second = np.zeros_like(self.weights), np.zeros_like(self.weights)
        self.steps = 0
        self._sizes = layout.sizes()
        self._transposed = np.zeros_like(self.weights)
        self._slopes = np.zeros((_HALVES, layout.parameters), np.float32)
        self._sums = np.zeros((_HALVES, len(_LOSSES) + len(layout.head_sizes)))
        self._scratch = np.zeros((_HALVES, layout.scratch), np.float32)

    def update(self, experience: Experience, rng: np.random.Generator) -> UpdateStats:
        """K epochs of minibatch steps. `WorkError` where the gradient diverges; that step changes nothing."""
        records = self._records(experience)
        parts = ceil(len(experience) / self.knobs.minibatch)  # equal ones, no small last one
        steps = []
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in range(self.knobs.epochs):
                for rows in np.array_split(rng.permutation(len(experience)), parts):
                    steps.append(self._step(records, rows, pool))
        *means, norm = np.mean(steps, axis=0).tolist()
        return UpdateStats(
            **dict(zip((*_LOSSES, *_ENTROPIES), means, strict=False)),
            grad_norm=norm,
            explained_variance=explained_variance(experience.reward, experience.value),
        )

    def moments(self) -> Tensors:
        """Adam's state by torch's names, `MOMENT.NAME`; empty before the first step."""
        if self.steps == 0:
            return {}
        step, first, second = _MOMENTS
        of_first, of_second = self.layout.unpack(self.first), self.layout.unpack(self.second)
        state = {f"{step}.{name}": np.array(self.steps, np.float32) for name in of_first}
        state |= {f"{first}.{name}": value for name, value in of_first.items()}
        return state | {f"{second}.{name}": value for name, value in of_second.items()}

    def put(self, weights: Tensors, moments: Tensors) -> None:
        """Take over weights and what `moments` gave."""
        self.weights = self.layout.pack(weights)
        if not moments:
            return
        step, first, second = _MOMENTS
        self.steps = int(moments[f"{step}.{next(iter(weights))}"])
        self.first = self.layout.pack({name: moments[f"{first}.{name}"] for name in weights})
        self.second = self.layout.pack({name: moments[f"{second}.{name}"] for name in weights})

    def _records(self, e: Experience) -> Singles:
        records = np.empty((len(e), self.layout.record), np.float32)
        advantage = advantages(e.reward, e.value, e.images)
        kernels.record(
            e.observation, e.server_mask, e.width_mask, e.actions, e.log_prob, e.eps, e.reward, e.hold_mask, e.images,
            advantage, records,
        )  # fmt: skip
        return records

    def _step(self, records: Singles, rows: npt.NDArray[np.int64], pool: Executor) -> npt.NDArray[np.float64]:
        """One gradient step: means of losses and entropies, and the gradient's norm."""
        self._slopes[:], self._sums[:] = 0, 0
        kernels.transpose(self.weights, self._sizes, self._transposed)
        share = 1 / float(records[rows, IMAGES - RECORD].sum())
        add_half = partial(self._add_half, records, rows, share)
        list(map(add_half, range(_HALVES)) if self.threads == 1 else pool.map(add_half, range(_HALVES)))
        knobs = self.knobs
        norm = kernels.adam(
            self.weights, self._slopes, self.first, self.second, self.steps + 1, knobs.learning_rate,
            knobs.max_grad_norm,
        )  # fmt: skip
        if not isfinite(norm):
            remedy = "lower learning_rate or the reward's weights"
            raise WorkError(f"training diverged: the gradient is not finite; {remedy}")
        self.steps += 1
        return np.append(self._sums.sum(axis=0) * share, norm)

    def _add_half(self, records: Singles, rows: npt.NDArray[np.int64], share: float, half: int) -> None:
        knobs = self.knobs
        kernels.gradient(
            self.weights, self._transposed, self._sizes, np.array_split(rows, _HALVES)[half], records, share,
            knobs.clip, knobs.value_weight, knobs.entropy_weight,
            self._scratch[half], self._slopes[half], self._sums[half],
        )  # fmt: skip
