"""One cluster on the compiled engine, behind the interface of `sim.simulated_cluster.Simulation`: any router can decide
for it.

Views, credits and records are built here from the cluster's row. They equal the reference's, bit for bit.
"""

from __future__ import annotations

import numpy as np

from kit.errors import WorkError
from policies.compiled.plan_layout import BATCHING_DELAY
from policies.interfaces import RewardTerms, RoutingPolicy, batching_delay_rule_of, limit_ns_of
from policies.router_core import flags
from policies.router_plans import plan_of
from policies.run_records import (
    BatchRecord,
    MicroBatchRecord,
    RequestRecord,
    RequestStatus,
    RunColumns,
    RunRecord,
    TelemetryPoint,
)
from policies.vocabulary import (
    ANYWHERE,
    IMAGE,
    BatchingDelay,
    BatchingDelayRule,
    Choice,
    ClusterView,
    Decide,
    HeadKey,
    OwnLimit,
    ServerView,
    WorkKey,
)
from sim.compiled.cluster_rows import program_of
from sim.compiled.compiled_run import NO_ANSWER, RouterAnswer, RunRow, go_on, run_to_end
from sim.compiled.row_access import read_view
from sim.compiled.row_layout import (
    ASKED,
    COMPLETED,
    ENDED,
    FAILED,
    IN_FLIGHT,
    NO_CURVE,
    NO_TUPLE,
    REASONS,
    Credit,
    HeadSeen,
    ServerSeen,
    WorkSeen,
    problem_of,
)
from sim.compiled.run_figures import run_columns
from sim.simulated_cluster import ClusterSpec, RunSpec

_STATUS: dict[int, RequestStatus] = {COMPLETED: "completed", IN_FLIGHT: "in_flight", FAILED: "failed"}
_HEAD_SEEN, _SERVER_SEEN = HeadSeen.size, ServerSeen.size
_WORK_SEEN = WorkSeen.size
_INTEGERS = HeadSeen.offsets["accuracy_sum"]  # of the head, before its reals
_UTILIZATION, _POWER = ServerSeen.offsets["utilization"], ServerSeen.offsets["power_w"]
_KEY, _REQUESTS = WorkSeen.offsets["key"], WorkSeen.offsets["requests"]


def _require(is_so: bool, message: str) -> None:
    """Assert, also under `python -O`: a wrong value here would be written into memory."""
    if not is_so:
        raise AssertionError(message)


