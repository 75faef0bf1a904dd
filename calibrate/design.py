"""Choice of measurements in the remaining time: points at which a surface through those so far is least certain.

It chooses among planned steps, from finished steps alone: a resumed calibration, which finds them in its log, makes the
same choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from scipy.linalg import LinAlgError

from calibrate.costs import Key, KeyCost
from calibrate.measure import Measurement
from calibrate.plan import PlannedStep, Solo
from calibrate.slowdown import Speed
from calibrate.solo import solo_points
from calibrate.surface import MIN_POINTS, Surface, least_sure
from hw.transport.messages import Point

AT_ONCE = 4  # fit the surface again when a quarter more is measured


class LeastSure:
    """An order of spare steps by uncertainty; see `calibrate.plan.Order`.

    Args:
        costs: costs of every key.
        speed: relation of reference times to passes.
    """

    def __init__(self, costs: Mapping[Key, KeyCost], speed: Speed) -> None:
        self._costs = costs
        self._speed = speed

    def __call__(
        self, spare: Sequence[PlannedStep], finished: Callable[[], Sequence[Measurement]]
    ) -> Iterator[PlannedStep]:
        """Yield steps one after another, each group chosen from the steps finished when it begins."""
        left = {planned.step.point: planned for planned in spare if isinstance(planned.step, Solo)}
        done = {step.point for step, _ in finished() if isinstance(step, Solo) and not step.held_out}
        targets = sorted({*left, *done})
        seen = -1
        while left and len(finished()) > seen:
            seen = len(finished())
            for point in self._next(list(left.values()), targets, finished()):
                yield left.pop(point)
        yield from left.values()  # no time is left; some may be in the log

    def _next(
        self, left: Sequence[PlannedStep], targets: Sequence[Point], finished: Sequence[Measurement]
    ) -> Sequence[Point]:
        """Return the next group; the first of the remaining steps if no surface can be fitted."""
        cost_s = {planned.step.point: planned.estimated_s for planned in left if isinstance(planned.step, Solo)}
        solo = solo_points(finished, 1, self._speed, held_out=False)
        number = max(1, len(solo) // AT_ONCE)
        if len(solo) < MIN_POINTS or {point.key for point in solo} != set(self._costs):
            return list(cost_s)[:number]
        try:
            surface = Surface({point: fit.seen for point, fit in sorted(solo.items())}, self._costs)
        except LinAlgError:  # points that no surface fits
            return list(cost_s)[:number]
        return least_sure(surface, targets, cost_s, number)
