"""Execution of a plan on a device: step by step, into the log, within the budget.

It decides when to stop and when to reduce effort; `calibrate.plan` decides what to measure, and `calibrate.fit`
evaluates it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from calibrate.bench import (
    Bench,
    BesideLoadResult,
    LoadCycleResult,
    Loop,
    PathsResult,
    Result,
    SoloResult,
    SteadyResult,
    TimesResult,
    TogetherResult,
    WatchResult,
)
from calibrate.costs import Key
from calibrate.log import Log
from calibrate.plan import (
    LEAST,
    STEP_OVERHEAD_S,
    BesideLoad,
    CalibrationPlan,
    Dispatch,
    ForwardGuess,
    InstancePoints,
    LoadCycle,
    Paths,
    PlannedStep,
    ScoutedCurve,
    Solo,
    Steady,
    Step,
    StepEffort,
    Together,
    Transfer,
    Watch,
    alone_duration_s,
    describe,
    scouted_batches,
    together_duration_s,
    warmup_passes,
)
from calibrate.samples import Samples
from calibrate.slowdown import BEST_SHARE, SLACK, UNSEEN, SlowdownLook, at_full_speed, look
from hw.transport.messages import Point
from policies.vocabulary import NS_PER_S

UNSTEADY = 0.03  # remeasure a point whose rounds differ by more while time is left
DISTURBED = 0.03  # remeasure a step at once if other programs took more
MIN_AT_FULL_SPEED = 4  # repeats
FULL_SHARE = 0.1  # of a loop of back-to-back passes: fewer at full speed are not significant
WATCH_SHARE, WATCH_S = 0.01, (1.5, 15.0)  # share of the budget for the device's slowdown; at least and at most
LOADS = 3  # of an instance: from disk, then from host memory
MAX_ROUNDS = 6
SCOUT_SHARE = 0.1  # share of the budget for whole curves
SCOUTING = replace(LEAST, warmup=2, repeats=8, min_s=0.006)  # longer than a time slice of another process


@dataclass(frozen=True, slots=True)
class CalibrationProgress:
    """Progress of a calibration; `left_s` estimates the remaining budget, or more if points are required."""

    done: int
    total: int
    left_s: float
    step: str


Measurement = tuple[Step, Result]
Disturbable = TypeVar("Disturbable", SoloResult, TogetherResult)
Clock = Callable[[], int]  # monotonic nanoseconds


@dataclass(frozen=True, slots=True)
class Measurements:
    """All finished steps, in no particular order, and descriptions of what a lack of time left out."""

    measurements: tuple[Measurement, ...]
    omitted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scouted:
    """A survey of a device: a guess of every point's forward time, and whole curves if they were cheap.

    Attributes:
        corners: for each surveyed (segment, width), seconds by batch size.
        curves: curves of those surveyed at every scouted batch size.
        slowdown: variation of the device's own speed.
    """

    corners: Mapping[tuple[int, float], Mapping[int, float]]
    curves: tuple[ScoutedCurve, ...]
    slowdown: SlowdownLook

    def guess_s(self, point: Point) -> float:
        """Interpolate linearly in the batch and in the width between the segment's measurements."""
        seen = sorted((width, curve) for (segment, width), curve in self.corners.items() if segment == point.segment)
        at_widths = [np.interp(point.batch, sorted(curve), [curve[b] for b in sorted(curve)]) for _, curve in seen]
        return float(np.interp(point.width, [width for width, _ in seen], at_widths))


