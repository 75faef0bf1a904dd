"""What serving costs beyond the forward passes that calibration measured: from a short run on the real executors.

A pass in a calibration loop finds its caches warm; a served batch does not, and its command and result travel between
processes that share cores. These overheads are this host's, so they are measured on it, with a router (`random`) and a
seed that no reported run uses, and go into the profiles:

    router_host       what the router's process does for a block and for each of its images, sent and returned
    handover          from that process to a server's, and back
    dispatch_s        within a server's process, command to forward start, and forward end to the scheduler
    the link's latency    from a block's departure to its arrival, less its bytes at the link's rate and the handover
    served_extra_s    what a served pass takes more than the calibrated one; on a CPU, all that its cores do for a batch
                      beyond the calibrated pass (then not in `dispatch_s`)

No waiting is booked as a cost, for simulation adds its own: the router's costs are CPU times, which stand still for who
waits; handovers are those that met nobody (`policies.records`); dispatches are of batches that had their device to
themselves, and an emulated pass's lateness is not in them.

A calibrated pass is one at the device's full speed, so all is brought to full speed: by what the agents read of it in
the run (`scenarios.executors.slowdown`), or by what it is on average (`Profile.slowdown`) where they read nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from calibrate.interference import Interference, require_quiet
from hw.datasets import Dataset
from hw.networks import ModelFile
from policies.chance import derived_seed
from policies.records import BatchRecord, BlockRecord, RouterCost, RunRecord
from policies.vocabulary import NS_PER_S
from scenarios.executors.run import Listener, RealRun, real_cluster, run_on_hardware, without_faults
from scenarios.executors.slowdown import mean_slowdown, observed_slowdowns
from scenarios.terminal.output import Say
from scenarios.world.world import World
from sim.costs import input_bytes
from sim.profile import Handover, Profile, RouterHost, WorkCost
from sim.tables import DeviceTables

RUN_S, WARMUP_S = 6.0, 1.0
PARTS, SPREAD_PARTS = 32, 16  # equal parts of a distribution
LIGHT_LOAD = 0.3  # of the estimated capacity
KEPT_SHARE = 0.99  # a stall of the host in a run this short would rule the mean


@dataclass(frozen=True, slots=True)
class ServingOverheads:
    """Of a real run; for each server, None where it served or received nothing.

    Attributes:
        router_host: None where the run has no samples of decisions and of returns.
        dispatch_s: quantiles in equal parts.
        transfer_s, extra_s: means.
        others: what other programs took of the devices meanwhile, in words.
    """

    router_host: RouterHost | None
    handover: tuple[Handover | None, ...]
    dispatch_s: tuple[tuple[float, ...] | None, ...]
    transfer_s: tuple[float | None, ...]
    extra_s: tuple[float | None, ...]
    others: str = ""


def measure_serving(
    world: World,
    model: ModelFile | None,
    dataset: Dataset | None,
    seed: int,
    *,
    allow_busy: bool = False,
    say: Say = lambda _: None,
) -> ServingOverheads:
    """Serve the scenario's workload for a few seconds and look at every stage of every block.

    `model` and `dataset`: see `scenarios.executors.run`.
    `say` hears of servers that go down or are back.

    Raises:
        InputError: others used much of the devices meanwhile, and that is not allowed.
    """
    world = without_faults(world)
    scale = 1.0
    if (loads := world.scenario.validate_.loads) and world.rate_img_s:
        # Caches are colder the longer a core sleeps; but where all passes meet others, none tells what it costs alone.
        scale = min(*loads, LIGHT_LOAD) * world.capacity_img_s / world.rate_img_s
    with real_cluster(world, model) as cluster:
        wanted = RealRun(
            "random", world.router("random"), derived_seed(seed, "serving"), RUN_S, WARMUP_S, scale,
            emulate_links=False, keep_log=False, measures_costs=True,
        )  # fmt: skip
        _, record = run_on_hardware(world, cluster, dataset, wanted, Listener(say=say))
    load, spec = record.foreign_load, world.cluster
    others = Interference(None) if load is None else Interference(load.share, stolen=load.stolen)
    require_quiet("what serving costs", others, allow_busy)
    overheads = overheads_of(record, spec.devices, [server.device for server in spec.servers])
    for server, dispatch_s in zip(spec.servers, overheads.dispatch_s, strict=True):
        if dispatch_s is None:
            say(f"{server.name}: no pass had its device to itself; what serving it costs there was not measured")
    return replace(overheads, others=str(others))


def overheads_of(record: RunRecord, devices: Sequence[DeviceTables], owners: Sequence[int]) -> ServingOverheads:
    """From a run's records; `owners` holds for each server the index of its device."""
    run = _ServedRun(record, devices, owners)
    servers = range(len(owners))
    return ServingOverheads(
        router_host=_router_host(record.router_costs),
        handover=tuple(_handover(record, server, run.in_passes_s(server)) for server in servers),
        dispatch_s=tuple(run.dispatch_s(server) for server in servers),
        transfer_s=tuple(run.transfer_s(server) for server in servers),
        extra_s=tuple(run.extra_s(server) for server in servers),
    )


