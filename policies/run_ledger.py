"""The ledger of a run: it observes every step of every core, and turns them into records and credits (Eq. 7).

Simulator and executors feed it the same steps, so records mean the same. It neither decides nor measures anything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Final

import msgspec

from policies.interfaces import AccuracyPrior, RewardTerms, RewardWeights, mean, reward_terms, variance
from policies.run_records import (
    STAGES,
    BatchRecord,
    BatchTold,
    LoggedStep,
    MicroBatchRecord,
    RequestRecord,
    RequestStatus,
    ServerBook,
    ServerCounts,
    TelemetryPoint,
)
from policies.vocabulary import (
    NS_PER_S,
    BatchingDelayBegun,
    Decide,
    HeadKey,
    MicroBatch,
    MicroBatchArrived,
    MicroBatchFinished,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RequestsRejected,
    RequestsReturned,
    RouterCommand,
    RouterEvent,
    SendMicroBatch,
    ServerCommand,
    ServerDown,
    ServerEvent,
    ServerReport,
    ServerUp,
    TelemetrySampled,
    TransferFailed,
    TransferFinished,
)


class ReportedPower:
    """The servers' mean power as reported to the router: a step function of time, and its integral."""

    def __init__(self, servers: int) -> None:
        self._power_w = [0.0] * servers
        self._times_ns = [0]
        self._means_w = [0.0]
        self._energies_j = [0.0]

    def report(self, server: int, power_w: float, now_ns: int) -> None:
        """Set a server's power from now on."""
        self._power_w[server] = power_w
        mean_w = mean(self._power_w)
        if self._times_ns[-1] == now_ns:  # several reports at one instant are one step
            self._means_w[-1] = mean_w
            return
        self._energies_j.append(self.energy_j(now_ns))
        self._times_ns.append(now_ns)
        self._means_w.append(mean_w)

    def energy_j(self, until_ns: int) -> float:
        """Return the integral of the mean from the start of the run."""
        step = -1 if until_ns >= self._times_ns[-1] else bisect_right(self._times_ns, until_ns) - 1
        return self._energies_j[step] + self._means_w[step] * (until_ns - self._times_ns[step]) / NS_PER_S


class _OpenDecision(msgspec.Struct):
    """A decision and its micro-batch, whose inputs were at its server at `gathered_ns`."""

    head: HeadKey
    snapshot_ns: int
    sent_ns: int = 0
    gathered_ns: int = 0
    arrived_ns: int = 0
    width: float = 0.0
    number: int = 0
    server: int = 0
    incarnation: int = 0


_NO_STAGES: Final = (0,) * (len(STAGES) - 1)


class _Trace(msgspec.Struct):
    """One request's entry.

    Attributes:
        since_ns: the time up to which stages are assigned.
        passages: of the segments that it has passed.
        micro_batch, batches: of the try in progress, None in the FIFO; the batches of its path so far.
        path: the micro-batch of the try in progress, if it has a path.
        lost_ns: time in failed tries, and in segments that had to run again.
    """

    arrived_ns: int
    since_ns: int
    passages: list[_Passage] = msgspec.field(default_factory=list)
    micro_batch: _OpenDecision | None = None
    batches: tuple[BatchTold, ...] = ()
    path: MicroBatch | None = None
    lost_ns: int = 0

    def lose(self, now_ns: int) -> None:
        """Record that the try in progress failed."""
        self.lost_ns += now_ns - self.since_ns
        self.end_try(now_ns)

    def end_try(self, now_ns: int) -> None:
        """Record the end of the try in progress."""
        self.since_ns = now_ns
        self.micro_batch = self.path = None
        self.batches = ()

    def forget(self, passed: int) -> None:
        """Drop the segments after the first `passed`, which have to run again."""
        self.lost_ns += sum(sum(passage.stages_ns) for passage in self.passages[passed:])
        del self.passages[passed:]

    def total_ns(self) -> tuple[int, ...]:
        """Return the time in each of `STAGES`."""
        stages_ns = [passage.stages_ns for passage in self.passages] or [_NO_STAGES]
        return (*map(sum, zip(*stages_ns, strict=True)), self.lost_ns)


class _Passage(msgspec.Struct):
    """One pass of some requests together through a segment, from their FIFO entry to their return.

    On a path a pass begins when the previous batch ends, and ends with its batch; the last one with the return.
    """

    server: int
    width: float
    entered_ns: int
    micro_batch: _OpenDecision | None
    batch: BatchTold | None
    ended_ns: int
    stages: tuple[int, ...] = ()

    @property
    def stages_ns(self) -> tuple[int, ...]:
        """The time by stages, without the last one; none if the micro-batch or the batch was not observed."""
        if not self.stages and self.micro_batch is not None and self.batch is not None:
            self.stages = _stages_ns(self.entered_ns, self.micro_batch, self.batch, self.ended_ns)
        return self.stages or _NO_STAGES


