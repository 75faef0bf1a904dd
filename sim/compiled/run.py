"""One run as a row of numbers: the row of its cluster, and all that the row's addresses point to."""

from __future__ import annotations

from itertools import accumulate, product
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kit.chance import derived_seed
from kit.units import nanoseconds
from policies.division import ROUTERS, Division, Territory
from policies.vocabulary import IMAGE, NS_PER_S, GoalSet, HoldRule, OwnLimit
from sim.accuracy import BernoulliCorrectness, MatrixCorrectness
from sim.cluster import RunSpec
from sim.compiled import layout
from sim.compiled.codes import (
    BLOCKS_FULL,
    DRAWN,
    INSTANCES_FULL,
    MESSAGES_FULL,
    NEVER,
    NONE,
    RECORDS_FULL,
    REPLAYED,
    REQUESTS_FULL,
)
from sim.compiled.errors import UnsupportedScenario
from sim.compiled.faults import plan_cluster_fault, steps
from sim.compiled.layout import (
    SEAT,
    SEAT_AT,
    BatchRow,
    BlockRow,
    Cluster,
    Death,
    Device,
    DowntimeRow,
    Goal,
    ReadingRow,
    RequestRow,
    Server,
    SlowdownChange,
    Stages,
    Word,
)
from sim.compiled.program import Program, addressed, margin, message_margin
from sim.costs import input_bytes
from sim.divided import HANDOVERS, WORDS
from sim.faults import poisoned_requests
from sim.host import DECISIONS, RETURNS
from sim.network import LINKS
from sim.profile import Link
from sim.server import BACK, DISPATCH, JITTER, THERE

MAX_NS = 9_000 * NS_PER_S  # beyond, integrals of utilization need more than the 53 bits of a float
_FIRST_ROWS = 1024  # of a list of records


def request_row(segments: int) -> np.dtype[Any]:
    """A request's record, whole: `lost` is the last of its stages."""
    return np.dtype(
        [
            ("head", RequestRow.dtype),
            ("stages_ns", np.int64, (Stages.size + 1,)),
            ("servers", np.int64, (segments,)),
            ("widths", np.int64, (segments,)),
        ]
    )


class Records:
    """The lists that a run's records go to; they double when they are full."""

    def __init__(self, requests: int, segments: int, downtimes: int, servers: int) -> None:
        readings = _FIRST_ROWS + servers  # the first instant has one a server
        self.requests = np.zeros(requests, request_row(segments))
        self.blocks, self.batches = np.zeros(_FIRST_ROWS, BlockRow.dtype), np.zeros(_FIRST_ROWS, BatchRow.dtype)
        self.readings, self.variances = np.zeros(readings, ReadingRow.dtype), np.zeros(readings)
        self.downtimes = np.zeros(downtimes, DowntimeRow.dtype)

    def place_in(self, c: Cluster) -> None:
        """Tell a cluster where they are."""
        c.request_rows_at, c.downtimes_at = addressed(self.requests), addressed(self.downtimes)
        c.block_rows_at, c.block_rows_room = addressed(self.blocks), len(self.blocks)
        c.batch_rows_at, c.batch_rows_room = addressed(self.batches), len(self.batches)
        c.reading_rows_at, c.reading_rows_room = addressed(self.readings), len(self.readings)
        c.variances_at, c.variances_room = addressed(self.variances), len(self.variances)

    def grow(self, blocks: int) -> None:
        """Make them twice as long; and so many blocks beyond that may all end at once."""
        self.blocks = np.concatenate([self.blocks, np.zeros(len(self.blocks) + blocks, BlockRow.dtype)])
        self.batches, self.readings = np.tile(self.batches, 2), np.tile(self.readings, 2)
        self.variances = np.tile(self.variances, 2)


