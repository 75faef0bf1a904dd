"""The layout of a cluster's row and of its parameters, numeric codes, and the refusals of the compiled engine.

A row is one array of 8-byte numbers that begins with a `Cluster`, or with `Parameters`; both have the offsets of the
other records in their row (`..._at`), and kernels call them `c` and `p` everywhere. In other records a field that ends
in `_at` is an offset in the row of parameters, except for addresses (`ints_at`). Requests, instances and micro-batches
are slots of pools, linked by slot numbers; `NONE` ends a list. Times are integer nanoseconds; `NEVER` is later than
all.

`UnsupportedScenario` refuses a scenario; `problem_of` gives the reason for which a run can't continue.
"""

from __future__ import annotations

from typing import Final

from kit.errors import InputError
from policies.compiled.plan_layout import INT, NONE, REAL, Record
from policies.faults import NO_PREDICTION, OUT_OF_MEMORY, PLANNED, WORKER_DIED, WORKER_HUNG
from policies.router_queue import REFUSED

__all__ = ["NONE"]


# ---------------------------------------------------------------------------------------------------------------- codes


NEVER: Final = 1 << 62
ALONE: Final = -1  # the batch queue of a request that shares no micro-batch
FIRST_DRAW: Final = 1 << 32  # `sim.simulated_device._FIRST`: the hash's numbers of a device's first state
LOGS_TABULATED: Final = 1 << 15

# Why `advance` returned.
ASKED, ENDED, REQUESTS_FULL, INSTANCES_FULL, MICRO_BATCHES_FULL, RECORDS_FULL, NO_CURVE, NO_TUPLE, MESSAGES_FULL = (
    range(1, 10)
)

# An instance's state.
LOADING, FREE, BUSY, UNLOADING = range(4)

# A request's fate.
COMPLETED, IN_FLIGHT, FAILED = range(3)

# Why a request was tried again or given up, and its name in records.
NO_REASON, DEADLINE, TOO_LARGE, SERVER_LOST, UNLABELLED, MEMORY, NO_ROOM = range(7)
REASONS = {DEADLINE: "deadline", TOO_LARGE: "instance_too_large", SERVER_LOST: "server_down", UNLABELLED: NO_PREDICTION,
           MEMORY: OUT_OF_MEMORY, NO_ROOM: REFUSED, NO_REASON: ""}  # fmt: skip

# Why a server is down, and the reason's name in records.
OUT, DIED, HUNG = range(3)
DOWN_REASONS = {OUT: PLANNED, DIED: WORKER_DIED, HUNG: WORKER_HUNG}

# Whether predictions are drawn from a table, or replayed from a matrix.
DRAWN, REPLAYED = range(2)


# ------------------------------------------------------------------------------------------------------ the cluster


class Arrivals(Record):
    """`policies.router_queue.Arrivals`."""

    rate = REAL
    arrived_ns = INT


class Room(Record):
    """`policies.router_queue.Room`."""

    images = REAL
    scale = 1.0


class Cluster(Record):
    """A cluster: the first record of its row."""

    status = is_set_off = now_ns = ended_ns = horizon_ns = limit_ns = drains = detail = keeps = faulty = INT
    arrivals_at = arrival_count = arrived = classes_at = deadlines_at = INT
    arrival_ns = arrivals_end_ns = decision_end_ns = hear_ns = goal_ns = NEVER
    host_core = NONE
    decision = asked = host_free_ns = at_cap = snapshot_ns = tag = draws_salt = dropped = INT
    slot = fifo_head = fifo_tail = free_request = free_instance = free_micro_batch = free_message = NONE
    first_heard = last_heard = NONE
    looked = freed = then = has_paths = batch_queue = is_alone = in_batch_queue = candidates = removals = (
        removals_seen
    ) = server = width = micro_batch_size = INT
    fifo_length = completed = failed = in_flight = INT
    own_limit_ns = NONE
    goals_at = goals = goal = INT
    may_delay = has_batching_delay_rule = delayed = batching_delay_left_ns = batching_delay_requests = (
        batching_delay_wait_ns
    ) = pending_batching_delays = INT
    next_batching_delay_ns = NEVER
    first_delayed = NONE
    room = Room.blank()
    arrivals = Arrivals.blank()
    free_requests = free_instances = free_micro_batches = free_messages = free_servers = gone = INT
    power_ns = INT
    mean_power_w = energy_j = variance = REAL
    variance_is_stale = power_is_stale = 1
    jitter_salt = decision_salt = returned_salt = links_salt = poison_at = INT
    label_kind = labels_salt = label_table_at = labels_at = label_columns = images_at = INT
    faults = fault_number = downtimes = downtimes_at = scratch_at = INT
    credits = request_rows = request_rows_at = micro_batch_rows = micro_batch_rows_at = micro_batch_rows_room = INT
    batch_rows = batch_rows_at = batch_rows_room = reading_rows = reading_rows_at = reading_rows_room = INT
    variances = variances_at = variances_room = INT