def _passages(event: RequestsReturned, trace: _Trace, now_ns: int) -> list[_Passage]:
    """Return the passes of a request that has been returned, through the segments of its path."""
    path = trace.path
    if path is None:
        batch = trace.batches[-1] if trace.batches else None
        return [_Passage(event.server, event.width, trace.since_ns, trace.micro_batch, batch, now_ns)]
    batches = {batch.segment: batch for batch in trace.batches}
    entered_ns, passages = trace.since_ns, list[_Passage]()
    widths = (path.key.width, *path.then)
    for segment, width in enumerate(widths[: event.segment + 1 - path.key.segment], start=path.key.segment):
        found = batches.get(segment)
        if segment == event.segment:
            width, ended_ns = event.width, now_ns
        else:
            ended_ns = entered_ns if found is None else min(max(entered_ns, found.ended_ns), now_ns)
        passages.append(_Passage(event.server, width, entered_ns, trace.micro_batch, found, ended_ns))
        entered_ns = ended_ns
    return passages


def _stages_ns(entered_ns: int, micro_batch: _OpenDecision, batch: BatchTold, now_ns: int) -> tuple[int, ...]:
    """Divide the time of a pass among the stages; after the first one of a path, the micro-batch has arrived before."""
    snapshot_ns = max(entered_ns, micro_batch.snapshot_ns)
    sent_ns = max(snapshot_ns, micro_batch.sent_ns)
    gathered_ns = max(sent_ns, micro_batch.gathered_ns)
    arrived_ns = min(max(gathered_ns, micro_batch.arrived_ns), now_ns)  # perhaps by another clock
    commanded_ns = min(max(arrived_ns, batch.commanded_ns), now_ns)
    started_ns = min(max(commanded_ns, batch.started_ns), now_ns)
    forward_ended_ns = min(max(started_ns, batch.forward_ended_ns), now_ns)
    ended_ns = min(max(forward_ended_ns, batch.ended_ns), now_ns)
    load_began_ns, loaded_ns = batch.load_ns
    load_ns = max(0, min(loaded_ns, commanded_ns) - max(arrived_ns, load_began_ns))
    return (
        snapshot_ns - entered_ns,
        sent_ns - snapshot_ns,
        gathered_ns - sent_ns,
        arrived_ns - gathered_ns + now_ns - ended_ns,
        commanded_ns - arrived_ns - load_ns,
        load_ns,
        started_ns - commanded_ns + ended_ns - forward_ended_ns,
        forward_ended_ns - started_ns,
    )


class _Ended(msgspec.Struct, frozen=True):
    """A request that has ended: the data for its record when the run is over."""

    request: int
    trace: _Trace
    finished_ns: int
    status: RequestStatus
    reason: str = ""
    retries: int = 0
    correct: bool = False


