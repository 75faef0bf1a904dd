"""The simulated cluster: a SimPy model that drives the router's core and every server's scheduler, and draws
predictions.

Predictions (`Correctness`): whether an image's is right after its last segment is replayed from a recorded matrix, or
drawn from an accuracy table.

`Simulation` runs to the next decision and stops there, so that a rule, a learner or a person may decide. It is
deterministic: the same specs, seed and choices give the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from kit.random_streams import derived_seed, hashed_share
from policies.faults import Fault, Supervision
from policies.interfaces import (
    AccuracyPrior,
    RewardTerms,
    RewardWeights,
    RouterConfig,
    RoutingPolicy,
    batching_delay_rule_of,
    limit_ns_of,
)
from policies.router_core import RouterCore
from policies.run_ledger import Ledger
from policies.run_records import DeviceTotals, RunColumns, RunRecord, ServerTotals
from policies.vocabulary import (
    FOLLOW_NS,
    NS_PER_S,
    ROUTER,
    ArrivalsEnded,
    BatchingDelay,
    BatchingDelayRule,
    Choice,
    Decide,
    Decided,
    Delayed,
    GoalSet,
    OwnLimit,
    RequestArrived,
    RouterEvent,
    RouterTimer,
    SendMicroBatch,
    TransferFailed,
    TransferFinished,
    TransferStarted,
)
from sim.device_tables import DeviceTables, input_bytes
from sim.event_queue import ARRIVAL, HOST, EventQueue, Kind, Process, rank
from sim.fault_injection import FaultDriver, poisoned_requests
from sim.host_and_network import LINKS, HostTable, Interconnect, SimulatedHost
from sim.simulated_device import SimulatedDevice
from sim.simulated_server import Outcomes, RouterMessage, RouterPort, ServerSpec, SharedDevice, SimulatedServer

# ---------------------------------------------------------------------------------------------------------- predictions


class Correctness(Protocol):
    """The source of whether a request's prediction is right."""

    def is_correct(self, request: int, widths: tuple[float, ...]) -> bool:
        """Return it for the request's complete width tuple; the same answer each time."""
        ...


class MatrixCorrectness:
    """A replay of the evaluated network's results on test images (so correlations between widths are real).

    Args:
        tuples: T width tuples.
        correct: (images, T) bool.
        images: for each request, its test image.
    """

    def __init__(
        self, tuples: Sequence[tuple[float, ...]], correct: NDArray[np.bool_], images: NDArray[np.int64]
    ) -> None:
        self.column = {widths: column for column, widths in enumerate(tuples)}
        self.correct = correct
        self.images = images

    def is_correct(self, request: int, widths: tuple[float, ...]) -> bool:
        """Look it up; KeyError for a tuple that was not evaluated."""
        return bool(self.correct[self.images[request], self.column[widths]])


class BernoulliCorrectness:
    """A draw with the tuple's accuracy, by a hash of the request: stateless, with the same draw for wider tuples."""

    def __init__(self, prior: AccuracyPrior, salt: int) -> None:
        self.prior = prior
        self.salt = salt

    def is_correct(self, request: int, widths: tuple[float, ...]) -> bool:
        """Draw once for each request; a wider tuple is right whenever a narrower, less accurate one is."""
        return hashed_share(self.salt, request, 0) < self.prior(widths)


