"""What a run leaves behind, the same for both worlds, so that one report reads both. Nouns only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.reward import RewardTerms
from policies.vocabulary import HeadKey, RouterCommand, RouterEvent, ServerCommand, ServerEvent

RequestStatus = Literal["completed", "in_flight", "failed"]
STATUSES: tuple[RequestStatus, ...] = ("completed", "in_flight", "failed")
COMPLETED, IN_FLIGHT, FAILED = range(3)  # their places
NOT_PASSED = -1  # in the place of a width

STAGES = ("router_wait", "decision", "transfer", "handover", "queue", "load", "dispatch", "run", "lost")
"""Where an image's time goes, summed over its segments; for a completed one they add up to its latency.

    router_wait   in the router's FIFO, until a decision's snapshot that it is a candidate of
    decision      from the snapshot until its block is sent
    transfer      until all inputs are where the block goes
    handover      until its server has the block; and from the server's return until the router has it back
    queue, load   until its batch is commanded; `load` is the part in which the instance that then ran it was loading
    dispatch      from the command to the start of the forward pass, and from its end until the scheduler knows
    run           the forward pass
    lost          tries that failed, and segments that had to be run again
"""


class RequestRecord(msgspec.Struct, frozen=True):
    """One image, from its arrival to its end.

    Attributes:
        finished_ns: when its last segment was done or it was given up; the run's end for one still in flight.
        widths, servers: for each segment it has passed.
        energy_j: the paper's E: server-mean reported power integrated over its stay.
        correct: whether the label was right; False unless completed.
        moved: how many segments (after the first) ran elsewhere than where its activations were.
        stages_ns: the time in each of `STAGES`, as far as it is accounted for; empty if no detail was kept.
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
        """Segments that ran on another server than the one before."""
        return sum(a != b for a, b in zip(self.servers, self.servers[1:], strict=False))


class BlockRecord(msgspec.Struct, frozen=True):
    """One decision's block, from the snapshot to its last member's return."""

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
        commanded_ns: the scheduler's command.
        started_ns, forward_ended_ns: of the forward pass.
        ended_ns: when the scheduler heard of its end.
        late_ns: see `policies.server_book.BatchTold`.
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
    """One reading of one server's sensor; `queue_length` counts what waited or ran there when it was sampled."""

    server: int
    sampled_ns: int
    utilization: float
    power_w: float
    vram_used_bytes: int
    queue_length: int


@dataclass(frozen=True, slots=True)
class ServerTotals:
    """One server over the whole run; `busy_s` is the integral of its device's utilization.

    `captured`, `to_capture`: passes of loaded instances that a GPU replays, of those that it should.
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
        extrapolated_s: simulated with more batches at once than its profile was measured with.
        unmetered_s: on hardware, for which its sensor told nothing; no energy counts for them.
    """

    name: str
    energy_j: float
    bare_idle_w: float
    context_idle_w: float
    extrapolated_s: float = 0.0
    unmetered_s: float = 0.0


