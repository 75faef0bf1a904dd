"""The records of a run, the same in simulation and on executors, and the observer that reports those of one server.

The records (`RunRecord`) are data only; one report reads the records of simulations and of executors.

The observer (`ServerBook`) runs in the scheduler's process and reports every batch that has ended. Its reports go to
the run's ledger (`policies.run_ledger`), which may be in another process. It neither decides nor measures anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.interfaces import RewardTerms
from policies.vocabulary import (
    BatchFailed,
    BatchFinished,
    BatchStarted,
    HeadKey,
    InstanceLoaded,
    LoadInstance,
    MicroBatchArrived,
    RouterCommand,
    RouterEvent,
    RunBatch,
    ServerCommand,
    ServerDown,
    ServerEvent,
    UnloadInstance,
)

# ------------------------------------------------------------------------------------------------- the records of a run


RequestStatus = Literal["completed", "in_flight", "failed"]
STATUSES: tuple[RequestStatus, ...] = ("completed", "in_flight", "failed")
COMPLETED, IN_FLIGHT, FAILED = range(3)  # their indices
NOT_PASSED = -1  # instead of a width

STAGES = ("router_wait", "decision", "transfer", "handover", "queue", "load", "dispatch", "run", "lost")
"""The stages of an image's latency, summed over its segments; for a completed image they add up to its latency.

    router_wait   in the router's FIFO, until a decision's snapshot that it is a candidate of
    decision      from the snapshot until its micro-batch is sent
    transfer      until all inputs are where the micro-batch goes
    handover      until its server has the micro-batch; and from the server's return until the router has it back
    queue, load   until its batch is commanded; `load` is the part in which the instance that then ran it was loading
    dispatch      from the command to the start of the forward pass, and from its end until the scheduler has it
    run           the forward pass
    lost          tries that failed, and segments that had to be run again
"""


class RequestRecord(msgspec.Struct, frozen=True):
    """One image, from its arrival to its end.

    Attributes:
        finished_ns: when its last segment was done or it was given up; for one still in flight, the run's end.
        widths, servers: for each segment it has passed.
        energy_j: the paper's E: server-mean reported power integrated over its stay.
        correct: whether the prediction was right; False unless completed.
        moved: number of segments (after the first) that ran on another server than the one with its activations.
        stages_ns: the time in each of `STAGES`, as far as it is known; empty if no detail was kept.
    """

    request: int
    arrived_ns: int
    finished_ns: int
    status: RequestStatus
    reason: str
    retries: int
    widths: tuple[float, ...]
    servers: tuple[int, ...]
    correct: bool
    energy_j: float
    stages_ns: tuple[int, ...] = ()

    @property
    def moved(self) -> int:
        """Number of segments that ran on another server than the previous one."""
        return sum(server != next_server for server, next_server in zip(self.servers, self.servers[1:], strict=False))


class MicroBatchRecord(msgspec.Struct, frozen=True):
    """One decision's micro-batch, from the snapshot to its last member's return."""

    decision: int
    head: HeadKey
    server: int
    width: float
    size: int
    snapshot_ns: int
    sent_ns: int
    arrived_ns: int
    ended_ns: int
    latency_s: float
    reward: RewardTerms


class BatchRecord(msgspec.Struct, frozen=True):
    """One batch on one server.

    Attributes:
        commanded_ns: time of the scheduler's command.
        started_ns, forward_ended_ns: of the forward pass.
        ended_ns: when the scheduler received its end.
        late_ns: see `policies.run_records.BatchTold`.
    """

    server: int
    batch: int
    instance: int
    segment: int
    width: float
    previous_width: float
    size: int
    commanded_ns: int
    started_ns: int
    forward_ended_ns: int
    ended_ns: int
    late_ns: int = 0


class TelemetryPoint(msgspec.Struct, frozen=True):
    """One reading of one server's sensor; `queue_length` counts the requests queued or running when it was sampled."""

    server: int
    sampled_ns: int
    utilization: float
    power_w: float
    vram_used_bytes: int
    queue_length: int


