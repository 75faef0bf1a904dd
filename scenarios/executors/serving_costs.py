"""What serving costs beyond calibrated passes, from records of real runs, light ones and busier ones.

No waiting is counted as a cost, because simulation adds its own: what processes do is CPU time, which does not count
waiting; ways and dispatches are distinguished by whether some pass ran on the device then; the extra time of a pass is
measured by passes that had their device to themselves.

A calibrated pass is one at the device's full speed, so all is scaled to full speed: by the slowdown that the workers
read in the run (`scenarios.executors.validation_plan`), or by the average one (`Profile.slowdown`) if they read
nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear, nnls

from policies.run_records import BatchRecord, CpuWorkCost, Handover, MicroBatchRecord, RouterCost, RunRecord
from policies.vocabulary import NS_PER_S
from scenarios.executors.validation_plan import mean_slowdown, observed_slowdowns
from sim.device_profile import PAUSES_S, BusyServing, CpuWork, HandoverTimes, RouterHost, WorkCost, pause_number
from sim.device_tables import DeviceTables, input_bytes

WARMUP_S = 1.0
RATIO_PARTS, SPREAD_PARTS = 64, 16  # equal parts of a distribution
ATTAINMENT_SHARE = 0.99  # a stall of the host in a run this short would rule the mean
SLICE_S = 2e-3  # with too few waits: half a tick of Linux's scheduler at 250 Hz
TELLING_RATIO = 2.0  # of the largest to the smallest
MAX_FASTER = 0.5  # of a calibrated pass, that a served one may take less
MIN_WAITS = 5  # uncut by a pass's end: they are accurate to within a half, an assumption to within four times
MIN_SAMPLES = 20  # of a distribution, or of a state that is to be distinguished from another


Wait = tuple[float, float]  # how long something waited, and how long the concurrent pass had left; seconds


@dataclass(frozen=True, slots=True)
class PassExtra:
    """What a served pass takes beyond the calibrated one: see `sim.device_profile.Profile`."""

    always_s: float
    share: float
    per_byte_s: float
    after_pause_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """The costs of the servers of one device; None for what no sample shows. See `sim.device_profile.Profile`.

    Attributes:
        dispatch_s: the mean, if no pass ran on the device.
        transfer_s, fetch_s: means of micro-batches that come from the router, and of those that another server has.
        ratios: see `Profile.served_ratios`.
    """

    handover: HandoverTimes | None = None
    dispatch_s: float | None = None
    busy: BusyServing | None = None
    transfer_s: float | None = None
    fetch_s: float | None = None
    extra: PassExtra | None = None
    ratios: tuple[float, ...] = ()
    cpu_work: CpuWork | None = None


@dataclass(frozen=True, slots=True)
class ServingCosts:
    """The costs of serving on this host; `router_host` is None without samples of decisions and of returns."""

    router_host: RouterHost | None
    devices: tuple[DeviceCosts, ...]


def costs_of(runs: Sequence[RunRecord], devices: Sequence[DeviceTables], owners: Sequence[int]) -> ServingCosts:
    """Compute costs from runs by ascending load; `owners` holds for each server the index of its device."""
    device_runs = []
    for index, tables in enumerate(devices):
        device_runs.append(_device_costs([_DeviceRun(run, index, devices, owners) for run in runs], tables))
    return ServingCosts(_router_host([cost for run in runs for cost in run.router_costs]), tuple(device_runs))


def _device_costs(runs: Sequence[_DeviceRun], tables: DeviceTables) -> DeviceCosts:
    light, busier = runs[0], runs[1:] or runs
    cpu_work = _cpu_work(runs) if tables.profile.is_on_cores else None
    there_s = light.handovers_s(there=True, is_busy=False, cpu_work=cpu_work)
    back_s = light.handovers_s(there=False, is_busy=False)
    busy_there_s = [took_s for run in busier for took_s in run.handovers_s(there=True, is_busy=True, cpu_work=cpu_work)]
    busy_back_s = [took_s for run in busier for took_s in run.handovers_s(there=False, is_busy=True)]
    busy_dispatch_s = [took_s for run in busier for took_s in run.dispatches_s(is_busy=True)]
    handover = HandoverTimes(there_s=_mean(there_s), back_s=_mean(back_s)) if there_s and back_s else None
    dispatch_s = mean_of(light.dispatches_s(is_busy=False))
    busy = None
    if handover and dispatch_s and cpu_work is None and min(len(busy_there_s), len(busy_dispatch_s)) >= MIN_SAMPLES:
        busy = BusyServing(
            dispatch_s=_mean(busy_dispatch_s),
            there_s=_mean(busy_there_s),
            back_s=_mean(busy_back_s if len(busy_back_s) >= MIN_SAMPLES else back_s),
        )
    extra = _extra(runs)
    return DeviceCosts(
        handover=handover,
        dispatch_s=dispatch_s,
        busy=busy,
        transfer_s=light.transfer_s(),
        fetch_s=light.fetch_s(),
        extra=extra,
        ratios=() if extra is None or tables.profile.device.emulated_slowdown else _ratios(runs, extra),
        cpu_work=cpu_work,
    )


class _DeviceRun:
    """One device in one run: its batches, and when passes ran."""

    def __init__(self, record: RunRecord, index: int, devices: Sequence[DeviceTables], owners: Sequence[int]) -> None:
        self.servers = frozenset(server for server, owner in enumerate(owners) if owner == index)
        self._record = record
        self._tables = devices[index]
        self._changes = changes = observed_slowdowns(record, devices, owners).get(index)
        usual = self._tables.profile.slowdown
        usual_slowdown = 1.0 if usual is None else usual.mean_factor
        self.slowdown = usual_slowdown if changes is None else mean_slowdown(changes, record.ended_ns)
        self.own_slowdown = self.slowdown if self._tables.profile.is_on_cores else 1.0  # of a worker there
        batches = sorted(
            (batch for batch in record.batches if batch.server in self.servers), key=lambda each: each.started_ns
        )
        self._after_ns = int(WARMUP_S * NS_PER_S)
        self._batches = [batch for batch in batches if batch.commanded_ns >= self._after_ns]
        self._starts_ns = np.array([batch.started_ns for batch in batches], np.int64)
        self._ends_ns = np.sort(np.array([batch.forward_ended_ns for batch in batches], np.int64))

    def running(self, at_ns: int) -> int:
        """Return how many passes run at that time."""
        begun = np.searchsorted(self._starts_ns, at_ns, "right")
        return int(begun - np.searchsorted(self._ends_ns, at_ns, "right"))

    def pause(self, at_ns: int) -> int:
        """Return the number of the pause since a pass has run (`sim.device_profile.pause_number`)."""
        if self.running(at_ns):
            return 0
        ended = int(np.searchsorted(self._ends_ns, at_ns, "right"))
        return pause_number(at_ns - (int(self._ends_ns[ended - 1]) if ended else 0))

    def _is_free(self, from_ns: int, until_ns: int) -> bool:
        """Return whether no pass runs at any time from one to the other."""
        first, last = np.searchsorted(self._starts_ns, [from_ns, until_ns], "right")
        return first == last and not self.running(from_ns)

    @cached_property
    def alone(self) -> list[BatchRecord]:
        """Batches whose passes no other overlapped: what sharing costs is added by the simulator."""
        return [
            batch
            for batch in self._batches
            if self.running(batch.started_ns) == 1
            and np.searchsorted(self._starts_ns, batch.forward_ended_ns) == np.searchsorted(
                self._starts_ns, batch.started_ns, "right"
            )
        ]  # fmt: skip

    def extra_row(self, batch: BatchRecord) -> tuple[float, float, float, int]:
        """Return how much longer than calibrated its pass was, at full speed.

        Then the calibrated one, both in seconds; its instance's bytes; the number of the pause before it.
        """
        table, profile = self._tables.keys[batch.segment, batch.width, batch.previous_width], self._tables.profile
        weight_bytes = profile.weights_bytes(batch.segment, batch.width)
        extra_s = profile.served_extra_s + profile.served_extra_per_byte_s * weight_bytes
        table_s = table.latency_ns[batch.size] / self._tables.mean_slowdown / NS_PER_S
        calibrated_s = (table_s - extra_s) / (1 + profile.served_extra_share)
        slowdown = self.slowdown
        if self._changes is not None:
            index = bisect_right(self._changes, batch.started_ns, key=lambda change: change[0])
            slowdown = self._changes[max(0, index - 1)][1]
        took_s = (batch.forward_ended_ns - batch.started_ns) / NS_PER_S / slowdown
        return took_s - calibrated_s, calibrated_s, weight_bytes, self.pause(batch.started_ns - 1)

    def dispatches_s(self, *, is_busy: bool) -> list[float]:
        """Return times from commands to passes plus from passes to the notice of their ends, while other passes ran
        (`is_busy`) or none did.

        An idle device stays so until the pass.
        """
        return [
            (batch.started_ns - batch.commanded_ns + batch.ended_ns - batch.forward_ended_ns)
            / NS_PER_S
            / self.own_slowdown
            for batch in self._batches
            if (
                self.running(batch.commanded_ns) if is_busy else self._is_free(batch.commanded_ns, batch.started_ns - 1)
            )
        ]

    def handovers_s(self, *, there: bool, is_busy: bool, cpu_work: CpuWork | None = None) -> list[float]:
        """Return how long handovers in one direction took, of those that waited for no other.

        They are less what the worker did on the device's cores to take a micro-batch in, if that is measured
        separately. An idle device stays so meanwhile.
        """
        durations_s: list[float] = []
        last_ns: dict[int, int] = {}
        for handover in sorted(self._handovers(there), key=lambda each: each.at_ns):
            waited = last_ns.get(handover.server, 0) > handover.at_ns
            last_ns[handover.server] = handover.at_ns + handover.took_ns
            if waited or bool(self.running(handover.at_ns)) != is_busy:
                continue
            if there and not is_busy and not self._is_free(handover.at_ns, handover.at_ns + handover.took_ns):
                continue
            taken_in_s = 0.0
            if cpu_work is not None:
                cost_s = cpu_work.taken.micro_batch_s + cpu_work.taken.image_s * self._images_a_micro_batch
                taken_in_s = (1.0, *cpu_work.taken_after_pause)[self.pause(handover.at_ns)] * cost_s
            durations_s.append(max(0.0, handover.took_ns / NS_PER_S / self.own_slowdown - taken_in_s))
        return durations_s

    def _handovers(self, there: bool) -> Iterable[Handover]:
        return (
            handover
            for handover in self._record.handovers
            if handover.server in self.servers and handover.there == there and handover.at_ns >= self._after_ns
        )

    def waits_to_be_taken(self) -> list[Wait]:
        """Collect the waits of micro-batches that were sent while one pass ran.

        Not of batches that were commanded meanwhile: their commanding thread has the core already, so they hardly wait.
        """
        return [
            (handover.took_ns / NS_PER_S, left_s)
            for handover in self._handovers(there=True)
            if (left_s := self._left_s(handover.at_ns)) is not None
        ]

    def _left_s(self, at_ns: int) -> float | None:
        """Return how long the only pass of that time had left; None if there was none, or more."""
        if self.running(at_ns) != 1:
            return None
        ended = int(np.searchsorted(self._ends_ns, at_ns, "right"))
        return float(self._ends_ns[ended] - at_ns) / NS_PER_S

    @cached_property
    def _images_a_micro_batch(self) -> float:
        costs = [cost for cost in self.cpu_work if cost.kind == "taken"]
        return sum(cost.images for cost in costs) / max(1, sum(cost.count for cost in costs))

    @cached_property
    def cpu_work(self) -> list[CpuWorkCost]:
        """CPU work of the device's workers other than passes."""
        return [cost for cost in self._record.cpu_work if cost.server in self.servers and cost.at_ns >= self._after_ns]

    def transfer_s(self) -> float | None:
        """Return a micro-batch's time from the router beyond its bytes, and beyond the handover that comes after."""
        beyond_s = []
        for micro_batch in self._moved:
            if micro_batch.head.location < 0:
                moved_bytes = micro_batch.size * input_bytes(
                    self._tables, micro_batch.head.segment, micro_batch.head.previous_width
                )
                link = self._tables.profile.link
                bytes_s = moved_bytes / link.bandwidth_bytes_s if link is not None else 0.0
                beyond_s.append((micro_batch.arrived_ns - micro_batch.sent_ns) / NS_PER_S - bytes_s)
        return self._gathered_s(beyond_s)

    def fetch_s(self) -> float | None:
        """Return the time to gather what another server has: until it was asked, has written it, and has answered."""
        of_others = [micro_batch for micro_batch in self._moved if micro_batch.head.location >= 0]
        return self._gathered_s(
            [(micro_batch.arrived_ns - micro_batch.sent_ns) / NS_PER_S for micro_batch in of_others]
        )

    @cached_property
    def _moved(self) -> list[MicroBatchRecord]:
        return [
            micro_batch
            for micro_batch in self._record.micro_batches
            if micro_batch.server in self.servers and micro_batch.snapshot_ns >= self._after_ns
            and micro_batch.arrived_ns
            and micro_batch.head.location != micro_batch.server
        ]  # fmt: skip

    def _gathered_s(self, durations_s: Sequence[float]) -> float | None:
        mean_s = mean_of(durations_s)
        handover_s = mean_of([handover.took_ns / NS_PER_S for handover in self._handovers(there=True)])
        return None if mean_s is None or handover_s is None else max(0.0, mean_s - handover_s)

    def began_beside_nobody(self) -> list[tuple[CpuWorkCost, float]]:
        """Return what lanes' threads did to begin a batch whose pass was alone; scaled to full speed."""
        ended: dict[int, list[BatchRecord]] = {}
        for batch in sorted(self.alone, key=lambda each: each.ended_ns):
            ended.setdefault(batch.server, []).append(batch)
        pairs = []
        for cost in self.cpu_work:
            if cost.kind != "begun":
                continue
            batches = ended.get(cost.server, [])
            index = bisect_right(batches, cost.at_ns, key=lambda batch: batch.ended_ns)
            if index and cost.at_ns - batches[index - 1].ended_ns < _SOON_NS:
                pairs.append((cost, max(0.0, cost.cpu_ns / NS_PER_S / self.slowdown)))
        return pairs


