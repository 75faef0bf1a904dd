"""Compass, goal control, the lookahead and Proteus' plan, compiled: the same numbers as in `policies.rules`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp

import numpy as np

from kit.jit import Ints, ints, kernel, kernel_of, reals
from policies import goal_control
from policies.compiled.plan_layout import (
    INT,
    NONE,
    REAL,
    ObservationRecord,
    Plan,
    Record,
    SeenServer,
    add_path,
    batch_ns,
    held,
    is_up,
    key_of,
    largest_micro_batch,
    looked,
    looked_at,
    path_fits,
    seen_at,
    transfer_ns,
)
from policies.goal_control import GoalControl
from policies.interfaces import RouterConfig
from policies.rules import compass
from policies.rules.proteus import Milp
from policies.vocabulary import IMAGE, ClusterView, HeadKey, ServerView

Replan = Callable[[Ints, Ints], None]


class MilpMemory:
    """The state of a `Milp`, in its router and in its plan.

    Args:
        codes: for each of the router's tuples, its widths by number.
    """

    def __init__(self, router: Milp, config: RouterConfig, codes: Sequence[Sequence[int]]) -> None:
        self._router, self._config = router, config
        self._codes = np.array(codes, np.int64)

    def write(self, row: Ints) -> None:
        """Copy the router's tuples, shares and placed counts into its plan."""
        router, servers = self._router, self._config.servers
        reals, plan = row.view(np.float64), Plan(row)
        widths_at = plan.width_rule.rungs_at
        row[widths_at : widths_at + servers * self._config.segments] = self._codes[list(router.plan.choice)].ravel()
        reals[plan.shares_at : plan.shares_at + servers] = router.plan.shares
        row[plan.placed_at : plan.placed_at + servers] = router.placed
        plan.wake_ns = router.since_ns + router.period_ns

    def replan(self, row: Ints, observation_row: Ints) -> None:
        """Let the router make a new plan at the end of a period."""
        self._router.plan_anew(view_of(observation_row, self._config))
        self.write(row)

    def keep(self, row: Ints) -> None:
        """Copy the placed counts into the router."""
        placed_at = Plan(row).placed_at
        self._router.placed = row[placed_at : placed_at + self._config.servers].tolist()


def view_of(numbers: Ints, config: RouterConfig) -> ClusterView:
    """Return an observation as a view: without work by key, memory and instances, which an observation lacks."""
    observation = ObservationRecord(numbers)
    servers = tuple(
        ServerView(
            valid=code != 0,
            widths=tuple(fits[observation.segment]),
            outstanding_requests=requests,
            outstanding_micro_batches=micro_batches,
            outstanding={},
            utilization=utilization,
            power_w=power_w,
            vram_used_bytes=0,
            loaded=(),
            loading=(),
        )
        for fits, (code, _, requests, micro_batches, _, utilization, power_w) in zip(
            config.fits,
            numbers[ObservationRecord.size : observation.samples_at].view(SeenServer.dtype).tolist(),
            strict=True,
        )
    )
    previous_width = (IMAGE, *config.widths)[observation.previous_width]
    head = HeadKey(observation.segment + 1, previous_width, observation.location, observation.service_class)
    return ClusterView(
        observation.now_ns,
        head,
        observation.candidates,
        observation.entered_ns,
        observation.fifo_length,
        observation.completed,
        servers,
    )


class Control(Record):
    """`GoalControl`."""

    floor = most = energy_weight = best = REAL
    limit_ns = weighs = takes_over = now_ns = completed = late = INT
    accuracy_sum = held_floor = span_s = images = debt = bias = floor_shift = REAL
    judged = over = limit_bias = limit_shift = shift = REAL
    end = INT


def control_row(control: GoalControl) -> Ints:
    """Return a controller's state in the form of a plan."""
    row = Control.blank()
    for name in Control.offsets:
        setattr(row, name, getattr(control, name))
    return row.numbers


