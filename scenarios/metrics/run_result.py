"""A run's record turned into its result: the keys of a result, and how each number is computed.

Statistics are over the requests that arrived between the end of the warm-up and the end of the arrivals; counts and
energies are over the whole run. A simulated and a real record are read the same way. What each number means, and how it
is shown, is in `scenarios.metrics.metric_catalogue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, fsum
from typing import Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from hw.networks.accuracy_table import AccuracyProvenance
from policies.interfaces import AccuracyPrior
from policies.run_records import (
    COMPLETED,
    FAILED,
    IN_FLIGHT,
    STAGES,
    BatchRecord,
    DeviceTotals,
    Downtime,
    RequestColumns,
    RunColumns,
    RunRecord,
    ServerTotals,
)
from policies.vocabulary import NS_PER_S, Provenance
from scenarios.files.scenario_keys import Scenario
from scenarios.metrics.slo import (
    NO_SLO,
    ClassPromise,
    Slo,
    SloAttainment,
    SloDocument,
    attainment_of,
    has_floor,
    judge,
    slo_attainment,
    slo_document,
    tuples_run,
    window_edges_ns,
)

Mode = Literal["simulation", "executors"]
Simulator = Literal["simpy", "compiled"]
End = Literal["drain", "cut"]
Engine = Literal[Simulator, "torch", "emulated"]


class ImageCounts(TypedDict):
    """Whole run; `arrived` is the sum of the other three."""

    arrived: int
    completed: int
    in_flight: int
    failed: int


class Shares(TypedDict):
    """Shares of what arrived in the whole run; completed, unfinished and failed make 1. Null if nothing arrived.

    `unserved`: what failed, and under `end: drain` what was left after the drain.
    """

    completed: float | None
    unfinished: float | None
    failed: float | None
    unserved: float | None


class Spread(TypedDict):
    """Mean and standard deviation (of the population); null if nothing was counted."""

    mean: float | None
    std: float | None


class LatencyMetrics(Spread):
    """Seconds; percentiles by nearest rank."""

    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class EnergyPerImage(TypedDict):
    """Joules of all devices per completed image: total = dynamic + base + idle; null if none completed."""

    total: float | None
    dynamic: float | None
    base: float | None
    idle: float | None


class ServerMetrics(TypedDict):
    """One server over the whole run; its utilization and power are its device's."""

    name: str
    utilization: float
    mean_power_w: float
    images: int
    batches: int
    mean_batch: float
    loads: int
    unloads: int
    vram_peak_bytes: int


class ArrivalLag(TypedDict):
    """Seconds by which the load generator was late (latencies count from the time at which an image was due)."""

    mean: float
    p99: float
    max: float


class Restart(TypedDict):
    """One time that a server was down; seconds since the start of the run.

    Attributes:
        cause: `worker_died`, `worker_hung`, or `planned`: an outage that the scenario plans; or `drained`: it was to be
            drained, up or not.
        planned: whether the scenario planned that it goes down.
        up_s: null if it never came back.
    """

    server: str
    cause: str
    planned: bool
    down_s: float
    up_s: float | None


class Lateness(TypedDict):
    """How much later than their model emulated passes were seen to end, in seconds, and their mean length."""

    p50: float
    p99: float
    mean_pass: float


class Cpu(TypedDict):
    """The shares of the host's cores' time that a run's own processes took; see `policies.run_records.CpuUse`."""

    router: float
    worker: float
    cores: float


MOST_CPU = 0.9  # beyond, work waits for a core: at 0.9 of a single one, nine times as long as the work takes


def cpu_share(cpu: Cpu) -> float:
    """Return the largest share: of the router's core, a worker's, or all cores."""
    return max(cpu["router"], cpu["worker"], cpu["cores"])


def charged_decisions(results: Iterable[Result]) -> dict[str, float]:
    """Return, by router, what its own decisions were charged, if more than nothing."""
    return {result["router"]: charged for result in results if (charged := result["own_decision_s"])}


