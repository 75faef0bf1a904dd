"""The data from which a rule is built: expected costs in whole nanoseconds, and the servers' working sets.

Expected costs: rules add and compare expected times in whole nanoseconds, so that the order of additions has no effect.

A *working set* (`working_sets`) has the instances that a server's memory holds together. An instance serves every
narrower width of its nest, so a working set has one instance of each segment for a slimmable network, and some members
of a family. A router that stays within each server's working set needs no load after the first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import inf
from operator import and_

import numpy as np
import numpy.typing as npt

from policies.goal_control import GoalControl, Steered
from policies.greedy_scheduler import GreedyParams
from policies.interfaces import AccuracyPrior, CostModel, RouterConfig, nests_of
from policies.vocabulary import ANYWHERE, IMAGE, NS_PER_S, Choice, ClusterView, ServerView, WorkKey

# --------------------------------------------------------------------------------------------------- the data of a rule


Placement = Callable[[ClusterView, np.random.Generator], int]
WidthRule = Callable[[ClusterView, int, np.random.Generator], float]
MicroBatchSizeRule = Callable[[ClusterView, np.random.Generator], int]
WorkingSet = tuple[tuple[bool, ...], ...]
"""(segments, widths) which widths a server may serve."""


@dataclass(frozen=True, slots=True)
class RouterContext:
    """The data from which a router is built.

    Attributes:
        config: the router core's settings: S, W, the micro-batch sizes, the widths of each server.
        costs: expected costs from the servers' profiles.
        prior: p_acc of Eq. 7.
        power_limits_w: (N,) each server's device power limit.
        deadline_s: end-to-end latency target, if the scenario has one (`slackfit` and `infaas` use it).
        micro_batch_ns: the host's time for a micro-batch, decided and returned, beyond its images.
        working_sets: (N, S, W) which widths each server may serve, so that all its instances fit together
            (`working_sets`); empty if no server is limited.
    """

    config: RouterConfig
    costs: CostModel
    prior: AccuracyPrior
    power_limits_w: tuple[float, ...]
    deadline_s: float | None = None
    micro_batch_ns: int = 0
    working_sets: tuple[WorkingSet, ...] = ()


@dataclass(frozen=True, slots=True)
class PathRule:
    """The paths of a rule that knows the widths of all segments: they end before a segment that a server can't hold.

    Attributes:
        held: (servers, places, widths) the widths of the same model that a server can hold, and that are in its working
            set.
        first_places: for each class the place of its model's first segment.
    """

    widths: tuple[float, ...]
    segments: int
    held: tuple[tuple[tuple[bool, ...], ...], ...]
    first_places: tuple[int, ...]

    @classmethod
    def of(cls, context: RouterContext) -> PathRule:
        """Return the rule of a cluster."""
        config, sets = context.config, context.working_sets
        held = tuple(
            tuple(
                tuple(map(and_, mask, sets[server][place % config.segments])) if sets else mask
                for place, mask in enumerate(masks)
            )
            for server, masks in enumerate(config.masks())
        )
        first_places = tuple(config.place_of(1, number) for number in range(config.class_count))
        return cls(config.widths, config.segments, held, first_places)

    def then(self, view: ClusterView, server: int, widths: Sequence[float]) -> tuple[float, ...]:
        """Return the path of the view's candidates on a server, which are to run at `widths`, one for each segment."""
        path: list[float] = []
        for segment in range(view.head.segment, self.segments):
            held = self.held[server][self.first_places[view.head.service_class] + segment]
            if not any(held):
                break
            path.append(held_width(self.widths, held, widths[segment]))
        return tuple(path)


@cache
def held_width(widths: tuple[float, ...], held: tuple[bool, ...], most: float) -> float:
    """Return the widest held width that isn't above `most`, or otherwise the narrowest held one. `widths` ascend."""
    available = [width for width, fits in zip(widths, held, strict=True) if fits]
    return max((width for width in available if width <= most), default=available[0])


