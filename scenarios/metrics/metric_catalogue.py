"""Every number that a result holds: its name, its place in documents, its meaning, and its format.

Whatever shows a number asks here: tables, charts, documents and `docs/metrics.md`. What `scenarios.metrics.run_result`
computes and is listed here is averaged over seeds, shown and explained; nothing else has to know of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class Measure:
    """One number.

    Attributes:
        name: with the unit of what is stored, as documents call it: `latency_p99_s`.
        keys: its place in a result: `("latency_s", "p99")`.
        title: in a sentence, or along an axis: `p99 latency`.
        header: above a column, where short words must do: `p99`.
        meaning: a sentence or two for `docs/metrics.md`.
        unit: of what is shown; `scale`: what is shown over what is stored.
        digits: shown after the point; None for three digits that count, wherever the point is.
        better: which of two values is the better one; None where neither is.
        is_averaged: whether comparisons give its mean over seeds.
    """

    name: str
    keys: tuple[str, ...]
    title: str
    header: str
    meaning: str
    unit: str = ""
    scale: float = 1.0
    digits: int | None = 0
    better: Literal["higher", "lower"] | None = None
    is_averaged: bool = True

    @property
    def stem(self) -> str:
        """The name without its unit, as validations call it: `latency_p99`."""
        return self.name.removesuffix("_j").removesuffix("_s").removesuffix("_img")

    @property
    def axis(self) -> str:
        """The label of an axis."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def of(self, result: Mapping[str, Any]) -> Any:
        """Return the value in a result (in a comparison's row: its estimate); None if there is none."""
        value: Any = result
        for key in self.keys:
            value = None if value is None else value.get(key)
        return value


def _percent(name: str, title: str, header: str, meaning: str, **options: Any) -> Measure:
    return Measure(name, (name,), title, header, meaning, unit="%", scale=100, digits=2, **options)


def _latency(key: str, title: str, header: str, meaning: str) -> Measure:
    keys = ("latency_s", key)
    return Measure(f"latency_{key}_s", keys, title, header, meaning, unit="ms", scale=1000, digits=2, better="lower")


def _joules(name: str, path: str, title: str, header: str, unit: str, meaning: str) -> Measure:
    return Measure(name, tuple(path.split(".")), title, header, meaning, unit=unit, digits=None, better="lower")


def _rate(name: str, meaning: str, better: Literal["higher"] | None = "higher") -> Measure:
    key = f"{name}_img_s"
    return Measure(key, (key,), name, name, meaning, unit="images/s", digits=1, better=better)


def _images(key: str, meaning: str) -> Measure:
    return Measure(f"images_{key}", ("images", key), f"images {key.replace('_', ' ')}", "images", meaning)


def _share(key: str, meaning: str, better: Literal["higher", "lower"]) -> Measure:
    name, keys = f"{key}_share", ("shares", key)
    return Measure(name, keys, f"images {key}", key, meaning, unit="%", scale=100, digits=2, better=better)


def _attainment(name: str, key: str, title: str, header: str, meaning: str) -> Measure:
    return Measure(
        name, ("slo_attainment", key), title, header, meaning, unit="%", scale=100, digits=1, better="higher"
    )


def _seconds(name: str, title: str, meaning: str) -> Measure:
    return Measure(name, (name,), title, title, meaning, unit="s", digits=1, is_averaged=False)


