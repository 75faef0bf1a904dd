"""`sim.simulated_device`, compiled: batches that share a device. Float work is done in the reference's order."""

from __future__ import annotations

from math import ceil

from kit.jit import ints, kernel, reals
from sim.compiled.row_access import cost_of, device_at, instance_at, model_of, reschedule, server_at
from sim.compiled.row_layout import NEVER, NONE, Cluster, Device, Parameters, Server
from sim.device_profile import PAUSES_NS
from sim.device_tables import CROWDING_LIMIT_PERMILLE

_PAUSES_NS = PAUSES_NS
_LIMIT = CROWDING_LIMIT_PERMILLE


@kernel
def advance_device(c: Cluster, p: Parameters, device: Device, now: int) -> None:
    """Integrate over the time since the device's last change (`SimulatedDevice.advance`)."""
    elapsed = now - device.updated_ns
    if elapsed == 0:
        return
    if device.is_extrapolated:
        device.extrapolated_ns += elapsed
    worked = elapsed - _cpu_work_ns(device, now)
    device.energy_mw_ns += _drawn_mw_ns(p, device, now)
    device.busy_permille_ns += _kept_busy_permille_ns(p, device, now)
    slot = device.first
    while slot != NONE:
        instance = instance_at(c, p, slot)
        instance.work_ns -= worked / instance.slow_down
        slot = instance.run_next
    device.updated_ns = now


@kernel
def _cpu_work_ns(device: Device, now: int) -> int:
    """Return how long passes were stopped since the last change."""
    return max(0, min(device.cpu_work_until_ns, now) - max(device.paused_from_ns, device.updated_ns))


@kernel
def _drawn_mw_ns(p: Parameters, device: Device, now: int) -> float:
    """Return the energy since the last change."""
    model = model_of(p, device)
    cpu_work_ns, cpu_work_mw = _cpu_work_ns(device, now), max(device.power_mw, model.cpu_work_mw)
    drawn_mw_ns = device.power_mw * (now - device.updated_ns - cpu_work_ns) + cpu_work_mw * cpu_work_ns
    return drawn_mw_ns + model.awake_mw * _awake_ns(p, device, now)


@kernel
def _awake_ns(p: Parameters, device: Device, now: int) -> int:
    """Return how long clocks stayed up without work since the last change."""
    if device.first != NONE or device.passes_ended_ns == 0:
        return 0
    return max(0, min(now, device.passes_ended_ns + model_of(p, device).awake_ns) - device.updated_ns)


@kernel
def _kept_busy_permille_ns(p: Parameters, device: Device, now: int) -> int:
    """Return the integral of utilization since the last change."""
    cpu_work_ns, busy = _cpu_work_ns(device, now), max(device.busy_permille, model_of(p, device).cpu_work_permille)
    return device.busy_permille * (now - device.updated_ns - cpu_work_ns) + busy * cpu_work_ns


@kernel
def energy_mj(p: Parameters, device: Device, now: int) -> float:
    """Return the energy until now."""
    return (device.energy_mw_ns + _drawn_mw_ns(p, device, now)) / 1_000_000_000


@kernel
def busy_ms(p: Parameters, device: Device, now: int) -> float:
    """Return the integral of utilization until now."""
    return (device.busy_permille_ns + _kept_busy_permille_ns(p, device, now)) / 1_000_000_000


@kernel
def stretched_ns(device: Device, work: int) -> int:
    """Compute `SimulatedDevice.stretched_ns`."""
    return ceil(work * device.slowdown)


@kernel
def free_ns(c: Cluster, p: Parameters, device: Device, now: int, limit: int, behind: int) -> int:
    """Return when a core is free (`SimulatedDevice.free_ns`)."""
    if device.is_full == 0 or limit <= now:
        return now
    soonest, slot = NEVER, device.first
    while slot != NONE:
        instance = instance_at(c, p, slot)
        if not instance.is_frozen and instance.end_ns < soonest:
            soonest = instance.end_ns
        slot = instance.run_next
    return now if soonest == NEVER else min(limit, max(now, soonest) + behind)


@kernel
def cpu_work_end_ns(device: Device, now: int) -> int:
    """Compute `SimulatedDevice.cpu_work_end_ns`."""
    return max(now, device.cpu_work_until_ns) if device.paused_from_ns <= now else now