_SOON_NS = NS_PER_S // 1000  # a batch's end is reported within this


def _cpu_work(runs: Sequence[_DeviceRun]) -> CpuWork | None:
    """Fit each kind of work; None if some kind that every served batch needs has no sample."""
    rows: dict[str, list[tuple[float, float, float]]] = {
        kind: [] for kind in ("taken", "woken", "moved", "ended", "begun")
    }
    pauses = []
    for run in runs:
        for cost in run.cpu_work:
            if cost.kind == "begun":
                continue
            rows[cost.kind].append((cost.count, cost.images, cost.cpu_ns / NS_PER_S / run.slowdown))
            if cost.kind == "taken":
                pauses.append(run.pause(cost.at_ns))
        rows["begun"] += [(cost.count, cost.images, cpu_s) for cost, cpu_s in run.began_beside_nobody()]
    if not all(rows[kind] for kind in ("taken", "ended", "begun")):
        return None
    taken, after_pause = _by_pause(rows["taken"], pauses)
    in_vain_s = sum(cost_s for _, _, cost_s in rows["woken"]) / sum(count for count, _, _ in rows["taken"])
    taken = taken.model_copy(update={"micro_batch_s": taken.micro_batch_s + in_vain_s})
    waits = [wait for run in runs for wait in run.waits_to_be_taken()]
    sooner = sum(took_s < left_s for took_s, left_s in waits)
    return CpuWork(
        taken=taken,
        taken_after_pause=after_pause,
        moved=_work_cost(rows["moved"]),
        begun=_work_cost(rows["begun"]),
        ended=_work_cost(rows["ended"]),
        # a pass's end may have cut waits short: the most likely mean if it is exponential
        slice_s=(sum(map(min, waits)) / sooner if sooner >= MIN_WAITS else 0.0) or SLICE_S,
    )


