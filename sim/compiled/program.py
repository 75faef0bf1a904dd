"""A cluster compiled to a row of parameters, and the shape of the rows that its runs live in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import log1p
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.reward import AccuracyPrior
from policies.vocabulary import IMAGE
from sim.cluster import ClusterSpec
from sim.compiled.errors import UnsupportedScenario
from sim.compiled.layout import *
from sim.costs import input_bytes
from sim.server import ServerSpec
from sim.tables import DeviceTables

Numbers = npt.NDArray[np.int64]
MOST_TUPLES = 1 << 18  # width tuples that a table is made of
_KEPT = 8  # programs remembered


class _Writer:
    """A row that grows: `add` returns where what it was given begins. Equal parts stand there once."""

    def __init__(self, size: int) -> None:
        self._parts: list[Numbers] = [np.zeros(size, np.int64)]
        self._size = size
        self._known: dict[bytes, int] = {}

    def add(self, values: npt.ArrayLike, kind: type = np.int64) -> int:
        part = np.ascontiguousarray(np.asarray(values, dtype=kind).ravel()).view(np.int64)
        text = part.tobytes()
        if text not in self._known:
            self._known[text] = self._size
            self._parts.append(part)
            self._size += len(part)
        return self._known[text]

    def reserve(self, size: int) -> int:
        self._parts.append(np.zeros(size, np.int64))
        self._size += size
        return self._size - size

    def row(self) -> Numbers:
        return np.concatenate(self._parts)


class Program:
    """A cluster's parameters, without the sizes of pools (`row` adds them).

    Raises:
        UnsupportedScenario: more width tuples than a table can hold.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        config = cluster.router
        self.cluster = cluster
        self._shapes: dict[tuple[int, int, int, bool], Shape] = {}
        self.widths = config.widths
        self.servers, self.segments, self.width_count = config.servers, config.segments, len(config.widths)
        if self.width_count**self.segments > MOST_TUPLES:
            raise UnsupportedScenario(f"{self.width_count}^{self.segments} width tuples (at most {MOST_TUPLES})")
        self.keys = [
            (s, w, x) for s in range(1, self.segments + 1) for w in config.widths for x in (IMAGE, *config.widths)
        ]  # the number of a key is its place here
        self.group = max(config.groups)
        self._writer = _Writer(P_SIZE)
        self._server_parameters = self._writer.reserve(X_SIZE * self.servers)
        self._device_parameters = self._writer.reserve(Z_SIZE * len(cluster.devices))
        self.media = list(dict.fromkeys(server.attachment.medium for server in cluster.servers))
        servers = [self._server(index, spec) for index, spec in enumerate(cluster.servers)]
        devices = [self._device(index, tables) for index, tables in enumerate(cluster.devices)]
        prior, levels = self._prior(cluster.prior)
        logs = self._writer.add(_logs())
        self.parameters = self._writer.row()
        for at, fields in (*servers, *devices):
            _fill(self.parameters, at, fields)
        _fill(self.parameters, 0, self._header(prior, levels, logs))

    def shape(self, requests: int, instances: int, faults: int, keeps: bool) -> Shape:
        """The shape with pools of these sizes; runs share it, and with it one row of parameters."""
        sizes = (requests, instances, faults, keeps)
        if sizes not in self._shapes:
            self._shapes[sizes] = Shape(self, *sizes)
        return self._shapes[sizes]

    # --------------------------------------------------------------------------------------------------- parameters

    def _header(self, prior: int, levels: int, logs: int) -> dict[int, int | float]:
        cluster, config, rules = self.cluster, self.cluster.router, self.cluster.supervision
        weights = cluster.weights
        leaves = 1
        while leaves < self.servers:
            leaves *= 2
        return {
            P_SERVERS: self.servers,
            P_DEVICES: len(cluster.devices),
            P_SEGMENTS: self.segments,
            P_WIDTHS: self.width_count,
            P_KEYS: len(self.keys),
            P_SPECS: self.segments * self.width_count,
            P_LINES: self.segments * (self.width_count + 1) * (self.servers + 2),
            P_CAP: config.outstanding_blocks,
            P_GROUP: self.group,
            P_MOVES: 1 if config.block_key == "location" else self.group,
            P_LEAVES: leaves,
            P_MEDIA: len(self.media),
            P_DECISION_NS: cluster.decision_ns,
            P_BUSY_NS: cluster.decision_busy_ns,
            P_ANYWHERE: int(config.block_key == "any"),
            P_RETRIES: config.max_retries,
            P_SHEDS: int(config.shed_expired),
            P_ALPHA: float(weights.alpha),
            P_BETA: float(weights.beta),
            P_GAMMA: float(weights.gamma),
            P_DELTA: float(weights.delta),
            P_BONUS: float(weights.bonus),
            P_CENTRE: int(weights.centre),
            P_MEAN_TOP1: float(cluster.prior.mean_top1),
            P_PRIOR: prior,
            P_PRIOR_LEVELS: levels,
            P_HANG_NS: rules.hang_ns,
            P_BACKOFF_NS: rules.backoff_ns,
            P_BACKOFF_LIMIT_NS: rules.backoff_limit_ns,
            P_STABLE_NS: rules.stable_ns,
            P_START_NS: rules.start_ns,
            P_SERVER_PARAMETERS: self._server_parameters,
            P_DEVICE_PARAMETERS: self._device_parameters,
            P_LOGS: logs,
            P_LOGS_COUNT: LOGS_TABULATED,
        }

    def _prior(self, prior: AccuracyPrior) -> tuple[int, int]:
        """p_acc by prefix, level by level, and where each level begins in it."""
        values: list[float] = []
        levels = []
        for length in range(1, self.segments + 1):
            levels.append(len(values))
            values += [prior(widths) for widths in product(self.widths, repeat=length)]
        return self._writer.add(values, np.float64), self._writer.add(levels)

    def _server(self, index: int, spec: ServerSpec) -> tuple[int, dict[int, int | float]]:
        knobs, link, add = spec.knobs, spec.attachment.link, self._writer.add
        specs = [(s, w) for s in range(1, self.segments + 1) for w in self.widths]
        holds = self.cluster.router.holds[index]
        return self._server_parameters + index * X_SIZE, {
            X_DEVICE: spec.device,
            X_BATCH_LIMIT: knobs.batch_limit,
            X_CAP: knobs.vram_cap_bytes,
            X_UTILIZATION_BLOCK: float(knobs.utilization_block),
            X_IDLE_NS: NONE if knobs.idle_unload_ns is None else knobs.idle_unload_ns,
            X_TRIGGER: knobs.scale_trigger,
            X_SCALE_CAP: knobs.scale_cap,
            X_BLOCKS: int(knobs.head_of_line == "block"),
            X_SKIP_NS: knobs.skip_limit_ns,
            X_AS_INSTANCE: int(knobs.served_width == "instance"),
            X_PADDED: add([*knobs.padded_sizes, NONE]),
            X_PADDED_COUNT: len(knobs.padded_sizes),
            X_PRELOAD: add([*(specs.index(each) for each in knobs.preload), NONE]),
            X_PRELOAD_COUNT: len(knobs.preload),
            X_LOAD_RETRIES: knobs.load_retries,
            X_LOAD_BACKOFF_NS: knobs.load_backoff_ns,
            X_CONTEXT: knobs.context_bytes,
            X_MEDIUM: self.media.index(spec.attachment.medium),
            X_LATENCY: float(link.latency_s),
            X_BANDWIDTH: float(link.bandwidth_bytes_s),
            X_LOSS: float(link.loss),
            X_INSTANCE_BYTES: add([knobs.instance_bytes.get(each, 0) for each in specs]),
            X_CAN_HOLD: add([knobs.can_hold(each) for each in specs]),
            X_HOLDS: add([held for segment in holds for held in segment]),
            X_HOLDS_ANY: add([any(segment) for segment in holds]),
            X_CODES: add([sum(held << w for w, held in enumerate(segment)) for segment in holds]),
            X_POWER_LIMIT: float(self.cluster.devices[spec.device].profile.power.cap_w),
        }

    def _device(self, index: int, tables: DeviceTables) -> tuple[int, dict[int, int | float]]:
        add, pace = self._writer.add, tables.pace
        servers = [number for number, server in enumerate(self.cluster.servers) if server.device == index]
        specs = [(s, w) for s in range(1, self.segments + 1) for w in self.widths]
        costs = [tables.instances.get(each) for each in specs]
        return self._device_parameters + index * Z_SIZE, {
            Z_TABLE: self._table(tables),
            Z_LIMIT: tables.batch_limit,
            Z_CROWDING: add(_packed(tables.crowding)),
            Z_CROWDING_ACROSS: add(_packed(tables.crowding_across)),
            Z_HOSTED: int(tables.hosted),
            Z_MOST: float(tables.most_at_once),
            Z_MOST_PROCESSES: float(tables.most_processes),
            Z_ALPHA: float(tables.alpha),
            Z_IDLE_MW: float(tables.context_idle_mw),
            Z_CAP_MW: float(tables.cap_mw),
            Z_THROTTLE: float(tables.throttle),
            Z_PHI_MIN: float(tables.phi_min),
            Z_PERIOD: tables.period_ns,
            Z_LAG: tables.lag_ns,
            Z_POWER_WINDOW: tables.power_window,
            Z_UTILIZATION_WINDOW: tables.utilization_window,
            Z_DISPATCH: tables.dispatch_ns,
            Z_COSTS: add([[c.load_ns, c.reload_ns, c.unload_ns] if c else [0, 0, 0] for c in costs]),
            Z_BYTES: add(self._input_bytes(tables)),
            Z_SERVERS: add([*servers, NONE]),
            Z_SERVER_COUNT: len(servers),
            Z_MEAN_PACE: float(tables.mean_pace),
            Z_PACE: int(pace is not None),
            Z_SLOW_FACTOR: float(pace.slow_factor) if pace else 1.0,
            Z_FULL: add(pace.full_ns) if pace else 0,
            Z_FULL_COUNT: len(pace.full_ns) if pace else 0,
            Z_FULL_SUM: sum(pace.full_ns) if pace else 0,
            Z_SLOW: add(pace.slow_ns) if pace else 0,
            Z_SLOW_COUNT: len(pace.slow_ns) if pace else 0,
            Z_SLOW_SUM: sum(pace.slow_ns) if pace else 0,
        }

    def _input_bytes(self, tables: DeviceTables) -> list[int]:
        """By segment and previous width; segment 1 takes images, whatever came before."""
        return [
            0 if x == IMAGE and s > 1 else input_bytes(tables, s, x)
            for s in range(1, self.segments + 1)
            for x in (IMAGE, *self.widths)
        ]

    def _table(self, tables: DeviceTables) -> int:
        """One record for each key and batch size; a key without a curve has latency NONE."""
        rows = np.zeros((len(self.keys), tables.batch_limit + 1, U_SIZE), np.int64)
        rows[:, :, U_LATENCY] = rows[:, :, U_JITTER] = NONE
        reals = rows.view(np.float64)
        known: dict[int, int] = {}
        for number, key in enumerate(self.keys):
            table = tables.keys.get(key)
            if table is None:
                continue
            columns = (U_LATENCY, U_TYPICAL, U_DEMAND, U_HOST, U_BUSY)
            values = (
                table.latency_ns, table.typical_ns, table.demand_permille, table.host_permille, table.busy_permille
            )  # fmt: skip
            for column, of_size in zip(columns, values, strict=True):
                rows[number, :, column] = of_size
            reals[number, :, U_BANDWIDTH], reals[number, :, U_POWER] = table.bandwidth, table.power_mw
            for size, quantiles in enumerate(table.jitter):
                if id(quantiles) not in known:
                    known[id(quantiles)] = self._writer.add(quantiles, np.float64)
                rows[number, size, U_JITTER], rows[number, size, U_JITTERS] = known[id(quantiles)], len(quantiles)
        return self._writer.add(rows)


