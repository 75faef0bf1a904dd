"""Calibration plan of a GPU: a fixed plan of about a minute, and the evaluation of its results.

A GPU receives only the batch sizes that it pads to. So these are measured at every key, in two rounds far apart in
time, and nothing is interpolated: a profile states the difference of the rounds, and of whole paths through the network
from the sum of their hops. A larger budget adds rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from calibrate.bench import Bench, BesideLoadResult, LoadCycleResult, PathsResult, Result
from calibrate.costs import Key
from calibrate.errors import Pairs, predict_solo_s
from calibrate.plan import (
    BesideLoad,
    CalibrationPlan,
    Dispatch,
    Extras,
    InstancePoints,
    Paths,
    PlannedStep,
    Solo,
    Steady,
    Step,
    StepEffort,
    Together,
    Transfer,
    estimate_s,
    power_omitted,
    shuffled,
)
from calibrate.samples import Pooled
from hw.transport.messages import Point
from sim.profile import LatencyCurve, Profile

EFFORT = StepEffort(
    rounds=2, batches=None, warmup=5, repeats=40, min_s=0.0, sets=12, together_s=0.2, points=6, steady_s=2.0, tries=2
)
MOST_ROUNDS = 5
DISPATCHES = 3
PATHS = 20
PASS_S, MAKE_S = 5e-4, 0.1  # guesses: of a pass, and of making and capturing an instance for one point
DUTIES = (0.01, 0.05, 0.2, 0.5)


def powers_of_two(batch_limit: int) -> tuple[int, ...]:
    """Return the powers of two up to the limit, and the limit."""
    return tuple(sorted({1 << i for i in range(batch_limit.bit_length())} | {batch_limit}))


def padded_sizes(batch_limit: int, block_s: Mapping[int, float]) -> tuple[int, ...]:
    """Return a GPU's batch sizes: powers of two, the limit, 12 and 24 if padding costs more than a pass.

    A batch half-way between two powers is padded to the larger. That costs half of the difference of their times, and
    saves a further pass, of which the fixed part is what one image takes. If it costs more, the size is worth its
    captures.

    Args:
        block_s: times of blocks of 1 image and of the powers of two.
    """
    sizes = powers_of_two(batch_limit)
    pairs = [(low, high) for low, high in pairwise(sizes) if low in (8, 16) and high == 2 * low]
    halfway = {3 * low // 2 for low, high in pairs if (block_s[high] - block_s[low]) / 2 > block_s[1]}
    return tuple(sorted({*sizes, *halfway}))


def typical_pass_s(point: Point) -> float:
    """Return a guess of any point's forward time."""
    return PASS_S


def gpu_plan(keys: Sequence[Key], sizes: Sequence[int], extras: Extras, rng: np.random.Generator) -> CalibrationPlan:
    """Plan all padded sizes at all keys, twice; everything else between the two rounds.

    Args:
        keys: every legal (segment, width, previous width).
        sizes: `padded_sizes`.
        rng: draws the paths and the order.
    """
    between: list[Step] = [*_sets(keys, sizes, extras.sibling), *_beside_loads(keys, sizes)]
    between += [Paths(tuple(_path(keys, sizes, rng) for _ in range(PATHS)))]
    between += [Dispatch(Point(*key, sizes[0])) for key in shuffled(keys, rng)[:DISPATCHES]]
    between += [Transfer(size_bytes) for size_bytes in extras.transfers]
    between += _loads(keys, sizes, awake=extras.awake) if extras.power else []
    planned = [
        *_planned(_round(keys, sizes, rng, from_disk=True), 1),
        *_planned(between, 1),
        *(
            each
            for number in range(2, MOST_ROUNDS + 1)
            for each in _planned(_round(keys, sizes, rng, from_disk=False), number)
        ),
    ]
    return CalibrationPlan(EFFORT, EFFORT, tuple(sizes), (), tuple(planned), tuple(power_omitted(EFFORT, extras)))


def _planned(steps: Sequence[Step], number: int) -> Iterator[PlannedStep]:
    for step in steps:
        yield PlannedStep(
            step, number, number <= EFFORT.rounds, estimate_s(step, EFFORT, typical_pass_s) + _made_s(step)
        )


def _made_s(step: Step) -> float:
    """Return the time to load a step's instances; that of `InstancePoints` is counted there."""
    match step:
        case Together(points):
            return MAKE_S * (len(points) + len(set(points)))
        case Steady() | Dispatch():
            return MAKE_S
        case _:
            return 0.0


def _round(keys: Sequence[Key], sizes: Sequence[int], rng: np.random.Generator, *, from_disk: bool) -> list[Step]:
    """Plan a round: each instance is loaded once, with all its points."""
    steps = []
    for segment, width in shuffled(sorted({key[:2] for key in keys}), rng):
        points = [Point(*key, size) for key in keys if key[:2] == (segment, width) for size in sizes]
        steps.append(InstancePoints(segment, width, tuple(shuffled(points, rng)), from_disk))
    return list[Step](steps)


