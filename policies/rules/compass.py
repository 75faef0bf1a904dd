"""Compass: one policy for any cluster, with numbers that do not depend on a cluster's size or speed.

Each decision answers two questions.

*Which width tuple?* The one that is worth its device time at the present price: accuracy per device time. The price's
logarithm is `level`, and rises with the load. The micro-batch runs at that tuple's width.

*Which server?* That with the least expected time until the micro-batch has passed all its segments there (a path):
outstanding work, transfer and its batches.

New images wait at the first segment for larger batches (`policies.router_queue`): for about twice the number that
arrives for each server while it serves one image, with few servers for fewer, as these arrive more slowly. So none
waits if servers keep up with single images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log1p
from typing import ClassVar, Final, NamedTuple

import numpy as np
from pydantic import Field

from kit.errors import InputError
from kit.strict import StrictModel
from policies.goal_control import MAX_STRETCH, GoalControl, Steered, end_of_dial
from policies.interfaces import CostModel, RoutingPolicy
from policies.rules.rule_context import (
    PathRule,
    RouterContext,
    batch_ns,
    corner_tuples,
    full_widths,
    held_width,
    is_up,
    looked_at,
    outstanding_ns,
    path,
    path_energy_j,
    transfer_ns,
    tuple_costs_s,
)
from policies.rules.rule_params import POINT, From0, Reals, RuleSpec, Space, holding
from policies.rules.rule_parts import ControlSpec
from policies.vocabulary import BatchingDelayRule, Choice, ClusterView, WorkKey

FEW: Final = 8.0  # requests: from here on the load enters by its logarithm
MORE_SERVERS: Final = 2  # with few servers a batch takes long to fill, compared with its pass
MAX_LOG_PRICE: Final = 20.0  # in both directions


class Numbers(StrictModel):
    """What the search finds. All are dimensionless.

    Attributes:
        level: the logarithm of the price of an empty cluster.
        rise: what it has more for each e-fold of 1 + (requests per server) / `FEW`.
        batching_delay_arrivals: new images wait for the number that arrives, for each server and `MORE_SERVERS` others,
            in this many times what an image takes alone at full width.
    """

    level: float = -5.7
    rise: From0 = 2.2
    batching_delay_arrivals: From0 = 2.0

    @classmethod
    def of_vector(cls, values: Reals) -> Numbers:
        """Return the numbers of (K,) values, field after field; values below a field's bound become the bound."""
        least = [
            max((each.ge for each in of.metadata if hasattr(each, "ge")), default=-inf)
            for of in cls.model_fields.values()
        ]
        return cls(**dict(zip(cls.model_fields, np.maximum(values, least).tolist(), strict=True)))

    def to_vector(self) -> Reals:
        """Return the (K,) values that `of_vector` reads."""
        return np.array([getattr(self, name) for name in type(self).model_fields])


SPREAD: Final = Numbers(level=0.4, rise=0.4, batching_delay_arrivals=0.6).to_vector()  # how far a search looks


# ------------------------------------------------------------------------------------- what both engines compute


def log_price(weights: Numbers, load: float, shift: float) -> float:
    """Return the price's logarithm; `shift` is the dial's."""
    value = weights.level + weights.rise * log1p(load / FEW) - shift
    return min(MAX_LOG_PRICE, max(-MAX_LOG_PRICE, value))


# ---------------------------------------------------------------------------------------------------- the reference


