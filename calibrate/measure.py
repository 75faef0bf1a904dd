"""Carries out a plan on a device: step by step, into the log, within the budget.

It decides when to stop and when to hurry; what to measure was decided by `calibrate.plan`, and what it means is for
`calibrate.fit` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.bench import (
    Bench,
    HoldResult,
    Result,
    SoloResult,
    SteadyResult,
    TimesResult,
    TogetherResult,
)
from calibrate.costs import Key
from calibrate.log import Log
from calibrate.plan import (
    LEAST,
    STEP_OVERHEAD_S,
    Dispatch,
    Effort,
    ForwardGuess,
    Hold,
    Plan,
    Planned,
    Point,
    ScoutedCurve,
    Solo,
    Steady,
    Step,
    Together,
    Transfer,
    alone_duration_s,
    describe,
    scouted_batches,
    together_duration_s,
)
from calibrate.samples import Samples
from policies.vocabulary import NS_PER_S

UNSTEADY = 0.03  # a point whose rounds differ by more is measured again while time is left
LOADS = 3  # of an instance: from disk, then from host memory
MOST_ROUNDS = 6
SCOUT_SHARE = 0.1  # of the budget, for whole curves
SCOUTING = replace(LEAST, warmup=2, repeats=8, min_s=0.006)  # longer than a time slice of another process


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a calibration is; `left_s` is a guess that never exceeds what the budget leaves."""

    done: int
    total: int
    left_s: float
    step: str


Measurement = tuple[Step, Result]
Clock = Callable[[], int]  # monotonic nanoseconds


@dataclass(frozen=True, slots=True)
class Measured:
    """All finished steps, in no particular order of time, and what running out of time left out, in words."""

    measurements: tuple[Measurement, ...]
    omitted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scouted:
    """A hasty look at a device: a guess of every point's forward time, and whole curves where they were cheap.

    Attributes:
        corners: for each (segment, width) that was looked at, seconds by batch size.
        curves: of those that were looked at at every scouted batch size.
    """

    corners: Mapping[tuple[int, float], Mapping[int, float]]
    curves: tuple[ScoutedCurve, ...]

    def guess_s(self, point: Point) -> float:
        """Linear in the batch and in the width between what was seen of the segment."""
        seen = sorted((width, curve) for (segment, width), curve in self.corners.items() if segment == point.segment)
        at_widths = [np.interp(point.batch, sorted(curve), [curve[b] for b in sorted(curve)]) for _, curve in seen]
        return float(np.interp(point.width, [width for width, _ in seen], at_widths))


def scout(
    bench: Bench, keys: Sequence[Key], batch_limit: int, log: Log, clock: Clock, budget_s: float = 0.0
) -> Scouted:
    """Look at the narrowest and the widest of each segment, at both ends; at more batch sizes while it is cheap.

    All of it is logged, and what is looked at follows from what was seen alone: a resumed plan is the same plan.
    """

    def look(segment: int, width: float, batch: int) -> float:
        previous = max(p for s, w, p in keys if (s, w) == (segment, width))
        planned = Planned(Solo(Point(segment, width, previous, batch)), 0, True, 0.0)
        result = _once(bench, planned, SCOUTING, lambda _: 0.0, log, clock)
        assert isinstance(result, SoloResult)
        return result.samples.values[0]  # the least: haste and a busy machine only ever add

    corners = {corner: {b: look(*corner, b) for b in sorted({1, batch_limit})} for corner in _corners(keys)}
    sizes, curves, left_s = scouted_batches(batch_limit), [], SCOUT_SHARE * budget_s
    for corner, ends in corners.items():
        forward_s = [max(ends.values()) * size / batch_limit for size in sizes]
        left_s -= sum(STEP_OVERHEAD_S + SCOUTING.min_s + SCOUTING.repeats * one_s for one_s in forward_s)
        if left_s < 0:
            break
        ends |= {size: look(*corner, size) for size in sizes if size not in ends}
        curves.append(dict(ends))
    return Scouted(corners, tuple(curves))


