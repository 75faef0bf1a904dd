"""Integral controllers that keep the operator's goals: they shift a router's dial according to the results so far.

A router never sees a label or a latency, but it sees the accuracy table's values for the width tuples that it completed
(`ClusterView.accuracy_sum`), and the number of late images (`ClusterView.late`). If requests have classes, each class
has a separate controller.

*Floor* of mean accuracy: the mean deficit since the beginning, over a forgetting horizon, moves the dial at once
(`GAIN`), and a persistent deficit moves it permanently. So a deficit is not only ended but compensated. Both parts are
fast at first, and slow down with the time served: a mean costs the least latency if the dial is constant, and
compensation for a burst is most expensive within the burst. *Limit* of the p99 latency: the share of late images above
`AIM`, over a short horizon, does the same in the other direction. With both goals the dial follows the more accurate of
the two: as accurate as the limit allows, but never below the floor.

The dial's shift is a logarithm: of Compass' price, of all of a ladder's thresholds, of the lookahead's worth. The
memory is bounded, and a controller pauses if the dial can't follow it, or follows the other one. Compiled:
`policies.compiled.adaptive_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Final

from policies.vocabulary import FOLLOW_NS, NS_PER_S, ClusterView, nanoseconds

HORIZON_S: Final = 300.0  # long compared with bursts, which are compensated between them; overloads are forgotten
FEW_S: Final = 4.0  # seconds that count as on target before the first one: a few images mean little
MAX_DEBT_S: Final = 1.5  # half a point for the horizon; more is forgotten: repaying it would overload again
GAIN: Final = 400.0  # shift for each unit of the mean deficit (a tenth of a point: 0.4)
AIM: Final = 0.008  # share of late images: below 1 %, as windows differ, and each must keep its p99
LIMIT_HORIZON_S: Final = 10.0  # a window of `scenarios.metrics.slo`
MAX_EXCESS: Final = 0.03  # above `AIM`; below it can't be less than -AIM: so steps are bounded in both directions
FEW: Final = 200.0  # images that count as in time before the first one
LIMIT_GAIN: Final = 50.0  # shift for each unit of the excess (of a share that is twice `AIM`: 0.5)
LIMIT_GAIN_PER_S: Final = 10.0  # the same, per second
MAX_SHIFT: Final = 8.0  # in both directions: a dial beyond leaves only the widest, or the narrowest
MAX_STRETCH: Final = 1.25  # of thresholds upwards, otherwise unbounded; 3.5 times as high are the most
MAX_WEIGHT: Final = 1e6  # points of accuracy per joule: far above the point at which only the narrowest is left
LONGEST_S: Final = 1.0  # a longer pause between two decisions counts as this
FOLLOW: Final = -1.0  # instead of a separate goal: the operator's
FREE, AT_WIDEST, AT_NARROWEST, AT_BOTH = range(4)  # place of the last decision on its dial; at both: it had none


def end_of_dial(step: int, count: int) -> int:
    """Return the place of a step on a dial of `count` steps, the most accurate first: at an end, or between."""
    if count == 1:
        return AT_BOTH
    if step == 0:
        return AT_WIDEST
    return AT_NARROWEST if step == count - 1 else FREE


@dataclass(slots=True)
class GoalControl:
    """The controllers of one router. They have memory, so they serve one run.

    Attributes:
        floor: floor of mean accuracy; `FOLLOW` for the view's `goal_floor`, 0 for none.
        most: the largest shift towards accuracy.
        limit_ns: of the p99 latency; `FOLLOW_NS` for the view's `goal_limit_ns`, 0 for none. A separate limit of the
            router must reach its core (`policies.interfaces.limit_ns_of`), which counts late images.
        energy_weight: the price of a joule per image, in points of accuracy; `FOLLOW` for the view's.
        best: the most accurate width tuple's accuracy.
        weighs: whether its router uses an energy weight.
        takes_over: whether it begins during a run: images served before its first decision add nothing to its debt.
        end: place of the router's last decision on its dial; the router sets it.
        shift: of the dial, towards accuracy above 0.
        others: the controllers of the classes after the first one, which this one serves.
    """

    floor: float = FOLLOW
    most: float = MAX_SHIFT
    limit_ns: int = FOLLOW_NS
    energy_weight: float = FOLLOW
    best: float = 1.0
    weighs: bool = False
    takes_over: bool = False
    now_ns: int = 0
    completed: int = 0
    late: int = 0
    accuracy_sum: float = 0.0
    held_floor: float = 0.0
    span_s: float = 0.0
    images: float = 0.0
    debt: float = 0.0
    bias: float = 0.0
    floor_shift: float = 0.0
    judged: float = 0.0
    over: float = 0.0
    limit_bias: float = 0.0
    limit_shift: float = 0.0
    shift: float = 0.0
    end: int = FREE
    others: tuple[GoalControl, ...] = ()

    @property
    def all(self) -> tuple[GoalControl, ...]:
        """The controllers, one for each class."""
        return self, *self.others

    def of(self, view: ClusterView) -> GoalControl:
        """Return the controller of the head's class."""
        number = view.head.service_class
        return self.others[number - 1] if number else self

    def step(self, view: ClusterView) -> float:
        """Return the shift for a decision; repeated calls at that decision return the same."""
        return shift_of(self, view)

    def weight(self, view: ClusterView) -> float:
        """Return the price of a joule in points of accuracy."""
        return weight_of(self, view)