Rows = Sequence[tuple[float, float, float]]  # how many, of how many images, at which cost


def _by_pause(rows: Rows, pauses: Sequence[int]) -> tuple[WorkCost, tuple[float, ...]]:
    """Return the cost without a pause, and its multiple after each kind of pause."""
    at_pause = np.array(pauses)
    warm = [row for row, pause in zip(rows, pauses, strict=True) if pause == 0]
    cost = _work_cost(warm if len(warm) >= MIN_SAMPLES else rows)
    table = np.array(rows, np.float64)
    means = table[:, 0] * cost.micro_batch_s + table[:, 1] * cost.image_s
    factors, factor = [], 1.0
    for number in range(1, len(PAUSES_S) + 1):
        is_after = at_pause == number
        if is_after.sum() >= MIN_SAMPLES and means[is_after].sum() > 0:
            factor = float(_without_stalls(table[is_after, 2]).mean() / means[is_after].mean())
        factors.append(factor)
    return cost, tuple(factors)


def _work_cost(rows: Rows) -> WorkCost:
    """Fit a part a micro-batch and a part an image by least squares, neither below zero, without stalls.

    If hardly a micro-batch holds several images, all is a micro-batch's: two slow ones of a hundred would make it all
    an image's, and micro-batches of sixteen sixteen times as expensive.
    """
    if not rows:
        return WorkCost(micro_batch_s=0.0, image_s=0.0)
    table = np.array(rows, np.float64)
    if len(table) >= MIN_SAMPLES:
        table = table[table[:, 2] <= np.quantile(table[:, 2], ATTAINMENT_SHARE)]
    several = (table[:, 1] > table[:, 0]).sum()
    parts = 2 if several >= min(MIN_SAMPLES, len(table) / 2) else 1
    parts_s, _ = nnls(table[:, :parts], table[:, 2])
    return WorkCost(micro_batch_s=float(parts_s[0]), image_s=float(parts_s[1:].sum()))


