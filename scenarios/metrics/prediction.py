"""Predicted ranges and measured values: how many are inside, and whether the ranges are honest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from typing import Final, Literal, TypedDict

import numpy as np

SHARE: Final = 0.9  # of measured values are inside honest ranges
SURE: Final = 0.05  # significance level of the binomial test
WIDE_PCT: Final = 25.0  # half a range as a share of its median: a wider one is of little use
GOAL_PCT: Final = 10.0  # half a range that a run is long enough for
NEW_RUNS: Final = 19
"""The next of 20 exchangeable runs is between the least and the greatest of the others with a chance of 18/20."""

Case = Literal["inside", "wide", "outside"]


class Range(TypedDict):
    """From the 5th to the 95th percentile of what was predicted."""

    low: float
    median: float
    high: float


Ranges = Mapping[str, Range | None]
"""By measure; None if a replica had no value."""


class Coverage(TypedDict):
    """How many measured values are inside their predicted ranges; honest ranges have at least `least` there."""

    inside: int
    of: int
    least: int


def range_of(values: Sequence[float | None]) -> Range | None:
    """Return the range of a measure's values in replicas."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    low, median, high = np.quantile(known, [(1 - SHARE) / 2, 0.5, (1 + SHARE) / 2]).tolist()
    return Range(low=low, median=median, high=high)


def range_of_new_runs(values: Sequence[float | None]) -> Range | None:
    """Return the range that holds the value of a further run with a chance of `SHARE`, of `NEW_RUNS` values."""
    assert len(values) == NEW_RUNS
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return Range(low=min(known), median=float(np.median(known)), high=max(known))


def mean_range(ranges: Sequence[Range | None]) -> Range | None:
    """Average the ends and the medians of several seeds' ranges."""
    known = [each for each in ranges if each is not None]
    if not known or len(known) < len(ranges):
        return None
    low, median, high = (float(np.mean([each[end] for each in known])) for end in ("low", "median", "high"))
    return Range(low=low, median=median, high=high)


def half_width_pct(found: Range) -> float | None:
    """Return half a range, in percent of its median; None if that is 0."""
    return 50 * (found["high"] - found["low"]) / found["median"] if found["median"] else None


def coverage(pairs: Sequence[tuple[Range | None, float | None]]) -> Coverage | None:
    """Count measured values inside their ranges; None if nothing can be compared."""
    known = [(found, value) for found, value in pairs if found is not None and value is not None]
    if not known:
        return None
    inside = sum(found["low"] <= value <= found["high"] for found, value in known)
    return Coverage(inside=inside, of=len(known), least=least_inside(len(known)))


def least_inside(number: int) -> int:
    """Return the fewest of `number` values inside honest ranges, but for a chance of `SURE` (binomial)."""
    chance = 0.0
    for inside in range(number + 1):
        chance += comb(number, inside) * SHARE**inside * (1 - SHARE) ** (number - inside)
        if chance > SURE:
            return inside
    return number


def holds(found: Coverage) -> bool:
    """Return whether the ranges may be honest, by how many values are inside."""
    return found["inside"] >= found["least"]


def images_needed(found: Range, images: int) -> int | None:
    """Estimate how many images narrow a range to `GOAL_PCT`: it falls with the root of their number."""
    width_pct = half_width_pct(found)
    return None if width_pct is None else round(images * max(1.0, width_pct / GOAL_PCT) ** 2)
