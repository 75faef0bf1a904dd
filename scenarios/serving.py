"""What serving costs beyond the forward passes that calibration measured: from a short run on the real executors.

A pass in a calibration loop finds its thread awake and its caches warm; a served batch does not, and its command and
result travel between processes that share cores. These overheads are this host's, so they are measured on it, with a
router (`random`) and a seed that no reported run uses, and go into the profiles: `decision_s`, `dispatch_s` and the
link's latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hw.datasets import Dataset
from hw.networks import ModelFile
from policies.chance import derived_seed
from policies.records import BatchRecord, BlockRecord, RunRecord
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
    dispatch_s: tuple[float | None, ...]
    transfer_s: tuple[float | None, ...]


def measure_serving(world: World, model: ModelFile, dataset: Dataset, seed: int) -> ServingOverheads:
    """Serve the scenario's workload for a few seconds and look at every stage of every block."""
    world = without_faults(world)
    with real_cluster(world, model) as cluster:
        _, record = run_on_hardware(
            world, cluster, dataset, world.router("random"), "random", derived_seed(seed, "serving"),
            duration_s=RUN_S, warmup_s=WARMUP_S, emulate_links=False, keep_log=False,
        )  # fmt: skip
    return overheads_of(record, [world.cluster.devices[server.device] for server in world.cluster.servers])


def overheads_of(record: RunRecord, tables: Sequence[DeviceTables]) -> ServingOverheads:
    """From a run's records; `tables` holds each server's device."""
    after_ns = int(WARMUP_S * NS_PER_S)
    batches = _alone([batch for batch in record.batches if batch.commanded_ns >= after_ns])
    blocks = [block for block in record.blocks if block.snapshot_ns >= after_ns and block.arrived_ns]

    def beyond_forward_ns(batch: BatchRecord) -> float:
        table = tables[batch.server].keys[batch.segment, batch.width, batch.previous_width]
        return batch.ended_ns - batch.commanded_ns - table.latency_ns[batch.size]

    def beyond_bytes_ns(block: BlockRecord) -> float:
        device = tables[block.server]
        moved = block.size * input_bytes(device, block.head.segment, block.head.previous_width)
        link = device.profile.link
        carried_s = moved / link.bandwidth_bytes_s if link is not None else 0.0
        return block.arrived_ns - block.sent_ns - carried_s * NS_PER_S

    decision_s = _mean_s([block.sent_ns - block.snapshot_ns for block in blocks])
    servers = range(len(tables))
    return ServingOverheads(
        decision_s=decision_s or 0.0,
        dispatch_s=tuple(_mean_s([beyond_forward_ns(b) for b in batches if b.server == s]) for s in servers),
        transfer_s=tuple(
            _mean_s([beyond_bytes_ns(b) for b in blocks if b.server == s and b.head.location != s]) for s in servers
        ),
    )


def _alone(batches: Sequence[BatchRecord]) -> list[BatchRecord]:
    """Those that no other batch of their server overlapped (all, where each was overlapped): the simulator adds what
    sharing the device costs, so it must not be in here."""
    found: list[BatchRecord] = []
    for server in {batch.server for batch in batches}:
        own = sorted((b for b in batches if b.server == server), key=lambda b: b.commanded_ns)
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
    """The profile of a server's device with what serving on this host costs."""
    update: dict[str, object] = {"decision_s": overheads.decision_s}
    dispatch_s, transfer_s = overheads.dispatch_s[server], overheads.transfer_s[server]
    if dispatch_s is not None:
        update["dispatch_s"] = dispatch_s
    if transfer_s is not None and profile.link is not None:
        update["link"] = profile.link.model_copy(update={"latency_s": transfer_s})
    return profile.model_copy(update=update)