def _router_host(samples: Sequence[RouterCost]) -> RouterHost | None:
    """Least squares of a part a block and a part an image, neither below zero, and how single costs lie around that."""
    fitted: dict[str, WorkCost] = {}
    ratios: list[NDArray[np.float64]] = []
    for kind in ("decision", "returned"):
        own = [sample for sample in samples if sample.kind == kind]
        if not own:
            return None
        counts = np.array([(sample.blocks_at_once, sample.images) for sample in own], np.float64)
        costs_s = np.array([sample.cpu_ns for sample in own], np.float64) / NS_PER_S
        parts_s, _ = nnls(counts, costs_s)
        fitted[kind] = WorkCost(block_s=float(parts_s[0]), image_s=float(parts_s[1]))
        means_s = counts @ parts_s
        alone = (counts[:, 0] == 1) & (means_s > 0)  # several together hide how far single ones differ
        ratios.append(costs_s[alone] / means_s[alone])
    decisions = [sample for sample in samples if sample.kind == "decision"]
    return RouterHost(
        decision=fitted["decision"],
        returned=fitted["returned"],
        sent_share=min(1.0, sum(each.sent_ns for each in decisions) / max(1, sum(each.cpu_ns for each in decisions))),
        spread=_quantiles(np.concatenate(ratios), SPREAD_PARTS, mean=1.0),
    )


def _handover(record: RunRecord, server: int, less_s: float = 0.0) -> Handover | None:
    """Quantiles of the ways there and back; `less_s` of both together is counted elsewhere."""
    there_s, back_s = (
        [each.took_ns / NS_PER_S for each in record.handovers if each.server == server and each.there == there]
        for there in (True, False)
    )
    if not there_s or not back_s:
        return None
    means_s = [float(np.mean(way_s)) for way_s in (there_s, back_s)]
    kept = max(0.0, 1 - less_s / sum(means_s)) if sum(means_s) > 0 else 1.0
    there, back = (
        _quantiles(way_s, PARTS, kept * mean_s) for way_s, mean_s in zip((there_s, back_s), means_s, strict=True)
    )
    return Handover(there_s=there, back_s=back)


def _quantiles(values: ArrayLike, parts: int, mean: float | None = None) -> tuple[float, ...]:
    """Of equal parts, each in its middle, none below zero; with that mean, if one is given. None of no values."""
    found = np.maximum(np.asarray(values, np.float64), 0.0)
    if not len(found):
        return ()
    quantiles = np.quantile(found, (np.arange(parts) + 0.5) / parts)
    if mean is not None and quantiles.any():
        quantiles *= mean / quantiles.mean()
    return tuple(quantiles.tolist())


