"""`policies.greedy_scheduler` and `sim.simulated_server`, compiled: Algorithm 1 at one server, and the effects of its
commands.

A step's commands are executed where they are decided: returns and rejections come first in a step and affect the router
alone, so their order relative to loads and batches does not matter.
"""

from __future__ import annotations

from math import ceil

from kit.jit import bytes_at, ints, kernel, reals
from policies.vocabulary import MAX_INSTANCES
from sim.compiled.device_kernels import (
    advance_device,
    busy_ms,
    count_load,
    cpu_work_end_ns,
    do_cpu_work,
    energy_mj,
    free_ns,
    next_end,
    pause,
    replan,
    rerate,
    start_running,
    stop_running,
    stretched_ns,
)
from sim.compiled.host_kernels import deliver, send_back
from sim.compiled.queue_kernels import dequeue, enqueue
from sim.compiled.router_kernels import gain_server, lose_server
from sim.compiled.row_access import (
    device_at,
    hashed_below,
    instance_at,
    key_at,
    member_at,
    micro_batch_at,
    model_at,
    model_of,
    note_batch,
    params_of,
    path_key,
    reading_at,
    record_batch,
    record_reading,
    record_variance,
    report_at,
    report_power,
    request_at,
    segment_of,
    spec_at,
)
from sim.compiled.row_layout import (
    BUSY,
    FREE,
    LOADING,
    MEMORY,
    NEVER,
    NO_CURVE,
    NO_REASON,
    NONE,
    ORDER_AT,
    TOO_LARGE,
    UNLABELLED,
    UNLOADING,
    BatchCost,
    BatchTimes,
    Cluster,
    Instance,
    InstanceCost,
    Message,
    MicroBatch,
    Parameters,
    Parts,
    Pending,
    Report,
    Server,
    ServerParams,
    TakenCost,
)

_COST, _TIMES = BatchCost.size, BatchTimes.size

# --------------------------------------------------------------------------------------------------- words about keys


@kernel
def _spec_of(p: Parameters, key: int) -> int:
    """Return the instance that a key requires: segment and width as one number."""
    return key // (p.widths + 1)


@kernel
def _bytes_of(p: Parameters, server: Server, spec: int) -> int:
    return ints(p)[params_of(p, server).instance_bytes_at + spec]


@kernel
def _costs_of(p: Parameters, server: Server, spec: int) -> InstanceCost:
    return InstanceCost(p, model_at(p, server.device).instance_costs_at, spec)


# ------------------------------------------------------------------------------------------------------------- events


@kernel
def hand_over(c: Cluster, p: Parameters, server: Server, number: int, now: int) -> None:
    """Hand a micro-batch with all its inputs to the scheduler (`SimulatedServer.hand_over`)."""
    micro_batch, model = micro_batch_at(c, p, number), model_at(p, server.device)
    if model.there_ns == 0:
        _enqueue_micro_batch(c, p, server, micro_batch, now)
        return
    device = device_at(c, p, server.device)
    there_ns = model.busy_there_ns if device.count > 0 else model.there_ns
    if model.has_cpu_work:
        there_ns = stretched_ns(device, there_ns)
    micro_batch.due_ns, micro_batch.next_arriving = now + there_ns, NONE
    if server.first_arriving == NONE:
        server.first_arriving = number
        server.times.micro_batch = micro_batch.due_ns
    else:
        micro_batch_at(c, p, server.last_arriving).next_arriving = number
    server.last_arriving = number