@lru_cache(maxsize=1)
def _logs() -> Numbers:
    """log1p of the first integers, as a policy sees them."""
    return np.array([np.float32(log1p(n)) for n in range(LOGS_TABULATED)], np.float64).view(np.int64)


@lru_cache(maxsize=64)
def _packed(reals: tuple[float, ...]) -> Numbers:
    """A table of reals; there are few, and each belongs to many devices."""
    return np.array(reals, np.float64).view(np.int64)


def _fill(row: Numbers, at: int, fields: dict[int, int | float]) -> None:
    reals = row.view(np.float64)
    for field, value in fields.items():
        if isinstance(value, float):
            reals[at + field] = value
        else:
            row[at + field] = value


_programs: OrderedDict[int, Program] = OrderedDict()


def program_of(cluster: ClusterSpec) -> Program:
    """The program of a cluster, made once for one object."""
    found = _programs.get(id(cluster))
    if found is None or found.cluster is not cluster:
        found = _programs[id(cluster)] = Program(cluster)
        while len(_programs) > _KEPT:
            _programs.popitem(last=False)
    return found


class Shape:
    """A program with the sizes of its pools: the row of parameters, and how to make a cluster's row.

    Args:
        requests, instances: slots of the pools.
        faults: planned ones and those that follow from them, at once.
        keeps: whether requests are recorded.
    """

    def __init__(self, program: Program, requests: int, instances: int, faults: int, keeps: bool) -> None:
        self.program = program
        self.requests, self.instances, self.faults, self.keeps = requests, instances, faults, keeps
        self.parameters = program.parameters.copy()
        p = self.parameters
        sensors = [max(d.power_window, d.utilization_window) + 1 for d in program.cluster.devices]
        reports = [d.lag_ns // d.period_ns + 2 for d in program.cluster.devices]
        p[P_SENSOR], p[P_REPORTS] = max(sensors), max(reports)
        p[P_KEYS_AT] = S_ORDER + p[P_KEYS]
        p[P_SPECS_AT] = p[P_KEYS_AT] + p[P_KEYS] * K_SIZE
        p[P_REPORTS_AT] = p[P_SPECS_AT] + p[P_SPECS] * Q_SIZE
        p[P_SENSOR_AT] = p[P_REPORTS_AT] + p[P_REPORTS] * T_SIZE
        p[P_SERVER_SIZE] = p[P_SENSOR_AT] + p[P_SENSOR] * G_SIZE
        p[P_MEMBERS_AT] = B_SIZE + p[P_MOVES] * O_SIZE
        p[P_BLOCK_SIZE] = p[P_MEMBERS_AT] + p[P_GROUP] * M_SIZE
        life = L_SERVERS + p[P_SEGMENTS] * (2 + STAGE_COUNT) if keeps else 0
        p[P_REQUEST_SIZE] = R_SIZE + life
        p[P_MARGIN] = margin(program)
        areas = {
            P_TREE: 2 * p[P_LEAVES],
            P_VALID: p[P_SEGMENTS],
            P_SERVER_AT: p[P_SERVERS] * p[P_SERVER_SIZE],
            P_DEVICE_AT: p[P_DEVICES] * V_SIZE,
            P_MEDIA_AT: p[P_MEDIA] * Y_SIZE,
            P_BLOCK_AT: p[P_SERVERS] * p[P_CAP] * p[P_BLOCK_SIZE],
            P_LINES_AT: p[P_LINES] * L_SIZE,
            P_FAULTS_AT: faults * F_SIZE,
            P_CREDITS_AT: (p[P_SERVERS] * p[P_CAP] + 2) * D_SIZE,
            P_CANDIDATES_AT: p[P_GROUP],
            P_SCRATCH_AT: 64,
            P_INSTANCES_AT: instances * I_SIZE,
            P_REQUESTS_AT: requests * p[P_REQUEST_SIZE],
        }
        at = C_SIZE
        for field, size in areas.items():
            p[field] = at
            at += int(size)
        p[P_FAULTS], p[P_INSTANCES], p[P_REQUESTS] = faults, instances, requests
        self.size = at
        self._template: Numbers | None = None

    def row(self) -> Numbers:
        """A cluster's row before its first instant."""
        if self._template is None:
            self._template = self._first_row()
        return self._template.copy()

    def _first_row(self) -> Numbers:
        p, row = self.parameters, np.zeros(self.size, np.int64)
        reals = row.view(np.float64)
        for field in (C_SLOT, C_FIFO_HEAD, C_FIFO_TAIL, C_DEADLINE):
            row[field] = NONE
        row[C_ARRIVAL_NS] = row[C_DECISION_END] = NEVER
        row[C_VARIANCE_STALE] = 1
        row[p[P_TREE] : p[P_TREE] + 2 * p[P_LEAVES]] = NEVER
        for index in range(p[P_SERVERS]):
            self._start_server(row, reals, index)
        for index, tables in enumerate(self.program.cluster.devices):
            at = p[P_DEVICE_AT] + index * V_SIZE
            row[at + V_PARAMETERS] = p[P_DEVICE_PARAMETERS] + index * Z_SIZE
            reals[at + V_POWER], reals[at + V_PACE] = tables.context_idle_mw, 1.0
            row[at + V_FIRST] = row[at + V_LAST] = NONE
        blocks = row[p[P_BLOCK_AT] : p[P_LINES_AT]].reshape(-1, p[P_BLOCK_SIZE])
        blocks[:, B_DECISION] = NONE
        lines = row[p[P_LINES_AT] : p[P_FAULTS_AT]].reshape(-1, L_SIZE)
        lines[:, L_HEAD] = lines[:, L_TAIL] = NONE
        self.link_free(row, 0, 0)
        return row

    def link_free(self, row: Numbers, instances: int, requests: int) -> None:
        """Put the pools' slots from these numbers on into their free lists."""
        p = self.parameters
        for field, count, head, at, size, link, first in (
            (C_FREE_INSTANCES, self.instances, C_FREE_INSTANCE, p[P_INSTANCES_AT], I_SIZE, I_NEXT, instances),
            (C_FREE_REQUESTS, self.requests, C_FREE_REQUEST, p[P_REQUESTS_AT], p[P_REQUEST_SIZE], R_NEXT, requests),
        ):
            slots = row[at : at + count * size].reshape(count, size)
            if count == first:
                continue
            slots[first:, link] = np.arange(first + 1, count + 1)
            slots[count - 1, link] = row[head] if first else NONE
            row[head] = first
            row[field] += count - first
        pool = row[p[P_REQUESTS_AT] :].reshape(self.requests, p[P_REQUEST_SIZE])
        pool[requests:, R_ID] = NONE

    def _start_server(self, row: Numbers, reals: npt.NDArray[np.float64], index: int) -> None:
        p, spec = self.parameters, self.program.cluster.servers[index]
        s = p[P_SERVER_AT] + index * p[P_SERVER_SIZE]
        row[s + S_INDEX], row[s + S_DEVICE] = index, spec.device
        row[s + S_PARAMETERS] = p[P_SERVER_PARAMETERS] + index * X_SIZE
        row[s + S_TIMES : s + S_TIMES + KINDS] = NEVER
        row[s + S_NEXT] = NEVER
        row[s + S_USED] = row[s + S_PEAK] = spec.knobs.context_bytes
        reals[s + S_FACTOR] = 1.0
        for field in (
            S_IDLE_HEAD, S_IDLE_TAIL, S_STARTS_HEAD, S_STARTS_TAIL, S_LOADS_HEAD, S_UNLOADS_HEAD, S_FAILING_HEAD,
            S_ROOM, S_DOWN_SINCE, S_UP_SINCE,
        ):  # fmt: skip
            row[s + field] = NONE
        keys = row[s + p[P_KEYS_AT] : s + p[P_SPECS_AT]].reshape(-1, K_SIZE)
        keys[:, [K_HEAD, K_TAIL, K_BLOCKED_SINCE]] = NONE
        specs = row[s + p[P_SPECS_AT] : s + p[P_REPORTS_AT]].reshape(-1, Q_SIZE)
        specs[:, Q_HEAD] = NONE

    def grown(self, rows: Sequence[Numbers], requests: int, instances: int) -> tuple[Shape, list[Numbers]]:
        """A shape with larger pools, and the rows of running clusters in it."""
        shape = self.program.shape(requests, instances, self.faults, self.keeps)
        old, new = self.parameters, shape.parameters
        found = []
        for row in rows:
            larger = np.zeros(shape.size, np.int64)
            larger[: old[P_REQUESTS_AT]] = row[: old[P_REQUESTS_AT]]
            larger[new[P_REQUESTS_AT] : new[P_REQUESTS_AT] + len(row) - old[P_REQUESTS_AT]] = row[old[P_REQUESTS_AT] :]
            larger[old[P_INSTANCES_AT] + self.instances * I_SIZE : new[P_REQUESTS_AT]] = 0
            shape.link_free(larger, self.instances, self.requests)
            found.append(larger)
        return shape, found


def margin(program: Program) -> int:
    """Instances that one event may load: each key's one, and those of long queues; or all that a memory holds."""
    most = 0
    for spec in program.cluster.servers:
        knobs = spec.knobs
        smallest = max(1, min(knobs.instance_bytes.values(), default=1))
        held = max(0, knobs.vram_cap_bytes - knobs.context_bytes) // smallest
        most = max(most, min(held, len(program.keys) * (1 + knobs.scale_cap) + len(knobs.preload)))
    return most


def addressed(array: npt.NDArray[Any]) -> int:
    """Where an array's numbers are; whoever stores it keeps the array."""
    return int(array.ctypes.data)
