"""What stands where in a cluster's row of numbers, and in the row of its parameters.

A row is one array of 8-byte numbers that begins with a `Cluster`, or with `Parameters`; both say where in their row the
other records begin (`..._at`), and kernels take both everywhere as `c` and `p`. A field on `_at` of any other record is
a place in the row of parameters, but for those that hold an address (`ints_at`). Requests, instances and blocks are
slots of pools, linked by slot numbers; `NONE` ends a list. Times are integer nanoseconds; `NEVER` is later than all.
"""

from __future__ import annotations

from typing import Final

from policies.compiled.layout import NONE
from policies.compiled.record import Record

__all__ = ["NONE"]

NEVER: Final = 1 << 62
ALONE: Final = -1  # the line of a request that shares no block
FIRST_DRAW: Final = 1 << 32  # `sim.server._FIRST`: the hash's numbers of a device's first state
LOGS_TABULATED: Final = 1 << 15

# Why `advance` came back.
ASKED, ENDED, REQUESTS_FULL, INSTANCES_FULL, BLOCKS_FULL, RECORDS_FULL, NO_CURVE, NO_TUPLE = range(1, 9)

# An instance's state.
LOADING, FREE, BUSY, UNLOADING = range(4)

# A request's fate.
COMPLETED, IN_FLIGHT, FAILED = range(3)

# Why a request was tried again or given up (`REASONS` are their names in records).
NO_REASON, DEADLINE, TOO_LARGE, SERVER_LOST, UNLABELLED, MEMORY = range(6)

# Whether labels are drawn from a table, or replayed from a matrix.
DRAWN, REPLAYED = range(2)

# What a fault does.
TAKE_OUT, COME_UP, STRAGGLE, SQUEEZE, CRASH, HANG, NOTICE_HANG = range(7)


# ------------------------------------------------------------------------------------------------------ the cluster


class Cluster(Record):
    """A cluster: the beginning of its row."""

    status: int
    is_set_off: int
    now_ns: int
    ended_ns: int
    horizon_ns: int
    limit_ns: int
    drains: int
    detail: int
    keeps: int
    faulty: int
    arrivals_at: int
    arrival_count: int
    arrived: int
    arrival_ns: int
    deadline_ns: int
    decision: int
    asked: int
    decision_end_ns: int
    host_free_ns: int
    at_cap: int
    snapshot_ns: int
    tag: int
    draws_salt: int
    dropped: int
    slot: int
    line: int
    is_alone: int
    candidates: int
    removals: int
    removals_seen: int
    server: int
    width: int
    group: int
    fifo_head: int
    fifo_tail: int
    fifo_length: int
    completed: int
    failed: int
    in_flight: int
    free_request: int
    free_requests: int
    free_instance: int
    free_instances: int
    free_block: int
    free_blocks: int
    free_servers: int
    gone: int
    power_ns: int
    mean_power_w: float
    energy_j: float
    variance: float
    variance_is_stale: int
    jitter_salt: int
    links_salt: int
    poison_at: int
    label_kind: int
    labels_salt: int
    label_table_at: int
    labels_at: int
    label_columns: int
    images_at: int
    faults: int
    fault_number: int
    restarts: int
    restarts_at: int
    scratch_at: int
    credits: int
    request_rows: int
    request_rows_at: int
    block_rows: int
    block_rows_at: int
    block_rows_room: int
    batch_rows: int
    batch_rows_at: int
    batch_rows_room: int
    reading_rows: int
    reading_rows_at: int
    reading_rows_room: int
    variances: int
    variances_at: int
    variances_room: int


# --------------------------------------------------------------------------------------------------------- the servers


class Times(Record):
    """When what happens next at a server, in the order in which it happens at one instant (`sim.agenda.Kind`)."""

    transfer: int
    start: int
    end: int
    load: int
    unload: int
    timer: int
    telemetry: int
    fault: int
    pace: int


class Pending(Record):
    """Instances of a server that wait for the same thing, each for its own time."""

    head: int


class Server(Record):
    """A server; the keys that wait there follow (`ORDER_AT`), then its queues, instances, reports and readings."""

    index: int
    knobs_at: int
    device: int
    times: Times
    next_ns: int
    epoch: int
    is_up: int
    is_hung: int
    queued: int
    sequence: int
    running: int
    keys: int
    used_bytes: int
    freeing_bytes: int
    peak_bytes: int
    utilization: float
    idle_head: int
    idle_tail: int
    next_instance: int
    next_batch: int
    backed_off: int
    starts_head: int
    starts_tail: int
    loading: Pending
    unloading: Pending
    failing: Pending
    factor: float
    room: int
    requests: int
    blocks: int
    first_block: int
    last_block: int
    first_moving: int
    last_moving: int
    seen_utilization: float
    seen_power_w: float
    seen_vram_bytes: int
    first_report: int
    reports: int
    read: int
    sample_ns: int
    images: int
    batches: int
    loads: int
    unloads: int
    down_since_ns: int
    out_until_ns: int
    ready_ns: int
    deaths: int
    up_since_ns: int