@kernel
def core_free_ns(c: Cluster, p: Parameters, device: Device, now: int) -> int:
    """Compute `SharedDevice.free_ns`."""
    return max(
        device.cpu_work_until_ns, free_ns(c, p, device, now, now + model_of(p, device).slice_ns, device.waiting_ns)
    )


@kernel
def pause_number(pause_ns: int) -> int:
    """Compute `sim.device_profile.pause_number`."""
    number = 0
    while number < len(_PAUSES_NS) and pause_ns >= _PAUSES_NS[number]:
        number += 1
    return number


@kernel
def pause(device: Device, now: int) -> int:
    """Compute `SimulatedDevice.pause`."""
    return 0 if device.count > 0 else pause_number(now - device.passes_ended_ns)


@kernel
def start_running(c: Cluster, p: Parameters, device: Device, slot: int, now: int) -> None:
    """Begin a batch (`SimulatedDevice.start`): last in the order of the device's sums."""
    advance_device(c, p, device, now)
    instance, last = instance_at(c, p, slot), device.last
    instance.run_previous, instance.run_next = last, NONE
    if last == NONE:
        device.first = slot
    else:
        instance_at(c, p, last).run_next = slot
    device.last = slot
    device.count += 1
    device.is_touched = 1


@kernel
def stop_running(c: Cluster, p: Parameters, device: Device, slot: int, now: int) -> None:
    """Remove a batch that has ended, or was killed."""
    advance_device(c, p, device, now)
    instance = instance_at(c, p, slot)
    before, after = instance.run_previous, instance.run_next
    if before == NONE:
        device.first = after
    else:
        instance_at(c, p, before).run_next = after
    if after == NONE:
        device.last = before
    else:
        instance_at(c, p, after).run_previous = before
    device.count -= 1
    device.passes_ended_ns = now
    device.is_touched = 1


@kernel
def count_load(c: Cluster, p: Parameters, server: Server, change: int, now: int) -> None:
    """Count one more, or one fewer, load on a server's device (`SimulatedDevice.begin_load`)."""
    device = device_at(c, p, server.device)
    if model_of(p, device).beside_load > 1.0:
        advance_device(c, p, device, now)
        device.loads += change
        device.is_touched = 1


@kernel
def rerate(c: Cluster, p: Parameters, device: Device, now: int) -> None:
    """Re-rate running batches, once for all changes of an event (`SimulatedDevice._rerate`), and plan the next ends."""
    device.is_touched = 0
    model, first = model_of(p, device), device.first
    is_across = False
    demand = host = busy = 0
    bandwidth = 0.0
    slot = first
    while slot != NONE:
        instance = instance_at(c, p, slot)
        cost = cost_of(p, instance)
        demand += cost.demand_permille
        host += cost.host_permille
        busy += cost.busy_permille
        bandwidth += cost.bandwidth
        is_across = is_across or instance.server != instance_at(c, p, first).server
        slot = instance.run_next
    load: int = max(demand, host)
    device.is_full = 1 if first != NONE and host + model.cpu_work_permille > 1000 else 0
    processes = 1
    if is_across:
        load, processes = _load_across(c, p, device, demand, load)
    device.is_extrapolated = device.count > model.most_at_once or (is_across and processes > model.most_processes)
    crowding = model.crowding_across_at if is_across else model.crowding_at
    common = reals(p)[crowding + min(load, _LIMIT)]
    uncapped_mw = model.idle_mw
    slot = first
    while slot != NONE:
        instance = instance_at(c, p, slot)
        cost = cost_of(p, instance)
        slow = common * (1.0 + model.alpha * (bandwidth - cost.bandwidth)) * instance.factor
        instance.slow_down = slow
        uncapped_mw += cost.power_mw / slow
        slot = instance.run_next
    beside = model.beside_load if device.loads > 0 else 1.0
    phi = min(1.0, max(model.phi_min, 1.0 - model.throttle * (uncapped_mw / model.cap_mw - 1.0)))
    slot = first
    while slot != NONE:
        instance = instance_at(c, p, slot)
        instance.slow_down *= device.slowdown * beside / phi
        instance.end_ns = _end_ns(device, now, max(0, ceil(instance.work_ns * instance.slow_down)))
        slot = instance.run_next
    device.power_mw = min(model.cap_mw, uncapped_mw)
    device.busy_permille = min(1000, busy)
    replan(c, p, device)


