"""Measuring does what is required, then rounds while the budget holds them; it resumes where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrate.calibration_log import Log
from calibrate.measurement_bench import LoadResult
from calibrate.measurement_plan import CalibrationPlan, Extras, InstancePoints, full_grid, make_plan
from calibrate.plan_execution import CalibrationProgress, Measurements, measure, undisturbed
from hw.transport.messages import Point
from tests.calibrate.fake import LIMIT, FakeBench, all_keys

INSTANCES = len({key[:2] for key in all_keys()})
PLENTY_S = 1000.0


def session(
    bench: FakeBench, path: Path, budget_s: float, seen: list[CalibrationProgress] | None = None
) -> tuple[CalibrationPlan, Measurements]:
    with Log(path, {"device": "fake"}) as log:
        rng = np.random.default_rng(0)
        plan = make_plan("cpu", all_keys(), full_grid(LIMIT), Extras(True, True), FakeBench().truth_s, rng)
        notice = (seen if seen is not None else []).append
        return plan, measure(bench, plan, log, budget_s, bench.clock, notice)


def rounds_in(measured: Measurements) -> float:
    """The number of rounds over all instances."""
    return sum(isinstance(step, InstancePoints) and bool(step.points) for step, _ in measured.measurements) / INSTANCES


def test_session_with_enough_budget_completes_all_rounds_in_time(tmp_path: Path) -> None:
    """No step is omitted, and each instance that was loaded for timing is unloaded."""
    bench = FakeBench()
    plan, measured = session(bench, tmp_path / "log", PLENTY_S)
    assert [step for step, _ in measured.measurements] == [planned.step for planned in plan.steps]
    assert measured.omitted == ()
    assert bench.held == {}
    assert bench.now_ns <= PLENTY_S * 1e9


@pytest.mark.parametrize("slowness", [1.0, 5.0])
def test_a_budget_decides_on_the_number_of_rounds(tmp_path: Path, slowness: float) -> None:
    """It is kept, also by a device that is slower than guessed; at least one round is done, and it is said how many."""
    found = []
    for budget_s in (0.0, 60.0, 120.0):
        bench = FakeBench(slowness=slowness)
        plan, measured = session(bench, tmp_path / str(budget_s), budget_s)
        required = sum(planned.required for planned in plan.steps)
        assert bench.now_ns <= 1.05 * budget_s * 1e9 or len(measured.measurements) == required
        done, further = len(measured.measurements) - required, len(plan.steps) - required
        assert measured.omitted == ((f"further rounds: {done} of {further} steps",) if done < further else ())
        found.append(rounds_in(measured))
    assert found[0] == 1
    assert found == sorted(found)
    assert found[-1] > 1


def test_a_kill_loses_one_step(tmp_path: Path) -> None:
    """Killed and resumed again and again, nothing finished is measured twice, and the result is whole."""
    undisturbed_bench = FakeBench()
    _, whole = session(undisturbed_bench, tmp_path / "whole", 60.0)
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
    largest_step = len(full_grid(LIMIT)) * 2 + 1
    assert asked <= len(undisturbed_bench.asked) + kills * largest_step


def test_progress_counts_up_and_time_left_stays_within_the_budget(tmp_path: Path) -> None:
    """The callback sees each step before it starts, and the end; what is required takes its time all the same."""
    for budget_s in (PLENTY_S, 0.0):
        seen: list[CalibrationProgress] = []
        plan, measured = session(FakeBench(), tmp_path / str(budget_s), budget_s, seen)
        assert [progress.done for progress in seen] == list(range(len(measured.measurements) + 1))
        assert {progress.total for progress in seen} == {len(plan.steps)}
        assert seen[0].left_s > seen[-2].left_s > seen[-1].left_s == 0
        assert budget_s == 0 or seen[0].left_s <= budget_s


def test_sets_last_until_the_slowest_member_has_finished_several(tmp_path: Path) -> None:
    asked: list[tuple[tuple[Point, ...], float]] = []

    class Asked(FakeBench):
        def together(self, points, duration_s, *, across=False):  # type: ignore[no-untyped-def]
            asked.append((points, duration_s))
            return super().together(points, duration_s, across=across)

    bench = Asked()
    session(bench, tmp_path / "log", 0.0)
    assert len(asked) == 12
    for points, duration_s in asked:
        assert duration_s >= 3 * len(points) * max(map(bench.truth_s, points))


@pytest.mark.parametrize(("shares", "kept"), [((0.0, 0.5, 0.01), 2), ((0.5, 0.2), 1)])
def test_rounds_that_others_disturbed_count_only_without_better_ones(
    tmp_path: Path, shares: tuple[float, ...], kept: int
) -> None:
    loops = []
    for share in shares:
        bench = FakeBench(background_share=share)
        _, measured = session(bench, tmp_path / str(share), 0.0)
        loops += [
            result.loops[0] for _, result in measured.measurements if isinstance(result, LoadResult) and result.loops
        ][:1]
    found = undisturbed(loops)
    assert len(found) == kept
    assert max(loop.disturbed_share for loop in found) <= min(max(0.03, min(shares)), max(shares))
