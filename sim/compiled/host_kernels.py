"""`sim.host_and_network`, compiled, with the way back from a server to it: messages that return requests.

A message is in one of two lists: messages in transfer from its server, in the order of sending, or messages queued at
the host, in the order of arrival. Messages of an earlier incarnation of their server cost the host the same, and change
nothing.
"""

from __future__ import annotations

from math import ceil

from kit.jit import ints, kernel, reals
from sim.compiled.device_kernels import core_free_ns, do_cpu_work, pause_number, stretched_ns
from sim.compiled.router_kernels import advance_request, retry
from sim.compiled.row_access import device_at, hashed_below, message_at, model_at, request_at, server_at
from sim.compiled.row_layout import NEVER, NO_REASON, NONE, Cluster, Message, Parameters, Server


@kernel
def _cost_ns(c: Cluster, p: Parameters, mean_ns: int, salt: int, server: int, number: int, now: int) -> int:
    """Compute `HostTable.cost_ns`."""
    factor = reals(p)[p.after_pause_at + pause_number(now - c.host_free_ns)]
    if p.spread_count > 0:
        factor *= reals(p)[p.spread_at + hashed_below(salt, server, number, p.spread_count)]
    return ceil(mean_ns * factor)


@kernel
def begin_decision(c: Cluster, p: Parameters, server: int, images: int) -> int:
    """Return when the decision's micro-batch is sent (`SimulatedHost.decide`)."""
    if p.has_host == 0:
        return c.now_ns + p.decision_ns
    mean_ns = p.decision_micro_batch_ns + p.decision_image_ns * images
    cost_ns = _cost_ns(c, p, mean_ns, c.decision_salt, server, c.decision, c.now_ns)
    begun_ns = _work(c, p, p.decision_ns + cost_ns, c.now_ns)
    return min(c.host_free_ns, begun_ns + p.decision_ns + cost_ns * p.sent_permille // 1000)


@kernel
def _work(c: Cluster, p: Parameters, work: int, now: int) -> int:
    """Do work after all queued work; returns when it begins (`SimulatedHost._work`)."""
    soonest, core = NEVER, NONE
    for n in range(p.host_devices):
        index = ints(p)[p.host_devices_at + n]
        free = core_free_ns(c, p, device_at(c, p, index), now)
        if free < soonest:
            soonest, core = free, index
    if core == NONE or soonest <= now:
        begun = max(now, c.host_free_ns)
        c.host_free_ns = begun + work
        return begun
    has_slept = c.host_core == NONE or c.host_free_ns < now
    if has_slept:
        c.host_core = core
    device = device_at(c, p, c.host_core)
    begins = now
    if has_slept:
        begins = core_free_ns(c, p, device, now)
    do_cpu_work(c, p, device, work, now, begins)
    c.host_free_ns = max(c.host_free_ns, device.cpu_work_until_ns)
    return device.cpu_work_from_ns


@kernel
def send_back(c: Cluster, p: Parameters, server: Server, slot: int, count: int, reason: int, now: int) -> Message:
    """Write a message that returns requests to the router (`SimulatedServer._send_back`); `deliver` it when it is
    complete.

    Args:
        slot: the first of them; they are linked.
        reason: why they were rejected; NO_REASON for requests that have passed.
    """
    number = c.free_message
    message = message_at(c, p, number)
    c.free_message = message.next
    c.free_messages -= 1
    message.server, message.incarnation = server.index, server.incarnation
    message.number = server.messages
    message.head, message.count = slot, count
    message.reason, message.next = reason, NONE
    message.slot = number
    server.messages += 1
    return message


@kernel
def deliver(c: Cluster, p: Parameters, server: Server, message: Message, now: int) -> None:
    """Send a message."""
    model, device = model_at(p, server.device), device_at(c, p, server.device)
    if model.back_ns == 0:
        _reach_host(c, p, message, now)
        return
    back_ns = model.busy_back_ns if device.count > 0 else model.back_ns
    if model.has_cpu_work:
        back_ns = stretched_ns(device, back_ns)
    message.due_ns = max(server.last_back_ns, max(now, device.cpu_work_from_ns) + back_ns)
    server.last_back_ns = message.due_ns
    if server.first_back == NONE:
        server.first_back = message.slot
        server.times.message = message.due_ns
    else:
        message_at(c, p, server.last_back).next = message.slot
    server.last_back = message.slot


@kernel
def arrive_at_host(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Queue the oldest message in transfer from a server at the host."""
    message = message_at(c, p, server.first_back)
    server.first_back = message.next
    server.times.message = NEVER if message.next == NONE else message_at(c, p, message.next).due_ns
    message.next = NONE
    _reach_host(c, p, message, now)


@kernel
def _reach_host(c: Cluster, p: Parameters, message: Message, now: int) -> None:
    if p.has_host == 0:
        _hear(c, p, message, now)
        return
    mean_ns = p.returned_micro_batch_ns + p.returned_image_ns * message.count
    cost_ns = _cost_ns(c, p, mean_ns, c.returned_salt, message.server, message.number, now)
    before = c.host_free_ns
    begun = max(_work(c, p, cost_ns, now), before)
    message.due_ns = min(c.host_free_ns, begun + cost_ns * p.received_permille // 1000)
    if c.first_heard == NONE:
        c.first_heard = message.slot
        c.hear_ns = message.due_ns
    else:
        message_at(c, p, c.last_heard).next = message.slot
    c.last_heard = message.slot


@kernel
def hear_next(c: Cluster, p: Parameters, now: int) -> None:
    """Give the requests of the first message to the router."""
    message = message_at(c, p, c.first_heard)
    c.first_heard = message.next
    c.hear_ns = NEVER if message.next == NONE else message_at(c, p, message.next).due_ns
    _hear(c, p, message, now)


@kernel
def _hear(c: Cluster, p: Parameters, message: Message, now: int) -> None:
    """Process returned requests in the router's core (`RouterCore._advance`, `_return_rejected`)."""
    server, slot = server_at(c, p, message.server), message.head
    if server.is_up == 0 or server.incarnation != message.incarnation:
        slot = NONE
    elif message.reason == NO_REASON:
        server.seen_loaded_bits, server.seen_loading_bits = message.loaded_bits, message.loading_bits
    while slot != NONE:
        following = request_at(c, p, slot).next
        if message.reason == NO_REASON:
            advance_request(c, p, server, message, slot, now)
        else:
            retry(c, p, slot, message.reason, now)
        slot = following
    message.next = c.free_message
    c.free_message = message.slot
    c.free_messages += 1
