"""Does a profile still hold? Fresh, random points and sets against what the profile says of them.

It decides held or drifted, metric by metric; it changes no profile. The rule, for a metric's errors e (in per cent of
what is measured now, positive where the profile says more):

    size   drifted where the median of |e| is larger than max(promise, 2 x stated error, 2 x stated repeatability)
    bias   drifted where the median of e lies further from 0 than max(promise, stated error, 2 x stated repeatability)

where a median counts as larger only if its whole 95 % interval is (from order statistics, so of any distribution; of
fewer than six values it is all of them). So a noisy point fails nothing, and many that agree do. Stated errors are the
profile's own means on held-out points; of a metric without any the promise alone is allowed. What has drifted is
measured a second time, at other points, and only what drifted both times is called so: another program's burst is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from calibrate.bench import Bench, SoloResult, WatchResult
from calibrate.costs import Key
from calibrate.errors import ACROSS_ERROR, CONCURRENCY_ERROR, REPEATABILITY, SOLO_ERROR, predict_solo_s
from calibrate.measure import perform
from calibrate.plan import LAVISH, ForwardGuess, Solo, Together, Watch, estimate_s
from calibrate.samples import Pooled
from calibrate.sharing import Floats, observed_sets, predict_slow_downs
from calibrate.slowdown import EXPONENT, SlowdownLook, Speed
from hw.transport.messages import Point
from kit.errors import InputError
from sim.profile import LatencyCurve, Profile
from sim.tables import sharing_of

PROMISED_PCT = {SOLO_ERROR: 3.0, CONCURRENCY_ERROR: 8.0, ACROSS_ERROR: 8.0}
CONFIDENCE = 0.95
WIDE_PCT = 25.0  # allowed: a note says so
NOT_JUDGED_ABOVE_PCT = 50.0  # allowed: to hold says nothing
EFFORT = replace(LAVISH, warmup=3, repeats=10, min_s=0.1, together_s=0.3)  # of a point, and of a set
WATCH_S = 2.0  # for a look at how the device's own speed comes and goes
SIZES = (2, 3, 4)  # of a set
POINTS_A_SET = 2  # a concurrency set for so many solo points
SAMPLED = 50  # steps, for a guess of what all take

Verdict = Literal["holds", "drifted", "not judged"]
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """One thing as the profile has it and as it is now; a set has a value for each member."""

    name: str
    predicted: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def error_pct(self) -> float:
        """Of the geometric means; positive where the profile says more."""
        return 100 * float(np.exp(np.mean(np.log(self._ratios))) - 1)

    @property
    def abs_error_pct(self) -> float:
        """The members' mean error without its sign."""
        return 100 * float(np.mean(np.abs(self._ratios - 1)))

    @property
    def _ratios(self) -> Floats:
        return np.asarray(self.predicted, dtype=np.float64) / np.asarray(self.measured, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a profile may be off by, in per cent: in size, and in one direction."""

    size_pct: float
    bias_pct: float

    @classmethod
    def by(cls, promised_pct: float, stated_pct: float = 0.0, repeatability_pct: float = 0.0) -> Allowed:
        """See this module."""
        least = max(promised_pct, 2 * repeatability_pct)
        return cls(max(least, 2 * stated_pct), max(least, stated_pct))


@dataclass(frozen=True, slots=True)
class CheckedMetric:
    """A metric's fresh measurements against the profile.

    Attributes:
        more: what it means that there is more of it now (`slower`, `more`).
        not_judged: why nothing is concluded; empty where it is.
        looks: how often it was measured.
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
        """The median error without its sign."""
        return float(np.median(self._sizes))

    @property
    def mean_abs_pct(self) -> float:
        """The mean error without its sign."""
        return float(np.mean(self._sizes))

    @property
    def max_abs_pct(self) -> float:
        """The largest error without its sign."""
        return max(self._sizes)

    @property
    def bias_pct(self) -> float:
        """The median error with its sign; positive where the profile says more than is true now."""
        return float(np.median(self._errors))

    @property
    def size_interval_pct(self) -> Interval:
        """Where the median of the sizes lies."""
        return median_interval(self._sizes)

    @property
    def bias_interval_pct(self) -> Interval:
        """Where the median of the errors lies."""
        return median_interval(self._errors)

    @property
    def is_biased(self) -> bool:
        """Whether the errors lean to one side by more than is allowed."""
        low, high = self.bias_interval_pct
        return low > self.allowed.bias_pct or high < -self.allowed.bias_pct

    @property
    def verdict(self) -> Verdict:
        """See this module."""
        if self.not_judged or not self.pairs:
            return "not judged"
        return "drifted" if self.is_biased or self.size_interval_pct[0] > self.allowed.size_pct else "holds"

    @property
    def finding(self) -> str:
        """What has drifted, in words; empty where nothing has."""
        if self.verdict != "drifted":
            return ""
        if not self.is_biased:
            return f"{self.metric}: off by {self.median_abs_pct:.0f} % in both directions, more than the profile states"
        now_pct = 100 * (1 / (1 + self.bias_pct / 100) - 1)
        return f"{self.metric}: {abs(now_pct):.0f} % {self.more if now_pct > 0 else self.less} than the profile says"

    @property
    def _sizes(self) -> list[float]:
        return [pair.abs_error_pct for pair in self.pairs]

    @property
    def _errors(self) -> list[float]:
        return [pair.error_pct for pair in self.pairs]


def median_interval(values: Sequence[float]) -> Interval:
    """The 95 % interval of a median from order statistics; from the least to the largest of few values."""
    ascending, n = sorted(values), len(values)
    from scipy.stats import binom  # slow to import, and every server passes here

    cut = max(1, int(binom.ppf((1 - CONFIDENCE) / 2, n, 0.5)))
    return ascending[cut - 1], ascending[n - cut]


def holds(metrics: Sequence[CheckedMetric]) -> bool:
    """Whether something was judged, and nothing has drifted."""
    return is_judged(metrics) and all(metric.verdict != "drifted" for metric in metrics)


def is_judged(metrics: Sequence[CheckedMetric]) -> bool:
    """Whether anything is concluded at all."""
    return any(metric.verdict != "not judged" for metric in metrics)


def is_narrow(metric: CheckedMetric) -> bool:
    """Whether to hold says much: a profile that states large errors itself allows about anything."""
    return metric.allowed.size_pct <= WIDE_PCT


def meaningful(metric: CheckedMetric) -> CheckedMetric:
    """A metric that may be off by so much that to hold says nothing is not judged; one that drifts even so is."""
    if metric.verdict != "holds" or metric.allowed.size_pct <= NOT_JUDGED_ABOVE_PCT:
        return metric
    reason = f"the profile's own errors are so large that {metric.allowed.size_pct:.0f} % are allowed; calibrate longer"
    return replace(metric, not_judged=f"{reason}, or on a quieter machine")


def stated_pct(profile: Profile, metric: str) -> float:
    """The profile's own mean error: held out where it says that, else the largest that it states; else 0."""
    stated = [error for error in profile.errors if error.metric == metric and error.kind != "repeatability"]
    held_out = [error for error in stated if error.kind == "held out"]
    return max((error.mean_abs_pct for error in held_out or stated), default=0.0)


def repeatability_pct(profile: Profile) -> float:
    """How far rounds over one solo point lay apart, on the mean; 0 where that was not measured."""
    return max((error.mean_abs_pct for error in profile.errors if error.metric == REPEATABILITY), default=0.0)


def allowed(profile: Profile, metric: str) -> Allowed:
    """What a profile's metric may be off by."""
    return Allowed.by(PROMISED_PCT[metric], stated_pct(profile, metric), repeatability_pct(profile))


def estimated_s(profile: Profile, points: int) -> float:
    """What a check takes where nothing is looked at twice; a guess."""
    curves, rng = _curves(profile), np.random.default_rng(0)
    guess = _guess(curves)
    keys, sizes = sorted(curves), _sizes(profile)
    solos = [Solo(draw_point(keys, sizes, rng)) for _ in range(SAMPLED)]
    sets = [Together(draw_set(keys, sizes, rng)) for _ in range(SAMPLED)]
    solo_s, set_s = (float(np.mean([estimate_s(step, EFFORT, guess) for step in steps])) for steps in (solos, sets))
    numbers = numbers_of(profile, points)
    return sum(number * (solo_s if metric == SOLO_ERROR else set_s) for metric, number in numbers.items())


def has_across(profile: Profile) -> bool:
    """Whether the profile knows how two processes share its device."""
    return profile.concurrency.across_beta is not None


def numbers_of(profile: Profile, points: int) -> dict[str, int]:
    """How many measurements each metric gets."""
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
    """Measure so many random solo points and half as many concurrency sets of each kind, in a random order.

    Sets across processes are measured where the profile knows of such; the bench needs a second process then. What has
    drifted is looked at a second time.

    Args:
        on_progress: called with how many measurements are done, of how many.

    Raises:
        InputError: fewer than one point is asked for.
    """
    if points < 1:
        raise InputError("--points", "", f"must be at least 1, found {points}")
    numbers, visit = numbers_of(profile, points), _Visit.begin(bench, profile)
    first = _look(visit, rng, numbers, on_progress)
    suspects = {metric.metric: numbers[metric.metric] for metric in first if metric.verdict == "drifted"}
    again = {metric.metric: metric for metric in _look(visit, rng, suspects, on_progress, looks=2)}
    return tuple(again.get(metric.metric, metric) for metric in first)


@dataclass(frozen=True, slots=True)
class _Visit:
    """A device that a profile is checked on.

    Attributes:
        slowdown: how the device's own speed comes and goes now; points and sets are compared at its full speed.
        exponent: what makes the reference x times slower makes passes x to this power slower.
    """

    bench: Bench
    profile: Profile
    curves: Mapping[Key, LatencyCurve]
    slowdown: SlowdownLook
    exponent: float

    @classmethod
    def begin(cls, bench: Bench, profile: Profile) -> _Visit:
        curves = _curves(profile)
        seen = perform(bench, Watch(Point(*min(curves), 1)), replace(EFFORT, min_s=WATCH_S), _guess(curves))
        assert isinstance(seen, WatchResult)
        known = profile.slowdown
        return cls(bench, profile, curves, seen.slowdown, EXPONENT if known is None else known.reference_exponent)

    def solo(self, point: Point) -> ComparedValue:
        """A point alone, at full speed; what never had it is brought there."""
        result = perform(self.bench, Solo(point), EFFORT, _guess(self.curves), self.slowdown)
        assert isinstance(result, SoloResult)
        measured_s = Pooled.of([result.samples]).quantile(0.5)
        if result.is_slow:
            measured_s /= Speed(self.slowdown.full_s, self.exponent).slowdown(result.reference_s)
        return ComparedValue(str(point), (predict_solo_s(self.curves[point.key], point.batch),), (measured_s,))

    def together(self, points: tuple[Point, ...], across: bool) -> list[ComparedValue]:
        """A set against each member alone just before: of a device that is slower as a whole, both are.

        How long it runs follows from what a pass takes now: the profile may be far off. Nothing comes of a set of which
        a member finished nothing.
        """
        now_s = {point: min(self.bench.solo(point, 1, 3, 0.0).repeats_s) for point in dict.fromkeys(points)}
        step = Together(points, across=across)
        result = perform(self.bench, step, EFFORT, now_s.__getitem__, self.slowdown)
        (observed,) = observed_sets([(step, result)], held_out=False, reference_exponent=self.exponent)
        if len(observed.seen) < len(points):
            return []
        predicted = predict_slow_downs(points, self.curves, sharing_of(self.profile), across=across)
        return [ComparedValue(" + ".join(map(str, points)), tuple(predicted), tuple(observed.seen))]


def _look(
    visit: _Visit,
    rng: np.random.Generator,
    numbers: Mapping[str, int],
    on_progress: Callable[[int, int], None],
    looks: int = 1,
) -> list[CheckedMetric]:
    """Fresh pairs of each metric, mixed in time: what a device does for a while is not one metric's alone."""
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
    words = {SOLO_ERROR: ("slower", "faster")}
    return [
        CheckedMetric(
            metric, tuple(pair), allowed(visit.profile, metric), *words.get(metric, ("more", "less")), looks=looks
        )
        for metric, pair in pairs.items()
    ]


def _sizes(profile: Profile) -> Sequence[int]:
    return profile.padded_sizes or range(1, profile.batch_limit + 1)


def draw_point(keys: Sequence[Key], sizes: Sequence[int], rng: np.random.Generator) -> Point:
    """Any key as likely as another, batch sizes as likely within each factor of two.

    Args:
        sizes: those of a device, ascending.
    """
    batch = int(np.exp(rng.uniform(0.0, np.log(sizes[-1] + 1))))
    size = next(size for size in sizes if size >= min(batch, sizes[-1]))
    return Point(*keys[int(rng.integers(len(keys)))], size)


def draw_set(keys: Sequence[Key], sizes: Sequence[int], rng: np.random.Generator) -> tuple[Point, ...]:
    """Two to four points: half of the sets are several times the same one."""
    size = int(rng.choice(SIZES))
    drawn = sorted(draw_point(keys, sizes, rng) for _ in range(size))
    return tuple(drawn) if rng.random() < 0.5 else tuple(drawn[:1] * size)


def _curves(profile: Profile) -> dict[Key, LatencyCurve]:
    return {(curve.segment, curve.width, curve.previous_width): curve for curve in profile.latency}


def _guess(curves: Mapping[Key, LatencyCurve]) -> ForwardGuess:
    return lambda point: predict_solo_s(curves[point.key], point.batch)
