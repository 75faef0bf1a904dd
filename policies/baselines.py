"""Routers that learn nothing, over the same view as the learned one: a placement, a width rule and a group rule each.

They know the view and, where they ask for it, expected costs (`CostModel`) and the accuracy prior; never the
simulator's or the hardware's state. A router holds at most its own memory (the round robin's turn), so it serves one
run. Every tie goes to the lowest server index.

The paper's `random` draws server, width and group. The routers that only place (`round-robin`, `jsq`, `power-of-two`,
`least-work`, `shortest-delay`, `sticky`) run every segment at full width; `fixed:` puts a width tuple on any of them.
A width that a server can't hold becomes the next narrower one that it can, or else its narrowest.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.errors import InputError, nearest
from policies.reward import AccuracyPrior
from policies.routing import CostModel, RouterConfig, RoutingPolicy
from policies.vocabulary import ANYWHERE, IMAGE, NS_PER_S, Choice, ClusterView, WorkKey

Placement = Callable[[ClusterView, np.random.Generator], int]
WidthRule = Callable[[ClusterView, int, np.random.Generator], float]
GroupRule = Callable[[ClusterView, np.random.Generator], int]

LADDER_THRESHOLDS: tuple[float, ...] = (16.0, 32.0, 64.0, 128.0, 256.0)
SLACK_BUCKETS = 16
SLACK_FACTOR = 2.0  # the default latency target, in times of the slowest full batch


@dataclass(frozen=True, slots=True)
class RouterContext:
    """What a router may be built from.

    Attributes:
        config: the router core's settings: S, W, the groups, what each server can hold.
        costs: expected costs from the servers' profiles.
        prior: p_acc of Eq. 7.
        power_limits_w: (N,) each server's device power limit.
        deadline_s: end-to-end latency target, where the scenario has one (`slackfit` reads it).
    """

    config: RouterConfig
    costs: CostModel
    prior: AccuracyPrior
    power_limits_w: tuple[float, ...]
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class ComposedRouter:
    """A placement, then a width for that server, then a group."""

    placement: Placement
    width: WidthRule
    group: GroupRule

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate block."""
        server = self.placement(view, rng)
        return Choice(server, self.width(view, server, rng), self.group(view, rng))


# ------------------------------------------------------------------------------------------------------- placements


def valid_servers(view: ClusterView) -> list[int]:
    """The servers that can take the block, ascending; never empty in a view that asks for a decision."""
    return [index for index, server in enumerate(view.servers) if server.valid]


def place_at_random(view: ClusterView, rng: np.random.Generator) -> int:
    """Uniform over the valid servers: the paper's baseline."""
    servers = valid_servers(view)
    return servers[rng.integers(len(servers))]


class RoundRobin:
    """The first valid server after the last one chosen."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        servers = valid_servers(view)
        self._last = next((server for server in servers if server > self._last), servers[0])
        return self._last


def join_shortest_queue(view: ClusterView, rng: np.random.Generator) -> int:
    """The fewest outstanding requests."""
    return _shortest(view, valid_servers(view))


def power_of_two(view: ClusterView, rng: np.random.Generator) -> int:
    """The shorter queue of two servers drawn at random (Mitzenmacher 2001)."""
    servers = valid_servers(view)
    drawn = rng.choice(len(servers), size=min(2, len(servers)), replace=False)
    return _shortest(view, sorted(servers[index] for index in drawn))


def _shortest(view: ClusterView, servers: Sequence[int]) -> int:
    return min(servers, key=lambda server: view.servers[server].outstanding_requests)


def outstanding_work_s(costs: CostModel, view: ClusterView, server: int) -> float:
    """Expected time to run what was sent to a server and has not returned."""
    return sum(count * costs.image_s(server, key) for key, count in view.servers[server].outstanding.items())


def transfer_s(costs: CostModel, view: ClusterView, server: int) -> float:
    """Expected time to bring the candidates' inputs to a server; 0 for all where a block may mix locations."""
    head = view.head
    if head.location == ANYWHERE:
        return 0.0
    return costs.transfer_s(head.location, server, head.segment, head.previous_width, view.candidates)


@dataclass(frozen=True, slots=True)
class LeastWork:
    """The least expected time to run what is outstanding: queues in seconds, so a slow device's count for more."""

    costs: CostModel

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        return min(valid_servers(view), key=lambda server: outstanding_work_s(self.costs, view, server))