# --------------------------------------------------------------------------------------------------------- the servers


class Times(Record):
    """The next times of events at a server, in the order at one instant (`sim.event_queue.Kind`)."""

    transfer = micro_batch = start = end = load = unload = timer = telemetry = message = fault = slowdown = NEVER


class Pending(Record):
    """Instances of a server that wait for the same kind of event, each for its time."""

    head = NONE


class Server(Record):
    """A server; its waiting keys follow (`ORDER_AT`), then its queues, instances, reports and readings."""

    index = params_at = device = INT
    times = Times.blank()
    next_ns = NEVER
    incarnation = is_up = is_hung = INT
    queued = sequence = running = keys = used_bytes = freeing_bytes = peak_bytes = INT
    utilization = REAL
    next_instance = next_batch = backed_off = INT
    idle_head = idle_tail = NONE
    starting = Pending.blank()
    loading = Pending.blank()
    unloading = Pending.blank()
    failing = Pending.blank()
    factor = 1.0
    room_images = NONE
    requests = micro_batches = INT
    first_micro_batch = last_micro_batch = first_moving = last_moving = NONE
    first_arriving = last_arriving = first_back = last_back = NONE
    is_open = last_back_ns = messages = INT
    seen_vram_bytes = INT
    loaded_bits = loading_bits = seen_loaded_bits = seen_loading_bits = INT
    first_report = reports = read = sample_ns = images = batches = loads = unloads = INT
    downtime = up_since_ns = NONE
    out_until_ns = ready_ns = deaths = INT


class Observed(Record):
    """A server's numbers in Eq. 1, as observed by a learned router; those of all servers are consecutive."""

    requests = power = utilization = REAL


ORDER_AT: Final = Server.size


class KeyQueue(Record):
    """A work key's queue at a server (segment, width, previous width), and the requests that the router has sent
    there."""

    head = tail = blocked_since_ns = NONE
    count = loads = outstanding = since = INT


class Instances(Record):
    """The instances of one segment and width at a server."""

    head = NONE
    free = loading = alive = is_hosted = failures = retry_ns = INT


class Report(Record):
    """A sensor's report in transfer."""

    received_ns = sampled_ns = incarnation = INT
    utilization = power_w = REAL
    vram_bytes = queue_length = INT


class Reading(Record):
    """A sensor's reading: integrals."""

    sampled_ns = INT
    energy_mj = busy_ms = REAL


# --------------------------------------------------------------------------------------------------- devices and media


class Device(Record):
    """A device."""

    model_at = is_touched = updated_ns = INT
    power_mw = REAL
    busy_permille = INT
    energy_mw_ns = REAL
    busy_permille_ns = INT
    slowdown = 1.0
    is_extrapolated = extrapolated_ns = count = loads = INT
    first = last = NONE
    slowdown_salt = slowdown_number = is_slow = changes_at = changes = change = INT
    cpu_work_from_ns = cpu_work_until_ns = paused_from_ns = passes_ended_ns = is_full = waiting_ns = INT


class Medium(Record):
    """A shared medium of transfers; from `uplinks` on, racks' uplinks."""

    free_ns = transfers = INT


class Goal(Record):
    """An operator's goal for a class, with its start (`policies.vocabulary.GoalSet`)."""

    from_ns = INT
    floor = REAL
    limit_ns = INT
    energy_weight = REAL
    service_class = INT


class ClassStats(Record):
    """The counts of a class's requests, and its goals (`policies.router_core`)."""

    completed = late = limit_ns = INT
    accuracy_sum = floor = energy_weight = rank = REAL


class SlowdownChange(Record):
    """A device's slowdown from a time on."""

    from_ns = INT
    factor = REAL


# ----------------------------------------------------------------------------------------------------------- the pools


class BatchingDelayMade(Record):
    """A batching delay that a decision has begun, of the oldest request of its batch queue, whose credit is still to
    come."""

    decision = tag = entered_ns = INT
    entered_j = REAL


class Request(Record):
    """A request in flight; its `Trace` follows if a run keeps records."""

    id = next = fifo_next = fifo_previous = batch_queue = entered_ns = INT
    entered_j = REAL
    segment = previous_width = code = location = incarnation = retries = micro_batch = position = sequence = INT
    service_class = INT
    arrived_ns = INT
    arrived_j = REAL
    deadline_ns = INT
    delayed_ns = batching_delays = INT
    first_batching_delay = BatchingDelayMade.blank()
    second_batching_delay = BatchingDelayMade.blank()
    third_batching_delay = BatchingDelayMade.blank()