def _path(keys: Sequence[Key], sizes: Sequence[int], rng: np.random.Generator) -> tuple[Point, ...]:
    """Draw a width for each segment that can follow the one before, and one of the sizes for all."""
    size = sizes[int(rng.integers(len(sizes)))]
    path: list[Point] = []
    previous = 0.0
    for segment in sorted({key[0] for key in keys}):
        widths = [width for s, width, p in keys if (s, p) == (segment, previous)]
        path.append(Point(segment, widths[int(rng.integers(len(widths)))], previous, size))
        previous = path[-1].width
    return tuple(path)


def _ends(keys: Sequence[Key], sizes: Sequence[int]) -> tuple[Point, Point, Point]:
    """Return three points of the middle segment: the shortest pass, one in the middle, and the longest."""
    of_segment = sorted(key for key in keys if key[0] == sorted(keys)[len(keys) // 2][0])
    middle = Point(*of_segment[len(of_segment) // 2], sizes[len(sizes) // 2])
    return Point(*of_segment[0], sizes[0]), middle, Point(*of_segment[-1], sizes[-1])


def _sets(keys: Sequence[Key], sizes: Sequence[int], has_sibling: bool) -> Iterator[Together]:
    """Yield sets of short and long passes, two and four at once, in one process and across two; a third is held out."""
    short, middle, long = _ends(keys, sizes)
    fitted = [(short,) * 2, (short, long), (long,) * 2, (long,) * 4]
    held_out = [(middle,) * 2, (short, short, long, long)]
    for across in (False, True) if has_sibling else (False,):
        yield from (Together(points, False, across) for points in fitted)
        yield from (Together(points, True, across) for points in held_out)


def _beside_loads(keys: Sequence[Key], sizes: Sequence[int]) -> Iterator[BesideLoad]:
    """Yield a short and a long pass, next to the loading of the narrowest and the widest instance."""
    short, _, long = _ends(keys, sizes)
    for point in (short, long):
        for segment, width, _ in (min(keys), max(keys)):
            yield BesideLoad(point, segment, width)


def _loads(keys: Sequence[Key], sizes: Sequence[int], *, awake: bool) -> Iterator[Steady]:
    """Yield the narrowest and the widest at both ends under the power sensor, and two held out in the middle.

    If clocks stay up, also a point at small duties.
    """
    short, middle, long = _ends(keys, sizes)
    for key in (short.key, long.key):
        yield from (Steady(Point(*key, size)) for size in dict.fromkeys((sizes[0], sizes[-1])))
    yield from (Steady(Point(*middle.key, size), held_out=True) for size in dict.fromkeys((middle.batch, sizes[-1])))
    yield from (Steady(middle, duty=duty) for duty in (DUTIES if awake else ()))


# ------------------------------------------------------------------------------------------------ what the results say


def with_points(measurements: Sequence[tuple[Step, Result]]) -> list[tuple[Step, Result]]:
    """Return the measurements, with each point of an instance as if it had been timed alone."""
    found = list(measurements)
    for step, result in measurements:
        if isinstance(step, InstancePoints) and isinstance(result, LoadCycleResult):
            found += [(Solo(point), solo) for point, solo in zip(step.points, result.solos, strict=True)]
    return found


def round_medians_s(measurements: Sequence[tuple[Step, Result]]) -> dict[Point, list[float]]:
    """Return the median of each round of every point, including disturbed ones: that is to be expected."""
    medians_s: dict[Point, list[float]] = {}
    for step, result in measurements:
        if isinstance(step, InstancePoints) and isinstance(result, LoadCycleResult):
            for point, solo in zip(step.points, result.solos, strict=True):
                medians_s.setdefault(point, []).append(Pooled.of([solo.samples]).quantile(0.5))
    return medians_s


def path_errors(measurements: Sequence[tuple[Step, Result]], curves: Mapping[Key, LatencyCurve]) -> Pairs:
    """Return (predicted, measured) seconds of each path: the sum of its hops' medians, and its own."""
    return [
        (sum(predict_solo_s(curves[point.key], point.batch) for point in path), median_s)
        for step, result in measurements
        if isinstance(step, Paths) and isinstance(result, PathsResult)
        for path, median_s in zip(step.paths, result.medians_s, strict=True)
    ]


def beside_load_factor(measurements: Sequence[tuple[Step, Result]]) -> float:
    """Return the slow-down of passes while an instance is loaded; 1 if that was not measured."""
    seen = [result.beside_s / result.quiet_s for _, result in measurements if isinstance(result, BesideLoadResult)]
    return max(1.0, float(np.median(seen))) if seen else 1.0


def captured_passes(measurements: Sequence[tuple[Step, Result]]) -> str:
    """Return `n of m`: the number of passes of all instances that are replayed; empty if all are."""
    counts = {
        (step.segment, step.width): (result.captured, len(step.points))
        for step, result in measurements
        if isinstance(step, InstancePoints) and isinstance(result, LoadCycleResult)
    }
    captured, warmed = map(sum, zip(*counts.values(), strict=True)) if counts else (0, 0)
    return "" if captured == warmed else f"{captured} of {warmed}"


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
        captured += bench.points(0, points, 1, 1)[1]
        bench.unload(0)
        warmed += len(points)
    return captured, warmed
