"""A run's record turned into its figures: what each number means is decided here, and explained in `docs/figures.md`.

Statistics are over the requests that arrived between the end of the warm-up and the end of the arrivals; counts and
energies are over the whole run. It knows neither world: a simulated and a real record are read the same way.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from hw.accuracy import AccuracyProvenance

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
    """`slimsched.result/1`; a stored one may be older than the last eight keys.

    Attributes:
        extrapolated_share: of the time, the largest over devices, in which more batches ran at once than the device's
            profile was measured with; 0 on hardware.
        signatures: failures that the run shows; null where nobody looked.
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
    expected_accuracy: float | None
    moves_per_image: float | None
    signatures: list[Signature] | None


class Score(TypedDict):
    """`slimsched.score/1`: a router on one run that training has not seen.

    Attributes:
        trained_on: the engine that it was trained on.
        engines: those that it was scored on; each gave the same run, bit for bit.
        seed: of the run.
        reward: the mean of Eq. 7 over the run's blocks.
        latency_s, accuracy, signatures: as in a result; a stored score may be older than the last.
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
    signatures: list[Signature] | None


SignatureName = Literal["reward hacking", "VRAM exhaustion", "accuracy collapse", "one-server collapse"]


class Signature(TypedDict):
    """One failure's sign in one run.

    Attributes:
        name: which failure.
        figure: what was found, in the unit that `reason` says.
        threshold: beyond which (below which, for accuracy collapse and reward hacking) it is a sign.
        reason: a sentence with the figure.
    """

    name: SignatureName
    figure: float
    threshold: float
    reason: str
