"""Policies side by side on the same windows: mean waits with intervals, and each against a learned one, paired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.learning.learned import Learned
from jobs.learning.training import Windows, score_of
from jobs.policies.choices import Choosing, View
from jobs.policies.policy import JobPolicy, policy_of
from kit.chance import derived_seed, stream
from kit.parallel import Jobs, each

DRAWS: Final = 2000
Numbers = NDArray[np.float64]


class Random:
    """Whoever may be chosen, each as likely."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, view: View) -> int:
        """A place in the view."""
        return int(self._rng.choice(view.may.nonzero()[0]))


@dataclass(frozen=True, slots=True, eq=False)
class ComparedPolicy:
    """A policy under the name that it is shown by; a learned one with what it has learned, or `random`."""

    name: str
    policy: JobPolicy
    learned: Learned | None = None

    def choosing(self, seed: int) -> Choosing | None:
        """Who chooses in one window."""
        if self.learned is not None:
            return self.learned.choosing(seed)
        return Choosing(Random(stream(seed, "jobs:random"))) if self.policy.learned else None


def stalled(order: str, estimate: str = "none") -> ComparedPolicy:
    """An order in RLTune's way: the first of them stalls the cluster until it fits."""
    policy = JobPolicy(order, "stall", placement="lowest", estimate=estimate)
    return ComparedPolicy(f"{order}{'' if estimate == 'none' else f'-{estimate}'}-stall", policy)


def baseline(name: str) -> ComparedPolicy:
    """A policy by its name, with RLTune's greedy placement."""
    return ComparedPolicy(name, policy_of(f"{name}-lowest"))


def random_choice() -> ComparedPolicy:
    """Chance, in RLTune's way."""
    return ComparedPolicy("random-stall", JobPolicy("fifo", "stall", placement="lowest", learned="random"))


def random_fitting() -> ComparedPolicy:
    """Chance among those that fit: what is left of a learner that does not stall, when it has learned nothing."""
    return ComparedPolicy("random-fitting", JobPolicy("fifo", "choice", placement="lowest", learned="random"))


def learned_choice(name: str, learned: Learned) -> ComparedPolicy:
    """A learned policy."""
    return ComparedPolicy(name, learned.spec.policy, learned)


BASELINES: Final = (
    stalled("fifo"),
    random_choice(),
    stalled("smallest"),
    stalled("sjf", "oracle"),
    baseline("fifo-first-fit"),
    random_fitting(),
    baseline("smallest"),
    baseline("sjf-oracle"),
    baseline("fifo-easy-oracle"),
)
"""What RLTune's figures are set against: its own way of waiting with four orders, and baselines that need no
learning."""


def judge(
    candidates: Iterable[ComparedPolicy],
    windows: Windows,
    starts: Iterable[int],
    seed: int = 0,
    jobs: Jobs = 1,
    score: str = "wait",
) -> Iterator[tuple[ComparedPolicy, Numbers]]:
    """(candidate, (windows,) mean wait of those that count in each window, seconds), one after another.

    Args:
        score: another of RLTune's five instead of the wait.
    """
    tasks = [(int(start), derived_seed(seed, f"window:{number}")) for number, start in enumerate(starts)]
    for candidate in candidates:
        scores = dict(each(_score, (candidate, windows, score), tasks, jobs))
        yield candidate, np.array([scores[place] for place in range(len(tasks))])


def _score(common: tuple[ComparedPolicy, Windows, str], window: tuple[int, int]) -> float:
    (candidate, windows, score), (start, seed) = common, window
    record = windows.run(start, candidate.policy, candidate.choosing(seed))
    return score_of(record, score, windows.gpus, windows.count(record))


@dataclass(frozen=True, slots=True)
class BootstrapMean:
    """A mean over windows, and where it lies in 95 % of the resamples of windows."""

    mean: float
    low: float
    high: float


def mean_of(waits_s: Numbers, seed: int = 0) -> BootstrapMean:
    """By the bootstrap over windows: the same windows are drawn for whatever has as many, so differences are paired."""
    many = len(waits_s)
    drawn = stream(seed, "job windows:bootstrap").integers(many, size=(DRAWS, many))
    low, high = np.percentile(waits_s[drawn].mean(axis=1), (2.5, 97.5))
    return BootstrapMean(float(waits_s.mean()), float(low), float(high))


def table_of(waits_s: dict[str, Numbers], against: str | None) -> str:
    """Markdown: mean wait of each, and how far it is above the one that all are set against, with intervals."""
    lines = ["| policy | mean wait (s) | above it (s) |", "|---|---|---|"]
    for name, waits in waits_s.items():
        mean, cells = mean_of(waits), [name]
        cells.append(f"{mean.mean:,.0f} ({mean.low:,.0f} to {mean.high:,.0f})")
        more = mean_of(waits - waits_s[against]) if against is not None and name != against else None
        cells.append("" if more is None else f"{more.mean:+,.0f} ({more.low:+,.0f} to {more.high:+,.0f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
