"""The controllers by themselves, on plants of a line and of a steep curve; then the routers that they shift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, inf, nan
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as changed

from kit.errors import InputError
from kit.random_streams import stream
from policies.goal_control import (
    AIM,
    AT_BOTH,
    AT_NARROWEST,
    AT_WIDEST,
    FOLLOW,
    FREE,
    GAIN,
    HORIZON_S,
    LIMIT_GAIN,
    MAX_DEBT_S,
    MAX_EXCESS,
    MAX_SHIFT,
    GoalControl,
    end_of_dial,
)
from policies.interfaces import MAX_TUPLES, accuracies_of, limit_ns_of
from policies.rules.compass import CompassRule
from policies.rules.rule_params import BatchingDelaySpec, LadderRule, RouterSpec
from policies.rules.rule_parts import ControlSpec
from policies.vocabulary import FOLLOW_NS, ClusterView
from tests.policies.cluster_views import TABLE, context, known, server, view

FLOOR, SECOND = 0.75, 1_000_000_000
RNG = stream(0, "floors")


class Plant:
    """Serves `rate` images a second, whose accuracy and lateness are functions of the shift; 100 decisions a second."""

    def __init__(self, control: GoalControl, rate: float = 1000.0) -> None:
        self.control, self.rate, self.floor, self.limit_ns = control, rate, 0.0, 0
        self.late = 0.0
        self.seen = changed(view(server()), now_ns=0)
        self.served: list[float] = []

    def run(
        self,
        seconds: float,
        accuracy: Callable[[float], float],
        end: int = FREE,
        late: Callable[[float], float] = lambda shift: 0.0,
    ) -> float:
        """The mean accuracy of the time; `late_share` is that of the late images."""
        self.served, before = [], self.late
        for _ in range(round(seconds * 100)):
            now = accuracy(self.control.shift)
            self.served.append(now)
            came = round(self.rate / 100)
            self.late += came * late(self.control.shift)
            self.seen = changed(
                self.seen,
                now_ns=self.seen.now_ns + SECOND // 100,
                completed=self.seen.completed + came,
                accuracy_sum=self.seen.accuracy_sum + came * now,
                goal_floor=self.floor,
                late=int(self.late),
                goal_limit_ns=self.limit_ns,
            )
            self.control.step(self.seen)
            self.control.end = end
        self.late_share = (self.late - before) / (round(seconds * 100) * round(self.rate / 100))
        return float(np.mean(self.served))


@pytest.mark.parametrize("rate", [300.0, 30_000.0])
@pytest.mark.parametrize(("at_rest", "slope"), [(0.72, 0.02), (0.745, 0.002), (0.77, 0.01), (0.76, 0.05)])
def test_goal_control_reaches_the_floor_at_any_rate_and_slope(rate: float, at_rest: float, slope: float) -> None:
    plant = Plant(GoalControl(FLOOR), rate)
    plant.run(120, lambda shift: at_rest + slope * shift)
    assert plant.run(60, lambda shift: at_rest + slope * shift) == pytest.approx(FLOOR, abs=0.0005)


def test_goal_control_compensates_for_images_that_a_guard_served_too_narrow() -> None:
    """After one second of a guard, the controller serves above the floor, and then at it."""
    plant = Plant(GoalControl(FLOOR))
    plant.run(200, lambda shift: 0.74 + 0.01 * shift)
    plant.run(1, lambda shift: 0.70, AT_BOTH)
    after = plant.run(40, lambda shift: 0.74 + 0.01 * shift)
    assert after > FLOOR + 0.0005
    plant.run(100, lambda shift: 0.74 + 0.01 * shift)
    assert plant.run(20, lambda shift: 0.74 + 0.01 * shift) == pytest.approx(FLOOR, abs=0.0003)


def test_controller_that_takes_over_after_days_is_as_fast_as_a_fresh_one() -> None:
    """Images served before the takeover are not compensated for, and later images are not few next to them."""
    fresh, late = Plant(GoalControl(FLOOR)), Plant(GoalControl(FLOOR, takes_over=True))
    late.seen = changed(late.seen, now_ns=10**6 * SECOND, completed=10**9, accuracy_sum=0.7e9)
    for seconds in (1, 10, 60):
        for plant in (fresh, late):
            plant.run(seconds, lambda shift: 0.74 + 0.01 * shift)
        assert late.control.shift == pytest.approx(fresh.control.shift, abs=0.1)


def test_the_dial_stands_still_where_bursts_come_and_go() -> None:
    """Four seconds in sixteen are two points narrower: it widens by little in them, and has the floor over all."""
    plant, means, least, most = Plant(GoalControl(FLOOR)), [], [], []
    for _ in range(60):
        quiet = plant.run(12, lambda shift: 0.75 + 0.005 * shift)
        least.append(plant.control.shift)
        burst = plant.run(4, lambda shift: 0.73 + 0.005 * shift)
        most.append(plant.control.shift)
        means.append((3 * quiet + burst) / 4)
    assert max(np.subtract(most, least)[30:]) < 0.25
    assert np.mean(means[30:]) == pytest.approx(FLOOR, abs=0.0002)


def test_a_long_overload_is_forgotten() -> None:
    """Ten points short for ten minutes: half a point of the horizon is made up for, and the dial was left alone."""
    plant = Plant(GoalControl(FLOOR))
    plant.run(200, lambda shift: 0.74 + 0.01 * shift)
    bias = plant.control.bias
    plant.run(600, lambda shift: 0.65, AT_BOTH)
    assert plant.control.bias == pytest.approx(bias, abs=0.001)
    assert plant.control.shift == pytest.approx(bias + GAIN * MAX_DEBT_S / HORIZON_S, rel=0.05)
    plant.run(300, lambda shift: 0.74 + 0.01 * shift)
    assert plant.run(60, lambda shift: 0.74 + 0.01 * shift) == pytest.approx(FLOOR, abs=0.001)


@pytest.mark.parametrize(("end", "served"), [(AT_WIDEST, 0.70), (AT_NARROWEST, 0.80), (AT_BOTH, 0.70)])
def test_at_an_end_of_the_dial_it_does_not_wind_up(end: int, served: float) -> None:
    plant = Plant(GoalControl(FLOOR))
    plant.run(300, lambda shift: served, end)
    assert plant.control.bias == pytest.approx(0.0, abs=0.01)
    free = Plant(GoalControl(FLOOR))
    free.run(300, lambda shift: served)
    assert abs(free.control.bias) == MAX_SHIFT == abs(free.control.shift)


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


# --------------------------------------------------------------------------------------------------------------- limits


def steep(at: float, by: float) -> Callable[[float], float]:
    """The share that is late is `AIM` at that shift, and e times as large where the shift is 1 / by more."""
    return lambda shift: min(1.0, AIM * exp(by * (shift - at)))


def flat(shift: float) -> float:
    return 0.75


@pytest.mark.parametrize("rate", [300.0, 30_000.0])
@pytest.mark.parametrize("at", [-2.0, 2.0])
@pytest.mark.parametrize("by", [0.5, 3.0, 10.0])
def test_about_as_many_are_late_as_may_be(rate: float, at: float, by: float) -> None:
    """Whatever the rate, and however steep: from too slow and from too quick, and then it stays there."""
    plant = Plant(GoalControl(limit_ns=1), rate)
    plant.run(150, flat, late=steep(at, by))
    shifts = []
    for _ in range(6):
        plant.run(10, flat, late=steep(at, by))
        shifts.append(plant.control.shift)
        assert plant.late_share == pytest.approx(AIM, abs=0.2 * AIM)
    assert np.ptp(shifts) < 0.1
    assert plant.late_share <= 0.01


def test_after_an_overload_it_is_soon_as_before() -> None:
    """Ten minutes in which all are late, at the dial's end: nothing winds up, and nothing is paid for by drowning."""
    plant = Plant(GoalControl(limit_ns=1))
    plant.run(150, flat, late=steep(1.0, 3.0))
    bias = plant.control.limit_bias
    plant.run(600, flat, AT_NARROWEST, late=lambda shift: 1.0)
    assert plant.control.limit_bias == pytest.approx(bias, abs=0.01)
    assert plant.control.shift == pytest.approx(bias - LIMIT_GAIN * MAX_EXCESS, abs=0.01)
    plant.run(60, flat, late=steep(1.0, 3.0))
    for _ in range(6):
        plant.run(10, flat, late=steep(1.0, 3.0))
        assert 0.5 * AIM < plant.late_share <= 0.01


