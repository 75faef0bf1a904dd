"""Direct search: the cross-entropy method over a few numbers, with a floor that a measured quantity must keep.

Rubinstein 1999; Mannor, Rubinstein, Gat 2003. It is independent of what it searches: `ask` for candidates, then report
their costs to `tell`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
_SETTLED = 0.15  # of the first deviations


@dataclass(frozen=True, slots=True)
class SearchKnobs:
    """Settings of the search.

    Attributes:
        population: candidates of one generation.
        elite: how many of the best the next generation is drawn around.
        inertia: share of the old mean and deviation that is kept.
        widening: the elite's deviation is multiplied by this, because few samples underestimate it.
        least_spread: the deviation never falls below this share of the first one.
    """

    population: int = 16
    elite: int = 4
    inertia: float = 0.3
    widening: float = 1.2
    least_spread: float = 0.02

    def __post_init__(self) -> None:
        if not 1 <= self.elite <= self.population:
            raise ValueError(f"elite ({self.elite}) must be from 1 to population ({self.population})")


class CrossEntropy:
    """Each generation is drawn around the best of the last one; its mean and the best so far are always among it.

    Args:
        start: (K,) the first mean.
        spread: (K,) the first deviation; a number with 0 stays as it is.
        rng: what candidates are drawn with.
    """

    def __init__(self, start: Reals, spread: Reals, rng: np.random.Generator, knobs: SearchKnobs | None = None) -> None:
        self.knobs = knobs or SearchKnobs()
        self.mean, self.deviation = start.astype(np.float64), spread.astype(np.float64)
        self.best, self.best_cost = self.mean.copy(), np.inf
        self._spread, self._rng = spread.astype(np.float64), rng

    @property
    def settled(self) -> bool:
        """Whether every number is searched within a seventh of the initial spread: more of it changes little."""
        return bool(np.all(self.deviation <= _SETTLED * self._spread))

    def ask(self) -> Reals:
        """Return (population, K) candidates; the first is the mean, the second the best so far (once there is one)."""
        drawn = self._rng.standard_normal((self.knobs.population, len(self.mean)))
        candidates: Reals = self.mean + self.deviation * drawn
        candidates[0] = self.mean
        if np.isfinite(self.best_cost) and len(candidates) > 1:
            candidates[1] = self.best
        return candidates

    def tell(self, candidates: Reals, costs: Reals, *, comparable: bool = True) -> None:
        """Record what candidates cost; not a number, or infinite, for those that were given up.

        Args:
            comparable: whether these costs can be compared with earlier generations' (the same chance in both).
        """
        costs = np.where(np.isnan(costs), np.inf, costs)
        order = np.argsort(costs, kind="stable")
        if not comparable or costs[order[0]] < self.best_cost:
            self.best, self.best_cost = candidates[order[0]].copy(), float(costs[order[0]])
        known = [index for index in order[: self.knobs.elite] if np.isfinite(costs[index])]
        if not known:
            return
        elite, knobs = candidates[known], self.knobs
        self.mean = knobs.inertia * self.mean + (1 - knobs.inertia) * elite.mean(axis=0)
        wider = knobs.widening * elite.std(axis=0) + knobs.least_spread * self._spread
        self.deviation = knobs.inertia * self.deviation + (1 - knobs.inertia) * wider


class FloorMultiplier:
    """The price of falling short of a floor, by proportional, integral and derivative control (Stooke et al. 2020).

    Args:
        gains: of the shortfall, of its sum, of its change.
        start: the first sum's part of the price.
    """

    def __init__(self, gains: tuple[float, float, float], start: float = 0.0) -> None:
        self._gains = gains
        self._sum, self._last = start, 0.0
        self.value = max(0.0, start)

    @property
    def state(self) -> tuple[float, float, float]:
        """All that it remembers; may be set."""
        return self.value, self._sum, self._last

    @state.setter
    def state(self, state: tuple[float, float, float]) -> None:
        self.value, self._sum, self._last = state

    def update(self, shortfall: float) -> float:
        """Return the new price after a shortfall (negative if the floor was passed)."""
        proportional, integral, derivative = self._gains
        self._sum = max(0.0, self._sum + integral * shortfall)
        change, self._last = shortfall - self._last, shortfall
        self.value = max(0.0, proportional * shortfall + self._sum + derivative * max(0.0, change))
        return self.value
