"""One cluster on the compiled engine, behind the interface of `sim.cluster.Simulation`: any router can decide for it.

Views, credits and records are made here from the cluster's row. They are the reference's, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from policies.chance import derived_seed
from policies.errors import WorkError
from policies.faults import NO_LABEL, OUT_OF_MEMORY, Crash, Fault, Hang, Outage, Poison, Slowness, Squeeze
from policies.interfaces import RoutingPolicy
from policies.jit import Ints, entry, ints
from policies.plan_of import plan_of
from policies.records import (
    BatchRecord,
    BlockRecord,
    DeviceTotals,
    RequestRecord,
    RequestStatus,
    RunColumns,
    RunRecord,
    ServerTotals,
    TelemetryPoint,
)
from policies.reward import RewardTerms
from policies.vocabulary import ANYWHERE, IMAGE, NS_PER_S, Choice, ClusterView, Decide, HeadKey, ServerView, WorkKey
from sim.accuracy import BernoulliCorrectness, MatrixCorrectness
from sim.cluster import ClusterSpec, RunSpec
from sim.compiled.columns import request_columns
from sim.compiled.decide import run_cluster
from sim.compiled.errors import UnsupportedScenario, problem_of
from sim.compiled.faults import plan_fault
from sim.compiled.layout import *
from sim.compiled.program import Numbers, Program, addressed, margin, program_of
from sim.compiled.rows import key_at, request_at, server_at
from sim.compiled.run_plan import NO_ANSWER, NO_PLAN, NO_SHEET, run_to_end
from sim.faults import poisoned_requests
from sim.network import LINKS

MOST_NS = 9_000 * NS_PER_S  # beyond, integrals of utilization need more than the 53 bits of a float
REASONS = {DEADLINE: "deadline", TOO_LARGE: "instance_too_large", SERVER_LOST: "server_down", UNLABELLED: NO_LABEL,
           MEMORY: OUT_OF_MEMORY, NO_REASON: ""}  # fmt: skip
_STATUS: dict[int, RequestStatus] = {COMPLETED: "completed", IN_FLIGHT: "in_flight", FAILED: "failed"}
_ENDS, _BEGINS = 0, 1


@entry
def plan_cluster_fault(row: Numbers, parameters: Numbers, fault: Ints) -> None:
    """Put a fault on a cluster's list: (when, server, order, what, argument)."""
    plan_fault(ints(row), ints(parameters), fault[0], fault[1], fault[2], fault[3], fault[4])


@entry
def read_view(row: Numbers, parameters: Numbers, out: Ints) -> int:
    """What a router may know, in one list: see `CompiledSimulation._view`; returns its length."""
    k, p = ints(row), ints(parameters)
    a = request_at(p, k[C_SLOT])
    out[0], out[1], out[2], out[3] = k[a + R_SEGMENT], k[a + R_PREVIOUS], k[a + R_LOCATION], k[C_CANDIDATES]
    out[4], out[5], out[6] = k[a + R_ENTERED], k[C_FIFO_LENGTH], k[C_COMPLETED]
    at = 7
    for index in range(p[P_SERVERS]):
        s = server_at(p, index)
        can = p[p[k[s + S_PARAMETERS] + X_HOLDS_ANY] + k[a + R_SEGMENT]]
        out[at] = 1 if k[s + S_UP] == 1 and k[s + S_BLOCKS] < p[P_CAP] and can == 1 else 0
        out[at + 1], out[at + 2], out[at + 3] = k[s + S_REQUESTS], k[s + S_BLOCKS], k[s + S_SEEN_VRAM]
        out[at + 4], out[at + 5] = k[s + S_SEEN_UTILIZATION], k[s + S_SEEN_POWER]
        count, first = 0, at + 7
        for key in range(p[P_KEYS]):
            found = key_at(p, s, key)
            if k[found + K_OUTSTANDING] > 0:
                place = first + 3 * count
                while place > first and out[place - 3] > k[found + K_SINCE]:
                    out[place], out[place + 1], out[place + 2] = out[place - 3], out[place - 2], out[place - 1]
                    place -= 3
                out[place], out[place + 1], out[place + 2] = k[found + K_SINCE], key, k[found + K_OUTSTANDING]
                count += 1
        out[at + 6] = count
        at = first + 3 * count
    return at


