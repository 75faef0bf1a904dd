"""Tide: a ladder over the tuples that are worth their time, on which a price of device time goes up and down.

    rung = argmax over rungs of accuracy - price x device time            the price: `policies.rules.price`

The rungs are the corners of the accuracy table's front (its convex hull over device time), so each has a range of
prices at which it is the best, and the thresholds between them come from the table and the profiles: none is learned.
Where a joule has a weight, too, a threshold falls by what the power of its step costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from kit.errors import InputError
from policies.goal_control import MAX_STRETCH
from policies.rules.context import ComposedRouter, RouterContext
from policies.rules.controlled import ControlledLadder, ControlSpec
from policies.rules.costs import corner_tuples, full_widths, path_energy_j, tuple_costs_s
from policies.rules.price import Price
from policies.rules.specs import POINT, From0, PlacedRule, Reals, Space
from policies.rules.widths import Ladder

_LEVEL: Final = -5.5
_RISE: Final = 1.2
_SPREAD: Final = (0.8, 0.4)  # of both, in the search
_LEVELS: Final = (0.0, 1.0, -1.0, 2.0)  # from the start's, where the search may begin


class TideRule(PlacedRule):
    """Tide's numbers.

    Attributes:
        level: the logarithm of the price when nobody is there: accuracy (a share) for an image's way at full width.
        rise: how steeply it follows the load (`policies.rules.price`).
        control: that it keeps goals, for which its price moves; left alone where it is not given.
    """

    KIND: ClassVar[str] = "tide"

    level: float = _LEVEL
    rise: From0 = _RISE
    control: ControlSpec | None = None

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space:
        """Its two numbers; accuracy rises as the level falls."""

        def rule(values: Reals) -> TideRule:
            level, rise = values.tolist()
            return cls(level=level, rise=max(rise, 0.0))

        first, accurate = np.array([_LEVEL, _RISE]), np.array([-1.0, 0.0])
        starts = [first - by * accurate for by in _LEVELS]
        return Space("TideSpace", first, np.array(_SPREAD), accurate, rule, starts)

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> ComposedRouter:
        """See `RuleSpec`."""
        self.check(context.config, source, key)
        ladder = self._ladder(context, source, key)
        if self.control is None:
            return self._composed(context, ladder, source, key)
        most = MAX_STRETCH * max(1.0, self.rise)  # as far as leads to loads that are 3.5 times as large
        control = self.control.make(context.config, source, key, most, weighs=True)
        return self._composed(context, ControlledLadder(ladder, control), source, key)

    def _ladder(self, context: RouterContext, source: str, key: str) -> Ladder:
        rungs, thresholds = priced_rungs(context, source, key)
        energies_j = np.diff([path_energy_j(context, rung) for rung in rungs])
        joules = tuple((POINT * energies_j / np.diff(_costs(context, rungs))).tolist())
        price = Price(self.level, self.rise)
        return Ladder(context.config.widths, rungs, thresholds, price=price, joules=joules)


def priced_rungs(
    context: RouterContext, source: str, key: str
) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """The width tuples that are worth their time, the most accurate first, and the price from which each next one is.

    Raises:
        InputError: the accuracy table has no tuple of the core's widths.
    """
    rungs = tuple(corner_tuples(context))
    if not rungs:
        raise InputError(source, key, f"the accuracy table has no tuple of the widths {context.config.widths}")
    steps = np.diff(np.array([_costs(context, rungs), [context.prior(rung) for rung in rungs]]))
    return rungs, tuple((steps[1] / steps[0]).tolist())


def _costs(context: RouterContext, rungs: Sequence[tuple[float, ...]]) -> list[float]:
    """Device time, of which a way at full width is 1."""
    full = full_widths(context.config)
    costs_s = tuple_costs_s(context, (*rungs, full))
    return [costs_s[rung] / costs_s[full] for rung in rungs]