@dataclass(frozen=True, slots=True)
class ServerTotals:
    """One server over the whole run; `busy_s` is the integral of its device's utilization.

    `captured`, `to_capture`: passes of loaded instances that a GPU replays as graphs, and those that it should.
    """

    name: str
    device: int
    busy_s: float
    images: int
    batches: int
    loads: int
    unloads: int
    vram_peak_bytes: int
    captured: int = 0
    to_capture: int = 0


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """One device over the whole run: its integrated energy and the idle powers that are part of it.

    Attributes:
        extrapolated_s: time simulated with more batches at once than its profile was measured with.
        unmetered_s: time on executors without readings of its sensor; no energy counts for it.
    """

    name: str
    energy_j: float
    bare_idle_w: float
    context_idle_w: float
    extrapolated_s: float = 0.0
    unmetered_s: float = 0.0


class Downtime(msgspec.Struct, frozen=True):
    """One period in which a server was down, or was being drained.

    Attributes:
        up_ns: when it was in service again; None if it never was.
        reason: the reason of its `ServerDown`; or `DRAINED`, from the operator's request until its end.
        is_planned: whether a fault of the scenario or the operator caused it; in simulation only a fault.
    """

    server: int
    down_ns: int
    up_ns: int | None
    reason: str
    is_planned: bool = True


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One event given to one core, with the commands returned; `core` is `router` or `server:I`."""

    now_ns: int
    core: str
    event: RouterEvent | ServerEvent
    commands: tuple[RouterCommand | ServerCommand, ...]


class RouterCost(msgspec.Struct, frozen=True):
    """CPU time of the real router's process for one kind of task, without waiting: `time.thread_time_ns`.

    Attributes:
        kind: decisions including the sending of their micro-batches, or messages that returned requests.
        micro_batches_at_once: number of micro-batches, if several were processed together.
        images: number of images in all of them.
        done_ns: the part of `cpu_ns` until the micro-batch was sent, or until the first requests were back; the rest is
            bookkeeping.
        pause_ns: how long the process had waited before; 0 if it came from other work.
    """

    kind: Literal["decision", "returned"]
    micro_batches_at_once: int
    images: int
    cpu_ns: int
    done_ns: int = 0
    pause_ns: int = 0


class Handover(msgspec.Struct, frozen=True):
    """The time a micro-batch, or a message, took between the processes of the router and a server.

    Attributes:
        there: to the server, from when the micro-batch's inputs are there; otherwise back, from the scheduler's return
            on, if the router was waiting for it.
        at_ns: its start.
    """

    server: int
    there: bool
    at_ns: int
    took_ns: int


CpuWorkKind = Literal["taken", "woken", "moved", "begun", "ended"]


class CpuWorkCost(msgspec.Struct, frozen=True, array_like=True):
    """CPU time of a worker's process for work other than a pass: `time.thread_time_ns`.

    Attributes:
        kind: micro-batches were received, the main thread woke up in vain for some that were, activations were copied
            to another server, a batch began, or a batch ended. A batch's beginning is the work of its lane's thread
            since the last end, less the time of its pass: if the pass shared the device, that may be below zero.
        at_ns: when it was done; for micro-batches, when they came.
        count: number of micro-batches, or copies, together; otherwise 1.
        images: number of images in all of them.
    """

    server: int
    kind: CpuWorkKind
    at_ns: int
    count: int
    images: int
    cpu_ns: int


@dataclass(frozen=True, slots=True)
class WorkerLog:
    """The log of one incarnation of a server's worker.

    Attributes:
        steps: steps of its scheduler, from the incarnation's beginning; for a killed incarnation, the last ones may be
            missing.
        heard: number of steps known to the router when the incarnation's last message reached it; the log has at least
            these.
        ended: the reason of its `ServerDown`; empty for an incarnation that was up at the run's end.
    """

    server: int
    incarnation: int
    steps: tuple[LoggedStep, ...]
    heard: int
    ended: str = ""


@dataclass(frozen=True, slots=True)
class BackgroundLoad:
    """The load of other programs on a real device during a run, as shares in [0, 1] of its time.

    Attributes:
        programs: other programs of the machine.
        stolen: a virtual machine's host, as far as it reports this.
    """

    programs: float
    stolen: float = 0.0

    @property
    def share(self) -> float:
        """The sum of both."""
        return min(1.0, self.programs + self.stolen)


@dataclass(frozen=True, slots=True)
class CpuUse:
    """The use of the host's CPU by a run on executors, as shares of its time.

    It excludes polling for messages, workers of CPU devices, whose passes are computed there, and workers that were not
    up at the run's end: so it is a lower bound.

    Attributes:
        router: share of one core.
        worker: share of one core, for the emulated device's worker with the highest; 0 if there is none.
        cores: the highest share among the sets of cores that the router and workers compete for.
    """

    router: float
    worker: float
    cores: float

    @property
    def share(self) -> float:
        """The share of the scarcest of these."""
        return max(self.router, self.worker, self.cores)


class ServerClock(msgspec.Struct, frozen=True):
    """The offset of a server's clock ahead of the router's, its uncertainty, and the number of its jumps."""

    server: int
    offset_ns: int
    error_ns: int
    jumps: int = 0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All records of a run.

    Attributes:
        log: every step of every core, or on executors of the router's; empty unless requested.
        arrival_lags_ns: for each arrival on executors, how late the load generator was (its latency counts from its
            due time); empty in simulation, which has no lag.
        downtimes: in the order in which servers went down.
        router_busy_ns: CPU time of the router's process, without polling for messages; 0 in simulation.
        workers_busy_ns: CPU time of each server's workers (those that were up at the run's end), without polling for
            messages; on a CPU device it includes the passes. Empty in simulation.
        references: (server, when in ns, seconds) of a fixed piece of work between the batches of a CPU's server, which
            measures the speed of its core; empty in simulation.
        background_load: that of the device with the most; None in simulation, and if it is unknown.
        cpu: the use of the host's CPU by the router and workers; None in simulation.
        worker_logs: on executors, if `log` is kept, of every incarnation that came up, by server and incarnation.
        router_costs, handovers, cpu_work: samples from hardware of costs that simulation takes from profiles.
        clocks: at the end, for every server whose clock isn't the router's.
    """

    ended_ns: int
    requests: tuple[RequestRecord, ...]
    micro_batches: tuple[MicroBatchRecord, ...]
    batches: tuple[BatchRecord, ...]
    telemetry: tuple[TelemetryPoint, ...]
    servers: tuple[ServerTotals, ...]
    devices: tuple[DeviceTotals, ...]
    gpu_var: tuple[float, ...]
    decisions: int
    log: tuple[LoggedStep, ...] = ()
    arrival_lags_ns: tuple[int, ...] = ()
    downtimes: tuple[Downtime, ...] = ()
    router_busy_ns: int = 0
    workers_busy_ns: tuple[int, ...] = ()
    references: tuple[tuple[int, int, float], ...] = ()
    background_load: BackgroundLoad | None = None
    cpu: CpuUse | None = None
    worker_logs: tuple[WorkerLog, ...] = ()
    router_costs: tuple[RouterCost, ...] = ()
    handovers: tuple[Handover, ...] = ()
    cpu_work: tuple[CpuWorkCost, ...] = ()
    clocks: tuple[ServerClock, ...] = ()


