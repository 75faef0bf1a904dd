"""Accuracy scaling after Proteus (Ahmad et al., ASPLOS 2024): a plan every few seconds, executed in between.

Differences from Proteus: one network, so no variants of others compete for a device; no model is loaded to change a
variant; the latency target is kept through a limit on utilization, not through batch sizes, which Algorithm 1 forms;
the demand is the measured rate, with a margin. A plan is made within a decision, and cached for its demand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf, log
from typing import Annotated, ClassVar, Final

import numpy as np
from pydantic import Field

from kit.errors import InputError
from policies.interfaces import RoutingPolicy
from policies.rules.context import RouterContext
from policies.rules.costs import efficient_tuples, path_ns, spread
from policies.rules.placements import valid_servers
from policies.rules.planning import Placement, plan, rounded_up
from policies.rules.specs import Above0, Reals, RuleSpec, ShareAbove0, Space
from policies.rules.widths import held_width
from policies.vocabulary import NS_PER_S, Choice, ClusterView, ServerView

TUPLES: Final = 24  # at most, evenly over the efficient ones
MIN_TUNED_S: Final = 0.05  # lower bound for tuning the period and the time to clear the backlog


@dataclass(slots=True)
class Milp:
    """An executor of a plan of tuples and shares; every period makes a new plan for its measured rate.

    New images go to the server furthest behind its share, and stay there. A width is that of the placed server's tuple.
    Until the end of the first period the demand is unknown and every server has its fastest tuple.

    Attributes:
        groups: the group sizes; always the largest.
        tuples: width tuples, the most accurate first.
        accuracy: of each tuple.
        capacity_img_s: (servers, tuples) the capacity of a server with each tuple.
        headroom: planned demand as a multiple of the rate seen.
        clear_s: the planned time to serve also the backlog; None to plan for arrivals alone.
        plan: the present plan.
        placed: for each server, images placed under this plan.
        since_ns: when it was made.
        arrived: the number of arrivals until then.
    """

    widths: tuple[float, ...]
    groups: tuple[int, ...]
    tuples: tuple[tuple[float, ...], ...]
    accuracy: tuple[float, ...]
    capacity_img_s: tuple[tuple[float, ...], ...]
    period_ns: int
    headroom: float
    clear_s: float | None = None
    plan: Placement = field(init=False)
    placed: list[int] = field(init=False)
    since_ns: int = 0
    arrived: int = 0

    def __post_init__(self) -> None:
        self._follow(plan(inf, self.capacity_img_s, self.accuracy))

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate block."""
        if view.now_ns - self.since_ns >= self.period_ns:
            self.plan_anew(view)
        group = self.groups[-1]
        location = view.head.location
        stays = location >= 0 and view.servers[location].valid
        server = location if stays else self._place(view, min(group, view.candidates))
        wanted = self.tuples[self.plan.choice[server]][view.head.segment - 1]
        return Choice(server, held_width(self.widths, view.servers[server].widths, wanted), group)

    def _place(self, view: ClusterView, images: int) -> int:
        """Return the server that is furthest behind its share; one without a share only if there are no others."""
        total = sum(self.placed) + images

        def ahead(server: int) -> tuple[bool, float]:
            share = self.plan.shares[server]
            return share == 0, self.placed[server] - share * total

        server = min(valid_servers(view), key=ahead)
        self.placed[server] += images
        return server

    def plan_anew(self, view: ClusterView) -> None:
        """Plan for the rate since the last plan, with headroom, and the backlog, over the servers that are up."""
        inside = view.fifo_length + sum(server.outstanding_requests for server in view.servers)
        arrived = view.completed + inside
        rate_img_s = max(arrived - self.arrived, 0) / (view.now_ns - self.since_ns) * NS_PER_S  # less if some failed
        capacity = tuple(
            row if is_up(server) else (0.0,) * len(row)
            for row, server in zip(self.capacity_img_s, view.servers, strict=True)
        )
        demand_img_s = rate_img_s * self.headroom + (inside / self.clear_s if self.clear_s is not None else 0.0)
        self._follow(plan(rounded_up(demand_img_s), capacity, self.accuracy))
        self.since_ns, self.arrived = view.now_ns, arrived

    def _follow(self, new: Placement) -> None:
        self.plan, self.placed = new, [0] * len(self.capacity_img_s)


def is_up(server: ServerView) -> bool:
    """Return whether a server seems up: one that could hold the block, but takes none and has none, seems down."""
    return server.valid or server.outstanding_blocks > 0 or not any(server.widths)


def make_milp(
    context: RouterContext,
    groups: tuple[int, ...],
    period_s: float,
    headroom: float,
    utilization: float,
    clear_s: float | None = None,
) -> Milp:
    """Create the rule for a cluster.

    Args:
        groups: the group sizes to use.
        period_s: time between plans.
        headroom: planned demand as a multiple of the rate seen.
        utilization: the largest planned share of its time in which a server is busy.
        clear_s: the planned time to serve also the backlog; None to plan for arrivals alone.

    Raises:
        ValueError: the accuracy table has no tuple of the network's widths.
    """
    config = context.config
    tuples = spread(efficient_tuples(context), TUPLES)
    if not tuples:
        raise ValueError(f"the accuracy table has no tuple of the widths {config.widths}")
    capacity = tuple(
        tuple(utilization * NS_PER_S / path_ns(context.costs, server, widths) for widths in tuples)
        for server in range(config.servers)
    )
    accuracy = tuple(context.prior.top1[widths] for widths in tuples)
    return Milp(config.widths, groups, tuples, accuracy, capacity, round(period_s * NS_PER_S), headroom, clear_s)


class MilpRule(RuleSpec):
    """Tuples and shares from a mixed integer programme, every period (`Milp`). It places itself.

    Attributes:
        period_s: how often a plan is made.
        headroom: the demand to plan for, in times of the rate that was seen.
        utilization: the share of its time that a server may be planned to be busy.
        clear_s: the time in which to plan to serve also what is inside; None to plan for arrivals alone.
    """

    KIND: ClassVar[str] = "milp"
    BY_MODEL: ClassVar[bool] = False

    period_s: Annotated[float, Field(ge=0.01)] = 2.0
    headroom: Above0 = 1.2
    utilization: ShareAbove0 = 0.5
    clear_s: Above0 | None = None

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space:
        """Return the space of logarithms of the headroom (less is more accurate), of the period and of the time to
        clear."""

        def rule(values: Reals) -> MilpRule:
            period_s = max(MIN_TUNED_S, exp(values[1]))
            return cls(headroom=exp(values[0]), period_s=period_s, clear_s=max(MIN_TUNED_S, exp(values[2])))

        first = np.array([log(1.2), log(0.1), log(0.5)])
        return Space("MilpSpace", first, np.array([0.4, 1.0, 1.0]), rule)

    def dialled(self, by: float, context: RouterContext) -> MilpRule:
        """See `RuleSpec`."""
        return self.model_copy(update={"headroom": self.headroom * exp(-by)})

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """See `RuleSpec`."""
        self.check(context.config, source, key)
        groups = self.groups(context.config, source, key)
        try:
            return make_milp(context, groups, self.period_s, self.headroom, self.utilization, self.clear_s)
        except ValueError as error:
            raise InputError(source, key, str(error)) from None
