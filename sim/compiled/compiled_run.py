"""One run as a row of numbers, and runs whose router is a plan: only their beginning and end are Python."""

from __future__ import annotations

from itertools import product
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from kit.errors import WorkError
from kit.jit import Ints
from kit.random_streams import derived_seed
from policies.compiled.plan_layout import Draws, Plan, blank_observation
from policies.router_plans import CompiledRouter
from policies.vocabulary import NS_PER_S, BatchingDelayRule, GoalSet, OwnLimit
from sim.compiled.cluster_rows import Program, addressed, margin, message_margin
from sim.compiled.event_loop import NEEDS_DRAWS, NEEDS_PLAN, plan_cluster_fault, run_cluster, steps
from sim.compiled.row_layout import (
    DRAWN,
    ENDED,
    INSTANCES_FULL,
    MESSAGES_FULL,
    MICRO_BATCHES_FULL,
    NEVER,
    NO_CURVE,
    NO_TUPLE,
    NONE,
    RECORDS_FULL,
    REPLAYED,
    REQUESTS_FULL,
    BatchRow,
    Cluster,
    Device,
    DowntimeRow,
    Goal,
    MicroBatchRow,
    ReadingRow,
    RequestRow,
    SlowdownChange,
    Stages,
    UnsupportedScenario,
    problem_of,
)
from sim.fault_injection import poisoned_requests
from sim.host_and_network import DECISIONS, LINKS, RETURNS
from sim.simulated_cluster import BernoulliCorrectness, MatrixCorrectness, RunSpec
from sim.simulated_server import JITTER

MAX_NS = 9_000 * NS_PER_S  # above it, integrals of utilization need more than the 53 bits of a float
_FIRST_ROWS = 1024  # of a list of records


def request_row(segments: int) -> np.dtype[Any]:
    """Return the type of a request's complete record: `lost` is the last of its stages."""
    return np.dtype(
        [
            ("head", RequestRow.dtype),
            ("stages_ns", np.int64, (Stages.size + 1,)),
            ("servers", np.int64, (segments,)),
            ("widths", np.int64, (segments,)),
        ]
    )


class Records:
    """The lists of a run's records; they double when they are full."""

    def __init__(self, requests: int, segments: int, downtimes: int, servers: int) -> None:
        readings = _FIRST_ROWS + servers  # the first instant has one for each server
        self.requests = np.zeros(requests, request_row(segments))
        self.micro_batches, self.batches = (
            np.zeros(_FIRST_ROWS, MicroBatchRow.dtype),
            np.zeros(_FIRST_ROWS, BatchRow.dtype),
        )
        self.readings, self.variances = np.zeros(readings, ReadingRow.dtype), np.zeros(readings)
        self.downtimes = np.zeros(downtimes, DowntimeRow.dtype)

    def place_in(self, c: Cluster) -> None:
        """Store their addresses in a cluster."""
        c.request_rows_at, c.downtimes_at = addressed(self.requests), addressed(self.downtimes)
        c.micro_batch_rows_at, c.micro_batch_rows_room = addressed(self.micro_batches), len(self.micro_batches)
        c.batch_rows_at, c.batch_rows_room = addressed(self.batches), len(self.batches)
        c.reading_rows_at, c.reading_rows_room = addressed(self.readings), len(self.readings)
        c.variances_at, c.variances_room = addressed(self.variances), len(self.variances)

    def grow(self, micro_batches: int) -> None:
        """Double them; with extra room for the micro-batches that may all end at once."""
        self.micro_batches = np.concatenate(
            [self.micro_batches, np.zeros(len(self.micro_batches) + micro_batches, MicroBatchRow.dtype)]
        )
        self.batches, self.readings = np.tile(self.batches, 2), np.tile(self.readings, 2)
        self.variances = np.tile(self.variances, 2)


