"""What serving costs beyond the forward passes that calibration measured: from a short run on the real executors.

A pass in a calibration loop finds its caches warm; a served batch does not, and its command and result travel between
processes that share cores. These overheads are this host's, so they are measured on it, with a router (`random`) and a
seed that no reported run uses, and go into the profiles:

    decision_s        from a request's entry into the FIFO to the departure of its block, where nobody is in the way
    decision_busy_s   CPU time of the router's host a decision: deciding, and all else that it does for one
    dispatch_s        command to forward start, and forward end to the scheduler
    the link's latency    from a block's departure to its arrival, less its bytes at the link's rate
    served_extra_s    what a served pass takes more than the calibrated one; on a CPU, all that its cores do for a batch
                      beyond the calibrated pass (then not in `dispatch_s`)

A calibrated pass is one at the device's full pace; it counts here as long as it is on average (`Profile.pace`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hw.datasets import Dataset
from hw.networks import ModelFile
from policies.chance import derived_seed
from policies.records import STAGES, BatchRecord, BlockRecord, RunRecord
from policies.vocabulary import NS_PER_S
from scenarios.compose import World
from scenarios.validate import real_cluster, run_on_hardware, without_faults
from sim.costs import input_bytes
from sim.profile import Profile
from sim.tables import DeviceTables

RUN_S, WARMUP_S = 6.0, 1.0
KEPT_SHARE = 0.99  # a stall of the host in a run this short would rule the mean


@dataclass(frozen=True, slots=True)
class ServingOverheads:
    """Means over a real run; for each server, None where it served or received nothing."""

    decision_s: float
    decision_busy_s: float
    dispatch_s: tuple[float | None, ...]
    transfer_s: tuple[float | None, ...]
    extra_s: tuple[float | None, ...]


def measure_serving(world: World, model: ModelFile, dataset: Dataset, seed: int) -> ServingOverheads:
    """Serve the scenario's workload for a few seconds and look at every stage of every block."""
    world = without_faults(world)
    with real_cluster(world, model) as cluster:
        _, record = run_on_hardware(
            world, cluster, dataset, world.router("random"), "random", derived_seed(seed, "serving"),
            duration_s=RUN_S, warmup_s=WARMUP_S, emulate_links=False, keep_log=False,
        )  # fmt: skip
    cluster_spec = world.cluster
    return overheads_of(record, cluster_spec.devices, [server.device for server in cluster_spec.servers])


def overheads_of(record: RunRecord, devices: Sequence[DeviceTables], owners: Sequence[int]) -> ServingOverheads:
    """From a run's records; `owners` holds for each server the index of its device."""
    tables = [devices[device] for device in owners]
    after_ns = int(WARMUP_S * NS_PER_S)
    batches = _alone([batch for batch in record.batches if batch.commanded_ns >= after_ns], owners)
    blocks = [block for block in record.blocks if block.snapshot_ns >= after_ns and block.arrived_ns]

    def dispatch_ns(batch: BatchRecord) -> float:
        return batch.started_ns - batch.commanded_ns + batch.ended_ns - batch.forward_ended_ns

    def slower_ns(batch: BatchRecord) -> float:
        return batch.forward_ended_ns - batch.started_ns - _calibrated_ns(tables[batch.server], batch)

    def beyond_bytes_ns(block: BlockRecord) -> float:
        device = tables[block.server]
        moved = block.size * input_bytes(device, block.head.segment, block.head.previous_width)
        link = device.profile.link
        carried_s = moved / link.bandwidth_bytes_s if link is not None else 0.0
        return block.arrived_ns - block.sent_ns - carried_s * NS_PER_S

    servers = range(len(tables))
    on_device_s = [_on_device_s(record, device, owners, index) for index, device in enumerate(devices)]

    def extra_s(server: int) -> float | None:
        extra_s = on_device_s[owners[server]]
        return extra_s if extra_s is not None else _mean_s([slower_ns(b) for b in batches if b.server == server])

    def dispatch_s(server: int) -> float | None:
        """On a CPU: what is left of a batch's time without its pass and all that its core does for it."""
        extra_s = on_device_s[owners[server]]
        if extra_s is None:
            return _mean_s([dispatch_ns(b) for b in batches if b.server == server])
        return _mean_s([dispatch_ns(b) + slower_ns(b) - extra_s * NS_PER_S for b in batches if b.server == server])

    return ServingOverheads(
        decision_s=(_mean_s([block.sent_ns - block.snapshot_ns for block in blocks]) or 0.0) + _usual_wait_s(record),
        decision_busy_s=record.driver_busy_ns / max(1, record.decisions) / NS_PER_S,
        dispatch_s=tuple(dispatch_s(server) for server in servers),
        transfer_s=tuple(
            _mean_s([beyond_bytes_ns(b) for b in blocks if b.server == s and b.head.location != s]) for s in servers
        ),
        extra_s=tuple(extra_s(server) for server in servers),
    )


def _on_device_s(record: RunRecord, device: DeviceTables, owners: Sequence[int], index: int) -> float | None:
    """CPU time that a CPU device spends on each batch beyond its calibrated pass: the executor's own work runs on the
    cores that compute. None on a GPU, and where nothing ran."""
    servers = [server for server, owner in enumerate(owners) if owner == index]
    batches = [batch for batch in record.batches if batch.server in servers]
    if device.profile.device.kind != "cpu" or not batches or not record.servers:
        return None
    calibrated_s = sum(_calibrated_ns(device, batch) for batch in batches) / NS_PER_S
    return max(0.0, record.servers[servers[0]].busy_s - calibrated_s) / len(batches)


def _calibrated_ns(device: DeviceTables, batch: BatchRecord) -> float:
    """What a pass of a batch takes on average by calibration alone, at whatever pace the device has."""
    profile = device.profile
    table = device.keys[batch.segment, batch.width, batch.previous_width]
    slower = profile.pace.mean_factor if device.pace is not None and profile.pace is not None else 1.0
    return slower * (table.latency_ns[batch.size] - profile.served_extra_s * NS_PER_S)


def _usual_wait_s(record: RunRecord) -> float:
    """What a request waits for a decision in each segment, as a rule: most find the router idle at a low load."""
    wait = STAGES.index("router_wait")
    waits_ns = [r.stages_ns[wait] / len(r.widths) for r in record.requests if r.status == "completed" and r.stages_ns]
    return float(np.median(waits_ns)) / NS_PER_S if waits_ns else 0.0


def _alone(batches: Sequence[BatchRecord], owners: Sequence[int]) -> list[BatchRecord]:
    """Those that no other batch of their device overlapped (all, where each was overlapped): the simulator adds what
    sharing the device costs, so it must not be in here."""
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
        found += alone or own
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
    update: dict[str, object] = {"decision_s": overheads.decision_s, "decision_busy_s": overheads.decision_busy_s}
    dispatch_s, transfer_s = overheads.dispatch_s[server], overheads.transfer_s[server]
    if dispatch_s is not None:
        update["dispatch_s"] = dispatch_s
    if transfer_s is not None and profile.link is not None:
        update["link"] = profile.link.model_copy(update={"latency_s": transfer_s})
    if (extra_s := overheads.extra_s[server]) is not None:
        update["served_extra_s"] = extra_s
    return profile.model_copy(update=update)


def is_served(profile: Profile) -> bool:
    """Whether what serving costs is in a profile."""
    return profile.decision_s is not None