class Trace(Record):
    """Further data for a request's record: its servers, its widths and its stages follow, by segment, and the
    `BatchTimes` of those segments of its path that it has passed without a return."""

    length = since_ns = lost_ns = stages = INT


class Stages(Record):
    """The stages of an image's time in a segment (`policies.run_records.STAGES` except `lost`)."""

    router_wait = decision = transfer = handover = queue = load = dispatch = run = INT


class BatchTimes(Record):
    """The times of a batch, and of the load of its instance."""

    commanded_ns = started_ns = ended_ns = load_began_ns = loaded_ns = INT


class Instance(Record):
    """An instance, and the batch that it runs."""

    id = spec = state = used_ns = next = idle_next = idle_previous = link = due_ns = server = INT
    batch = head = failed = count = key = served_width = padded = INT
    times = BatchTimes.blank()
    limit_ns = waiting_ns = INT
    run_next = run_previous = INT
    work_ns = slow_down = REAL
    end_ns = INT
    factor = REAL
    is_frozen = cost_at = INT


class MicroBatch(Record):
    """A micro-batch in transfer or at its server; its moves, the `then` widths of its path and its members follow."""

    next = previous = next_moving = next_arriving = INT
    decision = server = key = count = ended = moves = moving = then = batch_queue = tag = INT
    snapshot_ns = sent_ns = gathered_ns = due_ns = arrived_ns = INT


class Message(Record):
    """Requests on their way back to the router, linked from `head` on, and the times of their batch.

    `is_early`: they have left their path after `segment`, whose batch's times are in each one's trace.
    """

    next = slot = server = incarnation = number = head = count = reason = due_ns = INT
    segment = width = is_early = loaded_bits = loading_bits = INT
    times = BatchTimes.blank()


class Move(Record):
    """Inputs of a micro-batch in transfer from one place."""

    end_ns = source = is_moving = INT


class Member(Record):
    """A member of a micro-batch; without `batching_delays` and the following fields if there are none."""

    request = has_ended = source = span_ns = INT
    energy_j = accuracy = REAL
    batching_delays = INT
    first_batching_delay = BatchingDelayMade.blank()
    second_batching_delay = BatchingDelayMade.blank()
    third_batching_delay = BatchingDelayMade.blank()


class BatchQueue(Record):
    """A batch queue of the router's FIFO: requests that may share a micro-batch."""

    head = tail = NONE
    count = is_held = since_ns = until_ns = requests = INT
    next_delayed = previous_delayed = NONE


class Calendar(Record):
    """A tree of winners; twice as many times as it has leaves follow."""

    unused = INT


class Parts(Record):
    """The sizes of the parts of a batch without enough memory: the first of them."""

    size_of_first = INT


class PlannedFault(Record):
    """A fault to come."""

    due_ns = server = order = number = action = argument = INT
    factor = REAL


# --------------------------------------------------------------------------------------------------------- the records


class Terms(Record):
    """The weighted terms of a reward (`policies.interfaces.RewardTerms`)."""

    accuracy = latency = energy = imbalance = bonus = REAL


class Credit(Record):
    """A decision's reward."""

    decision = INT
    terms = Terms.blank()
    total = REAL
    tag = INT


class RequestRow(Record):
    """A request's record; then its stages, and its servers and widths by segment."""

    id = arrived_ns = finished_ns = fate = reason = retries = correct = INT
    energy_j = REAL
    length = INT


class MicroBatchRow(Record):
    """A micro-batch's record."""

    decision = batch_queue = server = key = count = snapshot_ns = sent_ns = arrived_ns = ended_ns = INT
    latency_s = REAL
    reward = Terms.blank()


class BatchRow(Record):
    """A batch's record."""

    server = batch = instance = segment = width = previous_width = count = commanded_ns = started_ns = INT
    ended_ns = INT


class ReadingRow(Record):
    """A sensor reading's record."""

    server = sampled_ns = INT
    utilization = power_w = REAL
    vram_bytes = queue_length = INT


class DowntimeRow(Record):
    """A downtime's record; `up_ns` is NONE if the server did not come back."""

    server = down_ns = up_ns = reason = INT


# ------------------------------------------------------------------------------------------------------ the parameters


