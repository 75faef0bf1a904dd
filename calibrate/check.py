"""Does a profile still hold? A few fresh, random points against what the profile says of them.

It decides held or drifted; it changes no profile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrate.bench import Bench
from calibrate.fit import SOLO_ERROR, predict_solo_s
from calibrate.plan import Point
from policies.errors import InputError
from sim.profile import Profile

LEAST_TOLERANCE_PCT = 10.0


@dataclass(frozen=True, slots=True)
class CheckedPoint:
    """A point's median solo latency, as the profile has it and as it is now."""

    point: Point
    predicted_s: float
    measured_s: float

    @property
    def error_pct(self) -> float:
        """Positive where the profile says more than is true now."""
        return 100 * (self.predicted_s / self.measured_s - 1)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the fresh points say; `tolerance_pct` is what the profile allows."""

    points: tuple[CheckedPoint, ...]
    tolerance_pct: float

    @property
    def mean_abs_pct(self) -> float:
        """The mean error without its sign."""
        return float(np.mean([abs(point.error_pct) for point in self.points]))

    @property
    def bias_pct(self) -> float:
        """The mean error: how much too slow the profile is."""
        return float(np.mean([point.error_pct for point in self.points]))

    @property
    def held(self) -> bool:
        """Whether the profile still describes this device."""
        return self.mean_abs_pct <= self.tolerance_pct


def tolerance_pct(profile: Profile) -> float:
    """Twice the profile's own held-out error of solo latency, at least 10 %."""
    stated = [error.mean_abs_pct for error in profile.errors if error.figure == SOLO_ERROR]
    return max(LEAST_TOLERANCE_PCT, *(2 * error for error in stated), 0.0)


def check(
    bench: Bench, profile: Profile, rng: np.random.Generator, *, points: int = 12, min_s: float = 0.05
) -> CheckReport:
    """Measure so many random (key, batch) points, at least `min_s` each.

    Raises:
        InputError: fewer than one point is asked for.
    """
    if points < 1:
        raise InputError("check", "points", f"must be at least 1, found {points}")
    checked = []
    for _ in range(points):
        curve = profile.latency[int(rng.integers(len(profile.latency)))]
        batch = int(rng.integers(1, profile.batch_limit + 1))
        point = Point(curve.segment, curve.width, curve.previous_width, batch)
        measured_s = float(np.median(bench.solo(point, 3, 10, min_s).repeats_s))
        checked.append(CheckedPoint(point, predict_solo_s(curve, batch), measured_s))
    return CheckReport(tuple(checked), tolerance_pct(profile))