MAX_LATE = 0.1  # of a mean pass: more p99 lateness is due to this machine, not to the device


def lateness_share(lateness: Lateness) -> float:
    """Return the p99 lateness in times of a mean pass."""
    return lateness["p99"] / lateness["mean_pass"] if lateness["mean_pass"] else 0.0


class ClassMetrics(TypedDict):
    """What one class of requests got; each key as in a result, of its requests alone.

    Attributes:
        in_time: of those that arrived in the window, the share that was completed within the class's deadline, or its
            p99 limit if there is none; null without either.
    """

    images: ImageCounts
    shares: Shares
    accuracy: float | None
    expected_accuracy: float | None
    latency_s: LatencyMetrics
    throughput_img_s: float
    goodput_img_s: float | None
    in_time: float | None
    slo_attainment: SloAttainment


class Result(TypedDict):
    """`slimsched.result/1`.

    Attributes:
        end: what happened to requests in flight at the horizon: worked off, or cut off there.
        extrapolated_share: of the time, the largest over devices, in which more batches ran at once than the device's
            profile was measured with; 0 on executors.
        unmetered_share: of the time, the largest over devices, for which the device's sensor reported nothing: no
            energy counts for it; 0 in simulation.
        signatures: failures that the run shows; null if none were looked for.
        emulated_slowdowns: of the devices that are emulated, in simulation and on executors; empty if all are real.
        lateness_s: of a run on emulated devices; null elsewhere.
        cpu: of a run on executors; null in simulation.
        own_decision_s: what a decision of this router was charged beyond one of `random`, as it was measured here; 0 if
            nothing was, null on executors, which take what they take.
        slo: what the scenario promises; `slo_attainment`: in which share of the windows it was.
        classes: by name, if requests have classes; goodput and attainment of the whole are then of what each class is
            promised.
    """

    schema: str
    scenario: str
    router: str
    seed: int
    mode: Mode
    engine: Engine
    provenance: str
    accuracy_provenance: AccuracyProvenance
    end: End
    images: ImageCounts
    shares: Shares
    accuracy: float | None
    latency_s: LatencyMetrics
    energy_j: Spread
    energy_per_image_j: EnergyPerImage
    gpu_var: Spread
    offered_img_s: float
    throughput_img_s: float
    duration_s: float
    warmup_s: float
    censored: int
    goodput_img_s: float | None
    decisions: int
    wall_s: float
    servers: list[ServerMetrics]
    arrival_lag_s: ArrivalLag | None
    restarts: list[Restart]
    failures: dict[str, int]
    stages_s: dict[str, float] | None
    extrapolated_share: float
    unmetered_share: float
    expected_accuracy: float | None
    moves_per_image: float | None
    signatures: list[Signature] | None
    emulated_slowdowns: list[float]
    lateness_s: Lateness | None
    cpu: Cpu | None
    own_decision_s: float | None
    slo: SloDocument
    slo_attainment: SloAttainment
    classes: NotRequired[dict[str, ClassMetrics]]


class Score(TypedDict):
    """`slimsched.score/1`: a router on one run that training has not seen; both engines gave the same, bit for bit.

    Attributes:
        seed: of the run.
        reward: the mean of Eq. 7 over the run's blocks.
        shares, latency_s, accuracy, signatures: as in a result.
    """

    schema: str
    router: str
    seed: int
    decisions: int
    reward: float | None
    shares: Shares
    latency_s: float | None
    accuracy: float | None
    signatures: list[Signature] | None


class ClustersScore(TypedDict):
    """`slimsched.clusters-score/1`: a router that was trained over drawn clusters, on others that training did not see.

    Attributes:
        seed: of what was drawn.
        decisions: simulated in training.
        clusters, held_back: how many there were in training, and are here.
        change, change_ci95: by how much the objective (the logarithm of the mean latency, and of the p99 with a weight)
            is above that of the numbers that training began with, at equal accuracy: the mean over the clusters.
    """

    schema: str
    router: str
    seed: int
    decisions: int
    clusters: int
    held_back: int
    change: float | None
    change_ci95: float | None