class PricedRungs(NamedTuple):
    """The worth of a model's width tuples, in device time; a whole way at full width is 1.

    Attributes:
        rungs: the tuples that are worth their time, the most accurate first.
        thresholds: for each step to the next one, the price above which it pays.
        savings: the decrease of the threshold for each point of accuracy that a joule is worth.
    """

    rungs: tuple[tuple[float, ...], ...]
    thresholds: tuple[float, ...]
    savings: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Compass(Steered):
    """The reference implementation of the module's policy.

    Attributes:
        micro_batch_sizes: the sizes to choose from; always the largest.
        priced: for each class the worth of its model's width tuples.
        paths: every micro-batch passes all its segments at its server.
        control: keeps goals: it moves the price, and weighs joules.
    """

    costs: CostModel
    widths: tuple[float, ...]
    micro_batch_sizes: tuple[int, ...]
    weights: Numbers
    priced: tuple[PricedRungs, ...]
    paths: PathRule
    control: GoalControl | None = None

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate micro-batch; draws no random numbers."""
        priced = self.priced[view.head.service_class]
        widths, size = priced.rungs[self._rung(view, priced)], self.micro_batch_sizes[-1]
        images, best = min(size, view.candidates), Choice(0, widths[view.head.segment - 1], size)
        least = inf
        for index in looked_at(view):
            server = view.servers[index]
            if server.valid:
                width = held_width(self.widths, server.widths, widths[view.head.segment - 1])
                choice = Choice(index, width, size, self.paths.then(view, index, widths))
                end_ns = self._until_end_ns(view, choice, images)
                if end_ns < least:
                    least, best = end_ns, choice
        return best

    def _rung(self, view: ClusterView, priced: PricedRungs) -> int:
        """Return the rung of the width tuple for the price."""
        inside = view.fifo_length + sum(server.outstanding_requests for server in view.servers)
        load = inside / max(1, sum(is_up(server) for server in view.servers))
        shift, weight = 0.0, 0.0
        control = None if self.control is None else self.control.of(view)
        if control is not None:
            shift, weight = control.step(view), control.weight(view)
        price = exp(log_price(self.weights, load, shift))
        steps = zip(priced.thresholds, priced.savings, strict=True)
        rung = sum(price > threshold - weight * saving for threshold, saving in steps)
        if control is not None:
            control.end = end_of_dial(rung, len(priced.rungs))
        return rung

    def _until_end_ns(self, view: ClusterView, choice: Choice, images: int) -> int:
        server, previous_width = choice.server, view.head.previous_width
        own_ns = transfer_ns(self.costs, view, server)
        for segment, width in enumerate((choice.width, *choice.then), start=view.head.segment):
            own_ns += batch_ns(self.costs, server, WorkKey(segment, width, previous_width), images)
            previous_width = width
        return outstanding_ns(self.costs, view, server) + own_ns


class CompassRule(RuleSpec):
    """Server and width at once, for any cluster (`Compass`).

    Attributes:
        numbers: what was searched; the built-in ones if not given.
        control: that it keeps goals, for which its price moves: by default the operator's floor, as fast as
            possible.
    """

    KIND: ClassVar[str] = "compass"

    numbers: Numbers = Field(default_factory=Numbers)
    control: ControlSpec | None = Field(default_factory=lambda: ControlSpec(p99_limit_s=0.0))

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space:
        """Return the space of all numbers, around the built-in ones."""
        ships = Numbers().to_vector()
        return Space("CompassSpace", ships, SPREAD, lambda values: cls(numbers=Numbers.of_vector(values), control=None))

    def dialled(self, by: float, context: RouterContext) -> CompassRule:
        """See `RuleSpec`."""
        numbers = self.numbers.model_copy(update={"level": self.numbers.level - by})
        return self.model_copy(update={"numbers": numbers, "control": None})

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """See `RuleSpec`; a `batching_delay` of the file replaces the numbers'."""
        router = self.chooser(context, source, key)
        batching_delay = (
            self.batching_delay.rule()
            if self.batching_delay is not None
            else batching_delay_of(router.weights, context)
        )
        return holding(router, batching_delay, context)

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> Compass:
        """See `RuleSpec`."""
        self.check(context.config, source, key)
        config = context.config
        numbers = self.numbers
        priced = [priced_rungs(context, source, key, widths) for widths in config.model_widths]
        most = MAX_STRETCH * max(1.0, numbers.rise)  # up to loads 3.5 times as large
        is_asked = config.accuracies or self.control != ControlSpec(p99_limit_s=0.0)  # default: only with a table
        control = None
        if self.control is not None and is_asked:
            control = self.control.make(config, source, key, most, weighs=True)
        return Compass(
            costs=context.costs,
            widths=config.widths,
            micro_batch_sizes=self.micro_batch_sizes(config, source, key),
            weights=numbers,
            priced=tuple(priced[model] for model in config.class_models),
            paths=PathRule.of(context),
            control=control,
        )


def priced_rungs(context: RouterContext, source: str, key: str, widths: Sequence[float]) -> PricedRungs:
    """Return the worth of a model's width tuples: the corners of its accuracy table's front over device time.

    Raises:
        InputError: the accuracy table has no tuple of these widths.
    """
    rungs, full = tuple(corner_tuples(context, widths)), full_widths(context.config, widths)
    if not rungs:
        raise InputError(source, key, f"the accuracy table has no tuple of the widths {widths}")
    costs_s = tuple_costs_s(context, (*rungs, full))
    cost_steps = np.diff([costs_s[rung] / costs_s[full] for rung in rungs])
    accuracies = np.diff([context.prior(rung) for rung in rungs])
    energies_j = np.diff([path_energy_j(context, rung) for rung in rungs])
    return PricedRungs(
        rungs, tuple((accuracies / cost_steps).tolist()), tuple((POINT * energies_j / cost_steps).tolist())
    )


def mean_path_ns(context: RouterContext, images: int) -> float:
    """Return what a full-width micro-batch's path takes on the mean server; the mean of several models."""
    servers, models = range(context.config.servers), context.config.model_widths
    keys = [key for widths in models for key in path(full_widths(context.config, widths))]
    total_ns = sum(batch_ns(context.costs, server, key, images) for server in servers for key in keys)
    return total_ns / (len(servers) * len(models))


def batching_delay_of(numbers: Numbers, context: RouterContext) -> BatchingDelayRule:
    """Return the rule by which new images wait, no longer than the core allows."""
    config = context.config
    arrivals_ns = round(numbers.batching_delay_arrivals * mean_path_ns(context, 1) / (config.servers + MORE_SERVERS))
    later = [0] * (config.segments - 1)
    return BatchingDelayRule((1,) * config.segments, (config.max_batching_delay_ns, *later), (arrivals_ns, *later))