def _extra(runs: Sequence[_DeviceRun]) -> PassExtra | None:
    """Fit by least squares over passes that had their device to themselves; of few take their mean alone."""
    rows = np.array([run.extra_row(batch) for run in runs for batch in run.alone], np.float64)
    if not len(rows):
        return None
    rows = rows[rows[:, 0] / rows[:, 1] <= np.quantile(rows[:, 0] / rows[:, 1], ATTAINMENT_SHARE)]
    longer_s, calibrated_s, weight_bytes, pauses = rows.T
    if len(rows) < MIN_SAMPLES:
        return PassExtra(max(0.0, float(longer_s.mean())), 0.0, 0.0, (0.0,) * len(PAUSES_S))
    after = [pauses >= number for number in range(1, len(PAUSES_S) + 1)]
    work = np.stack([np.ones(len(rows)), calibrated_s, weight_bytes, *after], axis=1)
    columns = [True, *(bool(each.max() > TELLING_RATIO * each.min()) for each in (calibrated_s, weight_bytes))]
    columns += [MIN_SAMPLES <= column.sum() <= len(rows) - MIN_SAMPLES for column in after]
    units = np.maximum(work.max(axis=0), 1e-300)
    trust = 1 / np.sqrt(calibrated_s)  # long passes scatter by more
    least = np.array([0.0, -MAX_FASTER, *[0.0] * (len(after) + 1)]) * units
    prices = np.zeros(len(columns))
    prices[columns] = lsq_linear(
        (work / units * trust[:, None])[:, columns], longer_s * trust, (least[columns], np.inf)
    ).x
    always_s, share, per_byte_s, *added_s = (prices / units).tolist()
    return PassExtra(always_s, share, per_byte_s, tuple(np.cumsum(added_s).tolist()))


