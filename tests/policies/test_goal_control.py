"""The controller of a floor by itself, on plants of a line; then the routers that it shifts, on both engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as changed

from policies.chance import stream
from policies.errors import InputError
from policies.goal_control import (
    AT_BOTH,
    AT_NARROWEST,
    AT_WIDEST,
    FREE,
    GAIN,
    MOST_DEFICIT,
    MOST_SHIFT,
    GoalControl,
)
from policies.interfaces import MOST_TUPLES, top1_of
from policies.names import rule_from_dict
from policies.plan_of import plan_of
from policies.rules.context import ComposedRouter, RouterContext
from policies.rules.controlled import ControlledLadder, ControlSpec, end_of_ladder
from policies.rules.specs import LadderRule
from policies.rules.widths import Ladder
from policies.tide import knobs
from policies.tide.router import TideRouter
from policies.tide.spec import TideSpec
from policies.vocabulary import ClusterView
from tests.policies.cluster_views import TABLE, choice_of, context, server, view

FLOOR, SECOND = 0.75, 1_000_000_000
RNG = stream(0, "floors")


class Plant:
    """Serves `rate` images a second whose accuracy is a function of the shift; a hundred decisions a second."""

    def __init__(self, control: GoalControl, rate: float = 1000.0) -> None:
        self.control, self.rate, self.floor = control, rate, 0.0
        self.seen = changed(view(server()), now_ns=0)
        self.served: list[float] = []

    def run(self, seconds: float, accuracy: Callable[[float], float], end: int = FREE) -> float:
        """The mean accuracy of the time."""
        self.served = []
        for _ in range(round(seconds * 100)):
            now = accuracy(self.control.shift)
            self.served.append(now)
            came = round(self.rate / 100)
            self.seen = changed(
                self.seen,
                now_ns=self.seen.now_ns + SECOND // 100,
                completed=self.seen.completed + came,
                accuracy_sum=self.seen.accuracy_sum + came * now,
                goal_floor=self.floor,
            )
            self.control.step(self.seen)
            self.control.end = end
        return float(np.mean(self.served))


@pytest.mark.parametrize("rate", [300.0, 30_000.0])
@pytest.mark.parametrize(("at_rest", "slope"), [(0.72, 0.02), (0.745, 0.002), (0.77, 0.01), (0.76, 0.05)])
def test_it_comes_to_the_floor_whatever_the_rate_and_the_slope(rate: float, at_rest: float, slope: float) -> None:
    plant = Plant(GoalControl(FLOOR), rate)
    plant.run(120, lambda shift: at_rest + slope * shift)
    assert plant.run(60, lambda shift: at_rest + slope * shift) == pytest.approx(FLOOR, abs=0.0005)


def test_what_others_served_too_narrow_is_made_up_for() -> None:
    """As a guard does, for a second: afterwards it serves above the floor, and then at it."""
    plant = Plant(GoalControl(FLOOR))
    plant.run(200, lambda shift: 0.74 + 0.01 * shift)
    plant.run(1, lambda shift: 0.70, AT_BOTH)
    after = plant.run(40, lambda shift: 0.74 + 0.01 * shift)
    assert after > FLOOR + 0.0005
    plant.run(100, lambda shift: 0.74 + 0.01 * shift)
    assert plant.run(20, lambda shift: 0.74 + 0.01 * shift) == pytest.approx(FLOOR, abs=0.0003)


def test_a_long_overload_is_forgotten() -> None:
    """Ten points short for ten minutes: a point of the horizon is made up for, and the dial was left alone."""
    plant = Plant(GoalControl(FLOOR))
    plant.run(200, lambda shift: 0.74 + 0.01 * shift)
    bias = plant.control.bias
    plant.run(600, lambda shift: 0.65, AT_BOTH)
    assert plant.control.bias == pytest.approx(bias, abs=0.001)
    assert plant.control.shift == pytest.approx(bias + GAIN * MOST_DEFICIT, abs=0.001)
    plant.run(60, lambda shift: 0.74 + 0.01 * shift)
    assert plant.run(60, lambda shift: 0.74 + 0.01 * shift) == pytest.approx(FLOOR, abs=0.001)


@pytest.mark.parametrize(("end", "served"), [(AT_WIDEST, 0.70), (AT_NARROWEST, 0.80), (AT_BOTH, 0.70)])
def test_at_an_end_of_the_dial_it_does_not_wind_up(end: int, served: float) -> None:
    plant = Plant(GoalControl(FLOOR))
    plant.run(300, lambda shift: served, end)
    assert plant.control.bias == pytest.approx(0.0, abs=0.01)
    free = Plant(GoalControl(FLOOR))
    free.run(300, lambda shift: served)
    assert abs(free.control.bias) == MOST_SHIFT == abs(free.control.shift)


def test_the_operators_floor_is_followed_and_a_floor_of_its_own_is_not_moved_by_it() -> None:
    plant = Plant(GoalControl())
    assert plant.run(100, lambda shift: 0.74 + 0.01 * shift) == pytest.approx(0.74)
    for floor in (0.75, 0.745, 0.755):
        plant.floor = floor
        plant.run(120, lambda shift: 0.74 + 0.01 * shift)
        assert plant.run(20, lambda shift: 0.74 + 0.01 * shift) == pytest.approx(floor, abs=0.0005)
    own = Plant(GoalControl(FLOOR))
    own.floor = 0.76
    own.run(120, lambda shift: 0.74 + 0.01 * shift)
    assert own.run(20, lambda shift: 0.74 + 0.01 * shift) == pytest.approx(FLOOR, abs=0.0005)


def test_asked_again_at_one_decision_it_says_the_same() -> None:
    control = GoalControl(FLOOR)
    seen = changed(view(server()), completed=500, accuracy_sum=500 * 0.74)
    assert control.step(seen) == control.step(seen) > 0


# ------------------------------------------------------------------------------------------------------------- routers


def known() -> RouterContext:
    """A context whose router's core has the accuracy table."""
    base = context(servers=1)
    return replace(base, config=replace(base.config, top1=top1_of(base.config, base.prior)))