def scout(
    bench: Bench, keys: Sequence[Key], batch_limit: int, log: Log, clock: Clock, budget_s: float = 0.0
) -> Scouted:
    """Measure the narrowest and the widest of each segment at both ends; more batch sizes while it is cheap.

    All of it is logged, and each choice follows from earlier results alone: a resumed plan is the same plan.
    """

    watched = PlannedStep(Watch(Point(*min(keys), 1)), 0, True, 0.0)
    watching = replace(SCOUTING, min_s=min(max(WATCH_S[0], WATCH_SHARE * budget_s), WATCH_S[1]))
    seen = Station(bench, log, clock, lambda _: 0.0, UNSEEN).once(watched, watching)
    assert isinstance(seen, WatchResult)
    station = Station(bench, log, clock, lambda _: 0.0, seen.slowdown)

    def look(segment: int, width: float, batch: int) -> float:
        previous = max(p for s, w, p in keys if (s, w) == (segment, width))
        planned = PlannedStep(Solo(Point(segment, width, previous, batch)), 0, True, 0.0)
        result = station.once(planned, SCOUTING)
        assert isinstance(result, SoloResult)
        return result.samples.values[0]  # the least: haste and a busy machine only add time

    corners = {corner: {b: look(*corner, b) for b in sorted({1, batch_limit})} for corner in _corners(keys)}
    sizes, left_s = scouted_batches(batch_limit), SCOUT_SHARE * budget_s
    curves = []
    for corner, ends in corners.items():
        forward_s = [max(ends.values()) * size / batch_limit for size in sizes]
        left_s -= sum(STEP_OVERHEAD_S + SCOUTING.min_s + SCOUTING.repeats * one_s for one_s in forward_s)
        if left_s < 0:
            break
        ends |= {size: look(*corner, size) for size in sizes if size not in ends}
        curves.append(dict(ends))
    return Scouted(corners, tuple(curves), seen.slowdown)


def measure(
    bench: Bench,
    plan: CalibrationPlan,
    guess: ForwardGuess,
    log: Log,
    budget_s: float,
    clock: Clock,
    on_progress: Callable[[CalibrationProgress], None] = lambda _: None,
    slowdown_seen: SlowdownLook = UNSEEN,
) -> Measurements:
    """Execute steps that the log lacks, until all are done or the budget is spent.

    Required steps are always done, with the least effort once they are late; the others stop with the budget. The time
    of earlier sessions counts. Spare steps come last, in the plan's order.
    """
    station = Station(bench, log, clock, guess, slowdown_seen)
    budget = _Budget(plan.steps, log, budget_s)
    measurements: list[Measurement] = []
    fixed = [planned for planned in plan.steps if not planned.is_spare]
    spare = [planned for planned in plan.steps if planned.is_spare]
    for planned in itertools.chain(fixed, plan.order(spare, lambda: measurements)):
        is_logged = planned.id in log.results
        if not is_logged:
            if not planned.required and budget.spent_up(planned):
                budget.skipped(planned)
                continue
            on_progress(budget.progress(planned))
        result = station.once(planned, _hurry(plan) if budget.late() else plan.effort)
        budget.done(planned, now=not is_logged)
        measurements.append((planned.step, result))
    hurried = sum(_is_hurried(result, plan.effort) for _, result in measurements)
    dropped = list(budget.words(plan.effort.rounds, hurried))
    measurements += _again(station, plan, budget, on_progress)
    if measurements:
        on_progress(budget.progress(plan.steps[-1]))  # with the last one done
    words = [*_batches_left_out(plan, measurements), *dropped]
    return Measurements(tuple(measurements), tuple(words))


def _batches_left_out(plan: CalibrationPlan, measurements: Sequence[Measurement]) -> Iterator[str]:
    points = [step.point for step, _ in measurements if isinstance(step, Solo)]
    keys = {point.key for point in points}
    seen = {batch: {point.key for point in points if point.batch == batch} for batch in sorted(plan.grid)}
    missing = [str(batch) for batch, keys_seen in seen.items() if keys_seen != keys]
    if missing:
        yield f"batch sizes {', '.join(missing)} at some keys or all"