# -------------------------------------------------------------------------------------------------------------- columns


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """The requests of a run as columns, in the order of their ends: a run of a million has no million objects.

    Attributes:
        request, arrived_ns, finished_ns: (n,) integers; see `RequestRecord`.
        status: (n,) indices in `STATUSES`.
        reason: (n,) indices in `reasons`.
        correct: (n,) bool.
        energy_j: (n,) floats.
        width: (n, segments) indices in `widths`; `NOT_PASSED` for a segment that was not passed.
        moves: (n,) number of segments that ran on another server than the previous one.
        stages_ns: (n, len(STAGES)) integers; None if no detail was kept.
    """

    request: NDArray[np.int64]
    arrived_ns: NDArray[np.int64]
    finished_ns: NDArray[np.int64]
    status: NDArray[np.int8]
    reason: NDArray[np.int8]
    correct: NDArray[np.bool_]
    energy_j: NDArray[np.float64]
    width: NDArray[np.int8]
    moves: NDArray[np.int64]
    stages_ns: NDArray[np.int64] | None
    reasons: tuple[str, ...]
    widths: tuple[float, ...]

    @classmethod
    def of(cls, requests: Sequence[RequestRecord]) -> RequestColumns:
        """Convert records, in their order; raises `ValueError` if only some of them have stages."""
        reasons = tuple(sorted({request.reason for request in requests}))
        widths = tuple(sorted({width for request in requests for width in request.widths}))
        segments = max((len(request.widths) for request in requests), default=0)
        width = np.full((len(requests), segments), NOT_PASSED, np.int8)
        code_of = {value: index for index, value in enumerate(widths)}
        for line, request in zip(width, requests, strict=True):
            line[: len(request.widths)] = [code_of[value] for value in request.widths]
        stages_ns = [request.stages_ns for request in requests if request.stages_ns]
        if stages_ns and len(stages_ns) < len(requests):
            raise ValueError("only some of the requests have stages")
        return cls(
            request=_column((request.request for request in requests), np.int64),
            arrived_ns=_column((request.arrived_ns for request in requests), np.int64),
            finished_ns=_column((request.finished_ns for request in requests), np.int64),
            status=_column((STATUSES.index(request.status) for request in requests), np.int8),
            reason=_column((reasons.index(request.reason) for request in requests), np.int8),
            correct=_column((request.correct for request in requests), np.bool_),
            energy_j=_column((request.energy_j for request in requests), np.float64),
            width=width,
            moves=_column((request.moved for request in requests), np.int64),
            stages_ns=np.array(stages_ns, np.int64) if stages_ns else None,
            reasons=reasons,
            widths=widths,
        )

    def where(self, mask: NDArray[np.bool_]) -> RequestColumns:
        """Return the chosen requests (n,)."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        changes: dict[str, Any] = {name: of[mask] for name, of in columns.items() if isinstance(of, np.ndarray)}
        return replace(self, **changes)


def _column(values: Iterable[Any], kind: type[Any]) -> NDArray[Any]:
    return np.fromiter(values, kind)


@dataclass(frozen=True, slots=True, eq=False)
class RunColumns:
    """The data for a run's figures: a `RunRecord` with its requests as columns, without its other lists."""

    ended_ns: int
    requests: RequestColumns
    servers: tuple[ServerTotals, ...]
    devices: tuple[DeviceTotals, ...]
    gpu_var: NDArray[np.float64]
    decisions: int
    arrival_lags_ns: tuple[int, ...] = ()
    downtimes: tuple[Downtime, ...] = ()

    @classmethod
    def of(cls, record: RunRecord) -> RunColumns:
        """Convert a complete record."""
        return cls(
            ended_ns=record.ended_ns,
            requests=RequestColumns.of(record.requests),
            servers=record.servers,
            devices=record.devices,
            gpu_var=np.array(record.gpu_var, np.float64),
            decisions=record.decisions,
            arrival_lags_ns=record.arrival_lags_ns,
            downtimes=record.downtimes,
        )


