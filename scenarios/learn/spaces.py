"""What can be tuned, as points of a space: one class a kind of router."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from typing import Final

import numpy as np

from policies.interfaces import RoutingPolicy
from policies.rules.context import RouterContext
from policies.rules.costs import default_target_s, efficient_tuples, spread
from policies.rules.specs import InfaasRule, LadderRule, MilpRule, RuleSpec, SlackFitRule
from policies.tide import knobs as tide_knobs
from policies.tide.router import TideRouter
from scenarios.learn.search import Reals

POINT = 0.01  # of accuracy
RUNGS = 8


@dataclass(frozen=True, slots=True)
class TuningKnobs:
    """How a router is tuned; the switches are those of the ablation in docs/tide.md.

    Attributes:
        floor: mean accuracy, a share, that must be kept.
        decisions: how many simulated decisions the search may take; levelling comes on top, for all alike.
        seed: of the search, and of the runs it sees.
        episodes: runs that every candidate is measured on in a generation.
        episode_s: their length; excerpts of the scenario.
        levels: full-length runs that the floor is set on.
        tail: weight of log p99 beside the log mean: the tail constraint.
        common: all candidates of a generation see the same runs (common random numbers).
        logs: objectives are logarithms, so that runs of unequal load count alike.
        race: candidates that are worst on the first run are given up: those that blew up cost little.
        pid: what a point of accuracy is worth is controlled (a Lagrangian multiplier); else the floor is a steep wall.
        rates: each run's rate is drawn from this range, in times of the workload's.
        without: groups of Tide's knobs that are switched off.
        population, elite: of a generation.
    """

    floor: float
    decisions: int = 40_000_000
    seed: int = 0
    episodes: int = 3
    episode_s: float = 10.0
    levels: int = 3
    tail: float = 0.2
    common: bool = True
    logs: bool = True
    race: bool = True
    pid: bool = True
    rates: tuple[float, float] = (1.0, 1.0)
    without: tuple[str, ...] = ()
    population: int = 16
    elite: int = 4


class Space(ABC):
    """The numbers of one kind of router.

    Attributes:
        start, spread: where the search begins, and how far it looks.
        levelled: which of them trades latency for accuracy; accuracy rises with `direction` times it.
    """

    start: Reals
    spread: Reals
    levelled: int = 0
    direction: float = 1.0
    reach: float = 6.0  # how far levelling may move it

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        self.context = context

    @abstractmethod
    def rule(self, values: Reals) -> RuleSpec | None:
        """The rule with these numbers; None for Tide."""

    def router(self, values: Reals) -> RoutingPolicy:
        """A fresh router with these numbers."""
        rule = self.rule(values)
        assert rule is not None
        return rule.make(self.context)

    def starts(self) -> list[Reals]:
        """Where the search may begin: with the first, unless that blows up and another does not."""
        return [self.start]

    def shifted(self, values: Reals, by: float) -> Reals:
        """More accurate for `by` above 0."""
        moved = values.copy()
        moved[self.levelled] += self.direction * by
        return moved


class TideSpace(Space):
    """Tide's knobs; its price's level is levelled."""

    direction = -1.0

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        size = (context.config.segments, len(context.config.widths))
        self.start = tide_knobs.start(*size, knobs.without)
        self.spread = tide_knobs.spread(*size, knobs.without)

    def rule(self, values: Reals) -> None:
        """It is no rule."""

    def router(self, values: Reals) -> TideRouter:
        """See `Space`."""
        return TideRouter(values, self.context)


class LadderSpace(Space):
    """The gaps between a ladder's thresholds, in logarithms; all of them are levelled."""

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        self.rungs = spread(efficient_tuples(context), RUNGS)
        self.start, self.spread = np.full(len(self.rungs) - 1, 2.5), np.full(len(self.rungs) - 1, 0.8)

    def rule(self, values: Reals) -> LadderRule:
        """See `Space`."""
        return LadderRule(rungs=self.rungs, thresholds=tuple(np.cumsum(np.exp(values)).tolist()))

    def starts(self) -> list[Reals]:
        """See `Space`."""
        return [self.shifted(self.start, by) for by in (0.0, -1.0, -2.0, 1.0)]

    def shifted(self, values: Reals, by: float) -> Reals:
        """All thresholds at so many times the load."""
        return values + by


class SlackFitSpace(Space):
    """The latency target's logarithm."""

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        self.start, self.spread = np.array([log(default_target_s(context))]), np.array([1.5])

    def rule(self, values: Reals) -> SlackFitRule:
        """See `Space`."""
        return SlackFitRule(target_s=exp(values[0]))


class InfaasSpace(Space):
    """Logarithms of the share of the target above which a server steps down, of the target, and of up over down.

    The last is the accuracy of the cheapest variant, in points: at the floor itself that is kept whatever comes.
    """

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        accuracies = [context.prior(widths) for widths in efficient_tuples(context)]
        self._least, self._most = min(accuracies), max(accuracies)
        self.start = np.array([log(0.1), log(default_target_s(context)), log(0.3), knobs.floor / POINT])
        self.spread = np.array([1.0, 1.0, 0.6, 1.0])

    def rule(self, values: Reals) -> InfaasRule:
        """See `Space`."""
        down, floor = exp(values[0]), min(max(float(values[3]) * POINT, self._least), self._most)
        return InfaasRule(target_s=exp(values[1]), down=down, up=down * min(0.95, exp(values[2])), floor=floor)

    def starts(self) -> list[Reals]:
        """See `Space`."""
        return [np.append(self.start[:3], self._least / POINT), self.start]


class MilpSpace(Space):
    """Logarithms of the headroom (less of it is more accurate) and of the period."""

    direction = -1.0

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        self.start, self.spread = np.array([log(1.2), log(1.0)]), np.array([0.4, 0.8])

    def rule(self, values: Reals) -> MilpRule:
        """See `Space`."""
        return MilpRule(headroom=exp(values[0]), period_s=max(0.5, exp(values[1])))


SPACES: Final[Mapping[str, type[Space]]] = {
    "tide": TideSpace,
    "ladder": LadderSpace,
    "slackfit": SlackFitSpace,
    "infaas": InfaasSpace,
    "milp": MilpSpace,
}
KINDS: Final = (*SPACES, "fixed")