class Ledger:
    """The observer of a run.

    Args:
        servers: N.
        segments: S.
        weights, prior: of Eq. 7.
        detail: keep micro-batch, batch and telemetry records, and each request's stages (off while a router trains).
        keep_log: keep every step for replay.

    `keeps_starts` is whether it uses events that only begin something (transfers, batches); no core does.
    """

    def __init__(
        self,
        servers: int,
        segments: int,
        weights: RewardWeights,
        prior: AccuracyPrior,
        *,
        detail: bool = True,
        keep_log: bool = False,
    ) -> None:
        self.decisions = 0
        self.telemetry: list[TelemetryPoint] = []
        self.gpu_var: list[float] = []
        self.log: list[LoggedStep] = []
        self._books = [ServerBook(detail=detail) for _ in range(servers)]
        self._segments = segments
        self._weights = weights
        self._prior = prior
        self._detail = detail
        self._keep_log = keep_log
        self.keeps_starts = detail or keep_log
        self._power = ReportedPower(servers)
        self._utilization = [0.0] * servers
        self._gpu_var: float | None = 0.0  # of these; None after a change
        self._incarnations: list[int | None] = [None] * servers  # None while a server is down
        self._credits: list[tuple[int, RewardTerms]] = []
        self._traces: dict[int, _Trace] = {}
        self._ended: list[_Ended] = []
        self._micro_batches: list[tuple[MicroBatchFinished, _OpenDecision, int, float, RewardTerms]] = []
        self._batches: list[tuple[int, BatchTold]] = []  # with their servers
        self._pending: _OpenDecision | None = None
        self._open: dict[int, _OpenDecision] = {}
        # by waiting request: (decision, when it entered the FIFO)
        self._batching_delays: dict[int, list[tuple[int, int]]] = {}
        self._delayed_before: dict[int, list[int]] = {}  # by micro-batch: the decisions that delayed its members
        self._of_router: dict[type, Callable[[Any, int], None]] = {
            RequestArrived: self._note_arrival,
            RequestsReturned: self._note_return,
            ServerReport: self._note_report,
            ServerUp: self._note_incarnation,
            ServerDown: self._note_death,
            Decide: self._note_question,
            BatchingDelayBegun: self._note_batching_delay,
            SendMicroBatch: self._note_micro_batch,
            RequestCompleted: self._note_completion,
            RequestFailed: self._note_failure,
            MicroBatchFinished: self._close_micro_batch,
        }
        if detail:
            self._of_router |= {
                RequestsRejected: self._note_rejection,
                TransferFailed: self._note_failed_transfer,
                TransferFinished: self._note_transfer,
            }

    def take_credits(self) -> list[tuple[int, RewardTerms]]:
        """Return (decision, reward) of the micro-batches that have ended since the last call, in their order."""
        credits, self._credits = self._credits, []
        return credits

    def caught_up(self) -> None:
        """Drop the credits (see `hw.router.run_meters.Watcher`): no policy learns there."""
        self._credits.clear()

    # ---------------------------------------------------------------------------------------------- the router's steps

    def observe_router(self, event: RouterEvent, commands: Sequence[RouterCommand], now_ns: int) -> None:
        """Process one step of the router's core."""
        if self._keep_log:
            self.log.append(LoggedStep(now_ns, "router", event, tuple(commands)))
        notes = self._of_router
        if (note := notes.get(type(event))) is not None:
            note(event, now_ns)
        for command in commands:
            if (note := notes.get(type(command))) is not None:
                note(command, now_ns)

    def _note_arrival(self, event: RequestArrived, now_ns: int) -> None:
        self._traces[event.request] = _Trace(now_ns, now_ns)

    def _note_return(self, event: RequestsReturned, now_ns: int) -> None:
        """Process an event; a stale one is of an earlier incarnation of the server, and changes nothing."""
        if event.incarnation != self._incarnations[event.server]:
            return
        since_ns = -1
        micro_batch = None
        path = None
        batches: tuple[BatchTold, ...] = ()
        for trace in self._traces_of(event.requests):
            if (
                trace.since_ns != since_ns
                or trace.micro_batch is not micro_batch
                or trace.path is not path
                or len(trace.batches) != len(batches)
                or not all(map(is_, trace.batches, batches))
            ):
                since_ns = trace.since_ns
                micro_batch = trace.micro_batch
                path = trace.path
                batches = trace.batches
                passages = _passages(event, trace, now_ns)
            passed = event.segment - len(passages)
            if len(trace.passages) > passed:  # segments passed before a restart no longer count
                trace.forget(passed)
            trace.passages += passages
            trace.end_try(now_ns)

    def _note_rejection(self, event: RequestsRejected, now_ns: int) -> None:
        """Process an event; a stale one is of an earlier incarnation of the server, and changes nothing."""
        for trace in self._traces_of(event.requests):
            if trace.micro_batch is not None and (trace.micro_batch.server, trace.micro_batch.incarnation) == (
                event.server,
                event.incarnation,
            ):
                trace.lose(now_ns)

    def _note_failed_transfer(self, event: TransferFailed, now_ns: int) -> None:
        """Process an event; a stale one is of another micro-batch."""
        for trace in self._traces_of(event.requests):
            if trace.micro_batch is not None and trace.micro_batch.number == event.micro_batch:
                trace.lose(now_ns)

    def _note_transfer(self, event: TransferFinished, now_ns: int) -> None:
        """Process an event; the last one counts."""
        if event.micro_batch in self._open:
            self._open[event.micro_batch].gathered_ns = now_ns

    def _traces_of(self, requests: Sequence[int]) -> list[_Trace]:
        return [trace for trace in map(self._traces.get, requests) if trace is not None]

    def _note_report(self, event: ServerReport, now_ns: int) -> None:
        self._power.report(event.server, event.power_w, now_ns)
        self._set_utilization(event.server, event.utilization)
        if self._detail:
            self.gpu_var.append(self._variance())

    def _set_utilization(self, server: int, utilization: float) -> None:
        self._utilization[server] = utilization
        self._gpu_var = None

    def _variance(self) -> float:
        if self._gpu_var is None:
            self._gpu_var = variance(self._utilization)
        return self._gpu_var

    def _note_incarnation(self, event: ServerUp, now_ns: int) -> None:
        self._incarnations[event.server] = event.incarnation

    def _note_death(self, event: ServerDown, now_ns: int) -> None:
        """Note a server's failure, which clears its reports: no power, no utilization (as in the router's view)."""
        server = event.server
        self._incarnations[server] = None
        self._power.report(server, 0.0, now_ns)
        self._set_utilization(server, 0.0)
        for trace in self._traces.values():
            if trace.micro_batch is not None and trace.micro_batch.server == server:
                trace.lose(now_ns)

    def _note_question(self, command: Decide, now_ns: int) -> None:
        self.decisions += 1
        if self._detail:
            self._pending = _OpenDecision(command.view.head, now_ns)

    def _note_batching_delay(self, command: BatchingDelayBegun, now_ns: int) -> None:
        self._batching_delays.setdefault(command.request, []).append((command.decision, command.entered_ns))

    def _note_micro_batch(self, command: SendMicroBatch, now_ns: int) -> None:
        """Note the micro-batch that answers the pending question: one decision is in progress at a time."""
        micro_batch, decision = command.micro_batch, self._pending
        if self._batching_delays:
            batching_delays = [
                batching_delay
                for request in micro_batch.requests
                for batching_delay, _ in self._batching_delays.pop(request, ())
            ]
            self._delayed_before[micro_batch.micro_batch] = batching_delays
        for request in micro_batch.requests:
            self._traces[request].path = micro_batch if micro_batch.then else None
        if not self._detail:
            return
        assert decision is not None, "a micro-batch that was not requested"
        decision.sent_ns = decision.gathered_ns = now_ns
        decision.width, decision.number = micro_batch.key.width, micro_batch.micro_batch
        decision.server, decision.incarnation = micro_batch.server, micro_batch.incarnation
        self._open[micro_batch.micro_batch] = decision
        for request in micro_batch.requests:
            self._traces[request].micro_batch = decision

    def _note_completion(self, command: RequestCompleted, now_ns: int) -> None:
        request, trace = command.request, self._traces.pop(command.request)
        self._ended.append(_Ended(request, trace, now_ns, "completed", "", command.retries, command.correct))

    def _note_failure(self, command: RequestFailed, now_ns: int) -> None:
        request, trace = command.request, self._traces.pop(command.request)
        self._ended.append(_Ended(request, trace, now_ns, "failed", command.reason, command.retries))
        for decision, entered_ns in self._batching_delays.pop(command.request, ()):
            energy_j = self._power.energy_j(now_ns) - self._power.energy_j(entered_ns)
            terms = self._terms(0.0, (now_ns - entered_ns) / NS_PER_S, energy_j)
            self._credits.append((decision, terms))

    def _close_micro_batch(self, ended: MicroBatchFinished, now_ns: int) -> None:
        """Credit the decision: Eq. 7 over the members, from each one's FIFO entry to its segment's end."""
        members, power = len(ended.requests), self._power
        energy_j = 0.0
        span = (0, 0)
        of_span_j = 0.0
        for member in zip(ended.entered_ns, ended.ended_ns, strict=True):
            if member != span:
                span, of_span_j = member, power.energy_j(member[1]) - power.energy_j(member[0])
            energy_j += of_span_j
        latency_s = (sum(ended.ended_ns) - sum(ended.entered_ns)) / members / NS_PER_S
        terms = self._terms(self._accuracy(ended), latency_s, energy_j / members)
        self._credits.append((ended.decision, terms))
        if self._delayed_before:
            for batching_delay in self._delayed_before.pop(ended.decision, ()):  # it includes their batching delay
                self._credits.append((batching_delay, terms))
        if self._detail:
            self._micro_batches.append((ended, self._open.pop(ended.decision), now_ns, latency_s, terms))

    def _terms(self, p_acc: float, latency_s: float, energy_j: float) -> RewardTerms:
        return reward_terms(
            self._weights,
            p_acc=p_acc,
            mean_accuracy=self._prior.mean_accuracy,
            latency_s=latency_s,
            energy_j=energy_j,
            gpu_var=self._variance(),
        )

    def _accuracy(self, ended: MicroBatchFinished) -> float:
        """Return p_acc: at the last segment 1 if correct, otherwise 0; before it the prior of the widths; 0 for a
        failed member."""
        total = 0.0
        previous = None
        prior = 0.0
        for widths, is_right, failed in zip(ended.widths, ended.correct, ended.failed, strict=True):
            if len(widths) == self._segments:
                total += is_right
            elif not failed:
                if widths is not previous:
                    previous, prior = widths, self._prior(widths)
                total += prior
        return total / len(ended.widths)

    # --------------------------------------------------------------------------------------------- the servers' steps

    def counts(self, server: int) -> ServerCounts:
        """Return the counts so far of a server that is observed here."""
        return self._books[server].counts

    def observe_server(self, server: int, event: ServerEvent, commands: Sequence[ServerCommand], now_ns: int) -> None:
        """Process one step of a server's scheduler in this process; other processes use `note_batch` and
        `note_reading`."""
        if self._keep_log:
            self.log.append(LoggedStep(now_ns, f"server:{server}", event, tuple(commands)))
        note = self._books[server].observe(event, commands, now_ns)
        if not self._detail:
            return
        if note is not None:
            self.note_batch(server, note)
        elif type(event) is MicroBatchArrived:
            self.note_arrivals(self._books[server].take_arrivals())
        elif type(event) is TelemetrySampled:
            self.note_reading(server, event)

    def note_arrivals(self, arrivals: Sequence[tuple[int, int]]) -> None:
        """Note (micro-batch, when) of micro-batches that have arrived at their server, perhaps before their departure
        by its clock."""
        for micro_batch, arrived_ns in arrivals:
            if (sent := self._open.get(micro_batch)) is not None:
                sent.arrived_ns = max(sent.gathered_ns, arrived_ns)

    def note_batch(self, server: int, note: BatchTold) -> None:
        """Note that a batch has ended at a server."""
        self.note_arrivals(note.arrivals)
        alone, passed = (note,), note.requests
        if note.failed:  # their next try may have ended by now
            passed = tuple([request for request in passed if request not in note.failed])
        for trace in self._traces_of(passed):
            trace.batches = (*trace.batches, note) if trace.path is not None else alone
        self._batches.append((server, note))

    def note_reading(self, server: int, event: TelemetrySampled) -> None:
        """Note a reading of a server's sensor."""
        self.telemetry.append(
            TelemetryPoint(
                server, event.sampled_ns, event.utilization, event.power_w, event.vram_used_bytes, event.queue_length
            )
        )

    # ----------------------------------------------------------------------------------------------------- the end

    def close(self, now_ns: int) -> None:
        """Close the run: requests still in flight get their records, too."""
        self._ended += [_Ended(request, trace, now_ns, "in_flight") for request, trace in self._traces.items()]
        self._traces.clear()

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests' records in the order of their ends; created here, so that no request waits for another one's
        record."""
        power, detail = self._power, self._detail
        return [
            RequestRecord(
                request=ended.request,
                arrived_ns=ended.trace.arrived_ns,
                finished_ns=ended.finished_ns,
                status=ended.status,
                reason=ended.reason,
                retries=ended.retries,
                widths=tuple([passage.width for passage in ended.trace.passages]),
                servers=tuple([passage.server for passage in ended.trace.passages]),
                correct=ended.correct,
                energy_j=power.energy_j(ended.finished_ns) - power.energy_j(ended.trace.arrived_ns),
                stages_ns=ended.trace.total_ns() if detail else (),
            )
            for ended in self._ended
        ]

    @property
    def micro_batches(self) -> list[MicroBatchRecord]:
        """The micro-batches' records in the order of their ends."""
        return [
            MicroBatchRecord(
                decision=ended.decision,
                head=decision.head,
                server=ended.server,
                width=decision.width,
                size=len(ended.requests),
                snapshot_ns=decision.snapshot_ns,
                sent_ns=decision.sent_ns,
                arrived_ns=decision.arrived_ns,
                ended_ns=ended_ns,
                latency_s=latency_s,
                reward=terms,
            )
            for ended, decision, ended_ns, latency_s, terms in self._micro_batches
        ]

    @property
    def batches(self) -> list[BatchRecord]:
        """The batches' records in the order of their ends."""
        return [
            BatchRecord(
                server=server,
                batch=batch.batch,
                instance=batch.instance,
                segment=batch.segment,
                width=batch.width,
                previous_width=batch.previous_width,
                size=len(batch.requests),
                commanded_ns=batch.commanded_ns,
                started_ns=batch.started_ns,
                forward_ended_ns=batch.forward_ended_ns,
                ended_ns=batch.ended_ns,
                late_ns=batch.late_ns,
            )
            for server, batch in self._batches
        ]
