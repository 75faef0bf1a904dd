"""Accuracy scaling after Proteus (Ahmad et al., ASPLOS 2024): its linear program, and the router that executes it.

The program (`plan`): Ahmad et al. maximise the mean accuracy of served requests, subject to every server's throughput
with its variant, as a mixed integer linear program; so does `plan`. It is a pure function of numbers, and caches its
solutions.

The router (`Milp`) differs from Proteus: it has one network, so no variants of others compete for a device; no model is
loaded to change a variant; the latency target is kept through a limit on utilization, not through batch sizes, which
Algorithm 1 forms; the demand is the measured rate, with a margin. The router makes a plan within a decision; the plan
is cached for its demand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, exp, inf, log
from typing import Annotated, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kit.errors import InputError
from policies.interfaces import RoutingPolicy
from policies.rules.rule_context import PathRule, RouterContext, efficient_tuples, held_width, path_ns, spread
from policies.rules.rule_params import Above0, Reals, RuleSpec, ShareAbove0, Space
from policies.rules.rule_parts import valid_servers
from policies.vocabulary import NS_PER_S, Choice, ClusterView, ServerView

GRID: Final = 1.02  # demands are rounded up to its powers, so that few plans are needed
GAP: Final = 1e-4  # the largest relative distance of a plan from the best mean accuracy

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Placement:
    """The assignment of tuples and shares to servers.

    Attributes:
        choice: for each server, the index of its tuple.
        shares: for each server, its share of the demand; they add up to 1.
        accuracy: the mean over the demand.
        serves_all: whether the servers can take the whole demand; if not, each has its fastest tuple.
    """

    choice: tuple[int, ...]
    shares: tuple[float, ...]
    accuracy: float
    serves_all: bool


def rounded_up(demand_img_s: float) -> float:
    """Return the next demand on the grid; from 1 image/s."""
    return GRID ** ceil(log(max(demand_img_s, 1.0)) / log(GRID))


@lru_cache(maxsize=4096)
def plan(demand_img_s: float, capacity_img_s: tuple[tuple[float, ...], ...], accuracy: tuple[float, ...]) -> Placement:
    """Return the assignment of tuples to servers with the highest mean accuracy that serves the whole demand.

    Args:
        demand_img_s: images that arrive a second, above 0.
        capacity_img_s: (servers, tuples) the capacity of a server with a tuple; all 0 if it is down.
        accuracy: (tuples,) in [0, 1], descending.

    Beyond capacity every server has its fastest tuple, and a share in proportion to its speed.
    """
    capacity, worth = np.array(capacity_img_s), np.array(accuracy)
    fastest = capacity.argmax(axis=1)
    limits = capacity.max(axis=1)
    if limits.sum() < demand_img_s:
        shares = limits / limits.sum() if limits.any() else np.full(len(limits), 1 / len(limits))
        return _plan(fastest, shares, worth, serves_all=False)
    choice = _assign(demand_img_s, capacity, worth)
    shares = _fill(choice, demand_img_s, capacity)
    if (shares == 0).any():  # a server that is not needed may be accurate; then it may be needed
        choice = np.where(shares == 0, 0, choice)
        shares = _fill(choice, demand_img_s, capacity)
    return _plan(choice, shares, worth, serves_all=True)


def _plan(choice: NDArray[np.int64], shares: Floats, worth: Floats, *, serves_all: bool) -> Placement:
    return Placement(tuple(choice.tolist()), tuple(shares.tolist()), float(shares @ worth[choice]), serves_all)


def _fill(choice: NDArray[np.int64], demand_img_s: float, capacity: Floats) -> Floats:
    """Return the best shares for given tuples: the most accurate servers are filled first, equally accurate ones
    evenly."""
    shares: Floats = np.zeros(len(choice))
    rest_img_s = demand_img_s
    for index in np.unique(choice):
        servers = choice == index
        limits = capacity[servers, index]
        sustained_img_s = min(rest_img_s, limits.sum())
        if sustained_img_s > 0:
            shares[servers] = sustained_img_s * limits / limits.sum()
        rest_img_s -= sustained_img_s
    shares /= shares.sum()
    return shares


def _assign(demand_img_s: float, capacity: Floats, worth: Floats) -> NDArray[np.int64]:
    """Solve for x, the number of servers of a kind that run a tuple (integers), and y, their share of the demand.

    Maximise the sum of accuracy x y, subject to each tuple's share being within its servers' capacity, the number of
    servers of each kind, and the sum of shares 1. Servers of equal capacities are one kind: they could be swapped in
    any plan.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and seldom needed

    kinds, kind_of, counts = np.unique(capacity, axis=0, return_inverse=True, return_counts=True)
    size, tuples = kinds.size, len(worth)
    within = np.hstack([-np.diag(kinds.ravel() / demand_img_s), np.eye(size)])
    all_used = np.hstack([np.kron(np.eye(len(kinds)), np.ones(tuples)), np.zeros((len(kinds), size))])
    everything = np.concatenate([np.zeros(size), np.ones(size)])
    solution = milp(
        np.concatenate([np.zeros(size), -np.tile(worth, len(kinds))]),
        integrality=np.concatenate([np.ones(size), np.zeros(size)]),
        bounds=Bounds(0, np.concatenate([np.repeat(counts, tuples), np.ones(size)])),
        constraints=[
            LinearConstraint(within, ub=0),
            LinearConstraint(all_used, counts, counts),
            LinearConstraint(everything[None, :], 1, 1),
        ],
        options={"mip_rel_gap": GAP},
    )
    assert solution.x is not None, f"a plan exists, but the solver says: {solution.message}"
    many = np.rint(solution.x[:size]).astype(int).reshape(len(kinds), tuples)
    choice = np.zeros(len(capacity), dtype=np.int64)
    for kind, row in enumerate(many):
        choice[kind_of.ravel() == kind] = np.repeat(np.arange(tuples), row)
    return choice


