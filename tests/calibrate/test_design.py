"""Time that is left goes where the surface is least sure, and a resumed calibration chooses the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.design import LeastSure
from calibrate.log import Log
from calibrate.measure import Measurements, measure, scout
from calibrate.plan import CalibrationPlan, Extras, PlannedStep, Solo, make_plan
from calibrate.slowdown import Speed
from calibrate.surface import Surface
from hw.transport.messages import Point
from tests.calibrate.fake import LIMIT, FakeBench, all_keys, model_costs

BUDGET_S = 24.0


def session(bench: FakeBench, path: Path, budget_s: float = BUDGET_S) -> tuple[CalibrationPlan, Measurements]:
    with Log(path, {"device": "fake"}) as log:
        seen = scout(bench, all_keys(), LIMIT, log, bench.clock, budget_s)
        plan = make_plan(all_keys(), LIMIT, budget_s, seen.guess_s, Extras(False, False), np.random.default_rng(0))
        plan = replace(plan, order=LeastSure(model_costs().keys, Speed(0.0)))
        return plan, measure(bench, plan, seen.guess_s, log, budget_s, bench.clock)


def spare_points(plan: CalibrationPlan, measured: Measurements) -> list[Point]:
    spare = {planned.step for planned in plan.steps if planned.is_spare}
    return [step.point for step, _ in measured.measurements if isinstance(step, Solo) and step in spare]


def test_spare_points_come_last_and_each_once(tmp_path: Path) -> None:
    """All of them where time is enough, in another order than planned: spread over the keys."""
    plan, measured = session(FakeBench(slowness=0.1, jitter=0.02), tmp_path / "log")
    planned = [p.step.point for p in plan.steps if p.is_spare and isinstance(p.step, Solo)]
    chosen = spare_points(plan, measured)
    assert len(planned) > 4
    assert sorted(chosen) == sorted(planned)
    assert chosen != planned


def test_a_kill_chooses_the_same(tmp_path: Path) -> None:
    """Killed and resumed again and again: the same steps in the same order as if nothing had happened."""

    class Same(FakeBench):
        """Noise that is the point's own: what is measured again after a kill is what was lost."""

        def truth_s(self, point: Point) -> float:
            return super().truth_s(point) * float(np.exp(0.1 * np.sin(37 * sum(point.key) + point.batch)))

    plan, whole = session(Same(slowness=0.5), tmp_path / "whole")
    kills = 0
    while True:
        try:
            _, measured = session(Same(slowness=0.5, dies_after=15), tmp_path / "log")
            break
        except KeyboardInterrupt:
            kills += 1
    assert kills > 1
    assert spare_points(plan, whole)
    assert [step for step, _ in measured.measurements] == [step for step, _ in whole.measurements]


def test_held_out_points_do_not_choose(tmp_path: Path) -> None:
    """What no fit may see tells nothing of what to measure, either: other held-out results, the same choice."""
    plan, measured = session(FakeBench(slowness=0.1), tmp_path / "log")
    spare = [planned for planned in plan.steps if planned.is_spare]
    before = [m for m in measured.measurements if not (isinstance(m[0], Solo) and m[0] in {p.step for p in spare})]
    without = [m for m in before if not (isinstance(m[0], Solo) and m[0].held_out)]
    assert len(without) < len(before)
    order = LeastSure(model_costs().keys, Speed(0.0))
    first, second = (next(order(spare, lambda seen=seen: seen)) for seen in (before, without))  # type: ignore[misc]
    assert first == second


def test_where_no_surface_tells_the_order_is_the_plans() -> None:
    """Nothing finished, or too little: the most telling batch size first, as planned."""
    spare = [PlannedStep(Solo(Point(*key, 4)), 1, False, 1.0, is_spare=True) for key in all_keys()]
    assert list(LeastSure(model_costs().keys, Speed(0.0))(spare, list)) == spare


def test_no_surface_is_fitted_where_nothing_more_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that the budget cannot hold are drawn and left: that takes no time."""
    plan, measured = session(FakeBench(slowness=3.0), tmp_path / "log")
    spare, fits = [planned for planned in plan.steps if planned.is_spare], list[int]()

    def counted(*arguments: Any) -> Surface:
        fits.append(1)
        return Surface(*arguments)

    monkeypatch.setattr("calibrate.design.Surface", counted)
    order = LeastSure(model_costs().keys, Speed(0.0))
    drawn = list(order(spare, lambda: measured.measurements))
    assert sorted(map(str, drawn)) == sorted(map(str, spare))
    assert len(drawn) > len(all_keys())  # a group, of a quarter of four sizes a key
    assert len(fits) == 1


def test_a_budget_that_is_spent_ends_the_choice(tmp_path: Path) -> None:
    """Nothing that is spare is done late."""
    plan, measured = session(FakeBench(slowness=3.0), tmp_path / "log")
    assert any(planned.is_spare for planned in plan.steps)
    assert spare_points(plan, measured) == []
