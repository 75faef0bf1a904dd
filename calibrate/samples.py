"""Storage of timings: every repeat counts, none is deleted, and every summary preserves the mean.

A distribution is a list of values with weights, so that thousands of repeats can be stored as a few hundred numbers and
the rounds of one point can be pooled. It is independent of what was timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KEPT = 200  # numbers stored per round of a point: enough for a p99, and logs stay in megabytes

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Samples:
    """Repeats of one measurement: `values` ascending, representing `count` repeats in equal parts."""

    count: int
    values: tuple[float, ...]

    @classmethod
    def of(cls, repeats: Sequence[float]) -> Samples:
        """Keep all repeats if they are few, otherwise the means of `KEPT` equal slices of the sorted repeats."""
        if not repeats:
            raise ValueError("a measurement needs at least one repeat")
        if len(repeats) <= KEPT:
            return cls(len(repeats), tuple(sorted(repeats)))
        weights = np.ones(len(repeats))
        return cls(len(repeats), tuple(slice_means(np.sort(np.asarray(repeats)), weights, KEPT)))

    def scaled(self, factor: float) -> Samples:
        """Return the same distribution, scaled."""
        return Samples(self.count, tuple(factor * value for value in self.values))


@dataclass(frozen=True, slots=True)
class Pooled:
    """Several rounds of one measurement as one distribution; all repeats have equal weight."""

    count: int
    values: Floats  # ascending
    weights: Floats

    @classmethod
    def of(cls, rounds: Iterable[Samples]) -> Pooled:
        """Pool the rounds."""
        kept = list(rounds)
        values = np.concatenate([np.asarray(samples.values) for samples in kept])
        weights = np.concatenate([np.full(len(s.values), s.count / len(s.values)) for s in kept])
        order = np.argsort(values, kind="stable")
        return cls(sum(samples.count for samples in kept), values[order], weights[order])

    @property
    def mean(self) -> float:
        """The mean of all repeats."""
        return float(np.average(self.values, weights=self.weights))

    def quantile(self, share: float) -> float:
        """Return the value below which this share of the repeats is, interpolated between neighbours."""
        centres = (np.cumsum(self.weights) - self.weights / 2) / self.weights.sum()
        return float(np.interp(share, centres, self.values))

    def slices(self, number: int) -> tuple[float, ...]:
        """Return the means of `number` equal slices of the sorted repeats: quantiles whose mean is the mean of all."""
        return tuple(slice_means(self.values, self.weights, number))


def slice_means(values: Floats, weights: Floats, number: int) -> list[float]:
    """Return the means of `number` slices of equal weight, of ascending values."""
    reached = np.concatenate([[0.0], np.cumsum(weights)])
    summed = np.concatenate([[0.0], np.cumsum(values * weights)])
    edges = np.linspace(0.0, reached[-1], number + 1)
    means = np.diff(np.interp(edges, reached, summed)) / (reached[-1] / number)
    return [float(mean) for mean in np.maximum.accumulate(means)]  # ascending, except for rounding
