"""Published routers: INFaaS (Romero et al., ATC 2021) and SuperServe's SlackFit (Khare et al. 2025).

INFaaS (`InfaasRule`): a variant for each server that follows the server's load. Kept from INFaaS: a query names an
accuracy floor and a latency target, and gets the cheapest variant that meets both; each worker then replaces its
variant by a faster one while it is overloaded, and by a better one when it has room, with hysteresis between the two.
Different from INFaaS: variants are width tuples of one network that is loaded anyway, so that a change has no start-up
cost; the cost is expected device time, not money; there is nothing to rent, so neither horizontal scaling nor a choice
of hardware; and room is used to gain accuracy above the floor, for which INFaaS has no reason.

SlackFit (`SlackFitRule`): width and micro-batch size by the micro-batch's slack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log
from typing import Annotated, ClassVar, Final

import numpy as np
from pydantic import Field, model_validator

from kit.errors import InputError
from policies.interfaces import CostModel
from policies.rules.rule_context import (
    ComposedRouter,
    Placement,
    RouterContext,
    batch_ns,
    default_target_s,
    efficient_tuples,
    full_widths,
    held_width,
    outstanding_ns,
    path,
    speeds_img_s,
    spread,
    transfer_ns,
)
from policies.rules.rule_params import POINT, Above0, From0, PlacedRule, Reals, Share, Space, TupleRule
from policies.rules.rule_parts import FixedWidths, make_placement
from policies.vocabulary import NS_PER_S, Choice, ClusterView, WorkKey

VARIANTS: Final = 8  # at most, evenly over the efficient tuples: a step should matter


@dataclass(slots=True)
class Variants:
    """A variant for each server, one step cheaper or better at a time, according to a request's expected wait.

    The wait expected at a server is its outstanding work, and the FIFO's as if it were shared by speed. Above `down_ns`
    the server steps one variant down (cheaper), below `up_ns` one up (better); it keeps each for `dwell_ns` at least.
    If `leap` is above 1, at n times `down_ns` it steps n variants down, up to `leap`. Repeated calls at the same time
    return the same, so a placement may ask for every server's width.

    Attributes:
        variants: for each server, width tuples, the best first.
        waiting_ns: the addition of one request in the FIFO to every server's expected wait.
        levels: for each server, its variant now; the cheapest initially.
        since_ns: for each server, the time of its last step.
    """

    widths: tuple[float, ...]
    costs: CostModel
    variants: tuple[tuple[tuple[float, ...], ...], ...]
    waiting_ns: int
    up_ns: int
    down_ns: int
    dwell_ns: int
    leap: int = 1
    levels: list[int] = field(init=False)
    since_ns: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.levels = [len(variants) - 1 for variants in self.variants]
        self.since_ns = [-self.dwell_ns for _ in self.variants]  # free to step at once

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """Return the width for the view's candidate micro-batch on that server."""
        step = self._step(view, server)
        if step != 0:
            self.levels[server] += step
            self.since_ns[server] = view.now_ns
        target = self.widths_of(view, server)[view.head.segment - 1]
        return held_width(self.widths, view.servers[server].widths, target)

    def widths_of(self, view: ClusterView, server: int) -> tuple[float, ...]:
        """Return the widths of all segments of that server's present variant."""
        return self.variants[server][self.levels[server]]

    def _step(self, view: ClusterView, server: int) -> int:
        if view.now_ns - self.since_ns[server] < self.dwell_ns:
            return 0
        wait_ns = outstanding_ns(self.costs, view, server) + view.fifo_length * self.waiting_ns
        cheaper = len(self.variants[server]) - 1 - self.levels[server]
        if wait_ns > self.down_ns and cheaper > 0:
            return min(self.leap, cheaper, wait_ns // max(self.down_ns, 1))
        return -1 if wait_ns < self.up_ns and self.levels[server] > 0 else 0


def make_variants(
    context: RouterContext,
    floor: float,
    target_s: float,
    up: float,
    down: float,
    dwell_s: float | None = None,
    leap: int = 1,
) -> Variants:
    """Create the rule for a cluster: on each server the efficient tuples that keep the floor and, alone, the latency
    target.

    Args:
        floor: accuracy in [0, 1] of the cheapest variant, at least.
        target_s: end-to-end latency target.
        up, down: shares of the target; a server whose wait is below `up` of it goes up, above `down` of it down.
        dwell_s: how long a server keeps a variant; the target if it is None.
        leap: the largest number of variants in a step down.

    Raises:
        ValueError: no tuple of the accuracy table is as accurate as the floor.
    """
    config = context.config
    costs = context.costs
    accuracies = context.prior.accuracies
    accurate = [widths for widths in efficient_tuples(context) if accuracies[widths] >= floor]
    if not accurate:
        best = max((accuracies[widths] for widths in efficient_tuples(context)), default=0.0)
        raise ValueError(f"no width tuple is as accurate as {floor:g}; the best has {best:.4f}")
    target_ns = round(target_s * NS_PER_S)
    variants = []
    for server in range(config.servers):
        alone_ns = {widths: sum(batch_ns(costs, server, key, 1) for key in path(widths)) for widths in accurate}
        quick = [widths for widths in accurate if alone_ns[widths] <= target_ns]
        variants.append(spread(quick or accurate[-1:], VARIANTS))
    total = 0.0
    for speed in speeds_img_s(context):
        total += speed
    return Variants(
        widths=config.widths,
        costs=costs,
        variants=tuple(variants),
        waiting_ns=round(NS_PER_S / (total * config.segments)),
        up_ns=round(up * target_ns),
        down_ns=round(down * target_ns),
        dwell_ns=max(target_ns if dwell_s is None else round(dwell_s * NS_PER_S), 1),
        leap=leap,
    )


class InfaasRule(TupleRule):
    """Each server's variant by its load (`Variants`).

    Attributes:
        floor: accuracy in [0, 1] of the cheapest variant, at least.
        target_s: as for `slackfit`.
        up, down: shares of the target; a server goes to a better variant while requests would wait for less than `up`
            of it, to a cheaper one above `down` of it.
        dwell_s: how long a server keeps a variant at least; as long as the target if it is not given.
        leap: how many variants at once a server may go down: n at n times `down`.
    """

    KIND: ClassVar[str] = "infaas"
    BY_MODEL: ClassVar[bool] = False

    floor: Share = 0.0
    target_s: Above0 | None = None
    up: From0 = 0.02
    down: Above0 = 0.1
    dwell_s: From0 | None = None
    leap: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _ordered(self) -> InfaasRule:
        if self.up >= self.down:
            raise ValueError(f"up ({self.up:g}) must be below down ({self.down:g})")
        return self

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space:
        """Return the space of logarithms of `down`, of the target, and of up over down; the cheapest variant's
        accuracy, in points; the logarithm of the dwell time over the target, and the number of variants in a leap
        beyond one.

        At the floor itself that accuracy is always kept.
        """
        accuracies = [context.prior(widths) for widths in efficient_tuples(context)]
        least, most = min(accuracies), max(accuracies)
        start = np.array([log(0.1), log(default_target_s(context)), log(0.3), floor / POINT, log(0.1), 1.0])

        def rule(values: Reals) -> InfaasRule:
            down, accuracy = exp(values[0]), min(max(float(values[3]) * POINT, least), most)
            target_s, up = exp(values[1]), down * min(0.95, exp(values[2]))
            leap = 1 + min(max(round(float(values[5])), 0), VARIANTS - 2)
            return cls(
                target_s=target_s,
                down=down,
                up=up,
                floor=accuracy,
                dwell_s=target_s * exp(values[4]),
                leap=leap,
            )

        starts = [np.where(np.arange(6) == 3, least / POINT, start), start]
        return Space("InfaasSpace", start, np.array([1.0, 1.0, 0.6, 1.0, 1.0, 1.0]), rule, starts)

    def dialled(self, by: float, context: RouterContext) -> InfaasRule:
        """See `RuleSpec`; the cheapest variant's accuracy rises by a point while `by` rises by 1."""
        accuracies, factor = [context.prior(widths) for widths in efficient_tuples(context)], exp(0.5 * by)
        floor = min(max(self.floor + by * POINT, min(accuracies)), max(accuracies))
        return self.model_copy(update={"up": factor * self.up, "down": factor * self.down, "floor": floor})

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> ComposedRouter:
        """See `RuleSpec`."""
        self.check(context.config, source, key)
        target_s = default_target_s(context) if self.target_s is None else self.target_s
        try:
            width = make_variants(context, self.floor, target_s, self.up, self.down, self.dwell_s, self.leap)
        except ValueError as error:
            raise InputError(source, key, str(error)) from None
        return self._composed(context, width, source, key)


SLACK_BUCKETS: Final = 16


@dataclass(frozen=True, slots=True)
class SlackFit:
    """After SuperServe (Khare et al. 2025, SlackFit): the micro-batch's slack picks a bucket of expected latency.

    The choices (width, micro_batch_size) of the placed server are put into evenly spaced buckets of their expected
    latency. The last bucket that fits the slack completely is taken, or the first if none does; in it, the largest
    micro-batch, then the widest width. So a long slack allows width if the queue is short, and batching if it is long.

    Slack = the segment's share of the latency target, less the wait of the oldest candidate so far, less the server's
    outstanding work and the transfer.

    Attributes:
        share_ns: a segment's share of the end-to-end latency target.
    """

    placement: Placement
    costs: CostModel
    widths: tuple[float, ...]
    micro_batch_sizes: tuple[int, ...]
    share_ns: int

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate micro-batch."""
        server = self.placement(view, rng)
        options = self._options(view, server)
        first_ns = min(latency_ns for latency_ns, _, _ in options)
        spread_ns = max(max(latency_ns for latency_ns, _, _ in options) - first_ns, 1)
        buckets: dict[int, list[tuple[int, int, float]]] = {}
        for option in options:
            buckets.setdefault((option[0] - first_ns) * SLACK_BUCKETS // spread_ns, []).append(option)
        waited_ns = view.now_ns - view.head_entered_ns
        busy_ns = outstanding_ns(self.costs, view, server)
        slack_ns = self.share_ns - waited_ns - busy_ns - transfer_ns(self.costs, view, server)
        fitting = [number for number, bucket in buckets.items() if max(bucket)[0] <= slack_ns]
        _, micro_batch_size, width = max(buckets[max(fitting, default=0)], key=lambda option: option[1:])
        return Choice(server, width, micro_batch_size)

    def _options(self, view: ClusterView, server: int) -> list[tuple[int, int, float]]:
        """Return (expected latency in ns, micro-batch size, width); sizes beyond the first that takes all candidates
        change nothing."""
        micro_batch_sizes = [size for size in self.micro_batch_sizes if size < view.candidates]
        micro_batch_sizes += [size for size in self.micro_batch_sizes if size >= view.candidates][:1]
        held = zip(self.widths, view.servers[server].widths, strict=True)
        keys = [WorkKey(view.head.segment, width, view.head.previous_width) for width, fits in held if fits]
        return [
            (batch_ns(self.costs, server, key, min(micro_batch_size, view.candidates)), micro_batch_size, key.width)
            for key in keys
            for micro_batch_size in micro_batch_sizes
        ]


class SlackFitRule(PlacedRule):
    """Width and micro-batch size by slack (`SlackFit`).

    Attributes:
        target_s: end-to-end latency target; None for the scenario's deadline, or a guess from the profiles.
    """

    KIND: ClassVar[str] = "slackfit"

    target_s: Above0 | None = None

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space:
        """Return the space of the target's logarithm."""
        first = np.array([log(default_target_s(context))])
        return Space("SlackFitSpace", first, np.array([1.5]), lambda values: cls(target_s=exp(values[0])))

    def dialled(self, by: float, context: RouterContext) -> SlackFitRule:
        """See `RuleSpec`."""
        return self.model_copy(update={"target_s": exp(by) * (self.target_s or default_target_s(context))})

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> SlackFit:
        """See `RuleSpec`."""
        config = context.config
        expected = FixedWidths(config.widths, full_widths(config))
        placement = make_placement(self.placement, context, expected)
        target_s = default_target_s(context) if self.target_s is None else self.target_s
        share_ns = round(target_s * NS_PER_S / config.segments)
        micro_batch_sizes = self.micro_batch_sizes(config, source, key)
        return SlackFit(placement, context.costs, config.widths, micro_batch_sizes, share_ns)
