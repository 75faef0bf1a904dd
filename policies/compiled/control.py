"""`policies.goal_control`, compiled: the same source, over a plan's record and a sheet."""

from __future__ import annotations

from collections.abc import Callable

from kit.jit import Ints, kernel_of
from policies import goal_control
from policies.compiled.layout import Sheet
from policies.compiled.record import INT, REAL, Record
from policies.goal_control import GoalControl


class Control(Record):
    """`GoalControl`."""

    floor = most = energy_weight = best = REAL
    limit_ns = weighs = takes_over = now_ns = completed = late = INT
    accuracy_sum = kept = span_s = images = debt = bias = floor_shift = REAL
    judged = over = limit_bias = limit_shift = shift = REAL
    end = INT


def control_row(control: GoalControl) -> Ints:
    """Return a controller's state in the form of a plan."""
    row = Control.blank()
    for name in Control.offsets:
        setattr(row, name, getattr(control, name))
    return row.numbers


def keep_control(control: GoalControl, row: Control) -> None:
    """Copy a plan's state into the controller that it was made from."""
    for name in Control.offsets:
        setattr(control, name, type(getattr(control, name))(getattr(row, name)))


_is_stuck = kernel_of(goal_control.is_stuck)
_keep_floor = kernel_of(goal_control.keep_floor, is_stuck=_is_stuck)
_keep_limit = kernel_of(goal_control.keep_limit, is_stuck=_is_stuck)
shift_of: Callable[[Control, Sheet], float] = kernel_of(
    goal_control.shift_of, keep_floor=_keep_floor, keep_limit=_keep_limit
)
weight_of: Callable[[Control, Sheet], float] = kernel_of(goal_control.weight_of)
end_of_dial: Callable[[int, int], int] = kernel_of(goal_control.end_of_dial)