def keep_control(control: GoalControl, row: Control) -> None:
    """Copy a plan's state into the controller that it was made from."""
    for name in Control.offsets:
        setattr(control, name, type(getattr(control, name))(getattr(row, name)))


_is_stuck = kernel_of(goal_control.is_stuck)
_keep_floor = kernel_of(goal_control.keep_floor, is_stuck=_is_stuck)
_keep_limit = kernel_of(goal_control.keep_limit, is_stuck=_is_stuck)
shift_of: Callable[[Control, ObservationRecord], float] = kernel_of(
    goal_control.shift_of, keep_floor=_keep_floor, keep_limit=_keep_limit
)
weight_of: Callable[[Control, ObservationRecord], float] = kernel_of(goal_control.weight_of)
end_of_dial: Callable[[int, int], int] = kernel_of(goal_control.end_of_dial)


class Weights(Record):
    """`Numbers`, as far as a decision reads them one by one."""

    level = rise = REAL


class CompassMemory(Record):
    """The settings of `Compass`; `priced_at`: a `Priced` for each class."""

    weights = Weights.blank()
    priced_at = control_at = INT


class Priced(Record):
    """`compass.PricedRungs`, and the number of its rungs."""

    rungs_at = count = thresholds_at = savings_at = INT


log_price: Callable[[Weights, float, float], float] = kernel_of(compass.log_price)


@kernel
def rung_for(plan: Plan, observation: ObservationRecord, rule: CompassMemory) -> int:
    """Compute `Compass._rung`."""
    shift, weight = 0.0, 0.0
    if rule.control_at:
        control = Control(plan, rule.control_at, observation.service_class)
        shift = shift_of(control, observation)
        weight = weight_of(control, observation)
    load = (observation.fifo_length + observation.outstanding) / max(1, observation.up)
    price = exp(log_price(rule.weights, load, shift))
    rung, priced = 0, Priced(plan, rule.priced_at, observation.service_class)
    for step in range(priced.count - 1):
        if price > reals(plan)[priced.thresholds_at + step] - weight * reals(plan)[priced.savings_at + step]:
            rung += 1
    if rule.control_at:
        Control(plan, rule.control_at, observation.service_class).end = end_of_dial(rung, priced.count)
    return rung


@kernel
def until_end_ns(plan: Plan, observation: ObservationRecord, index: int, width: int, tuple_at: int, images: int) -> int:
    """Compute `Compass._until_end_ns`."""
    total_ns = seen_at(observation, index).work_ns + transfer_ns(plan, observation, index)
    total_ns += batch_ns(plan, index, key_of(plan, observation, width), images)
    for segment in range(observation.segment + 1, plan.segments):
        fits = path_fits(plan, observation, index, segment)
        if fits == 0:
            break
        previous, width = width, held(fits, ints(plan)[tuple_at + segment])
        total_ns += batch_ns(plan, index, (segment * plan.widths + width) * (plan.widths + 1) + previous + 1, images)
    return total_ns


@kernel
def take_bearing(plan: Plan, observation: ObservationRecord) -> None:
    """Run `Compass.choose`."""
    rule = CompassMemory(plan, plan.memory_at)
    tuple_at = (
        Priced(plan, rule.priced_at, observation.service_class).rungs_at
        + rung_for(plan, observation, rule) * plan.segments
    )
    images, least_ns = min(largest_micro_batch(plan), observation.candidates), NONE
    for position in range(looked(plan, observation)):
        index = looked_at(observation, position)
        view = seen_at(observation, index)
        if view.code:
            width = held(view.fits, ints(plan)[tuple_at + observation.segment])
            end_ns = until_end_ns(plan, observation, index, width, tuple_at, images)
            if least_ns == NONE or end_ns < least_ns:
                least_ns, plan.server = end_ns, index
                plan.width = width
    plan.micro_batch_size = largest_micro_batch(plan)
    add_path(plan, observation, tuple_at)


_NS = 1e9


