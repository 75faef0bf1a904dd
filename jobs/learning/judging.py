"""Policies side by side on the same windows: mean waits with intervals, and each against a learned one, paired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.learning.learned import NamedPolicy
from jobs.learning.training import Windows, score_of
from jobs.policies.policy import JobPolicy, policy_of
from kit.chance import derived_seed, stream
from kit.parallel import Jobs, results

DRAWS: Final = 2000
Numbers = NDArray[np.float64]


BASELINES: Final = (
    NamedPolicy("fifo-stall", JobPolicy("fifo", "stall", placement="lowest")),
    NamedPolicy("random-stall", JobPolicy("fifo", "stall", placement="lowest", learned="random")),
    NamedPolicy("smallest-stall", JobPolicy("smallest", "stall", placement="lowest")),
    NamedPolicy("sjf-oracle-stall", JobPolicy("sjf", "stall", placement="lowest", estimate="oracle")),
    NamedPolicy("fifo-first-fit", policy_of("fifo-first-fit-lowest")),
    NamedPolicy("random-fitting", JobPolicy("fifo", "choice", placement="lowest", learned="random")),
    NamedPolicy("smallest", policy_of("smallest-lowest")),
    NamedPolicy("sjf-oracle", policy_of("sjf-oracle-lowest")),
    NamedPolicy("fifo-easy-oracle", policy_of("fifo-easy-oracle-lowest")),
)
"""What RLTune's figures are set against: its own way of waiting with four orders (the first of them stalls the cluster
until it fits), and baselines that need no learning; all with its greedy placement. `random-fitting` is what is left of
a learner that does not stall, when it has learned nothing."""


def judge(
    candidates: Iterable[NamedPolicy],
    windows: Windows,
    starts: Iterable[int],
    seed: int = 0,
    jobs: Jobs = 1,
    score: str = "wait",
) -> Iterator[tuple[NamedPolicy, Numbers]]:
    """(candidate, (windows,) mean wait of those that count in each window, seconds), one after another.

    Args:
        score: another of RLTune's five instead of the wait.
    """
    tasks = [(int(start), derived_seed(seed, f"window:{number}")) for number, start in enumerate(starts)]
    for candidate in candidates:
        yield candidate, np.array(results(_score, (candidate, windows, score), tasks, jobs))


def _score(common: tuple[NamedPolicy, Windows, str], window: tuple[int, int]) -> float:
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