ORDER_AT: Final = Server.size


class KeyQueue(Record):
    """A work key's queue at a server (segment, width, previous width), and what the router has sent there of it."""

    head: int
    tail: int
    count: int
    blocked_since_ns: int
    loads: int
    outstanding: int
    since: int


class Instances(Record):
    """The instances of one segment and width at a server."""

    head: int
    free: int
    loading: int
    alive: int
    is_hosted: int
    failures: int
    retry_ns: int


class Report(Record):
    """A sensor's report on its way."""

    received_ns: int
    sampled_ns: int
    epoch: int
    utilization: float
    power_w: float
    vram_bytes: int
    queue_length: int


class Reading(Record):
    """What a sensor reads: integrals."""

    sampled_ns: int
    energy_mj: float
    busy_ms: float


# --------------------------------------------------------------------------------------------------- devices and media


class Device(Record):
    """A device."""

    model_at: int
    is_touched: int
    updated_ns: int
    power_mw: float
    busy_permille: int
    energy_mw_ns: float
    busy_permille_ns: int
    pace: float
    is_extrapolated: int
    extrapolated_ns: int
    first: int
    last: int
    count: int
    pace_salt: int
    pace_number: int
    is_slow: int
    changes_at: int
    changes: int
    change: int


class Medium(Record):
    """What transfers share."""

    free_ns: int
    transfers: int


class PaceChange(Record):
    """From when on a device has which pace."""

    from_ns: int
    factor: float


# ----------------------------------------------------------------------------------------------------------- the pools


class Request(Record):
    """A request in flight; its `Life` follows where a run keeps records."""

    id: int
    next: int
    fifo_next: int
    fifo_previous: int
    line: int
    entered_ns: int
    entered_j: float
    segment: int
    previous_width: int
    code: int
    location: int
    epoch: int
    retries: int
    block: int
    position: int
    sequence: int
    arrived_ns: int
    arrived_j: float
    deadline_ns: int


class Life(Record):
    """What a request's record needs beyond that: its servers, its widths and its stages follow, by segment."""

    length: int
    since_ns: int
    lost_ns: int
    stages: int


class Stages(Record):
    """Where an image's time goes in a segment (`policies.records.STAGES` but `lost`)."""

    router_wait: int
    decision: int
    transfer: int
    queue: int
    load: int
    dispatch: int
    run: int


class Instance(Record):
    """An instance, and the batch that it runs."""

    id: int
    spec: int
    state: int
    used_ns: int
    next: int
    idle_next: int
    idle_previous: int
    link: int
    due_ns: int
    server: int
    batch: int
    head: int
    failed: int
    count: int
    key: int
    served_width: int
    padded: int
    commanded_ns: int
    started_ns: int
    load_began_ns: int
    loaded_ns: int
    run_next: int
    run_previous: int
    work_ns: float
    slow_down: float
    end_ns: int
    factor: float
    is_frozen: int
    cost_at: int


class Block(Record):
    """A block on its way or at its server; its moves and its members follow."""

    next: int
    previous: int
    next_moving: int
    decision: int
    server: int
    key: int
    count: int
    ended: int
    moves: int
    moving: int
    line: int
    tag: int
    snapshot_ns: int
    sent_ns: int
    arrived_ns: int


class Move(Record):
    """Inputs of a block on their way from one place."""

    end_ns: int
    source: int
    is_moving: int


class Member(Record):
    """A member of a block."""

    request: int
    has_ended: int
    source: int
    span_ns: int
    energy_j: float
    accuracy: float


class Line(Record):
    """A line of the router's FIFO: those who may share a block."""

    head: int
    tail: int
    count: int


class Calendar(Record):
    """A tree of winners; as many times follow as it has leaves, twice."""

    unused: int


class Parts(Record):
    """The sizes into which a batch is divided that lacks memory: the first of them."""

    size_of_first: int


class PlannedFault(Record):
    """A fault that is to come."""

    due_ns: int
    server: int
    order: int
    number: int
    what: int
    argument: int
    factor: float


# --------------------------------------------------------------------------------------------------------- the records


class Terms(Record):
    """The terms of a reward, weighted (`policies.reward.RewardTerms`)."""

    accuracy: float
    latency: float
    energy: float
    imbalance: float
    bonus: float


class Credit(Record):
    """A decision's reward."""

    decision: int
    terms: Terms
    total: float
    tag: int