def _ratios(runs: Sequence[_DeviceRun], extra: PassExtra) -> tuple[float, ...]:
    """Return quantiles of measured over expected time, of passes alone on their device; empty with few."""
    ratios = []
    for run in runs:
        for longer_s, calibrated_s, weight_bytes, pause in map(run.extra_row, run.alone):
            expected_s = calibrated_s * (1 + extra.share) + extra.always_s + extra.per_byte_s * weight_bytes
            ratios.append((longer_s + calibrated_s) / (expected_s + (0.0, *extra.after_pause_s)[pause]))
    return tuple(_quantiles(ratios, RATIO_PARTS).tolist()) if len(ratios) >= MIN_SAMPLES else ()


def _router_host(samples: Sequence[RouterCost]) -> RouterHost | None:
    """Return what the router's process costs, and how single costs vary around that."""
    fitted: dict[str, WorkCost] = {}
    factors: list[NDArray[np.float64]] = []
    ratios: list[NDArray[np.float64]] = []
    for kind in ("decision", "returned"):
        of_kind = [sample for sample in samples if sample.kind == kind]
        if not of_kind:
            return None
        rows = [(sample.micro_batches_at_once, sample.images, sample.cpu_ns / NS_PER_S) for sample in of_kind]
        pauses = [pause_number(sample.pause_ns) for sample in of_kind]
        fitted[kind], after_pause = _by_pause(rows, pauses)
        factors.append(np.array(after_pause))
        table = np.array(rows, np.float64)
        means_s = table[:, 0] * fitted[kind].micro_batch_s + table[:, 1] * fitted[kind].image_s
        means_s = means_s * np.array((1.0, *after_pause))[pauses]
        single = (table[:, 0] == 1) & (means_s > 0)  # several together hide how far single ones differ
        ratios.append(table[single, 2] / means_s[single])
    spread = _quantiles(np.concatenate(ratios), SPREAD_PARTS)
    return RouterHost(
        decision=fitted["decision"],
        returned=fitted["returned"],
        sent_share=_done_share(samples, "decision"),
        received_share=_done_share(samples, "returned"),
        spread=tuple((spread / spread.mean()).tolist()) if spread.any() else (),
        after_pause=tuple(np.mean(factors, axis=0).tolist()),
    )


def _quantiles(values: Sequence[float] | NDArray[np.float64], parts: int) -> NDArray[np.float64]:
    """Return the middles of equal parts; none of no values."""
    return np.quantile(np.asarray(values), (np.arange(parts) + 0.5) / parts) if len(values) else np.zeros(0)


def _done_share(samples: Sequence[RouterCost], kind: str) -> float:
    of_kind = [sample for sample in samples if sample.kind == kind]
    return min(1.0, sum(sample.done_ns for sample in of_kind) / max(1, sum(sample.cpu_ns for sample in of_kind)))


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean of the lower 99 %; None of nothing."""
    return _mean(values) if len(values) else None


def _mean(values: Sequence[float]) -> float:
    return float(_without_stalls(np.asarray(values, np.float64)).mean())


def _without_stalls(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sort(values)[: max(1, round(ATTAINMENT_SHARE * len(values)))]