SignatureName = Literal["reward hacking", "VRAM exhaustion", "accuracy collapse", "one-server collapse"]


class Signature(TypedDict):
    """One failure's sign in one run.

    Attributes:
        name: which failure.
        value: what was found, in the unit of `reason`.
        threshold: beyond which (below which, for accuracy collapse and reward hacking) it is a sign.
        reason: a sentence with the number.
    """

    name: SignatureName
    value: float
    threshold: float
    reason: str


# --------------------------------------------------------------------------------------------------- how it is computed


@dataclass(frozen=True, slots=True)
class RunLabel:
    """What ran, and where its numbers come from."""

    scenario: str
    router: str
    seed: int
    mode: Mode
    engine: Engine
    provenance: Provenance
    accuracy_provenance: AccuracyProvenance
    emulated_slowdowns: tuple[float, ...] = ()
    own_decision_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A class of requests: its name, what it is promised, and its deadline."""

    name: str
    slo: Slo
    deadline_s: float | None

    @property
    def in_time_s(self) -> float | None:
        """The latency up to which an image is in time: the deadline, or the p99 limit if there is none."""
        return self.slo.p99_limit_s if self.deadline_s is None else self.deadline_s

    @staticmethod
    def all_of(scenario: Scenario) -> tuple[RequestClass, ...]:
        """Return a scenario's classes."""
        return tuple(map(RequestClass, scenario.class_names, Slo.of(scenario).classes, scenario.deadlines_s))


@dataclass(frozen=True, slots=True)
class Window:
    """Arrivals lasted `horizon_s`, of which the first `warmup_s` do not count.

    `end` is what happened to requests in flight at the horizon, `slo` what the scenario promises. If requests have
    classes, request i is of `classes[class_of[i]]`.
    """

    warmup_s: float
    horizon_s: float
    deadline_s: float | None = None
    end: End = "drain"
    slo: Slo = NO_SLO
    classes: tuple[RequestClass, ...] = ()
    class_of: NDArray[np.int64] | None = None

    @property
    def in_time_s(self) -> float | None:
        """See `RequestClass.in_time_s`."""
        return self.slo.p99_limit_s if self.deadline_s is None else self.deadline_s

    @property
    def ns(self) -> tuple[int, int]:
        """The times of the first and the last arrival that count, both included."""
        begin_ns, end_ns = round(self.warmup_s * NS_PER_S), round(self.horizon_s * NS_PER_S)
        assert begin_ns < end_ns, "the warm-up must end before the arrivals do"
        return begin_ns, end_ns


def window_of(
    scenario: Scenario, warmup_s: float, horizon_s: float, end: End, class_of: NDArray[np.int64] | None
) -> Window:
    """Return the window of a run of a scenario; `class_of`: see `Window`."""
    deadline_s = None if scenario.classes else scenario.deadline_s
    classes = RequestClass.all_of(scenario)
    return Window(warmup_s, horizon_s, deadline_s, end, Slo.of(scenario), classes, class_of)


