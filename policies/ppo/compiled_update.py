"""`policies.ppo.update` in compiled code: the same rule, losses and figures, at millions of decisions a second."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from math import ceil, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.checkpoint import Tensors
from kit.errors import WorkError
from kit.jit import Singles
from policies.ppo import kernels
from policies.ppo.buffer import Experience
from policies.ppo.knobs import PPOKnobs
from policies.ppo.layout import IMAGES, RECORD, Layout
from policies.ppo.training import MOMENTS
from policies.ppo.update import DIVERGED, UpdateStats, advantages, explained_variance

_HALVES = 2  # of a minibatch: its gradient is the sum of theirs, whoever computes them
_SUMS = 4  # and an entropy for each head


class CompiledLearner:
    """Weights and Adam's moments, each one row of float32.

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
        self._sums = np.zeros((_HALVES, _SUMS + len(layout.head_sizes)))
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
        means = np.mean(steps, axis=0).tolist()
        return UpdateStats.of(means, explained_variance(experience.reward, experience.value))

    def moments(self) -> Tensors:
        """Adam's state by torch's names, `MOMENT.NAME`; empty before the first step."""
        if self.steps == 0:
            return {}
        step, first, second = MOMENTS
        of_first, of_second = self.layout.unpack(self.first), self.layout.unpack(self.second)
        found = {f"{step}.{name}": np.array(self.steps, np.float32) for name in of_first}
        found |= {f"{first}.{name}": value for name, value in of_first.items()}
        return found | {f"{second}.{name}": value for name, value in of_second.items()}

    def put(self, weights: Tensors, moments: Tensors) -> None:
        """Take over weights and what `moments` gave."""
        self.weights = self.layout.pack(weights)
        if not moments:
            return
        step, first, second = MOMENTS
        self.steps = int(moments[f"{step}.{next(iter(weights))}"])
        self.first = self.layout.pack({name: moments[f"{first}.{name}"] for name in weights})
        self.second = self.layout.pack({name: moments[f"{second}.{name}"] for name in weights})

    def _records(self, e: Experience) -> Singles:
        found = np.empty((len(e), self.layout.record), np.float32)
        advantage = advantages(e.reward, e.value, e.images)
        kernels.record(
            e.observation,
            e.server_mask,
            e.width_mask,
            e.actions,
            e.log_prob,
            e.eps,
            e.reward,
            e.hold_mask,
            e.images,
            advantage,
            found,
        )
        return found

    def _step(self, records: Singles, rows: npt.NDArray[np.int64], pool: Executor) -> npt.NDArray[np.float64]:
        """One gradient step; what `UpdateStats.of` takes."""
        self._slopes[:], self._sums[:] = 0, 0
        kernels.transpose(self.weights, self._sizes, self._transposed)
        share = 1 / float(records[rows, IMAGES - RECORD].sum())
        add_half = partial(self._add_half, records, rows, share)
        list(map(add_half, range(_HALVES)) if self.threads == 1 else pool.map(add_half, range(_HALVES)))
        knobs = self.knobs
        norm = kernels.adam(
            self.weights,
            self._slopes,
            self.first,
            self.second,
            self.steps + 1,
            knobs.learning_rate,
            knobs.max_grad_norm,
        )
        if not isfinite(norm):
            raise WorkError(DIVERGED)
        self.steps += 1
        return np.append(self._sums.sum(axis=0) * share, norm)

    def _add_half(self, records: Singles, rows: npt.NDArray[np.int64], share: float, half: int) -> None:
        knobs = self.knobs
        kernels.gradient(
            self.weights, self._transposed, self._sizes, np.array_split(rows, _HALVES)[half], records, share,
            knobs.clip, knobs.value_weight, knobs.entropy_weight,
            self._scratch[half], self._slopes[half], self._sums[half],
        )  # fmt: skip