class _Budget:
    def __init__(self, steps: Sequence[PlannedStep], log: Log, budget_s: float) -> None:
        self._log = log
        self._budget_s = budget_s
        self._count = 0
        self._total = len(steps)
        self._steps = tuple(steps)
        self._skipped: list[PlannedStep] = []
        self._left_s = sum(planned.estimated_s for planned in steps)
        self._required_s = sum(planned.estimated_s for planned in steps if planned.required)
        self._estimated_done_s = 0.0
        self._measured = 0
        self._spent_before_s = log.spent_s

    def more(self, steps: Sequence[PlannedStep]) -> None:
        """Add steps that were not planned."""
        self._total += len(steps)
        self._left_s += sum(planned.estimated_s for planned in steps)

    def skipped(self, planned: PlannedStep) -> None:
        self._left_s -= planned.estimated_s
        self._skipped.append(planned)

    def done(self, planned: PlannedStep, *, now: bool = True) -> None:
        """Count a finished step; `now`: measured in this session, so it informs the speed estimate."""
        self._count += 1
        self._left_s -= planned.estimated_s
        if planned.required:
            self._required_s -= planned.estimated_s
        if now:
            self._estimated_done_s += planned.estimated_s
            self._measured += 1

    @property
    def _budget_left_s(self) -> float:
        return self._budget_s - self._log.spent_s

    @property
    def _slowness(self) -> float:
        """Real seconds per estimated one so far; the first few steps are not representative."""
        if self._measured < 10 or self._estimated_done_s == 0:
            return 1.0
        return max(1.0, (self._log.spent_s - self._spent_before_s) / self._estimated_done_s)

    def spent_up(self, planned: PlannedStep) -> bool:
        return planned.estimated_s * self._slowness > self._budget_left_s

    def late(self) -> bool:
        return self._required_s * self._slowness > self._budget_left_s

    def progress(self, planned: PlannedStep) -> CalibrationProgress:
        in_time_s = min(self._left_s * self._slowness, self._budget_left_s)
        left_s = max(0.0, in_time_s, self._required_s * self._slowness)
        return CalibrationProgress(self._count, self._total, left_s, describe(planned.step))

    def words(self, rounds: int, hurried: int) -> Iterator[str]:
        """Describe omissions from the planned rounds, and from further ones, which fill the remaining time.

        Batch sizes that were given up are reported elsewhere.
        """
        last = max(2, rounds)  # after a single round some points are visited a second time

        def left_out(wanted: Callable[[PlannedStep], bool]) -> tuple[int, int]:
            return sum(map(wanted, self._skipped)), sum(map(wanted, self._steps))

        missed, total = left_out(lambda planned: planned.required or 1 < planned.round <= last)
        if missed:
            yield f"time ran out: {missed} of {total} steps"
        missed, total = left_out(lambda planned: planned.round > last)
        if missed:
            yield f"further rounds: {total - missed} of {total} steps"
        if hurried:
            yield f"late: {hurried} points have fewer repeats than planned"


def _again(
    station: Station, plan: CalibrationPlan, budget: _Budget, on_progress: Callable[[CalibrationProgress], None]
) -> Iterator[Measurement]:
    """Repeat points whose rounds differ or were disturbed, the worst first, while time is left."""
    for number in range(max(planned.round for planned in plan.steps) + 1, MAX_ROUNDS + 1):
        unsteady = _unsteady(plan, station.log, number)
        budget.more(unsteady)
        for planned in unsteady:
            if planned.id not in station.log.results:
                if budget.spent_up(planned):
                    return
                on_progress(budget.progress(planned))
            is_logged = planned.id in station.log.results
            yield planned.step, station.once(planned, plan.effort)
            budget.done(planned, now=not is_logged)


def _unsteady(plan: CalibrationPlan, log: Log, number: int) -> list[PlannedStep]:
    unsteady: list[tuple[float, PlannedStep]] = []
    for planned in plan.steps:
        if planned.round != 1 or not isinstance(planned.step, Solo | Together):
            continue
        rounds = [replace(planned, round=earlier).id for earlier in range(1, number)]
        logged = [log.results[name] for name in rounds if name in log.results]
        sets = undisturbed([result for result in logged if isinstance(result, TogetherResult)])
        if sets and sets[0].disturbance > DISTURBED:
            unsteady.append((1 + sets[0].disturbance, replace(planned, round=number)))
        results = undisturbed([result for result in logged if isinstance(result, SoloResult)])
        medians = [float(np.median(result.samples.values)) for result in results]
        apart = max(medians) / min(medians) - 1 + max(result.disturbance for result in results) if results else 0.0
        apart += all(_is_hurried(result, plan.effort) for result in results) if results else 0.0
        if apart > UNSTEADY:
            unsteady.append((apart, replace(planned, round=number)))
    return [planned for _, planned in sorted(unsteady, key=lambda item: -item[0])]


def _is_hurried(result: Result, effort: StepEffort) -> bool:
    """Return whether a solo point has fewer repeats than planned, for lack of time or from a smaller budget."""
    if not isinstance(result, SoloResult):
        return False
    return max(result.passes / result.tries, result.samples.count) < effort.repeats