# These are plain functions, so that `policies.compiled.adaptive_kernels` can compile them for a plan's record.


def shift_of(control: GoalControl, view: ClusterView) -> float:
    """Return `GoalControl.step`."""
    passed_s = (view.now_ns - control.now_ns) / NS_PER_S
    completed = view.completed - view.others_completed
    came, gained = completed - control.completed, view.accuracy_sum - control.accuracy_sum
    late = view.late - control.late
    if control.takes_over:
        came = 0
        gained = 0.0
        late = 0
        control.takes_over = False
    control.now_ns = view.now_ns
    control.completed = completed
    control.late = view.late
    control.accuracy_sum = view.accuracy_sum
    floor = view.goal_floor if control.floor < 0.0 else control.floor
    limit_ns = view.goal_limit_ns if control.limit_ns < 0 else control.limit_ns
    has_both = floor > 0.0 and limit_ns > 0
    floor_rests = has_both and control.floor_shift < control.limit_shift
    limit_rests = has_both and control.limit_shift < control.floor_shift
    keep_floor(control, floor, came, gained, passed_s, floor_rests)
    keep_limit(control, limit_ns, came, late, passed_s, limit_rests)
    if has_both:
        control.shift = max(control.floor_shift, control.limit_shift)
    else:
        control.shift = control.floor_shift + control.limit_shift  # one of them, at least, is 0
    return control.shift


def weight_of(control: GoalControl, view: ClusterView) -> float:
    """Return `GoalControl.weight`: a floor at risk makes a joule cheaper, and free at the dial's end."""
    if not control.weighs:
        return 0.0
    weight = view.goal_energy_weight if control.energy_weight < 0.0 else control.energy_weight
    return weight * (1.0 - max(0.0, control.floor_shift) / control.most)


def keep_floor(control: GoalControl, floor: float, came: int, gained: float, passed_s: float, rests: bool) -> None:
    """Shift by the mean deficit below the floor."""
    if floor != control.held_floor:  # a changed floor restarts the controller, which then follows soon
        control.held_floor = floor
        control.span_s = 0.0
        control.images = 0.0
        control.debt = 0.0
    if floor <= 0.0:
        control.bias, control.floor_shift = 0.0, 0.0
        return
    passed_s = min(passed_s, LONGEST_S)
    keep = HORIZON_S / (HORIZON_S + passed_s)
    control.span_s = control.span_s * keep + passed_s
    control.images = control.images * keep + came
    control.debt = control.debt * keep + (floor * came - gained)
    if rests and control.debt < 0.0:  # the limit's surplus is mostly dropped before its shift ends
        control.debt *= LIMIT_HORIZON_S / (LIMIT_HORIZON_S + passed_s)
    known_s, deficit = control.span_s + FEW_S, 0.0
    if control.span_s > 0.0 and control.images > 0.0:
        rate = control.images / control.span_s
        debt_s = min(MAX_DEBT_S, max(-MAX_DEBT_S, control.debt / rate))
        control.debt, deficit = debt_s * rate, debt_s / known_s
    if not is_stuck(control, deficit, rests):
        moved = control.bias + GAIN * deficit * passed_s / known_s
        control.bias = min(control.most, max(-MAX_SHIFT, moved))
    control.floor_shift = min(control.most, max(-MAX_SHIFT, control.bias + GAIN * deficit))


