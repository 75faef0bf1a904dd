"""Check of whether a profile still holds: random new points and sets are compared with the profile's predictions.

It decides held or drifted, metric by metric; it changes no profile. The rule, for a metric's errors e (in per cent of
the value measured now, positive if the profile's is larger):

    size   drifted if the median of |e| is larger than max(promise, 2 x stated error, 2 x stated repeatability)
    bias   drifted if the median of e is further from 0 than max(promise, stated error, 2 x stated repeatability)

A median counts as larger only if its whole 95 % interval is (from order statistics, so for any distribution; of fewer
than six values it is their range). So a single noisy point does not fail the check, but many consistent ones do. Stated
errors are the profile's own means on held-out points; without any, only the promise applies. A drifted metric is
measured a second time, at other points, and is reported only if it drifted both times: another program's burst is no
drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from calibrate.measurement_bench import EXPONENT, Bench, Speed, look
from calibrate.measurement_plan import EFFORTS, STEP_OVERHEAD_S, Key, Together, alone_s, estimate_s
from calibrate.plan_execution import DISTURBED, perform
from calibrate.profile_fit import (
    ACROSS_ERROR,
    CONCURRENCY_ERROR,
    REPEATABILITY,
    SOLO_ERROR,
    full_speed_s,
    has_full_speed,
    predict_solo_s,
)
from calibrate.sharing_and_energy import Floats, observed_sets, predict_slow_downs
from hw.transport.messages import Point
from kit.errors import InputError
from sim.device_profile import LatencyCurve, Profile
from sim.device_tables import sharing_of

PROMISED_PCT = {SOLO_ERROR: 3.0, CONCURRENCY_ERROR: 8.0, ACROSS_ERROR: 8.0}
CONFIDENCE = 0.95
WIDE_PCT = 25.0  # allowed error, above which a note is added
NOT_JUDGED_ABOVE_PCT = 50.0  # allowed error, above which holding has no meaning
EFFORT = replace(EFFORTS["cpu"], warmup=3, repeats=10, min_s=0.1, together_s=0.3)  # for a point, and for a set
TRIES = 5  # of a point
WATCH_S = 2.0  # to observe how the device's own speed varies
SIZES = (2, 3, 4)  # of a set
POINTS_A_SET = 2  # solo points per concurrency set
SAMPLED = 50  # steps, to estimate the time of all

Verdict = Literal["holds", "drifted", "not judged"]
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """One quantity in the profile and now; a set has a value for each member."""

    name: str
    predicted: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def error_pct(self) -> float:
        """Error of the geometric means; positive if the profile's is larger."""
        return 100 * float(np.exp(np.mean(np.log(self._ratios))) - 1)

    @property
    def abs_error_pct(self) -> float:
        """The members' mean absolute error."""
        return 100 * float(np.mean(np.abs(self._ratios - 1)))

    @property
    def _ratios(self) -> Floats:
        return np.asarray(self.predicted, dtype=np.float64) / np.asarray(self.measured, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The profile's allowed error in per cent: in size, and in one direction."""

    size_pct: float
    bias_pct: float

    @classmethod
    def by(cls, promised_pct: float, stated_pct: float = 0.0, repeatability_pct: float = 0.0) -> Allowed:
        """Return the allowed error by this module's rule."""
        floor_pct = max(promised_pct, 2 * repeatability_pct)
        return cls(max(floor_pct, 2 * stated_pct), max(floor_pct, stated_pct))


@dataclass(frozen=True, slots=True)
class CheckedMetric:
    """A metric's new measurements compared with the profile.

    Attributes:
        more: the word for a larger value now (`slower`, `more`).
        not_judged: why nothing is concluded; otherwise empty.
        looks: number of its measurements.
    """

    metric: str
    pairs: tuple[ComparedValue, ...]
    allowed: Allowed
    more: str = "more"
    less: str = "less"
    not_judged: str = ""
    looks: int = 1

    @property
    def median_abs_pct(self) -> float:
        """The median absolute error."""
        return float(np.median(self._sizes))

    @property
    def mean_abs_pct(self) -> float:
        """The mean absolute error."""
        return float(np.mean(self._sizes))

    @property
    def max_abs_pct(self) -> float:
        """The largest absolute error."""
        return max(self._sizes)

    @property
    def bias_pct(self) -> float:
        """The median signed error; positive if the profile's value exceeds the present one."""
        return float(np.median(self._errors))

    @property
    def size_interval_pct(self) -> Interval:
        """The interval of the median absolute error."""
        return median_interval(self._sizes)

    @property
    def bias_interval_pct(self) -> Interval:
        """The interval of the median signed error."""
        return median_interval(self._errors)

    @property
    def is_biased(self) -> bool:
        """Whether the errors are biased by more than is allowed."""
        low, high = self.bias_interval_pct
        return low > self.allowed.bias_pct or high < -self.allowed.bias_pct

    @property
    def verdict(self) -> Verdict:
        """The verdict by this module's rule."""
        if self.not_judged or not self.pairs:
            return "not judged"
        return "drifted" if self.is_biased or self.size_interval_pct[0] > self.allowed.size_pct else "holds"

    @property
    def finding(self) -> str:
        """Description of what has drifted; empty if nothing has."""
        if self.verdict != "drifted":
            return ""
        if not self.is_biased:
            return f"{self.metric}: off by {self.median_abs_pct:.0f} % in both directions, more than the profile states"
        now_pct = 100 * (1 / (1 + self.bias_pct / 100) - 1)
        return f"{self.metric}: {abs(now_pct):.0f} % {self.more if now_pct > 0 else self.less} than the profile states"

    @property
    def _sizes(self) -> list[float]:
        return [pair.abs_error_pct for pair in self.pairs]

    @property
    def _errors(self) -> list[float]:
        return [pair.error_pct for pair in self.pairs]


def median_interval(values: Sequence[float]) -> Interval:
    """Return the 95 % interval of a median from order statistics; of few values their range."""
    ascending, n = sorted(values), len(values)
    from scipy.stats import binom  # slow to import, and every server imports this module

    cut = max(1, int(binom.ppf((1 - CONFIDENCE) / 2, n, 0.5)))
    return ascending[cut - 1], ascending[n - cut]


def holds(metrics: Sequence[CheckedMetric]) -> bool:
    """Return whether some metric was judged, and none has drifted."""
    return is_judged(metrics) and all(metric.verdict != "drifted" for metric in metrics)


def is_judged(metrics: Sequence[CheckedMetric]) -> bool:
    """Return whether any metric was judged."""
    return any(metric.verdict != "not judged" for metric in metrics)


def is_narrow(metric: CheckedMetric) -> bool:
    """Return whether holding is informative: a profile with large stated errors allows almost anything."""
    return metric.allowed.size_pct <= WIDE_PCT


def meaningful(metric: CheckedMetric) -> CheckedMetric:
    """Return the metric as not judged if its allowed error makes holding meaningless, unless it drifts even so."""
    if metric.verdict != "holds" or metric.allowed.size_pct <= NOT_JUDGED_ABOVE_PCT:
        return metric
    reason = f"the profile's own errors are so large that {metric.allowed.size_pct:.0f} % are allowed; calibrate longer"
    return replace(metric, not_judged=f"{reason}, or on a quieter machine")


def stated_pct(profile: Profile, metric: str) -> float:
    """Return the profile's own mean error: held out if stated, otherwise the largest stated; otherwise 0."""
    stated = [error for error in profile.errors if error.metric == metric and error.kind != "repeatability"]
    held_out = [error for error in stated if error.kind == "held out"]
    return max((error.mean_abs_pct for error in held_out or stated), default=0.0)


def repeatability_pct(profile: Profile) -> float:
    """Return the mean difference of rounds over one solo point; 0 if it was not measured."""
    return max((error.mean_abs_pct for error in profile.errors if error.metric == REPEATABILITY), default=0.0)


def allowed(profile: Profile, metric: str) -> Allowed:
    """Return the allowed error of a profile's metric."""
    return Allowed.by(PROMISED_PCT[metric], stated_pct(profile, metric), repeatability_pct(profile))


def estimated_s(profile: Profile, points: int) -> float:
    """Estimate the time of a check in which nothing is repeated."""
    curves, rng = _curves(profile), np.random.default_rng(0)
    keys, sizes = sorted(curves), _sizes(profile)

    def guess(point: Point) -> float:
        return predict_solo_s(curves[point.key], point.batch)

    solos_s = [STEP_OVERHEAD_S + alone_s(EFFORT, guess(draw_point(keys, sizes, rng))) for _ in range(SAMPLED)]
    sets_s = [estimate_s(Together(draw_set(keys, sizes, rng)), EFFORT, guess) for _ in range(SAMPLED)]
    solo_s, set_s = float(np.mean(solos_s)), float(np.mean(sets_s))
    numbers = numbers_of(profile, points)
    return sum(number * (solo_s if metric == SOLO_ERROR else set_s) for metric, number in numbers.items())


def has_across(profile: Profile) -> bool:
    """Return whether the profile models two processes sharing its device."""
    return profile.concurrency.across_beta is not None


def numbers_of(profile: Profile, points: int) -> dict[str, int]:
    """Return the number of measurements of each metric."""
    sets = max(1, points // POINTS_A_SET)
    return {SOLO_ERROR: points, CONCURRENCY_ERROR: sets, **({ACROSS_ERROR: sets} if has_across(profile) else {})}


def check(
    bench: Bench,
    profile: Profile,
    rng: np.random.Generator,
    *,
    points: int = 24,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[CheckedMetric, ...]:
    """Measure random solo points, and half that number of concurrency sets of each kind, in a random order.

    Sets across processes are measured if the profile models them; the bench then needs a second process. Drifted
    metrics are measured a second time.

    Args:
        on_progress: called with the number of finished measurements, and of all.

    Raises:
        InputError: fewer than one point is requested.
    """
    if points < 1:
        raise InputError("--points", "", f"must be at least 1, found {points}")
    numbers, visit = numbers_of(profile, points), _Visit.begin(bench, profile)
    metrics = _look(visit, rng, numbers, on_progress)
    suspects = {metric.metric: numbers[metric.metric] for metric in metrics if metric.verdict == "drifted"}
    repeated = {metric.metric: metric for metric in _look(visit, rng, suspects, on_progress, looks=2)}
    return tuple(repeated.get(metric.metric, metric) for metric in metrics)


@dataclass(frozen=True, slots=True)
class _Visit:
    """State of a check on a device.

    Attributes:
        speed: present full speed of the device, at which points and sets are compared.
    """

    bench: Bench
    profile: Profile
    curves: Mapping[Key, LatencyCurve]
    speed: Speed

    @classmethod
    def begin(cls, bench: Bench, profile: Profile) -> _Visit:
        curves = _curves(profile)
        watched = bench.solo(Point(*min(curves), 1), EFFORT.warmup, EFFORT.repeats, WATCH_S, paused=False)
        observed = look(watched.repeats_s, watched.references_s)
        exponent = profile.slowdown.reference_exponent if profile.slowdown else EXPONENT
        return cls(bench, profile, curves, Speed(observed.best_s, observed.full_s, exponent))

    def solo(self, point: Point) -> ComparedValue:
        """Measure a point alone, at full speed, at once again while others take the device or its speed."""
        for _ in range(TRIES):
            loop = self.bench.solo(point, EFFORT.warmup, EFFORT.repeats, EFFORT.min_s)
            if loop.disturbed_share <= DISTURBED and has_full_speed([loop], self.speed):
                break
        measured_s = float(np.median(full_speed_s([loop], self.speed)))
        return ComparedValue(str(point), (predict_solo_s(self.curves[point.key], point.batch),), (measured_s,))

    def together(self, points: tuple[Point, ...], across: bool) -> list[ComparedValue]:
        """Measure a set against each member alone just before: a device that is slower as a whole slows both.

        A set of which a member finished nothing yields no value.
        """
        step = Together(points, across=across)
        result = perform(self.bench, step, EFFORT)
        (observed,) = observed_sets([(step, result)], held_out=False, reference_exponent=self.speed.exponent)
        if len(observed.finished) < len(points):
            return []
        predicted = predict_slow_downs(points, self.curves, sharing_of(self.profile), across=across)
        return [ComparedValue(" + ".join(map(str, points)), tuple(predicted), tuple(observed.finished))]


def _look(
    visit: _Visit,
    rng: np.random.Generator,
    numbers: Mapping[str, int],
    on_progress: Callable[[int, int], None],
    looks: int = 1,
) -> list[CheckedMetric]:
    """Measure new pairs of each metric, mixed in time: so a temporary disturbance affects not just one metric."""
    keys, sizes = sorted(visit.curves), _sizes(visit.profile)
    tasks = [metric for metric, number in numbers.items() for _ in range(number)]
    pairs: dict[str, list[ComparedValue]] = {metric: [] for metric in numbers}
    for done, index in enumerate(rng.permutation(len(tasks))):
        on_progress(done, len(tasks))
        metric = tasks[index]
        if metric == SOLO_ERROR:
            pairs[metric].append(visit.solo(draw_point(keys, sizes, rng)))
        else:
            pairs[metric] += visit.together(draw_set(keys, sizes, rng), metric == ACROSS_ERROR)
    directions = {SOLO_ERROR: ("slower", "faster")}
    return [
        CheckedMetric(
            metric, tuple(pair), allowed(visit.profile, metric), *directions.get(metric, ("more", "less")), looks=looks
        )
        for metric, pair in pairs.items()
    ]


def _sizes(profile: Profile) -> Sequence[int]:
    return profile.padded_sizes or range(1, profile.batch_limit + 1)


def draw_point(keys: Sequence[Key], sizes: Sequence[int], rng: np.random.Generator) -> Point:
    """Draw a point: keys uniformly, batch sizes uniformly within each factor of two.

    Args:
        sizes: a device's batch sizes, ascending.
    """
    batch = int(np.exp(rng.uniform(0.0, np.log(sizes[-1] + 1))))
    size = next(size for size in sizes if size >= min(batch, sizes[-1]))
    return Point(*keys[int(rng.integers(len(keys)))], size)


def draw_set(keys: Sequence[Key], sizes: Sequence[int], rng: np.random.Generator) -> tuple[Point, ...]:
    """Draw a set of two to four points: half of the sets repeat one point."""
    size = int(rng.choice(SIZES))
    drawn = sorted(draw_point(keys, sizes, rng) for _ in range(size))
    return tuple(drawn) if rng.random() < 0.5 else tuple(drawn[:1] * size)


def _curves(profile: Profile) -> dict[Key, LatencyCurve]:
    return {(curve.segment, curve.width, curve.previous_width): curve for curve in profile.latency}


def captured_here(bench: Bench, profile: Profile) -> tuple[int, int]:
    """Load every instance of a profile with all its points; return the number of replayed passes, and of all."""
    captured = warmed = 0
    for cost in profile.memory.instances:
        curves = [curve for curve in profile.latency if (curve.segment, curve.width) == (cost.segment, cost.width)]
        points = [
            Point(cost.segment, cost.width, curve.previous_width, size)
            for curve in curves
            for size in profile.padded_sizes
        ]
        bench.load(0, cost.segment, cost.width, False)
        captured += bench.points(0, points, 1, 1, 0.0)[1]
        bench.unload(0)
        warmed += len(points)
    return captured, warmed