def summarise(
    run: RunRecord | RunColumns, label: RunLabel, window: Window, *, wall_s: float, prior: AccuracyPrior | None = None
) -> Result:
    """Compute the numbers of a run; without the network's `prior` no `expected_accuracy` is known.

    Failures are not looked for yet: `scenarios.metrics.failure_signs.diagnosed` does that.
    """
    lateness_s, cpu = None, None
    if isinstance(run, RunRecord):
        cpu = None if run.cpu is None else Cpu(router=run.cpu.router, worker=run.cpu.worker, cores=run.cpu.cores)
        lateness_s = _lateness_s(run.batches) if label.engine == "emulated" else None
        run = RunColumns.of(run)
    window_ns, requests = window.ns, run.requests
    edges_ns = window_edges_ns(*window_ns)
    in_window = (window_ns[0] <= requests.arrived_ns) & (requests.arrived_ns <= window_ns[1])
    completed = in_window & (requests.status == COMPLETED)
    latencies_s = _latencies_s(requests)
    duration_s = run.ended_ns / NS_PER_S
    images = _images(requests)
    expected = None if prior is None else expected_accuracy_of(requests, completed, prior)
    goodput_img_s = _goodput_img_s(requests, latencies_s, window_ns, window.in_time_s, expected, window.slo.floor)
    result = Result(
        schema="slimsched.result/1",
        scenario=label.scenario,
        router=label.router,
        seed=label.seed,
        mode=label.mode,
        engine=label.engine,
        provenance=str(label.provenance),
        accuracy_provenance=label.accuracy_provenance,
        end=window.end,
        images=images,
        shares=shares_of(images, window.end),
        accuracy=_ratio(_count(requests.correct & completed), _count(completed)),
        latency_s=_latency(latencies_s[completed]),
        energy_j=_spread(requests.energy_j[completed]),
        energy_per_image_j=energy_per_image(run.devices, duration_s, images["completed"]),
        gpu_var=_spread(run.gpu_var),
        offered_img_s=_count(in_window) * NS_PER_S / (window_ns[1] - window_ns[0]),
        throughput_img_s=_rate_img_s(requests, latencies_s, window_ns, None),
        duration_s=duration_s,
        warmup_s=window.warmup_s,
        censored=_count(in_window & (requests.status == IN_FLIGHT)),
        goodput_img_s=goodput_img_s,
        decisions=run.decisions,
        wall_s=wall_s,
        servers=[_server(server, run.devices[server.device], duration_s) for server in run.servers],
        arrival_lag_s=_arrival_lag(run.arrival_lags_ns),
        restarts=[_restart(down, run.servers[down.server].name) for down in run.downtimes],
        failures=_failures(requests),
        stages_s=_stages_s(requests, completed),
        extrapolated_share=max((device.extrapolated_s for device in run.devices), default=0.0) / duration_s,
        unmetered_share=max((device.unmetered_s for device in run.devices), default=0.0) / duration_s,
        expected_accuracy=expected,
        moves_per_image=_ratio(int(requests.moves[completed].sum()), _count(completed)),
        signatures=None,
        emulated_slowdowns=list(label.emulated_slowdowns),
        lateness_s=lateness_s,
        cpu=cpu,
        own_decision_s=label.own_decision_s,
        slo=slo_document(window.slo, edges_ns),
        slo_attainment=slo_attainment(requests, edges_ns, window.slo, prior),
    )
    if window.classes:
        _add_classes(result, requests, window, prior)
    return result


def _add_classes(result: Result, requests: RequestColumns, window: Window, prior: AccuracyPrior | None) -> None:
    """Add what each class got; and of the whole what depends on what each is promised."""
    assert window.class_of is not None, "requests without known classes"
    edges_ns, class_of = window_edges_ns(*window.ns), window.class_of[requests.request]
    parts = [requests.where(class_of == number) for number in range(len(window.classes))]
    judged = [
        judge(part, edges_ns, micro_batch_size.slo, prior)
        for part, micro_batch_size in zip(parts, window.classes, strict=True)
    ]
    result["classes"] = {
        micro_batch_size.name: _class_metrics(part, micro_batch_size, window, attainment_of([windows]), prior)
        for part, micro_batch_size, windows in zip(parts, window.classes, judged, strict=True)
    }
    goodputs = [metrics["goodput_img_s"] for metrics in result["classes"].values()]
    result["goodput_img_s"] = None if None in goodputs else fsum(metrics or 0.0 for metrics in goodputs)
    result["slo_attainment"] = attainment_of(judged)
    result["slo"]["classes"] = {
        micro_batch_size.name: ClassPromise(
            floor=micro_batch_size.slo.floor, p99_limit_s=micro_batch_size.slo.p99_limit_s
        )
        for micro_batch_size in window.classes
    }


