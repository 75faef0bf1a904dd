"""Measuring keeps to its budget, resumes where it stopped, and says what it dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrate.bench import Loop, SoloResult
from calibrate.log import Log
from calibrate.measure import DISTURBED, CalibrationProgress, Measurements, _retried, measure, perform, scout
from calibrate.plan import (
    LAVISH,
    LEAST,
    CalibrationPlan,
    Extras,
    LoadCycle,
    Solo,
    estimate_s,
    make_plan,
)
from calibrate.samples import Samples
from hw.transport.messages import Point
from tests.calibrate.fake import LIMIT, SLOW_FACTOR, FakeBench, all_keys


def session(
    bench: FakeBench,
    path: Path,
    budget_s: float,
    seen: list[CalibrationProgress] | None = None,
) -> tuple[CalibrationPlan, Measurements]:
    with Log(path, {"device": "fake"}) as log:
        scouted = scout(bench, all_keys(), LIMIT, log, bench.clock, budget_s)
        guess = scouted.guess_s
        rng = np.random.default_rng(0)
        plan = make_plan(all_keys(), LIMIT, budget_s, guess, Extras(True, True, True), rng)
        notice = (seen if seen is not None else []).append
        return plan, measure(bench, plan, guess, log, budget_s, bench.clock, notice, scouted.slowdown)


def covered(measured: Measurements) -> set[tuple[int, float, float]]:
    return {step.point.key for step, _ in measured.measurements if isinstance(step, Solo) and not step.held_out}


def test_all_steps_are_done_in_time(tmp_path: Path) -> None:
    """With an honest guess the whole plan fits, and nothing is said to be dropped."""
    bench = FakeBench()
    plan, measured = session(bench, tmp_path / "log", 120.0)
    assert len(measured.measurements) >= len(plan.steps)
    assert measured.omitted == ()
    assert bench.now_ns <= 120.0e9


def test_a_kill_loses_one_point(tmp_path: Path) -> None:
    """Killed and resumed again and again, nothing finished is measured twice, and the result is whole."""
    undisturbed = FakeBench()
    _, whole = session(undisturbed, tmp_path / "whole", 60.0)
    asked, kills = 0, 0
    while True:
        bench = FakeBench(dies_after=40)
        try:
            _, measured = session(bench, tmp_path / "log", 60.0)
            break
        except KeyboardInterrupt:
            asked, kills = asked + len(bench.asked), kills + 1
    asked += len(bench.asked)
    assert kills > 1
    assert [step for step, _ in measured.measurements] == [step for step, _ in whole.measurements]
    largest_step = 9  # a set of four: each alone, then together, and the call that died
    assert asked <= len(undisturbed.asked) + kills * largest_step


def test_a_late_measurement_hurries_and_stops(tmp_path: Path) -> None:
    """A device ten times slower than guessed: every key is covered in a hurry, optional rounds are dropped."""
    bench = FakeBench()
    with Log(tmp_path / "log", {}) as log:
        guess = scout(bench, all_keys(), LIMIT, log, bench.clock).guess_s
        plan = make_plan(all_keys(), LIMIT, 300.0, guess, Extras(False, False), np.random.default_rng(0))
        assert plan.effort.rounds > 1
        bench.slowness = 10.0
        measured = measure(bench, plan, guess, log, 300.0, bench.clock)
    assert covered(measured) == set(all_keys())
    assert any(words.startswith("time ran out: ") for words in measured.omitted)
    assert any(words.startswith("late: ") for words in measured.omitted)
    assert bench.now_ns < 1.3 * 300e9  # ten times the first round alone would be twice that


def test_an_impossible_budget_still_covers_what_is_required(tmp_path: Path) -> None:
    """No budget at all: every key and every instance, nothing more."""
    seen: list[CalibrationProgress] = []
    plan, measured = session(FakeBench(), tmp_path / "log", 0.0, seen)
    assert seen[0].left_s > seen[-2].left_s > 0, "what is required takes its time all the same"
    assert "batch sizes 4, 16 at some keys or all" in measured.omitted
    assert covered(measured) == set(all_keys())
    held = {(step.segment, step.width) for step, _ in measured.measurements if isinstance(step, LoadCycle)}
    assert held == {key[:2] for key in all_keys()}
    assert len(measured.measurements) == sum(planned.required for planned in plan.steps)


def test_time_that_is_left_goes_to_more_batch_sizes(tmp_path: Path) -> None:
    """What a small budget gave up is measured after all where the device is quicker than guessed."""
    plan, measured = session(FakeBench(slowness=0.2), tmp_path / "log", 30.0)
    assert len(plan.batches) < len(plan.grid)
    done = {step.point.batch for step, _ in measured.measurements if isinstance(step, Solo) and not step.held_out}
    assert done == set(plan.grid)
    assert not any(words.startswith("batch sizes") for words in measured.omitted)


def test_progress_counts_up_and_time_left_stays_within_the_budget(tmp_path: Path) -> None:
    """The callback sees each step before it starts, and the end."""
    seen: list[CalibrationProgress] = []
    plan, _ = session(FakeBench(), tmp_path / "log", 60.0, seen)
    assert [progress.done for progress in seen] == list(range(len(plan.steps) + 1))
    assert {progress.total for progress in seen} == {len(plan.steps)}
    assert all(0 <= progress.left_s <= 60.0 for progress in seen)
    assert seen[-1].left_s < seen[0].left_s


def test_points_whose_rounds_differ_are_measured_again(tmp_path: Path) -> None:
    """On a noisy device with time left there are more rounds than planned; on a steady one there are not."""
    seen: list[CalibrationProgress] = []
    plan, noisy = session(FakeBench(jitter=0.3), tmp_path / "noisy", 600.0, seen)
    assert len(noisy.measurements) > len(plan.steps)
    assert [progress.done for progress in seen] == list(range(len(noisy.measurements) + 1))  # none of it is silent
    assert seen[-1].total >= len(noisy.measurements)
    plan, steady = session(FakeBench(), tmp_path / "steady", 600.0)
    assert len(steady.measurements) == len(plan.steps)


def test_instances_are_let_go(tmp_path: Path) -> None:
    """What is loaded to be timed is unloaded."""
    bench = FakeBench()
    session(bench, tmp_path / "log", 10.0)
    assert bench.held == {}


def test_the_guess_follows_batch_and_width(tmp_path: Path) -> None:
    """Scouting the corners guesses the points between to a factor of two."""
    bench = FakeBench()
    with Log(tmp_path / "log", {}) as log:
        guess = scout(bench, all_keys(), LIMIT, log, bench.clock).guess_s
        for step in (
            p.step
            for p in make_plan(all_keys(), LIMIT, 1e4, guess, Extras(False, False), np.random.default_rng(0)).steps
        ):
            if isinstance(step, Solo):
                assert guess(step.point) == pytest.approx(bench.truth_s(step.point), rel=1.1)


class Bursts(FakeBench):
    """Another program has a fifth of the device every other time that it is asked for a solo point."""

    def solo(self, point: Point, warmup: int, repeats: int, min_s: float, *, paused: bool = True) -> Loop:
        self.background_share = 0.2 - self.background_share
        return super().solo(point, warmup, repeats, min_s, paused=paused)


def test_what_others_disturb_is_measured_again_at_once(tmp_path: Path) -> None:
    """A burst costs a second look and leaves no trace in the result; a lasting one is kept and flagged."""
    _, bursts = session(Bursts(), tmp_path / "bursts", 60.0)
    solos = [result for _, result in bursts.measurements if isinstance(result, SoloResult)]
    assert {result.disturbed_share for result in solos} == {0.0}
    assert 2 in {result.tries for result in solos} <= {1, 2}
    _, lasting = session(FakeBench(background_share=0.2), tmp_path / "lasting", 60.0)
    results = [result for _, result in lasting.measurements if isinstance(result, SoloResult)]
    assert {result.tries for result in results} == {LAVISH.tries, LEAST.tries}  # it makes the last ones late
    assert all(result.disturbance > DISTURBED for result in results)


def test_a_slow_device_is_asked_again_for_its_full_speed(tmp_path: Path) -> None:
    """Points that found none are tried again; the repeats at full speed are kept apart from the others."""
    bench = FakeBench(slow_share=0.7)
    _, found = session(bench, tmp_path / "log", 200.0)
    solos = [(step.point, r) for step, r in found.measurements if isinstance(step, Solo) and isinstance(r, SoloResult)]
    kept = [(point, result) for point, result in solos if not result.is_slow]
    assert len(kept) > 0.8 * len(solos)
    assert any(result.tries > 1 for _, result in kept)
    for point, result in kept:
        assert max(result.samples.values) == pytest.approx(bench.truth_s(point))
        assert result.slow is None or min(result.slow.values) == pytest.approx(SLOW_FACTOR * bench.truth_s(point))


@pytest.mark.parametrize(("background_share", "is_slow", "tries"), [(0.0, False, 1), (0.5, False, 5), (0.0, True, 2)])
def test_a_slow_spell_is_waited_for_half_as_often_as_other_programs(
    background_share: float, is_slow: bool, tries: int
) -> None:
    """It outlasts most tries, and what it does is known."""
    attempts: list[int] = []

    def attempt() -> SoloResult:
        attempts.append(1)
        return SoloResult(Samples.of([1.0]), 1.0, 1.0, is_slow=is_slow, disturbed_share=background_share)

    assert _retried(attempt, 5).tries == len(attempts) == tries


def test_further_rounds_that_did_not_fit_are_no_failure(tmp_path: Path) -> None:
    """All planned rounds were done, and a part of what fills the time: that is said as such; time did not run out."""
    bench = FakeBench()
    with Log(tmp_path / "log", {}) as log:
        guess = scout(bench, all_keys(), LIMIT, log, bench.clock).guess_s
        plan = make_plan(all_keys(), LIMIT, 150.0, guess, Extras(False, False), np.random.default_rng(0))
        last = max(2, plan.effort.rounds)
        further = sum(planned.round > last for planned in plan.steps)
        planned_s = sum(planned.estimated_s for planned in plan.steps if planned.round <= last)
        assert further > 10
        budget_s = log.spent_s + planned_s + 0.5 * (plan.estimated_s - planned_s)
        measured = measure(bench, plan, guess, log, budget_s, bench.clock)
    (words,) = [words for words in measured.omitted if words.startswith("further rounds: ")]
    done = len(measured.measurements) - (len(plan.steps) - further)
    assert words == f"further rounds: {done} of {further} steps"
    assert 0 < done < further
    assert not any(words.startswith("time ran out") for words in measured.omitted)


@pytest.mark.parametrize("forward_s, fewest", [(1e-4, 50), (1e-3, 5), (1.0, 1)])
def test_quick_passes_are_warmed_up_for_longer(forward_s: float, fewest: int) -> None:
    """By time, not by number: the caches of a quick pass are cold for as long; a guess counts it."""
    asked = []

    class Warmed(FakeBench):
        def solo(self, point: Point, warmup: int, repeats: int, min_s: float, *, paused: bool = True) -> Loop:
            asked.append(warmup)
            return super().solo(point, warmup, repeats, min_s, paused=paused)

    step = Solo(Point(1, 1.0, 0.0, 1))
    perform(Warmed(), step, LEAST, lambda _: forward_s)
    assert asked == [fewest]
    assert estimate_s(step, LEAST, lambda _: forward_s) >= (fewest + LEAST.repeats) * forward_s
    perform(Warmed(), step, LAVISH, lambda _: forward_s)
    assert asked[1] == max(fewest, LAVISH.warmup)