@kernel
def _end_ns(device: Device, now: int, takes: int) -> int:
    """Return when a pass of this duration ends: it stops during CPU work."""
    if now >= device.paused_from_ns:
        return max(now, device.cpu_work_until_ns) + takes
    ends = now + takes
    return ends if ends <= device.paused_from_ns else ends + device.cpu_work_until_ns - device.paused_from_ns


@kernel
def _load_across(c: Cluster, p: Parameters, device: Device, demand: int, load: int) -> tuple[int, int]:
    """Return x of a set of several processes, and their number (`sim.device_model.total_load`)."""
    model = model_of(p, device)
    processes = turns = most_host = 0
    for n in range(model.server_count):
        server = ints(p)[model.servers_at + n]
        host = busy = 0
        is_there = False
        slot = device.first
        while slot != NONE:
            instance = instance_at(c, p, slot)
            if instance.server == server:
                is_there = True
                host += cost_of(p, instance).host_permille
                busy += cost_of(p, instance).busy_permille
            slot = instance.run_next
        if is_there:
            processes += 1
            turns += min(1000, busy)
            most_host = max(most_host, host)
    if model.is_hosted:
        return load, processes
    return max(demand, max(most_host, turns)), processes


@kernel
def replan(c: Cluster, p: Parameters, device: Device) -> None:
    """Plan each server's next end of a batch at the present rates."""
    model = model_of(p, device)
    for n in range(model.server_count):
        server = server_at(c, p, ints(p)[model.servers_at + n])
        soonest = NEVER
        if server.failing.head != NONE:
            soonest = instance_at(c, p, server.failing.head).due_ns
        slot = device.first
        while slot != NONE:
            instance = instance_at(c, p, slot)
            if instance.server == server.index and not instance.is_frozen and instance.end_ns < soonest:
                soonest = instance.end_ns
            slot = instance.run_next
        server.times.end = soonest
        reschedule(c, p, server)


@kernel
def do_cpu_work(c: Cluster, p: Parameters, device: Device, work: int, now: int, begins: int) -> int:
    """Do CPU work of a process (`SimulatedDevice.do_cpu_work`); returns when it is done."""
    advance_device(c, p, device, now)
    if device.cpu_work_until_ns > now:
        device.cpu_work_from_ns = device.cpu_work_until_ns
    else:
        device.cpu_work_from_ns, device.paused_from_ns = begins, begins
    device.cpu_work_until_ns = device.cpu_work_from_ns + stretched_ns(device, work)
    rerate(c, p, device, now)
    return device.cpu_work_until_ns


@kernel
def next_end(c: Cluster, p: Parameters, server: Server, now: int) -> int:
    """Return the lowest batch of a server that ends now: the slot of its instance."""
    best = server.failing.head
    slot = best
    while slot != NONE:
        instance = instance_at(c, p, slot)
        if instance.batch < instance_at(c, p, best).batch:
            best = slot
        slot = instance.link
    slot = device_at(c, p, server.device).first
    while slot != NONE:
        instance = instance_at(c, p, slot)
        if instance.server == server.index and not instance.is_frozen and instance.end_ns == now:  # noqa: SIM102
            if best == NONE or instance.batch < instance_at(c, p, best).batch:
                best = slot
        slot = instance.run_next
    return best


@kernel
def freeze(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Freeze a hung server's batches (they still draw power)."""
    device = device_at(c, p, server.device)
    advance_device(c, p, device, now)
    slot = device.first
    while slot != NONE:
        instance = instance_at(c, p, slot)
        if instance.server == server.index:
            instance.is_frozen = 1
        slot = instance.run_next
    replan(c, p, device)


@kernel
def straggle(c: Cluster, p: Parameters, server: Server, factor: float, now: int) -> None:
    """Slow a server's present and future batches down by `factor`."""
    device = device_at(c, p, server.device)
    advance_device(c, p, device, now)
    server.factor = factor
    slot = device.first
    while slot != NONE:
        instance = instance_at(c, p, slot)
        if instance.server == server.index:
            instance.factor = factor
        slot = instance.run_next
    device.is_touched = 1