class RunRow:
    """A cluster's row for one run, with all that its addresses point to.

    Args:
        keeps: record requests (and, where the run asks for detail, blocks, batches and telemetry).
        parts: how several routers divide the cluster, and the link between any two of them; None where there is one.

    Attributes:
        row: it, and `cluster` is its beginning; both are others when it has grown.
        records: what has been recorded.

    Raises:
        UnsupportedScenario: the run is too long, keeps a log, or its labels come from elsewhere.
    """

    def __init__(
        self, program: Program, run: RunSpec, *, keeps: bool = True, parts: tuple[Division, Link] | None = None
    ) -> None:
        _require_supported(program, run)
        self.program, self.run = program, run
        servers = program.servers
        self.routers, deaths = (parts[0].count, len(parts[0].deaths)) if parts else (1, 0)
        planned = 2 * len(run.faults) + deaths * servers  # steps at most
        preloaded = sum(len(server.knobs.preload) for server in program.cluster.servers)
        self.shape = program.shape(
            requests=64 + 8 * servers,
            instances=margin(program) + 4 * servers + preloaded,
            blocks=min(servers * program.cluster.router.outstanding_blocks, 4 + 4 * servers),
            messages=message_margin(program) + 2 * servers,
            faults=planned + 2 * servers + 2,
            keeps=keeps,
            routers=self.routers,
        )
        self.row = self.shape.row()
        self.cluster = Cluster(self.row)
        self.records = Records(len(run.arrivals_ns) if keeps else 0, program.segments, planned + servers, servers)
        self._kept: list[npt.NDArray[Any]] = []
        self._set_run()
        if parts is not None:
            self._divide(*parts)
        for fault in run.faults:
            for each in steps(fault):
                plan_cluster_fault(self.row, self.shape.parameters, *each)

    def _keep(self, array: npt.NDArray[Any]) -> int:
        self._kept.append(array)
        return addressed(array)

    def _set_run(self) -> None:
        run, c, p = self.run, self.cluster, self.shape.p
        arrivals = np.ascontiguousarray(run.arrivals_ns, np.int64)
        c.arrivals_at, c.arrival_count = self._keep(arrivals), len(arrivals)
        c.horizon_ns, c.limit_ns, c.drains = run.horizon_ns, run.drain_limit_ns, run.end == "drain"
        if p.max_batching_delay_ns:
            c.may_hold = 1
            c.arrivals_end_ns = run.horizon_ns if c.drains else NEVER
        rows = (*run.goals, (0, GoalSet()))
        goals = np.array([(at_ns, *msgspec.structs.astuple(each)) for at_ns, each in rows], Goal.dtype)
        c.goals_at, c.goals = self._keep(goals), len(run.goals)
        c.classes_at = self._keep(np.ascontiguousarray(run.class_of, np.int64))
        deadlines_ns = [NONE if each is None else each for each in run.deadlines_ns]
        c.deadlines_at = self._keep(np.array(deadlines_ns, np.int64))
        c.keeps, c.detail, c.faulty = self.shape.keeps, self.shape.keeps and run.detail, bool(run.faults)
        c.jitter_salt, c.dispatch_salt = derived_seed(run.seed, JITTER), derived_seed(run.seed, DISPATCH)
        c.there_salt, c.back_salt = derived_seed(run.seed, THERE), derived_seed(run.seed, BACK)
        c.decision_salt, c.returned_salt = derived_seed(run.seed, DECISIONS), derived_seed(run.seed, RETURNS)
        c.links_salt = derived_seed(run.seed, LINKS)
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

    def _divide(self, division: Division, link: Link) -> None:
        """What `sim.compiled.division` reads; all that a dead router leaves is known before the run."""
        c, p, run, count = self.cluster, self.shape.p, self.run, division.count
        d = layout.Division.blank()
        c.division_at = self._keep(d.numbers)
        territory = Territory(division, derived_seed(run.seed, ROUTERS))
        owners, deaths = [list(territory.owner)], sorted(division.deaths, key=lambda death: death[1])
        d.edges_at, d.shares_at = (
            self._keep(np.array([*reals], np.float64)) for reals in (accumulate(territory.shares), territory.shares)
        )
        d.alive_at = self._keep(np.ones(count, np.int64))
        for router, _ in deaths:
            territory.bury(router)
            owners.append(list(territory.owner))
        d.owners_at = self._keep(np.array(owners, np.int64))
        d.deaths_at = self._keep(np.array([(at_ns, router) for router, at_ns in deaths] + [(NEVER, 0)], Death.dtype))
        d.waiting_at = self._keep(np.zeros((count, count)))
        d.dealt_salt = derived_seed(run.seed, ROUTERS)
        d.handover_salt, d.words_salt = derived_seed(run.seed, HANDOVERS), derived_seed(run.seed, WORDS)
        d.image_bytes = input_bytes(self.program.cluster.devices[0], 1, IMAGE)
        d.loss, d.latency_s, d.bandwidth_bytes_s = link.loss, link.latency_s, link.bandwidth_bytes_s
        if division.handover_at is not None:
            d.handover_at, d.told_every_ns = division.handover_at, division.told_every_ns
            d.words_ns = division.told_every_ns
            d.words_room = nanoseconds(link.latency_s) // division.told_every_ns + 2
            d.words_at = self._keep(np.zeros(d.words_room * (Word.size + count), np.int64))
        c.faulty = c.faulty or bool(deaths)
        for index in range(p.servers):
            Server(c, p.servers_at + index * p.server_size).owner = owners[0][index]
        seats = np.tile(self.row[[*range(SEAT_AT, SEAT_AT + SEAT), *range(p.valid_at, p.observed_at)]], (count, 1))
        seats[:, Cluster.offsets["decision"] - SEAT_AT] += np.arange(count)
        self._seats = seats
        c.seats_at = self._keep(seats)

    def set_hold_rule(self, rule: HoldRule) -> None:
        """What the router holds without a decision, from the run's start on."""
        if self.cluster.may_hold:
            self.cluster.has_hold_rule, at = 1, self.shape.p.hold_rule_at
            numbers = [*rule.requests, *rule.wait_ns, *rule.arrivals_ns]
            self.row[at : at + len(numbers)] = numbers

    def set_limit(self, limit: OwnLimit) -> None:
        """The own limit of p99 latency, from now on, of the router that has the seat."""
        self.cluster.own_limit_ns = limit.limit_ns

    def set_limits(self, limit: OwnLimit) -> None:
        """The same for each of several routers."""
        if self.routers > 1:
            self._seats[:, Cluster.offsets["own_limit_ns"] - SEAT_AT] = limit.limit_ns
        self.set_limit(limit)

    @property
    def decisions(self) -> int:
        """How many the routers have been asked for."""
        if self.routers == 1:
            return self.cluster.decision
        last = self._seats[:, Cluster.offsets["decision"] - SEAT_AT].copy()
        last[self.cluster.place] = self.cluster.decision
        return int(((last - np.arange(self.routers) - 1 + self.routers) // self.routers).sum())

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
        """Make room for what `advance` lacked."""
        shape = self.shape
        if status == RECORDS_FULL:
            self.records.grow(shape.blocks)
            self.records.place_in(self.cluster)
            return
        requests = shape.requests + (shape.requests // 2 if status == REQUESTS_FULL else 0)
        instances = shape.instances + (shape.instances // 2 if status == INSTANCES_FULL else 0)
        blocks = shape.blocks + (max(1, shape.blocks // 2) if status == BLOCKS_FULL else 0)
        messages = shape.messages * (2 if status == MESSAGES_FULL else 1)
        self.shape, self.row = shape.grown(self.row, requests, instances, blocks, messages)
        self.cluster = Cluster(self.row)
        self._set_scratch()


def label_table(program: Program, labels: object) -> tuple[int, npt.NDArray[Any]]:
    """By the number of a width tuple: its accuracy (DRAWN), or its column of the matrix (REPLAYED).

    Raises:
        UnsupportedScenario: labels of another kind.
    """
    if type(labels) is BernoulliCorrectness:  # a subclass may have a rule of its own
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