class CompiledSimulation:
    """One run; see `sim.simulated_cluster.Simulation`, whose interface this is.

    Raises:
        UnsupportedScenario: a feature that only the reference has.
    """

    def __init__(self, cluster: ClusterSpec, run: RunSpec) -> None:
        self.cluster = cluster
        self.spec = run
        self._program = program_of(cluster)
        self._run = RunRow(self._program, run)
        self._pending: Decide | None = None
        self._credits: list[tuple[int, RewardTerms]] = []
        self._has_ended = False
        self._answer = NO_ANSWER
        work = len(self._program.keys) * _WORK_SEEN
        self._view_row = np.zeros(_HEAD_SEEN + self._program.servers * (_SERVER_SEEN + work), np.int64)
        self._widths = (IMAGE, *cluster.router.widths)
        self._keys = [WorkKey(*key) for key in self._program.keys]
        self._masks = cluster.router.masks()

    @property
    def now_ns(self) -> int:
        """The present time."""
        return self._run.cluster.now_ns

    @property
    def pending(self) -> Decide | None:
        """The pending decision."""
        return self._pending

    def advance(self) -> Decide | None:
        """Run to the next decision; return None when the run has ended."""
        if self._pending is not None or self._has_ended:
            return self._pending
        run = self._run
        answer, self._answer = self._answer, NO_ANSWER
        status = go_on(run, answer)
        while status not in (ASKED, ENDED):
            if status in (NO_CURVE, NO_TUPLE):
                raise WorkError(problem_of(status))
            run.grow(status)
            status = go_on(run)
        self._take_credits()
        if status == ENDED:
            self._has_ended = True
            return None
        self._pending = Decide(run.cluster.decision, self._view())
        return self._pending

    def decide(self, choice: Choice | BatchingDelay) -> None:
        """Answer the pending decision; it takes effect `decision_ns` after its request."""
        assert self._pending is not None, "no decision is pending"
        if isinstance(choice, BatchingDelay):
            self._batching_delay(choice, self._pending.view)
            return
        head, widths = self._pending.view.head, self.cluster.router.widths
        width = widths.index(choice.width)
        _require(choice.micro_batch_size >= 1, f"an empty micro-batch: {choice}")
        _require(0 <= choice.server < len(self._masks), f"the policy chose a server that is none: {choice}")
        place_number = self.cluster.router.place_of(head.segment, head.service_class)
        _require(self._masks[choice.server][place_number][width], f"the policy chose a masked width: {choice}")
        _require(self._pending.view.servers[choice.server].valid, f"the policy chose a server at its cap: {choice}")
        is_long = head.segment + len(choice.then) > self._program.segments
        _require(not is_long, f"the path is too long: {choice}")
        then = [widths.index(width) for width in choice.then]
        for place, number in enumerate(then, start=place_number + 1):
            _require(self._masks[choice.server][place][number], f"the policy chose a masked width: {choice}")
        c, at = self._run.cluster, self._run.shape.p.then_at
        c.then = len(then)
        self._run.row[at : at + len(then)] = then
        self._pending = None
        self._answer = RouterAnswer(choice.server, width, choice.micro_batch_size)

    def _batching_delay(self, batching_delay: BatchingDelay, view: ClusterView) -> None:
        _require(view.batching_delay_left_ns > 0, "the policy delayed requests that may not be delayed")
        most = self.cluster.router.micro_batch_sizes[-1]
        _require(
            batching_delay.wait_ns > 0 and view.candidates < batching_delay.requests <= most,
            f"no such batching delay: {batching_delay}",
        )
        self._pending = None
        self._answer = RouterAnswer(BATCHING_DELAY, batching_delay.requests, batching_delay.wait_ns)

    def set_batching_delay_rule(self, rule: BatchingDelayRule) -> None:
        """Set the router's batching delay rule, if batching delays are allowed; before the first decision."""
        self._run.set_batching_delay_rule(rule)

    def set_limit(self, limit: OwnLimit) -> None:
        """Set the limit of p99 latency by which images are late from now on."""
        self._run.set_limit(limit)

    def run(self, policy: RoutingPolicy, rng: np.random.Generator) -> RunRecord:
        """Let a policy make every decision.

        A router with a compiled form (`policies.router_plans`) decides in it: it makes the same decisions, and its
        state and `rng` end as if it had been called for each; only the credits of the run are not kept.
        """
        self.finish(policy, rng)
        return self.record()

    def finish(self, policy: RoutingPolicy, rng: np.random.Generator) -> None:
        """Let a policy make every decision, without a record."""
        rule = batching_delay_rule_of(policy)
        if rule is not None:
            self.set_batching_delay_rule(rule)
        self.set_limit(OwnLimit(limit_ns_of(policy)))
        planned = plan_of(policy, self.cluster.router) if type(rng) is np.random.Generator else None
        if planned is not None and not self._has_ended:
            try:
                run_to_end(self._run, planned, rng, self._answer)
            finally:
                planned.keep()
            self._pending, self._answer = None, NO_ANSWER
            self._has_ended = True
            return
        while (request := self.advance()) is not None:
            self.decide(policy.choose(request.view, rng))
            self.set_limit(OwnLimit(limit_ns_of(policy)))  # its separate one, if any

    def take_credits(self) -> list[tuple[int, RewardTerms]]:
        """Return (decision, reward) of the micro-batches that have ended since the last call."""
        credits, self._credits = self._credits, []
        return credits

    def _take_credits(self) -> None:
        c = self._run.cluster
        if c.credits:
            at = self._run.shape.p.credits_at
            credits = self._run.row[at : at + c.credits * Credit.size].view(Credit.dtype)
            self._credits += [
                (decision, RewardTerms(*terms))
                for decision, terms in zip(credits["decision"].tolist(), credits["terms"].tolist(), strict=True)
            ]
            c.credits = 0

    def _view(self) -> ClusterView:
        run = self._run
        length = read_view(run.row, run.shape.parameters, self._view_row)
        numbers, reals = self._view_row[:length].tolist(), self._view_row[:length].view(np.float64).tolist()
        segment, previous, location, candidates, entered_ns, fifo_length, completed, *more = numbers[:_INTEGERS]
        left_ns, late, limit_ns, service_class, others_completed = more
        accuracy_sum, floor, energy_weight = reals[_INTEGERS:_HEAD_SEEN]
        goal_facts = (left_ns, accuracy_sum, floor, late, limit_ns, energy_weight, others_completed)
        if self.cluster.router.micro_batch_key == "any":
            location = ANYWHERE
        servers, at = [], _HEAD_SEEN
        place_number = self.cluster.router.place_of(segment + 1, service_class)
        for masks in self._masks:
            first, at = at, at + _SERVER_SEEN
            is_valid, requests, micro_batches, vram_bytes, loaded, loading, _, _, keys = numbers[first:at]
            end = at + keys * _WORK_SEEN
            work = zip(numbers[at + _KEY : end : _WORK_SEEN], numbers[at + _REQUESTS : end : _WORK_SEEN], strict=True)
            servers.append(
                ServerView(
                    valid=bool(is_valid),
                    widths=masks[place_number],
                    outstanding_requests=requests,
                    outstanding_micro_batches=micro_batches,
                    outstanding={self._keys[key]: count for key, count in work},
                    utilization=reals[first + _UTILIZATION],
                    power_w=reals[first + _POWER],
                    vram_used_bytes=vram_bytes,
                    loaded=flags(loaded, len(self._masks[0][0])),
                    loading=flags(loading, len(self._masks[0][0])),
                )
            )
            at = end
        head = HeadKey(segment + 1, self._widths[previous], location, service_class)
        looked_at = run.shape.p.looked_at
        sample = tuple(run.row[looked_at : looked_at + run.cluster.looked].tolist())
        queue_facts = (candidates, entered_ns, fifo_length, completed, tuple(servers), *goal_facts, sample)
        return ClusterView(self.now_ns, head, *queue_facts)

    # ------------------------------------------------------------------------------------------------------ records

    def record(self) -> RunRecord:
        """Return the run's records; it must have ended."""
        columns, is_detailed = self.columns(), self.spec.detail
        return RunRecord(
            ended_ns=columns.ended_ns,
            requests=self._requests(is_detailed),
            micro_batches=self._micro_batches() if is_detailed else (),
            batches=self._batches() if is_detailed else (),
            telemetry=self._telemetry() if is_detailed else (),
            servers=columns.servers,
            devices=columns.devices,
            gpu_var=tuple(columns.gpu_var.tolist()),
            decisions=columns.decisions,
            downtimes=columns.downtimes,
        )

    def columns(self) -> RunColumns:
        """Return the data for the run's figures, without an object for each request; it must have ended."""
        assert self._has_ended, "the run has not ended"
        return run_columns(self._run)

    def _requests(self, is_detailed: bool) -> tuple[RequestRecord, ...]:
        rows, widths = self._run.records.requests[: self._run.cluster.request_rows], self._program.widths
        return tuple(
            RequestRecord(
                request=request,
                arrived_ns=arrived_ns,
                finished_ns=finished_ns,
                status=_STATUS[fate],
                reason=REASONS[reason],
                retries=retries,
                widths=tuple(widths[width] for width in widths_passed[:length]),
                servers=tuple(servers_passed[:length]),
                correct=bool(correct),
                energy_j=energy_j,
                stages_ns=tuple(stages_ns) if is_detailed else (),
            )
            for (request, arrived_ns, finished_ns, fate, reason, retries, correct, energy_j, length), stages_ns,
            servers_passed, widths_passed in zip(
                rows["head"].tolist(), rows["stages_ns"].tolist(), rows["servers"].tolist(),
                rows["widths"].tolist(), strict=True,
            )
        )  # fmt: skip

    def _head_of(self, batch_queue: int) -> HeadKey:
        rest, location = divmod(batch_queue, self._program.servers + 2)
        rest, previous = divmod(rest, self._program.width_count + 1)
        service_class, segment = divmod(rest, self._program.segments)
        return HeadKey(segment + 1, self._widths[previous], location - 2, service_class)

    def _micro_batches(self) -> tuple[MicroBatchRecord, ...]:
        rows = self._run.records.micro_batches[: self._run.cluster.micro_batch_rows].tolist()
        return tuple(
            MicroBatchRecord(
                decision=decision,
                head=self._head_of(batch_queue),
                server=server,
                width=self._keys[key].width,
                size=size,
                snapshot_ns=snapshot_ns,
                sent_ns=sent_ns,
                arrived_ns=arrived_ns,
                ended_ns=ended_ns,
                latency_s=latency_s,
                reward=RewardTerms(*terms),
            )
            for (
                decision,
                batch_queue,
                server,
                key,
                size,
                snapshot_ns,
                sent_ns,
                arrived_ns,
                ended_ns,
                latency_s,
                terms,
            ) in rows
        )

    def _batches(self) -> tuple[BatchRecord, ...]:
        widths = self._widths
        return tuple(
            BatchRecord(
                server=server,
                batch=batch,
                instance=instance,
                segment=segment + 1,
                width=widths[width + 1],
                previous_width=widths[previous_width],
                size=size,
                commanded_ns=commanded_ns,
                started_ns=started_ns,
                forward_ended_ns=ended_ns,
                ended_ns=ended_ns,
            )
            for server, batch, instance, segment, width, previous_width, size, commanded_ns, started_ns, ended_ns in (
                self._run.records.batches[: self._run.cluster.batch_rows].tolist()
            )
        )

    def _telemetry(self) -> tuple[TelemetryPoint, ...]:
        rows = self._run.records.readings[: self._run.cluster.reading_rows].tolist()
        return tuple(TelemetryPoint(*reading) for reading in rows)
