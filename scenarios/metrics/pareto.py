"""Trade-offs of accuracy against a cost: which routers no other one beats on both, and how much their front covers.

Up in accuracy and down in cost is better. One point *beats* another that has no more accuracy and no less cost, unless
they are the same point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """One router: accuracy in [0, 1] and a cost in any one unit."""

    name: str
    accuracy: float
    cost: float

    def beats(self, other: ParetoPoint) -> bool:
        """Check whether it is no worse on both, and better on one."""
        is_no_worse = self.accuracy >= other.accuracy and self.cost <= other.cost
        return is_no_worse and (self.accuracy, self.cost) != (other.accuracy, other.cost)


def pareto_front(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points that no other one beats, from the cheapest on; two that are the same are both on it."""
    front: list[ParetoPoint] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.accuracy)):
        if not front or not front[-1].beats(point):
            front.append(point)
    return front


def worst_corner(points: Sequence[ParetoPoint]) -> ParetoPoint:
    """Return the least accuracy of any with the highest cost of any: what every router is at least as good as."""
    return ParetoPoint("worst", min(point.accuracy for point in points), max(point.cost for point in points))


def hypervolume(points: Sequence[ParetoPoint], reference: ParetoPoint) -> float:
    """Return the area that some point covers: no better than the point on both, and no worse than the reference.

    In two dimensions the hypervolume indicator of Zitzler and Thiele (1998) is a staircase under the front. A point
    that does not beat the reference covers nothing.
    """
    covered, cost = 0.0, reference.cost
    within = [point for point in points if point.cost < reference.cost]
    for point in reversed(pareto_front(within)):  # from the most accurate on: each covers what is between the costs
        height = max(0.0, point.accuracy - reference.accuracy)
        covered += height * (cost - point.cost)
        cost = point.cost
    return covered


def share_covered(points: Sequence[ParetoPoint], reference: ParetoPoint) -> float | None:
    """Return hypervolume over the rectangle from the reference to the best accuracy at the least cost; None if flat.

    1 means that one point has both.
    """
    ideal = ParetoPoint("ideal", max(point.accuracy for point in points), min(point.cost for point in points))
    whole = hypervolume([ideal], reference)
    return hypervolume(points, reference) / whole if whole else None


def contributions(points: Sequence[ParetoPoint], reference: ParetoPoint) -> dict[str, float]:
    """Return, for each name, the hypervolume that no other name covers."""
    whole = hypervolume(points, reference)
    rest = {one.name: [other for other in points if other is not one] for one in points}
    return {name: whole - hypervolume(others, reference) for name, others in rest.items()}