@dataclass(frozen=True, slots=True)
class ComposedRouter(Steered):
    """A placement, then a width for that server, then a micro-batch size, and perhaps a path.

    Only a width rule that has the widths of all segments (`widths_of`) can have paths.
    """

    placement: Placement
    width: WidthRule
    micro_batch_size: MicroBatchSizeRule
    paths: PathRule | None = None

    @property
    def control(self) -> GoalControl | None:
        """The goals of its width rule."""
        return getattr(self.width, "control", None)

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate micro-batch."""
        server = self.placement(view, rng)
        width, micro_batch_size = self.width(view, server, rng), self.micro_batch_size(view, rng)
        if self.paths is None:
            return Choice(server, width, micro_batch_size)
        widths: Sequence[float] = self.width.widths_of(view, server)  # type: ignore[attr-defined]
        return Choice(server, width, micro_batch_size, self.paths.then(view, server, widths))


def drawn(count: int, rng: np.random.Generator) -> int:
    """Return a number from 0 to count - 1, uniform: one random draw."""
    return int(rng.random() * count)


def looked_at(view: ClusterView) -> Sequence[int]:
    """Return the servers that a decision examines."""
    return view.looked_at or range(len(view.servers))


def is_up(server: ServerView) -> bool:
    """Return whether a server seems up: one that can't take a micro-batch and has none seems down."""
    return server.valid or server.outstanding_micro_batches > 0


# ------------------------------------------------------------------------------------------------------- expected costs


MIN_WORTH = 1e-5  # of a step to a wider width, if the table has a worse wider one
EFFICIENT = 0.002  # with this much less accuracy than one at no higher cost, a tuple has a third of the weight
TARGET_FACTOR = 2.0  # the default latency target, as a multiple of the slowest full batch


def image_ns(costs: CostModel, server: int, key: WorkKey) -> int:
    """Return the expected time of one queued image (`CostModel.image_s`)."""
    return round(costs.image_s(server, key) * NS_PER_S)


def batch_ns(costs: CostModel, server: int, key: WorkKey, batch: int) -> int:
    """Return the expected time of one batch (`CostModel.batch_s`)."""
    return round(costs.batch_s(server, key, batch) * NS_PER_S)


def transfer_ns(costs: CostModel, view: ClusterView, server: int) -> int:
    """Return the expected time to transfer the candidates' inputs to a server; 0 for all if a micro-batch may mix
    locations."""
    head = view.head
    if head.location == ANYWHERE:
        return 0
    moved_s = costs.transfer_s(head.location, server, head.segment, head.previous_width, view.candidates)
    return round(moved_s * NS_PER_S)


def outstanding_ns(costs: CostModel, view: ClusterView, server: int) -> int:
    """Return the expected time to run all requests sent to a server and not returned."""
    return sum(count * image_ns(costs, server, key) for key, count in view.servers[server].outstanding.items())


def path(widths: Sequence[float]) -> list[WorkKey]:
    """Return the work keys of a request that passes all segments at these widths."""
    return [WorkKey(s, w, p) for s, (w, p) in enumerate(zip(widths, (IMAGE, *widths), strict=False), start=1)]


def path_ns(costs: CostModel, server: int, widths: Sequence[float]) -> int:
    """Return the expected time of one image through all segments at these widths, all on one server, in full
    batches."""
    return sum(image_ns(costs, server, key) for key in path(widths))


def full_widths(config: RouterConfig, widths: Sequence[float] = ()) -> tuple[float, ...]:
    """Return the widest tuple of these widths; of all by default."""
    return ((widths or config.widths)[-1],) * config.segments


def speeds_img_s(context: RouterContext) -> tuple[float, ...]:
    """Return each server's images a second through all segments at full width, in full batches, in equal parts by
    model."""
    config = context.config
    full = [full_widths(config, widths) for widths in config.model_widths]
    ways_ns = [sum(path_ns(context.costs, server, each) for each in full) for server in range(config.servers)]
    return tuple(len(full) * NS_PER_S / way_ns for way_ns in ways_ns)


def middle_way_ns(context: RouterContext, server: int) -> int:
    """Return the expected time of one image through all segments at middle widths; the mean of several models."""
    config = context.config
    middle = [middle_widths(config, widths) for widths in config.model_widths]
    return sum(path_ns(context.costs, server, each) for each in middle) // len(middle)