# -------------------------------------------------------------------------------------------------- a server's observer


class BatchTold(msgspec.Struct, frozen=True, array_like=True):
    """A batch that has ended, in the server's times.

    Attributes:
        requests: all of its members; `failed`: the members that broke it.
        commanded_ns: time of the scheduler's command.
        started_ns, forward_ended_ns: of the forward pass.
        late_ns: how much later than its model's time the end of an emulated pass was detected; `forward_ended_ns` is
            the model's. 0 for other passes.
        ended_ns: when the scheduler received its end.
        load_ns: start and end of its instance's load.
        arrivals: (micro-batch, when it arrived) of the micro-batches that were not reported before.
    """

    batch: int
    instance: int
    segment: int
    width: float
    previous_width: float
    requests: tuple[int, ...]
    failed: tuple[int, ...]
    commanded_ns: int
    started_ns: int
    forward_ended_ns: int
    late_ns: int
    ended_ns: int
    load_ns: tuple[int, int]
    arrivals: tuple[tuple[int, int], ...] = ()


class ServerCounts(msgspec.Struct, array_like=True):
    """A server's counts so far."""

    images: int = 0
    batches: int = 0
    loads: int = 0
    unloads: int = 0

    def __add__(self, other: ServerCounts) -> ServerCounts:
        return ServerCounts(
            self.images + other.images,
            self.batches + other.batches,
            self.loads + other.loads,
            self.unloads + other.unloads,
        )


class _Running(msgspec.Struct):
    """A batch in progress; its instance was being loaded from `load_ns[0]` to `load_ns[1]`."""

    command: RunBatch
    commanded_ns: int
    started_ns: int
    load_ns: tuple[int, int]


