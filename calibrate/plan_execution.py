"""Execution of a plan on a device: step by step, into the log, until the budget holds no further round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from calibrate.calibration_log import Log
from calibrate.measurement_bench import (
    Bench,
    BesideLoadResult,
    LoadResult,
    Loop,
    PathsResult,
    Result,
    SteadyResult,
    TimesResult,
    TogetherResult,
    WatchResult,
    look,
)
from calibrate.measurement_plan import (
    ALONE_SHARE,
    WATCH_S,
    BesideLoad,
    CalibrationPlan,
    Dispatch,
    Effort,
    InstancePoints,
    Paths,
    PlannedStep,
    Steady,
    Step,
    Together,
    Transfer,
    Watch,
    describe,
    together_s,
)
from hw.transport.messages import Point
from policies.vocabulary import NS_PER_S

DISTURBED = 0.03  # share that others took, above which a round counts only without a better one
MIN_TIMES = 10  # of a dispatch or a transfer
TELLING_S = 1.0  # of finished steps, to judge how far estimates are off


@dataclass(frozen=True, slots=True)
class CalibrationProgress:
    """Progress of a calibration; `left_s` estimates the remaining budget, or more if points are required."""

    done: int
    total: int
    left_s: float
    step: str


Measurement = tuple[Step, Result]
Disturbable = TypeVar("Disturbable", Loop, TogetherResult)
Clock = Callable[[], int]  # monotonic nanoseconds


@dataclass(frozen=True, slots=True)
class Measurements:
    """All finished steps, and descriptions of what a lack of time left out."""

    measurements: tuple[Measurement, ...]
    omitted: tuple[str, ...]


def measure(
    bench: Bench,
    plan: CalibrationPlan,
    log: Log,
    budget_s: float,
    clock: Clock,
    on_progress: Callable[[CalibrationProgress], None] = lambda _: None,
) -> Measurements:
    """Execute steps that the log lacks: all that are required, and others while the budget holds them.

    The time of earlier sessions counts.
    """
    measurements: list[Measurement] = []
    further = sum(not planned.required for planned in plan.steps)
    skipped, done_s = 0, 0.0
    for index, planned in enumerate(plan.steps):
        slowness = log.spent_s / done_s if done_s > TELLING_S else 1.0
        budget_left_s = budget_s - log.spent_s
        if planned.id not in log.results:
            if not planned.required and slowness * planned.estimated_s > budget_left_s:
                skipped += 1
                continue
            remaining = plan.steps[index:]
            needed_s = slowness * sum(each.estimated_s for each in remaining if each.required)
            left_s = max(0.0, needed_s, min(budget_left_s, slowness * sum(each.estimated_s for each in remaining)))
            on_progress(CalibrationProgress(len(measurements), len(plan.steps), left_s, describe(planned.step)))
        measurements.append((planned.step, once(bench, planned, plan.effort, log, clock)))
        done_s += planned.estimated_s
    on_progress(CalibrationProgress(len(measurements), len(plan.steps), 0.0, describe(plan.steps[-1].step)))
    omitted = (f"further rounds: {further - skipped} of {further} steps",) if skipped else ()
    return Measurements(tuple(measurements), omitted)


def once(bench: Bench, planned: PlannedStep, effort: Effort, log: Log, clock: Clock) -> Result:
    """Return a step's result: from the log, or measured now and logged."""
    if planned.id not in log.results:
        began_ns = clock()
        result = perform(bench, planned.step, effort)
        log.append(planned.id, (clock() - began_ns) / NS_PER_S, result)
    return log.results[planned.id]


def perform(bench: Bench, step: Step, effort: Effort) -> Result:
    """Measure one step."""
    number = max(MIN_TIMES, effort.repeats)
    match step:
        case InstancePoints(segment, width, points, from_disk):
            load_s, vram_bytes = bench.load(0, segment, width, from_disk)
            loops, captured = bench.points(0, points, effort.warmup, effort.repeats, effort.min_s)
            return LoadResult(load_s, bench.unload(0), vram_bytes, tuple(loops), captured)
        case Together(points, across=across):
            return _together(bench, points, across, effort)
        case Watch(point):
            loop = bench.solo(point, effort.warmup, effort.repeats, WATCH_S, paused=False)
            return WatchResult(look(loop.repeats_s, loop.references_s))
        case Paths(paths):
            return PathsResult(tuple(bench.paths(paths, effort.repeats)))
        case BesideLoad(point, segment, width):
            return BesideLoadResult(*bench.beside_load(point, segment, width))
        case Dispatch(point):
            return TimesResult(tuple(bench.dispatch(point, number)))
        case Transfer(size_bytes):
            return TimesResult(tuple(bench.transfer(size_bytes, number)))
        case Steady(point, duration_s=duration_s, duty=duty):
            return SteadyResult(bench.steady(point, duration_s, duty))


def _together(bench: Bench, points: Sequence[Point], across: bool, effort: Effort) -> TogetherResult:
    """Measure alone just before, then at once: a device that drifts slows both. Neither has pauses."""
    alone = {
        point: bench.solo(point, 1, 3, ALONE_SHARE * effort.together_s, paused=False) for point in dict.fromkeys(points)
    }
    medians_s = [float(np.median(alone[point].repeats_s)) for point in points]
    shared = bench.together(points, together_s(effort, medians_s), across=across)
    is_gpu = any(member.median_s for member in shared.members)  # its medians ignore stalls of the host
    return TogetherResult(
        alone_s=tuple(medians_s if is_gpu else [float(np.mean(alone[point].repeats_s)) for point in points]),
        together_s=tuple(
            member.median_s or (member.elapsed_s / member.completed if member.completed else 0.0)
            for member in shared.members
        ),
        alone_reference_s=tuple(float(np.mean(alone[point].references_s or [0.0])) for point in points),
        together_reference_s=tuple(member.reference_s for member in shared.members),
        disturbed_share=max(shared.background_share, *(loop.disturbed_share for loop in alone.values())),
    )


def undisturbed(rounds: Sequence[Disturbable]) -> Sequence[Disturbable]:
    """Return rounds that other programs hardly disturbed; if there is none, the least disturbed."""
    valid = [result for result in rounds if result.disturbed_share <= DISTURBED]
    return valid or sorted(rounds, key=lambda result: result.disturbed_share)[:1]
