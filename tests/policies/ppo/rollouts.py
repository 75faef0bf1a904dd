"""Compiled decisions without a cluster: a bandit whose best server is to be seen, and whose rewards come late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kit.jit import Singles
from kit.random_streams import derived_seed
from policies.interfaces import RewardTerms
from policies.observation import Floats
from policies.ppo import PolicySpec
from policies.ppo.kernels import Experience, Layout, act, empty, joined
from tests.policies.cluster_views import WIDTHS

SPEC = PolicySpec(segments=4, widths=WIDTHS, micro_batch_sizes=(1, 4, 16), power_limits_w=(250.0, 250.0, 100.0))
BEST = (2, 1)  # indices of width and group
NOTHING = empty(SPEC, 0)


def best_server(observation: Floats) -> Floats:
    """(B, 11) -> (B,): server 1 or 2; the first is never valid."""
    return np.where(observation[:, 2] > 0.5, 1, 2)


class BanditRollouts:
    """Pays 1 for the best server of the context, 1 for the best width, 1 for the best group.

    Args:
        first_episode: the number of the first cluster's first episode.
        lag: sweeps until a reward comes.
        length: sweeps of an episode.
    """

    def __init__(self, first_episode: int, lag: int = 2, length: int = 50) -> None:
        self.decisions = self.forgotten = 0
        self.episodes = first_episode
        self.seeds: list[int] = []
        self.asked: list[tuple[float, int]] = []
        self._layout, self._clusters = Layout(SPEC, (16, 16)), 40
        self._lag, self._length = lag, length
        self._waiting: list[Experience] = []
        self._sweep = 0
        self._rewards: list[float] = []

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting))

    def take_terms(self) -> RewardTerms:
        mean, self._rewards = float(np.mean(self._rewards)), []
        return RewardTerms(mean, 0.0, 0.0, 0.0, 0.0)

    def collect(self, weights: Singles, eps: float, decisions: int) -> Experience:
        self.asked.append((eps, decisions))
        rewarded = [NOTHING]
        for _ in range(-(-decisions // self._clusters)):
            if self._sweep % self._length == 0:
                self._begin()
            self._sweep += 1
            self._waiting.append(self._decide(weights, eps))
            if len(self._waiting) > self._lag:
                rewarded.append(self._waiting.pop(0))
        experience = joined(rewarded)
        self._rewards += experience.reward.tolist()
        return experience

    def _begin(self) -> None:
        self.forgotten += self.waiting
        self._waiting = []
        numbers = range(self.episodes, self.episodes + self._clusters)
        self.seeds += [derived_seed(7, f"ppo:episode:{number}") for number in numbers]
        self.episodes += self._clusters
        self._rng = np.random.default_rng(self.seeds[-self._clusters :])

    def _decide(self, weights: Singles, eps: float) -> Experience:
        rows = self._clusters
        seen = self._rng.random((rows, SPEC.observation.size)).astype(np.float32)
        codes = np.tile(np.array([0, 0b1111, 0b1110]), (rows, 1))
        blank = replace(empty(SPEC, rows), observation=seen)
        scratch = np.zeros(self._layout.scratch, np.float32)
        act(
            weights, self._layout.sizes(), np.arange(rows), seen, codes, self._rng.random((rows, 3)), eps, scratch,
            blank.actions, blank.log_prob, blank.value, blank.server_mask, blank.width_mask,
            np.zeros(rows, np.bool_), blank.batching_delay_mask,
        )  # fmt: skip
        self.decisions += rows
        hits = (blank.actions[:, 0] == best_server(seen)) + (blank.actions[:, 1:] == BEST).sum(axis=1)
        ones = np.ones(rows, np.float32)
        return replace(blank, eps=eps * ones, reward=hits.astype(np.float32), images=ones)