class ServerBook:
    """The observer of one server.

    Args:
        detail: report batches; without it only `counts` are kept.
    """

    def __init__(self, *, detail: bool = True) -> None:
        self.counts = ServerCounts()
        self._detail = detail
        self._running: dict[tuple[int, int], _Running] = {}  # by (incarnation, batch)
        self._loads: dict[tuple[int, int], tuple[int, int]] = {}  # by (incarnation, instance)
        self._arrivals: dict[int, int] = {}  # of unreported micro-batches
        self._of_command: dict[type, Callable[[Any, int], None]] = {
            RunBatch: self._note_command,
            LoadInstance: self._note_load,
            UnloadInstance: self._note_unload,
        }
        self._of_event: dict[type, Callable[[Any, int], BatchTold | None]] = {
            BatchFinished: self._note_end,
            BatchFailed: self._note_failure,
            ServerDown: self._note_death,
        }
        if detail:
            self._of_event |= {
                MicroBatchArrived: self._note_arrival,
                BatchStarted: self._note_start,
                InstanceLoaded: self._note_loaded,
            }

    def observe(self, event: ServerEvent, commands: Sequence[ServerCommand], now_ns: int) -> BatchTold | None:
        """Process one step of the scheduler; returns the batch that has ended with it."""
        note = self._of_event.get(type(event))
        batch = None if note is None else note(event, now_ns)
        for command in commands:
            take = self._of_command.get(type(command))
            if take is not None:
                take(command, now_ns)
        return batch

    def take_arrivals(self) -> tuple[tuple[int, int], ...]:
        """Return (micro-batch, when it arrived) of the micro-batches not reported yet."""
        arrivals = tuple(self._arrivals.items())
        self._arrivals.clear()
        return arrivals

    # ---------------------------------------------------------------------------------------------------- what happens

    def _note_arrival(self, event: MicroBatchArrived, now_ns: int) -> None:
        self._arrivals[event.micro_batch.micro_batch] = now_ns

    def _note_loaded(self, event: InstanceLoaded, now_ns: int) -> None:
        instance = (event.incarnation, event.instance)
        began_ns, _ = self._loads.get(instance, (now_ns, now_ns))
        self._loads[instance] = (began_ns, now_ns)

    def _note_start(self, event: BatchStarted, now_ns: int) -> None:
        running = self._running.get((event.incarnation, event.batch))
        if running is not None:
            running.started_ns = event.started_ns

    def _note_failure(self, event: BatchFailed, now_ns: int) -> None:
        """Count a batch none of whose images has passed its segment."""
        self._running.pop((event.incarnation, event.batch), None)

    def _note_death(self, event: ServerDown, now_ns: int) -> None:
        self._running.clear()
        self._loads.clear()
        self._arrivals.clear()

    def _note_end(self, event: BatchFinished, now_ns: int) -> BatchTold | None:
        running = self._running.pop((event.incarnation, event.batch), None)
        if running is None:
            return None
        command = running.command
        self.counts.batches += 1
        self.counts.images += len(command.requests) - len(event.failed)
        if not self._detail:
            return None
        return BatchTold(
            batch=command.batch,
            instance=command.instance,
            segment=command.segment,
            width=command.served_width,
            previous_width=command.previous_width,
            requests=command.requests,
            failed=event.failed,
            commanded_ns=running.commanded_ns,
            started_ns=running.started_ns,
            forward_ended_ns=now_ns if event.ended_ns is None else event.ended_ns,
            late_ns=event.late_ns,
            ended_ns=now_ns,
            load_ns=running.load_ns,
            arrivals=self.take_arrivals() if self._arrivals else (),
        )

    # --------------------------------------------------------------------------------------------------- its commands

    def _note_command(self, command: RunBatch, now_ns: int) -> None:
        load_ns = self._loads.get((command.incarnation, command.instance), (0, 0))
        self._running[command.incarnation, command.batch] = _Running(command, now_ns, now_ns, load_ns)

    def _note_load(self, command: LoadInstance, now_ns: int) -> None:
        self.counts.loads += 1
        if self._detail:
            self._loads[command.incarnation, command.instance] = (now_ns, now_ns)

    def _note_unload(self, command: UnloadInstance, now_ns: int) -> None:
        self.counts.unloads += 1
        self._loads.pop((command.incarnation, command.instance), None)
