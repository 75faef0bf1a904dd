"""The parts of rules: placements, width rules, micro-batch size rules, and a ladder of widths that keeps goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from kit.errors import InputError
from kit.strict import StrictModel
from policies.goal_control import FOLLOW, MAX_SHIFT, MAX_WEIGHT, GoalControl, Steered, end_of_dial
from policies.interfaces import MAX_TUPLES, CostModel, RouterConfig
from policies.rules.rule_context import (
    Placement,
    RouterContext,
    WidthRule,
    batch_ns,
    drawn,
    held_width,
    is_up,
    looked_at,
    middle_way_ns,
    middle_widths,
    outstanding_ns,
    path,
    slowest_path_ns,
    speeds_img_s,
    transfer_ns,
)
from policies.vocabulary import FOLLOW_NS, ClusterView, WorkKey, nanoseconds

REMEMBERED = 20  # work to come is remembered for this multiple of the slowest image's way


def valid_servers(view: ClusterView) -> list[int]:
    """Return the servers that can take the micro-batch, ascending; never empty in a view that asks for a decision."""
    return [index for index, server in enumerate(view.servers) if server.valid]


def candidate_servers(view: ClusterView) -> list[int]:
    """Return those of them that the decision examines; ascending if it examines all."""
    return [index for index in looked_at(view) if view.servers[index].valid]


def two_of(servers: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Return two different ones at random, ascending; a single one still costs one draw."""
    first = drawn(len(servers), rng)
    if len(servers) == 1:
        return [servers[first]]
    second = drawn(len(servers) - 1, rng)
    if second >= first:
        second += 1
    return [servers[index] for index in sorted((first, second))]


@dataclass(frozen=True, slots=True)
class RandomPlacement:
    """A uniform choice of the valid servers: the paper's baseline."""

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        servers = candidate_servers(view)
        return servers[drawn(len(servers), rng)]