class Ahead(Record):
    """The settings and memory of `Lookahead`. Its tables: by server and width, by segment and width, by server."""

    horizon_s = weight = rate_img_s = REAL
    micro_batches = arrived = seen_ns = image_ns_at = worth_ns_at = busy_ns_at = control_at = INT


@kernel
def remember_arrivals(observation: ObservationRecord, ahead: Ahead) -> None:
    """Run `Lookahead._remember`."""
    arrived = observation.completed + observation.fifo_length + observation.outstanding
    passed_s = (observation.now_ns - ahead.seen_ns) / _NS
    came = max(0, arrived - ahead.arrived)
    ahead.rate_img_s += (came - ahead.rate_img_s * passed_s) / (ahead.horizon_s + passed_s)
    ahead.arrived, ahead.seen_ns = arrived, observation.now_ns


@kernel
def first_to_end(plan: Plan, observation: ObservationRecord, ahead: Ahead, width: int, lot: int) -> int:
    """Add a lot to the server that is up and ends it first, and return that end."""
    busy_ns, image_ns = ints(plan), ints(plan)
    best, first_ns = NONE, 0
    for index in range(plan.servers):
        if is_up(observation, index):
            end_ns = busy_ns[ahead.busy_ns_at + index] + lot * image_ns[ahead.image_ns_at + index * plan.widths + width]
            if best == NONE or end_ns < first_ns:
                best, first_ns = index, end_ns
    busy_ns[ahead.busy_ns_at + best] = first_ns
    return first_ns


@kernel
def cost_ns(
    plan: Plan,
    observation: ObservationRecord,
    ahead: Ahead,
    server: int,
    width: int,
    images: int,
    coming: int,
    lots: int,
    scale: float,
) -> float:
    """Compute `Lookahead._cost_ns`."""
    busy_ns = ints(plan)
    for index in range(plan.servers):
        busy_ns[ahead.busy_ns_at + index] = seen_at(observation, index).work_ns
    own_ns = transfer_ns(plan, observation, server) + batch_ns(plan, server, key_of(plan, observation, width), images)
    busy_ns[ahead.busy_ns_at + server] += own_ns
    total_ns, weighed = images * (busy_ns[ahead.busy_ns_at + server] * 1.0), images * 1.0
    lot_size = (coming + lots - 1) // lots
    for number in range(lots):
        lot = max(0, min(lot_size, coming - number * lot_size))
        end_ns = first_to_end(plan, observation, ahead, width, lot)
        total_ns += ahead.weight * lot * (end_ns * 1.0)
        weighed += ahead.weight * lot
    return total_ns / weighed - ints(plan)[ahead.worth_ns_at + observation.segment * plan.widths + width] * scale


@kernel
def look_ahead(plan: Plan, observation: ObservationRecord) -> None:
    """Run `Lookahead.choose`."""
    ahead = Ahead(plan, plan.memory_at)
    remember_arrivals(observation, ahead)
    images = min(largest_micro_batch(plan), observation.candidates)
    coming = max(0, observation.fifo_length - images) + int(ahead.rate_img_s * ahead.horizon_s * plan.segments)
    best, server = 0.0, NONE
    scale = 1.0
    narrowest, widest = plan.widths, NONE
    if ahead.control_at:
        scale = exp(shift_of(Control(plan, ahead.control_at, observation.service_class), observation))
    lots = ahead.micro_batches * observation.up
    for index in range(plan.servers):
        view = seen_at(observation, index)
        for width in range(plan.widths):
            if view.code == 0 or not view.fits >> width & 1:
                continue
            narrowest, widest = min(narrowest, width), max(widest, width)
            cost = cost_ns(plan, observation, ahead, index, width, images, coming, lots, scale)
            if server == NONE or cost < best:
                best, server = cost, index
                plan.server, plan.width = index, width
    plan.micro_batch_size = largest_micro_batch(plan)
    if ahead.control_at:
        control = Control(plan, ahead.control_at, observation.service_class)
        control.end = end_of_dial(widest - plan.width, widest - narrowest + 1)
