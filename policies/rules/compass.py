"""Compass: one policy for any cluster, in numbers that no cluster's size or speed is in.

Its numbers are searched over drawn clusters (`scenarios.learn.over`), but for the first segment's hold. They serve any
cluster; `slimsched train` can tune them for one. Times count in units: what a full-width batch of `UNIT_BATCH` needs
for its whole way on the mean server. For the candidate block it compares every server and width at once:

    cost = wait x slowness + what is still to come + transfer + its own batch + a load that is needed
           - a bonus for staying + joules + distance from the width that a price asks for

The price is how much accuracy device time must bring: it asks for the width tuple that has most left after it. It
rises with the load, differs by segment, and heeds the FIFO, the candidates, the oldest one's age and the arrival rate.
How slow a server is is seen from what it did and what its profile expects. Lines wait by segment, without a decision
(`policies.holds`).

What both engines compute stands in plain functions, which `policies.compiled.compass` compiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, log1p
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from kit.errors import InputError
from kit.strict import StrictModel
from policies.goal_control import MAX_STRETCH, GoalControl, Steered, end_of_dial
from policies.interfaces import CostModel, RoutingPolicy
from policies.rules.candidates import (
    FEW,
    SERVER,
    SETTING,
    WIDTH,
    CandidateNetwork,
    inputs_of,
    reluctance,
    write_server,
    write_setting,
    write_width,
)
from policies.rules.context import RouterContext, is_up, looked_at
from policies.rules.controlled import ControlSpec
from policies.rules.costs import (
    batch_ns,
    corner_tuples,
    full_widths,
    load_ns,
    middle_way_ns,
    outstanding_ns,
    path,
    path_energy_j,
    transfer_ns,
    tuple_costs_s,
)
from policies.rules.holding import HoldingRouter
from policies.rules.specs import POINT, From0, Reals, RuleSpec, Space
from policies.rules.widths import held_width
from policies.vocabulary import IMAGE, NS_PER_S, Choice, ClusterView, HoldRule, WorkKey

UNIT_BATCH: Final = 8
MANY: Final = 32.0  # candidates
MAX_LOG_PRICE: Final = 20.0  # either way
MAX_AGE: Final = 4.0  # units
MAX_RATE: Final = 4.0  # of the capacity at middle widths
FAST: Final = 1.0  # units over which the arrival rate is averaged; ten and a hundred times as long for the others
WATCHED: Final = 20.0  # units over which a server's slowness is averaged
REMEMBERED: Final = 4.0  # units over which what is to come is forgotten
PROFILE: Final = 2.0  # units of work by which it is believed to be as fast as its profile says
MAX_SLOWNESS: Final = 16.0

Four = Annotated[tuple[float, float, float, float], Field()]


class Numbers(StrictModel):
    """What the search finds. All are dimensionless; costs are relative to a unit of waiting.

    Attributes:
        level: the logarithm of the price with nobody inside, and its `rise` with that of the load.
        segments: what the price's logarithm has more at a segment, at four places from the first to the last one.
        short_rise, short_segments, short_host: what these, and `first_host`, have more where servers' memory holds
            nothing of all instances; where it holds half, half of it. There a step to another width costs a load.
        fifo, candidates, age, fast, middle, slow: the same for each of these features.
        to_come, transfer, batch, load, joules: how much each of these costs.
        stay: the bonus for staying, from the first to the last segment.
        uneven_stay, short_stay: what it has more where servers are unlike (times the deviation of their speeds'
            logarithms), and where memory holds nothing.
        trust: the power of a server's slowness by which its work counts.
        distance: what a step away from the width that the price asks for costs.
        first_requests, later_requests: until how many a line waits at segment 1, and at the others; or, where more,
        first_arrivals, later_arrivals: as many as arrive in so many units, at the rate seen, for each block that
            servers may have: so devices have large batches; or, where more,
        first_host, later_host: as many as arrive while the router's host decides an image's whole way if it is alone
            in its blocks, so many times: at 1, the host is about busy. Where devices are slow, the first one's is
            longer, by a unit in times of what the host takes, to the power of `first_units`: by `first_longer` at most,
            or until servers have `first_batches` each on their whole way. Large batches are slow ones, and a host that
            is not busy gains nothing by them.
        first_wait, later_wait: for how long at most, in units.
    """

    level: float = -8.2257
    rise: From0 = 2.202
    segments: Four = (0.3, 0.44, 0.07, -0.6)
    short_rise: float = -1.3578
    short_segments: Four = (2.1835, 1.2339, 0.4593, 0.0884)
    short_host: float = 1.0
    fifo: float = -0.2593
    candidates: float = 1.3912
    age: float = 0.9398
    fast: float = -0.1511
    middle: float = 0.3891
    slow: float = -0.3323
    to_come: float = 1.2549
    transfer: float = 1.8311
    batch: float = 1.7309
    load: From0 = 4.46
    joules: From0 = 0.1182
    stay: Four = (0.75, 1.0, 1.37, 0.6)
    uneven_stay: float = -0.5
    short_stay: float = -0.5
    trust: From0 = 0.0
    distance: From0 = 5.3563
    first_requests: Annotated[float, Field(ge=1)] = 3.0
    first_arrivals: From0 = 2.0
    first_host: From0 = 0.776
    first_units: From0 = 0.35
    first_longer: From0 = 3.5
    first_batches: From0 = 1.75
    first_wait: From0 = 0.45
    later_requests: Annotated[float, Field(ge=1)] = 1.0
    later_arrivals: From0 = 0.0994
    later_host: From0 = 0.6098
    later_wait: From0 = 0.4219

    def in_cluster(self, shares: Sequence[float], ways_ns: Sequence[int]) -> Numbers:
        """With what is more where memory is short, or servers are unlike: `rise`, `segments` and so on then count.

        Args:
            shares: of all instances that servers' memory holds; empty where it holds all.
            ways_ns: what an image's way takes on each server.
        """
        short = 1.0 - sum(shares) / len(shares) if shares else 0.0
        more_stay = self.uneven_stay * float(np.log(ways_ns).std()) + short * self.short_stay
        rise = max(0.0, self.rise + short * self.short_rise)
        segments = tuple(usual + short * more for usual, more in zip(self.segments, self.short_segments, strict=True))
        host = max(0.0, self.first_host + short * self.short_host)
        stay = tuple(usual + more_stay for usual in self.stay)
        return self.model_copy(update={"rise": rise, "segments": segments, "stay": stay, "first_host": host})

    @classmethod
    def of_vector(cls, values: Reals) -> Numbers:
        """From (K,) values, field after field; what is below a field's bound becomes the bound."""
        fields: dict[str, Any] = {}
        at = 0
        for name, field_ in cls.model_fields.items():
            count = np.size(field_.default)
            least = max((each.ge for each in field_.metadata if hasattr(each, "ge")), default=-np.inf)
            bounded = tuple(np.maximum(values[at : at + count], least).tolist())
            fields[name], at = bounded if count > 1 else bounded[0], at + count
        return cls(**fields)

    def to_vector(self) -> Reals:
        """(K,) what `of_vector` makes it of."""
        return np.hstack([getattr(self, name) for name in type(self).model_fields])