@pytest.mark.parametrize(("end", "late"), [(AT_WIDEST, 0.0), (AT_NARROWEST, 1.0), (AT_BOTH, 1.0), (AT_BOTH, 0.0)])
def test_a_limit_winds_nothing_up_at_an_end_of_the_dial(end: int, late: float) -> None:
    plant = Plant(GoalControl(limit_ns=1))
    plant.run(300, flat, end, late=lambda shift: late)
    assert plant.control.limit_bias == pytest.approx(0.0, abs=0.01)
    free = Plant(GoalControl(limit_ns=1))
    free.run(300, flat, late=lambda shift: late)
    assert free.control.shift == (-MAX_SHIFT if late else MAX_SHIFT)


def line(shift: float) -> float:
    return 0.74 + 0.01 * shift


@pytest.mark.parametrize(("at", "floor", "shift"), [(2.0, 0.75, 2.0), (0.0, 0.75, 1.0), (-3.0, 0.72, -2.0)])
def test_with_both_goals_it_is_as_accurate_as_the_limit_allows_and_never_below_the_floor(
    at: float, floor: float, shift: float
) -> None:
    """The floor of 0.75 is at a shift of 1, that of 0.72 at -2."""
    plant = Plant(GoalControl(floor, limit_ns=1))
    plant.run(200, line, late=steep(at, 3.0))
    assert plant.run(60, line, late=steep(at, 3.0)) == pytest.approx(line(shift), abs=0.001)


