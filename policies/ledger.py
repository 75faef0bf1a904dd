"""The books of a run: watches every step of every core, and turns them into records and credits (Eq. 7).

Both worlds feed it the same steps, so records mean the same in both. It decides nothing and measures nothing itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.records import BatchRecord, BlockRecord, LoggedStep, RequestRecord, RequestStatus, TelemetryPoint
from policies.reward import AccuracyPrior, RewardTerms, RewardWeights, reward_terms, variance
from policies.vocabulary import (
    NS_PER_S,
    BatchFailed,
    BatchFinished,
    BatchStarted,
    BlockArrived,
    BlockFinished,
    Decide,
    Decided,
    HeadKey,
    LoadInstance,
    RequestArrived,
    RequestCompleted,
    RequestFailed,
    RequestsReturned,
    RouterCommand,
    RouterEvent,
    RunBatch,
    SendBlock,
    ServerCommand,
    ServerDown,
    ServerEvent,
    ServerReport,
    TelemetrySampled,
    UnloadInstance,
)


class ReportedPower:
    """The servers' mean power as the router hears it: a step function of time, and its integral."""

    def __init__(self, servers: int) -> None:
        self._power_w = [0.0] * servers
        self._times_ns = [0]
        self._means_w = [0.0]
        self._energies_j = [0.0]

    def report(self, server: int, power_w: float, now_ns: int) -> None:
        """A server's power is this from now on."""
        self._power_w[server] = power_w
        energy_j = self.energy_j(now_ns)
        if self._times_ns[-1] == now_ns:  # several reports at one instant make one step
            self._means_w[-1] = sum(self._power_w) / len(self._power_w)
            return
        self._times_ns.append(now_ns)
        self._energies_j.append(energy_j)
        self._means_w.append(sum(self._power_w) / len(self._power_w))

    def energy_j(self, until_ns: int) -> float:
        """The integral of the mean from the start of the run."""
        step = bisect_right(self._times_ns, until_ns) - 1
        return self._energies_j[step] + self._means_w[step] * (until_ns - self._times_ns[step]) / NS_PER_S


@dataclass(slots=True)
class _Life:
    arrived_ns: int
    servers: list[int] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _OpenDecision:
    head: HeadKey
    snapshot_ns: int
    sent_ns: int = 0
    arrived_ns: int = 0
    width: float = 0.0


@dataclass(slots=True)
class ServerCounts:
    """What one server has done so far."""

    images: int = 0
    batches: int = 0
    loads: int = 0
    unloads: int = 0