@dataclass(frozen=True, slots=True)
class WeightedRandom:
    """A random choice with probabilities in proportion to the servers' speeds."""

    speeds_img_s: tuple[float, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        servers = candidate_servers(view)
        total = 0.0
        for server in servers:
            total += self.speeds_img_s[server]
        threshold, passed = rng.random() * total, 0.0
        for server in servers:
            passed += self.speeds_img_s[server]
            if threshold < passed:
                return server
        return servers[-1]


@dataclass(slots=True)
class RoundRobin:
    """The first valid server after the last one chosen."""

    last: int = -1

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        servers = candidate_servers(view)
        self.last = min((server for server in servers if server > self.last), default=min(servers))
        return self.last


@dataclass(frozen=True, slots=True)
class ShortestQueue:
    """The fewest outstanding requests (JSQ)."""

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        return _shortest(view, candidate_servers(view))


@dataclass(frozen=True, slots=True)
class ShortestQueueBySpeed:
    """The fewest outstanding requests relative to speed: a queue counts as its time at full width."""

    speeds_img_s: tuple[float, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        return _shortest_by_speed(view, candidate_servers(view), self.speeds_img_s)


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """The shorter queue of two servers drawn at random (Mitzenmacher 2001)."""

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        return _shortest(view, two_of(candidate_servers(view), rng))


@dataclass(frozen=True, slots=True)
class PowerOfTwoBySpeed:
    """Of two servers drawn at random, the one whose queue is shorter relative to its speed."""

    speeds_img_s: tuple[float, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        return _shortest_by_speed(view, two_of(candidate_servers(view), rng), self.speeds_img_s)


@dataclass(frozen=True, slots=True)
class IdleQueue:
    """A server without outstanding work, or otherwise one at random (Join-Idle-Queue: Lu et al. 2011)."""

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        servers = candidate_servers(view)
        idle = next((server for server in servers if view.servers[server].outstanding_requests == 0), None)
        return servers[drawn(len(servers), rng)] if idle is None else idle


def _shortest(view: ClusterView, servers: Sequence[int]) -> int:
    return min(servers, key=lambda server: view.servers[server].outstanding_requests)


def _shortest_by_speed(view: ClusterView, servers: Sequence[int], speeds_img_s: Sequence[float]) -> int:
    return min(servers, key=lambda server: view.servers[server].outstanding_requests / speeds_img_s[server])


@dataclass(frozen=True, slots=True)
class LeastWork:
    """The least expected time to run outstanding work: queues in seconds, so a slow device's queue counts more."""

    costs: CostModel

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        return min(candidate_servers(view), key=lambda server: outstanding_ns(self.costs, view, server))


@dataclass(frozen=True, slots=True)
class Packed:
    """The server with the least energy per image, unless it has a full micro-batch of work; then the next one.

    It examines all servers. So at low load some stay idle, and the others' batches are larger. If all have a full
    micro-batch, it is the least work.

    Attributes:
        order: the servers, by their energy for an image's way at middle widths; of equal ones the first.
        full_ns: for each server, expected time of a full micro-batch's share of that way: one segment.
    """

    costs: CostModel
    order: tuple[int, ...]
    full_ns: tuple[int, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        for server in self.order:
            if view.servers[server].valid and outstanding_ns(self.costs, view, server) < self.full_ns[server]:
                return server
        return min(valid_servers(view), key=lambda server: outstanding_ns(self.costs, view, server))


def _packed(context: RouterContext) -> Packed:
    config, costs = context.config, context.costs
    servers, paths = range(config.servers), [path(middle_widths(config, widths)) for widths in config.model_widths]
    order = sorted(servers, key=lambda server: sum(costs.energy_j(server, key) for keys in paths for key in keys))
    full_ns = (config.micro_batch_sizes[-1] * middle_way_ns(context, server) // config.segments for server in servers)
    return Packed(costs, tuple(order), tuple(full_ns))


@dataclass(slots=True)
class LeastWorkComing:
    """The least work, including the work to come: images that wait at the router between two segments are at no server,
    but their activations are at one, where they will add work.

    It is counted in whole ways of an image, each of which takes `way_ns`. Images lost in transfer are not reported, so
    the work to come decays, and is dropped at once for a server that is out.

    Attributes:
        way_ns: for each server, expected time of one image through all segments.
        most: the largest micro-batch, in images; candidates up to it are expected to be sent.
        forget_ns: about how long work to come is remembered.
        stays: keep images where their activations are, as `Sticky` does.
        coming: for each server, the work to come; `seen_ns`: its last update.
    """

    costs: CostModel
    way_ns: tuple[int, ...]
    segments: int
    most: int
    forget_ns: int
    stays: bool
    coming: list[float]
    seen_ns: list[int]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        for server in looked_at(view):
            keep = self.forget_ns / (self.forget_ns + (view.now_ns - self.seen_ns[server]))
            self.seen_ns[server] = view.now_ns
            self.coming[server] *= keep if is_up(view.servers[server]) else 0.0
        location = view.head.location
        if not (self.stays and location >= 0 and view.servers[location].valid):
            target = min(candidate_servers(view), key=lambda server: self._work_ns(view, server, rng))
        else:
            target = location
        self._note(view, target)
        return target

    def _work_ns(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        return outstanding_ns(self.costs, view, server) + self.coming[server] * self.way_ns[server]

    def _note(self, view: ClusterView, target: int) -> None:
        """Update the work to come: images whose activations were elsewhere leave none there."""
        images, location = min(self.most, view.candidates), view.head.location
        to_come = (self.segments - view.head.segment) / self.segments
        if location >= 0:
            self.coming[location] = max(0.0, self.coming[location] - images * (to_come + 1 / self.segments))
        self.coming[target] += images * to_come


def _least_work_coming(context: RouterContext, stays: bool) -> LeastWorkComing:
    config, costs = context.config, context.costs
    way_ns = tuple(middle_way_ns(context, server) for server in range(config.servers))
    forget_ns, most = REMEMBERED * slowest_path_ns(context), config.micro_batch_sizes[-1]
    coming, seen_ns = [0.0] * config.servers, [0] * config.servers
    return LeastWorkComing(costs, way_ns, config.segments, most, forget_ns, stays, coming, seen_ns)


@dataclass(frozen=True, slots=True)
class ShortestDelay:
    """The earliest expected end of the micro-batch: outstanding work + transfer + its batch at the width that it would
    get."""

    costs: CostModel
    width: WidthRule

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        return min(candidate_servers(view), key=lambda server: self._delay_ns(view, server, rng))

    def _delay_ns(self, view: ClusterView, server: int, rng: np.random.Generator) -> int:
        key = WorkKey(view.head.segment, self.width(view, server, rng), view.head.previous_width)
        own_ns = transfer_ns(self.costs, view, server) + batch_ns(self.costs, server, key, view.candidates)
        return outstanding_ns(self.costs, view, server) + own_ns


@dataclass(frozen=True, slots=True)
class Sticky:
    """The server with the activations, if it can take the micro-batch; otherwise, and for new images, `elsewhere`."""

    elsewhere: Placement

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the server for the view's candidate micro-batch."""
        location = view.head.location
        stays = location >= 0 and view.servers[location].valid  # an image at the router is on no server
        return location if stays else self.elsewhere(view, rng)


_PLACEMENTS: Mapping[str, Callable[[RouterContext, WidthRule], Placement]] = {
    "random": lambda context, width: RandomPlacement(),
    "weighted-random": lambda context, width: WeightedRandom(speeds_img_s(context)),
    "round-robin": lambda context, width: RoundRobin(),
    "jsq": lambda context, width: ShortestQueue(),
    "jsq-speed": lambda context, width: ShortestQueueBySpeed(speeds_img_s(context)),
    "power-of-two": lambda context, width: PowerOfTwo(),
    "power-of-two-speed": lambda context, width: PowerOfTwoBySpeed(speeds_img_s(context)),
    "jiq": lambda context, width: IdleQueue(),
    "least-work": lambda context, width: LeastWork(context.costs),
    "least-work-coming": lambda context, width: _least_work_coming(context, stays=False),
    "shortest-delay": lambda context, width: ShortestDelay(context.costs, width),
    "sticky": lambda context, width: Sticky(LeastWork(context.costs)),
    "packed": lambda context, width: Sticky(_packed(context)),
    "sticky-coming": lambda context, width: _least_work_coming(context, stays=True),
}
PLACEMENT_NAMES: tuple[str, ...] = tuple(_PLACEMENTS)


def make_placement(name: str, context: RouterContext, width: WidthRule) -> Placement:
    """Create a placement by its name; `width` is the width rule for the micro-batches that it places."""
    return _PLACEMENTS[name](context, width)


@dataclass(frozen=True, slots=True)
class RandomWidth:
    """A uniform choice of the widths that the server can hold."""

    widths: tuple[float, ...]

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """Return the width for the view's candidate micro-batch on that server."""
        available = [width for width, fits in zip(self.widths, view.servers[server].widths, strict=True) if fits]
        return available[drawn(len(available), rng)]


@dataclass(frozen=True, slots=True)
class FixedWidths:
    """One width tuple for every request; or, in `by_class`, one for each class."""

    widths: tuple[float, ...]
    tuple_: tuple[float, ...]
    by_class: tuple[tuple[float, ...], ...] = ()

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """Return the width for the view's candidate micro-batch on that server."""
        return held_width(self.widths, view.servers[server].widths, self.widths_of(view, server)[view.head.segment - 1])

    def widths_of(self, view: ClusterView, server: int) -> tuple[float, ...]:
        """Return the widths of all segments, for the view's candidate micro-batch on that server."""
        return self.by_class[view.head.service_class] if self.by_class else self.tuple_


def requests_per_server(view: ClusterView) -> float:
    """Return the number of requests inside, for each server that is up."""
    outstanding = sum(server.outstanding_requests for server in view.servers)
    return (view.fifo_length + outstanding) / max(1, sum(is_up(server) for server in view.servers))


@dataclass(slots=True)
class Ladder:
    """Width tuples by load: each threshold that the load exceeds is one rung down.

    The load is (FIFO length + outstanding requests) per server that is up; a request takes its segment's width from the
    present rung, so it may pass segments on different rungs. With hysteresis the ladder stays on a lower rung until the
    load is down to a share of the threshold; it has one rung for the whole cluster, for each class.

    Attributes:
        rungs: width tuples, the most accurate first; by class.
        thresholds: of the load, ascending, one fewer than rungs; a class with fewer rungs uses the first ones.
        hysteresis: a share in [0, 1); a rung is left upwards at its threshold times (1 - hysteresis).
        at: by class, the present rung. Repeated calls at the same load do not change it.
    """

    widths: tuple[float, ...]
    rungs: tuple[tuple[tuple[float, ...], ...], ...]
    thresholds: tuple[float, ...]
    hysteresis: float = 0.0
    at: list[int] = field(default_factory=lambda: [0])

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """Return the width for the view's candidate micro-batch on that server."""
        return self.width_at(self.rung_of(view), view, server)

    def rung_of(self, view: ClusterView, scale: float = 1.0) -> int:
        """Return the number of thresholds that the load, multiplied by `scale`, exceeds, with hysteresis."""
        load, service_class = requests_per_server(view) * scale, view.head.service_class
        thresholds = self.thresholds[: len(self.rungs[service_class]) - 1]
        down = sum(load > threshold for threshold in thresholds)
        stay = sum(load > threshold * (1 - self.hysteresis) for threshold in thresholds)
        self.at[service_class] = rung = max(down, min(self.at[service_class], stay))
        return rung

    def width_at(self, rung: int, view: ClusterView, server: int) -> float:
        """Return the width of that rung for the view's candidate micro-batch on that server."""
        target = self.rungs[view.head.service_class][rung][view.head.segment - 1]
        return held_width(self.widths, view.servers[server].widths, target)

    def widths_of(self, view: ClusterView, server: int) -> tuple[float, ...]:
        """Return the widths of all segments on the present rung."""
        return self.rungs[view.head.service_class][self.at[view.head.service_class]]


LONGEST_LIMIT_S: Final = 1e7  # as in scenarios


class ControlSpec(StrictModel):
    """Goals that a router keeps by control; each that is not given is the operator's.

    Attributes:
        floor: of mean accuracy; 0 for none.
        p99_limit_s: of the p99 latency; 0 for none.
        energy_weight: what a joule an image costs, in points of accuracy; only Compass uses it.
    """

    floor: Annotated[float, Field(ge=0, le=1)] | None = None
    p99_limit_s: Annotated[float, Field(ge=0, le=LONGEST_LIMIT_S)] | None = None
    energy_weight: Annotated[float, Field(ge=0, le=MAX_WEIGHT)] | None = None

    def make(self, config: RouterConfig, source: str, key: str, most: float, *, weighs: bool = False) -> GoalControl:
        """Create a controller that shifts towards accuracy by at most `most`, of a router that `weighs` energy.

        It has one controller for each class.

        Raises:
            InputError: the router's core has no accuracy table; no width tuple reaches the floor; the router can't use
                an energy weight.
        """
        key = f"{key}.control" if key else "control"
        if not config.accuracies:
            problem = f"the core has no accuracy table: such have up to {MAX_TUPLES} width tuples"
            raise InputError(source, key, f"{problem}; leave `control` out")
        if self.energy_weight is not None and not weighs:
            problem = f"is {self.energy_weight:g}, but this kind has no energy weight; leave it out, or take compass"
            raise InputError(source, f"{key}.energy_weight", problem)
        best = max(config.accuracies)
        if self.floor is not None and self.floor > best:
            problem = f"no width tuple is as accurate as {self.floor:g}; the best has {best:.4f}: name at most that"
            raise InputError(source, f"{key}.floor", problem)
        first, *others = [
            GoalControl(
                floor=FOLLOW if self.floor is None else self.floor,
                most=MAX_SHIFT if config.sustained_img_s else most,  # without admission nothing else bounds the queue
                limit_ns=FOLLOW_NS if self.p99_limit_s is None else nanoseconds(self.p99_limit_s),
                energy_weight=FOLLOW if self.energy_weight is None else self.energy_weight,
                best=best,
                weighs=weighs,
            )
            for _ in range(config.class_count)
        ]
        first.others = tuple(others)
        return first


@dataclass(frozen=True, slots=True)
class ControlledLadder(Steered):
    """A `Ladder` for a load scaled by the goals."""

    ladder: Ladder
    control: GoalControl

    @property
    def widths(self) -> tuple[float, ...]:
        """The width set."""
        return self.ladder.widths

    def __call__(self, view: ClusterView, server: int, rng: np.random.Generator) -> float:
        """Return the width for the view's candidate micro-batch on that server."""
        control = self.control.of(view)
        rung = self.ladder.rung_of(view, exp(-control.step(view)))
        control.end = end_of_dial(rung, len(self.ladder.rungs[view.head.service_class]))
        return self.ladder.width_at(rung, view, server)

    def widths_of(self, view: ClusterView, server: int) -> tuple[float, ...]:
        """Return the widths of all segments on the present rung."""
        return self.ladder.widths_of(view, server)


@dataclass(frozen=True, slots=True)
class LargestMicroBatch:
    """All candidates, up to the largest of these sizes: the default."""

    micro_batch_sizes: tuple[int, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the micro-batch size for the view's candidate micro-batch."""
        return self.micro_batch_sizes[-1]


@dataclass(frozen=True, slots=True)
class RandomMicroBatch:
    """A uniform choice of the micro-batch sizes: the paper's baseline."""

    micro_batch_sizes: tuple[int, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """Return the micro-batch size for the view's candidate micro-batch."""
        return self.micro_batch_sizes[drawn(len(self.micro_batch_sizes), rng)]