@dataclass(frozen=True, slots=True)
class ShortestDelay:
    """The earliest expected end of the block: outstanding work + transfer + its own batch at the width it would get."""

    costs: CostModel
    width: WidthRule

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        return min(valid_servers(view), key=lambda server: self._delay_s(view, server, rng))

    def _delay_s(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        key = WorkKey(view.head.segment, self.width(view, server, rng), view.head.previous_width)
        own_s = transfer_s(self.costs, view, server) + self.costs.batch_s(server, key, view.candidates)
        return outstanding_work_s(self.costs, view, server) + own_s


@dataclass(frozen=True, slots=True)
class Sticky:
    """Where the activations are, if that server can take the block; else, and for new images, `elsewhere`."""

    elsewhere: Placement

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        location = view.head.location
        stays = location >= 0 and view.servers[location].valid  # an image at the router is on no server
        return location if stays else self.elsewhere(view, rng)


# -------------------------------------------------------------------------------------------------------- width rules


def held_width(widths: Sequence[float], held: Sequence[bool], wanted: float) -> float:
    """The widest held width that is not above `wanted`, or else the narrowest held one. `widths` ascend."""
    can = [width for width, holds in zip(widths, held, strict=True) if holds]
    return max((width for width in can if width <= wanted), default=can[0])


@dataclass(frozen=True, slots=True)
class RandomWidth:
    """Uniform over the widths that the server can hold."""

    widths: tuple[float, ...]

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """The width for the view's candidate block on that server."""
        can = [width for width, holds in zip(self.widths, view.servers[server].widths, strict=True) if holds]
        return can[rng.integers(len(can))]


@dataclass(frozen=True, slots=True)
class FixedWidths:
    """One width tuple for every request."""

    widths: tuple[float, ...]
    tuple_: tuple[float, ...]

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """The width for the view's candidate block on that server."""
        return held_width(self.widths, view.servers[server].widths, self.tuple_[view.head.segment - 1])


@dataclass(frozen=True, slots=True)
class Ladder:
    """Width tuples by load: each threshold that the load exceeds is one rung down.

    The load is (FIFO length + outstanding requests) per server; a request takes its segment's width from the rung of
    the moment, so it may pass segments on different rungs.

    Attributes:
        rungs: width tuples, the most accurate first.
        thresholds: requests per server, ascending, one fewer than rungs.
    """

    widths: tuple[float, ...]
    rungs: tuple[tuple[float, ...], ...]
    thresholds: tuple[float, ...]

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """The width for the view's candidate block on that server."""
        outstanding = sum(each.outstanding_requests for each in view.servers)
        load = (view.fifo_length + outstanding) / len(view.servers)
        rung = self.rungs[sum(load > threshold for threshold in self.thresholds)]
        return held_width(self.widths, view.servers[server].widths, rung[view.head.segment - 1])


def efficient_tuples(context: RouterContext) -> list[tuple[float, ...]]:
    """Tuples of the accuracy table that no cheaper or equally cheap one matches, the most accurate first.

    Only tuples that the table has: the prior's guess for a missing one would make it look as accurate as a dearer
    neighbor. The cost is that of one image through all segments, averaged over the servers.
    """
    allowed = set(context.config.widths)
    known = [widths for widths in context.prior.top1 if allowed.issuperset(widths)]
    cost_s = {widths: tuple_cost_s(context, widths) for widths in known}
    efficient: list[tuple[float, ...]] = []
    best = float("-inf")
    for widths in sorted(known, key=lambda widths: (cost_s[widths], -context.prior.top1[widths], widths)):
        if context.prior.top1[widths] > best:
            best = context.prior.top1[widths]
            efficient.append(widths)
    return efficient[::-1]


def tuple_cost_s(context: RouterContext, widths: tuple[float, ...]) -> float:
    """Expected device time of one image through all segments at these widths, averaged over the servers."""
    keys = [WorkKey(s, w, p) for s, (w, p) in enumerate(zip(widths, (IMAGE, *widths), strict=False), start=1)]
    servers = range(context.config.servers)
    return sum(context.costs.image_s(server, key) for server in servers for key in keys) / len(servers)


def spread(rungs: Sequence[tuple[float, ...]], count: int) -> tuple[tuple[float, ...], ...]:
    """At most `count` of them, evenly by position, the first and (from two on) the last among them."""
    if len(rungs) <= count:
        return tuple(rungs)
    if count == 1:
        return (rungs[0],)
    return tuple(rungs[round(index * (len(rungs) - 1) / (count - 1))] for index in range(count))


# --------------------------------------------------------------------------------------------------------- group rules


@dataclass(frozen=True, slots=True)
class LargestGroup:
    """As many as there are, up to the largest group: the default."""

    groups: tuple[int, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The group size for the view's candidate block."""
        return self.groups[-1]


@dataclass(frozen=True, slots=True)
class RandomGroup:
    """Uniform over the group sizes: the paper's baseline."""

    groups: tuple[int, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The group size for the view's candidate block."""
        return self.groups[rng.integers(len(self.groups))]


# ------------------------------------------------------------------------------------------------------------ slackfit


@dataclass(frozen=True, slots=True)
class SlackFit:
    """After SuperServe (Khare et al. 2025, SlackFit): the block's slack picks a bucket of expected latency.

    The choices (width, group) of the placed server are put into evenly spaced buckets of their expected latency. The
    last bucket that fits the slack whole is taken, or the first where none does; in it, the largest group, then the
    widest. So a long slack buys width when few wait, and batching when many do.

    Slack = the segment's share of the latency target, less the time the oldest candidate has waited, less the
    server's outstanding work and the transfer.

    Attributes:
        target_s: end-to-end latency target; each segment has an equal share.
    """

    placement: Placement
    config: RouterConfig
    costs: CostModel
    target_s: float

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate block."""
        server = self.placement(view, rng)
        options = self._options(view, server)
        first_s = min(latency_s for latency_s, _, _ in options)
        width_s = (max(latency_s for latency_s, _, _ in options) - first_s) / SLACK_BUCKETS
        buckets: dict[int, list[tuple[float, int, float]]] = {}
        for option in options:
            buckets.setdefault(int((option[0] - first_s) / width_s) if width_s > 0 else 0, []).append(option)
        slack_s = self._slack_s(view, server)
        fitting = [number for number, bucket in buckets.items() if max(bucket)[0] <= slack_s]
        _, group, width = max(buckets[max(fitting, default=0)], key=lambda option: option[1:])
        return Choice(server, width, group)

    def _options(self, view: ClusterView, server: int) -> list[tuple[float, int, float]]:
        """(expected latency in s, group, width); groups beyond the first that takes all candidates change nothing."""
        groups = [g for g in self.config.groups if g < view.candidates]
        groups += [g for g in self.config.groups if g >= view.candidates][:1]
        held = zip(self.config.widths, view.servers[server].widths, strict=True)
        keys = [WorkKey(view.head.segment, width, view.head.previous_width) for width, holds in held if holds]
        return [
            (self.costs.batch_s(server, key, min(group, view.candidates)), group, key.width)
            for key in keys
            for group in groups
        ]

    def _slack_s(self, view: ClusterView, server: int) -> float:
        waited_s = (view.now_ns - view.head_entered_ns) / NS_PER_S
        busy_s = outstanding_work_s(self.costs, view, server)
        return self.target_s / self.config.segments - waited_s - busy_s - transfer_s(self.costs, view, server)


def default_target_s(context: RouterContext) -> float:
    """The scenario's deadline, or twice the slowest server's time for full groups at full width, all segments."""
    if context.deadline_s is not None:
        return context.deadline_s
    config, full = context.config, context.config.widths[-1]
    keys = [WorkKey(s, full, IMAGE if s == 1 else full) for s in range(1, config.segments + 1)]
    servers = range(config.servers)
    return SLACK_FACTOR * max(sum(context.costs.batch_s(i, key, config.groups[-1]) for key in keys) for i in servers)


# ------------------------------------------------------------------------------------------------------ routers by name

_PLACEMENTS: Mapping[str, Callable[[RouterContext, WidthRule], Placement]] = {
    "random": lambda context, width: place_at_random,
    "round-robin": lambda context, width: RoundRobin(),
    "jsq": lambda context, width: join_shortest_queue,
    "power-of-two": lambda context, width: power_of_two,
    "least-work": lambda context, width: LeastWork(context.costs),
    "shortest-delay": lambda context, width: ShortestDelay(context.costs, width),
    "sticky": lambda context, width: Sticky(LeastWork(context.costs)),
}
PLACEMENT_NAMES: tuple[str, ...] = tuple(_PLACEMENTS)
ROUTER_NAMES: tuple[str, ...] = (*PLACEMENT_NAMES, "ladder", "slackfit")
_WITH_PLACEMENT = ("fixed", "ladder", "slackfit")


@dataclass(frozen=True, slots=True)
class RouterName:
    """A router's name, taken apart: `kind[:argument][@placement]`, or `module:Class`.

    Attributes:
        kind: one of `ROUTER_NAMES`, `fixed`, or `class`.
        numbers: the widths of `fixed:`, the thresholds of `ladder:`.
        placement: for `fixed`, `ladder` and `slackfit`; `sticky` where none is named.
        path: (module, class) of a user's own.
    """

    kind: str
    numbers: tuple[float, ...] = ()
    placement: str = "sticky"
    path: tuple[str, str] = ("", "")


def parse_router_name(name: str, source: str = "router", key: str = "") -> RouterName:
    """Take a name apart; raises `InputError` (naming `source` and `key`) where it is not one.

    A user's class is not imported here, and a width tuple is not held against a cluster: `make_router` does that.
    """
    rule, has_placement, placement = name.partition("@")
    kind, _, argument = rule.partition(":")
    if has_placement and (kind not in _WITH_PLACEMENT or placement not in _PLACEMENTS):
        problem = f"{name!r}: a placement is named after `@` of {', '.join(_WITH_PLACEMENT)}"
        raise InputError(source, key, f"{problem}; {nearest(placement, PLACEMENT_NAMES)}")
    placement = placement or "sticky"
    if kind == "fixed" or (kind == "ladder" and argument):
        return RouterName(kind, _numbers(name, argument, source, key), placement)
    if rule in ROUTER_NAMES:
        return RouterName(rule, placement=placement)
    if all(part.isidentifier() for part in kind.split(".")) and argument.isidentifier() and kind not in ROUTER_NAMES:
        return RouterName("class", path=(kind, argument))
    known = nearest(name, (*ROUTER_NAMES, "fixed:w1,w2,..."))
    remedy = "or `module:Class`, or a file that `slimsched train` wrote"
    raise InputError(source, key, f"unknown router {name!r}; {known}, {remedy}")


def _numbers(name: str, argument: str, source: str, key: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in argument.split(","))
    except ValueError:
        raise InputError(source, key, f"{name!r}: numbers with commas between them follow the colon") from None


def make_router(name: str, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
    """A fresh router by its name; raises `InputError` (naming `source` and `key`) for one that can't be made.

    ======================  =========================================================================================
    name                    router
    ======================  =========================================================================================
    `random`                valid server, held width and group, each uniform: the paper's baseline
    a placement             `round-robin`, `jsq`, `power-of-two`, `least-work`, `shortest-delay`, `sticky`: full width
    `fixed:w1,...,wS`       that width tuple, placed by `sticky`; `fixed:...@jsq` names another placement
    `ladder`                tuples by load (`Ladder`); `ladder:8,32` names thresholds, `ladder@jsq` a placement
    `slackfit`              width and group by slack (`SlackFit`); `slackfit@jsq` names a placement
    `module:Class`          a user's own: imported, and called with the context
    ======================  =========================================================================================
    """
    parsed = parse_router_name(name, source, key)
    match parsed.kind:
        case "class":
            return _own_router(name, parsed.path, context, source, key)
        case "slackfit":
            full = FixedWidths(context.config.widths, _full_widths(context.config))
            placement = _PLACEMENTS[parsed.placement](context, full)
            return SlackFit(placement, context.config, context.costs, default_target_s(context))
        case "fixed" | "ladder":
            rule = _width_rule(name, parsed, context, source, key)
            return _composed(parsed.placement, rule, LargestGroup(context.config.groups), context)
        case "random":
            rule = RandomWidth(context.config.widths)
            return _composed("random", rule, RandomGroup(context.config.groups), context)
        case placement:
            rule = FixedWidths(context.config.widths, _full_widths(context.config))
            return _composed(placement, rule, LargestGroup(context.config.groups), context)


def _composed(placement: str, width: WidthRule, group: GroupRule, context: RouterContext) -> ComposedRouter:
    return ComposedRouter(_PLACEMENTS[placement](context, width), width, group)


def _full_widths(config: RouterConfig) -> tuple[float, ...]:
    return (config.widths[-1],) * config.segments


def _width_rule(name: str, parsed: RouterName, context: RouterContext, source: str, key: str) -> WidthRule:
    config = context.config
    if parsed.kind == "fixed":
        if len(parsed.numbers) != config.segments or not set(parsed.numbers) <= set(config.widths):
            allowed = f"one of {', '.join(map(str, config.widths))} for each of {config.segments} segments"
            raise InputError(source, key, f"{name!r}: a fixed tuple needs {allowed}")
        return FixedWidths(config.widths, parsed.numbers)
    thresholds = parsed.numbers or LADDER_THRESHOLDS
    if list(thresholds) != sorted(set(thresholds)) or thresholds[0] < 0:
        raise InputError(source, key, f"{name!r}: thresholds are requests per server, ascending, from 0")
    rungs = spread(efficient_tuples(context), len(thresholds) + 1)
    if not rungs:
        raise InputError(source, key, f"{name!r}: the accuracy table has no tuple of the widths {config.widths}")
    return Ladder(config.widths, rungs, thresholds[: len(rungs) - 1])


def _own_router(name: str, path: tuple[str, str], context: RouterContext, source: str, key: str) -> RoutingPolicy:
    """A user's class; whatever goes wrong inside it while it is made is the user's to know."""
    try:
        router: RoutingPolicy = getattr(importlib.import_module(path[0]), path[1])(context)
    except Exception as error:
        raise InputError(source, key, f"{name!r} could not be made: {type(error).__name__}: {error}") from error
    if not callable(getattr(router, "choose", None)):
        raise InputError(source, key, f"{name!r} has no method choose(view, rng) -> Choice")
    return router