def _hurry(plan: CalibrationPlan) -> StepEffort:
    names = ("warmup", "repeats", "min_s", "together_s", "steady_s", "tries")
    return replace(plan.effort, **{name: getattr(plan.late_effort, name) for name in names})


@dataclass(slots=True)
class Station:
    """Environment of steps: a bench, its log and clock, a guess of its speed, and its variation.

    A first look during a slow spell mistakes it for full speed, which is corrected as soon as a faster reference
    occurs.
    """

    bench: Bench
    log: Log
    clock: Clock
    guess: ForwardGuess
    slowdown: SlowdownLook

    def once(self, planned: PlannedStep, effort: StepEffort) -> Result:
        """Return the step's result: from the log, or measured now and logged."""
        result = self.log.results.get(planned.id)
        if result is None:
            started_ns = self.clock()
            result = perform(self.bench, planned.step, effort, self.guess, self.slowdown)
            self.log.append(planned.id, (self.clock() - started_ns) / NS_PER_S, result)
        if isinstance(result, SoloResult) and 0 < SLACK * result.least_reference_s < self.slowdown.best_s:
            self.slowdown = replace(self.slowdown, best_s=result.least_reference_s, full_s=result.least_reference_s)
        return result


def perform(
    bench: Bench, step: Step, effort: StepEffort, guess: ForwardGuess, slowdown: SlowdownLook = UNSEEN
) -> Result:
    """Measure one step on a device whose own speed varies like this."""
    match step:
        case Solo(point):
            return _retried(lambda: _solo(bench, point, effort, guess(point), slowdown.best_s), effort.tries)
        case Together(points, across=across):
            return _retried(lambda: _together(bench, points, across, effort, guess, slowdown.best_s), effort.tries)
        case Watch(point):
            loop = bench.solo(point, effort.warmup, effort.repeats, effort.min_s, paused=False)
            return WatchResult(look(loop.repeats_s, loop.references_s))
        case LoadCycle(segment, width):
            return _hold(bench, segment, width)
        case InstancePoints():
            return _points(bench, step, effort)
        case Paths(paths):
            return PathsResult(tuple(bench.paths(paths, effort.repeats)))
        case BesideLoad(point, segment, width):
            return BesideLoadResult(*bench.beside_load(point, segment, width))
        case Dispatch(point):
            return TimesResult(Samples.of(bench.dispatch(point, max(10, effort.repeats))))
        case Transfer(size_bytes):
            return TimesResult(Samples.of(bench.transfer(size_bytes, max(10, effort.repeats))))
        case Steady(point, duty=duty):
            return SteadyResult(bench.steady(point, effort.steady_s, duty))


def _together(
    bench: Bench, points: Sequence[Point], across: bool, effort: StepEffort, guess: ForwardGuess, best_s: float
) -> TogetherResult:
    """Measure alone just before, then at once: a device that drifts slows both. Neither has pauses."""
    alone = {}
    for point in dict.fromkeys(points):
        alone[point] = bench.solo(point, 1, 3, alone_duration_s(point, effort, guess), paused=False)
    shared = bench.together(points, together_duration_s(points, effort, guess), across=across)
    if any(member.median_s for member in shared.members):  # a GPU: ignore a stall of its host
        means = {point: (float(np.median(loop.repeats_s)), 1.0) for point, loop in alone.items()}
    else:
        means = {point: _mean_alone(loop, best_s) for point, loop in alone.items()}
    return TogetherResult(
        alone_s=tuple(means[point][0] for point in points),
        together_s=tuple(
            member.median_s or (member.elapsed_s / member.completed if member.completed else 0.0)
            for member in shared.members
        ),
        alone_reference=tuple(means[point][1] for point in points),
        together_reference=tuple(
            member.reference_s / best_s if best_s and member.reference_s else 1.0 for member in shared.members
        ),
        is_slow=any(reference > 1.0 for _, reference in means.values()),
        disturbed_share=max(shared.background_share, *(loop.disturbed_share for loop in alone.values())),
    )


def _mean_alone(loop: Loop, best_s: float) -> tuple[float, float]:
    """Return mean seconds at full speed and 1.0; without any, of all repeats and their references' mean ratio."""
    if not best_s or not loop.references_s:
        return float(np.mean(loop.repeats_s)), 1.0
    is_full = at_full_speed(loop.references_s, best_s)
    if np.count_nonzero(is_full) >= max(MIN_AT_FULL_SPEED, FULL_SHARE * len(is_full)):
        return float(np.mean(np.asarray(loop.repeats_s)[is_full])), 1.0
    return float(np.mean(loop.repeats_s)), float(np.mean(loop.references_s)) / best_s