class Parameters(Record):
    """A cluster's parameters: the first record of their row."""

    servers = devices = segments = places = widths = classes = keys = specs = batch_queues = cap = micro_batch_size = (
        moves
    ) = leaves = INT
    media = INT
    decision_ns = anywhere = max_retries = sheds = max_batching_delay_ns = INT
    host_devices_at = host_devices = after_pause_at = has_host = decision_micro_batch_ns = decision_image_ns = (
        returned_micro_batch_ns
    ) = returned_image_ns = sent_permille = received_permille = INT
    spread_at = spread_count = INT
    alpha = beta = gamma = delta = bonus = REAL
    centre = INT
    mean_accuracy = REAL
    sustained_img_s = REAL
    top1_at = prior_at = prior_levels_at = hang_ns = backoff_ns = backoff_limit_ns = stable_ns = start_ns = INT
    class_stats_at = INT
    samples = up_at = looked_at = freed_at = then_at = uplinks = observed_at = powers_at = INT
    tree_at = valid_at = servers_at = server_size = queues_at = instance_lists_at = reports_at = reports = INT
    readings_at = readings = INT
    path_at = INT
    devices_at = media_at = micro_batches_at = micro_batches = micro_batch_stride = members_at = batch_queues_at = (
        faults_at
    ) = faults = INT
    batching_delay_rule_at = credits_at = candidates_at = parts_at = instances_at = instances = requests_at = (
        requests
    ) = INT
    messages_at = messages = INT
    request_size = member_size = INT
    margin = server_params_at = device_models_at = logs_at = first_places_at = INT


class ServerParams(Record):
    """A server's settings, and its link."""

    batch_limit = vram_cap_bytes = INT
    utilization_block = REAL
    idle_unload_ns = scale_trigger = scale_cap = blocks_head_of_line = skip_limit_ns = INT
    serves_as_instance = fit_ends_at = padded_at = padded_count = preload_at = preload_count = load_retries = INT
    load_backoff_ns = context_bytes = INT
    medium = rack = INT
    latency_s = bandwidth_bytes_s = loss = uplink_s = REAL
    uplink_bytes_s = REAL
    instance_bytes_at = can_hold_at = fits_any_at = codes_at = INT
    power_limit_w = REAL


class DeviceModel(Record):
    """The device model of a profile."""

    costs_at = batch_limit = crowding_at = crowding_across_at = is_hosted = INT
    most_at_once = most_processes = REAL
    alpha = idle_mw = awake_mw = cap_mw = throttle = phi_min = REAL
    awake_ns = period_ns = lag_ns = power_window = utilization_window = instance_costs_at = INT
    input_bytes_at = dispatch_ns = there_ns = back_ns = busy_dispatch_ns = busy_there_ns = busy_back_ns = INT
    slice_ns = fetch_ns = INT
    extra_at = has_cpu_work = moved_ns = moved_image_ns = taken_at = begun_ns = begun_image_ns = ended_ns = (
        ended_image_ns
    ) = INT
    cpu_work_mw = beside_load = REAL
    cpu_work_permille = INT
    servers_at = server_count = INT
    mean_slowdown = REAL
    has_slowdown = INT
    slow_factor = REAL
    full_at = full_count = full_sum_ns = slow_at = slow_count = slow_sum_ns = INT


class TakenCost(Record):
    """The cost of receiving a micro-batch after some pause."""

    micro_batch_ns = image_ns = INT


class BatchCost(Record):
    """One batch size of one work key on a device."""

    latency_ns = typical_ns = demand_permille = host_permille = busy_permille = INT
    bandwidth = power_mw = REAL
    jitter_at = jitter_count = INT


class InstanceCost(Record):
    """The costs of an instance on a device."""

    load_ns = reload_ns = unload_ns = INT


# ----------------------------------------------------------------------------------------------------------- the views


class HeadSeen(Record):
    """A router's view of the candidate micro-batch and of the whole cluster (`policies.vocabulary.ClusterView`)."""

    segment = previous_width = location = candidates = entered_ns = fifo_length = completed = batching_delay_left_ns = (
        INT
    )
    late = goal_limit_ns = service_class = others_completed = INT
    accuracy_sum = goal_floor = goal_energy_weight = REAL


class ServerSeen(Record):
    """A router's view of a server (`policies.vocabulary.ServerView`); its `WorkSeen` records follow."""

    is_valid = requests = micro_batches = vram_bytes = loaded_bits = loading_bits = INT
    utilization = power_w = REAL
    keys = INT


class WorkSeen(Record):
    """Outstanding requests of a work key, and the first decision with some outstanding."""

    since = key = requests = INT


# ------------------------------------------------------------------------------------------------------------- refusals


class UnsupportedScenario(InputError):  # noqa: N818 - it names the user's scenario
    """A feature of the scenario that the compiled engine lacks and the reference has.

    Attributes:
        feature: the name of the feature.
    """

    def __init__(self, feature: str) -> None:
        self.feature = feature
        super().__init__("--engine", "", f"the compiled engine can't do {feature}; use --engine simpy")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, ...]]:
        """Rebuild the error from the feature when it crosses a process boundary."""
        return type(self), (self.feature,)


def problem_of(status: int) -> str:
    """Return why a run can't continue."""
    missing = "width tuple that was not evaluated" if status == NO_TUPLE else "work key without a latency curve"
    return f"the run came to a {missing}"
