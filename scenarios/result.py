"""A run's record turned into its figures: what each number means is decided here, and explained in `docs/results.md`.

Statistics are over the requests that arrived between the end of the warm-up and the end of the arrivals; counts and
energies are over the whole run. It knows neither world: a simulated and a real record are read the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import Literal, TypedDict

import numpy as np

from hw.accuracy import AccuracyProvenance
from policies.records import STAGES, DeviceTotals, RequestRecord, RunRecord, ServerTotals
from policies.vocabulary import NS_PER_S, Provenance

Mode = Literal["simulation", "hardware"]
Simulator = Literal["simpy", "compiled"]
Engine = Literal[Simulator, "torch"]


class Images(TypedDict):
    """Whole run; `arrived` is the sum of the other three."""

    arrived: int
    completed: int
    in_flight: int
    failed: int


class Spread(TypedDict):
    """Mean and standard deviation (of the population); null where nothing was counted."""

    mean: float | None
    std: float | None


class LatencyFigures(Spread):
    """Seconds; percentiles by nearest rank."""

    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class EnergyPerImage(TypedDict):
    """Joules of all devices per completed image: total = dynamic + base + idle; null where none completed."""

    total: float | None
    dynamic: float | None
    base: float | None
    idle: float | None


class ServerFigures(TypedDict):
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
    """One death of a server after which it came back; seconds since the start of the run."""

    server: str
    down_s: float
    up_s: float


class Result(TypedDict):
    """`slimsched.result/1`; a stored one may be older than the last five keys.

    `extrapolated_share`: of the time, the largest over devices, in which more batches ran at once than the device's
    profile was measured with; 0 on hardware.
    """

    schema: str
    scenario: str
    router: str
    seed: int
    mode: Mode
    engine: Engine
    provenance: str
    accuracy_provenance: AccuracyProvenance
    images: Images
    accuracy: float | None
    latency_s: LatencyFigures
    energy_j: Spread
    energy_per_image_j: EnergyPerImage
    gpu_var: Spread
    throughput_img_s: float
    duration_s: float
    warmup_s: float
    censored: int
    goodput_img_s: float | None
    decisions: int
    wall_s: float
    servers: list[ServerFigures]
    arrival_lag_s: ArrivalLag | None
    restarts: list[Restart]
    failures: dict[str, int]
    stages_s: dict[str, float] | None
    extrapolated_share: float


class Score(TypedDict):
    """`slimsched.score/1`: a router on one run that training has not seen.

    Attributes:
        trained_on: the engine that it was trained on.
        engines: those that it was scored on; each gave the same run, bit for bit.
        seed: of the run.
        reward: the mean of Eq. 7 over the run's blocks.
        latency_s, accuracy: as in a result.
    """

    schema: str
    router: str
    trained_on: Simulator
    engines: list[Simulator]
    seed: int
    decisions: int
    reward: float | None
    latency_s: float | None
    accuracy: float | None


def summarise(
    record: RunRecord,
    *,
    scenario: str,
    router: str,
    seed: int,
    mode: Mode,
    engine: Engine,
    provenance: Provenance,
    accuracy_provenance: AccuracyProvenance,
    warmup_s: float,
    horizon_s: float,
    deadline_s: float | None,
    wall_s: float,
) -> Result:
    """The figures of a run whose arrivals lasted `horizon_s`, of which the first `warmup_s` do not count."""
    window_ns = (round(warmup_s * NS_PER_S), round(horizon_s * NS_PER_S))
    assert window_ns[0] < window_ns[1], "the warm-up must end before the arrivals do"
    counted = [request for request in record.requests if window_ns[0] <= request.arrived_ns <= window_ns[1]]
    done = [request for request in counted if request.status == "completed"]
    duration_s = record.ended_ns / NS_PER_S
    images = _images(record.requests)
    return Result(
        schema="slimsched.result/1",
        scenario=scenario,
        router=router,
        seed=seed,
        mode=mode,
        engine=engine,
        provenance=str(provenance),
        accuracy_provenance=accuracy_provenance,
        images=images,
        accuracy=sum(request.correct for request in done) / len(done) if done else None,
        latency_s=_latency([latency_of_s(request) for request in done]),
        energy_j=_spread([request.energy_j for request in done]),
        energy_per_image_j=_energy_per_image(record.devices, duration_s, images["completed"]),
        gpu_var=_spread(record.gpu_var),
        throughput_img_s=_rate_img_s(record.requests, window_ns, None),
        duration_s=duration_s,
        warmup_s=warmup_s,
        censored=sum(request.status == "in_flight" for request in counted),
        goodput_img_s=None if deadline_s is None else _rate_img_s(record.requests, window_ns, deadline_s),
        decisions=record.decisions,
        wall_s=wall_s,
        servers=[_server(server, record.devices[server.device], duration_s) for server in record.servers],
        arrival_lag_s=_arrival_lag(record.arrival_lags_ns),
        restarts=[
            Restart(server=record.servers[server].name, down_s=down_ns / NS_PER_S, up_s=up_ns / NS_PER_S)
            for server, down_ns, up_ns in record.restarts_ns
        ],
        failures=dict(Counter(request.reason for request in record.requests if request.status == "failed")),
        stages_s=_stages_s(done),
        extrapolated_share=max((device.extrapolated_s for device in record.devices), default=0.0) / duration_s,
    )


def _arrival_lag(lags_ns: Sequence[int]) -> ArrivalLag | None:
    """Over all arrivals of the run; null in simulation, where nothing is late."""
    if not lags_ns:
        return None
    ascending = sorted(lag_ns / NS_PER_S for lag_ns in lags_ns)
    return ArrivalLag(mean=float(np.mean(ascending)), p99=percentile(ascending, 0.99), max=ascending[-1])


def _stages_s(done: Sequence[RequestRecord]) -> dict[str, float] | None:
    """Mean time a request spent in each stage; they add up to the mean latency. Null where a run kept no detail."""
    stages_ns = [request.stages_ns for request in done if request.stages_ns]
    if not stages_ns:
        return None
    means = np.mean(np.array(stages_ns, dtype=np.float64), axis=0) / NS_PER_S
    return dict(zip(STAGES, means.tolist(), strict=True))


def latency_of_s(request: RequestRecord) -> float:
    """From its arrival at the router to the end of its last segment."""
    return (request.finished_ns - request.arrived_ns) / NS_PER_S


def percentile(ascending: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least this share of all values do not exceed."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)]


def _images(requests: Sequence[RequestRecord]) -> Images:
    counts = Counter(request.status for request in requests)
    assert len({request.request for request in requests}) == len(requests), "a request has two records"
    return Images(
        arrived=len(requests),
        completed=counts["completed"],
        in_flight=counts["in_flight"],
        failed=counts["failed"],
    )


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(mean=None, std=None)
    return Spread(mean=float(np.mean(values)), std=float(np.std(values)))


def _latency(latencies_s: list[float]) -> LatencyFigures:
    spread, ascending = _spread(latencies_s), sorted(latencies_s)
    if not ascending:
        return LatencyFigures(**spread, p50=None, p95=None, p99=None, max=None)
    p50, p95, p99 = (percentile(ascending, share) for share in (0.50, 0.95, 0.99))
    return LatencyFigures(**spread, p50=p50, p95=p95, p99=p99, max=ascending[-1])


def _energy_per_image(devices: Sequence[DeviceTotals], duration_s: float, completed: int) -> EnergyPerImage:
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


def _rate_img_s(requests: Sequence[RequestRecord], window_ns: tuple[int, int], deadline_s: float | None) -> float:
    """Completions a second within the window; with a deadline, only those that kept it."""
    start_ns, end_ns = window_ns
    completions = sum(
        request.status == "completed"
        and start_ns <= request.finished_ns <= end_ns
        and (deadline_s is None or latency_of_s(request) <= deadline_s)
        for request in requests
    )
    return completions * NS_PER_S / (end_ns - start_ns)


def _server(server: ServerTotals, device: DeviceTotals, duration_s: float) -> ServerFigures:
    return ServerFigures(
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