class Ledger:
    """Watches a run.

    Args:
        servers: N.
        segments: S.
        weights, prior: of Eq. 7.
        detail: keep block, batch and telemetry records (off while a router trains).
        keep_log: keep every step for replay.
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
        self.requests: list[RequestRecord] = []
        self.blocks: list[BlockRecord] = []
        self.batches: list[BatchRecord] = []
        self.telemetry: list[TelemetryPoint] = []
        self.gpu_var: list[float] = []
        self.log: list[LoggedStep] = []
        self.counts = [ServerCounts() for _ in range(servers)]
        self._segments = segments
        self._weights = weights
        self._prior = prior
        self._detail = detail
        self._keep_log = keep_log
        self._power = ReportedPower(servers)
        self._utilization = [0.0] * servers
        self._credits: list[tuple[int, RewardTerms]] = []
        self._lives: dict[int, _Life] = {}
        self._open: dict[int, _OpenDecision] = {}
        self._running: dict[tuple[int, int, int], tuple[RunBatch, int, int]] = {}

    def take_credits(self) -> list[tuple[int, RewardTerms]]:
        """(decision, reward) of the blocks that have ended since the last call, in their order."""
        credits, self._credits = self._credits, []
        return credits

    # ---------------------------------------------------------------------------------------------- the router's steps

    def observe_router(self, event: RouterEvent, commands: Sequence[RouterCommand], now_ns: int) -> None:
        """One step of the router's core."""
        if self._keep_log:
            self.log.append(LoggedStep(now_ns, "router", event, tuple(commands)))
        if isinstance(event, RequestArrived):
            self._lives[event.request] = _Life(now_ns)
        elif isinstance(event, RequestsReturned):
            self._note_return(event)
        elif isinstance(event, ServerReport):
            self._note_report(event, now_ns)
        elif isinstance(event, ServerDown):
            self._note_death(event.server, now_ns)
        elif isinstance(event, Decided) and not any(isinstance(command, SendBlock) for command in commands):
            self._open.pop(event.decision)  # its server died meanwhile; the question is asked anew
        for command in commands:
            self._note_router_command(command, now_ns)

    def _note_return(self, event: RequestsReturned) -> None:
        passed = event.segment - 1
        for request in event.requests:
            life = self._lives.get(request)
            if life is not None:  # what was passed before a restart no longer counts
                life.servers[passed:] = [event.server]
                life.widths[passed:] = [event.width]

    def _note_report(self, event: ServerReport, now_ns: int) -> None:
        self._power.report(event.server, event.power_w, now_ns)
        self._utilization[event.server] = event.utilization
        if self._detail:
            self.gpu_var.append(variance(self._utilization))

    def _note_death(self, server: int, now_ns: int) -> None:
        """A dead server reports nothing: no power, no utilization (the router's view says the same)."""
        self._power.report(server, 0.0, now_ns)
        self._utilization[server] = 0.0
        for key in [key for key in self._running if key[0] == server]:
            del self._running[key]

    def _note_router_command(self, command: RouterCommand, now_ns: int) -> None:
        match command:
            case Decide(decision, view):
                self.decisions += 1
                self._open[decision] = _OpenDecision(view.head, now_ns)
            case SendBlock(block):
                open_decision = self._open[block.block]
                open_decision.sent_ns, open_decision.width = now_ns, block.key.width
            case RequestCompleted(request, _, correct, retries):
                self._close_request(request, now_ns, "completed", retries=retries, correct=correct)
            case RequestFailed(request, reason, retries):
                self._close_request(request, now_ns, "failed", reason=reason, retries=retries)
            case BlockFinished():
                self._close_block(command, now_ns)
            case _:
                pass

    def _close_request(
        self,
        request: int,
        now_ns: int,
        status: RequestStatus,
        *,
        reason: str = "",
        retries: int = 0,
        correct: bool = False,
    ) -> None:
        life = self._lives.pop(request)
        energy_j = self._power.energy_j(now_ns) - self._power.energy_j(life.arrived_ns)
        servers, widths = tuple(life.servers), tuple(life.widths)
        self.requests.append(
            RequestRecord(request, life.arrived_ns, now_ns, status, reason, retries, widths, servers, correct, energy_j)
        )

    def _close_block(self, ended: BlockFinished, now_ns: int) -> None:
        """The decision's credit: Eq. 7 over the block's members, from each one's FIFO entry to its segment's end."""
        members = len(ended.requests)
        spans = list(zip(ended.entered_ns, ended.ended_ns, strict=True))
        latency_s = sum(end - entered for entered, end in spans) / members / NS_PER_S
        energy_j = sum(self._power.energy_j(end) - self._power.energy_j(entered) for entered, end in spans) / members
        terms = reward_terms(
            self._weights,
            p_acc=self._accuracy(ended),
            mean_top1=self._prior.mean_top1,
            latency_s=latency_s,
            energy_j=energy_j,
            gpu_var=variance(self._utilization),
        )
        self._credits.append((ended.decision, terms))
        decision = self._open.pop(ended.decision)
        if self._detail:
            self.blocks.append(_block_record(ended, decision, now_ns, latency_s, terms))

    def _accuracy(self, ended: BlockFinished) -> float:
        """p_acc: correct or not at the last segment, the prior of the widths so far before it; a failed member is 0."""
        if ended.segment == self._segments:
            return sum(ended.correct) / len(ended.correct)
        values = [
            0.0 if failed else self._prior(widths) for widths, failed in zip(ended.widths, ended.failed, strict=True)
        ]
        return sum(values) / len(values)

    # --------------------------------------------------------------------------------------------- the servers' steps

    def observe_server(
        self, server: int, event: ServerEvent, commands: Sequence[ServerCommand], now_ns: int, queue_length: int
    ) -> None:
        """One step of a server's scheduler; `queue_length` counts what waits and runs there after it."""
        if self._keep_log:
            self.log.append(LoggedStep(now_ns, f"server:{server}", event, tuple(commands)))
        match event:
            case BlockArrived(block):
                if block.block in self._open:
                    self._open[block.block].arrived_ns = now_ns
            case BatchStarted(epoch, batch, started_ns):
                self._note_start(server, epoch, batch, started_ns)
            case BatchFinished():
                self._note_end(server, event, now_ns)
            case BatchFailed(epoch, batch):
                self._running.pop((server, epoch, batch), None)  # no image of it has passed its segment
            case TelemetrySampled() if self._detail:
                self.telemetry.append(
                    TelemetryPoint(
                        server, event.sampled_ns, event.utilization, event.power_w, event.vram_used_bytes, queue_length
                    )
                )
            case _:
                pass
        for command in commands:
            self._note_server_command(server, command, now_ns)

    def _note_start(self, server: int, epoch: int, batch: int, started_ns: int) -> None:
        running = self._running.get((server, epoch, batch))
        if running is not None:
            self._running[server, epoch, batch] = (running[0], running[1], started_ns)

    def _note_end(self, server: int, event: BatchFinished, now_ns: int) -> None:
        batch = event.batch
        running = self._running.pop((server, event.epoch, batch), None)
        if running is None:
            return
        command, commanded_ns, started_ns = running
        self.counts[server].batches += 1
        self.counts[server].images += len(command.requests) - len(event.failed)
        if self._detail:
            self.batches.append(
                BatchRecord(
                    server=server,
                    batch=batch,
                    instance=command.instance,
                    segment=command.segment,
                    width=command.served_width,
                    previous_width=command.previous_width,
                    size=len(command.requests),
                    commanded_ns=commanded_ns,
                    started_ns=started_ns,
                    ended_ns=now_ns,
                )
            )

    def _note_server_command(self, server: int, command: ServerCommand, now_ns: int) -> None:
        match command:
            case RunBatch():
                self._running[server, command.epoch, command.batch] = (command, now_ns, now_ns)
            case LoadInstance():
                self.counts[server].loads += 1
            case UnloadInstance():
                self.counts[server].unloads += 1
            case _:
                pass

    # ----------------------------------------------------------------------------------------------------- the end

    def close(self, now_ns: int) -> None:
        """The run is over: what is still in flight gets its record, too."""
        for request in list(self._lives):
            self._close_request(request, now_ns, "in_flight")


def _block_record(
    ended: BlockFinished, decision: _OpenDecision, now_ns: int, latency_s: float, terms: RewardTerms
) -> BlockRecord:
    return BlockRecord(
        decision=ended.decision,
        head=decision.head,
        server=ended.server,
        width=decision.width,
        size=len(ended.requests),
        snapshot_ns=decision.snapshot_ns,
        sent_ns=decision.sent_ns,
        arrived_ns=decision.arrived_ns,
        ended_ns=now_ns,
        latency_s=latency_s,
        reward=terms,
    )
