"""Means with intervals, differences by seed, and how many measured values predicted ranges contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb, exp, hypot, log, sqrt
from typing import Final, Literal, TypedDict

import numpy as np

from policies.vocabulary import Provenance

UNMETERED = (Provenance.MODELLED, Provenance.DATASHEET)
STUDENT_T = (  # its 97.5 % quantiles for 1, 2, ... degrees of freedom: scipy takes longer to open than a comparison
    12.706204736174694,
    4.302652729749462,
    3.1824463052837078,
    2.7764451051977934,
    2.5705818356363146,
    2.4469118511449786,
    2.364624251592784,
    2.306004135204166,
    2.262157162798205,
    2.228138851986274,
    2.200985160091639,
    2.1788128296672284,
    2.1603686564627913,
    2.144786687917804,
    2.131449545559776,
    2.1199052992212546,
    2.1098155778333156,
    2.1009220402410382,
    2.0930240544083087,
)


class MeanInterval(TypedDict):
    """A mean over seeds and the half-width of its 95 % interval (Student's t); null with too few values."""

    mean: float | None
    ci95: float | None


class PairedDifference(TypedDict):
    """Over the seeds of both, a router's number less the other's: absolutely, and in percent of the other's.

    `differs`: whether the interval leaves 0 out; null if there is none.
    """

    difference: MeanInterval
    percent: MeanInterval
    differs: bool | None


class PairedRatio(TypedDict):
    """A router's numbers as a multiple of another's, over the runs of both: the geometric mean, and its 95 % interval.

    The interval is the paired t-test's of the logarithms, so that it never reaches 0. Null with too few values, or if a
    number has no ratio.

    Attributes:
        runs: that both have.
        differs: whether the interval leaves 1 out; null if there is none.
    """

    ratio: float | None
    low: float | None
    high: float | None
    runs: int
    differs: bool | None


def estimate(values: Sequence[float | None]) -> MeanInterval:
    """Return mean and 95 % half-width; both null if a value is missing, the half-width for fewer than two values."""
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return MeanInterval(mean=None, ci95=None)
    if len(numbers) == 1:
        return MeanInterval(mean=float(numbers[0]), ci95=None)
    half_width = student_t(len(numbers) - 1) * float(np.std(numbers, ddof=1)) / sqrt(len(numbers))
    return MeanInterval(mean=float(np.mean(numbers)), ci95=half_width)


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    if freedom <= len(STUDENT_T):
        return STUDENT_T[freedom - 1]
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def relative_half_width(values: Sequence[float]) -> float:
    """Return the half-width of the 95 % interval of their mean, as a share of it; 0 for fewer than two."""
    interval = estimate(values)
    return 0.0 if not interval["mean"] or interval["ci95"] is None else interval["ci95"] / interval["mean"]


def widened(interval: MeanInterval, *shares: float) -> MeanInterval:
    """Widen an estimate's half-width by errors of its value that are independent of it, as shares of the value.

    The half-widths add as their squares do.
    """
    mean, half = interval["mean"], interval["ci95"]
    if mean is None or half is None:
        return interval
    return MeanInterval(mean=mean, ci95=hypot(half, *(share * mean for share in shares)))


def change_pct(value: float | None, reference: float | None) -> float | None:
    """Return 100 (value - reference) / reference; null if either is missing or the reference is 0."""
    return None if value is None or not reference else 100 * (value - reference) / reference


def paired_difference(values: Sequence[float | None], references: Sequence[float | None]) -> PairedDifference:
    """Return the difference of two numbers seed by seed: the interval is the paired t-test's."""
    pairs = list(zip(values, references, strict=True))
    difference = estimate([None if value is None or base is None else value - base for value, base in pairs])
    mean, half_width = difference["mean"], difference["ci95"]
    return PairedDifference(
        difference=difference,
        percent=estimate([change_pct(value, base) for value, base in pairs]),
        differs=None if mean is None or half_width is None else abs(mean) > half_width,
    )


def paired_ratio(values: Sequence[float | None], references: Sequence[float | None]) -> PairedRatio:
    """Return the ratio of two numbers run by run."""
    pairs = list(zip(values, references, strict=True))
    ratio = PairedRatio(ratio=None, low=None, high=None, runs=len(pairs), differs=None)
    logs = [log(value / base) for value, base in pairs if value and base and min(value, base) > 0]
    interval = estimate(logs)
    if interval["mean"] is None or len(logs) < len(pairs):
        return ratio
    mean, half = interval["mean"], interval["ci95"]
    if half is None:
        return {**ratio, "ratio": exp(mean)}
    return {**ratio, "ratio": exp(mean), "low": exp(mean - half), "high": exp(mean + half), "differs": abs(mean) > half}


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
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    low, median, high = np.quantile(numbers, [(1 - SHARE) / 2, 0.5, (1 + SHARE) / 2]).tolist()
    return Range(low=low, median=median, high=high)


def range_of_new_runs(values: Sequence[float | None]) -> Range | None:
    """Return the range that holds the value of a further run with a chance of `SHARE`, of `NEW_RUNS` values."""
    assert len(values) == NEW_RUNS
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    return Range(low=min(numbers), median=float(np.median(numbers)), high=max(numbers))


def mean_range(ranges: Sequence[Range | None]) -> Range | None:
    """Average the ends and the medians of several seeds' ranges."""
    intervals = [interval for interval in ranges if interval is not None]
    if not intervals or len(intervals) < len(ranges):
        return None
    low, median, high = (float(np.mean([interval[end] for interval in intervals])) for end in ("low", "median", "high"))
    return Range(low=low, median=median, high=high)


def half_width_pct(interval: Range) -> float | None:
    """Return half a range, in percent of its median; None if that is 0."""
    return 50 * (interval["high"] - interval["low"]) / interval["median"] if interval["median"] else None


def coverage(pairs: Sequence[tuple[Range | None, float | None]]) -> Coverage | None:
    """Count measured values inside their ranges; None if nothing can be compared."""
    comparable = [(interval, value) for interval, value in pairs if interval is not None and value is not None]
    if not comparable:
        return None
    inside = sum(interval["low"] <= value <= interval["high"] for interval, value in comparable)
    return Coverage(inside=inside, of=len(comparable), least=least_inside(len(comparable)))


def least_inside(number: int) -> int:
    """Return the fewest of `number` values inside honest ranges, but for a chance of `SURE` (binomial)."""
    chance = 0.0
    for inside in range(number + 1):
        chance += comb(number, inside) * SHARE**inside * (1 - SHARE) ** (number - inside)
        if chance > SURE:
            return inside
    return number


def holds(covered: Coverage) -> bool:
    """Return whether the ranges may be honest, by how many values are inside."""
    return covered["inside"] >= covered["least"]


def images_needed(interval: Range, images: int) -> int | None:
    """Estimate how many images narrow a range to `GOAL_PCT`: it falls with the root of their number."""
    width_pct = half_width_pct(interval)
    return None if width_pct is None else round(images * max(1.0, width_pct / GOAL_PCT) ** 2)
