"""`sim.faults`, compiled: planned faults are injected, and failed servers come back by their supervision."""

from __future__ import annotations

from kit.jit import Ints, entry, ints, kernel
from policies.faults import Crash, Fault, Hang, Outage, Poison, Slowness, Squeeze
from sim.compiled.codes import DIED, HUNG, NEVER, NONE, OUT
from sim.compiled.greedy import come_up, go_down
from sim.compiled.layout import Cluster, DowntimeRow, Parameters, PlannedFault, Server
from sim.compiled.physics import freeze, straggle
from sim.compiled.router import fail_transfers
from sim.compiled.rows import fault_at, reschedule, server_at

Step = tuple[int, int, int, int, int, float]

ENDS, BEGINS = range(2)  # at one instant ends come first
TAKE_OUT, COME_UP, STRAGGLE, SQUEEZE, CRASH, HANG, NOTICE_HANG = range(7)  # the actions of a step
_FAULT = PlannedFault.size


def steps(fault: Fault) -> list[Step]:
    """Return a fault's steps: (when, server, order, what, argument, factor), as in `FaultDriver.plan`."""
    match fault:
        case Outage(server, start_ns, end_ns):
            out = [(start_ns, server, BEGINS, TAKE_OUT, NEVER if end_ns is None else end_ns, 0.0)]
            return out if end_ns is None else [*out, (end_ns, server, ENDS, COME_UP, 0, 0.0)]
        case Slowness(server, start_ns, end_ns, factor):
            return [(start_ns, server, BEGINS, STRAGGLE, 0, factor), (end_ns, server, ENDS, STRAGGLE, 0, 1.0)]
        case Squeeze(server, start_ns, end_ns, batch):
            return [(start_ns, server, BEGINS, SQUEEZE, batch, 0.0), (end_ns, server, ENDS, SQUEEZE, NONE, 0.0)]
        case Crash(server, at_ns):
            return [(at_ns, server, BEGINS, CRASH, 0, 0.0)]
        case Hang(server, at_ns):
            return [(at_ns, server, BEGINS, HANG, 0, 0.0)]
        case Poison():
            return []


@kernel
def plan_fault(
    c: Cluster, p: Parameters, server: Server, due_ns: int, order: int, what: int, argument: int, factor: float
) -> None:
    """Add one more fault to the list."""
    fault = fault_at(c, p, c.faults)
    fault.due_ns, fault.server, fault.order, fault.number = due_ns, server.index, order, c.fault_number
    fault.what, fault.argument, fault.factor = what, argument, factor
    c.faults += 1
    c.fault_number += 1
    server.times.fault = min(server.times.fault, due_ns)
    reschedule(c, p, server)


@entry
def plan_cluster_fault(
    row: Ints, parameters: Ints, due_ns: int, server: int, order: int, what: int, argument: int, factor: float
) -> None:
    """Add a fault to a cluster's list."""
    c, p = Cluster(row), Parameters(parameters)
    plan_fault(c, p, server_at(c, p, server), due_ns, order, what, argument, factor)


@kernel
def next_fault(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Inject the server's next fault: ends before beginnings, earlier planned ones before later ones."""
    best, soonest = NONE, NEVER
    for n in range(c.faults):
        fault = fault_at(c, p, n)
        if fault.server != server.index or fault.due_ns != now:
            continue
        if best == NONE or _is_before(fault, fault_at(c, p, best)):
            best = n
    fault = fault_at(c, p, best)
    what, argument, factor = fault.what, fault.argument, fault.factor
    c.faults -= 1
    freed, last = ints(fault), ints(fault_at(c, p, c.faults))
    for field in range(_FAULT):
        freed[field] = last[field]
    for n in range(c.faults):
        fault = fault_at(c, p, n)
        if fault.server == server.index:
            soonest = min(soonest, fault.due_ns)
    server.times.fault = soonest
    _happen(c, p, server, what, argument, factor, now)


@kernel
def _is_before(one: PlannedFault, other: PlannedFault) -> bool:
    if one.order != other.order:
        return one.order < other.order
    return one.number < other.number


@kernel
def _happen(c: Cluster, p: Parameters, server: Server, what: int, argument: int, factor: float, now: int) -> None:
    if what == TAKE_OUT:
        _take_out(c, p, server, argument, now)
    elif what == COME_UP:
        return_to_service(c, p, server, now)
    elif what == STRAGGLE:
        straggle(c, p, server, factor, now)
    elif what == SQUEEZE:
        server.room_images = argument
    elif what == CRASH:
        _crash(c, p, server, DIED, now)
    elif what == HANG:
        _hang(c, p, server, now)
    elif server.epoch == argument:
        _crash(c, p, server, HUNG, now)


@kernel
def _hang(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    if server.is_up:
        server.is_hung = 1
        server.times.timer = NEVER
        freeze(c, p, server, now)
        plan_fault(c, p, server, now + p.hang_ns, BEGINS, NOTICE_HANG, server.epoch, 0.0)


@kernel
def return_to_service(c: Cluster, p: Parameters, server: Server, now: int) -> None:
    """Bring a server up unless it is up, in a planned outage, or its new process isn't ready
    (`FaultDriver.come_up`)."""
    if server.is_up or now < max(server.out_until_ns, server.ready_ns):
        return
    if server.downtime != NONE:
        out = DowntimeRow(c.downtimes_at, 0, server.downtime)
        out.up_ns = now
        server.downtime = NONE
    server.up_since_ns = now
    come_up(c, p, server, now)


@kernel
def _take_out(c: Cluster, p: Parameters, server: Server, until: int, now: int) -> None:
    if until == NEVER and server.out_until_ns != NEVER:
        c.gone += 1
    server.out_until_ns = max(server.out_until_ns, until)
    if server.is_up:
        _restart_at(c, p, server, now)
        _kill(c, p, server, OUT, now)


@kernel
def _kill(c: Cluster, p: Parameters, server: Server, reason: int, now: int) -> None:
    server.downtime = c.downtimes
    out = DowntimeRow(c.downtimes_at, 0, c.downtimes)
    out.server, out.down_ns, out.up_ns, out.reason = server.index, now, NONE, reason
    c.downtimes += 1
    go_down(c, p, server, now)
    fail_transfers(c, p, server.index, now)


@kernel
def _crash(c: Cluster, p: Parameters, server: Server, reason: int, now: int) -> None:
    """Fail a server now; it is ready again after its back-off and the time to start a process."""
    if not server.is_up:
        return
    _kill(c, p, server, reason, now)
    ready = _restart_at(c, p, server, now) + p.start_ns
    server.ready_ns = ready
    plan_fault(c, p, server, ready, ENDS, COME_UP, 0, 0.0)


@kernel
def _restart_at(c: Cluster, p: Parameters, server: Server, now: int) -> int:
    """Compute `policies.faults.RestartPlan.restart_at_ns`."""
    if server.up_since_ns != NONE and now - server.up_since_ns >= p.stable_ns:
        server.deaths = 0
    server.up_since_ns = NONE
    doublings = min(server.deaths, 30)
    server.deaths += 1
    if p.backoff_ns > p.backoff_limit_ns >> doublings:  # in this form nothing overflows
        return now + p.backoff_limit_ns
    return now + (p.backoff_ns << doublings)
