"""Means with intervals, and differences seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, sqrt
from typing import TypedDict

import numpy as np

from policies.vocabulary import Provenance

UNMETERED = (Provenance.MODELLED, Provenance.DATASHEET)


class Estimate(TypedDict):
    """A mean over seeds and the half-width of its 95 % interval (Student's t); null where there is too little."""

    mean: float | None
    ci95: float | None


class PairedDifference(TypedDict):
    """Over the seeds of both, a router's number less the other's: absolutely, and in percent of the other's.

    `differs`: whether the interval leaves 0 out; null where there is none.
    """

    difference: Estimate
    percent: Estimate
    differs: bool | None


def estimate(values: Sequence[float | None]) -> Estimate:
    """Mean and 95 % half-width; both null if a value is missing, the half-width for fewer than two values."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Estimate(mean=None, ci95=None)
    if len(known) == 1:
        return Estimate(mean=float(known[0]), ci95=None)
    from scipy.special import stdtrit  # slow to open, and every command passes here

    t = float(stdtrit(len(known) - 1, 0.975))
    return Estimate(mean=float(np.mean(known)), ci95=t * float(np.std(known, ddof=1)) / sqrt(len(known)))


def relative_half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of their mean, as a share of it; 0 for fewer than two."""
    found = estimate(values)
    return 0.0 if not found["mean"] or found["ci95"] is None else found["ci95"] / found["mean"]


def widened(found: Estimate, *shares: float) -> Estimate:
    """An estimate whose half-width also holds errors of its value that are independent of it, as shares of the value.

    The half-widths add as their squares do.
    """
    mean, half = found["mean"], found["ci95"]
    if mean is None or half is None:
        return found
    return Estimate(mean=mean, ci95=hypot(half, *(share * mean for share in shares)))


def change_pct(value: float | None, reference: float | None) -> float | None:
    """100 (value - reference) / reference; null where either is missing or the reference is 0."""
    return None if value is None or not reference else 100 * (value - reference) / reference


def paired_difference(values: Sequence[float | None], others: Sequence[float | None]) -> PairedDifference:
    """Of two numbers seed by seed: the interval is the paired t-test's."""
    pairs = list(zip(values, others, strict=True))
    difference = estimate([None if one is None or other is None else one - other for one, other in pairs])
    mean, half_width = difference["mean"], difference["ci95"]
    return PairedDifference(
        difference=difference,
        percent=estimate([change_pct(one, other) for one, other in pairs]),
        differs=None if mean is None or half_width is None else abs(mean) > half_width,
    )
