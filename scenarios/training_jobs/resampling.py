"""Intervals of means over one trace, by the moving-block bootstrap (Kuensch 1989): jobs of a week stay together.

A trace is one history, and its jobs are not independent: bursts, deadlines and a few long jobs make weeks differ. So
blocks of seven days of submissions are drawn with replacement until they make up the trace's length, many times over;
what a mean is in 95 % of them is its interval, widened as Student's t is for so few blocks. The same draws serve all
policies, so differences are paired by job.

Where a few jobs make the mean, no interval of one history holds what other histories give as often as it should: of 100
drawn ones 81 did with exponential run times, and 55 to 65 with C^2 of 4 to 10 (docs/jobs.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from policies.chance import stream

WEEK_S: Final = 7 * 86400.0
DRAWS: Final = 2000
LEAST_BLOCKS: Final = 4  # of a block's length in a trace; a shorter trace has shorter blocks
_SLICES: Final = 7  # of a block: it may begin at each
Numbers = NDArray[np.float64]


class Interval(TypedDict):
    """A value, and from where to where it lies in 95 % of the resamples; null where there is none."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Resamples:
    """Draws of blocks.

    Attributes:
        block_s: a block's length.
        slices: (n,) in which slice of time each job was submitted.
        weights: (draws, slices) how often each slice is in a draw.
    """

    block_s: float
    slices: NDArray[np.int64]
    weights: Numbers

    @staticmethod
    def of(submit_s: Numbers, seed: int, draws: int = DRAWS) -> Resamples:
        """Of jobs by their submission; the blocks go round: after the last slice comes the first."""
        since_s = submit_s - submit_s.min()
        span_s = max(float(since_s.max()), 1e-9)
        block_s = min(WEEK_S, span_s / LEAST_BLOCKS)
        many = max(int(np.ceil(span_s / block_s * _SLICES)), _SLICES)
        slices = np.minimum((since_s / span_s * many).astype(np.int64), many - 1)
        starts = stream(seed, "job bootstrap").integers(many, size=(draws, -(-many // _SLICES)))
        drawn = (starts[:, :, None] + np.arange(_SLICES)).reshape(draws, -1)[:, :many] % many
        weights = np.zeros((draws, many))
        np.add.at(weights, (np.arange(draws)[:, None], drawn), 1.0)
        return Resamples(block_s, slices, weights)

    def mean(self, values: Numbers, counts: NDArray[np.bool_]) -> Interval:
        """Of the values that count."""
        return self.ratio(values, np.ones(len(values)), counts)

    def ratio(self, values: Numbers, over: Numbers, counts: NDArray[np.bool_], less: float = 0.0) -> Interval:
        """Of the sum of some values over the sum of others, less a number; null where nothing counts."""
        where = self.slices[counts]
        many = self.weights.shape[1]
        above = np.bincount(where, values[counts], many)
        below = np.bincount(where, over[counts], many)
        if not below.sum():
            return Interval(value=None, low=None, high=None)
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = (self.weights @ above) / (self.weights @ below) - less
        value = float(above.sum() / below.sum()) - less
        low, high = np.nanquantile(drawn[np.isfinite(drawn)], [0.025, 0.975]).tolist()
        wider = self._widening
        least = 0.0 - less if above.min() >= 0 and below.min() >= 0 else -np.inf
        return Interval(value=value, low=max(value + wider * (low - value), least), high=value + wider * (high - value))

    @property
    def _widening(self) -> float:
        """Student's t over the normal quantile, and the bias of a bootstrap's variance, for so many blocks."""
        blocks = self.weights.shape[1] / _SLICES
        return float(stdtrit(blocks - 1, 0.975)) / 1.96 * sqrt(blocks / (blocks - 1))