TUPLES: Final = 24  # at most, evenly over the efficient ones
MIN_TUNED_S: Final = 0.05  # lower bound for tuning the period and the time to clear the backlog


@dataclass(slots=True)
class Milp:
    """An executor of a plan of tuples and shares; every period makes a new plan for its measured rate.

    New images go to the server furthest behind its share, and stay there. A width is that of the placed server's tuple.
    Until the end of the first period the demand is unknown and every server has its fastest tuple.

    Attributes:
        micro_batch_sizes: the sizes to choose from; always the largest.
        tuples: width tuples, the most accurate first.
        accuracy: of each tuple.
        capacity_img_s: (servers, tuples) the capacity of a server with each tuple.
        headroom: planned demand as a multiple of the rate seen.
        clear_s: the planned time to serve also the backlog; None to plan for arrivals alone.
        plan: the present plan.
        placed: for each server, images placed under this plan.
        since_ns: when it was made.
        arrived: the number of arrivals until then.
        paths: whether a micro-batch passes all its segments at its server without further decisions.
    """

    widths: tuple[float, ...]
    micro_batch_sizes: tuple[int, ...]
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
    paths: PathRule | None = None

    def __post_init__(self) -> None:
        self._follow(plan(inf, self.capacity_img_s, self.accuracy))

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate micro-batch."""
        if view.now_ns - self.since_ns >= self.period_ns:
            self.plan_anew(view)
        micro_batch_size = self.micro_batch_sizes[-1]
        location = view.head.location
        stays = location >= 0 and view.servers[location].valid
        server = location if stays else self._place(view, min(micro_batch_size, view.candidates))
        widths = self.tuples[self.plan.choice[server]]
        width = held_width(self.widths, view.servers[server].widths, widths[view.head.segment - 1])
        return Choice(server, width, micro_batch_size, self.paths.then(view, server, widths) if self.paths else ())

    def _place(self, view: ClusterView, images: int) -> int:
        """Return the server that is furthest behind its share; one without a share only if none has one."""
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
    """Return whether a server seems up: one that has room, but takes no micro-batch and has none, seems down."""
    return server.valid or server.outstanding_micro_batches > 0 or not any(server.widths)


def make_milp(
    context: RouterContext,
    micro_batch_sizes: tuple[int, ...],
    period_s: float,
    headroom: float,
    utilization: float,
    clear_s: float | None = None,
) -> Milp:
    """Create the rule for a cluster.

    Args:
        micro_batch_sizes: the sizes to use.
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
    accuracy = tuple(context.prior.accuracies[widths] for widths in tuples)
    return Milp(
        config.widths, micro_batch_sizes, tuples, accuracy, capacity, round(period_s * NS_PER_S), headroom, clear_s
    )


class MilpRule(RuleSpec):
    """Tuples and shares from a mixed integer program, every period (`Milp`). It places itself.

    Attributes:
        period_s: how often a plan is made.
        headroom: the demand to plan for, in times of the rate that was seen.
        utilization: the share of its time that a server may be planned to be busy.
        clear_s: the time in which to plan to serve also what is inside; None to plan for arrivals alone.
        paths: as for `ladder`.
    """

    KIND: ClassVar[str] = "milp"
    BY_MODEL: ClassVar[bool] = False

    period_s: Annotated[float, Field(ge=0.01)] = 2.0
    headroom: Above0 = 1.2
    utilization: ShareAbove0 = 0.5
    clear_s: Above0 | None = None
    paths: bool = False

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
        micro_batch_sizes = self.micro_batch_sizes(context.config, source, key)
        try:
            router = make_milp(context, micro_batch_sizes, self.period_s, self.headroom, self.utilization, self.clear_s)
        except ValueError as error:
            raise InputError(source, key, str(error)) from None
        router.paths = PathRule.of(context) if self.paths else None
        return router