class _Records:
    """The lists that a run's records go to; they double when they are full."""

    def __init__(self, requests: int, segments: int, restarts: int, servers: int) -> None:
        self.requests = np.zeros((requests, A_STAGES + STAGE_COUNT + 1 + 2 * segments), np.int64)
        self.blocks = np.zeros((1024, E_SIZE), np.int64)
        self.batches = np.zeros((1024, H_SIZE), np.int64)
        self.readings = np.zeros((1024 + servers, N_SIZE), np.int64)  # the first instant has one a server
        self.variances = np.zeros(1024 + servers)
        self.restarts = np.zeros((restarts, W_SIZE), np.int64)

    def place_in(self, row: Numbers) -> None:
        row[C_REQUESTS_AT], row[C_RESTARTS_AT] = addressed(self.requests), addressed(self.restarts)
        row[C_BLOCKS_AT], row[C_BLOCKS_ROOM] = addressed(self.blocks), len(self.blocks)
        row[C_BATCHES_AT], row[C_BATCHES_ROOM] = addressed(self.batches), len(self.batches)
        row[C_READINGS_AT], row[C_READINGS_ROOM] = addressed(self.readings), len(self.readings)
        row[C_VARIANCES_AT], row[C_VARIANCES_ROOM] = addressed(self.variances), len(self.variances)

    def grow(self, blocks: int) -> None:
        self.blocks = np.concatenate([self.blocks, np.zeros((len(self.blocks) + blocks, E_SIZE), np.int64)])
        self.batches, self.readings = np.tile(self.batches, (2, 1)), np.tile(self.readings, (2, 1))
        self.variances = np.tile(self.variances, 2)