def test_controller_that_takes_over_the_dial_has_not_wound_up() -> None:
    """The limit gives way to the floor when the load rises, and comes back when it falls: neither has wound up."""
    plant = Plant(GoalControl(FLOOR, limit_ns=1))
    plant.run(300, line, late=steep(4.0, 3.0))
    plant.run(25, line, late=steep(-4.0, 3.0))
    assert plant.run(30, line, late=steep(-4.0, 3.0)) == pytest.approx(FLOOR, abs=0.004)
    plant.run(300, line, late=steep(-4.0, 3.0))
    plant.run(80, line, late=steep(4.0, 3.0))
    assert plant.run(20, line, late=steep(4.0, 3.0)) == pytest.approx(line(4.0), abs=0.003)


def test_the_operators_limit_is_followed_and_one_of_its_own_is_not_moved_by_it() -> None:
    plant = Plant(GoalControl())
    plant.run(60, flat, late=steep(-2.0, 3.0))
    assert plant.control.shift == 0.0
    plant.limit_ns = 1
    plant.run(150, flat, late=steep(-2.0, 3.0))
    assert plant.control.shift == pytest.approx(-2.0, abs=0.1)
    plant.limit_ns = 0
    plant.run(1, flat, late=steep(-2.0, 3.0))
    assert plant.control.shift == 0.0
    own = Plant(GoalControl(limit_ns=0))
    own.limit_ns = 1
    own.run(60, flat, late=lambda shift: 1.0)
    assert own.control.shift == 0.0


def test_limit_that_is_set_again_finds_nothing_of_the_time_before() -> None:
    again, first = Plant(GoalControl()), Plant(GoalControl())
    for limit_ns in (1, 0):
        again.limit_ns = limit_ns
        again.run(10, flat, late=lambda shift: 1.0)
    for plant in (again, first):
        plant.limit_ns = 1
        plant.run(1, flat)
    assert again.control.shift == first.control.shift > 0.0


# ------------------------------------------------------------------------------------------------------------- routers


def served(seen: ClusterView, accuracy: float) -> ClusterView:
    return changed(seen, completed=200, accuracy_sum=200 * accuracy)


def test_a_floor_is_set_in_mid_run_where_a_router_controls() -> None:
    router = CompassRule(control=ControlSpec()).chooser(known())
    plain = CompassRule(control=None).chooser(known())
    seen = served(view(server(), fifo=16), 0.70)
    assert router.choose(seen, RNG) == plain.choose(seen, RNG)
    router.set_floor(FLOOR)
    later = changed(seen, now_ns=2 * SECOND, completed=400, accuracy_sum=400 * 0.70)
    assert router.choose(later, RNG).width > plain.choose(later, RNG).width