def places_of(names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """(K,) which values of a vector of `Numbers` these fields have."""
    return np.hstack([np.full(np.size(field_.default), name in names) for name, field_ in Numbers.model_fields.items()])


SPREAD: Final = Numbers(  # how far a search looks
    level=0.4, rise=0.2, segments=(0.3,) * 4, short_rise=0.4, short_segments=(0.6,) * 4, short_host=0.4,
    fifo=0.2, candidates=0.4, age=0.4, fast=0.2, middle=0.2, slow=0.2,
    to_come=0.3, transfer=0.4, batch=0.4, load=1.5, joules=0.1, stay=(0.3,) * 4, uneven_stay=0.5, short_stay=0.5,
    trust=0.2, distance=3.0,
    first_requests=2.0, first_arrivals=0.6, first_host=0.3, first_units=0.1, first_longer=0.5, first_batches=0.2,
    first_wait=0.06,
    later_requests=1.0, later_arrivals=0.3, later_host=0.3, later_wait=0.1,
).to_vector()  # fmt: skip


# ------------------------------------------------------------------------------------- what both engines compute


class Rates(Protocol):
    """The arrival rate over three spans, as shares of the capacity; how many had arrived, and when that was."""

    arrived: int
    seen_ns: int
    fast_rate: float
    middle_rate: float
    slow_rate: float


class Watched(Protocol):
    """A server as it was left at the last decision, and what it did before, in units; and what is to come.

    Images that wait at the router between two segments are at no server, but their place is one, and there they will
    most likely go on. That is counted in whole ways of an image.
    """

    work: float
    busy: float
    done: float
    coming: float


def follow_rates(rates: Rates, arrived: int, passed: float, share: float) -> None:
    """Some have come since the last decision, so many units ago; each is such a share of the capacity of a unit."""
    came = max(0, arrived - rates.arrived) * share
    rates.fast_rate += (came - rates.fast_rate * passed) / (FAST + passed)
    rates.middle_rate += (came - rates.middle_rate * passed) / (10.0 * FAST + passed)
    rates.slow_rate += (came - rates.slow_rate * passed) / (100.0 * FAST + passed)
    rates.arrived = arrived


def follow_server(watched: Watched, work: float, passed: float, is_up: bool) -> None:
    """What a server had to do at the last decision, and what of it is done.

    That counts where something is left: who has nothing left may have been idle for a while. Of images that are lost on
    their way nothing is heard, so what is to come is forgotten by and by, and at once of a server that is out.
    """
    watched.coming *= REMEMBERED / (REMEMBERED + passed) if is_up else 0.0
    keep = WATCHED / (WATCHED + passed)
    watched.busy *= keep
    watched.done *= keep
    if watched.work > 0.0 and work > 0.0:
        watched.busy += passed
        watched.done += max(0.0, watched.work - work)
    watched.work = work


def slowness(watched: Watched) -> float:
    """Observed over expected time."""
    return min(MAX_SLOWNESS, (watched.busy + PROFILE) / (watched.done + PROFILE))


def log_price(
    weights: Numbers, rates: Rates, load: float, fifo: int, candidates: int, age: float, more: float
) -> float:
    """The price's logarithm; `more` is the segment's, and the dial's."""
    value = weights.level + weights.rise * log1p(load / FEW) + more
    value += weights.fifo * log1p(fifo / FEW) + weights.candidates * min(1.0, candidates / MANY)
    value += weights.age * min(MAX_AGE, age)
    value += weights.fast * (min(MAX_RATE, rates.fast_rate) - 1.0)
    value += weights.middle * (min(MAX_RATE, rates.middle_rate) - 1.0)
    value += weights.slow * (min(MAX_RATE, rates.slow_rate) - 1.0)
    return min(MAX_LOG_PRICE, max(-MAX_LOG_PRICE, value))


def write_rates(out: Reals, at: int, rates: Rates) -> None:
    """The rates, as a network's inputs."""
    out[at + 7] = min(MAX_RATE, rates.fast_rate) - 1.0
    out[at + 8] = min(MAX_RATE, rates.middle_rate) - 1.0
    out[at + 9] = min(MAX_RATE, rates.slow_rate) - 1.0


def server_cost(weights: Numbers, work: float, slow: float, to_come: float, transfer: float, stay: float) -> float:
    """What the server alone costs."""
    return work * exp(weights.trust * log(slow)) + weights.to_come * to_come + weights.transfer * transfer - stay


def width_cost(weights: Numbers, batch: float, load: float, steps: float) -> float:
    """What the width costs there; `steps` from the width that is wanted, of four over all widths."""
    return weights.batch * batch + weights.load * load + weights.distance * steps


# ---------------------------------------------------------------------------------------------------- the reference


@dataclass(slots=True)
class Seen:
    """What it remembers of one server."""

    work: float = 0.0
    busy: float = 0.0
    done: float = 0.0
    coming: float = 0.0
    seen_ns: int = 0


class PricedRungs(NamedTuple):
    """What a model's width tuples are worth, in device time of which a way at its full width is 1.

    Attributes:
        rungs: those that are worth their time, the most accurate first.
        thresholds: of each step to the next one, the price from which it pays.
        savings: by how much that falls for each point of accuracy that a joule is worth.
        widths: how many the model has.
    """

    rungs: tuple[tuple[float, ...], ...]
    thresholds: tuple[float, ...]
    savings: tuple[float, ...]
    widths: int


@dataclass(slots=True)
class Compass(Steered):
    """See the module.

    Attributes:
        groups: the group sizes; always the largest.
        priced: for each class what its model's width tuples are worth.
        unit_ns: a unit of time.
        share: of the capacity of a unit that one image is, at middle widths; of several routers, of each one's part.
        ways: (servers,) units that an image's whole way takes, at middle widths.
        more, stay: (segments,) of the price's logarithm, and the bonus for staying.
        joules: (servers, segments, widths) what they cost.
        control: keeps goals: the price falls and rises with it, and joules are weighed.
        network: adds to what a candidate costs (`policies.rules.candidates`); None for Compass itself.
        seen: what a network is told of the last decision.
    """

    costs: CostModel
    widths: tuple[float, ...]
    groups: tuple[int, ...]
    weights: Numbers
    priced: tuple[PricedRungs, ...]
    unit_ns: float
    share: float
    ways: tuple[float, ...]
    more: tuple[float, ...]
    stay: tuple[float, ...]
    joules: tuple[tuple[tuple[float, ...], ...], ...]
    control: GoalControl | None = None
    arrived: int = 0
    seen_ns: int = 0
    fast_rate: float = 0.0
    middle_rate: float = 0.0
    slow_rate: float = 0.0
    servers: list[Seen] = field(default_factory=list)
    network: CandidateNetwork | None = None
    seen: Reals = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.seen = np.zeros(inputs_of(len(self.servers), len(self.widths)))

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """Decide for the view's candidate block; nothing is drawn."""
        unit_ns, segment, servers = self.unit_ns, view.head.segment - 1, view.servers
        inside = view.fifo_length + sum(server.outstanding_requests for server in servers)
        passed = (view.now_ns - self.seen_ns) / unit_ns
        follow_rates(self, view.completed + inside, passed, self.share)
        self.seen_ns = view.now_ns
        load = inside / max(1, sum(is_up(server) for server in servers))
        age = (view.now_ns - view.head_entered_ns) / unit_ns
        more, weight = self.more[segment], 0.0
        control = None if self.control is None else self.control.of(view)
        if control is not None:
            more, weight = more - control.step(view), control.weight(view)
        price = log_price(self.weights, self, load, view.fifo_length, view.candidates, age, more)
        priced = self.priced[view.head.service_class]
        steps = zip(priced.thresholds, priced.savings, strict=True)
        rung = sum(exp(price) > threshold - weight * saving for threshold, saving in steps)
        if control is not None:
            control.end = end_of_dial(rung, len(priced.rungs))
        taken = min(self.groups[-1], view.candidates)
        costs = [inf] * (len(servers) * len(self.widths))
        for place, index in enumerate(looked_at(view)):
            seen, its = servers[index], self.servers[index]
            work = outstanding_ns(self.costs, view, index) / unit_ns
            follow_server(its, work, (view.now_ns - its.seen_ns) / unit_ns, is_up(seen))
            its.seen_ns = view.now_ns
            if not seen.valid:
                continue
            wanted = self.widths.index(held_width(self.widths, seen.widths, priced.rungs[rung][segment]))
            base = self._server_cost(view, index, place, work)
            for width in range(len(self.widths)):
                if seen.widths[width]:
                    at = place * len(self.widths) + width
                    costs[at] = base + self._width_cost(view, index, at, wanted, taken)
        if self.network is not None:
            self._write_setting(view, load, age, price)
            costs = self._corrected(costs, self.network)
        place, width = divmod(costs.index(min(costs)), len(self.widths))
        choice = Choice(looked_at(view)[place], self.widths[width], self.groups[-1])
        self._note(view, choice, taken)
        return choice

    def _write_setting(self, view: ClusterView, load: float, age: float, price: float) -> None:
        place = (view.head.segment - 1) / max(1, len(self.more) - 1)
        candidates = min(1.0, view.candidates / MANY)
        write_setting(self.seen, 0, load, view.fifo_length, candidates, min(MAX_AGE, age), price, place)
        write_rates(self.seen, 0, self)

    def _corrected(self, costs: Sequence[float], network: CandidateNetwork) -> list[float]:
        """What the candidates cost with what the network says of them."""
        least, scores = min(costs), network.scores(self.seen, len(self.servers), len(self.widths))
        pairs = zip(costs, scores.ravel().tolist(), strict=True)
        return [inf if cost == inf else network.sharpness * reluctance(cost, least) - score for cost, score in pairs]

    def _server_cost(self, view: ClusterView, server: int, place: int, work: float) -> float:
        stay = self.stay[view.head.segment - 1] if view.head.location == server else 0.0
        moved = transfer_ns(self.costs, view, server) / self.unit_ns
        slow, to_come = slowness(self.servers[server]), self.servers[server].coming * self.ways[server]
        if self.network is not None:
            is_here = 1.0 if view.head.location == server else 0.0
            write_server(self.seen, SETTING + SERVER * place, work, slow, to_come, moved, is_here)
        return server_cost(self.weights, work, slow, to_come, moved, stay)

    def _width_cost(self, view: ClusterView, server: int, place: int, wanted: int, taken: int) -> float:
        """Of the width at a place among the candidates."""
        width = place % len(self.widths)
        key = WorkKey(view.head.segment, self.widths[width], view.head.previous_width)
        batch = batch_ns(self.costs, server, key, taken) / self.unit_ns
        load = load_ns(self.costs, view, server, self.widths, key.width) / self.unit_ns
        steps = (width - wanted) * (4.0 / self.priced[view.head.service_class].widths)
        if self.network is not None:
            share = width / max(1, len(self.widths) - 1)
            write_width(self.seen, SETTING + SERVER * len(self.servers) + WIDTH * place, batch, load, steps, share)
        return width_cost(self.weights, batch, load, abs(steps)) + self.joules[server][key.segment - 1][width]

    def _note(self, view: ClusterView, choice: Choice, taken: int) -> None:
        """What the block adds to its server's work, now and later."""
        key = WorkKey(view.head.segment, choice.width, view.head.previous_width)
        after, location, segments = self.servers[choice.server], view.head.location, len(self.more)
        after.work += taken * image_units(self.costs, choice.server, key, self.unit_ns)
        left, way = (segments - key.segment) / segments, 1 / segments
        if location >= 0:
            before = self.servers[location]
            before.coming = max(0.0, before.coming - taken * (left + way))
        after.coming += taken * left


def image_units(costs: CostModel, server: int, key: WorkKey, unit_ns: float) -> float:
    """Expected time of one queued image, in units."""
    return round(costs.image_s(server, key) * NS_PER_S) / unit_ns


class CompassRule(RuleSpec):
    """Server and width at once, for any cluster (`Compass`).

    Attributes:
        numbers: what was searched; those that ship where it is not given.
        control: that it keeps goals, for which its price moves: if nothing is said the operator's floor, as quickly as
            can be.
    """

    KIND: ClassVar[str] = "compass"

    numbers: Numbers = Field(default_factory=Numbers)
    control: ControlSpec | None = Field(default_factory=lambda: ControlSpec(p99_limit_s=0.0))

    @classmethod
    def space(cls, context: RouterContext, floor: float) -> Space:
        """Around the numbers that ship, where clusters differ most; accuracy rises as the level falls.

        They are what the level and the rise have more, the bonus for staying at all segments, and the block's own
        batch; and the part of the segments' differences in price that is left.
        """
        ships = Numbers()

        def rule(values: Reals) -> CompassRule:
            level, rise, stay, batch, segments = values.tolist()
            update = {
                "level": ships.level + level,
                "rise": max(0.0, ships.rise + rise),
                "stay": tuple(usual + stay for usual in ships.stay),
                "batch": ships.batch + batch,
                "segments": tuple(segments * usual for usual in ships.segments),
            }
            return cls(numbers=ships.model_copy(update=update), control=None)

        first, spread, accurate = (0.0, 0.0, 0.0, 0.0, 1.0), (0.4, 0.5, 0.5, 0.6, 0.5), (-1.0, 0.0, 0.0, 0.0, 0.0)
        return Space("CompassSpace", np.array(first), np.array(spread), np.array(accurate), rule)

    def make(
        self, context: RouterContext, source: str = "router", key: str = "", network: CandidateNetwork | None = None
    ) -> RoutingPolicy:
        """See `RuleSpec`; a `hold` of the file's own takes the place of the numbers'."""
        router = self.chooser(context, source, key)
        router.network = network
        hold = self.hold.rule() if self.hold is not None else hold_of(router.weights, context, router.unit_ns)
        return HoldingRouter(router, hold)

    def chooser(self, context: RouterContext, source: str = "router", key: str = "") -> Compass:
        """See `RuleSpec`."""
        self.check(context.config, source, key)
        config, costs = context.config, context.costs
        priced = [priced_rungs(context, source, key, widths) for widths in config.model_widths]
        servers = range(config.servers)
        unit_ns = unit_of(context)
        ways_ns = [middle_way_ns(context, server) for server in servers]
        its = self.numbers.in_cluster(context.held_shares, ways_ns)
        capacity = 0.0
        for way_ns in ways_ns:
            capacity += unit_ns / way_ns
        most = MAX_STRETCH * max(1.0, its.rise)  # as far as leads to loads that are 3.5 times as large
        is_asked = config.top1 or self.control != ControlSpec(p99_limit_s=0.0)  # else it goes without where it can't
        control = None
        if self.control is not None and is_asked:
            control = self.control.make(config, source, key, most, weighs=True)
        return Compass(
            costs=costs,
            widths=config.widths,
            groups=self.groups(config, source, key),
            weights=its,
            priced=tuple(priced[model] for model in config.class_models),
            unit_ns=unit_ns,
            share=context.routers / capacity,
            ways=tuple(way_ns / unit_ns for way_ns in ways_ns),
            more=along(its.segments, config.segments),
            stay=along(its.stay, config.segments),
            joules=joules_of(context, its.joules),
            control=control,
            servers=[Seen() for _ in servers],
        )


def priced_rungs(context: RouterContext, source: str, key: str, widths: Sequence[float]) -> PricedRungs:
    """What width tuples of a model's widths are worth: the corners of its accuracy table's front over device time.

    Raises:
        InputError: the accuracy table has no tuple of these widths.
    """
    rungs, full = tuple(corner_tuples(context, widths)), full_widths(context.config, widths)
    if not rungs:
        raise InputError(source, key, f"the accuracy table has no tuple of the widths {widths}")
    costs_s = tuple_costs_s(context, (*rungs, full))
    ways = np.diff([costs_s[rung] / costs_s[full] for rung in rungs])
    top1 = np.diff([context.prior(rung) for rung in rungs])
    energies_j = np.diff([path_energy_j(context, rung) for rung in rungs])
    return PricedRungs(rungs, tuple((top1 / ways).tolist()), tuple((POINT * energies_j / ways).tolist()), len(widths))


def unit_of(context: RouterContext) -> float:
    """Nanoseconds: a full-width batch's whole way, on the mean server; the mean of several models."""
    servers, models = range(context.config.servers), context.config.model_widths
    keys = [key for widths in models for key in path(full_widths(context.config, widths))]
    whole_ns = sum(batch_ns(context.costs, server, key, UNIT_BATCH) for server in servers for key in keys)
    return whole_ns / (len(servers) * len(models))


def along(places: Sequence[float], segments: int) -> tuple[float, ...]:
    """(S,) a value at each segment, between those at four places from the first segment to the last."""
    at = np.linspace(0.0, len(places) - 1.0, segments) if segments > 1 else np.zeros(1)
    values: Reals = np.interp(at, np.arange(len(places)), places)
    return tuple(values.tolist())


def hold_of(numbers: Numbers, context: RouterContext, unit_ns: float) -> HoldRule:
    """By segment, until how many and for how long lines wait; no longer in all than the core allows."""
    config = context.config
    limit_ns, host_ns = config.max_batching_delay_ns, config.segments * context.block_ns
    gap_ns = unit_ns * context.routers / config.servers
    block_ns = gap_ns / config.outstanding_blocks
    first_host_ns = numbers.first_host * host_ns
    if host_ns:
        most_ns = max(numbers.first_longer * first_host_ns, numbers.first_batches * gap_ns)
        first_host_ns = min(most_ns, first_host_ns * (unit_ns / host_ns) ** numbers.first_units)

    def along_segments(first: int, later: int) -> tuple[int, ...]:
        return first, *([later] * (config.segments - 1))

    return HoldRule(
        along_segments(round(numbers.first_requests), round(numbers.later_requests)),
        along_segments(*(min(limit_ns, round(wait * unit_ns)) for wait in (numbers.first_wait, numbers.later_wait))),
        along_segments(
            round(max(numbers.first_arrivals * block_ns, first_host_ns)),
            round(max(numbers.later_arrivals * block_ns, numbers.later_host * host_ns)),
        ),
    )


def joules_of(context: RouterContext, weight: float) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """What an image's energy costs by server, segment and width: at the mean server's full width `weight` a segment."""
    config, costs = context.config, context.costs
    widest = [(width, widths[-1]) for widths in config.model_widths for width in widths]
    energy_j = np.array(
        [
            [
                [costs.energy_j(server, WorkKey(s, width, before if s > 1 else IMAGE)) for width, before in widest]
                for s in range(1, config.segments + 1)
            ]
            for server in range(config.servers)
        ]
    )
    mean_j = energy_j[:, :, -1].mean()
    scaled = weight * energy_j / mean_j if weight > 0.0 and mean_j > 0.0 else np.zeros_like(energy_j)
    return tuple(tuple(tuple(row) for row in rows) for rows in scaled.tolist())