def _class_metrics(
    requests: RequestColumns, kind: RequestClass, window: Window, attainment: SloAttainment, prior: AccuracyPrior | None
) -> ClassMetrics:
    begin_ns, end_ns = window.ns
    in_window = (begin_ns <= requests.arrived_ns) & (requests.arrived_ns <= end_ns)
    completed, images = in_window & (requests.status == COMPLETED), _images(requests)
    latencies_s, limit_s = _latencies_s(requests), kind.in_time_s
    expected = None if prior is None else expected_accuracy_of(requests, completed, prior)
    return ClassMetrics(
        images=images,
        shares=shares_of(images, window.end),
        accuracy=_ratio(_count(requests.correct & completed), _count(completed)),
        expected_accuracy=expected,
        latency_s=_latency(latencies_s[completed]),
        throughput_img_s=_rate_img_s(requests, latencies_s, window.ns, None),
        goodput_img_s=_goodput_img_s(requests, latencies_s, window.ns, limit_s, expected, kind.slo.floor),
        in_time=None if limit_s is None else _ratio(_count(completed & (latencies_s <= limit_s)), _count(in_window)),
        slo_attainment=attainment,
    )


def _restart(down: Downtime, server: str) -> Restart:
    return Restart(
        server=server,
        cause=down.reason,
        planned=down.is_planned,
        down_s=down.down_ns / NS_PER_S,
        up_s=None if down.up_ns is None else down.up_ns / NS_PER_S,
    )


def shares_of(images: ImageCounts, end: End) -> Shares:
    """Return the shares of arrivals by what happened to them."""
    arrived = images["arrived"]
    failed, unfinished = images["failed"], images["in_flight"]
    return Shares(
        completed=_ratio(images["completed"], arrived),
        unfinished=_ratio(unfinished, arrived),
        failed=_ratio(failed, arrived),
        unserved=_ratio(failed + (unfinished if end == "drain" else 0), arrived),
    )


def _count(mask: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(mask))


def _ratio(part: int, total: int) -> float | None:
    return part / total if total else None


def _arrival_lag(lags_ns: Sequence[int]) -> ArrivalLag | None:
    """Return the lag over all arrivals of the run; null in simulation, where nothing is late."""
    if not lags_ns:
        return None
    ascending = sorted(lag_ns / NS_PER_S for lag_ns in lags_ns)
    return ArrivalLag(mean=float(np.mean(ascending)), p99=percentile(ascending, 0.99), max=ascending[-1])


def _lateness_s(batches: Sequence[BatchRecord]) -> Lateness | None:
    """Return how late ends of passes were seen, over all batches of the run."""
    if not batches:
        return None
    late_s = sorted(batch.late_ns / NS_PER_S for batch in batches)
    passes_s = [(batch.forward_ended_ns - batch.started_ns) / NS_PER_S for batch in batches]
    return Lateness(p50=percentile(late_s, 0.5), p99=percentile(late_s, 0.99), mean_pass=float(np.mean(passes_s)))


def _failures(requests: RequestColumns) -> dict[str, int]:
    """Count failed requests by reason, in the order in which reasons first occurred."""
    codes = requests.reason[requests.status == FAILED]
    unique, first, counts = np.unique(codes, return_index=True, return_counts=True)
    return {requests.reasons[unique[at]]: int(counts[at]) for at in np.argsort(first)}


def _stages_s(requests: RequestColumns, completed: NDArray[np.bool_]) -> dict[str, float] | None:
    """Return the mean time of a request in each stage; they sum to the mean latency. None if a run kept no detail."""
    if requests.stages_ns is None or not completed.any():
        return None
    stages_ns = np.ascontiguousarray(requests.stages_ns[completed], np.float64)  # the layout decides how sums round
    return dict(zip(STAGES, (np.mean(stages_ns, axis=0) / NS_PER_S).tolist(), strict=True))


def expected_accuracy_of(requests: RequestColumns, completed: NDArray[np.bool_], prior: AccuracyPrior) -> float | None:
    """Return the prior's mean over the width tuples that ran: accuracy without the chance of labels."""
    if not completed.any():
        return None
    priors, index = tuples_run(requests, completed, prior)
    return fsum(count * top1 for count, top1 in zip(np.bincount(index).tolist(), priors, strict=True)) / len(index)