# ----------------------------------------------------------------------------------------- the cluster and the workload


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The cluster to simulate.

    Attributes:
        decision_ns: the policy's time for a routing decision.
        host: the additional costs of decisions and messages on the router's host; None for no cost.
        supervision: how a hung server is detected, and when a failed one is restarted.
    """

    devices: tuple[DeviceTables, ...]
    servers: tuple[ServerSpec, ...]
    router: RouterConfig
    decision_ns: int
    weights: RewardWeights
    prior: AccuracyPrior
    supervision: Supervision = field(default_factory=Supervision)
    host: HostTable | None = None

    @property
    def micro_batch_ns(self) -> int:
        """The host's time for a micro-batch, decided and returned, beyond its images."""
        return self.decision_ns + (0 if self.host is None else self.host.decision[0] + self.host.returned[0])


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The workload of a run.

    Attributes:
        arrivals_ns: ascending; request i arrives at arrivals_ns[i].
        horizon_ns: arrivals end here; so does the run under `end: cut`.
        end: `drain` continues until nothing is in flight, `drain_limit_ns` at most; not if no server ever comes back.
        deadlines_ns: relative to arrival, for every request of each class; None for no deadline.
        classes: (n,) the class of each request; None if all are of one.
        seed: seed of the jitter, the devices' slowdown and lost packets.
        slowdowns: for some devices, the real course of their speed: (when, the factor on all times from then on),
            ascending; for the others it is drawn if their profiles have one.
        goals: the operator's goals by time, ascending, none after the horizon.
        detail, keep_log: see `policies.run_ledger.Ledger`.
    """

    arrivals_ns: NDArray[np.int64]
    horizon_ns: int
    correctness: Correctness
    end: Literal["drain", "cut"] = "drain"
    drain_limit_ns: int = 60_000_000_000
    deadlines_ns: tuple[int | None, ...] = (None,)
    classes: NDArray[np.int64] | None = None
    faults: tuple[Fault, ...] = ()
    slowdowns: Mapping[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    goals: tuple[tuple[int, GoalSet], ...] = ()
    seed: int = 0
    detail: bool = True
    keep_log: bool = False

    @property
    def class_of(self) -> NDArray[np.int64]:
        """(n,) the class of each request."""
        return np.zeros(len(self.arrivals_ns), np.int64) if self.classes is None else self.classes


# ------------------------------------------------------------------------------------------------------- the simulation


class _Delivery(msgspec.Struct):
    """A micro-batch in transfer: the transfers in progress, by their sources."""

    command: SendMicroBatch
    moving: set[int]


class Simulation:
    """One run. Call `advance` to reach a decision, `decide` to answer it, and so on; `record` when it has ended."""

    def __init__(self, cluster: ClusterSpec, run: RunSpec) -> None:
        self.cluster = cluster
        self.spec = run
        self.router = RouterCore(cluster.router)
        self._event_queue = EventQueue()
        self._ledger = Ledger(
            len(cluster.servers),
            cluster.router.segments,
            cluster.weights,
            cluster.prior,
            detail=run.detail,
            keep_log=run.keep_log,
        )
        attachments = tuple(server.attachment for server in cluster.servers)
        self._network = Interconnect(attachments, derived_seed(run.seed, LINKS))
        self._devices = [SharedDevice(SimulatedDevice(tables), self._event_queue) for tables in cluster.devices]
        self._deliveries: dict[int, _Delivery] = {}
        self._pending: Decide | None = None
        self._arrived = 0
        self._limit = OwnLimit(FOLLOW_NS)
        self._ended_ns: int | None = None
        self._wake_ns: int | None = None  # the last planned instant of the router's timer
        cores = [] if cluster.host is None else [self._devices[index] for index in cluster.host.devices]
        self._host = SimulatedHost(cluster.host, run.seed, cores)
        outcomes = Outcomes(self._labels, run.seed, poisoned_requests(run.faults))
        router = RouterPort(self._tell_router, self._hear)
        self.servers = tuple(
            SimulatedServer(index, spec, self._devices[spec.device], self._event_queue, self._ledger, outcomes, router)
            for index, spec in enumerate(cluster.servers)
        )
        self._faults = FaultDriver(self.servers, self._event_queue, cluster.supervision, self._fail_transfers)
        self._set_off()

    def _set_off(self) -> None:
        for server in self.servers:
            self._faults.come_up(server.index)
            self._event_queue.process(self._telemetry(server))
        for index, device in enumerate(self._devices):
            followed = self.spec.slowdowns.get(index)
            salt = derived_seed(self.spec.seed, f"pace:{index}")
            slowdown = device.sampled_slowdown(salt) if followed is None else device.followed_slowdown(followed)
            self._event_queue.process(slowdown)
        for fault in self.spec.faults:
            self._faults.plan(fault)
        for at_ns, goal in self.spec.goals:
            self._event_queue.at(at_ns, HOST, self._tell_router, goal)
        if self.cluster.router.max_batching_delay_ns and self.spec.end == "drain":
            self._event_queue.at(self.spec.horizon_ns, HOST, self._tell_router, ArrivalsEnded())
        self._event_queue.process(self._arrivals())

    # ------------------------------------------------------------------------------------------------ the caller's

    @property
    def now_ns(self) -> int:
        """The present time."""
        return self._event_queue.now_ns

    @property
    def pending(self) -> Decide | None:
        """The pending decision."""
        return self._pending

    def advance(self) -> Decide | None:
        """Run to the next decision; return None when the run has ended."""
        event_queue, horizon_ns = self._event_queue, self.spec.horizon_ns
        while self._pending is None and self._ended_ns is None:
            wake_ns = self.router.next_wake_ns
            is_due = wake_ns is not None and max(wake_ns, self._host.free_ns) <= event_queue.now_ns
            if event_queue.is_instant_over and is_due:
                self._tell_router(RouterTimer())
            elif event_queue.next_ns > horizon_ns and self._is_over():
                self._ended_ns = self._end_ns()
            else:
                event_queue.step()
        return self._pending

    def decide(self, choice: Choice | BatchingDelay) -> None:
        """Answer the pending decision; it takes effect when policy and host have finished it."""
        assert self._pending is not None, "no decision is pending"
        request, self._pending = self._pending, None
        number = request.decision
        decision_ns = self.cluster.decision_ns
        now_ns = self.now_ns
        if isinstance(choice, BatchingDelay):
            sent_ns = self._host.decide(0, number, 0, decision_ns, now_ns)
            self._event_queue.at(sent_ns, HOST, self._tell_router, Delayed(number, choice))
        else:
            images = min(choice.micro_batch_size, request.view.candidates)
            sent_ns = self._host.decide(choice.server, number, images, decision_ns, now_ns)
            self._event_queue.at(sent_ns, HOST, self._tell_router, Decided(number, choice))
        if self._host.free_ns > sent_ns:
            self._event_queue.at(self._host.free_ns, HOST, self._pass)  # the next decision may begin

    def set_batching_delay_rule(self, rule: BatchingDelayRule) -> None:
        """Set the router's batching delay rule, if batching delays are allowed; before the first decision."""
        if self.cluster.router.max_batching_delay_ns:
            self._tell_router(rule)

    def set_limit(self, limit: OwnLimit) -> None:
        """Set the router's separate limit of p99 latency, if it has one, by which images are late from now on."""
        if limit != self._limit:
            self._limit = limit
            self._tell_router(limit)

    def run(self, policy: RoutingPolicy, rng: np.random.Generator) -> RunRecord:
        """Let a policy make every decision; returns the record."""
        self.finish(policy, rng)
        return self.record()

    def finish(self, policy: RoutingPolicy, rng: np.random.Generator) -> None:
        """Let a policy make every decision, without a record."""
        rule = batching_delay_rule_of(policy)
        if rule is not None:
            self.set_batching_delay_rule(rule)
        self.set_limit(OwnLimit(limit_ns_of(policy)))
        while (request := self.advance()) is not None:
            self.decide(policy.choose(request.view, rng))
            self.set_limit(OwnLimit(limit_ns_of(policy)))

    def take_credits(self) -> list[tuple[int, RewardTerms]]:
        """Return (decision, reward) of the micro-batches that have ended since the last call."""
        return self._ledger.take_credits()

    def record(self) -> RunRecord:
        """Return the run's records; it must have ended."""
        assert self._ended_ns is not None, "the run has not ended"
        ended_ns, ledger = self._ended_ns, self._ledger
        ledger.close(ended_ns)
        return RunRecord(
            ended_ns=ended_ns,
            requests=tuple(ledger.requests),
            micro_batches=tuple(ledger.micro_batches),
            batches=tuple(ledger.batches),
            telemetry=tuple(ledger.telemetry),
            servers=tuple(self._server_totals(server, ended_ns) for server in self.servers),
            devices=tuple(_device_totals(device.device_model, ended_ns) for device in self._devices),
            gpu_var=tuple(ledger.gpu_var),
            decisions=ledger.decisions,
            log=tuple(ledger.log),
            downtimes=self._faults.downtimes,
        )

    def columns(self) -> RunColumns:
        """Return the data for the run's figures; it must have ended."""
        return RunColumns.of(self.record())

    def _server_totals(self, server: SimulatedServer, ended_ns: int) -> ServerTotals:
        counts = self._ledger.counts(server.index)
        return ServerTotals(
            name=server.spec.name,
            device=server.spec.device,
            busy_s=self._devices[server.spec.device].device_model.busy_ms(ended_ns) / 1000,
            images=counts.images,
            batches=counts.batches,
            loads=counts.loads,
            unloads=counts.unloads,
            vram_peak_bytes=server.scheduler.memory.peak_bytes,
        )

    # ------------------------------------------------------------------------------------------------ the run's end

    def _is_over(self) -> bool:
        """Return whether the run ends before the next event, which is beyond the horizon."""
        if self.spec.end == "cut":
            return True
        drained = self._arrived == len(self.spec.arrivals_ns) and self.router.in_flight == 0
        limit_ns = self.spec.horizon_ns + self.spec.drain_limit_ns
        return drained or self._faults.is_all_gone or self._event_queue.next_ns > limit_ns

    def _end_ns(self) -> int:
        """Return the end under `drain`: the horizon or the last completion (or failure), whichever is later."""
        if self.spec.end == "cut":
            return self.spec.horizon_ns
        if self.router.in_flight == 0 or self._faults.is_all_gone:
            return max(self.spec.horizon_ns, self.now_ns)
        return self.spec.horizon_ns + self.spec.drain_limit_ns

    # ---------------------------------------------------------------------------------------------------- the router

    def _tell_router(self, event: RouterEvent) -> None:
        router, now_ns = self.router, self._event_queue.now_ns
        commands = router.handle(event, now_ns)
        self._ledger.observe_router(event, commands, now_ns)
        for command in commands:
            if type(command) is SendMicroBatch:
                self._send(command)
            elif type(command) is Decide:
                self._pending = command
        wake_ns = router.next_wake_ns
        if wake_ns is not None and wake_ns > now_ns and wake_ns != self._wake_ns:
            self._wake_ns = wake_ns
            self._event_queue.at(wake_ns, HOST, self._pass)  # `advance` checks the router's timer at that instant

    def _hear(self, message: RouterMessage, number: int) -> None:
        """Queue a server's message at the router's host: its core receives it when the host reaches it."""
        if self.cluster.host is None:
            self._tell_router(message)
            return
        heard_ns = self._host.hear(message.server, number, len(message.requests), self.now_ns)
        self._event_queue.at(heard_ns, HOST, self._tell_router, message)
        if self._host.free_ns > heard_ns:
            self._event_queue.at(self._host.free_ns, HOST, self._pass)

    def _pass(self) -> None:
        """Do nothing: `advance` only needs an event at this instant."""

    def _arrivals(self) -> Process:
        deadlines_ns = self.spec.deadlines_ns
        arrivals = zip(self.spec.arrivals_ns.tolist(), self.spec.class_of.tolist(), strict=True)
        for request, (arrived_ns, service_class) in enumerate(arrivals):
            yield self._event_queue.until(arrived_ns, ARRIVAL)
            self._arrived += 1
            after_ns = deadlines_ns[service_class]
            deadline_ns = None if after_ns is None else arrived_ns + after_ns
            self._tell_router(RequestArrived(request, deadline_ns, service_class))

    def _labels(self, requests: tuple[int, ...], width: float) -> tuple[bool, ...]:
        """Return whether predictions are right, for requests that have just passed their last segment at `width`."""
        is_correct, widths_before_last = self.spec.correctness.is_correct, self.router.widths_before_last
        return tuple(is_correct(request, (*widths_before_last(request), width)) for request in requests)

    # -------------------------------------------------------------------------------------------------- the network

    def _send(self, command: SendMicroBatch) -> None:
        """Book the micro-batch's transfers; it arrives with the last of them."""
        micro_batch = command.micro_batch
        if not command.moves:
            self.servers[micro_batch.server].hand_over(micro_batch)
            return
        delivery = self._deliveries[micro_batch.micro_batch] = _Delivery(
            command, {source for source, _ in command.moves}
        )
        tables = self.cluster.devices[self.cluster.servers[micro_batch.server].device]
        one_bytes = input_bytes(tables, micro_batch.key.segment, micro_batch.key.previous_width)
        order = rank(micro_batch.server, Kind.TRANSFER_END, micro_batch.micro_batch)
        for source, requests in command.moves:
            begins_ns = self.now_ns if source == ROUTER else self.servers[source].copy(len(requests))
            _, arrival_ns = self._network.transfer(source, micro_batch.server, one_bytes * len(requests), begins_ns)
            if source != ROUTER:
                arrival_ns = max(arrival_ns, self.now_ns + tables.fetch_ns)
            if self._ledger.keeps_starts:
                self._tell_router(TransferStarted(micro_batch.micro_batch, source, micro_batch.server, requests))
            self._event_queue.at(arrival_ns, order, self._end_transfer, delivery, source, requests)

    def _end_transfer(self, delivery: _Delivery, source: int, requests: tuple[int, ...]) -> None:
        micro_batch = delivery.command.micro_batch
        if source not in delivery.moving or micro_batch.micro_batch not in self._deliveries:
            return  # it failed meanwhile
        if source != ROUTER and self.servers[source].is_hung:
            return  # a stopped process sends nothing, but incoming data are written into its memory
        delivery.moving.discard(source)
        self._tell_router(TransferFinished(micro_batch.micro_batch, source, micro_batch.server, requests))
        if not delivery.moving:
            del self._deliveries[micro_batch.micro_batch]
            self.servers[micro_batch.server].hand_over(micro_batch)

    def _fail_transfers(self, server: int) -> None:
        """Handle a server's failure: what was in transfer to it is dropped, what was in transfer from it is lost."""
        for micro_batch, delivery in list(self._deliveries.items()):
            sent = delivery.command.micro_batch
            if sent.server == server:
                del self._deliveries[micro_batch]  # the router requeued its members at the server's failure
            elif server in delivery.moving:
                del self._deliveries[micro_batch]
                self._tell_router(TransferFailed(micro_batch, server, sent.server, sent.requests, "server_down"))

    # ----------------------------------------------------------------------------------------------------- telemetry

    def _telemetry(self, server: SimulatedServer) -> Process:
        period_ns = self._devices[server.spec.device].device_model.tables.period_ns
        while True:
            server.sample()
            yield self._event_queue.until(self.now_ns + period_ns, rank(server.index, Kind.TELEMETRY))


def _device_totals(device: SimulatedDevice, ended_ns: int) -> DeviceTotals:
    power = device.tables.profile.power
    return DeviceTotals(
        name=device.tables.name,
        energy_j=device.energy_mj(ended_ns) / 1000,
        bare_idle_w=power.bare_idle_w,
        context_idle_w=power.context_idle_w,
        extrapolated_s=device.extrapolated_ns(ended_ns) / NS_PER_S,
    )