class _ServedRun:
    """A run's batches beside what calibration says of them."""

    def __init__(self, record: RunRecord, devices: Sequence[DeviceTables], owners: Sequence[int]) -> None:
        self._record = record
        self._owners = owners
        self._tables = [devices[device] for device in owners]
        slowdowns = observed_slowdowns(record, devices, owners)
        self._slower = [
            mean_slowdown(slowdowns[index], record.ended_ns) if index in slowdowns else _usual_slowdown(tables)
            for index, tables in enumerate(devices)
        ]
        after_ns = int(WARMUP_S * NS_PER_S)
        late = [batch for batch in record.batches if batch.commanded_ns >= after_ns]
        self._blocks = [block for block in record.blocks if block.snapshot_ns >= after_ns and block.arrived_ns]
        self._batches = _alone(late, owners)
        self._on_device_s = [self._of_device_s(index, tables) for index, tables in enumerate(devices)]

    def extra_s(self, server: int) -> float | None:
        """What a served batch takes of the device beyond its calibrated pass, at full speed."""
        extra_s = self._on_core_s(server)
        if extra_s is not None:
            return extra_s
        return _mean_s([self._longer_ns(b) / self._slowdown(server) for b in self._batches if b.server == server])

    def dispatch_s(self, server: int) -> tuple[float, ...] | None:
        """Quantiles. On a CPU their mean is what is left of a batch's time without its pass and all that its core does
        for it."""
        dispatch_ns = [_dispatch_ns(b) for b in self._batches if b.server == server]
        if not dispatch_ns:
            return None
        rest_s = self._rest_s(server)
        return _quantiles(
            np.array(dispatch_ns) / NS_PER_S, PARTS, _mean_s(dispatch_ns) if rest_s is None else max(0.0, rest_s)
        )

    def in_passes_s(self, server: int) -> float:
        """What a CPU's core does for a batch and is in no time of the batch: the agent's part of the ways there and
        back, which is in `extra_s` and must not count twice."""
        return max(0.0, -(self._rest_s(server) or 0.0))

    def _rest_s(self, server: int) -> float | None:
        """A batch's time less its pass and all that a CPU's core does for it, which may be more; None on a GPU."""
        extra_s, beside_s = self._on_core_s(server), self._beside_s(server)
        return None if extra_s is None or beside_s is None else beside_s - extra_s * self._slowdown(server)

    def _on_core_s(self, server: int) -> float | None:
        """What a CPU's core does for a batch beyond its calibrated pass, at full speed; None on a GPU.

        No more than the batch and its ways took in all: what else an agent does (its sensor, its signs of life) keeps
        the core busy, but no batch waits for it at a light load.
        """
        extra_s, beside_s = self._on_device_s[self._owners[server]], self._beside_s(server)
        if extra_s is None or beside_s is None:
            return extra_s
        ways = _handover(self._record, server)
        took_s = beside_s + (ways.mean_s if ways is not None else 0.0)
        return min(extra_s, max(0.0, took_s) / self._slowdown(server))

    def _beside_s(self, server: int) -> float | None:
        """From a batch's command until its end is known, less its calibrated pass; None where nothing ran."""
        batches = [batch for batch in self._batches if batch.server == server]
        if not batches:
            return None
        beside_ns = np.sort([_dispatch_ns(b) + self._longer_ns(b) for b in batches])
        return float(beside_ns[: max(1, round(KEPT_SHARE * len(beside_ns)))].mean()) / NS_PER_S

    def transfer_s(self, server: int) -> float | None:
        """What a block's way takes beyond its bytes, and beyond the handover that comes after."""
        moved = [block for block in self._blocks if block.server == server and block.head.location != server]
        way_s, handover = _mean_s([self._beyond_bytes_ns(block) for block in moved]), _handover(self._record, server)
        if way_s is None or handover is None:
            return way_s
        return max(0.0, way_s - sum(handover.there_s) / PARTS)

    def _beyond_bytes_ns(self, block: BlockRecord) -> float:
        """What a block's way takes beyond its bytes at the link's rate."""
        device = self._tables[block.server]
        moved = block.size * input_bytes(device, block.head.segment, block.head.previous_width)
        link = device.profile.link
        carried_s = moved / link.bandwidth_bytes_s if link is not None else 0.0
        return block.arrived_ns - block.sent_ns - carried_s * NS_PER_S

    def _slowdown(self, server: int) -> float:
        return self._slower[self._owners[server]]

    def _longer_ns(self, batch: BatchRecord) -> float:
        calibrated_ns = _calibrated_ns(self._tables[batch.server], batch) * self._slowdown(batch.server)
        return batch.forward_ended_ns - batch.started_ns - calibrated_ns

    def _of_device_s(self, index: int, device: DeviceTables) -> float | None:
        """CPU time, at full speed, that a CPU device spends on each batch beyond its calibrated pass: the executor's
        own work runs on the cores that compute. None on a GPU, and where nothing ran."""
        servers = [server for server, owner in enumerate(self._owners) if owner == index]
        batches = [batch for batch in self._record.batches if batch.server in servers]
        if device.profile.device.kind != "cpu" or not batches or not self._record.servers:
            return None
        passes_s = sum(_calibrated_ns(device, b) * _host_share(device, b) for b in batches) / NS_PER_S
        busy_s = self._record.servers[servers[0]].busy_s / self._slower[index]  # both are shares of all its cores
        return _cores(device.profile) * max(0.0, busy_s - passes_s) / len(batches)  # on one of them