def measure(
    bench: Bench,
    plan: Plan,
    guess: ForwardGuess,
    log: Log,
    budget_s: float,
    clock: Clock,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Measured:
    """Do what the log does not have yet, until it is done or the budget is spent.

    Required steps are done whatever the clock says, with the least effort once they are late; the others stop with the
    budget. The time that earlier sittings took counts.
    """
    pace = _Pace(plan.steps, log, budget_s)
    hurried = 0
    measurements: list[Measurement] = []
    for planned in plan.steps:
        if planned.id not in log.results:
            if not planned.required and pace.spent_up(planned):
                break
            late = pace.late()
            hurried += late and plan.effort != LEAST
            on_progress(pace.progress(planned))
            _once(bench, planned, _hurry(plan.effort) if late else plan.effort, guess, log, clock)
        pace.done(planned)
        measurements.append((planned.step, log.results[planned.id]))
    measurements += _again(bench, plan, guess, log, pace, clock)
    words = [*_batches_left_out(plan, measurements), *pace.words(len(plan.steps), hurried)]
    return Measured(tuple(measurements), tuple(words))


def _batches_left_out(plan: Plan, measurements: Sequence[Measurement]) -> Iterator[str]:
    fitted = [step.point for step, _ in measurements if isinstance(step, Solo) and not step.held_out]
    keys = {point.key for point in fitted}
    seen = {batch: {point.key for point in fitted if point.batch == batch} for batch in sorted(plan.grid)}
    missing = [str(batch) for batch, found in seen.items() if found != keys]
    if missing:
        yield f"batch sizes {', '.join(missing)} at some keys or all"


class _Pace:
    """Where a measurement stands against its budget."""

    def __init__(self, steps: Sequence[Planned], log: Log, budget_s: float) -> None:
        self._log = log
        self._budget_s = budget_s
        self._count = 0
        self._total = len(steps)
        self._left_s = sum(planned.estimated_s for planned in steps)
        self._required_s = sum(planned.estimated_s for planned in steps if planned.required)
        self._estimated_done_s = 0.0
        self._spent_before_s = log.spent_s

    def done(self, planned: Planned) -> None:
        self._count += 1
        self._left_s -= planned.estimated_s
        self._required_s -= planned.estimated_s * planned.required
        self._estimated_done_s += planned.estimated_s

    @property
    def _budget_left_s(self) -> float:
        return self._budget_s - self._log.spent_s

    @property
    def _slowness(self) -> float:
        """Real seconds an estimated one, so far; the first few steps say nothing."""
        if self._count < 10 or self._estimated_done_s == 0:
            return 1.0
        return max(1.0, (self._log.spent_s - self._spent_before_s) / self._estimated_done_s)

    def spent_up(self, planned: Planned) -> bool:
        return planned.estimated_s * self._slowness > self._budget_left_s

    def late(self) -> bool:
        return self._required_s * self._slowness > self._budget_left_s

    def progress(self, planned: Planned) -> Progress:
        left_s = max(0.0, min(self._left_s * self._slowness, self._budget_left_s))
        return Progress(self._count, self._total, left_s, describe(planned.step))

    def words(self, total: int, hurried: int) -> Iterator[str]:
        if self._count < total:
            yield f"time ran out: {total - self._count} of {total} steps"
        if hurried:
            yield f"late: {hurried} steps were measured with the least effort"


def _again(bench: Bench, plan: Plan, guess: ForwardGuess, log: Log, pace: _Pace, clock: Clock) -> Iterator[Measurement]:
    """Further rounds over solo points whose rounds differ, the worst first, while time is left."""
    for number in range(plan.effort.rounds + 1, MOST_ROUNDS + 1):
        for planned in _unsteady(plan, log, number):
            if planned.id not in log.results:
                if pace.spent_up(planned):
                    return
                _once(bench, planned, plan.effort, guess, log, clock)
            yield planned.step, log.results[planned.id]


def _unsteady(plan: Plan, log: Log, number: int) -> list[Planned]:
    found: list[tuple[float, Planned]] = []
    for planned in plan.steps:
        if planned.round != 1 or not isinstance(planned.step, Solo):
            continue
        rounds = [replace(planned, round=earlier).id for earlier in range(1, number)]
        results = [log.results[name] for name in rounds if name in log.results]
        medians = [float(np.median(r.samples.values)) for r in results if isinstance(r, SoloResult)]
        if len(medians) > 1 and max(medians) / min(medians) - 1 > UNSTEADY:
            found.append((max(medians) / min(medians), replace(planned, round=number)))
    return [planned for _, planned in sorted(found, key=lambda item: -item[0])]


def _hurry(effort: Effort) -> Effort:
    return replace(effort, warmup=LEAST.warmup, repeats=LEAST.repeats, min_s=LEAST.min_s, together_s=LEAST.together_s)


def _once(bench: Bench, planned: Planned, effort: Effort, guess: ForwardGuess, log: Log, clock: Clock) -> Result:
    """The step's result: from the log, or measured now and logged."""
    if planned.id in log.results:
        return log.results[planned.id]
    started_ns = clock()
    result = perform(bench, planned.step, effort, guess)
    log.append(planned.id, (clock() - started_ns) / NS_PER_S, result)
    return result


def perform(bench: Bench, step: Step, effort: Effort, guess: ForwardGuess) -> Result:
    """Measure one step."""
    match step:
        case Solo(point):
            loop = bench.solo(point, effort.warmup, effort.repeats, effort.min_s)
            return SoloResult(Samples.of(loop.repeats_s), loop.wall_s, loop.cpu_s)
        case Together(points):
            return _together(bench, points, effort, guess)
        case Hold(segment, width):
            return _hold(bench, segment, width)
        case Dispatch(point):
            return TimesResult(Samples.of(bench.dispatch(point, max(10, effort.repeats))))
        case Transfer(size_bytes):
            return TimesResult(Samples.of(bench.transfer(size_bytes, max(10, effort.repeats))))
        case Steady(point):
            return SteadyResult(bench.steady(point, effort.steady_s))


def _together(bench: Bench, points: Sequence[Point], effort: Effort, guess: ForwardGuess) -> TogetherResult:
    """Alone just before, then at once: a device that drifts slows both."""
    alone_s = {}
    for point in dict.fromkeys(points):
        loop = bench.solo(point, 1, 3, alone_duration_s(point, effort, guess))
        alone_s[point] = float(np.mean(loop.repeats_s))
    shared = bench.together(points, together_duration_s(points, effort, guess))
    return TogetherResult(
        tuple(alone_s[point] for point in points),
        tuple(member.elapsed_s / member.completed if member.completed else 0.0 for member in shared),
    )


def _hold(bench: Bench, segment: int, width: float) -> HoldResult:
    loads_s, unloads_s, vram_bytes = [], [], 0
    for instance in range(LOADS):
        load_s, vram_bytes = bench.load(instance, segment, width, instance == 0)
        loads_s.append(load_s)
        unloads_s.append(bench.unload(instance))
    return HoldResult(tuple(loads_s), tuple(unloads_s), vram_bytes)


def _corners(keys: Sequence[Key]) -> list[tuple[int, float]]:
    """For each segment its narrowest and its widest width."""
    found = []
    for segment in sorted({key[0] for key in keys}):
        widths = [width for s, width, _ in keys if s == segment]
        found += sorted({(segment, min(widths)), (segment, max(widths))})
    return found
