"""`policies.goal_control`, compiled."""

from __future__ import annotations

from kit.jit import Ints, kernel
from policies import goal_control
from policies.compiled.layout import Sheet
from policies.compiled.record import INT, REAL, Record
from policies.goal_control import (
    AIM,
    AT_BOTH,
    AT_NARROWEST,
    AT_WIDEST,
    FEW,
    GAIN,
    GAIN_PER_S,
    HORIZON_S,
    LIMIT_GAIN,
    LIMIT_GAIN_PER_S,
    LIMIT_HORIZON_S,
    LONGEST_S,
    MOST_DEFICIT,
    MOST_EXCESS,
    MOST_SHIFT,
    GoalControl,
)

_NS = 1e9


class Control(Record):
    """`GoalControl`."""

    floor = most = energy_weight = best = REAL
    limit_ns = weighs = now_ns = completed = late = INT
    accuracy_sum = images = debt = bias = floor_shift = judged = over = limit_bias = limit_shift = shift = REAL
    end = INT


def control_row(control: GoalControl) -> Ints:
    """What a controller knows, as a plan has it."""
    row = Control.blank()
    for name in Control.offsets:
        setattr(row, name, getattr(control, name))
    return row.numbers


def keep_control(control: GoalControl, row: Control) -> None:
    """Put what a plan remembers into the controller that it was made from."""
    for name in Control.offsets:
        setattr(control, name, type(getattr(control, name))(getattr(row, name)))


@kernel
def shift_of(control: Control, sheet: Sheet) -> float:
    """`GoalControl.step`."""
    passed_s = (sheet.now_ns - control.now_ns) / _NS
    came, gained = sheet.completed - control.completed, sheet.accuracy_sum - control.accuracy_sum
    late = sheet.late - control.late
    control.now_ns, control.completed, control.late = sheet.now_ns, sheet.completed, sheet.late
    control.accuracy_sum = sheet.accuracy_sum
    floor = sheet.goal_floor if control.floor < 0.0 else control.floor
    limit_ns = sheet.goal_limit_ns if control.limit_ns < 0 else control.limit_ns
    has_both = floor > 0.0 and limit_ns > 0
    floor_rests = has_both and control.floor_shift < control.limit_shift
    limit_rests = has_both and control.limit_shift < control.floor_shift
    keep_floor(control, floor, came, gained, passed_s, floor_rests)
    keep_limit(control, limit_ns, came, late, passed_s, limit_rests)
    if has_both:
        control.shift = max(control.floor_shift, control.limit_shift)
    else:
        control.shift = control.floor_shift + control.limit_shift
    return control.shift


@kernel
def keep_floor(control: Control, floor: float, came: int, gained: float, passed_s: float, rests: bool) -> None:
    """`GoalControl._keep_floor`."""
    if floor <= 0.0:
        control.images, control.debt, control.bias, control.floor_shift = 0.0, 0.0, 0.0, 0.0
        return
    keep = HORIZON_S / (HORIZON_S + passed_s)
    control.images = control.images * keep + came
    control.debt = control.debt * keep + (floor * came - gained)
    known = control.images + FEW
    deficit = min(MOST_DEFICIT, max(-MOST_DEFICIT, control.debt / known))
    control.debt = deficit * known
    if not is_stuck(control, deficit, rests):
        moved = control.bias + GAIN_PER_S * deficit * min(passed_s, LONGEST_S)
        control.bias = min(control.most, max(-MOST_SHIFT, moved))
    control.floor_shift = min(control.most, max(-MOST_SHIFT, control.bias + GAIN * deficit))


@kernel
def keep_limit(control: Control, limit_ns: int, came: int, late: int, passed_s: float, rests: bool) -> None:
    """`GoalControl._keep_limit`."""
    if limit_ns <= 0:
        control.judged, control.over, control.limit_bias, control.limit_shift = 0.0, 0.0, 0.0, 0.0
        return
    keep = LIMIT_HORIZON_S / (LIMIT_HORIZON_S + passed_s)
    control.judged = control.judged * keep + came
    control.over = control.over * keep + (late - AIM * came)
    known = control.judged + FEW
    excess = min(MOST_EXCESS, control.over / known)
    control.over = excess * known
    if not is_stuck(control, -excess, rests):
        moved = control.limit_bias - LIMIT_GAIN_PER_S * excess * min(passed_s, LONGEST_S)
        control.limit_bias = min(control.most, max(-MOST_SHIFT, moved))
    control.limit_shift = min(control.most, max(-MOST_SHIFT, control.limit_bias - LIMIT_GAIN * excess))


@kernel
def is_stuck(control: Control, wanted: float, rests: bool) -> bool:
    """`GoalControl._is_stuck`."""
    end = control.end
    return (
        end == AT_BOTH
        or (end == AT_WIDEST and wanted > 0.0)
        or (end == AT_NARROWEST and wanted < 0.0)
        or (rests and wanted < 0.0)
    )


@kernel
def weight_of(control: Control, sheet: Sheet) -> float:
    """`GoalControl.weight`."""
    if not control.weighs:
        return 0.0
    weight = sheet.goal_energy_weight if control.energy_weight < 0.0 else control.energy_weight
    return weight * (1.0 - max(0.0, control.floor_shift) / control.most)


end_of_dial = kernel(goal_control.end_of_dial)
