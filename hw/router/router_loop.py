"""One run in the router's process: one loop that drives the router's core, with the servers behind their ports.

The loop is single-threaded, as the core is: it waits for the workers' messages, the next arrival and the next timer,
turns each into an event at the real time, and executes the commands. It decides nothing. Arrivals come from a plan, or
from clients (`hw.router.run_requests`).
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from hw.clock import NEVER_NS, Host, RunClock
from hw.router.interventions import Draining, FaultPlan, NewModel, Operator, Order, Rolling
from hw.router.run_meters import CostMeter, LateLedger, Taker, Watcher, cpu_use
from hw.router.run_requests import HardwareRun, PlannedTraffic, ServedNetwork, Traffic, devices_of
from hw.router.server_port import HardwareServer, RemoteServer, RunContext
from hw.router.transfers import Cargo, Transfers
from hw.router.worker_handles import WorkerSlot
from hw.telemetry import BackgroundWatch, usable_cores
from hw.transport.messages import Fenced, Finish, FromWorker, Input, MoveBroken, Moved, Rejected, Release, Returned
from hw.transport.peers import FailureDetector
from hw.transport.shared_memory import Arena, Inbox
from hw.transport.worker_port import FLUSH_NS
from kit.errors import WorkError
from policies.faults import WORKER_DIED, Supervision
from policies.interfaces import (
    AccuracyPrior,
    RewardWeights,
    RouterConfig,
    RoutingPolicy,
    batching_delay_rule_of,
    limit_ns_of,
)
from policies.router_core import RouterCore
from policies.run_ledger import Ledger
from policies.run_records import BackgroundLoad, RunRecord
from policies.vocabulary import (
    CANARY,
    FOLLOW_NS,
    NS_PER_S,
    ArrivalsEnded,
    BatchingDelay,
    BatchingDelayRule,
    Decide,
    Decided,
    Delayed,
    GoalSet,
    MicroBatch,
    OwnLimit,
    ReleaseActivations,
    RequestCompleted,
    RequestFailed,
    RequestsCancelled,
    RouterEvent,
    RouterTimer,
    SendMicroBatch,
)

PRELOAD_TIMEOUT_S: Final = 120.0
FINISH_TIMEOUT_S: Final = 5.0
_PROGRESS_NS: Final = NS_PER_S // 5
SPIN_S: Final = 5e-3
ARRIVALS_NS: Final = NS_PER_S // 1000


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run; `busy_ns`: the CPU time of this process in it, without polling for messages; `queued`: the
    requests in flight that the router has sent to no server."""

    now_ns: int
    horizon_ns: int
    arrived: int
    completed: int
    in_flight: int
    busy_ns: int = 0
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """A cluster whose workers are up; each sequence by server.

    Attributes:
        transfer_ids: over all runs.
        away: servers that were drained before, and have no worker.
        host: the router's.
        background: other processes' use of its devices.
        say: takes a line for people.
    """

    servers: Sequence[HardwareServer]
    slots: Sequence[WorkerSlot]
    arenas: Sequence[Arena]
    served: ServedNetwork
    supervision: Supervision
    transfer_ids: Iterator[int]
    operator: Operator
    away: frozenset[int]
    host: Host
    background: BackgroundWatch
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Routing:
    """The policies that decide in a run, one for the canary's requests, and the standard for judging decisions."""

    policy: RoutingPolicy
    rng: np.random.Generator
    weights: RewardWeights
    prior: AccuracyPrior
    canary: RoutingPolicy | None = None