class Downtime(msgspec.Struct, frozen=True):
    """One time that a server was down, or was to be drained.

    Attributes:
        up_ns: when it served again; None if it never did.
        reason: what its `ServerDown` says; or `DRAINED`, from the operator's wish until its end.
        is_planned: whether a fault of the scenario or the operator brought it about; in simulation only the former.
    """

    server: int
    down_ns: int
    up_ns: int | None
    reason: str
    is_planned: bool = True


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One event given to one core, with the commands it answered; `core` is `router` or `server:I`."""

    now_ns: int
    core: str
    event: RouterEvent | ServerEvent
    commands: tuple[RouterCommand | ServerCommand, ...]


class RouterCost(msgspec.Struct, frozen=True):
    """CPU time of the real router's process for something that it did, without waiting: `time.thread_time_ns`.

    Attributes:
        kind: decisions with the sending of their blocks, or messages that brought requests back.
        blocks_at_once: how many of them, where several were taken together.
        images: in all of them.
        done_ns: of `cpu_ns`, what had passed when the block was sent, or when the first requests were back; the rest
            kept the books.
        pause_ns: for how long the process had waited before; 0 if it came from other work.
    """

    kind: Literal["decision", "returned"]
    blocks_at_once: int
    images: int
    cpu_ns: int
    done_ns: int = 0
    pause_ns: int = 0


class Handover(msgspec.Struct, frozen=True):
    """How long a block, or a message, took between the processes of the router and a server.

    Attributes:
        there: to the server, from where the block's inputs are there; else back, from the scheduler's return on, where
            the router was waiting for it.
        at_ns: when it began.
    """

    server: int
    there: bool
    at_ns: int
    took_ns: int


ChoreKind = Literal["taken", "woken", "moved", "begun", "ended"]


class ChoreCost(msgspec.Struct, frozen=True, array_like=True):
    """CPU time of an agent's process for something besides a pass: `time.thread_time_ns`.

    Attributes:
        kind: blocks were taken in, the main thread woke up in vain for some that were, activations were copied to
            another server, a batch began, or a batch ended. A batch's beginning is what its lane's thread did since the
            last end, less the time of its pass: where the pass shared the device, that may be below zero.
        at_ns: when it was done; of blocks, when they came.
        count: how many blocks, or copies, together; else 1.
        images: in all of them.
    """

    server: int
    kind: ChoreKind
    at_ns: int
    count: int
    images: int
    cpu_ns: int


@dataclass(frozen=True, slots=True)
class AgentLog:
    """What one epoch of a server's agent has written down; an epoch serves in one epoch.

    Attributes:
        steps: of its scheduler, from the epoch's beginning; of an epoch that was killed, the last ones may be missing.
        heard: how many of them the router had heard of when it last heard of the epoch; as many are there at least.
        ended: as its `ServerDown` says; empty for an epoch that lived to the run's end.
    """

    server: int
    epoch: int
    steps: tuple[LoggedStep, ...]
    heard: int
    ended: str = ""


@dataclass(frozen=True, slots=True)
class BackgroundLoad:
    """What others took of a real device during a run, as shares in [0, 1] of its time.

    Attributes:
        programs: other programs of the machine.
        stolen: a virtual machine's host, as far as it tells.
    """

    programs: float
    stolen: float = 0.0

    @property
    def share(self) -> float:
        """All of it."""
        return min(1.0, self.programs + self.stolen)


@dataclass(frozen=True, slots=True)
class CpuUse:
    """How much of the host's CPU a run on executors took, as shares of its time.

    Without looking out for messages, without agents of CPU devices, whose passes are computed there, and without agents
    that did not live to the run's end: so it is the least that was needed.

    Attributes:
        router: of one core.
        agent: of one core, of that emulated device's agent that took most; 0 if there is none.
        cores: of those that the router and agents share, where they are fullest.
    """

    router: float
    agent: float
    cores: float

    @property
    def share(self) -> float:
        """Of what is short."""
        return max(self.router, self.agent, self.cores)


class ServerClock(msgspec.Struct, frozen=True):
    """How far a server's clock was ahead of the router's, how wrong that may be, and how often it has jumped."""

    server: int
    offset_ns: int
    error_ns: int
    jumps: int = 0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything a run leaves behind.

    Attributes:
        log: every step of every core, or on hardware of the router's; empty unless the run was asked to keep it.
        arrival_lags_ns: for each arrival on real hardware, how late the load generator was (its latency counts from
            the time at which it was due); empty in simulation, where nothing is late.
        downtimes: in the order in which servers went down.
        router_busy_ns: CPU time of the router's process, without looking out for messages; 0 in simulation.
        agents_busy_ns: CPU time of each server's agents (of those that lived to the run's end), without looking out for
            messages; on a CPU device its passes are part of it. Empty in simulation.
        references: (server, when in ns, seconds) of a fixed piece of work between the batches of a CPU's server, which
            tells how fast its core ran; empty in simulation.
        background_load: of the device that had most of it; None in simulation, and where nothing tells.
        cpu: what the router and agents took of the host; None in simulation.
        agent_logs: on hardware, where `log` is kept, of every epoch that came up, by server and epoch.
        router_costs, handovers, chores: samples from hardware of what simulation takes from profiles.
        clocks: at the end, of every server whose clock is not the router's.
    """

    ended_ns: int
    requests: tuple[RequestRecord, ...]
    blocks: tuple[BlockRecord, ...]
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
    agents_busy_ns: tuple[int, ...] = ()
    references: tuple[tuple[int, int, float], ...] = ()
    background_load: BackgroundLoad | None = None
    cpu: CpuUse | None = None
    agent_logs: tuple[AgentLog, ...] = ()
    router_costs: tuple[RouterCost, ...] = ()
    handovers: tuple[Handover, ...] = ()
    chores: tuple[ChoreCost, ...] = ()
    clocks: tuple[ServerClock, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """The requests of a run as columns, in the order in which they ended: a run of a million has no million objects.

    Attributes:
        request, arrived_ns, finished_ns: (n,) integers; see `RequestRecord`.
        status: (n,) places in `STATUSES`.
        reason: (n,) places in `reasons`.
        correct: (n,) bool.
        energy_j: (n,) floats.
        width: (n, segments) places in `widths`; `NOT_PASSED` for a segment that was not passed.
        moves: (n,) how many segments ran on another server than the one before.
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
        """From records, in their order; raises `ValueError` if only some of them have stages."""
        reasons = tuple(sorted({each.reason for each in requests}))
        widths = tuple(sorted({width for each in requests for width in each.widths}))
        width = np.full((len(requests), max((len(each.widths) for each in requests), default=0)), NOT_PASSED, np.int8)
        place = {value: index for index, value in enumerate(widths)}
        for line, each in zip(width, requests, strict=True):
            line[: len(each.widths)] = [place[value] for value in each.widths]
        stages_ns = [each.stages_ns for each in requests if each.stages_ns]
        if stages_ns and len(stages_ns) < len(requests):
            raise ValueError("only some of the requests have stages")
        return cls(
            request=_column((each.request for each in requests), np.int64),
            arrived_ns=_column((each.arrived_ns for each in requests), np.int64),
            finished_ns=_column((each.finished_ns for each in requests), np.int64),
            status=_column((STATUSES.index(each.status) for each in requests), np.int8),
            reason=_column((reasons.index(each.reason) for each in requests), np.int8),
            correct=_column((each.correct for each in requests), np.bool_),
            energy_j=_column((each.energy_j for each in requests), np.float64),
            width=width,
            moves=_column((each.moved for each in requests), np.int64),
            stages_ns=np.array(stages_ns, np.int64) if stages_ns else None,
            reasons=reasons,
            widths=widths,
        )

    def where(self, chosen: NDArray[np.bool_]) -> RequestColumns:
        """Those of them that are chosen (n,)."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        changes: dict[str, Any] = {name: of[chosen] for name, of in columns.items() if isinstance(of, np.ndarray)}
        return replace(self, **changes)


def _column(values: Iterable[Any], kind: type[Any]) -> NDArray[Any]:
    return np.fromiter(values, kind)


@dataclass(frozen=True, slots=True, eq=False)
class RunColumns:
    """What a run's figures are computed from: a `RunRecord` with its requests as columns, without its other lists."""

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
        """From a whole record."""
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