class RequestRow(Record):
    """A request's record; then its stages, and its servers and widths by segment."""

    id: int
    arrived_ns: int
    finished_ns: int
    fate: int
    reason: int
    retries: int
    correct: int
    energy_j: float
    length: int


class BlockRow(Record):
    """A block's record."""

    decision: int
    line: int
    server: int
    key: int
    count: int
    snapshot_ns: int
    sent_ns: int
    arrived_ns: int
    ended_ns: int
    latency_s: float
    reward: Terms


class BatchRow(Record):
    """A batch's record."""

    server: int
    batch: int
    instance: int
    segment: int
    width: int
    previous_width: int
    count: int
    commanded_ns: int
    started_ns: int
    ended_ns: int


class ReadingRow(Record):
    """A sensor reading's record."""

    server: int
    sampled_ns: int
    utilization: float
    power_w: float
    vram_bytes: int
    queue_length: int


class RestartRow(Record):
    """A restart's record."""

    server: int
    down_ns: int
    up_ns: int


# ------------------------------------------------------------------------------------------------------ the parameters


class Parameters(Record):
    """A cluster's parameters: the beginning of their row."""

    servers: int
    devices: int
    segments: int
    widths: int
    keys: int
    specs: int
    lines: int
    cap: int
    group: int
    moves: int
    leaves: int
    media: int
    decision_ns: int
    busy_ns: int
    anywhere: int
    max_retries: int
    sheds: int
    alpha: float
    beta: float
    gamma: float
    delta: float
    bonus: float
    centre: int
    mean_top1: float
    prior_at: int
    prior_levels_at: int
    hang_ns: int
    backoff_ns: int
    backoff_limit_ns: int
    stable_ns: int
    start_ns: int
    tree_at: int
    valid_at: int
    servers_at: int
    server_size: int
    queues_at: int
    instance_lists_at: int
    reports_at: int
    reports: int
    readings_at: int
    readings: int
    devices_at: int
    media_at: int
    blocks_at: int
    blocks: int
    block_size: int
    members_at: int
    lines_at: int
    faults_at: int
    faults: int
    credits_at: int
    candidates_at: int
    parts_at: int
    instances_at: int
    instances: int
    requests_at: int
    requests: int
    request_size: int
    margin: int
    server_knobs_at: int
    device_models_at: int
    logs_at: int


class ServerKnobs(Record):
    """A server's settings, and its link."""

    batch_limit: int
    vram_cap_bytes: int
    utilization_block: float
    idle_unload_ns: int
    scale_trigger: int
    scale_cap: int
    blocks_head_of_line: int
    skip_limit_ns: int
    serves_as_instance: int
    padded_at: int
    padded_count: int
    preload_at: int
    preload_count: int
    load_retries: int
    load_backoff_ns: int
    context_bytes: int
    medium: int
    latency_s: float
    bandwidth_bytes_s: float
    loss: float
    instance_bytes_at: int
    can_hold_at: int
    holds_any_at: int
    codes_at: int
    power_limit_w: float


class DeviceModel(Record):
    """What a device's profile says."""

    costs_at: int
    batch_limit: int
    crowding_at: int
    crowding_across_at: int
    is_hosted: int
    most_at_once: float
    most_processes: float
    alpha: float
    idle_mw: float
    cap_mw: float
    throttle: float
    phi_min: float
    period_ns: int
    lag_ns: int
    power_window: int
    utilization_window: int
    dispatch_ns: int
    instance_costs_at: int
    input_bytes_at: int
    servers_at: int
    server_count: int
    mean_pace: float
    has_pace: int
    slow_factor: float
    full_at: int
    full_count: int
    full_sum_ns: int
    slow_at: int
    slow_count: int
    slow_sum_ns: int


class BatchCost(Record):
    """One batch size of one work key on a device."""

    latency_ns: int
    typical_ns: int
    demand_permille: int
    host_permille: int
    busy_permille: int
    bandwidth: float
    power_mw: float
    jitter_at: int
    jitter_count: int


class InstanceCost(Record):
    """What an instance costs on a device."""

    load_ns: int
    reload_ns: int
    unload_ns: int


# ----------------------------------------------------------------------------------------------------------- the views


class HeadSeen(Record):
    """What a router may know of the candidate block and of the whole cluster (`policies.vocabulary.ClusterView`)."""

    segment: int
    previous_width: int
    location: int
    candidates: int
    entered_ns: int
    fifo_length: int
    completed: int


class ServerSeen(Record):
    """What a router may know of a server (`policies.vocabulary.ServerView`); so many `WorkSeen` follow."""

    is_valid: int
    requests: int
    blocks: int
    vram_bytes: int
    utilization: float
    power_w: float
    keys: int


class WorkSeen(Record):
    """Requests that are outstanding of a work key, and since which decision there are any."""

    since: int
    key: int
    requests: int
