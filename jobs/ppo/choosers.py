"""Choosers that draw by a network's scores, and what they remember of it while it learns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jobs.policies.choices import VISIBLE, WAIT, View
from jobs.policies.sight import NAMES, Seen, seen
from jobs.ppo.net import JobNet

POOLED = 2 * len(NAMES) + 1  # numbers that say what a queue of any length looks like


@dataclass(slots=True)
class Memory:
    """The decisions of one episode.

    Attributes:
        rows: of each decision, (choices, 7) float32: those that might be chosen; waiting comes last, where it might be.
        chosen: the place among them.
        log_prob: of that choice.
        at_ns: when.
        pooled: (15,) what the queue looked like, all jobs in it.
    """

    rows: list[Seen] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)
    at_ns: list[int] = field(default_factory=list)
    pooled: list[Seen] = field(default_factory=list)


class NetChooser:
    """Draws by softmax over the scores of those who may be chosen; the likeliest, where there is no `rng`."""

    def __init__(self, net: JobNet, rng: np.random.Generator | None, memory: Memory | None = None) -> None:
        self._net, self._rng, self._memory = net, rng, memory

    def choose(self, view: View) -> int:
        """A place in the view, or `WAIT`."""
        rows = seen(view)
        may = rows if view.may.all() else rows[view.may]
        if view.can_wait:
            may = np.concatenate([may, waiting_row(view, rows)])
        place = 0 if len(may) == 1 and self._memory is None else self._draw(may, rows, view)
        if view.can_wait and place == len(may) - 1:
            return WAIT
        return place if len(may) == len(rows) and not view.can_wait else int(view.may.nonzero()[0][place])

    def _draw(self, may: Seen, rows: Seen, view: View) -> int:
        scores = self._net.scores(may).astype(np.float64)
        odds = np.exp(scores - scores.max())
        if self._rng is None:
            place = int(odds.argmax())
        else:
            summed = odds.cumsum()
            place = min(int(np.searchsorted(summed, self._rng.random() * summed[-1], side="right")), len(odds) - 1)
        if self._memory is not None:
            memory = self._memory
            memory.rows.append(may)
            memory.chosen.append(place)
            memory.log_prob.append(float(np.log(odds[place] / odds.sum())))
            memory.at_ns.append(view.now_ns)
            memory.pooled.append(pooled(rows))
        return place


def waiting_row(view: View, rows: Seen) -> Seen:
    """(1, 7) Waiting, as if it were a job: of no GPUs, as old as the oldest, in the state of the first field."""
    return np.array([[rows[:, 0].max(), 0.0, 0.0, rows[0, 3], rows[0, 4], 0.0, 0.0]], np.float32)


def pooled(rows: Seen) -> Seen:
    """(n, 7) -> (15,) Means, largest values, and how many."""
    many = np.log1p(len(rows)) / np.log1p(VISIBLE)
    return np.concatenate([rows.mean(axis=0), rows.max(axis=0), [many]]).astype(np.float32)


def odds_of(net: JobNet, rows: Seen) -> NDArray[np.float64]:
    """(n, 7) -> (n,) probabilities."""
    scores = net.scores(rows).astype(np.float64)
    odds = np.exp(scores - scores.max())
    return np.asarray(odds / odds.sum())
