"""What the functions return. Numbers are called as in docs/metrics.md; shares and accuracies are from 0 to 1.

A result is its document (what `--json` writes on the command line) with names and types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kit.documents import Document, OwnDocument, is_plain
from kit.errors import WorkError

if TYPE_CHECKING:
    from scenarios.metrics.fidelity import ValidationDocument
    from scenarios.metrics.router_comparison import ComparisonDocument
    from scenarios.metrics.run_result import ClustersScore, Result, Score

LABELS = ("scenario", "router", "seed", "mode", "engine", "provenance", "accuracy_provenance")
"""The identity of a run: what ran, where and on what."""


# ------------------------------------------------------------------------------------------------------------ numbers


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and the half-width of its 95 % interval (Student's t); None if there are too few.

    A format is of both: `f"{estimate:.3f} s"` gives `0.339 +-0.158 s`.
    """

    mean: float | None
    ci95: float | None

    def __format__(self, spec: str) -> str:
        """Format both; `-` for a mean of None, and no half-width if it is None."""
        mean = "-" if self.mean is None else format(self.mean, spec)
        return mean if self.ci95 is None else f"{mean} +-{format(self.ci95, spec)}"


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


@dataclass(frozen=True)
class RunResult(Document):
    """One run of one router: `slimsched.result/1`.

    Statistics are of the images that arrived between the end of the warm-up and the end of the arrivals; counts and
    energies are of the whole run. A number is None if it means nothing: for example a latency if nothing was completed.

    Every number of docs/metrics.md is an attribute by its name: `run.latency_p99_s`, `run.energy_per_image_j`,
    `run.images_completed`. So are `scenario`, `router`, `seed`, `mode` (`simulation` or `executors`), `engine`,
    `provenance` (of the profiles) and `accuracy_provenance`.
    """

    document: Result = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        """Return a number by its name."""
        from scenarios.metrics.metric_catalogue import MEASURES

        if name in LABELS:
            return self.document[name]  # type: ignore[literal-required]
        if name in MEASURES:
            return MEASURES[name].of(self.document)
        raise AttributeError(f"a run has no {name!r}; docs/metrics.md names its numbers")

    @property
    def servers(self) -> tuple[ServerResult, ...]:
        """One entry a server."""
        names = {entry.name for entry in fields(ServerResult)}
        return tuple(
            ServerResult(**{name: value for name, value in server.items() if name in names})  # type: ignore[arg-type]
            for server in self.document["servers"]
        )

    @property
    def failures(self) -> Mapping[str, int]:
        """Images that failed, by reason."""
        return self.document.get("failures", {})

    def rows(self) -> list[dict[str, Any]]:
        """Return one row: what ran, and every number."""
        from scenarios.metrics.metric_catalogue import MEASURES

        return [{name: getattr(self, name) for name in (*LABELS, *MEASURES)}]

    def require_whole(self) -> None:
        """Raise `WorkError` if the run completed nothing."""
        from scenarios.show.result_words import require_completed

        require_completed([self.document])


# ---------------------------------------------------------------------------------------------------------- comparison


@dataclass(frozen=True)
class RouterSummary:
    """One router over its seeds.

    Attributes:
        seeds: one a run.
        is_flagged: it left more than 1 % of the images unserved, and is not a winner.
        estimates: by name, as in `RunResult`: every number that is averaged over seeds.
        latency_change_pct, energy_per_image_change_pct: against the baseline's runs of the same seeds.
    """

    router: str
    seeds: tuple[int, ...]
    is_flagged: bool
    estimates: Mapping[str, Estimate] = field(repr=False)
    latency_change_pct: Estimate
    energy_per_image_change_pct: Estimate


