"""Evaluation of policies on the same windows: mean waits with intervals, and paired differences from a learned one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.learning.learned import NamedPolicy
from jobs.learning.training import Windows
from jobs.policies.policy import CHOICE, JobPolicy, policy_of
from kit.chance import derived_seed, stream
from kit.parallel import results
from kit.units import NS_PER_S

DRAWS: Final = 2000
_QSSF: Final = policy_of("qssf-lowest")
Numbers = NDArray[np.float64]


BASELINES: Final = (
    NamedPolicy("fifo-first-fit", policy_of("fifo-first-fit-lowest")),
    NamedPolicy("random-fitting", JobPolicy("fifo", CHOICE, placement="lowest", learned="random")),
    NamedPolicy("smallest", policy_of("smallest-lowest")),
    NamedPolicy("qssf", _QSSF),
    NamedPolicy("qssf-24h", replace(_QSSF, age_guard_ns=24 * 3600 * NS_PER_S)),
    NamedPolicy("sjf-oracle", policy_of("sjf-oracle-lowest")),
    NamedPolicy("saf-oracle", policy_of("saf-oracle-lowest")),
)
"""Baselines with learned policies' placement: `random-fitting` is an untrained learner, `qssf-24h` has an age guard."""


def judge(
    candidates: Iterable[NamedPolicy],
    windows: Windows,
    starts: Iterable[int],
    seed: int = 0,
    jobs: int = 1,
) -> Iterator[tuple[NamedPolicy, Numbers]]:
    """Yield (candidate, (windows,) mean wait of the jobs that count in each window, seconds), one after another."""
    tasks = [(int(start), derived_seed(seed, f"window:{number}")) for number, start in enumerate(starts)]
    for candidate in candidates:
        yield candidate, np.array(results(_wait_s, (candidate, windows), tasks, jobs))


def _wait_s(common: tuple[NamedPolicy, Windows], window: tuple[int, int]) -> float:
    (candidate, windows), (start, seed) = common, window
    return windows.mean_wait_s(windows.run(start, candidate.policy, candidate.choosing(seed)))


class BootstrapMean(NamedTuple):
    """A mean over windows, and its 95 % bootstrap interval over resampled windows."""

    mean: float
    low: float
    high: float


def mean_of(waits_s: Numbers, seed: int = 0) -> BootstrapMean:
    """Return the bootstrap mean over windows; equal numbers of windows share resamples, so differences are paired."""
    many = len(waits_s)
    drawn = stream(seed, "job windows:bootstrap").integers(many, size=(DRAWS, many))
    low, high = np.percentile(waits_s[drawn].mean(axis=1), (2.5, 97.5))
    return BootstrapMean(float(waits_s.mean()), float(low), float(high))


def table_of(waits_s: dict[str, Numbers], against: str | None) -> str:
    """Return Markdown: each mean wait, and its excess over the reference policy's, with intervals."""
    lines = ["| policy | mean wait (s) | above it (s) |", "|---|---|---|"]
    for name, waits in waits_s.items():
        mean, cells = mean_of(waits), [name]
        cells.append(f"{mean.mean:,.0f} ({mean.low:,.0f} to {mean.high:,.0f})")
        more = mean_of(waits - waits_s[against]) if against is not None and name != against else None
        cells.append("" if more is None else f"{more.mean:+,.0f} ({more.low:+,.0f} to {more.high:+,.0f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
