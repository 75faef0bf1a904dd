"""Intervals of means over one trace, from how its weeks differ.

A trace is one history, and its jobs are not independent: bursts, deadlines and a few long jobs make weeks differ. So
the trace is cut into blocks of seven days of submissions, shorter ones where it has fewer than 16 weeks. The same
blocks serve all policies, so ratios are paired by job.

An interval is of the logarithm of a ratio of two sums: twice too large is as likely as half too small, and whose wait
stands above makes no difference. A block's move e is its share of the one sum less its share of the other: how the
logarithm changes with the block's weight (the infinitesimal jackknife, Jaeckel 1972). Student's t has the degrees of
freedom that Satterthwaite (1946) gives to a sum of squares of one each, (sum e^2)^2 / sum e^4. Where all weeks count
alike they are a third of the weeks or more; where one crisis makes the mean they are near 1, and the interval is wide.

How often it holds what other histories give: docs/jobs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

WEEK_S: Final = 7 * 86400.0
LEAST_BLOCKS: Final = 16  # of a trace; a shorter one has shorter blocks
_CONFIDENCE: Final = 0.95
_WIDEST: Final = 1000.0  # times the value, and the value over it: an interval that wide says that nothing is known
Numbers = NDArray[np.float64]


class Interval(TypedDict):
    """A value, and from where to where other histories would have it in 95 of 100 cases; null where there is none."""

    value: float | None
    low: float | None
    high: float | None


def chance_explains(change: Interval) -> bool:
    """Whether a change may as well be none: its interval holds 0, or it has none."""
    return change["low"] is None or change["high"] is None or change["low"] <= 0 <= change["high"]


def chance_text(change: Interval) -> str:
    """Why a change that chance explains may be none: the end of a sentence, everywhere the same."""
    reason = "no interval is known" if change["low"] is None else "the interval holds 0"
    return f"may be chance: {reason}"


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A trace in blocks of time.

    Attributes:
        block_s: a block's length.
        many: how many there are.
        block: (n,) in which each job was submitted.
    """

    block_s: float
    many: int
    block: NDArray[np.int64]

    @staticmethod
    def of(submit_s: Numbers) -> Blocks:
        """Of jobs by their submission."""
        since_s = submit_s - submit_s.min()
        span_s = max(float(since_s.max()), 1e-9)
        many = max(int(np.ceil(span_s / WEEK_S)), LEAST_BLOCKS)
        block = np.minimum((since_s / span_s * many).astype(np.int64), many - 1)
        return Blocks(span_s / many, many, block)

    def mean(self, values: Numbers, counts: NDArray[np.bool_]) -> Interval:
        """Of the values that count, all of them 0 or more."""
        return self._ratio(values, np.ones(len(values)), counts)

    def share(self, values: Numbers, over: Numbers, counts: NDArray[np.bool_]) -> Interval:
        """By how much the mean of some values, 0 or more, is above that of others, as a share of these."""
        found = self._ratio(values, over, counts)
        value, low, high = (None if end is None else end - 1 for end in (found["value"], found["low"], found["high"]))
        return Interval(value=value, low=low, high=high)

    def _ratio(self, values: Numbers, over: Numbers, counts: NDArray[np.bool_]) -> Interval:
        """Of two sums."""
        above = np.bincount(self.block[counts], values[counts], self.many)
        below = np.bincount(self.block[counts], over[counts], self.many)
        if not below.sum():
            return Interval(value=None, low=None, high=None)
        value = float(above.sum() / below.sum())
        if (below == below.sum()).any():  # one block has all, and nothing says how others differ
            return Interval(value=value, low=None, high=None)
        moves = above / (above.sum() or 1.0) - below / below.sum()
        wider = min(float(np.exp(_half_width(moves))), _WIDEST)
        return Interval(value=value, low=value / wider, high=value * wider)


def _half_width(moves: Numbers) -> float:
    """Of a logarithm's interval, by how far each block moves it."""
    squares = float((moves**2).sum())
    if not squares:
        return 0.0
    freedom, many = squares**2 / float((moves**4).sum()), len(moves)
    return float(stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * float(np.sqrt(many / (many - 1) * squares))