class RunRow:
    """A cluster's row for one run, with all that its addresses point to.

    Args:
        keeps: record requests (and, where the run asks for detail, blocks, batches and telemetry).

    Raises:
        UnsupportedScenario: the run is too long, keeps a log, or its labels come from elsewhere.
    """

    def __init__(self, program: Program, run: RunSpec, *, keeps: bool = True) -> None:
        _require_supported(program, run)
        self.program, self.run = program, run
        planned = sum(2 for fault in run.faults if not isinstance(fault, Poison))
        instances = margin(program) + 4 * program.servers + sum(len(s.knobs.preload) for s in program.cluster.servers)
        self.shape = program.shape(64 + 8 * program.servers, instances, planned + 2 * program.servers + 2, keeps)
        self.row = self.shape.row()
        self._records = _Records(
            len(run.arrivals_ns) if keeps else 0, program.segments, planned + program.servers, program.servers
        )
        self._kept: list[npt.NDArray[Any]] = []
        self._set_run()
        self.start()

    def start(self) -> None:
        """Plan what is planned."""
        for fault in self.run.faults:
            for planned in _steps(fault):
                plan_cluster_fault(self.row, self.shape.parameters, np.array(planned, np.int64))

    def _keep(self, array: npt.NDArray[Any]) -> int:
        self._kept.append(array)
        return addressed(array)

    def _set_run(self) -> None:
        run, row, p = self.run, self.row, self.shape.parameters
        arrivals = np.ascontiguousarray(run.arrivals_ns, np.int64)
        row[C_ARRIVALS], row[C_ARRIVAL_COUNT] = self._keep(arrivals), len(arrivals)
        row[C_HORIZON], row[C_LIMIT], row[C_DRAINS] = run.horizon_ns, run.drain_limit_ns, run.end == "drain"
        row[C_DEADLINE] = NONE if run.deadline_ns is None else run.deadline_ns
        row[C_KEEPS], row[C_DETAIL], row[C_FAULTY] = self.shape.keeps, self.shape.keeps and run.detail, bool(run.faults)
        row[C_JITTER_SALT], row[C_LINKS_SALT] = derived_seed(run.seed, "jitter"), derived_seed(run.seed, LINKS)
        self._set_labels()
        poisoned = poisoned_requests(run.faults)
        if poisoned:
            marks = np.zeros(max(len(arrivals), max(poisoned) + 1), np.uint8)
            marks[list(poisoned)] = 1
            row[C_POISON] = self._keep(marks)
        for index in range(p[P_DEVICES]):
            at = p[P_DEVICE_AT] + index * V_SIZE
            row[at + V_PACE_SALT] = derived_seed(run.seed, f"pace:{index}")
            if index in run.paces:
                changes = np.zeros((len(run.paces[index]) + 1, 2), np.int64)
                changes[:-1, 0] = [now_ns for now_ns, _ in run.paces[index]]
                changes.view(np.float64)[:-1, 1] = [factor for _, factor in run.paces[index]]
                row[at + V_CHANGES_AT], row[at + V_CHANGES] = self._keep(changes), len(run.paces[index])
        self._records.place_in(row)
        self._set_scratch()

    def _set_scratch(self) -> None:
        self._scratch = np.zeros(self.shape.requests, np.int64)
        self.row[C_SCRATCH] = addressed(self._scratch)

    def _set_labels(self) -> None:
        row, labels = self.row, self.run.correctness
        kind, table = label_table(self.program, labels)
        row[C_LABEL_KIND], row[C_LABEL_TABLE] = kind, self._keep(table)
        if isinstance(labels, BernoulliCorrectness):
            row[C_LABELS_SALT] = labels.salt
        elif isinstance(labels, MatrixCorrectness):
            correct = np.ascontiguousarray(labels.correct, np.bool_).view(np.uint8)
            images = labels.images[: row[C_ARRIVAL_COUNT]]
            if len(images) < row[C_ARRIVAL_COUNT] or (
                len(images) and not 0 <= images.min() <= images.max() < len(correct)
            ):
                raise ValueError(f"every request needs one of the {len(correct)} images of the matrix")
            row[C_LABELS], row[C_LABEL_COLUMNS] = self._keep(correct), correct.shape[1]
            row[C_IMAGES] = self._keep(np.ascontiguousarray(labels.images, np.int64))

    def grow(self, status: int) -> None:
        """Make room for what `advance` lacked."""
        shape = self.shape
        if status == RECORDS_FULL:
            self._records.grow(shape.program.servers * shape.program.cluster.router.outstanding_blocks)
            self._records.place_in(self.row)
            return
        requests = shape.requests + (shape.requests // 2 if status == REQUESTS_FULL else 0)
        instances = shape.instances + (shape.instances // 2 if status == INSTANCES_FULL else 0)
        self.shape, (self.row,) = shape.grown([self.row], requests, instances)
        self._set_scratch()

    @property
    def records(self) -> _Records:
        """What has been recorded."""
        return self._records


def _require(is_so: bool, otherwise: str) -> None:
    """An assertion that `python -O` keeps: what is wrong here would be written into memory."""
    if not is_so:
        raise AssertionError(otherwise)


def label_table(program: Program, labels: object) -> tuple[int, npt.NDArray[Any]]:
    """By the number of a width tuple: its accuracy (DRAWN), or its column of the matrix (REPLAYED).

    Raises:
        UnsupportedScenario: labels of another kind.
    """
    from itertools import product

    tuples = product(program.widths, repeat=program.segments)
    if type(labels) is BernoulliCorrectness:  # a subclass may have a rule of its own
        return DRAWN, np.array([labels.prior(widths) for widths in tuples], np.float64)
    if type(labels) is MatrixCorrectness:
        return REPLAYED, np.array([labels.column.get(widths, NONE) for widths in tuples], np.int64)
    raise UnsupportedScenario(f"labels of {type(labels).__name__}")


def _require_supported(program: Program, run: RunSpec) -> None:
    used = {server.device for server in program.cluster.servers}
    for index, tables in enumerate(program.cluster.devices):
        if index not in used and (tables.pace is not None or index in run.paces):
            raise UnsupportedScenario("a device that has a pace but no server")
    if run.keep_log:
        raise UnsupportedScenario("a log of every step")
    if run.horizon_ns + run.drain_limit_ns > MOST_NS:
        longest_s = (MOST_NS - run.drain_limit_ns) // NS_PER_S
        raise UnsupportedScenario(f"runs longer than {longest_s} s")


def _steps(fault: Fault) -> list[tuple[int, int, int, int, int]]:
    """What a fault brings about: (when, server, order, what, argument), as `FaultDriver.plan` puts it on the agenda."""
    match fault:
        case Outage(server, start_ns, end_ns):
            out = [(start_ns, server, _BEGINS, TAKE_OUT, NEVER if end_ns is None else end_ns)]
            return out if end_ns is None else [*out, (end_ns, server, _ENDS, COME_UP, 0)]
        case Slowness(server, start_ns, end_ns, factor):
            slow, full = (int(np.float64(each).view(np.int64)) for each in (factor, 1.0))
            return [(start_ns, server, _BEGINS, STRAGGLE, slow), (end_ns, server, _ENDS, STRAGGLE, full)]
        case Squeeze(server, start_ns, end_ns, batch):
            return [(start_ns, server, _BEGINS, SQUEEZE, batch), (end_ns, server, _ENDS, SQUEEZE, NONE)]
        case Crash(server, at_ns):
            return [(at_ns, server, _BEGINS, CRASH, 0)]
        case Hang(server, at_ns):
            return [(at_ns, server, _BEGINS, HANG, 0)]
        case Poison():
            return []


class CompiledSimulation:
    """One run; see `sim.cluster.Simulation`, whose interface this is.

    Raises:
        UnsupportedScenario: something that only the reference can do.
    """

    def __init__(self, cluster: ClusterSpec, run: RunSpec) -> None:
        self.cluster = cluster
        self.spec = run
        self._program = program_of(cluster)
        self._run = RunRow(self._program, run)
        self._asked: Decide | None = None
        self._credits: list[tuple[int, RewardTerms]] = []
        self._has_ended = False
        self._answer = NO_ANSWER
        most = 7 + self._program.servers * (7 + 3 * len(self._program.keys))
        self._list = np.zeros(most, np.int64)
        self._keys = [WorkKey(*key) for key in self._program.keys]
        self._masks = [[tuple(widths) for widths in server] for server in cluster.router.holds]

    @property
    def now_ns(self) -> int:
        """The present."""
        return int(self._run.row[C_NOW])

    @property
    def pending(self) -> Decide | None:
        """The decision that is waited for."""
        return self._asked

    def advance(self) -> Decide | None:
        """Run to the next decision; None when the run has ended."""
        if self._asked is not None or self._has_ended:
            return self._asked
        run = self._run
        answer, self._answer = self._answer, NO_ANSWER
        status = run_cluster(run.row, run.shape.parameters, NO_PLAN, NO_SHEET, *answer)
        while status not in (ASKED, ENDED):
            if status in (NO_CURVE, NO_TUPLE):
                raise WorkError(problem_of(status))
            run.grow(status)
            status = run_cluster(run.row, run.shape.parameters, NO_PLAN, NO_SHEET, *NO_ANSWER)
        self._take_credits()
        if status == ENDED:
            self._has_ended = True
            return None
        self._asked = Decide(int(run.row[C_DECISION]), self._view())
        return self._asked

    def decide(self, choice: Choice) -> None:
        """Answer the pending decision; it takes effect `decision_ns` after it was asked for."""
        assert self._asked is not None, "nothing was asked"
        head, widths = self._asked.view.head, self.cluster.router.widths
        width = widths.index(choice.width)
        _require(choice.group >= 1, f"an empty group: {choice}")
        _require(0 <= choice.server < len(self._masks), f"the policy chose a server that is none: {choice}")
        _require(self._masks[choice.server][head.segment - 1][width], f"the policy chose a masked width: {choice}")
        _require(self._asked.view.servers[choice.server].valid, f"the policy chose a server at its cap: {choice}")
        self._asked = None
        self._answer = (choice.server, width, choice.group)

    def run(self, policy: RoutingPolicy, rng: np.random.Generator) -> RunRecord:
        """Let a policy make every decision.

        A router that has a compiled form (`policies.plan_of`) decides in it: it makes the same decisions, and it
        and `rng` are left as if it had been asked for each; only the credits of the run are not kept.
        """
        self.finish(policy, rng)
        return self.record()

    def finish(self, policy: RoutingPolicy, rng: np.random.Generator) -> None:
        """The same, for who wants no record."""
        planned = plan_of(policy, self.cluster.router) if type(rng) is np.random.Generator else None
        if planned is not None and not self._has_ended:
            try:
                run_to_end(self._run, planned.row, rng, planned.replan, self._answer)
            finally:
                planned.keep()
            self._asked, self._answer, self._has_ended = None, NO_ANSWER, True
            return
        while (asked := self.advance()) is not None:
            self.decide(policy.choose(asked.view, rng))

    def take_credits(self) -> list[tuple[int, RewardTerms]]:
        """(decision, reward) of the blocks that have ended since the last call."""
        credits, self._credits = self._credits, []
        return credits

    def _take_credits(self) -> None:
        row, p = self._run.row, self._run.shape.parameters
        count = int(row[C_CREDITS])
        if count:
            found = row[p[P_CREDITS_AT] : p[P_CREDITS_AT] + count * D_SIZE].reshape(count, D_SIZE)
            terms = found.view(np.float64)[:, D_ACCURACY:D_TOTAL].tolist()
            decisions = found[:, D_DECISION].tolist()
            self._credits += [(d, RewardTerms(*each)) for d, each in zip(decisions, terms, strict=True)]
            row[C_CREDITS] = 0

    def _view(self) -> ClusterView:
        run, widths = self._run, self._program.widths
        length = read_view(run.row, run.shape.parameters, self._list)
        values, reals = self._list[:length].tolist(), self._list[:length].view(np.float64)
        segment, x, location = values[0] + 1, values[1], values[2]
        if self.cluster.router.block_key == "any":
            location = ANYWHERE
        servers, at = [], 7
        for masks in self._masks:
            count = values[at + 6]
            end = at + 7 + 3 * count
            found = values[at + 7 : end]
            servers.append(
                ServerView(
                    valid=bool(values[at]),
                    widths=masks[segment - 1],
                    outstanding_requests=values[at + 1],
                    outstanding_blocks=values[at + 2],
                    outstanding={self._keys[key]: n for key, n in zip(found[1::3], found[2::3], strict=True)},
                    utilization=float(reals[at + 4]),
                    power_w=float(reals[at + 5]),
                    vram_used_bytes=values[at + 3],
                )
            )
            at = end
        head = HeadKey(segment, IMAGE if x == 0 else widths[x - 1], location)
        return ClusterView(self.now_ns, head, values[3], values[4], values[5], values[6], tuple(servers))

    # ------------------------------------------------------------------------------------------------------ records

    def record(self) -> RunRecord:
        """What the run left behind; it must have ended."""
        assert self._has_ended, "the run has not ended"
        row, records, is_detailed = self._run.row, self._run.records, self.spec.detail
        ended_ns = int(row[C_ENDED])
        return RunRecord(
            ended_ns=ended_ns,
            requests=self._requests(is_detailed),
            blocks=self._blocks() if is_detailed else (),
            batches=self._batches() if is_detailed else (),
            telemetry=self._telemetry() if is_detailed else (),
            servers=tuple(self._server_totals(index, ended_ns) for index in range(self._program.servers)),
            devices=tuple(self._device_totals(index, ended_ns) for index in range(len(self.cluster.devices))),
            gpu_var=tuple(records.variances[: row[C_VARIANCES]].tolist()) if is_detailed else (),
            decisions=int(row[C_DECISION]),
            restarts_ns=tuple((a, b, c) for a, b, c in records.restarts[: row[C_RESTARTS]].tolist()),
        )

    def columns(self) -> RunColumns:
        """What the run's figures are computed from, without an object for each request; it must have ended."""
        assert self._has_ended, "the run has not ended"
        row, records, is_detailed = self._run.row, self._run.records, self.spec.detail
        found = records.requests[: row[C_REQUEST_RECORDS]]
        ended_ns, variances = int(row[C_ENDED]), int(row[C_VARIANCES]) if is_detailed else 0
        reasons = tuple(REASONS[number] for number in range(len(REASONS)))
        return RunColumns(
            ended_ns=ended_ns,
            requests=request_columns(found, self._program.segments, self._program.widths, reasons, is_detailed),
            servers=tuple(self._server_totals(index, ended_ns) for index in range(self._program.servers)),
            devices=tuple(self._device_totals(index, ended_ns) for index in range(len(self.cluster.devices))),
            gpu_var=records.variances[:variances],
            decisions=int(row[C_DECISION]),
            restarts_ns=tuple((a, b, c) for a, b, c in records.restarts[: row[C_RESTARTS]].tolist()),
        )

    def _requests(self, is_detailed: bool) -> tuple[RequestRecord, ...]:
        found = self._run.records.requests[: self._run.row[C_REQUEST_RECORDS]]
        energies, segments, widths = (
            found[:, A_ENERGY].view(np.float64).tolist(),
            self._program.segments,
            (self._program.widths),
        )
        stages, rest = A_STAGES + STAGE_COUNT + 1, A_STAGES + STAGE_COUNT + 1 + segments
        return tuple(
            RequestRecord(
                request=each[A_ID],
                arrived_ns=each[A_ARRIVED],
                finished_ns=each[A_FINISHED],
                status=_STATUS[each[A_FATE]],
                reason=REASONS[each[A_REASON]],
                retries=each[A_RETRIES],
                widths=tuple(widths[w] for w in each[rest : rest + each[A_LENGTH]]),
                servers=tuple(each[stages : stages + each[A_LENGTH]]),
                correct=bool(each[A_CORRECT]),
                energy_j=energy_j,
                stages_ns=tuple(each[A_STAGES:stages]) if is_detailed else (),
            )
            for each, energy_j in zip(found.tolist(), energies, strict=True)
        )

    def _head(self, line: int) -> HeadKey:
        rest, place = divmod(line, self._program.servers + 2)
        segment, x = divmod(rest, self._program.width_count + 1)
        return HeadKey(segment + 1, IMAGE if x == 0 else self._program.widths[x - 1], place - 2)

    def _blocks(self) -> tuple[BlockRecord, ...]:
        found = self._run.records.blocks[: self._run.row[C_BLOCK_RECORDS]]
        reals = found.view(np.float64)[:, E_LATENCY : E_CREDIT + 5].tolist()
        return tuple(
            BlockRecord(
                decision=each[E_DECISION],
                head=self._head(each[E_LINE]),
                server=each[E_SERVER],
                width=self._keys[each[E_KEY]].width,
                size=each[E_COUNT],
                snapshot_ns=each[E_SNAPSHOT],
                sent_ns=each[E_SENT],
                arrived_ns=each[E_ARRIVED],
                ended_ns=each[E_ENDED],
                latency_s=latency_s,
                reward=RewardTerms(*terms),
            )
            for each, (latency_s, *terms) in zip(found.tolist(), reals, strict=True)
        )

    def _batches(self) -> tuple[BatchRecord, ...]:
        widths = self._program.widths
        return tuple(
            BatchRecord(
                server=each[H_SERVER],
                batch=each[H_BATCH],
                instance=each[H_INSTANCE],
                segment=each[H_SEGMENT] + 1,
                width=widths[each[H_WIDTH]],
                previous_width=IMAGE if each[H_PREVIOUS] == 0 else widths[each[H_PREVIOUS] - 1],
                size=each[H_COUNT],
                commanded_ns=each[H_COMMANDED],
                started_ns=each[H_STARTED],
                forward_ended_ns=each[H_ENDED],
                ended_ns=each[H_ENDED],
            )
            for each in self._run.records.batches[: self._run.row[C_BATCH_RECORDS]].tolist()
        )

    def _telemetry(self) -> tuple[TelemetryPoint, ...]:
        found = self._run.records.readings[: self._run.row[C_READINGS]]
        reals = found.view(np.float64)
        return tuple(
            TelemetryPoint(server, sampled_ns, utilization, power_w, vram, queued)
            for (server, sampled_ns, _, _, vram, queued), utilization, power_w in zip(
                found.tolist(), reals[:, N_UTILIZATION].tolist(), reals[:, N_POWER].tolist(), strict=True
            )
        )

    def _server_totals(self, index: int, ended_ns: int) -> ServerTotals:
        row, p, spec = self._run.row, self._run.shape.parameters, self.cluster.servers[index]
        s, d = p[P_SERVER_AT] + index * p[P_SERVER_SIZE], p[P_DEVICE_AT] + spec.device * V_SIZE
        busy = int(row[d + V_BUSY_NS]) + int(row[d + V_BUSY]) * (ended_ns - int(row[d + V_UPDATED]))
        return ServerTotals(
            name=spec.name,
            device=spec.device,
            busy_s=busy / NS_PER_S / 1000,
            images=int(row[s + S_IMAGES]),
            batches=int(row[s + S_BATCHES]),
            loads=int(row[s + S_LOADS]),
            unloads=int(row[s + S_UNLOADS]),
            vram_peak_bytes=int(row[s + S_PEAK]),
        )

    def _device_totals(self, index: int, ended_ns: int) -> DeviceTotals:
        row, tables = self._run.row, self.cluster.devices[index]
        reals, d = row.view(np.float64), self._run.shape.parameters[P_DEVICE_AT] + index * V_SIZE
        elapsed_ns = ended_ns - int(row[d + V_UPDATED])
        energy_mj = (float(reals[d + V_ENERGY]) + float(reals[d + V_POWER]) * elapsed_ns) / NS_PER_S
        open_ns = elapsed_ns if row[d + V_IS_EXTRAPOLATED] else 0
        power = tables.profile.power
        return DeviceTotals(
            name=tables.name,
            energy_j=energy_mj / 1000,
            bare_idle_w=power.bare_idle_w,
            context_idle_w=power.context_idle_w,
            extrapolated_s=(int(row[d + V_EXTRAPOLATED_NS]) + open_ns) / NS_PER_S,
        )
