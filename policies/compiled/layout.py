"""What stands where in a *sheet* (what a router sees) and in a *plan* (what it does, and what it remembers).

Both are rows of 8-byte numbers that begin with the record of that name. A name on `_at` is where something begins in
the plan itself, but for `uniforms_at`, an address.
"""

from __future__ import annotations

from typing import Final

from policies.compiled.record import Record

NONE: Final = -1
ANYWHERE: Final = -2  # `policies.vocabulary.ANYWHERE`

# Placements.
(
    AT_RANDOM,
    WEIGHTED_RANDOM,
    ROUND_ROBIN,
    SHORTEST_QUEUE,
    SHORTEST_QUEUE_BY_SPEED,
    POWER_OF_TWO,
    POWER_OF_TWO_BY_SPEED,
    IDLE_QUEUE,
    LEAST_WORK,
    SHORTEST_DELAY,
    DEFICIT,
) = range(11)

# Rules of widths; OUTSIDE: who runs the plan decides.
OUTSIDE, RANDOM_WIDTH, FIXED, LADDER, SLACKFIT, INFAAS, BY_SERVER, TIDE = range(8)

# Rules of groups.
LARGEST, RANDOM_GROUP = range(2)


class Sheet(Record):
    """What a router sees, for one decision; what it sees of each server follows."""

    now_ns: int
    segment: int
    previous_width: int
    location: int
    candidates: int
    entered_ns: int
    fifo_length: int
    completed: int


class SeenServer(Record):
    """What a router sees of a server. Of a set of widths, bit w stands for width w."""

    code: int
    holds: int
    requests: int
    blocks: int
    work_ns: int
    utilization: float
    power_w: float


class WidthRule(Record):
    """Which width to choose: one of the rules below, and what it needs."""

    rule: int
    tuple_at: int
    rungs_at: int
    rung_count: int
    thresholds_at: int
    variants_at: int


class Plan(Record):
    """What a router does, and what it remembers."""

    servers: int
    segments: int
    widths: int
    keys: int
    most: int
    groups_at: int
    group_count: int
    placement: int
    stays: int
    group_rule: int
    turn: int
    draw: int
    draws: int
    most_draws: int
    uniforms_at: int
    speeds_at: int
    image_ns_at: int
    batch_ns_at: int
    transfer_ns_at: int
    share_ns: int
    scratch_at: int
    shares_at: int
    placed_at: int
    knobs_at: int
    memory_at: int
    server: int
    width: int
    group: int
    wake_ns: int
    delay_at: int
    width_rule: WidthRule


class VariantSteps(Record):
    """INFaaS: when a server steps from one variant to another; its `Variant` for each server follows."""

    waiting_ns: int
    up_ns: int
    down_ns: int
    hold_ns: int


class Variant(Record):
    """A server's variants: how many, which it is now and since when, and their width tuples."""

    count: int
    level: int
    since_ns: int
    tuples_at: int


class Latest(Record):
    """SlackFit: the latest time that is known of each bucket: of the first one."""

    of_first_ns: int


class Price(Record):
    """The weights of Tide's price (`policies.tide.knobs`)."""

    level: float
    queue_2: float
    queue_16: float
    queue_128: float
    backlog_1ms: float
    rising: float
    risen: float
    load: float
    overload: float
    load_now: float
    waited_1ms: float


class Knobs(Record):
    """What Tide has learned, and tables that depend on the cluster."""

    price: Price
    transfer: float
    batch: float
    move_s: float
    slowness: float
    share: float
    share_load: float
    delay: float
    hold: float
    coming: float
    worth_at: int
    cost_at: int
    capacity_at: int
    tau_fast_s: float
    tau_mid_s: float
    tau_slow_s: float
    tau_speed_s: float
    waiting_s: float
    guard_on_s: float
    guard_off_s: float


class Memory(Record):
    """What Tide remembers; each server's follows, then the width that each gave each segment last."""

    now_ns: int
    arrived: int
    fast_img_s: float
    mid_img_s: float
    slow_img_s: float
    price: float
    backlog_s: float
    is_guarded: int
    handovers: int
    guarded: int


class Remembered(Record):
    """What Tide remembers of a server."""

    work_s: float
    busy_s: float
    drained_s: float
    coming: float