_ALL: Final = (
    _attainment("slo_attainment", "both", "SLO attainment", "SLO",
          "Share of the windows of 10 s in which every objective of `slo` was met. `null` without one."),
    _attainment("accuracy_attainment", "floor", "SLO attainment, the floor", "SLO accuracy",
          "Share in which the mean accuracy, by the network's table, was at least the floor in force."),
    _attainment("p99_attainment", "p99_limit", "SLO attainment, the p99 limit", "SLO p99",
          "Share in which the p99 latency of images that were not refused was at most the limit in force."),
    _images("arrived", "Requests of the whole run: completed, in flight and failed."),
    _images("completed", "Requests whose last segment was done at the run's end."),
    _images("in_flight", "Requests in flight at the run's end."),
    _images("failed", "Requests that failed; `failures` counts them by reason."),
    _share("completed", "Share of all requests that were completed.", "higher"),
    _share("unfinished", "Share in flight at the run's end.", "lower"),
    _share("failed", "Share that failed.", "lower"),
    _share("unserved",
           "Share that failed or, with `end: drain`, was left after the drain. Above 1 % a router is flagged, and "
           "can't win.", "lower"),
    _percent("accuracy", "accuracy", "accuracy", "Share of correct labels.", better="higher"),
    _latency("mean", "mean latency", "latency", "Mean time from arrival at the router to the end of the last segment."),
    _latency("std", "standard deviation of latency", "std", "Over the window's images, of the population."),
    _latency("p50", "median latency", "p50", "The median, by nearest rank, as every percentile."),
    _latency("p95", "p95 latency", "p95", "The latency that 95 % of the images do not exceed."),
    _latency("p99", "p99 latency", "p99", "The latency that 99 % of the images do not exceed."),
    _latency("max", "longest latency", "longest", "The longest of the window's completed images."),
    _joules("energy_j", "energy_j.mean", "mean energy (the paper's E)", "E", "J",
            "The servers' mean reported power, integrated over an image's time in the system, waits included."),
    _joules("energy_std_j", "energy_j.std", "standard deviation of energy (the paper's E)", "E std", "J",
            "Over the window's images."),
    _joules("energy_per_image_j", "energy_per_image_j.total", "energy per image", "energy", "J/image",
            "Energy of all devices in the whole run, over completed images."),
    _joules("energy_dynamic_j", "energy_per_image_j.dynamic", "energy above idle", "energy above idle", "J/image",
            "Energy of computing: the total less base and idle."),
    _joules("energy_base_j", "energy_per_image_j.base", "energy for being ready", "base", "J/image",
            "Power with contexts and nothing running, less bare idle power, times the duration."),
    _joules("energy_idle_j", "energy_per_image_j.idle", "idle energy", "idle", "J/image",
            "Bare idle power times the duration."),
    Measure("gpu_var", ("gpu_var", "mean"), "imbalance", "imbalance",
            "Variance of utilization over servers, at every telemetry report of the run.", digits=4,
            better="lower"),
    Measure("gpu_var_std", ("gpu_var", "std"), "standard deviation of imbalance", "imbalance std",
            "Over the telemetry reports of the run.", digits=4),
    _rate("offered", "Arrivals in the window per second.", None),
    _rate("throughput", "Completions in the window per second."),
    _percent("extrapolated_share", "time extrapolated", "extrapolated",
             "Share of the run's time in which a device ran more batches at once than calibration did, so that "
             "slowdowns were extrapolated; of the worst device. 0 on executors, and without such a profile.",
             better="lower"),
    _percent("unmetered_share", "time without a reading", "unmetered",
             "Share of the run's time without energy or power of a device's sensor, which counts as no energy; of the "
             "worst device. 0 in simulation.", better="lower"),
    _rate("goodput",
          "Throughput of images within the deadline or, without one, the p99 limit; `null` without either. 0 if the "
          "mean accuracy misses the floor by more than a tenth of a point."),
    Measure("censored", ("censored",), "images without a latency", "censored",
            "Requests of the window in flight at the run's end; no latency includes them.",
            better="lower"),
    Measure("decisions", ("decisions",), "decisions", "decisions", "Routing decisions requested."),
    _percent("expected_accuracy", "expected accuracy", "expected accuracy",
             "Mean accuracy, by the network's table, of the width tuples that ran: `accuracy` without the randomness "
             "of labels. `null` without a table.", better="higher"),
    Measure("moves_per_image", ("moves_per_image",), "moves of an image", "moves",
            "Segments of an image that ran on another server than the one before.", digits=2),
    _seconds("duration_s", "duration",
             "Of the whole run; with `end: drain` to the last completion, if that is after the arrivals' end."),
    _seconds("warmup_s", "warm-up", "Requests that arrived earlier are not in the window."),
    _seconds("wall_s", "wall time",
             "Time to compute the run, without compiling the engine or keeping the record. The only number of a "
             "simulation that varies between repeats."),
)  # fmt: skip
MEASURES: Final[Mapping[str, Measure]] = {measure.name: measure for measure in _ALL}
"""All of a result, in the order of a comparison's keys."""


def _of_server(name: str, header: str, meaning: str, **options: Any) -> Measure:
    return Measure(name, (name,), header, header, meaning, **options)


OF_SERVERS: Final = (
    _of_server("utilization", "utilization",
               "Of the server's device, over the run; equal for servers that share it.",
               unit="%", scale=100, digits=2),
    _of_server("mean_power_w", "power", "Mean power of the server's device.", unit="W", digits=1),
    _of_server("images", "images", "Segment passes: an image that ran four segments here counts as four."),
    _of_server("batches", "batches", "Batches that ran."),
    _of_server("mean_batch", "mean batch", "Segment passes in a batch, without padding.", digits=1),
    _of_server("loads", "loads", "Instances loaded."),
    _of_server("unloads", "unloads", "Instances unloaded."),
    _of_server("vram_peak_bytes", "peak memory", "Most memory that its instances and context held.",
               unit="MB", scale=1e-6),
)  # fmt: skip
"""Of each of a result's `servers`; their keys are those of a server's entry."""


def measures(*names: str) -> tuple[Measure, ...]:
    """Return the measures of these names, in this order."""
    return tuple(MEASURES[name] for name in names)


OF_CLASSES: Final = (
    *measures("expected_accuracy", "latency_p99_s", "latency_mean_s"),
    _percent("in_time", "images in time", "in time",
             "Share of the window's requests that were completed within the class's deadline or, without one, its p99 "
             "limit. `null` without either.", better="higher"),
    *measures("completed_share", "slo_attainment"),
)  # fmt: skip
"""What tables show of each of a result's `classes`; their keys are those of a class's entry."""


# Who shows what, in the order in which it is shown.
SERVED: Final = measures("completed_share", "unfinished_share", "failed_share")
"""How much of what arrived was served: in every table of routers, the last two if any router has some."""
ATTAINMENT: Final = measures("slo_attainment", "accuracy_attainment", "p99_attainment")
"""In how much of the time the scenario's promises were kept: before all other measures, if it promises something."""
COMPARED: Final = measures(
    *("latency_p99_s", "accuracy", "energy_per_image_j", "throughput_img_s", "latency_mean_s", "energy_j")
)
"""What a user feels first, then means."""
PAIRED: Final = measures(
    *("accuracy", "expected_accuracy", "latency_mean_s", "latency_p99_s", "energy_j", "energy_per_image_j"),
    *("energy_dynamic_j", "throughput_img_s"),
)
"""What differences seed by seed, and worst seeds, are of."""
COSTS: Final = measures("latency_mean_s", "latency_p99_s", "energy_dynamic_j")
"""What trade-offs set against accuracy."""
VALIDATED: Final = measures(
    *("latency_mean_s", "latency_p50_s", "latency_p95_s", "latency_p99_s", "throughput_img_s", "accuracy"),
    *("energy_per_image_j", "energy_j"),
)
CHECKED: Final = measures("latency_mean_s", "latency_p99_s", "throughput_img_s", "energy_per_image_j")