def _dispatch_ns(batch: BatchRecord) -> float:
    return batch.started_ns - batch.commanded_ns + batch.ended_ns - batch.forward_ended_ns - batch.late_ns


def _calibrated_ns(device: DeviceTables, batch: BatchRecord) -> float:
    """A pass of a batch at full speed, by calibration alone."""
    table = device.keys[batch.segment, batch.width, batch.previous_width]
    return table.latency_ns[batch.size] / device.mean_slowdown - device.profile.served_extra_s * NS_PER_S


def _host_share(device: DeviceTables, batch: BatchRecord) -> float:
    return device.keys[batch.segment, batch.width, batch.previous_width].host_permille[batch.size] / 1000


def _cores(profile: Profile) -> int:
    """Of a CPU device."""
    named = profile.execution.get("cores", "any")
    return len(named.split(",")) if named != "any" else int(profile.device.stamps.get("cpu_cores", "1"))


def _usual_slowdown(device: DeviceTables) -> float:
    """How much longer than at full speed things take on average."""
    return device.profile.slowdown.mean_factor if device.profile.slowdown is not None else 1.0


def _alone(batches: Sequence[BatchRecord], owners: Sequence[int]) -> list[BatchRecord]:
    """Those that no other batch of their device overlapped: what sharing the device costs must not be in here, for the
    simulator adds it."""
    found: list[BatchRecord] = []
    for device in set(owners):
        own = sorted((b for b in batches if owners[b.server] == device), key=lambda b: b.commanded_ns)
        ends = np.maximum.accumulate([b.ended_ns for b in own])
        alone = [
            b
            for i, b in enumerate(own)
            if (i == 0 or ends[i - 1] <= b.commanded_ns)
            and (i + 1 == len(own) or own[i + 1].commanded_ns >= b.ended_ns)
        ]
        found += alone
    return found


def _mean_s(durations_ns: Sequence[float]) -> float | None:
    """Mean of the lower 99 %, in seconds, never below zero; None of nothing."""
    if not durations_ns:
        return None
    ascending = np.sort(np.asarray(durations_ns, dtype=np.float64))
    kept = ascending[: max(1, round(KEPT_SHARE * len(ascending)))]
    return max(0.0, float(kept.mean()) / NS_PER_S)


def with_overheads(profile: Profile, overheads: ServingOverheads, server: int) -> Profile:
    """The profile of a server's device with what serving on this host costs; what was calibrated stays as it is."""
    dispatch_s, transfer_s = overheads.dispatch_s[server], overheads.transfer_s[server]
    update: dict[str, object] = {"router_host": overheads.router_host, "handover": overheads.handover[server]}
    if dispatch_s is not None:
        update |= {"dispatch_s": sum(dispatch_s) / len(dispatch_s), "dispatch_quantiles_s": dispatch_s}
    if transfer_s is not None and profile.link is not None:
        update["link"] = profile.link.model_copy(update={"latency_s": transfer_s})
    if (extra_s := overheads.extra_s[server]) is not None:
        update["served_extra_s"] = extra_s
    if overheads.others:
        stamps = {**profile.device.stamps, "interference_serving": overheads.others}
        update["device"] = profile.device.model_copy(update={"stamps": stamps})
    return profile.model_copy(update=update)


def is_served(profile: Profile) -> bool:
    """Whether what serving costs is in a profile."""
    return profile.router_host is not None
