"""Clusters compiled to a row of parameters, and the shape of their runs' rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from math import log1p
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.compiled.plan_layout import Record, bits
from policies.greedy_scheduler import GreedyParams
from policies.interfaces import AccuracyPrior, Widths, nest_by_width, tuples_within
from policies.router_queue import MAX_BATCHING_DELAYS
from policies.vocabulary import IMAGE
from sim.compiled.row_layout import (
    LOGS_TABULATED,
    NEVER,
    NONE,
    ORDER_AT,
    BatchCost,
    BatchQueue,
    BatchTimes,
    ClassStats,
    Cluster,
    Credit,
    Device,
    DeviceModel,
    Instance,
    Instances,
    KeyQueue,
    Medium,
    Member,
    Message,
    MicroBatch,
    Move,
    Observed,
    Parameters,
    PlannedFault,
    Reading,
    Report,
    Request,
    Server,
    ServerParams,
    Stages,
    Trace,
    UnsupportedScenario,
)
from sim.device_tables import DeviceTables, input_bytes
from sim.simulated_cluster import ClusterSpec
from sim.simulated_server import ServerSpec

Numbers = npt.NDArray[np.int64]
MAX_TUPLES = 1 << 18  # the largest number of width tuples in a table
_MAX_PARTS = 64  # of a batch, in halves of halves: 2^64 images
_KEPT = 8  # cached programs


class _Writer:
    """A row that grows: `add` returns the offset of what it appends. Equal parts are stored once."""

    def __init__(self, size: int) -> None:
        self._parts: list[Numbers] = [np.zeros(size, np.int64)]
        self._size = size
        self._offsets: dict[bytes, int] = {}

    def add(self, values: npt.ArrayLike, kind: type = np.int64) -> int:
        part = np.ascontiguousarray(np.asarray(values, dtype=kind).ravel()).view(np.int64)
        text = part.tobytes()
        if text not in self._offsets:
            self._offsets[text] = self._size
            self._parts.append(part)
            self._size += len(part)
        return self._offsets[text]

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
        self._shapes: dict[tuple[int, int, int, int, int, bool], Shape] = {}
        self.widths = config.widths
        self.servers, self.segments = config.servers, config.segments
        self.width_count = len(config.widths)
        if self.width_count**self.segments > MAX_TUPLES:
            raise UnsupportedScenario(f"{self.width_count}^{self.segments} width tuples (at most {MAX_TUPLES})")
        self.keys = [
            (s, w, x) for s in range(1, self.segments + 1) for w in config.widths for x in (IMAGE, *config.widths)
        ]  # the number of a key is its index here
        self.micro_batch_size = max(config.micro_batch_sizes)
        self._masks = config.masks()
        self._writer = _Writer(Parameters.size)
        servers_at = self._writer.reserve(ServerParams.size * self.servers)
        devices_at = self._writer.reserve(DeviceModel.size * len(cluster.devices))
        self.media = list(dict.fromkeys(server.attachment.medium for server in cluster.servers))
        self.racks = list(dict.fromkeys(server.attachment.rack for server in cluster.servers))
        servers = [self._server(index, spec) for index, spec in enumerate(cluster.servers)]
        devices = [self._device(index, tables) for index, tables in enumerate(cluster.devices)]
        head = self._head()
        head.server_params_at, head.device_models_at = servers_at, devices_at
        self.parameters = self._writer.row()
        self.parameters[: head.size] = head.numbers
        for at, records in ((servers_at, servers), (devices_at, devices)):
            numbers = np.concatenate([record.numbers for record in records])
            self.parameters[at : at + len(numbers)] = numbers

    def shape(
        self, requests: int, instances: int, micro_batches: int, messages: int, faults: int, keeps: bool
    ) -> Shape:
        """Return the shape with pools of these sizes; runs share it, and with it one row of parameters."""
        sizes = (requests, instances, micro_batches, messages, faults, keeps)
        if sizes not in self._shapes:
            self._shapes[sizes] = Shape(self, *sizes)
        return self._shapes[sizes]

    # --------------------------------------------------------------------------------------------------- parameters

    def _head(self) -> Parameters:
        cluster, config = self.cluster, self.cluster.router
        rules = self.cluster.supervision
        p = Parameters.blank()
        for source in (cluster, config, rules, cluster.weights):
            _copy(source, p)
        p.devices, p.widths = len(cluster.devices), self.width_count
        p.keys = len(self.keys)
        p.media = len(self.media) + len(self.racks)
        p.specs = self.segments * self.width_count
        p.places = self.segments * len(config.model_widths)
        p.classes = config.class_count
        p.first_places_at = self._writer.add([model * self.segments for model in config.class_models])
        p.batch_queues = p.classes * self.segments * (self.width_count + 1) * (self.servers + 2)
        p.cap, p.micro_batch_size = config.outstanding_micro_batches, self.micro_batch_size
        p.moves = 1 if config.micro_batch_key == "location" else self.micro_batch_size
        p.uplinks = len(self.media)
        p.leaves = 1 << (self.servers - 1).bit_length()
        if (host := cluster.host) is not None:
            _copy(host, p)
            p.has_host, p.spread_at, p.spread_count = 1, self._writer.add(host.spread, np.float64), len(host.spread)
            p.decision_micro_batch_ns, p.decision_image_ns = host.decision
            p.returned_micro_batch_ns, p.returned_image_ns = host.returned
            p.after_pause_at = self._writer.add(host.after_pause, np.float64)
            p.host_devices_at, p.host_devices = self._writer.add([*host.devices, NONE]), len(host.devices)
        p.anywhere = config.micro_batch_key == "any"
        p.sheds, p.mean_accuracy = config.shed_expired, cluster.prior.mean_accuracy
        p.sustained_img_s = config.sustained_img_s
        p.prior_at, p.prior_levels_at = self._prior(cluster.prior)
        accuracies = dict(zip(config.width_tuples(), config.accuracies, strict=bool(config.accuracies)))
        p.top1_at = self._writer.add(self.by_tuple(accuracies.__getitem__), np.float64) if accuracies else NONE
        p.logs_at = self._writer.add(_logs())
        return p

    def by_tuple(self, value: Callable[[Widths], float], segments: int | None = None) -> list[float]:
        """Return `value` of each tuple of `segments` widths (S by default), by its number; 0 for one of several
        models."""
        own_tuples = set(tuples_within(self.cluster.router.model_widths, segments or self.segments))
        every = product(self.widths, repeat=segments or self.segments)
        return [value(widths) if widths in own_tuples else 0.0 for widths in every]

    def _prior(self, prior: AccuracyPrior) -> tuple[int, int]:
        """Append p_acc by prefix, level by level, and the offset of each level; returns both offsets."""
        values: list[float] = []
        levels = []
        for length in range(1, self.segments + 1):
            levels.append(len(values))
            values += self.by_tuple(prior, length)
        return self._writer.add(values, np.float64), self._writer.add(levels)

    def _server(self, index: int, spec: ServerSpec) -> ServerParams:
        params, link = spec.params, spec.attachment.link
        add, record = self._writer.add, ServerParams.blank()
        specs = [(s, w) for s in range(1, self.segments + 1) for w in self.widths]
        masks = self._masks[index]
        _copy(params, record)
        _copy(link, record)
        record.idle_unload_ns = NONE if params.idle_unload_ns is None else params.idle_unload_ns
        record.blocks_head_of_line = params.head_of_line == "wait"
        record.serves_as_instance, record.fit_ends_at = params.served_width == "instance", add(self._fit_ends(params))
        record.padded_at, record.padded_count = add([*params.padded_sizes, NONE]), len(params.padded_sizes)
        record.preload_at = add([*(specs.index(spec_key) for spec_key in params.preload), NONE])
        record.preload_count = len(params.preload)
        record.medium, record.rack = self.media.index(spec.attachment.medium), self.racks.index(spec.attachment.rack)
        if (uplink := spec.attachment.uplink) is not None:
            record.uplink_s, record.uplink_bytes_s = uplink.latency_s, uplink.bandwidth_bytes_s
        record.instance_bytes_at = add([params.instance_bytes.get(spec_key, 0) for spec_key in specs])
        record.can_hold_at = add([params.can_hold(spec_key) for spec_key in specs])
        record.fits_any_at = add([any(widths) for widths in masks])
        record.codes_at = add([bits(widths) for widths in masks])
        record.power_limit_w = self.cluster.devices[spec.device].profile.power.cap_w
        return record

    def _fit_ends(self, params: GreedyParams) -> list[int]:
        """Return for each segment and width one more than the number of the widest width that serves it."""
        nests, count = nest_by_width(self.widths, params.nests), self.width_count
        ends = [self.widths.index(nests[width][-1]) + 1 for width in self.widths]
        return [segment * count + end for segment in range(self.segments) for end in ends]

    def _device(self, index: int, tables: DeviceTables) -> DeviceModel:
        add, model = self._writer.add, DeviceModel.blank()
        servers = [number for number, server in enumerate(self.cluster.servers) if server.device == index]
        specs = [(s, w) for s in range(1, self.segments + 1) for w in self.widths]
        costs = [tables.instances.get(spec_key) for spec_key in specs]
        _copy(tables, model)
        model.costs_at = self._costs(tables)
        model.crowding_at = add(_packed(tables.crowding))
        model.crowding_across_at = add(_packed(tables.crowding_across))
        model.is_hosted, model.idle_mw = tables.hosted, tables.context_idle_mw
        model.extra_at = add(tables.extra_ns)
        if (cpu_work := tables.cpu_work) is not None:
            _copy(cpu_work, model)
            model.has_cpu_work, model.taken_at = 1, add(cpu_work.taken)
            model.moved_ns, model.moved_image_ns = cpu_work.moved
            model.begun_ns, model.begun_image_ns = cpu_work.begun
            model.ended_ns, model.ended_image_ns = cpu_work.ended
        model.instance_costs_at = add(
            [[cost.load_ns, cost.reload_ns, cost.unload_ns] if cost else [0, 0, 0] for cost in costs]
        )
        model.input_bytes_at = add(self._input_bytes(tables))
        model.servers_at, model.server_count = add([*servers, NONE]), len(servers)
        model.slow_factor = 1.0
        if (slowdown := tables.slowdown) is not None:
            _copy(slowdown, model)
            model.has_slowdown = 1
            model.full_sum_ns, model.slow_sum_ns = sum(slowdown.full_ns), sum(slowdown.slow_ns)
            self._list(model, "full", slowdown.full_ns)
            self._list(model, "slow", slowdown.slow_ns)
        return model

    def _list(self, record: Record, name: str, numbers: Sequence[int]) -> None:
        """Append numbers; store their offset and length in the record."""
        setattr(record, f"{name}_at", self._writer.add(numbers))
        setattr(record, f"{name}_count", len(numbers))

    def _input_bytes(self, tables: DeviceTables) -> list[int]:
        """Return values by segment and previous width; segment 1 takes images, whatever came before."""
        return [
            0 if x == IMAGE and s > 1 else input_bytes(tables, s, x)
            for s in range(1, self.segments + 1)
            for x in (IMAGE, *self.widths)
        ]

    def _costs(self, tables: DeviceTables) -> int:
        """Append one record for each key and batch size, latency NONE for a key without a curve; returns the offset."""
        rows = np.zeros((len(self.keys), tables.batch_limit + 1), BatchCost.dtype)
        rows["latency_ns"] = rows["jitter_at"] = NONE
        jitter_offsets: dict[int, int] = {}
        for row, key in zip(rows, self.keys, strict=True):
            table = tables.keys.get(key)
            if table is None:
                continue
            for name in set(BatchCost.offsets) - {"jitter_at", "jitter_count"}:
                row[name] = getattr(table, name)
            for size, quantiles in enumerate(table.jitter):
                if id(quantiles) not in jitter_offsets:
                    jitter_offsets[id(quantiles)] = self._writer.add(quantiles, np.float64)
                row["jitter_at"][size], row["jitter_count"][size] = jitter_offsets[id(quantiles)], len(quantiles)
        return self._writer.add(rows.view(np.int64))


def _copy(source: object, record: Record) -> None:
    """Copy the numbers that both have by the same names."""
    for name in record.offsets:
        if isinstance(value := getattr(source, name, None), int | float):
            setattr(record, name, value)


@lru_cache(maxsize=1)
def _logs() -> Numbers:
    """Return log1p of the first integers, as in a policy's observation."""
    return np.array([np.float32(log1p(n)) for n in range(LOGS_TABULATED)], np.float64).view(np.int64)