def undisturbed(results: Sequence[Disturbable]) -> Sequence[Disturbable]:
    """Return results that other programs hardly disturbed; if there is none, the least disturbed."""
    kept = [result for result in results if result.disturbance <= DISTURBED]
    return kept or sorted(results, key=lambda result: result.disturbance)[:1]


def _retried(attempt: Callable[[], Disturbable], most: int) -> Disturbable:
    """Retry while others take the device or a part of its speed; returns the least disturbed attempt.

    A slow spell outlasts most tries, and its effect is known: it is worth half the number.
    """
    tries = [attempt()]
    while tries[-1].disturbance > DISTURBED and len(tries) < most:
        if tries[-1].disturbed_share <= DISTURBED and len(tries) >= most // 2:
            break
        tries.append(attempt())
    best = replace(min(tries, key=lambda result: result.disturbance), tries=len(tries))
    if not isinstance(best, SoloResult):
        return best
    solos = [result for result in tries if isinstance(result, SoloResult)]
    return replace(best, passes=sum(s.passes for s in solos), slow_passes=sum(s.slow_passes for s in solos))


def _solo(bench: Bench, point: Point, effort: StepEffort, forward_s: float, best_s: float) -> SoloResult:
    loop = bench.solo(point, warmup_passes(effort, forward_s), effort.repeats, effort.min_s)
    if not best_s or not loop.references_s:
        return _as_it_is(loop)
    repeats_s, references_s = np.asarray(loop.repeats_s), np.asarray(loop.references_s)
    is_full = at_full_speed(loop.references_s, best_s)
    is_slow = np.count_nonzero(is_full) < min(MIN_AT_FULL_SPEED, (effort.repeats + 1) // 2)
    kept = ~is_full if is_slow else is_full
    return SoloResult(
        samples=Samples.of(repeats_s[kept].tolist()),
        wall_s=loop.wall_s,
        cpu_s=loop.cpu_s,
        slow=None if is_slow or is_full.all() else Samples.of(repeats_s[~is_full].tolist()),
        is_slow=bool(is_slow),
        passes=len(is_full),
        slow_passes=int(np.count_nonzero(~is_full)),
        reference_s=float(np.median(references_s[kept])),
        slow_reference_s=0.0 if is_slow or is_full.all() else float(np.median(references_s[~is_full])),
        least_reference_s=float(np.quantile(references_s, BEST_SHARE)),
        disturbed_share=loop.disturbed_share,
    )


def _as_it_is(loop: Loop) -> SoloResult:
    """Return a loop without references unchanged."""
    result = SoloResult(Samples.of(loop.repeats_s), loop.wall_s, loop.cpu_s, clock_mhz=loop.clock_mhz)
    return replace(result, disturbed_share=loop.disturbed_share)


def _points(bench: Bench, step: InstancePoints, effort: StepEffort) -> LoadCycleResult:
    load_s, vram_bytes = bench.load(0, step.segment, step.width, step.from_disk)
    loops, captured = bench.points(0, step.points, effort.warmup, effort.repeats)
    return LoadCycleResult((load_s,), (bench.unload(0),), vram_bytes, tuple(map(_as_it_is, loops)), captured)


def _hold(bench: Bench, segment: int, width: float) -> LoadCycleResult:
    loads_s, unloads_s = [], []
    vram_bytes = 0
    for instance in range(LOADS):
        load_s, vram_bytes = bench.load(instance, segment, width, instance == 0)
        loads_s.append(load_s)
        unloads_s.append(bench.unload(instance))
    return LoadCycleResult(tuple(loads_s), tuple(unloads_s), vram_bytes)


def _corners(keys: Sequence[Key]) -> list[tuple[int, float]]:
    """Return each segment's narrowest and widest width."""
    corners = []
    for segment in sorted({key[0] for key in keys}):
        widths = [width for s, width, _ in keys if s == segment]
        corners += sorted({(segment, min(widths)), (segment, max(widths))})
    return corners