@kernel
def take_micro_batch_in(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Receive the oldest micro-batch in transfer to the scheduler: first the process, then the scheduler has it."""
    micro_batch, model = micro_batch_at(c, p, server.first_arriving), model_at(p, server.device)
    if model.has_cpu_work and not server.is_open:
        server.is_open, device = 1, device_at(c, p, server.device)
        if server.is_up and not server.is_hung:
            cost = TakenCost(p, model.taken_at, pause(device, now))
            begins = free_ns(c, p, device, now, now + model.slice_ns, device.waiting_ns)
            do_cpu_work(c, p, device, cost.micro_batch_ns + cost.image_ns * micro_batch.count, now, begins)
        server.times.micro_batch = max(now, device.cpu_work_until_ns)
        return
    server.is_open = 0
    following = micro_batch.next_arriving
    server.first_arriving = following
    server.times.micro_batch = NEVER if following == NONE else max(now, micro_batch_at(c, p, following).due_ns)
    _enqueue_micro_batch(c, p, server, micro_batch, now)


@kernel
def _enqueue_micro_batch(c: Cluster, p: Parameters, server: Server, micro_batch: MicroBatch, now: int) -> None:
    """Give a micro-batch to the scheduler; a hung process reads nothing."""
    if server.is_hung:
        return
    key = micro_batch.key
    micro_batch.arrived_ns = now
    if ints(p)[params_of(p, server).can_hold_at + _spec_of(p, key)]:
        for position in range(micro_batch.count):
            enqueue(c, p, server, key, member_at(p, micro_batch, position).request)
    else:
        slot = NONE
        for position in range(micro_batch.count - 1, -1, -1):
            first = member_at(p, micro_batch, position).request
            request_at(c, p, first).next = slot
            slot = first
        _reject(c, p, server, slot, micro_batch.count, key, TOO_LARGE, now)
    schedule(c, p, server, now)


@kernel
def begin_next(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """End a command's dispatch: that of the lowest batch of those that are due."""
    due, slot = NONE, server.starting.head
    while slot != NONE:
        instance = instance_at(c, p, slot)
        if instance.due_ns == now and (due == NONE or instance.batch < instance_at(c, p, due).batch):
            due = slot
        slot = instance.link
    _unlink(c, p, server.starting, due)
    server.times.start = _soonest(c, p, server.starting)
    _begin(c, p, server, due, now)


@kernel
def finish(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """End a batch of the server: its work is done, or its memory was short."""
    slot = next_end(c, p, server, now)
    instance, device = instance_at(c, p, slot), device_at(c, p, server.device)
    if instance.cost_at == NONE:
        _unlink(c, p, server.failing, slot)
        _release_batch(c, p, server, slot, now)
        _reject(c, p, server, instance.head, instance.count, instance.key, MEMORY, now)
        _unload(c, p, server, slot, now)
        _back_off(c, p, server, instance.spec, now)
        replan(c, p, device)
    else:
        stop_running(c, p, device, slot, now)
        model = model_at(p, server.device)
        if model.has_cpu_work:
            rerate(c, p, device, now)
            do_cpu_work(c, p, device, model.ended_ns + model.ended_image_ns * instance.count, now, now)
        _release_batch(c, p, server, slot, now)
        _finish_batch(c, p, server, instance, now)
    schedule(c, p, server, now)


@kernel
def _finish_batch(c: Cluster, p: Parameters, server: Server, instance: Instance, now: int) -> None:
    """Send passed requests to the router; requests without a prediction from the last segment are rejected."""
    poisoned = 0
    if c.poison_at != 0 and instance.spec // p.widths == p.segments - 1:
        poisoned = _set_poisoned_aside(c, p, instance)
        if poisoned == instance.count:
            _reject(c, p, server, instance.failed, poisoned, instance.key, UNLABELLED, now)
            return
    server.images += instance.count - poisoned
    spec_at(p, server, instance.spec).failures = 0
    server.batches += 1
    record_batch(c, p, server, instance, now)
    instance.times.ended_ns = now
    passed = instance.count - poisoned
    if c.has_paths and not params_of(p, server).serves_as_instance:
        passed = _queue_for_paths(c, p, server, instance)
    if passed > 0:
        message = _returned(c, p, server, instance.head, passed, instance.key, instance.served_width, now)
        message.is_early = 0
        for n in range(_TIMES):
            ints(message.times)[n] = ints(instance.times)[n]
        deliver(c, p, server, message, now)
    if poisoned:
        _reject(c, p, server, instance.failed, poisoned, instance.key, UNLABELLED, now)


@kernel
def _queue_for_paths(c: Cluster, p: Parameters, server: Server, instance: Instance) -> int:
    """Queue requests of a batch for the next segment of their paths (`GreedyScheduler._goes_on`); returns the number of
    the others."""
    slot, segment = instance.head, segment_of(p, instance.key)
    first, last, count = NONE, NONE, 0
    while slot != NONE:
        request = request_at(c, p, slot)
        following = request.next
        micro_batch = micro_batch_at(c, p, request.micro_batch)
        step = segment - segment_of(p, micro_batch.key)
        key = path_key(p, micro_batch, step + 1) if step < micro_batch.then else NONE
        if key != NONE and ints(p)[params_of(p, server).can_hold_at + _spec_of(p, key)]:
            if c.keeps:
                note_batch(p, request, segment, instance.times)
            enqueue(c, p, server, key, slot)
        else:
            first, last = _append(c, p, first, last, slot), slot
            count += 1
        slot = following
    instance.head = first
    return count


@kernel
def _returned(
    c: Cluster, p: Parameters, server: Server, slot: int, count: int, key: int, width: int, now: int
) -> Message:
    """Write a message that returns requests which have passed a segment."""
    message = send_back(c, p, server, slot, count, NO_REASON, now)
    message.segment, message.width = segment_of(p, key), width
    message.loaded_bits, message.loading_bits = server.loaded_bits, server.loading_bits
    return message


@kernel
def _set_poisoned_aside(c: Cluster, p: Parameters, instance: Instance) -> int:
    """Split a batch into healthy and poisoned requests; returns the number of poisoned ones."""
    poison, slot = bytes_at(c.poison_at), instance.head
    count = 0
    last_well, last_ill = NONE, NONE
    instance.head, instance.failed = NONE, NONE
    while slot != NONE:
        following = request_at(c, p, slot).next
        if poison[request_at(c, p, slot).id]:
            instance.failed, last_ill = _append(c, p, instance.failed, last_ill, slot), slot
            count += 1
        else:
            instance.head, last_well = _append(c, p, instance.head, last_well, slot), slot
        slot = following
    return count


@kernel
def _append(c: Cluster, p: Parameters, first: int, last: int, slot: int) -> int:
    """Append a request to a list; returns the list's first one."""
    request_at(c, p, slot).next = NONE
    if first == NONE:
        return slot
    request_at(c, p, last).next = slot
    return first


@kernel
def _reject(c: Cluster, p: Parameters, server: Server, slot: int, count: int, key: int, reason: int, now: int) -> None:
    """Reject requests of a key; those on a path are returned after its last segment (`GreedyScheduler._reject`)."""
    first, last = NONE, NONE
    first_on, last_on, on_path = NONE, NONE, 0
    segment = segment_of(p, key)
    while slot != NONE:
        request = request_at(c, p, slot)
        following = request.next
        if segment_of(p, micro_batch_at(c, p, request.micro_batch).key) < segment:
            first_on, last_on = _append(c, p, first_on, last_on, slot), slot
            on_path += 1
        else:
            first, last = _append(c, p, first, last, slot), slot
        slot = following
    if on_path > 0:
        previous = key % (p.widths + 1)
        message = _returned(c, p, server, first_on, on_path, key - p.widths * (p.widths + 1), previous - 1, now)
        message.is_early = 1
        deliver(c, p, server, message, now)
    if count > on_path:
        deliver(c, p, server, send_back(c, p, server, first, count - on_path, reason, now), now)


@kernel
def finish_load(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """End a load; at a hung server it has no effect."""
    slot = _take_due(c, p, server.loading, now)
    server.times.load = _soonest(c, p, server.loading)
    instance = instance_at(c, p, slot)
    if instance.times.load_began_ns < now:
        count_load(c, p, server, -1, now)
    if server.is_hung:
        return
    instances = spec_at(p, server, instance.spec)
    instances.is_hosted = 1
    instances.loading -= 1
    instance.times.loaded_ns = now
    _set_free(c, p, server, slot, now)
    _note_residency(p, server)
    schedule(c, p, server, now)


@kernel
def finish_unload(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """End an unload: its memory is free."""
    slot = _take_due(c, p, server.unloading, now)
    server.times.unload = _soonest(c, p, server.unloading)
    if server.is_hung:
        return
    spec = instance_at(c, p, slot).spec
    server.freeing_bytes -= _bytes_of(p, server, spec)
    server.used_bytes -= _bytes_of(p, server, spec)
    _remove(c, p, server, slot)
    schedule(c, p, server, now)


@kernel
def _take_due(c: Cluster, p: Parameters, pending: Pending, now: int) -> int:
    """Remove and return the instance of the lowest id among those that are due."""
    due, slot = NONE, pending.head
    while slot != NONE:
        instance = instance_at(c, p, slot)
        if instance.due_ns == now and (due == NONE or instance.id < instance_at(c, p, due).id):
            due = slot
        slot = instance.link
    _unlink(c, p, pending, due)
    return due


@kernel
def _unlink(c: Cluster, p: Parameters, pending: Pending, slot: int) -> None:
    at, after = pending.head, instance_at(c, p, slot).link
    if at == slot:
        pending.head = after
        return
    while instance_at(c, p, at).link != slot:
        at = instance_at(c, p, at).link
    instance_at(c, p, at).link = after


@kernel
def _soonest(c: Cluster, p: Parameters, pending: Pending) -> int:
    """Return when the first of a list is due."""
    soonest, slot = NEVER, pending.head
    while slot != NONE:
        soonest = min(soonest, instance_at(c, p, slot).due_ns)
        slot = instance_at(c, p, slot).link
    return soonest


# ---------------------------------------------------------------------------------------------------------- instances


@kernel
def _set_free(c: Cluster, p: Parameters, server: Server, slot: int, now: int) -> None:
    """Append an instance to the order of idleness."""
    instance, tail = instance_at(c, p, slot), server.idle_tail
    instance.state, instance.used_ns = FREE, now
    spec_at(p, server, instance.spec).free += 1
    instance.idle_previous, instance.idle_next = tail, NONE
    if tail == NONE:
        server.idle_head = slot
    else:
        instance_at(c, p, tail).idle_next = slot
    server.idle_tail = slot


@kernel
def _set_taken(c: Cluster, p: Parameters, server: Server, slot: int, state: int) -> None:
    instance = instance_at(c, p, slot)
    instance.state = state
    spec_at(p, server, instance.spec).free -= 1
    before, after = instance.idle_previous, instance.idle_next
    if before == NONE:
        server.idle_head = after
    else:
        instance_at(c, p, before).idle_next = after
    if after == NONE:
        server.idle_tail = before
    else:
        instance_at(c, p, after).idle_previous = before


@kernel
def _release_batch(c: Cluster, p: Parameters, server: Server, slot: int, now: int) -> None:
    server.running -= instance_at(c, p, slot).count
    _set_free(c, p, server, slot, now)


@kernel
def _load(c: Cluster, p: Parameters, server: Server, spec: int, now: int, load_ns: int) -> None:
    slot = c.free_instance
    instance, instances = instance_at(c, p, slot), spec_at(p, server, spec)
    c.free_instance = instance.next
    c.free_instances -= 1
    instance.id, instance.spec = server.next_instance, spec
    instance.state, instance.server = LOADING, server.index
    server.next_instance += 1
    instance.next = instances.head
    instances.head = slot
    instances.loading += 1
    instances.alive += 1
    server.used_bytes += _bytes_of(p, server, spec)
    server.peak_bytes = max(server.peak_bytes, server.used_bytes)
    server.loads += 1
    instance.times.load_began_ns, instance.times.loaded_ns = now, now
    instance.due_ns = now + load_ns
    if load_ns > 0:
        count_load(c, p, server, 1, now)
    instance.link = server.loading.head
    server.loading.head = slot
    server.times.load = min(server.times.load, instance.due_ns)
    _note_residency(p, server)


@kernel
def _unload(c: Cluster, p: Parameters, server: Server, slot: int, now: int) -> None:
    _set_taken(c, p, server, slot, UNLOADING)
    instance = instance_at(c, p, slot)
    spec = instance.spec
    spec_at(p, server, spec).alive -= 1
    _note_residency(p, server)
    server.freeing_bytes += _bytes_of(p, server, spec)
    server.unloads += 1
    instance.due_ns = now + _costs_of(p, server, spec).unload_ns
    instance.link = server.unloading.head
    server.unloading.head = slot
    server.times.unload = min(server.times.unload, instance.due_ns)


@kernel
def _note_residency(p: Parameters, server: Server) -> None:
    """Note that instances were added, removed, or changed between loading and loaded
    (`GreedyScheduler._note_residency`)."""
    server.loaded_bits, server.loading_bits = 0, 0
    for spec in range(min(p.specs, MAX_INSTANCES)):
        instances = spec_at(p, server, spec)
        if instances.loading > 0:
            server.loading_bits |= 1 << spec
        if instances.alive > instances.loading:
            server.loaded_bits |= 1 << spec


@kernel
def _remove(c: Cluster, p: Parameters, server: Server, slot: int) -> None:
    instance = instance_at(c, p, slot)
    instances = spec_at(p, server, instance.spec)
    at = instances.head
    if at == slot:
        instances.head = instance.next
    else:
        while instance_at(c, p, at).next != slot:
            at = instance_at(c, p, at).next
        instance_at(c, p, at).next = instance.next
    instance.next = c.free_instance
    c.free_instance = slot
    c.free_instances += 1


@kernel
def _back_off(c: Cluster, p: Parameters, server: Server, spec: int, now: int) -> None:
    """Note a batch out of memory: the next load waits, and after the last try its requests are rejected."""
    instances, params = spec_at(p, server, spec), params_of(p, server)
    if now < instances.retry_ns:
        return
    instances.failures += 1
    if instances.failures < params.load_retries:
        instances.retry_ns = now + params.load_backoff_ns * (1 << (instances.failures - 1))
        server.backed_off = 1
        return
    instances.failures, instances.retry_ns = 0, 0
    position = 0
    while position < server.keys:
        key = ints(server)[ORDER_AT + position]
        if _spec_of(p, key) == spec and not _has_instance_for(p, server, key):
            count = key_at(p, server, key).count
            _reject(c, p, server, dequeue(c, p, server, position, count), count, key, MEMORY, now)
        else:
            position += 1


# ---------------------------------------------------------------------------------------------------------- decisions


@kernel
def schedule(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Run Alg. 1's loop until nothing more is possible at this instant."""
    while _run_next_servable(c, p, server, now):
        pass
    if server.queued > 0:
        _order_loads(c, p, server, now)
    _unload_idle(c, p, server, now)
    _plan_wake(c, p, server, now)


@kernel
def _unload_idle(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    idle_ns = params_of(p, server).idle_unload_ns
    if idle_ns != NONE:
        while server.idle_head != NONE and now - instance_at(c, p, server.idle_head).used_ns >= idle_ns:
            _unload(c, p, server, server.idle_head, now)


@kernel
def _run_next_servable(c: Cluster, p: Parameters, server: Server, now: int) -> bool:
    """Run the oldest key that a free instance can serve, unless an older one must not be overtaken."""
    for position in range(server.keys):
        key = ints(server)[ORDER_AT + position]
        slot = _find_free_best_fit(c, p, server, key)
        if slot != NONE:
            _run(c, p, server, position, slot, now)
            return True
        queue = key_at(p, server, key)
        if queue.blocked_since_ns == NONE:
            queue.blocked_since_ns = now
        if _may_not_be_overtaken(p, server, key, now):
            return False
    return False


@kernel
def _may_not_be_overtaken(p: Parameters, server: Server, key: int, now: int) -> bool:
    return params_of(p, server).blocks_head_of_line == 1 or _is_overdue(p, server, key, now)


@kernel
def _is_overdue(p: Parameters, server: Server, key: int, now: int) -> bool:
    return now - key_at(p, server, key).blocked_since_ns >= params_of(p, server).skip_limit_ns


@kernel
def _end_of_fit(p: Parameters, server: Server, spec: int) -> int:
    """Return the bound below which instances serve a request for `spec`: wider ones of its nest, too."""
    return ints(p)[params_of(p, server).fit_ends_at + spec]


@kernel
def _find_free_best_fit(c: Cluster, p: Parameters, server: Server, key: int) -> int:
    """Return Alg. 1 l. 7: the smallest free width that serves; ties go to the most recently used, then the lowest
    id."""
    spec = _spec_of(p, key)
    for wider in range(spec, _end_of_fit(p, server, spec)):
        instances = spec_at(p, server, wider)
        if instances.free == 0:
            continue
        best, slot = NONE, instances.head
        while slot != NONE:
            instance = instance_at(c, p, slot)
            if instance.state == FREE:
                other = instance_at(c, p, best) if best != NONE else instance
                is_later = instance.used_ns > other.used_ns
                is_as_late = instance.used_ns == other.used_ns
                if best == NONE or is_later or (is_as_late and instance.id < other.id):
                    best = slot
            slot = instance.next
        return best
    return NONE


@kernel
def _run(c: Cluster, p: Parameters, server: Server, position: int, slot: int, now: int) -> None:
    """Form a batch of one key and make the instance busy (Alg. 1 l. 14-17)."""
    params, instance = params_of(p, server), instance_at(c, p, slot)
    key = ints(server)[ORDER_AT + position]
    count = min(params.batch_limit, key_at(p, server, key).count)
    instance.head = dequeue(c, p, server, position, count)
    _set_taken(c, p, server, slot, BUSY)
    spec = instance.spec if params.serves_as_instance else _spec_of(p, key)
    instance.batch, instance.count = server.next_batch, count
    instance.key, instance.served_width = key, spec % p.widths
    server.next_batch += 1
    server.running += count
    instance.padded = _padded(p, params, count)
    instance.times.commanded_ns = instance.times.started_ns = now
    instance.link, instance.waiting_ns = NONE, 0
    _dispatch(c, p, server, slot, now)


@kernel
def _padded(p: Parameters, params: ServerParams, count: int) -> int:
    """Return the smallest padded size for this number."""
    for n in range(params.padded_count):
        size = ints(p)[params.padded_at + n]
        if size >= count:
            return size
    return count


@kernel
def _dispatch(c: Cluster, p: Parameters, server: Server, slot: int, now: int) -> None:
    """Start the command's dispatch (`SimulatedServer._dispatch`)."""
    instance, model = instance_at(c, p, slot), model_at(p, server.device)
    device = device_at(c, p, server.device)
    dispatch_ns = model.busy_dispatch_ns if device.count > 0 else model.dispatch_ns
    start_ns = now + dispatch_ns
    if model.has_cpu_work:
        start_ns = now + stretched_ns(device, dispatch_ns)
        start_ns = max(
            start_ns, do_cpu_work(c, p, device, model.begun_ns + model.begun_image_ns * instance.count, now, now)
        )
    instance.limit_ns = start_ns + model.slice_ns
    if start_ns == now:
        _begin(c, p, server, slot, now)
    else:
        _await_start(c, p, server, slot, start_ns)


@kernel
def _await_start(c: Cluster, p: Parameters, server: Server, slot: int, start_ns: int) -> None:
    instance = instance_at(c, p, slot)
    instance.due_ns = start_ns
    instance.link = server.starting.head
    server.starting.head = slot
    server.times.start = min(server.times.start, instance.due_ns)


@kernel
def _begin(c: Cluster, p: Parameters, server: Server, slot: int, now: int) -> None:
    """Begin the forward pass, in parts if the memory is squeezed; at a hung server it never begins."""
    instance, room = instance_at(c, p, slot), server.room_images
    model = model_at(p, server.device)
    device = device_at(c, p, server.device)
    device.waiting_ns -= instance.waiting_ns
    instance.waiting_ns = 0
    if server.is_hung:
        return
    key = (instance.spec // p.widths * p.widths + instance.served_width) * (p.widths + 1)
    key += instance.key % (p.widths + 1)
    costs_at = model.costs_at + key * (model.batch_limit + 1) * _COST
    if model.has_cpu_work:
        free = max(free_ns(c, p, device, now, instance.limit_ns, 0), cpu_work_end_ns(device, now))
        if free > now:
            instance.waiting_ns = BatchCost(p, costs_at, instance.padded).latency_ns
            device.waiting_ns += instance.waiting_ns
            _await_start(c, p, server, slot, free)
            return
    instance.times.started_ns = now
    if room == NONE or instance.count <= room:
        size = instance.padded
        work = _solo_ns(c, p, server, instance, BatchCost(p, costs_at, size))
    elif room < 1:
        instance.cost_at, instance.due_ns = NONE, now
        instance.link = server.failing.head
        server.failing.head = slot
        server.times.end = now
        return
    else:
        size = instance.count
        while size > room:
            size = (size + 1) // 2
        work = _work_in_parts(c, p, server, instance, costs_at, room)
    if BatchCost(p, costs_at, size).latency_ns == NONE:
        c.status = NO_CURVE
    work += ints(p)[model.extra_at + pause(device_at(c, p, server.device), now)]
    instance.work_ns, instance.factor = work, server.factor
    instance.slow_down = 1.0
    instance.cost_at = costs_at + size * _COST
    instance.is_frozen = instance.end_ns = 0
    start_running(c, p, device, slot, now)
    if model.has_cpu_work:  # any later beginning at this instant needs a free core
        rerate(c, p, device, now)


@kernel
def _work_in_parts(c: Cluster, p: Parameters, server: Server, instance: Instance, costs_at: int, room: int) -> int:
    """Return the solo time of a batch that runs in halves of halves (`sim.simulated_device.parts_that_fit`)."""
    stack, depth = ints(Parts(c, p.parts_at)), 1
    work = 0
    stack[0] = instance.count
    while depth > 0:
        depth -= 1
        size = stack[depth]
        if size <= room:
            work += _solo_ns(c, p, server, instance, BatchCost(p, costs_at, size))
        else:
            stack[depth], stack[depth + 1] = size // 2, size - size // 2
            depth += 2
    return work


@kernel
def _solo_ns(c: Cluster, p: Parameters, server: Server, instance: Instance, cost: BatchCost) -> int:
    """Return the mean, or the median times a quantile drawn by hash (`sim.simulated_device.solo_ns`)."""
    if cost.jitter_at == NONE:
        return cost.latency_ns
    drawn = hashed_below(c.jitter_salt, server.index, instance.batch, cost.jitter_count)
    return ceil(cost.typical_ns * reals(p)[cost.jitter_at + drawn])


@kernel
def _order_loads(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Load for need, evict for need: `can_load` for each waiting key, oldest first."""
    params = params_of(p, server)
    may_evict = params.blocks_head_of_line == 0
    for position in range(server.keys):
        key = ints(server)[ORDER_AT + position]
        spec = _spec_of(p, key)
        is_overdue = _is_overdue(p, server, key, now)
        if not _is_loading_for(p, server, key) and _admits(p, server, spec, now, is_overdue):
            is_needed = is_overdue or not _has_instance_for(p, server, key)
            if _fits(p, server, spec):
                if is_needed or _may_have_another(p, server, key):
                    _load_for_key(c, p, server, key, now)
            elif is_needed and may_evict:
                if _evict_for(c, p, server, spec, now):
                    return
                may_evict = False
        if _may_not_be_overtaken(p, server, key, now):
            return


@kernel
def _may_have_another(p: Parameters, server: Server, key: int) -> bool:
    """Return whether a key may load another instance: above Q_th within N_new, or if only wider ones serve at their
    width."""
    params, queue = params_of(p, server), key_at(p, server, key)
    if params.serves_as_instance == 1 and spec_at(p, server, _spec_of(p, key)).alive == 0:
        return True
    return queue.count > params.scale_trigger and queue.loads < params.scale_cap


@kernel
def _admits(p: Parameters, server: Server, spec: int, now: int, is_overdue: bool) -> bool:
    """Return `can_load` except for the memory: U_blk, which a segment's first instance and an overdue key ignore."""
    if now < spec_at(p, server, spec).retry_ns:
        return False
    if is_overdue or server.utilization < params_of(p, server).utilization_block:
        return True
    first = spec // p.widths * p.widths
    for other in range(first, first + p.widths):
        if spec_at(p, server, other).alive > 0:
            return False
    return True


@kernel
def _fits(p: Parameters, server: Server, spec: int) -> bool:
    return server.used_bytes + _bytes_of(p, server, spec) <= params_of(p, server).vram_cap_bytes


@kernel
def _has_instance_for(p: Parameters, server: Server, key: int) -> bool:
    spec = _spec_of(p, key)
    for wider in range(spec, _end_of_fit(p, server, spec)):
        if spec_at(p, server, wider).alive > 0:
            return True
    return False


@kernel
def _is_loading_for(p: Parameters, server: Server, key: int) -> bool:
    spec = _spec_of(p, key)
    for wider in range(spec, _end_of_fit(p, server, spec)):
        if spec_at(p, server, wider).loading > 0:
            return True
    return False


@kernel
def _load_for_key(c: Cluster, p: Parameters, server: Server, key: int, now: int) -> None:
    """Load an instance for a key: first from disk, later from host memory."""
    key_at(p, server, key).loads += 1
    spec = _spec_of(p, key)
    costs = _costs_of(p, server, spec)
    _load(c, p, server, spec, now, costs.reload_ns if spec_at(p, server, spec).is_hosted else costs.load_ns)


@kernel
def _evict_for(c: Cluster, p: Parameters, server: Server, spec: int, now: int) -> bool:
    """Unload idle instances, least recently used first, if that frees enough memory; returns whether enough is being
    freed."""
    kept_bytes = server.used_bytes - server.freeing_bytes
    short_bytes = kept_bytes + _bytes_of(p, server, spec) - params_of(p, server).vram_cap_bytes
    if short_bytes <= 0:
        return True
    victims, slot = 0, server.idle_head
    while slot != NONE and short_bytes > 0:
        instance = instance_at(c, p, slot)
        short_bytes -= _bytes_of(p, server, instance.spec)
        victims += 1
        slot = instance.idle_next
    if short_bytes > 0:
        return False
    for _ in range(victims):
        _unload(c, p, server, server.idle_head, now)
    return True


@kernel
def _plan_wake(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Plan the next time at which something could change without an event."""
    wake = NEVER
    if server.backed_off:
        for position in range(server.keys):
            retry_ns = spec_at(p, server, _spec_of(p, ints(server)[ORDER_AT + position])).retry_ns
            if retry_ns > now:
                wake = min(wake, retry_ns)
    idle_ns = params_of(p, server).idle_unload_ns
    if idle_ns != NONE and server.idle_head != NONE:
        wake = min(wake, instance_at(c, p, server.idle_head).used_ns + idle_ns)
    server.times.timer = wake


# ---------------------------------------------------------------------------------------------------------- telemetry


@kernel
def next_telemetry(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Process a report's arrival, or read the sensor; if both are due the report is first: it was planned earlier."""
    report = report_at(p, server, 0)
    if server.reports > 0 and report.received_ns == now:
        server.first_report = (server.first_report + 1) % p.reports
        server.reports -= 1
        _report(c, p, server, report, now)
    else:
        sample(c, p, server, now)
    _plan_telemetry(p, server)


@kernel
def _plan_telemetry(p: Parameters, server: Server) -> None:
    soonest = server.sample_ns
    if server.reports > 0:
        soonest = min(soonest, report_at(p, server, 0).received_ns)
    server.times.telemetry = soonest


@kernel
def sample(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Read the sensor, unless the server is down or hangs; the reading arrives after its lag."""
    device = device_at(c, p, server.device)
    model = model_of(p, device)
    server.sample_ns = now + model.period_ns
    if server.is_up == 1 and server.is_hung == 0:
        reading = reading_at(p, server, server.read)
        reading.sampled_ns, reading.energy_mj = now, energy_mj(p, device, now)
        reading.busy_ms = busy_ms(p, device, now)
        server.read += 1
        report = report_at(p, server, server.reports)
        report.received_ns, report.sampled_ns = now + model.lag_ns, now
        report.incarnation = server.incarnation
        report.power_w = _average(p, server, True, model.power_window, model.idle_mw / 1000)
        report.utilization = _average(p, server, False, model.utilization_window, 0.0)
        report.vram_bytes, report.queue_length = server.used_bytes, server.queued + server.running
        if model.lag_ns == 0:
            _report(c, p, server, report, now)
        else:
            server.reports += 1
    _plan_telemetry(p, server)


@kernel
def _average(p: Parameters, server: Server, is_power: bool, window: int, idle: float) -> float:
    """Return an average over the last `window` periods; before the first reading the device was idle
    (`WindowedSensor`)."""
    count = server.read
    model = model_at(p, server.device)
    stored = min(count, 1 + max(model.power_window, model.utilization_window))
    latest, earlier = reading_at(p, server, count - 1), reading_at(p, server, count - 1 - min(window, stored - 1))
    change = latest.energy_mj - earlier.energy_mj if is_power else latest.busy_ms - earlier.busy_ms
    elapsed_ns = latest.sampled_ns - earlier.sampled_ns
    idle_ns = max(0, window * model.period_ns - elapsed_ns)
    return (change * 1e6 + idle * idle_ns) / (elapsed_ns + idle_ns)


@kernel
def _report(c: Cluster, p: Parameters, server: Server, report: Report, now: int) -> None:
    """Deliver a reading to the server's scheduler, and to the router."""
    if server.is_up == 0 or server.is_hung == 1 or report.incarnation != server.incarnation:
        return
    server.utilization = report.utilization
    schedule(c, p, server, now)
    record_reading(c, server, report)
    server.seen_vram_bytes = report.vram_bytes
    server.seen_loaded_bits, server.seen_loading_bits = server.loaded_bits, server.loading_bits
    report_power(c, p, server, report.power_w, report.utilization, now)
    record_variance(c, p)


# ------------------------------------------------------------------------------------------------ servers come and go


@kernel
def come_up(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """(Re)start a server that is down, in a new incarnation. At the start of a run preloads are already in place."""
    params = params_of(p, server)
    server.incarnation += 1
    server.is_up = 1
    for n in range(params.preload_count):
        spec = ints(p)[params.preload_at + n]
        _load(c, p, server, spec, now, 0 if server.incarnation == 1 else _costs_of(p, server, spec).load_ns)
    gain_server(c, p, server, now)


@kernel
def go_down(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Fail a server that is up: batches, instances, queue and activations are lost."""
    device = device_at(c, p, server.device)
    advance_device(c, p, device, now)
    slot = device.first
    while slot != NONE:
        following = instance_at(c, p, slot).run_next
        if instance_at(c, p, slot).server == server.index:
            stop_running(c, p, device, slot, now)
        slot = following
    slot = server.starting.head
    while slot != NONE:
        device.waiting_ns -= instance_at(c, p, slot).waiting_ns
        slot = instance_at(c, p, slot).link
    slot = server.loading.head
    while slot != NONE:
        if instance_at(c, p, slot).times.load_began_ns < instance_at(c, p, slot).due_ns:
            count_load(c, p, server, -1, now)
        slot = instance_at(c, p, slot).link
    device.is_touched = 1
    server.is_up = server.is_hung = server.read = 0
    _forget_everything(c, p, server)
    report_power(c, p, server, 0.0, 0.0, now)
    lose_server(c, p, server, now)


@kernel
def _forget_everything(c: Cluster, p: Parameters, server: Server) -> None:
    """Clear the scheduler, the executor and the messages between them."""
    for spec in range(p.specs):
        instances = spec_at(p, server, spec)
        while instances.head != NONE:
            _remove(c, p, server, instances.head)
        instances.free = instances.loading = instances.alive = instances.is_hosted = 0
        instances.failures, instances.retry_ns = 0, 0
    for position in range(server.keys):
        queue = key_at(p, server, ints(server)[ORDER_AT + position])
        queue.head = queue.tail = NONE
        queue.count = 0
    for key in range(p.keys):
        queue = key_at(p, server, key)
        queue.blocked_since_ns, queue.loads = NONE, 0
    server.keys = server.queued = server.running = server.backed_off = 0
    server.loaded_bits, server.loading_bits = 0, 0
    server.used_bytes, server.freeing_bytes = params_of(p, server).context_bytes, 0
    server.utilization = 0.0
    server.idle_head = server.idle_tail = server.starting.head = NONE
    server.loading.head = server.unloading.head = server.failing.head = NONE
    server.first_arriving = server.last_arriving = NONE
    server.is_open = 0
    times = server.times
    times.micro_batch = times.start = times.end = NEVER
    times.load = times.unload = times.timer = NEVER