@lru_cache(maxsize=64)
def _packed(reals: tuple[float, ...]) -> Numbers:
    """Return a table of reals; there are few, and each is shared by many devices."""
    return np.array(reals, np.float64).view(np.int64)


_programs: OrderedDict[int, Program] = OrderedDict()


def program_of(cluster: ClusterSpec) -> Program:
    """Return the program of a cluster, built once for each object."""
    program = _programs.get(id(cluster))
    if program is None or program.cluster is not cluster:
        program = _programs[id(cluster)] = Program(cluster)
        while len(_programs) > _KEPT:
            _programs.popitem(last=False)
    return program


class Shape:
    """A program with the sizes of its pools: the row of parameters, and the constructor of a cluster's row.

    Args:
        requests, instances, micro_batches, messages: slots of the pools.
        faults: planned ones and their consequences, at once.
        keeps: whether requests are recorded.
    """

    def __init__(
        self,
        program: Program,
        requests: int,
        instances: int,
        micro_batches: int,
        messages: int,
        faults: int,
        keeps: bool,
    ) -> None:
        self.program = program
        self.requests, self.instances = requests, instances
        self.micro_batches, self.messages = micro_batches, messages
        self.faults, self.keeps = faults, keeps
        batching_delays = (
            MAX_BATCHING_DELAYS * (requests + micro_batches * program.micro_batch_size)
            if program.cluster.router.max_batching_delay_ns
            else 0
        )
        self.most_credits = micro_batches + 2 + batching_delays  # between two decisions
        self.parameters = program.parameters.copy()
        p = self.p = Parameters(self.parameters)
        p.readings = max(max(device.power_window, device.utilization_window) + 1 for device in program.cluster.devices)
        p.reports = max(device.lag_ns // device.period_ns + 2 for device in program.cluster.devices)
        p.queues_at = ORDER_AT + p.keys
        p.instance_lists_at = p.queues_at + p.keys * KeyQueue.size
        p.reports_at = p.instance_lists_at + p.specs * Instances.size
        p.readings_at = p.reports_at + p.reports * Report.size
        p.server_size = p.readings_at + p.readings * Reading.size
        p.path_at = MicroBatch.size + p.moves * Move.size
        p.members_at = p.path_at + p.segments
        p.member_size = Member.size if p.max_batching_delay_ns else Member.offsets["batching_delays"]
        p.micro_batch_stride = p.members_at + p.micro_batch_size * p.member_size
        trace = Trace.size + p.segments * (2 + Stages.size + BatchTimes.size) if keeps else 0
        p.request_size = Request.size + trace
        p.margin = margin(program)
        p.instances, p.requests = instances, requests
        p.micro_batches, p.messages = micro_batches, messages
        self._areas = {
            "tree_at": 2 * p.leaves,
            "valid_at": p.places,
            "up_at": p.places,
            "looked_at": p.samples,
            "freed_at": p.samples,
            "then_at": p.segments,
            "candidates_at": p.micro_batch_size,
            "class_stats_at": p.classes * ClassStats.size,
            "observed_at": p.servers * Observed.size,
            "powers_at": p.servers,
            "servers_at": p.servers * p.server_size,
            "devices_at": p.devices * Device.size,
            "media_at": p.media * Medium.size,
            "batch_queues_at": p.batch_queues * BatchQueue.size,
            "faults_at": faults * PlannedFault.size,
            "batching_delay_rule_at": 3 * p.segments,
            "parts_at": _MAX_PARTS,
            "credits_at": self.most_credits * Credit.size,
            "instances_at": instances * Instance.size,
            "requests_at": requests * p.request_size,
            "micro_batches_at": micro_batches * p.micro_batch_stride,
            "messages_at": messages * Message.size,
        }
        self.size = Cluster.size
        for field, size in self._areas.items():
            setattr(p, field, self.size)
            self.size += size
        self._template: Numbers | None = None

    def row(self) -> Numbers:
        """Return a cluster's row before its first instant."""
        if self._template is None:
            self._template = self._first_row()
        return self._template.copy()

    def _first_row(self) -> Numbers:
        p, row = self.p, np.zeros(self.size, np.int64)
        c = Cluster(row)
        c.numbers[:] = Cluster.blank().numbers
        row[p.tree_at : p.tree_at + 2 * p.leaves] = NEVER
        for index in range(p.servers):
            self._start_server(c, index)
        for index, tables in enumerate(self.program.cluster.devices):
            device = Device(c, p.devices_at, index)
            device.numbers[:] = Device.blank().numbers
            device.model_at = p.device_models_at + index * DeviceModel.size
            device.power_mw = tables.context_idle_mw
        _all_at_first(row[p.batch_queues_at : p.batch_queues_at + p.batch_queues * BatchQueue.size], BatchQueue)
        self.link_free(row, 0, 0, 0, 0)
        return row

    def link_free(self, row: Numbers, instances: int, requests: int, micro_batches: int, messages: int) -> None:
        """Append the pools' slots from these numbers on to their free lists."""
        c, p = Cluster(row), self.p
        at, offset = p.instances_at, Instance.offsets["next"]
        c.free_instance = _link(row[at + offset :: Instance.size], instances, self.instances, c.free_instance)
        at, offset = p.requests_at, Request.offsets["next"]
        c.free_request = _link(row[at + offset :: p.request_size], requests, self.requests, c.free_request)
        at, offset = p.micro_batches_at, MicroBatch.offsets["next"]
        c.free_micro_batch = _link(
            row[at + offset :: p.micro_batch_stride], micro_batches, self.micro_batches, c.free_micro_batch
        )
        at, offset = p.messages_at, Message.offsets["next"]
        links = row[at + offset : at + self.messages * Message.size : Message.size]
        c.free_message = _link(links, messages, self.messages, c.free_message)
        c.free_messages += self.messages - messages
        c.free_instances += self.instances - instances
        c.free_requests += self.requests - requests
        c.free_micro_batches += self.micro_batches - micro_batches
        row[p.requests_at + requests * p.request_size + Request.offsets["id"] : p.micro_batches_at : p.request_size] = (
            NONE
        )

    def _start_server(self, c: Cluster, index: int) -> None:
        p, spec = self.p, self.program.cluster.servers[index]
        server = Server(c, p.servers_at + index * p.server_size)
        server.numbers[:] = Server.blank().numbers
        server.index, server.device = index, spec.device
        server.params_at = p.server_params_at + index * ServerParams.size
        server.used_bytes = server.peak_bytes = spec.params.context_bytes
        numbers = server.following
        _all_at_first(numbers[p.queues_at : p.instance_lists_at], KeyQueue)
        _all_at_first(numbers[p.instance_lists_at : p.reports_at], Instances)

    def grown(
        self, row: Numbers, requests: int, instances: int, micro_batches: int, messages: int
    ) -> tuple[Shape, Numbers]:
        """Return a shape with larger pools, and the row of a running cluster in it."""
        shape = self.program.shape(requests, instances, micro_batches, messages, faults=self.faults, keeps=self.keeps)
        larger = np.zeros(shape.size, np.int64)
        larger[: Cluster.size] = row[: Cluster.size]
        for field, size in self._areas.items():
            old, new = getattr(self.p, field), getattr(shape.p, field)
            larger[new : new + size] = row[old : old + size]
        shape.link_free(larger, self.instances, self.requests, self.micro_batches, self.messages)
        return shape, larger


def _all_at_first(row: Numbers, record: type[Record]) -> None:
    row.reshape(-1, record.size)[:] = record.blank().numbers


def _link(links: Numbers, first: int, count: int, free: int) -> int:
    """Prepend a pool's slots from the first on to the free ones; returns the first that is free."""
    if count == first:
        return free
    links[first:count] = np.arange(first + 1, count + 1)
    links[count - 1] = free
    return first


def margin(program: Program) -> int:
    """Return how many instances one event may load: each key's one; or all that fit in a memory."""
    most = 0
    for spec in program.cluster.servers:
        params = spec.params
        smallest = max(1, min(params.instance_bytes.values(), default=1))
        held = max(0, params.vram_cap_bytes - params.context_bytes) // smallest
        most = max(most, min(held, len(program.keys) + len(params.preload)))
    return most


def message_margin(program: Program) -> int:
    """Return how many messages one event may send: passed and failed parts of a batch, and each queue that gives up,
    whose requests may be on a path or not."""
    return 2 * program.width_count + 6


def addressed(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's numbers; the caller must keep the array."""
    return int(array.ctypes.data)