class RunRow:
    """A cluster's row for one run, with the memory that its addresses point to.

    Args:
        keeps: record requests (and, if the run requests detail, micro-batches, batches and telemetry).

    Attributes:
        row: the row, and `cluster`, its first record; growth replaces both.
        records: the records so far.

    Raises:
        UnsupportedScenario: the run is too long, keeps a log, or has another source of predictions.
    """

    def __init__(self, program: Program, run: RunSpec, *, keeps: bool = True) -> None:
        _require_supported(program, run)
        self.program, self.run = program, run
        planned = 2 * len(run.faults)  # steps at most
        servers = program.servers
        preloaded = sum(len(server.params.preload) for server in program.cluster.servers)
        self.shape = program.shape(
            requests=64 + 8 * servers,
            instances=margin(program) + 4 * servers + preloaded,
            micro_batches=min(servers * program.cluster.router.outstanding_micro_batches, 4 + 4 * servers),
            messages=message_margin(program) + 2 * servers,
            faults=planned + 2 * servers + 2,
            keeps=keeps,
        )
        self.row = self.shape.row()
        self.cluster = Cluster(self.row)
        self.records = Records(len(run.arrivals_ns) if keeps else 0, program.segments, planned + servers, servers)
        self._arrays: list[npt.NDArray[Any]] = []
        self._set_run()
        for fault in run.faults:
            for step in steps(fault):
                plan_cluster_fault(self.row, self.shape.parameters, *step)

    def _keep(self, array: npt.NDArray[Any]) -> int:
        self._arrays.append(array)
        return addressed(array)

    def _set_run(self) -> None:
        run, c = self.run, self.cluster
        p = self.shape.p
        arrivals = np.ascontiguousarray(run.arrivals_ns, np.int64)
        c.arrivals_at, c.arrival_count = self._keep(arrivals), len(arrivals)
        c.horizon_ns, c.limit_ns = run.horizon_ns, run.drain_limit_ns
        c.drains = run.end == "drain"
        if p.max_batching_delay_ns:
            c.may_delay = 1
            c.arrivals_end_ns = run.horizon_ns if c.drains else NEVER
        rows = (*run.goals, (0, GoalSet()))
        goals = np.array([(at_ns, *msgspec.structs.astuple(goal)) for at_ns, goal in rows], Goal.dtype)
        c.goals_at, c.goals = self._keep(goals), len(run.goals)
        c.classes_at = self._keep(np.ascontiguousarray(run.class_of, np.int64))
        deadlines_ns = [NONE if goal is None else goal for goal in run.deadlines_ns]
        c.deadlines_at = self._keep(np.array(deadlines_ns, np.int64))
        c.keeps, c.detail = self.shape.keeps, self.shape.keeps and run.detail
        c.faulty = bool(run.faults)
        c.jitter_salt, c.links_salt = derived_seed(run.seed, JITTER), derived_seed(run.seed, LINKS)
        c.decision_salt, c.returned_salt = derived_seed(run.seed, DECISIONS), derived_seed(run.seed, RETURNS)
        self._set_labels(c)
        poisoned = poisoned_requests(run.faults)
        if poisoned:
            marks = np.zeros(max(len(arrivals), max(poisoned) + 1), np.uint8)
            marks[list(poisoned)] = 1
            c.poison_at = self._keep(marks)
        for index in range(p.devices):
            device = Device(c, p.devices_at, index)
            device.slowdown_salt = derived_seed(run.seed, f"pace:{index}")
            if index in run.slowdowns:
                changes = np.array([*run.slowdowns[index], (0, 0.0)], SlowdownChange.dtype)
                device.changes_at, device.changes = self._keep(changes), len(run.slowdowns[index])
        self.records.place_in(c)
        self._set_scratch()

    def set_batching_delay_rule(self, rule: BatchingDelayRule) -> None:
        """Set the router's batching delay rule, from the run's start on."""
        if self.cluster.may_delay:
            self.cluster.has_batching_delay_rule, at = 1, self.shape.p.batching_delay_rule_at
            numbers = [*rule.requests, *rule.wait_ns, *rule.arrivals_ns]
            self.row[at : at + len(numbers)] = numbers

    def set_limit(self, limit: OwnLimit) -> None:
        """Set the router's separate limit of p99 latency, from now on."""
        self.cluster.own_limit_ns = limit.limit_ns

    def _set_scratch(self) -> None:
        self._scratch = np.zeros(self.shape.requests, np.int64)
        self.cluster.scratch_at = addressed(self._scratch)

    def _set_labels(self, c: Cluster) -> None:
        labels = self.run.correctness
        c.label_kind, table = label_table(self.program, labels)
        c.label_table_at = self._keep(table)
        if isinstance(labels, BernoulliCorrectness):
            c.labels_salt = labels.salt
        elif isinstance(labels, MatrixCorrectness):
            correct = np.ascontiguousarray(labels.correct, np.bool_).view(np.uint8)
            images = labels.images[: c.arrival_count]
            if len(images) < c.arrival_count or (len(images) and not 0 <= images.min() <= images.max() < len(correct)):
                raise ValueError(f"every request needs one of the {len(correct)} images of the matrix")
            c.labels_at, c.label_columns = self._keep(correct), correct.shape[1]
            c.images_at = self._keep(np.ascontiguousarray(labels.images, np.int64))

    def grow(self, status: int) -> None:
        """Enlarge what `advance` lacked."""
        shape = self.shape
        if status == RECORDS_FULL:
            self.records.grow(shape.micro_batches)
            self.records.place_in(self.cluster)
            return
        requests = shape.requests + (shape.requests // 2 if status == REQUESTS_FULL else 0)
        instances = shape.instances + (shape.instances // 2 if status == INSTANCES_FULL else 0)
        micro_batches = shape.micro_batches + (max(1, shape.micro_batches // 2) if status == MICRO_BATCHES_FULL else 0)
        messages = shape.messages * (2 if status == MESSAGES_FULL else 1)
        self.shape, self.row = shape.grown(self.row, requests, instances, micro_batches, messages)
        self.cluster = Cluster(self.row)
        self._set_scratch()


def label_table(program: Program, labels: object) -> tuple[int, npt.NDArray[Any]]:
    """Return by the number of a width tuple its accuracy (DRAWN), or its column of the matrix (REPLAYED).

    Raises:
        UnsupportedScenario: another kind of predictions.
    """
    if type(labels) is BernoulliCorrectness:  # a subclass may have another rule
        return DRAWN, np.array(program.by_tuple(labels.prior), np.float64)
    if type(labels) is MatrixCorrectness:
        tuples = product(program.widths, repeat=program.segments)
        return REPLAYED, np.array([labels.column.get(widths, NONE) for widths in tuples], np.int64)
    raise UnsupportedScenario(f"labels of {type(labels).__name__}")


def _require_supported(program: Program, run: RunSpec) -> None:
    used = {server.device for server in program.cluster.servers}
    for index, tables in enumerate(program.cluster.devices):
        if index not in used and (tables.slowdown is not None or index in run.slowdowns):
            raise UnsupportedScenario("a device that has a slowdown but no server")
    if run.keep_log:
        raise UnsupportedScenario("a log of every step")
    if run.horizon_ns + run.drain_limit_ns > MAX_NS:
        longest_s = (MAX_NS - run.drain_limit_ns) // NS_PER_S
        raise UnsupportedScenario(f"runs longer than {longest_s} s")


class RouterAnswer(NamedTuple):
    """The answer to a pending decision: a server, a width by number and a micro-batch size; or `BATCHING_DELAY`, the
    number of requests that ends it, and its longest time in ns."""

    server: int
    width: int
    micro_batch_size: int


NO_ANSWER: Final = RouterAnswer(NONE, NONE, NONE)
_NO_PLAN: Final = np.zeros(Plan.size, np.int64)  # its width rule is OUTSIDE
_NO_SHEET: Final = np.zeros(1, np.int64)


def go_on(run: RunRow, answer: RouterAnswer = NO_ANSWER, plan: Ints = _NO_PLAN, observation: Ints = _NO_SHEET) -> int:
    """Run a cluster as far as possible, from the answer on; returns why it stops (`run_cluster`).

    Without a plan it stops at every decision.
    """
    return run_cluster(run.row, run.shape.parameters, plan, observation, *answer)


def run_to_end(
    run: RunRow,
    planned: CompiledRouter,
    rng: np.random.Generator,
    answer: RouterAnswer = NO_ANSWER,
) -> None:
    """Let a plan make every decision of a run.

    Args:
        run: a run before its first decision, or at any later one.
        planned: the router's plan; its memory is updated.
        rng: the router's random stream; it ends as if each number had been drawn when needed.
        answer: answer to the pending decision, if already known.

    Raises:
        WorkError: the run reached an unmeasured key or tuple.
    """
    plan, observation = planned.row, blank_observation(run.program.servers)
    replan = planned.replan
    draws = Draws(plan, rng)
    try:
        while (status := go_on(run, answer, plan, observation)) != ENDED:
            answer = NO_ANSWER
            if status == NEEDS_DRAWS:
                draws.draw()
            elif status == NEEDS_PLAN and replan is not None:
                replan(plan, observation)
            elif status in (NO_CURVE, NO_TUPLE):
                raise WorkError(problem_of(status))
            else:
                run.grow(status)
    finally:
        draws.give_back()
