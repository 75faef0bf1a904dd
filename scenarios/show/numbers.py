"""Numbers as text. The catalogue has the digits and the unit of each measure."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenarios.metrics.statistics import MeanInterval, PairedRatio

NONE = "-"
PLUS_MINUS = " +-"  # plain ASCII; pages write ± instead
COUNTING = 3  # digits, if a measure has no number of its own


def number(
    value: float | None, digits: int | None, scale: float = 1.0, *, signed: bool = False, grouped: bool = False
) -> str:
    """Format a number with `digits` after the point, or with three significant ones; `-` for none."""
    if value is None:
        return NONE
    after = places(value * scale, COUNTING) if digits is None else digits
    return f"{value * scale:{'+' if signed else ''}{',' if grouped else ''}.{after}f}"


def interval(
    estimate: MeanInterval | Mapping[str, Any],
    digits: int | None,
    scale: float = 1.0,
    *,
    signed: bool = False,
    unit: str = "",
) -> str:
    """Format `mean +-half-width`, or the mean alone if there is no interval; `-` for no mean."""
    mean, half = estimate["mean"], estimate["ci95"]
    if mean is None:
        return NONE
    after = places(mean * scale, COUNTING) if digits is None else digits
    text = number(mean, after, scale, signed=signed)
    text += "" if half is None else f"{PLUS_MINUS}{number(half, after, scale)}"
    return f"{text} {unit}".rstrip()


def ratio_change(ratio: PairedRatio) -> str:
    """Format a ratio and its interval as `-10.3 (-14.1 to -6.3) %`, which never passes -100 %; `-` for none."""
    if ratio["ratio"] is None:
        return NONE
    known = [each for each in (ratio["ratio"], ratio["low"], ratio["high"]) if each is not None]
    mean, *ends = (number(each - 1, 1, 100, signed=True) for each in known)
    return f"{mean} ({' to '.join(ends)}) %" if ends else f"{mean} %"


def places(value: float, counting: int) -> int:
    """Count the digits after the point of which this many count; 0 has none."""
    return max(0, counting - 1 - floor(log10(abs(value)))) if value else 0


def share(value: float | None) -> str:
    """Format a share in percent, with the sign: for sentences."""
    return NONE if value is None else f"{number(value, 2, 100)} %"


def duration(value_s: float | None) -> str:
    """Format seconds, or milliseconds below one."""
    return NONE if value_s is None else f"{value_s:.3f} s" if value_s >= 1 else f"{value_s * 1000:.2f} ms"


def plural(count: int, word: str) -> str:
    """Format a count with its word: `1 seed`, `2 seeds`."""
    return f"{count} {word}{'' if count == 1 else 's'}"