def keep_limit(control: GoalControl, limit_ns: int, came: int, late: int, passed_s: float, rests: bool) -> None:
    """Shift by the share of late images beyond `AIM`."""
    if limit_ns <= 0:
        control.judged = 0.0
        control.over = 0.0
        control.limit_bias = 0.0
        control.limit_shift = 0.0
        return
    keep = LIMIT_HORIZON_S / (LIMIT_HORIZON_S + passed_s)
    control.judged = control.judged * keep + came
    control.over = control.over * keep + (late - AIM * came)
    weight = control.judged + FEW
    excess = min(MAX_EXCESS, control.over / weight)
    control.over = excess * weight
    if not is_stuck(control, -excess, rests):
        moved = control.limit_bias - LIMIT_GAIN_PER_S * excess * min(passed_s, LONGEST_S)
        control.limit_bias = min(control.most, max(-MAX_SHIFT, moved))
    control.limit_shift = min(control.most, max(-MAX_SHIFT, control.limit_bias - LIMIT_GAIN * excess))


def is_stuck(control: GoalControl, demand: float, rests: bool) -> bool:
    """Return whether the dial could not follow a demand (for accuracy above 0), which would only have to be undone.

    A controller that `rests` is not followed at all, and must not demand less than the other meanwhile.
    """
    return (
        control.end == AT_BOTH
        or (control.end == AT_WIDEST and demand > 0.0)
        or (control.end == AT_NARROWEST and demand < 0.0)
        or (rests and demand < 0.0)
    )


class Steered:
    """A router whose goals can be set during a run, for all classes; each of them overrides the operator's.

    It has a `control`, or `control` is None if it was created without one.
    """

    __slots__ = ()

    @property
    def p99_limit_ns(self) -> int:
        """The router's separate limit (`policies.interfaces.limit_ns_of`)."""
        control: GoalControl | None = getattr(self, "control", None)
        return FOLLOW_NS if control is None else control.limit_ns

    def set_floor(self, floor: float | None) -> None:
        """Keep this mean accuracy from now on; 0 for no floor, None for the operator's.

        Raises:
            ValueError: the router has no control; no width tuple is as accurate.
        """
        control = self._goals("floor", floor)
        if floor is not None and floor > control.best:
            raise ValueError(f"no width tuple is as accurate as {floor:g}; the best has {control.best:.4f}")
        for controller in control.all:
            controller.floor = FOLLOW if floor is None else floor

    def set_p99_limit(self, limit_s: float | None) -> None:
        """Be as accurate as this p99 latency, in seconds, allows; 0 for no limit, None for the operator's.

        Raises:
            ValueError: the router has no control; the limit is below 0.
        """
        control = self._goals("limit", limit_s)
        for controller in control.all:
            controller.limit_ns = FOLLOW_NS if limit_s is None else nanoseconds(limit_s)

    def set_energy_weight(self, weight: float | None) -> None:
        """Set the price of a joule per image, in points of accuracy (0.01); 0 for nothing, None for the operator's.

        Raises:
            ValueError: the router has no control, or no energy costs; the weight is below 0.
        """
        control = self._goals("weight of energy", weight)
        if not control.weighs:
            raise ValueError("this router has no energy weight; only compass has one")
        for controller in control.all:
            controller.energy_weight = FOLLOW if weight is None else weight

    def _goals(self, name: str, value: float | None) -> GoalControl:
        control: GoalControl | None = getattr(self, "control", None)
        if control is None:
            raise ValueError(f"this router was made without `control`; no {name} can be set")
        if value is not None and not (isfinite(value) and value >= 0.0):
            raise ValueError(f"a {name} of {value:g}; expected 0 for none, numbers above it, and None")
        return control
