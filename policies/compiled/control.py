"""`policies.floor_control`, compiled."""

from __future__ import annotations

from policies.compiled.layout import Sheet
from policies.compiled.record import INT, REAL, Record
from policies.floor_control import (
    AT_BOTH,
    AT_NARROWEST,
    AT_WIDEST,
    FEW,
    GAIN,
    GAIN_PER_S,
    HORIZON_S,
    LONGEST_S,
    MOST_DEFICIT,
    MOST_SHIFT,
    FloorControl,
)
from policies.jit import Ints, kernel

_NS = 1e9


class Control(Record):
    """`FloorControl`."""

    floor = most = REAL
    now_ns = completed = INT
    accuracy_sum = images = debt = bias = shift = REAL
    end = INT


def control_row(control: FloorControl) -> Ints:
    """What a controller knows, as a plan has it."""
    row = Control.blank()
    for name in Control.offsets:
        setattr(row, name, getattr(control, name))
    return row.numbers


def keep_control(control: FloorControl, row: Control) -> None:
    """Put what a plan remembers into the controller that it was made from."""
    for name in Control.offsets:
        setattr(control, name, getattr(row, name))


@kernel
def shift_of(control: Control, sheet: Sheet) -> float:
    """`FloorControl.step`."""
    passed_s = (sheet.now_ns - control.now_ns) / _NS
    came, gained = sheet.completed - control.completed, sheet.accuracy_sum - control.accuracy_sum
    control.now_ns, control.completed, control.accuracy_sum = sheet.now_ns, sheet.completed, sheet.accuracy_sum
    floor = sheet.goal_floor if control.floor < 0.0 else control.floor
    if floor <= 0.0:
        control.images, control.debt, control.bias, control.shift = 0.0, 0.0, 0.0, 0.0
        return 0.0
    keep = HORIZON_S / (HORIZON_S + passed_s)
    control.images = control.images * keep + came
    control.debt = control.debt * keep + (floor * came - gained)
    known = control.images + FEW
    deficit = min(MOST_DEFICIT, max(-MOST_DEFICIT, control.debt / known))
    control.debt = deficit * known
    end = control.end
    if not (end == AT_BOTH or (end == AT_WIDEST and deficit > 0.0) or (end == AT_NARROWEST and deficit < 0.0)):
        moved = control.bias + GAIN_PER_S * deficit * min(passed_s, LONGEST_S)
        control.bias = min(control.most, max(-MOST_SHIFT, moved))
    control.shift = min(control.most, max(-MOST_SHIFT, control.bias + GAIN * deficit))
    return control.shift