def served(seen: ClusterView, accuracy: float) -> ClusterView:
    return changed(seen, completed=200, accuracy_sum=200 * accuracy)


LADDER = {"schema": "slimsched.rule/1", "kind": "ladder", "thresholds": [4], "rungs": [[1.0] * 4, [0.25] * 4]}


def test_a_ladder_climbs_later_where_it_served_too_little() -> None:
    for accuracy, width in ((0.70, 1.0), (0.75, 0.25), (0.80, 0.25)):
        router = rule_from_dict({**LADDER, "control": {"floor": FLOOR}}).make(known())
        seen = served(view(server(), fifo=8), accuracy)
        assert choice_of(router, seen, RNG).width == width, accuracy
    short = served(view(server(), fifo=2), 0.80)
    router = rule_from_dict({**LADDER, "control": {"floor": FLOOR}}).make(known())
    assert choice_of(router, short, RNG).width == 0.25


def test_tide_pays_less_for_time_where_it_served_too_little() -> None:
    widths = []
    for accuracy in (0.70, 0.80):
        router = TideSpec(control=ControlSpec(floor=FLOOR)).chooser(known())
        widths.append(router.choose(served(view(server(), fifo=32), accuracy), RNG).width)
    assert widths[0] > widths[1]


def test_a_floor_is_set_in_mid_run_where_a_router_controls() -> None:
    router = TideSpec(control=ControlSpec()).chooser(known())
    plain = TideSpec().chooser(known())
    seen = served(view(server(), fifo=32), 0.70)
    assert router.choose(seen, RNG) == plain.choose(seen, RNG)
    router.set_floor(FLOOR)
    later = changed(seen, now_ns=2 * SECOND, completed=400, accuracy_sum=400 * 0.70)
    assert router.choose(later, RNG).width > plain.choose(later, RNG).width
    with pytest.raises(ValueError, match="without `control`"):
        plain.set_floor(FLOOR)
    ladder = LadderRule(control=ControlSpec()).chooser(known())
    assert isinstance(ladder.width, ControlledLadder)
    ladder.width.set_floor(FLOOR)
    assert ladder.width.control.floor == FLOOR


def test_files_from_before_control_nothing(tmp_path: Path) -> None:
    """They make the same router as ever; a file that controls says so, and reads back."""
    rule = rule_from_dict(LADDER)
    assert "control" not in rule.to_dict()
    router = rule.make(context())
    assert isinstance(router, ComposedRouter)
    assert type(router.width) is Ladder
    its = rule_from_dict({**LADDER, "control": {"floor": 0.753}})
    assert rule_from_dict(its.to_dict()) == its
    tide = TideRouter(knobs.start(4, 4), context())
    tide.save(tmp_path / "plain.safetensors", {})
    assert TideSpec.read(tmp_path / "plain.safetensors").control is None
    tide.save(tmp_path / "its.safetensors", {}, control=ControlSpec(floor=0.753))
    read = TideSpec.read(tmp_path / "its.safetensors")
    assert read.control == ControlSpec(floor=0.753)
    assert plan_of(read.make(known()), known().config) is not None


def test_without_an_accuracy_table_there_is_no_control() -> None:
    with pytest.raises(InputError, match=rf"control: .*up to {MOST_TUPLES} width tuples; leave `control` out"):
        LadderRule(control=ControlSpec(floor=FLOOR)).make(context())
    many = replace(context().config, segments=7)
    assert top1_of(many, context().prior) == ()


def test_the_table_is_in_the_order_of_the_tuples_numbers() -> None:
    config = known().config
    assert len(config.top1) == 4**4
    assert config.top1[0] == TABLE[(0.25,) * 4]
    assert config.top1[int("0123", 4)] == TABLE[(0.25, 0.5, 0.75, 1.0)]


def test_where_a_rung_is_on_its_ladder() -> None:
    assert [end_of_ladder(rung, 3) for rung in range(3)] == [AT_WIDEST, FREE, AT_NARROWEST]
    assert end_of_ladder(0, 1) == AT_BOTH