def middle_widths(config: RouterConfig, widths: Sequence[float] = ()) -> tuple[float, ...]:
    """Return a tuple of medium cost: narrow first segments, which lose little accuracy, and wide last ones."""
    widths = widths or config.widths
    return tuple(widths[min(len(widths) - 1, s + s // 3)] for s in range(config.segments))


def tuple_costs_s(context: RouterContext, tuples: Iterable[tuple[float, ...]]) -> dict[tuple[float, ...], float]:
    """Return the expected device time of one image through all segments at each width tuple, averaged over the
    servers."""
    servers = range(context.config.servers)

    @cache
    def of_all_ns(key: WorkKey) -> int:
        return sum(image_ns(context.costs, server, key) for server in servers)

    return {widths: sum(map(of_all_ns, path(widths))) / len(servers) / NS_PER_S for widths in tuples}


def held_accuracies(context: RouterContext, allowed: Sequence[float] = ()) -> dict[tuple[float, ...], float]:
    """Return the accuracy of each width tuple of the table that servers can hold; `allowed`: a model's widths.

    If no tuple can be held completely, all tuples of the core's widths: missing widths are served narrower.
    """
    config, allowed = context.config, allowed or context.config.widths
    table = {
        widths: accuracies for widths, accuracies in context.prior.accuracies.items() if set(allowed).issuperset(widths)
    }
    held = [
        {width for number, width in enumerate(config.widths) if any(masks[segment][number] for masks in config.fits)}
        for segment in range(config.segments)
    ]
    return {
        widths: accuracies for widths, accuracies in table.items() if all(map(set.__contains__, held, widths))
    } or table


def efficient_tuples(context: RouterContext, allowed: Sequence[float] = ()) -> list[tuple[float, ...]]:
    """Return the tuples of the accuracy table that no cheaper or equally cheap one matches, the most accurate first.

    The tuples must be in the table (the prior's guess for a missing one would make it look as accurate as a more
    expensive neighbour) and within some server's working set. The cost is that of one image through all segments,
    averaged over the servers. `allowed`: the widths of one of several models.
    """
    sets, table = set(context.working_sets), held_accuracies(context, allowed)
    if sets:
        every = context.config.widths
        table = {
            widths: accuracies
            for widths, accuracies in table.items()
            if any(within(widths, held, every) for held in sets)
        }
    return _front(table, tuple_costs_s(context, table))


def within(widths: Sequence[float], held: WorkingSet, every: Sequence[float]) -> bool:
    """Return whether a working set serves a width tuple; `every`: the width set."""
    return all(mask[every.index(width)] for width, mask in zip(widths, held, strict=True))


def _front(
    accuracies: Mapping[tuple[float, ...], float], cost: Mapping[tuple[float, ...], float]
) -> list[tuple[float, ...]]:
    efficient: list[tuple[float, ...]] = []
    best = float("-inf")
    for widths in sorted(accuracies, key=lambda widths: (cost[widths], -accuracies[widths], widths)):
        if accuracies[widths] > best:
            best = accuracies[widths]
            efficient.append(widths)
    return efficient[::-1]


def corner_tuples(context: RouterContext, allowed: Sequence[float] = ()) -> list[tuple[float, ...]]:
    """Return the efficient tuples that are best at some price of device time, the most accurate first."""
    efficient = efficient_tuples(context, allowed)
    return corners(context.prior.accuracies, tuple_costs_s(context, efficient))


def corners(
    accuracies: Mapping[tuple[float, ...], float], cost: Mapping[tuple[float, ...], float]
) -> list[tuple[float, ...]]:
    """Return the tuples of `cost` at corners of the front's convex hull, the most accurate first.

    From each to the next the ratio of accuracy lost to time saved grows.
    """
    hull: list[tuple[float, ...]] = []
    for widths in reversed(_front({widths: accuracies[widths] for widths in cost}, cost)):
        while len(hull) > 1 and not _is_corner(
            *((cost[corner], accuracies[corner]) for corner in (*hull[-2:], widths))
        ):
            hull.pop()
        hull.append(widths)
    return hull[::-1]


def cost_at(
    floor: float,
    front: Sequence[tuple[float, ...]],
    accuracies: Mapping[tuple[float, ...], float],
    cost: Mapping[tuple[float, ...], float],
) -> float:
    """Return the cost of a mean accuracy of `floor` by a mix of two corners of a front, the most accurate first.

    Infinite if no corner is as accurate.
    """
    best = front[0]
    if accuracies[best] < floor:
        return inf
    for worse in front[1:]:
        if accuracies[worse] < floor:
            share = (floor - accuracies[worse]) / (accuracies[best] - accuracies[worse])
            return share * cost[best] + (1 - share) * cost[worse]
        best = worse
    return cost[best]


def _is_corner(before: tuple[float, float], point: tuple[float, float], after: tuple[float, float]) -> bool:
    """Return whether a point of a front is above the line from the previous one to the next one."""
    return (point[1] - before[1]) * (after[0] - point[0]) > (after[1] - point[1]) * (point[0] - before[0])


def path_energy_j(context: RouterContext, widths: Sequence[float]) -> float:
    """Return the expected energy of one image through all segments at these widths, above idle, averaged over the
    servers."""
    servers = range(context.config.servers)
    return sum(context.costs.energy_j(server, key) for server in servers for key in path(widths)) / len(servers)


def spread(rungs: Sequence[tuple[float, ...]], count: int) -> tuple[tuple[float, ...], ...]:
    """Return at most `count` rungs, evenly by position, the first and (from two on) the last among them."""
    if len(rungs) <= count:
        return tuple(rungs)
    if count == 1:
        return (rungs[0],)
    return tuple(rungs[round(index * (len(rungs) - 1) / (count - 1))] for index in range(count))


def default_target_s(context: RouterContext) -> float:
    """Return the scenario's deadline, or twice the slowest server's time for full micro-batches at full width, all
    segments."""
    if context.deadline_s is not None:
        return context.deadline_s
    return TARGET_FACTOR * slowest_path_ns(context) / NS_PER_S


def slowest_path_ns(context: RouterContext) -> int:
    """Return the slowest server's time for full micro-batches at full width, all segments."""
    config = context.config
    paths, largest = [path(full_widths(config, widths)) for widths in config.model_widths], config.micro_batch_sizes[-1]
    pairs = product(range(config.servers), paths)
    return max(sum(batch_ns(context.costs, server, key, largest) for key in keys) for server, keys in pairs)


def worth_of_steps(context: RouterContext, of: Sequence[float] = ()) -> npt.NDArray[np.float64]:
    """Return (S, W - 1) the accuracy gained by each step to a wider width, if segments add up independently.

    A least-squares fit, in which a tuple's weight falls with its deficit to the best tuple at no higher cost.
    """
    of = of or context.config.widths
    segments, widths = context.config.segments, len(of)
    codes = np.array(list(product(range(widths), repeat=segments)))
    accuracies = np.array([context.prior(tuple(of[w] for w in code)) for code in codes])
    steps = (codes[:, :, None] >= np.arange(1, widths)).reshape(len(codes), -1).astype(np.float64)
    cost_s = np.array(list(tuple_costs_s(context, (tuple(of[w] for w in code) for code in codes)).values()))
    lacks = np.array([accuracies[cost_s <= own_s].max() - own for own_s, own in zip(cost_s, accuracies, strict=True)])
    weight: npt.NDArray[np.float64] = np.sqrt(np.exp(-lacks / EFFICIENT))[:, None]
    terms = np.hstack([np.ones((len(codes), 1)), steps])
    coefficients = np.linalg.lstsq(weight * terms, weight[:, 0] * accuracies, rcond=None)[0]
    worth: npt.NDArray[np.float64] = np.maximum(coefficients[1:].reshape(segments, widths - 1), MIN_WORTH)
    return worth


# --------------------------------------------------------------------------------------------------------- working sets


Widths = tuple[float, ...]
Limits = tuple[Widths | None, ...]
"""For each nest the widest instances held, one for each segment; None for none."""


def working_sets(context: RouterContext, servers: Sequence[GreedyParams], floor: float) -> tuple[WorkingSet, ...]:
    """Choose each server's working set: the one in which an accuracy of `floor` costs the least device time.

    A mix of two width tuples costs the weighted mean for the weighted mean accuracy. If no set reaches the floor, or it
    is 0, the most accurate set is taken, and of those the one with the fastest tuple. A server that holds no complete
    set is not limited, nor is one of several models.

    Args:
        context: its accuracy table and expected costs.
        servers: for each server, its instances' bytes and its memory.
        floor: of mean accuracy; 0 for none.

    Returns:
        (N, S, W) the widths of each server; empty if none is limited.
    """
    config, alike = context.config, context.costs.alike
    everything: WorkingSet = ((True,) * len(config.widths),) * config.segments
    set_of_kind: dict[object, WorkingSet] = {}
    sets = []
    for server, params in enumerate(servers):
        device = server if alike is None else alike.devices[server]
        kind = (device, params.vram_cap_bytes, params.context_bytes, params.nests, *params.instance_bytes.values())
        if kind not in set_of_kind:
            limits = None if config.models else _best_set(context, server, params, floor)
            set_of_kind[kind] = everything if limits is None else _masks(config.widths, params.nests, limits)
        sets.append(set_of_kind[kind])
    return () if all(held == everything for held in sets) else tuple(sets)


def _masks(widths: Widths, nests: tuple[int, ...], limits: Limits) -> WorkingSet:
    def is_held(segment: int, width: float) -> bool:
        of = zip(nests_of(widths, nests), limits, strict=True)
        return any(width in nest and limit is not None and width <= limit[segment] for nest, limit in of)

    segments = len(next(limit for limit in limits if limit is not None))
    return tuple(tuple(is_held(segment, width) for width in widths) for segment in range(segments))


def _best_set(context: RouterContext, server: int, params: GreedyParams, floor: float) -> Limits | None:
    """Return a server's best set; None if no width tuple of the accuracy table fits."""
    accuracies, nests = context.prior.accuracies, nests_of(context.config.widths, params.nests)
    cost_ns: dict[Widths, float] = {widths: path_ns(context.costs, server, widths) for widths in accuracies}

    def front_of(limits: Limits) -> list[Widths]:
        held = _masks(context.config.widths, params.nests, limits)
        inside = {widths: cost_ns[widths] for widths in accuracies if within(widths, held, context.config.widths)}
        return corners(accuracies, inside)

    def dearness(limits: Limits) -> tuple[float, float, float]:
        front = fronts[limits]
        at_floor = cost_at(floor, front, accuracies, cost_ns) if floor > 0.0 else inf
        return at_floor, -accuracies[front[0]], cost_ns[front[-1]]

    sets = _largest_sets(nests, context.config.segments, params)
    fronts = {limits: front for limits in sets if (front := front_of(limits))}
    return min(fronts, key=dearness, default=None)


def _largest_sets(nests: Sequence[Widths], segments: int, params: GreedyParams) -> Iterator[Limits]:
    """Yield the non-empty sets that fit and can't be extended."""
    for limits in product(*((None, *product(nest, repeat=segments)) for nest in nests)):
        if any(limits) and _fits(limits, params) and not any(_fits(more, params) for more in _wider(limits, nests)):
            yield limits


def _fits(limits: Limits, params: GreedyParams) -> bool:
    specs = [spec for limit in limits if limit is not None for spec in enumerate(limit, start=1)]
    needed = sum(params.instance_bytes.get(spec, inf) for spec in specs)
    return params.context_bytes + needed <= params.vram_cap_bytes


def _wider(limits: Limits, nests: Sequence[Widths]) -> Iterator[Limits]:
    """Yield the sets wider by one step, in one place."""
    segments = len(next(limit for limit in limits if limit is not None))
    for number, (limit, nest) in enumerate(zip(limits, nests, strict=True)):
        steps: list[Widths] = [(nest[0],) * segments] if limit is None else []
        for segment, width in enumerate(limit or ()):
            if width < nest[-1]:
                step = nest[nest.index(width) + 1]
                steps.append((*(limit or ())[:segment], step, *(limit or ())[segment + 1 :]))
        yield from ((*limits[:number], step, *limits[number + 1 :]) for step in steps)
