"""What the functions return. Numbers are called as in docs/metrics.md; shares and accuracies are from 0 to 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import InputError
from scenarios.metrics.catalogue import MEASURES, OF_SERVERS

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class Document(ABC):
    """What every result has.

    Attributes:
        document: all of it as plain data: what `--json` writes on the command line (docs/metrics.md).
        remarks: warnings and other remarks, which a command would have written to standard error.
    """

    document: Mapping[str, Any] = field(repr=False)
    remarks: tuple[str, ...] = field(default=(), repr=False)

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """A table of it as plain data: a dictionary a row, all with the same keys."""

    def to_json(self) -> str:
        """The document as JSON text: what `--json` writes on the command line."""
        from kit.documents import json_text

        return json_text(dict(self.document))

    def to_frame(self) -> pandas.DataFrame:
        """The same table as `rows`, as a pandas data frame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            remedy = "pip install 'slim-scheduler[frames]' (or pandas); .rows() gives the same without it"
            raise InputError("to_frame", "", f"needs pandas, which is not installed: {remedy}") from None
        return pandas.DataFrame(self.rows())


@dataclass(frozen=True)
class ServerResult:
    """One server over a whole run.

    Attributes:
        utilization: of its device, 0 to 1; servers that share a device show the same.
        mean_power_w: of its device, in watts.
        images: segment passes: an image that ran four segments here counts as four.
        batches: that it ran; `mean_batch` segment passes in each.
        loads, unloads: of instances.
        vram_peak_bytes: the most memory that its instances and its context held.
    """

    name: str
    utilization: float
    mean_power_w: float
    images: int
    batches: int
    mean_batch: float
    loads: int
    unloads: int
    vram_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class RunResult(Document):
    """One run of one router: `slimsched.result/1`.

    Statistics are of the images that arrived between the end of the warm-up and the end of the arrivals; counts and
    energies are of the whole run. A number is None where it means nothing: a latency where nothing was completed, say.

    Attributes:
        scenario, router: by name.
        seed: of arrivals, labels and chance.
        mode: `simulation` or `hardware`.
        engine: `simpy`, `compiled`, `torch` or `emulated`.
        provenance: of the profiles: `measured`, `polled`, `modelled`, `emulated` or `datasheet`.
        accuracy_provenance: `measured`, or `paper` where labels are drawn from the paper's table.
        kept_share, floor_kept_share, p99_kept_share: of the windows of 10 s, in which all that `service` promises (its
            floor of accuracy, its limit of p99 latency) was kept.
        images_arrived, images_completed, images_in_flight, images_failed: counts.
        completed_share, unfinished_share, failed_share, unserved_share: of the images that arrived.
        accuracy: share of correct labels; `expected_accuracy`: by the network's table, of the width tuples that ran.
        latency_mean_s, latency_std_s, latency_p50_s, latency_p95_s, latency_p99_s, latency_max_s: in seconds, from the
            arrival at the router to the end of the last segment.
        energy_j, energy_std_j: the paper's E of an image, in joules.
        energy_per_image_j: of all devices, for each completed image: the sum of `energy_dynamic_j` (computing),
            `energy_base_j` (being ready) and `energy_idle_j`.
        gpu_var, gpu_var_std: variance of utilization over servers.
        throughput_img_s: completed images a second; `goodput_img_s`: those that kept the deadline.
        extrapolated_share, unmetered_share: of the time, with more batches at once than were measured, or no reading.
        censored: images of the window without a latency, as they were still under way.
        decisions: of the router.
        moves_per_image: how many segments ran on another server than the one before.
        duration_s, warmup_s: of the run; `wall_s`: what it took to compute.
        servers: one entry a server.
        failures: images that failed, by reason.
    """

    scenario: str
    router: str
    seed: int
    mode: str
    engine: str
    provenance: str = field(repr=False)
    accuracy_provenance: str = field(repr=False)
    kept_share: float | None = field(repr=False)
    floor_kept_share: float | None = field(repr=False)
    p99_kept_share: float | None = field(repr=False)
    images_arrived: int = field(repr=False)
    images_completed: int = field(repr=False)
    images_in_flight: int = field(repr=False)
    images_failed: int = field(repr=False)
    completed_share: float | None
    unfinished_share: float | None = field(repr=False)
    failed_share: float | None = field(repr=False)
    unserved_share: float | None = field(repr=False)
    accuracy: float | None
    latency_mean_s: float | None
    latency_std_s: float | None = field(repr=False)
    latency_p50_s: float | None = field(repr=False)
    latency_p95_s: float | None = field(repr=False)
    latency_p99_s: float | None
    latency_max_s: float | None = field(repr=False)
    energy_j: float | None = field(repr=False)
    energy_std_j: float | None = field(repr=False)
    energy_per_image_j: float | None
    energy_dynamic_j: float | None = field(repr=False)
    energy_base_j: float | None = field(repr=False)
    energy_idle_j: float | None = field(repr=False)
    gpu_var: float | None = field(repr=False)
    gpu_var_std: float | None = field(repr=False)
    throughput_img_s: float
    extrapolated_share: float | None = field(repr=False)
    unmetered_share: float | None = field(repr=False)
    goodput_img_s: float | None = field(repr=False)
    censored: int = field(repr=False)
    decisions: int = field(repr=False)
    expected_accuracy: float | None = field(repr=False)
    moves_per_image: float | None = field(repr=False)
    duration_s: float = field(repr=False)
    warmup_s: float = field(repr=False)
    wall_s: float = field(repr=False)
    servers: tuple[ServerResult, ...] = field(repr=False)
    failures: Mapping[str, int] = field(repr=False)

    @classmethod
    def of(cls, document: Mapping[str, Any], remarks: Sequence[str] = ()) -> RunResult:
        """From its document."""
        names = ("name", *(measure.name for measure in OF_SERVERS))
        return cls(
            **{name: document[name] for name in LABELS},
            **{name: measure.of(document) for name, measure in MEASURES.items()},
            servers=tuple(ServerResult(**{name: server[name] for name in names}) for server in document["servers"]),
            failures=document.get("failures", {}),
            document=document,
            remarks=tuple(remarks),
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row: what ran, and every number."""
        return [{name: getattr(self, name) for name in (*LABELS, *MEASURES)}]


LABELS = ("scenario", "router", "seed", "mode", "engine", "provenance", "accuracy_provenance")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and the half-width of its 95 % interval (Student's t); None where there is too little.

    A format is of both: `f"{estimate:.3f} s"` gives `0.339 +-0.158 s`.
    """

    mean: float | None
    ci95: float | None

    def __format__(self, spec: str) -> str:
        """Both in that format; `-` for a mean of None, and no half-width where it is None."""
        mean = "-" if self.mean is None else format(self.mean, spec)
        return mean if self.ci95 is None else f"{mean} +-{format(self.ci95, spec)}"


@dataclass(frozen=True)
class RouterSummary:
    """One router over its seeds.

    Attributes:
        seeds: one a run.
        is_marked: it left more than 1 % of the images unserved, and is no winner.
        estimates: by name, as in `RunResult`: every number that is averaged over seeds.
        latency_change_pct, energy_per_image_change_pct: against the baseline's runs of the same seeds.
    """

    router: str
    seeds: tuple[int, ...]
    is_marked: bool
    estimates: Mapping[str, Estimate] = field(repr=False)
    latency_change_pct: Estimate
    energy_per_image_change_pct: Estimate


@dataclass(frozen=True, kw_only=True)
class Comparison(Document):
    """Routers on the same arrivals: `slimsched.comparison/1`.

    Attributes:
        baseline: whom changes are against; None where it was not compared.
        routers: one entry a router, in the order in which they were named.
        runs: one entry a router and seed.
        folder: the run folder that keeps all of it.
    """

    scenario: str
    baseline: str | None
    routers: tuple[RouterSummary, ...]
    runs: tuple[RunResult, ...] = field(repr=False)
    folder: Path

    @classmethod
    def of(
        cls, document: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], folder: Path, remarks: Sequence[str]
    ) -> Comparison:
        """From its document and those of its runs."""
        return cls(
            scenario=document["scenario"],
            baseline=document["baseline"],
            routers=tuple(map(_summary, document["rows"])),
            runs=tuple(map(RunResult.of, runs)),
            folder=folder,
            document=document,
            remarks=tuple(remarks),
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row a router and seed, with every number of the run."""
        return [row for run in self.runs for row in run.rows()]


def _summary(row: Mapping[str, Any]) -> RouterSummary:
    estimates = {name: measure.of(row) for name, measure in MEASURES.items() if measure.is_averaged}
    return RouterSummary(
        router=row["router"],
        seeds=tuple(row["seeds"]),
        is_marked=row["is_marked"],
        estimates={name: Estimate(**found) for name, found in estimates.items() if found is not None},
        latency_change_pct=Estimate(**row["latency_change_pct"]),
        energy_per_image_change_pct=Estimate(**row["energy_per_image_change_pct"]),
    )


@dataclass(frozen=True, kw_only=True)
class Bound(Document):
    """What no router can beat at a mean accuracy of at least `accuracy`: `slimsched.bound/2`.

    Latency and energies are the least that are possible at the scenario's mean rate; compare them with a run's numbers
    of the same names. Queues, loads, memory and partly filled batches are left out, so every real run is worse. What a
    single run draws by chance (arrivals, times) may lie on either side of its mean: let runs be long.

    Attributes:
        accuracy: that was asked for, or the least that any width tuple has.
        rate_img_s: the scenario's mean rate, in images a second; None for a trace.
        capacity_img_s: the largest rate that can be carried at this accuracy.
        latency_mean_s: the least mean latency at the rate; where the rate is None or beyond the capacity, of an image
            that meets nobody.
        energy_dynamic_j: the least energy of computing an image; None where the rate is None or beyond the capacity.
        energy_per_image_j: the same with the image's share of what the devices draw when they do nothing.
        oracle_accuracy: an estimate, no bound: the accuracy of a router that knows all arrivals beforehand; None where
            the load does not move.
    """

    accuracy: float
    rate_img_s: float | None
    capacity_img_s: float
    latency_mean_s: float
    energy_dynamic_j: float | None
    energy_per_image_j: float | None
    oracle_accuracy: float | None

    @classmethod
    def of(cls, document: Mapping[str, Any], remarks: Sequence[str]) -> Bound:
        """From its document."""
        oracle = document["oracle"]
        return cls(
            **{name: document[name] for name in _BOUND},
            oracle_accuracy=None if oracle is None else oracle["accuracy"],
            document=document,
            remarks=tuple(remarks),
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row."""
        return [{name: getattr(self, name) for name in (*_BOUND, "oracle_accuracy")}]


_BOUND = ("accuracy", "rate_img_s", "capacity_img_s", "latency_mean_s", "energy_dynamic_j", "energy_per_image_j")


@dataclass(frozen=True)
class TrainedRouter:
    """One router that was trained, and what it was scored on one run that training has not seen.

    Attributes:
        kind: `ppo`, or a kind of rule.
        path: its file, which is a router's name wherever one is expected.
        reward: the mean of Eq. 7 over the run's blocks; None where there was none.
        accuracy, latency_mean_s, completed_share: of that run, as in `RunResult`.
        decisions: of that run.
    """

    kind: str
    path: Path
    reward: float | None
    accuracy: float | None
    latency_mean_s: float | None
    completed_share: float | None
    decisions: int


@dataclass(frozen=True, kw_only=True)
class Training(Document):
    """The routers that a scenario's own run makes, trained.

    Attributes:
        engine: that PPO was trained on.
        routers: one entry a kind.
        folder: the run folder that keeps them.
    """

    engine: str
    routers: tuple[TrainedRouter, ...]
    folder: Path

    def rows(self) -> list[dict[str, Any]]:
        """One row a router."""
        return [{**vars(router), "path": str(router.path)} for router in self.routers]


@dataclass(frozen=True, kw_only=True)
class TunedRouter(Document):
    """A rule that was tuned: `slimsched.tuned/1`.

    Attributes:
        router: its kind.
        path: its file, which is a router's name wherever one is expected.
        floor: the mean accuracy that was to be kept.
        accuracy, latency_mean_s, latency_p99_s: on full-length runs of tuning.
        image_j: energy an image, in joules; `unserved`: share of the images that failed there.
        decisions_in_all: simulated for it.
    """

    router: str
    path: Path
    floor: float
    accuracy: float
    latency_mean_s: float
    latency_p99_s: float
    image_j: float
    unserved: float
    decisions_in_all: int

    @classmethod
    def of(cls, document: Mapping[str, Any], path: Path, remarks: Sequence[str]) -> TunedRouter:
        """From its document."""
        found = {name: document[name] for name in _TUNED}
        return cls(**found, path=path, document=document, remarks=tuple(remarks))

    def rows(self) -> list[dict[str, Any]]:
        """One row."""
        return [{**{name: getattr(self, name) for name in _TUNED}, "path": str(self.path)}]


_TUNED = ("router", "floor", "accuracy", "latency_mean_s", "latency_p99_s", "image_j", "unserved", "decisions_in_all")


@dataclass(frozen=True)
class Pair:
    """One run in both worlds.

    Attributes:
        load: as a share of what the cluster carries; `rate_img_s`: in images a second. None: the scenario's own.
        repeat: of how many on the same arrivals, counted from 0.
        error_pct: by measure (`latency_mean`, `latency_p99` ...): 100 (simulated - hardware) / hardware; None where
            it means nothing.
    """

    router: str
    seed: int
    load: float | None
    rate_img_s: float | None
    repeat: int
    simulated: RunResult = field(repr=False)
    hardware: RunResult = field(repr=False)
    error_pct: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Validation(Document):
    """Simulation beside real executors: `slimsched.validation/1`.

    Attributes:
        pairs: one entry a hardware run.
        ranking_tau: Kendall's tau between the orders of the routers in both worlds, by mean latency.
        folder: the run folder that keeps all of it.
    """

    scenario: str
    pairs: tuple[Pair, ...]
    ranking_tau: float | None
    folder: Path

    @classmethod
    def of(cls, document: Mapping[str, Any], folder: Path, remarks: Sequence[str]) -> Validation:
        """From its document."""
        return cls(
            scenario=document["scenario"],
            pairs=tuple(map(_pair, document["pairs"])),
            ranking_tau=document["ranking_tau"],
            folder=folder,
            document=document,
            remarks=tuple(remarks),
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row a run, two a pair (`mode` tells them apart), with every number of the run."""
        return [
            {"load": pair.load, "rate_img_s": pair.rate_img_s, "repeat": pair.repeat, **run.rows()[0]}
            for pair in self.pairs
            for run in (pair.simulated, pair.hardware)
        ]


def _pair(found: Mapping[str, Any]) -> Pair:
    plain = {name: found[name] for name in ("router", "seed", "load", "rate_img_s", "repeat", "error_pct")}
    return Pair(**plain, simulated=RunResult.of(found["simulated"]), hardware=RunResult.of(found["hardware"]))


@dataclass(frozen=True, kw_only=True)
class Calibration(Document):
    """Devices that were measured.

    Attributes:
        profiles: the files, one a device; a scenario names them as `profile`.
        warnings: what is wrong with them, in words.
    """

    profiles: tuple[Path, ...]
    warnings: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row a profile: its file, device, network, and where its numbers come from."""
        from scenarios.files.reading import read_profile

        found = [(path, read_profile(path)) for path in self.profiles]
        return [
            {"path": str(path), "device": of.device.name, "model": of.model.name, "provenance": str(of.provenance)}
            for path, of in found
        ]


__all__ = [
    "Bound",
    "Calibration",
    "Comparison",
    "Document",
    "Estimate",
    "Pair",
    "RouterSummary",
    "RunResult",
    "ServerResult",
    "TrainedRouter",
    "Training",
    "TunedRouter",
    "Validation",
]
