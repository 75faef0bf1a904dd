"""How much of a network a table explains: scores by age and GPUs alone, fitted to what the network gave.

The network sees seven numbers, of which age and GPUs alone differ between jobs that wait at one instant (but for their
pools' state). So scores are taken as deviations from the mean of their decision, and the table's cells are means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.learning.learned import Learned, NetChooser
from jobs.learning.training import Windows
from jobs.policies.choices import LONGEST_S, Choosing, View
from kit.chance import derived_seed, stream

Numbers = NDArray[np.float64]
_ALIKE: Final = 1e-6  # scores that differ by less are equal
AGES_S: Final = (0.0, 60.0, 600.0, 3600.0, 14_400.0, LONGEST_S)
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """Scores by age and GPUs, and how good a stand-in for the network they are.

    Attributes:
        ages_s: (a,) where each row begins.
        gpus: (g,) of the columns.
        scores: (a, g), not-a-number where nobody was seen.
        r_squared: of the scores' variance within decisions, on decisions that the table was not fitted on.
        same_choice: the share of those decisions in which the network's likeliest choice is one that the table puts
            first (jobs of one cell are equal to the table).
        decisions: with more than one job to choose from, that it was judged on.
    """

    ages_s: tuple[float, ...]
    gpus: tuple[int, ...]
    scores: Numbers
    r_squared: float
    same_choice: float
    decisions: int


class _Watcher:
    """Chooses as the network does, and keeps what it was asked."""

    def __init__(self, learned: Learned, seed: int) -> None:
        rng = stream(seed, "jobs:watched") if learned.spec.is_sampled else None
        self._learned, self._chooser = learned, NetChooser(learned.net, rng)
        self.asked: list[tuple[Numbers, Counts, Numbers]] = []

    def __call__(self, view: View) -> int:
        """As the network."""
        may = view.may
        if may.sum() > 1:
            scores = self._learned.net.scores(view.seen[may]).astype(np.float64)
            self.asked.append((view.age_s[may], view.gpus[may], scores))
        return self._chooser(view)


def explain(learned: Learned, windows: Windows, starts: Iterable[int], seed: int = 0) -> ScoreTable | None:
    """Fit on every other window, judge on the rest; None where nobody ever had a choice."""
    halves: tuple[list[tuple[Numbers, Counts, Numbers]], ...] = ([], [])
    for number, start in enumerate(starts):
        watcher = _Watcher(learned, derived_seed(seed, f"explained:{number}"))
        windows.run(int(start), learned.spec.policy, Choosing(watcher))
        halves[number % 2].extend(watcher.asked)
    if not halves[0] or not halves[1]:
        return None
    gpus = tuple(int(value) for value in np.unique(np.concatenate([each[1] for each in halves[0]])))
    table = _fitted(halves[0], gpus)
    alike, left, total = 0, 0.0, 0.0
    for age_s, needs, scores in halves[1]:
        foretold = _looked_up(table, age_s, needs, gpus)
        deviation = scores - scores.mean()
        left += float(((deviation - (foretold - foretold.mean())) ** 2).sum())
        total += float((deviation**2).sum())
        alike += int(foretold[scores.argmax()] > foretold.max() - _ALIKE)
    many = len(halves[1])
    return ScoreTable(AGES_S, gpus, table, 1 - left / total if total > 0 else 1.0, alike / many, many)


def _cells(age_s: Numbers, needs: Counts, gpus: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    column = np.minimum(np.searchsorted(gpus, needs), len(gpus) - 1)
    return np.searchsorted(AGES_S, age_s, side="right") - 1, column


def _fitted(asked: list[tuple[Numbers, Counts, Numbers]], gpus: tuple[int, ...]) -> Numbers:
    """Cell means, with each decision's own mean taken out: least squares, by taking turns."""
    counts = [len(each[0]) for each in asked]
    owner = np.repeat(np.arange(len(asked)), counts)
    row, column = _cells(np.concatenate([each[0] for each in asked]), np.concatenate([each[1] for each in asked]), gpus)
    cell, scores = row * len(gpus) + column, np.concatenate([each[2] for each in asked])
    many = np.bincount(cell, minlength=len(AGES_S) * len(gpus))
    table = np.zeros(len(many))
    for _ in range(100):
        level = np.bincount(owner, scores - table[cell]) / counts
        table = np.bincount(cell, scores - level[owner], len(many)) / np.maximum(many, 1)
    table[many == 0] = np.nan
    return table.reshape(len(AGES_S), len(gpus)) - np.nanmax(table)


def _looked_up(table: Numbers, age_s: Numbers, needs: Counts, gpus: tuple[int, ...]) -> Numbers:
    row, column = _cells(age_s, needs, gpus)
    return np.where(np.isnan(table[row, column]), np.nanmin(table), table[row, column])