def _latencies_s(requests: RequestColumns) -> NDArray[np.float64]:
    """Return the time from the arrival at the router to the end of the last segment, for every request."""
    return np.asarray((requests.finished_ns - requests.arrived_ns) / NS_PER_S, np.float64)


def percentile(ascending: Sequence[float] | NDArray[np.float64], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value that at least this share of all values do not exceed."""
    return float(ascending[max(0, ceil(share * len(ascending)) - 1)])


def _images(requests: RequestColumns) -> ImageCounts:
    in_order = np.sort(requests.request)
    assert (in_order[1:] != in_order[:-1]).all(), "a request has two records"
    completed, in_flight, failed = np.bincount(requests.status, minlength=3).tolist()
    return ImageCounts(arrived=len(in_order), completed=completed, in_flight=in_flight, failed=failed)


def _spread(values: NDArray[np.float64]) -> Spread:
    if not len(values):
        return Spread(mean=None, std=None)
    return Spread(mean=float(np.mean(values)), std=float(np.std(values)))


def _latency(latencies_s: NDArray[np.float64]) -> LatencyMetrics:
    spread, ascending = _spread(latencies_s), np.sort(latencies_s)
    if not len(ascending):
        return LatencyMetrics(**spread, p50=None, p95=None, p99=None, max=None)
    p50, p95, p99 = (percentile(ascending, share) for share in (0.50, 0.95, 0.99))
    return LatencyMetrics(**spread, p50=p50, p95=p95, p99=p99, max=float(ascending[-1]))


def energy_per_image(devices: Sequence[DeviceTotals], duration_s: float, completed: int) -> EnergyPerImage:
    """Return the parts of the whole run's energy, divided by the completed images."""
    if not completed:
        return EnergyPerImage(total=None, dynamic=None, base=None, idle=None)
    total_j = sum(device.energy_j for device in devices)
    idle_j = sum(device.bare_idle_w for device in devices) * duration_s
    base_j = sum(device.context_idle_w - device.bare_idle_w for device in devices) * duration_s
    return EnergyPerImage(
        total=total_j / completed,
        dynamic=(total_j - base_j - idle_j) / completed,
        base=base_j / completed,
        idle=idle_j / completed,
    )


def _rate_img_s(
    requests: RequestColumns, latencies_s: NDArray[np.float64], window_ns: tuple[int, int], limit_s: float | None
) -> float:
    """Return completions a second within the window; with a limit, only those that took no longer."""
    start_ns, end_ns = window_ns
    is_within = (start_ns <= requests.finished_ns) & (requests.finished_ns <= end_ns)
    selected = (requests.status == COMPLETED) & is_within
    if limit_s is not None:
        selected &= latencies_s <= limit_s
    return _count(selected) * NS_PER_S / (end_ns - start_ns)


def _goodput_img_s(
    requests: RequestColumns,
    latencies_s: NDArray[np.float64],
    window_ns: tuple[int, int],
    limit_s: float | None,
    expected: float | None,
    floor: float | None,
) -> float | None:
    """Return completions in time a second; 0 if the mean accuracy misses the floor."""
    if limit_s is None:
        return None
    keeps = expected is None or has_floor(expected, floor)
    return _rate_img_s(requests, latencies_s, window_ns, limit_s) if keeps else 0.0


def _server(server: ServerTotals, device: DeviceTotals, duration_s: float) -> ServerMetrics:
    return ServerMetrics(
        name=server.name,
        utilization=server.busy_s / duration_s if duration_s else 0.0,
        mean_power_w=device.energy_j / duration_s if duration_s else 0.0,
        images=server.images,
        batches=server.batches,
        mean_batch=server.images / server.batches if server.batches else 0.0,
        loads=server.loads,
        unloads=server.unloads,
        vram_peak_bytes=server.vram_peak_bytes,
    )
