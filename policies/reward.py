"""The reward of a block (Eq. 7), with separate terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

DIGITS: Final = 9  # of a distance between width tuples; further digits are rounding noise


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """alpha, beta, gamma, delta and the bonus of Eq. 7; `centre` subtracts the mean top-1 from the accuracy term."""

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 0.0
    delta: float = 0.0
    bonus: float = 0.0
    centre: bool = False


class RewardTerms(msgspec.Struct, frozen=True):
    """The weighted terms of Eq. 7, as they are added: `total` is r."""

    accuracy: float
    latency: float
    energy: float
    imbalance: float
    bonus: float

    @property
    def total(self) -> float:
        """r = alpha p_acc - beta L - gamma E - delta Var(U / 100) + bonus."""
        return self.accuracy + self.latency + self.energy + self.imbalance + self.bonus


def reward_terms(
    weights: RewardWeights, *, p_acc: float, mean_top1: float, latency_s: float, energy_j: float, gpu_var: float
) -> RewardTerms:
    """Return Eq. 7. `p_acc` in [0, 1]; `gpu_var` is the variance over servers of utilization as a share."""
    centred = p_acc - mean_top1 if weights.centre else p_acc
    return RewardTerms(
        accuracy=weights.alpha * centred,
        latency=-weights.beta * latency_s,
        energy=-weights.gamma * energy_j,
        imbalance=-weights.delta * gpu_var,
        bonus=weights.bonus,
    )


def mean(values: Sequence[float]) -> float:
    """Return the sum, added from left to right, over the number; `sum` compensates floats from Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def variance(shares: Sequence[float]) -> float:
    """Return the population variance of the servers' utilization shares: Var(U / 100) of Eq. 7."""
    middle = mean(shares)
    return mean([(share - middle) * (share - middle) for share in shares])  # `** 2` is libm's pow, not always the same


class AccuracyPrior:
    """The prior p_acc of a width tuple, complete or partial (Eq. 7).

    Args:
        top1: accuracy in [0, 1] for complete width tuples; every tuple has the same length S.

    A partial tuple has the mean of all complete tuples that begin with it. A missing tuple has the value of its nearest
    neighbour (least sum of absolute width differences; ties go to the smallest tuple). A partial tuple that begins no
    complete one has the nearest value among partial tuples of its length.

    Raises:
        ValueError: no tuples, or tuples of several lengths; on a call, a tuple that is empty or longer than S.
    """

    def __init__(self, top1: Mapping[tuple[float, ...], float]) -> None:
        if not top1:
            raise ValueError("an accuracy table needs at least one width tuple")
        if len({len(widths) for widths in top1}) > 1:
            raise ValueError("the width tuples of an accuracy table must have one length")
        self.top1 = dict(sorted(top1.items()))
        self.mean_top1 = mean(tuple(self.top1.values()))
        groups: dict[tuple[float, ...], list[float]] = {}
        for widths, value in self.top1.items():
            for length in range(1, len(widths) + 1):
                groups.setdefault(widths[:length], []).append(value)
        self._prior = {prefix: mean(values) for prefix, values in groups.items()}
        self._answers = dict(self._prior)  # separate: the answer for a missing tuple is never a neighbour

    def __call__(self, widths: tuple[float, ...]) -> float:
        """Return the prior for the widths so far (at least one)."""
        prior = self._answers.get(widths)
        if prior is None:
            same_length = sorted(known for known in self._prior if len(known) == len(widths))
            if not same_length:
                raise ValueError(f"no width tuple of length {len(widths)} in the accuracy table")
            nearest = min(same_length, key=lambda known: _distance(known, widths))
            prior = self._answers[widths] = self._prior[nearest]
        return prior


def _distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return the sum of absolute differences, rounded: 0.3 - 0.2 and 0.2 - 0.1 are a tie."""
    return round(sum(abs(a - b) for a, b in zip(one, other, strict=True)), DIGITS)