def own_cores(servers: Sequence[HardwareServer]) -> tuple[int, ...]:
    """Return this machine's cores that no worker is pinned to: the router's; none if some worker may run anywhere."""
    servers = [server for server in servers if not server.machine]
    worker_cores = {core for server in servers for core in server.device.cores}
    if any(not server.device.cores for server in servers):
        return ()
    return tuple(core for core in usable_cores() if core not in worker_cores)


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Pin this process to these cores meanwhile (if there are any, and the system can); workers pin themselves."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Suspend cyclic garbage collection: over a heap with torch in it one stops the router for up to 0.25 s."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class RouterLoop:
    """The loop, and its state.

    Args:
        ledger: receives every step; `carry_out` needs one that keeps records.
        traffic: makes the source of requests; the run's plan by default.
    """

    def __init__(
        self,
        cluster: Parts,
        run: HardwareRun,
        router: RouterConfig,
        routing: Routing,
        ledger: Watcher,
        on_progress: Callable[[RunProgress], None] | None = None,
        traffic: Callable[[HardwareRun, RouterCore, RunClock], Traffic] = PlannedTraffic,
    ) -> None:
        self._spec = run
        self._host = cluster.host
        self._router = RouterCore(router)
        self._ledger = LateLedger(ledger)
        self._routing = routing
        self._background = cluster.background
        self._on_progress = on_progress
        self._clock = RunClock(cluster.host.clock_ns)
        self._events: deque[RouterEvent] = deque()
        self._traffic = traffic(run, self._router, self._clock)
        self._core_ns = 0  # the latest time that the core has received
        self._goals = deque(run.goals)
        self._sent_limit_ns = FOLLOW_NS
        self._batching_delays = router.max_batching_delay_ns > 0
        self._busy_ns = self._idle_ns = 0
        self._busy_from_ns = 0
        self._next_look_ns = 0
        self._next_progress_ns = 0
        self._due_ns = 0
        self._detector = FailureDetector(cluster.supervision, 0)  # over this process itself
        self._devices = devices_of(cluster.servers)
        self._period_ns = min(device.period_ns for device in self._devices)
        self._next_tick_ns = self._period_ns
        self._device_of = {index: device for device in self._devices for index in device.servers}
        self._up: dict[int, int] = {}
        self._deaths: list[int] = []
        self._servers = self._remote_servers(cluster)
        self._away = cluster.away
        self._draining = Draining(
            cluster.operator.drained, self._servers, self._router, self._tell_router, self._clock.now_ns, cluster.say
        )
        self._rolling = Rolling(self._servers, cluster.host, cluster.say)
        self._has_unsent = False
        self._meter = CostMeter() if run.measures_costs else None
        self._sent_images = 0
        # the incarnations of the servers that were up when readers were named
        self._reader_incarnations: dict[int, int] = {}
        self._transfers = Transfers(
            self._servers, Cargo(self._traffic.images, cluster.served.shape_after, run.links), self._clock.now_ns,
            self._events.append, self._hand_over, cluster.supervision.stuck_ns, cluster.transfer_ids,
        )  # fmt: skip
        self._of_command: dict[type, Callable[[Any], None]] = {
            Decide: self._choose,
            SendMicroBatch: self._send,
            ReleaseActivations: self._release,
            RequestCompleted: self._traffic.end,
            RequestFailed: self._traffic.end,
        }
        self._faults = FaultPlan(run.faults, self._servers, self._take_down)
        self._orders = cluster.operator.orders

    def _remote_servers(self, cluster: Parts) -> list[RemoteServer]:
        context = RunContext(
            self._clock,
            self._ledger,
            cluster.supervision,
            self._traffic.judge,
            cluster.served.segments,
            self._events.append,
            cluster.say,
            self._spec.keep_log,
            self._spec.measures_costs,
            isinstance(self._ledger.ledger, Ledger),
            self._up,
            self._deaths,
        )
        parts = zip(cluster.servers, cluster.slots, cluster.arenas, strict=True)
        return [
            RemoteServer(index, spec, slot, Inbox(arena), context) for index, (spec, slot, arena) in enumerate(parts)
        ]

    def carry_out(self) -> RunRecord:
        """Execute a run from the preloads to the record."""
        return self._record(*self.drive())

    def drive(self) -> tuple[int, BackgroundLoad | None]:
        """Execute a run from the preloads to its end; return its end time, and other processes' use of the devices."""
        self._preload()
        self._background.start()
        self._clock.start(self._host.clock_ns())
        for server in self._servers:
            server.start_clock()
        self._busy_from_ns = self._host.cpu_ns() - self._idle_ns
        rule = batching_delay_rule_of(self._routing.policy)
        if self._batching_delays and rule is not None:
            self._hand_to_core(rule, 0)  # before any arrival
        self._draining.look()
        while not self._is_over(now_ns := self._clock.now_ns()):
            self._turn(now_ns)
        self._busy_ns = self._busy_so_far_ns()
        self._rolling.give_up("the end has come")
        ended_ns = self._clock.now_ns()
        self._arrive(ended_ns)
        self._finish()
        self._ledger.catch_up()
        background = self._background.take()
        for server in self._servers:
            server.tell_absence()
        for device in self._devices:
            device.close(ended_ns)
        return ended_ns, background

    def _busy_so_far_ns(self) -> int:
        """Return the CPU time since the run's start, without polling for messages."""
        return self._host.cpu_ns() - self._idle_ns - self._busy_from_ns

    # -------------------------------------------------------------------------------------------------------- the loop

    def _preload(self) -> None:
        """Bring the servers up and wait for their preloads; the run's clock is 0 meanwhile."""
        for server in self._servers:
            if server.index in self._away:
                server.begin_away()
            else:
                server.come_up()
        self._settle_readers()
        self._settle()
        self._flush()
        while any(server.is_preloading for server in self._servers):
            if not self._listen(PRELOAD_TIMEOUT_S):
                raise WorkError(f"a preload took more than {PRELOAD_TIMEOUT_S:g} s")

    def _finish(self) -> None:
        """Ask every worker for its account of the run; one that does not answer soon is left with its last report."""
        for server in self._servers:
            if server.is_up:
                server.send(Finish(0))
        until_ns = self._clock.now_ns() + round(FINISH_TIMEOUT_S * NS_PER_S)
        while not all(server.is_finished or server.died for server in self._servers):
            self._flush()
            left_ns = until_ns - self._clock.now_ns()
            if left_ns <= 0:
                break
            for server in self._ready(left_ns / NS_PER_S):
                for message in server.receive():
                    server.hear_late(message)
                self._hear_samples(server)
        for server in self._servers:
            server.end_life()

    def _turn(self, now_ns: int) -> None:
        """Do everything that is due now, then wait for the next event."""
        self._arrive(now_ns)
        if not self._rolling.holds and (cancelled := self._traffic.take_cancelled()):
            self._tell_router(RequestsCancelled(cancelled), now_ns)
        if now_ns >= self._due_ns:
            self._ring(now_ns)
            now_ns = self._clock.now_ns()  # events for the core came later
        if (limit_ns := limit_ns_of(self._routing.policy)) != self._sent_limit_ns:
            self._sent_limit_ns = limit_ns
            self._tell_router(OwnLimit(limit_ns), now_ns)
        if self._batching_delays and self._spec.end == "drain" and now_ns >= self._traffic.horizon_ns:
            self._batching_delays = False
            self._tell_router(ArrivalsEnded(), now_ns)
        if (due_ns := self._transfers.next_ns) is not None and due_ns <= now_ns:
            self._transfers.ring(now_ns)
        if len(self._up) < len(self._servers):
            for server in self._servers:
                if not server.is_up:
                    server.end_outage_if_due()
                    server.restart_if_due()
        self._settle()
        if self._rolling.holds and not self._router.in_flight:
            self._switch()
        if self._up != self._reader_incarnations:
            self._settle_readers()
        self._decide()
        self._ledger.catch_up()
        if self._meter is not None:
            self._meter.end_turn()
        now_ns = self._clock.now_ns()
        if not self._is_over(now_ns):
            self._listen(self._wait_s(now_ns))

    def _ring(self, now_ns: int) -> None:
        """Do what is due by the clock alone."""
        while self._goals and self._goals[0][0] <= now_ns:
            self._tell_router(self._goals.popleft()[1], now_ns)
        if self._faults.next_ns <= now_ns:
            self._faults.ring(now_ns)
        if now_ns >= self._next_tick_ns:
            self._tick(now_ns)
        if now_ns >= self._next_look_ns:
            self._look_after(now_ns)
        goal_ns = self._goals[0][0] if self._goals else NEVER_NS
        self._due_ns = min(goal_ns, self._faults.next_ns, self._next_tick_ns, self._next_look_ns)

    def _decide(self) -> None:
        """Make one decision after the other, each sent at once: workers work meanwhile."""
        router, meter = self._router, self._meter
        is_sent = False
        while (wake_ns := router.next_wake_ns) is not None and wake_ns <= (now_ns := self._clock.now_ns()):
            self._arrive(now_ns)
            if meter is not None:
                meter.begin_decision()
            self._sent_images = 0
            self._tell_router(RouterTimer(), now_ns)
            self._settle()
            self._flush()
            is_sent = True
            if meter is not None:
                meter.decided(self._sent_images)
        if not is_sent:
            self._flush()

    def _wait_s(self, now_ns: int) -> float:
        until_ns = min(self._due_ns, self._limit_ns(now_ns), self._arrival_due_ns())
        for wake_ns in (self._router.next_wake_ns, self._transfers.next_ns):
            if wake_ns is not None and wake_ns < until_ns:
                until_ns = wake_ns
        if len(self._up) < len(self._servers):
            for server in self._servers:
                if (wake_ns := server.next_ns) is not None:
                    until_ns = min(until_ns, wake_ns)
        if self._has_unsent:
            until_ns = min(until_ns, now_ns + FLUSH_NS)
        return max(0, until_ns - now_ns) / NS_PER_S

    def _arrival_due_ns(self) -> int:
        """Return when to process the next arrival: somewhat later than it is due if others wait and no server can take
        a micro-batch. It would have no effect, and under overload a turn for each would cost more than all
        decisions."""
        if self._rolling.holds:
            return NEVER_NS
        is_idle = self._router.next_wake_ns is None and self._router.fifo_length > 0
        return self._traffic.next_ns + (ARRIVALS_NS if is_idle else 0)

    def _limit_ns(self, now_ns: int) -> int:
        """Return when the run ends, if nothing ends it before; the horizon first, then the drain's limit."""
        horizon_ns = self._traffic.horizon_ns
        if self._spec.end == "cut" or now_ns < horizon_ns:
            return horizon_ns
        return horizon_ns + self._spec.drain_limit_ns

    def _is_over(self, now_ns: int) -> bool:
        if now_ns < self._traffic.horizon_ns:
            return False  # arrivals continue, whichever servers are up
        if not any(server.is_up or server.will_return for server in self._servers):
            return True
        drained = self._traffic.has_ended and not self._router.in_flight
        return self._spec.end == "cut" or drained or now_ns >= self._limit_ns(now_ns)

    def _listen(self, wait_s: float) -> bool:
        """Wait for messages and process them; return False if none came in time."""
        if self._meter is not None:
            return self._listen_measured(wait_s, self._meter)
        ready = self._await(wait_s)
        for server in ready:
            for message in server.receive():
                self._hear(server, message)
            if server.samples:
                self._hear_samples(server)
            self._settle()
        return bool(ready)

    def _listen_measured(self, wait_s: float, meter: CostMeter) -> bool:
        looked_ns, began_ns = self._idle_ns, self._clock.now_ns()
        ready = self._ready(0)
        is_late = bool(ready)
        if not is_late:
            ready = self._await(wait_s)
        heard_ns = self._clock.now_ns()
        meter.waited(self._idle_ns - looked_ns, 0 if is_late else heard_ns - began_ns)
        for server in ready:
            messages = server.receive()
            returned = [message for message in messages if isinstance(message, Returned)]
            if not is_late and len(ready) == len(messages) == len(returned) == 1:
                batch = returned[0].own_batch
                if batch is not None:
                    meter.came_back(server.index, batch.ended_ns, heard_ns)
            for message in messages:
                self._hear(server, message)
            self._hear_samples(server)
            meter.decoded()
            self._settle()
            for message in returned:
                for batch in message.batches:
                    for micro_batch, arrived_ns in batch.arrivals:
                        meter.arrived(server.index, micro_batch, arrived_ns)
            meter.heard(len(returned), sum(len(message.requests) for message in returned))
        return bool(ready)

    def _ready(self, wait_s: float) -> list[RemoteServer]:
        ports = {server.port_number: server for server in self._servers if server.has_worker and not server.died}
        readable = self._host.wait([*ports, *self._traffic.descriptors], wait_s)
        if any(number in self._traffic.descriptors for number in readable):
            self._traffic.hear()
        return [ports[number] for number in readable if number in ports]

    def _await(self, wait_s: float) -> list[RemoteServer]:
        """Return the servers that have messages.

        A core that sleeps takes longer to wake up than a message to travel. So if the router has a core to itself, it
        polls for a while when a micro-batch is in flight; that time does not count as work.
        """
        if not self._host.cores or not any(server.in_flight for server in self._servers):
            return self._ready(wait_s)
        began_ns, until_ns = self._host.cpu_ns(), self._clock.now_ns() + round(min(wait_s, SPIN_S) * NS_PER_S)
        while not (ready := self._ready(0)) and self._clock.now_ns() < until_ns:
            pass
        self._idle_ns += self._host.cpu_ns() - began_ns
        return ready or self._ready(max(0.0, wait_s - SPIN_S))

    def _flush(self) -> None:
        """Send the workers' messages; those that a full port does not take stay for later."""
        self._has_unsent = not self._traffic.flush()
        for server in self._servers:
            if server.has_posted and not server.flush():
                self._has_unsent = True

    def _hear(self, server: RemoteServer, message: FromWorker) -> None:
        server.hear(message)
        match message:
            case Returned() | Rejected() | Fenced():
                self._transfers.freed(server.index)
            case Moved():
                self._transfers.moved(message)
            case MoveBroken(transfer, reason):
                self._transfers.broken(transfer, reason)

    def _hear_samples(self, server: RemoteServer) -> None:
        """Process a reader's samples of its device, and pass them to the others that share it."""
        device = self._device_of[server.index]
        for sample in server.samples:
            device.heard(sample)
            for index in device.servers:
                if index != server.index and self._servers[index].is_up:
                    self._servers[index].relay(sample)
        server.samples.clear()

    def _settle(self) -> None:
        """Process events until none waits for the router and no death is unnoticed."""
        while self._deaths or self._events:
            if self._deaths:
                self._deaths.clear()
                for server in self._servers:
                    if server.died:
                        self._take_down(server, WORKER_DIED)
            else:
                self._tell_router(self._events.popleft(), self._clock.now_ns())

    # ---------------------------------------------------------------------------------------------- up and down

    def _look_after(self, now_ns: int) -> None:
        """Ping workers, detect hung ones (unless this process itself was away), and poll the operator."""
        was_away = self._detector.was_away(self._next_look_ns, now_ns)
        self._next_look_ns = now_ns + self._detector.period_ns
        if was_away:
            self._listen(0.0)  # messages that arrived meanwhile
        for server in self._servers:
            if was_away:
                server.excuse()
            reason = server.look_after()
            if reason is not None:
                self._take_down(server, reason)
        self._draining.look()
        self._rolling.look()
        for order in self._orders():
            self._obey(order)

    def _obey(self, order: Order) -> None:
        if isinstance(order, NewModel):
            self._rolling.begin(order)
            return
        if isinstance(order, GoalSet):
            self._tell_router(order, self._clock.now_ns())
            return
        self._routing = replace(self._routing, policy=order)
        if self._batching_delays:
            segments = self._router.config.segments
            rule = batching_delay_rule_of(order) or BatchingDelayRule((1,) * segments, (0,) * segments)
            self._tell_router(rule, self._clock.now_ns())

    def _switch(self) -> None:
        """Switch to another model, on all servers or some, for requests that begin from now on; nothing is in
        flight."""
        for server in self._rolling.replaced:
            server.retire()
            self._transfers.bury(server.index)
        self._settle()
        order = self._rolling.switch()
        self._settle()
        self._tell_router(order.changed, self._clock.now_ns())
        self._routing = replace(self._routing, canary=order.canary)
        if order.policy is not None:
            self._obey(order.policy)
        order.took_over()

    def _take_down(self, server: RemoteServer, reason: str) -> None:
        """Take down a server that dies, or is found dead: end its worker, and drop all transfers to or from it."""
        server.is_away = self._draining.may_go(server.index)
        server.go_down(reason)
        self._transfers.bury(server.index)

    def _settle_readers(self) -> None:
        """Give each device one reader, after a server came up or went down."""
        changed = {index for index, _ in self._up.items() ^ self._reader_incarnations.items()}
        self._reader_incarnations = dict(self._up)
        for device in self._devices:
            if changed.intersection(device.servers):  # other devices keep their readers
                device.settle(self._servers, self._clock.now_ns())

    # ------------------------------------------------------------------------------------------------------ the router

    def _arrive(self, now_ns: int) -> None:
        """Take requests that were due until now, each at its own time, but in order."""
        traffic = self._traffic
        if traffic.next_ns > now_ns or self._rolling.holds:
            return
        noticed_ns = self._clock.now_ns()
        while traffic.next_ns <= now_ns:
            event, came_ns = traffic.take(noticed_ns)
            self._hand_to_core(event, max(came_ns, self._core_ns))

    def _tell_router(self, event: RouterEvent, now_ns: int) -> None:
        """Pass an event to the router, after earlier ones that are due; none is due while the clock is stopped."""
        if self._traffic.next_ns <= now_ns and self._clock.runs:
            self._arrive(now_ns)
        self._hand_to_core(event, now_ns)

    def _hand_to_core(self, event: RouterEvent, now_ns: int) -> None:
        assert now_ns >= self._core_ns, "the core's time goes back"
        self._core_ns = now_ns
        commands = self._router.handle(event, now_ns)
        self._ledger.observe_router(event, commands, now_ns)
        for command in commands:
            if (carry_out := self._of_command.get(type(command))) is not None:  # the ledger has recorded ended requests
                carry_out(command)

    def _choose(self, request: Decide) -> None:
        routing = self._routing
        policy = routing.canary if request.view.head.version == CANARY and routing.canary else routing.policy
        choice = policy.choose(request.view, routing.rng)
        if isinstance(choice, BatchingDelay):
            self._events.append(Delayed(request.decision, choice))
        else:
            self._events.append(Decided(request.decision, choice))
        if self._meter is not None:
            self._meter.made()

    def _send(self, command: SendMicroBatch) -> None:
        self._sent_images = len(command.micro_batch.requests)
        self._transfers.send(command)

    def _release(self, command: ReleaseActivations) -> None:
        server = self._servers[command.server]
        if server.is_up:
            server.send(Release(command.requests))
            server.inbox.forget(command.requests)
            self._transfers.freed(command.server)

    def _hand_over(self, micro_batch: MicroBatch, inputs: tuple[Input, ...]) -> None:
        server = self._servers[micro_batch.server]
        if not server.is_up:
            return
        if self._meter is not None:
            self._meter.handed(micro_batch.micro_batch, self._clock.now_ns())
        server.deliver(micro_batch, inputs)

    # ------------------------------------------------------------------------------------------- telemetry and record

    def _tick(self, now_ns: int) -> None:
        """Sample other processes' use, and report progress; ticks that were missed are not made up for."""
        self._background.look(now_ns)
        self._next_tick_ns += self._period_ns * (1 + (now_ns - self._next_tick_ns) // self._period_ns)
        if self._on_progress is not None and now_ns >= self._next_progress_ns:
            self._next_progress_ns = now_ns + _PROGRESS_NS
            self._on_progress(self.progress(now_ns))

    def progress(self, now_ns: int) -> RunProgress:
        """Return the progress."""
        router, horizon_ns = self._router, self._traffic.horizon_ns
        counts = (router.arrived, router.completed, router.in_flight)
        return RunProgress(now_ns, horizon_ns, *counts, self._busy_so_far_ns(), router.fifo_length)

    def _record(self, ended_ns: int, background: BackgroundLoad | None) -> RunRecord:
        ledger, traffic = self._ledger.ledger, self._traffic
        assert isinstance(ledger, Ledger), "it keeps records"
        assert isinstance(traffic, PlannedTraffic), "of a plan"
        ledger.close(ended_ns)
        owner_of = {
            index: (number, device.busy_s) for number, device in enumerate(self._devices) for index in device.servers
        }
        downs = [down for server in self._servers for down in server.downtimes]
        return RunRecord(
            ended_ns=ended_ns,
            requests=tuple(ledger.requests),
            micro_batches=tuple(ledger.micro_batches),
            batches=tuple(ledger.batches),
            telemetry=tuple(ledger.telemetry),
            servers=tuple(server.totals(*owner_of[server.index]) for server in self._servers),
            devices=tuple(device.totals() for device in self._devices),
            gpu_var=tuple(ledger.gpu_var),
            decisions=ledger.decisions,
            log=tuple(ledger.log),
            worker_logs=tuple(log for server in self._servers for log in server.worker_logs()),
            arrival_lags_ns=tuple(traffic.lags_ns),
            router_busy_ns=self._busy_ns,
            workers_busy_ns=tuple(server.worker_cpu_ns for server in self._servers),
            downtimes=tuple(sorted([*self._draining.times, *downs], key=lambda down: down.down_ns)),
            references=tuple((server.index, *reading) for server in self._servers for reading in server.references),
            background_load=background,
            cpu=cpu_use(
                Taker(self._busy_ns, frozenset(self._host.cores)),
                [(server.spec.device, server.worker_cpu_ns) for server in self._servers if not server.spec.machine],
                usable_cores(),
                ended_ns,
            ),
            router_costs=tuple(self._meter.costs) if self._meter is not None else (),
            handovers=tuple(self._meter.handovers) if self._meter is not None else (),
            cpu_work=tuple(cost for server in self._servers for cost in server.cpu_work),
            clocks=tuple(clock for server in self._servers if (clock := server.clock) is not None),
        )