@dataclass(frozen=True)
class Comparison(Document):
    """Routers on the same arrivals: `slimsched.comparison/1`.

    Attributes:
        results: documents of its runs, one a router and seed.
        folder: the run folder that keeps all of it.
    """

    document: ComparisonDocument = field(repr=False)
    results: Sequence[Result] = field(repr=False)
    folder: Path

    @property
    def scenario(self) -> str:
        """By name."""
        return self.document["scenario"]

    @property
    def baseline(self) -> str | None:
        """The router that changes are against; None if it was not compared."""
        return self.document["baseline"]

    @property
    def routers(self) -> tuple[RouterSummary, ...]:
        """One entry a router, in the order in which they were named."""
        return tuple(map(_summary, self.document["rows"]))

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """One entry a router and seed."""
        return tuple(map(RunResult, self.results))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a router and seed, with every number of the run."""
        return [row for run in self.runs for row in run.rows()]

    def require_whole(self) -> None:
        """Raise `WorkError` if a router completed nothing."""
        from scenarios.show.result_words import require_completed

        require_completed(self.results)


def _summary(row: Mapping[str, Any]) -> RouterSummary:
    from scenarios.metrics.metric_catalogue import MEASURES

    values = {name: measure.of(row) for name, measure in MEASURES.items() if measure.is_averaged}
    return RouterSummary(
        router=row["router"],
        seeds=tuple(row["seeds"]),
        is_flagged=row["is_flagged"],
        estimates={name: Estimate(**value) for name, value in values.items() if value is not None},
        latency_change_pct=Estimate(**row["latency_change_pct"]),
        energy_per_image_change_pct=Estimate(**row["energy_per_image_change_pct"]),
    )


# ---------------------------------------------------------------------------------------------------------- validation


@dataclass(frozen=True)
class Pair:
    """One run on executors and its simulation.

    Attributes:
        load: as a share of the cluster's capacity; `rate_img_s`: in images a second. None: the scenario's own.
        repeat: of how many on the same arrivals, counted from 0.
        error_pct: by measure (`latency_mean`, `latency_p99` ...): 100 (simulated - executors) / executors; None if it
            means nothing.
    """

    router: str
    seed: int
    load: float | None
    rate_img_s: float | None
    repeat: int
    simulated: RunResult = field(repr=False)
    executors: RunResult = field(repr=False)
    error_pct: Mapping[str, float | None]


@dataclass(frozen=True)
class Validation(Document):
    """Simulation compared with real executors: `slimsched.validation/1`.

    Attributes:
        folder: the run folder that keeps all of it.
    """

    document: ValidationDocument = field(repr=False)
    folder: Path

    @property
    def scenario(self) -> str:
        """By name."""
        return self.document["scenario"]

    @property
    def ranking_tau(self) -> float | None:
        """Kendall's tau between the orders of the routers in simulation and on executors, by mean latency."""
        return self.document["ranking_tau"]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """One entry a executor run."""
        return tuple(map(_pair, self.document["pairs"]))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a run, two a pair (`mode` distinguishes them), with every number of the run."""
        return [
            {"load": pair.load, "rate_img_s": pair.rate_img_s, "repeat": pair.repeat, **run.rows()[0]}
            for pair in self.pairs
            for run in (pair.simulated, pair.executors)
        ]

    def require_whole(self) -> None:
        """Raise `WorkError` if a run completed nothing, or simulation and executors are too far apart to continue."""
        from scenarios.metrics.fidelity import results_in
        from scenarios.show.result_words import require_completed
        from scenarios.show.validation_table import require_hopeful

        require_completed(results_in(self.document))
        require_hopeful(self.document)


def _pair(row: Mapping[str, Any]) -> Pair:
    plain = {name: row[name] for name in ("router", "seed", "load", "rate_img_s", "repeat", "error_pct")}
    return Pair(**plain, simulated=RunResult(row["simulated"]), executors=RunResult(row["executors"]))


@dataclass(frozen=True)
class Job(Document):
    """The end-to-end workflow: what was compared, what was run on executors, and the page.

    Attributes:
        validation: None if the scenario has no devices.
        folder: the run folder.
        endings: lines below all tables: wall times, and what was cut.
    """

    comparison: Comparison
    validation: Validation | None
    folder: Path
    endings: tuple[str, ...] = field(default=(), repr=False)

    @cached_property
    def report(self) -> Path:
        """The page's file, which is drawn now."""
        from scenarios.runs.folder import RunFolder
        from scenarios.show.report import build_report

        return build_report(RunFolder(self.folder))

    @property
    def document(self) -> Mapping[str, Any]:
        """Both documents, and the page's path."""
        validation = None if self.validation is None else self.validation.document
        return {"comparison": self.comparison.document, "validation": validation, "report": str(self.report)}

    @property
    def afterword(self) -> str:
        """The page's path: it is drawn after all else was shown."""
        return f"report: {self.report}"

    def rows(self) -> list[dict[str, Any]]:
        """Return those of the comparison."""
        return self.comparison.rows()

    def require_whole(self) -> None:
        """Raise `WorkError` as the comparison and the validation do."""
        self.comparison.require_whole()
        if self.validation is not None:
            self.validation.require_whole()


# ------------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True)
class TrainedRouter:
    """One router that was trained, and what it was scored on one run that training has not seen.

    Attributes:
        router: its file, which is a router's name wherever one is expected.
        score: `slimsched.score/1` (docs/metrics.md), or `slimsched.clusters-score/1` if it was trained over drawn
            clusters.
    """

    router: Path
    score: Score | ClustersScore = field(repr=False)

    @property
    def kind(self) -> str:
        """`ppo`, or what a scenario calls a rule that its run makes: `tuned:compass`."""
        return self.score["router"]

    @property
    def path(self) -> Path:
        """Its file."""
        return self.router


@dataclass(frozen=True, kw_only=True)
class Training(OwnDocument):
    """Routers that were trained in simulation.

    Attributes:
        routers: one entry a kind.
        folder: the run folder that keeps them.
    """

    _left_out: ClassVar[tuple[str, ...]] = ("remarks", "folder")

    routers: tuple[TrainedRouter, ...]
    folder: Path

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a router: its kind and file, and the score."""
        return [
            {"path": str(router.path), **{key: value for key, value in router.score.items() if is_plain(value)}}
            for router in self.routers
        ]

    def require_whole(self) -> None:
        """Raise `WorkError` if a router completed nothing on the run that it was scored on."""
        for router in self.routers:
            if "change" not in router.score and not router.score["shares"]["completed"]:
                problem = f"the trained {router.kind} completed nothing on the run that it was scored on"
                remedy = "train it for longer (--set training.decisions=N, tuning.decisions=N), or lower the rate"
                raise WorkError(f"{problem}; {remedy}")


# ----------------------------------------------------------------------------------------------- devices, files, hosts


@dataclass(frozen=True, kw_only=True)
class Calibration(OwnDocument):
    """Devices that were measured.

    Attributes:
        profiles: the files, one a device; a scenario names them as `profile`.
        warnings: what is wrong with them, in words.
    """

    profiles: tuple[Path, ...]
    warnings: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a profile: its file, device, network, and the origin of its numbers."""
        from scenarios.files.scenario_reading import read_profile

        profiles = [(path, read_profile(path)) for path in self.profiles]
        return [
            {"path": str(path), "device": of.device.name, "model": of.model.name, "provenance": str(of.provenance)}
            for path, of in profiles
        ]


@dataclass(frozen=True)
class CommandResult(Document):
    """What else was found or made: its document, and its text.

    Attributes:
        text: for people.
        code: the exit code of the command that found it: 0 if all is well.
    """

    document: Mapping[str, Any] = field(repr=False)
    text: str
    code: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return self.code
