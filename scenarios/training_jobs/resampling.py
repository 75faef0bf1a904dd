"""Intervals of means over one trace, by leaving out its weeks in turn (the jackknife: Tukey 1958, Miller 1974).

A trace is one history, and its jobs are not independent: bursts, deadlines and a few long jobs make weeks differ. So
the trace is cut into blocks of seven days of submissions, shorter ones where it has fewer than 16 weeks. How far a
ratio of two sums moves when a block is left out says how much it hangs on that block. The same blocks serve all
policies, so ratios are paired by job.

Ratios are taken in logarithms: those of waits are as likely to be twice too large as to be half too small, and whose
wait stands above makes no difference. Student's t has the degrees of freedom that Satterthwaite (1946) gives to a sum
of squares, here of the moves e of the blocks: (sum e^2)^2 / sum e^4. Where all weeks count alike they are a third of
the weeks or more; where one crisis makes the mean they are 1, and the interval is wide.

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
        """Of two sums; where neither has anything, no change is taken: 1."""
        above = np.bincount(self.block[counts], values[counts], self.many)
        below = np.bincount(self.block[counts], over[counts], self.many)
        if not below.sum():
            return Interval(value=None, low=None, high=None)
        value = float(above.sum() / below.sum())
        if len(np.unique(self.block[counts])) < 2:
            return Interval(value=value, low=None, high=None)
        with np.errstate(divide="ignore", invalid="ignore"):
            without = (above.sum() - above) / (below.sum() - below)
            moved = np.where(np.isnan(without), 1.0, without) / value
        moved = np.clip(np.where(np.isnan(moved), 1.0, moved), 1 / _WIDEST, _WIDEST)
        wider = min(float(np.exp(_half_width(np.log(moved)))), _WIDEST)
        return Interval(value=value, low=value / wider, high=max(value, 1 / _WIDEST if wider > 1 else 0.0) * wider)


def _half_width(without: Numbers) -> float:
    """Of a value's interval, from what it is without each block."""
    moves = without - without.mean()
    squares = float((moves**2).sum())
    if not squares:
        return 0.0
    freedom = squares**2 / float((moves**4).sum())
    many = len(without)
    return float(stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * float(np.sqrt((many - 1) / many * squares))