BATCHING_DELAY = BatchingDelaySpec(requests=(2,) * 4, wait_s=(0.01,) * 4)


@pytest.mark.parametrize(
    "spec",
    [
        CompassRule(control=ControlSpec()),
        LadderRule(control=ControlSpec()),
        LadderRule(control=ControlSpec(), batching_delay=BATCHING_DELAY),
    ],
)
def test_goals_are_set_on_the_router_that_a_file_makes(spec: RouterSpec) -> None:
    """Also on one whose lines are held; None gives each of them back to the operator."""
    router: Any = spec.make(known())
    assert limit_ns_of(router) == FOLLOW_NS
    router.set_floor(FLOOR)
    router.set_p99_limit(0.03)
    assert (router.control.floor, limit_ns_of(router)) == (FLOOR, 30_000_000)
    router.set_floor(None)
    router.set_p99_limit(None)
    assert (router.control.floor, limit_ns_of(router)) == (FOLLOW, FOLLOW_NS)
    for wrong in (-0.1, inf, nan):
        with pytest.raises(ValueError, match="expected 0 for none, numbers above it, and None"):
            router.set_p99_limit(wrong)
    with pytest.raises(ValueError, match=r"no width tuple is as accurate as 0.9; the best has 0.7643"):
        router.set_floor(0.9)
    if isinstance(spec, CompassRule):
        router.set_energy_weight(2.0)
        assert router.control.energy_weight == 2.0
    else:
        with pytest.raises(ValueError, match="has no energy weight; only compass"):
            router.set_energy_weight(2.0)


def test_goals_of_a_router_without_control_cant_be_set() -> None:
    for spec in (CompassRule(control=None), LadderRule(batching_delay=BATCHING_DELAY)):
        router: Any = spec.make(known())
        for set_goal in (router.set_floor, router.set_p99_limit, router.set_energy_weight):
            with pytest.raises(ValueError, match="made without `control`"):
                set_goal(0.5)


def test_compass_pays_for_joules_and_less_where_the_floor_would_be_missed() -> None:
    """The weight is the operator's or its own; the floor counts for more."""
    seen = view(server(), fifo=1)
    plain = CompassRule(control=None).chooser(known()).choose(seen, RNG).width
    router = CompassRule().chooser(known())
    assert router.choose(seen, RNG).width == plain == 1.0
    assert router.choose(changed(seen, goal_energy_weight=50.0), RNG).width == 0.25
    router.set_energy_weight(0.0)
    assert router.choose(changed(seen, goal_energy_weight=50.0), RNG).width == 1.0
    for weight, width in ((50.0, 0.25), (1.0, 1.0)):
        own = CompassRule(control=ControlSpec(energy_weight=weight)).chooser(known())
        assert own.choose(seen, RNG).width == width, weight
    short = CompassRule(control=ControlSpec(energy_weight=50.0, floor=FLOOR)).chooser(known())
    assert short.choose(served(seen, 0.60), RNG).width > 0.25


def test_without_an_accuracy_table_there_is_no_control() -> None:
    with pytest.raises(InputError, match=rf"control: .*up to {MAX_TUPLES} width tuples; leave `control` out"):
        LadderRule(control=ControlSpec(floor=FLOOR)).make(context())
    many = replace(context().config, segments=7)
    assert accuracies_of(many, context().prior) == ()


def test_the_table_is_in_the_order_of_the_tuples_numbers() -> None:
    config = known().config
    assert len(config.accuracies) == 4**4
    assert config.accuracies[0] == TABLE[(0.25,) * 4]
    assert config.accuracies[int("0123", 4)] == TABLE[(0.25, 0.5, 0.75, 1.0)]


def test_end_of_the_dial_follows_from_the_rung_of_the_ladder() -> None:
    assert [end_of_dial(rung, 3) for rung in range(3)] == [AT_WIDEST, FREE, AT_NARROWEST]
    assert end_of_dial(0, 1) == AT_BOTH
