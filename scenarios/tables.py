"""Results as plain text for a terminal: aligned columns, units in the heads. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any

from hw.accuracy import MEASURED
from scenarios.comparison import Comparison, Estimate, Validation
from scenarios.result import Result

NONE = "-"


def format_result(result: Result) -> str:
    """One run: its figures, then its servers."""
    images, latency, joules = result["images"], result["latency_s"], result["energy_per_image_j"]
    head = f"{result['scenario']}: router {result['router']}, seed {result['seed']}, {result['mode']}"
    parts = ", ".join(f"{key} {number(joules[key], 4)}" for key in ("dynamic", "base", "idle"))
    lines = [
        ("images", f"{images['completed']} of {images['arrived']} completed, {images['failed']} failed, "
                   f"{images['in_flight']} in flight"),
        ("accuracy", share(result["accuracy"])),
        ("latency", f"mean {duration(latency['mean'])}, p50 {duration(latency['p50'])}, "
                    f"p95 {duration(latency['p95'])}, p99 {duration(latency['p99'])}"),
        ("throughput", f"{number(result['throughput_img_s'], 1)} images/s"),
        ("energy", f"{number(joules['total'], 4)} J/image ({parts})"),
        ("paper's E", f"{number(result['energy_j']['mean'], 4)} J (mean power x latency)"),
        ("provenance", _provenance(result)),
    ]  # fmt: skip
    if result["goodput_img_s"] is not None:
        lines.insert(4, ("goodput", f"{number(result['goodput_img_s'], 1)} images/s within the deadline"))
    body = "\n".join(f"  {name:<11} {text}" for name, text in lines)
    return f"{head}\n{body}\n\n{_servers(result)}"


def _servers(result: Result) -> str:
    rows = [
        [s["name"], share(s["utilization"]), number(s["mean_power_w"], 1), str(s["images"]), str(s["batches"]),
         number(s["mean_batch"], 1), f"{s['loads']}/{s['unloads']}", number(s["vram_peak_bytes"] / 1e6, 0)]
        for s in result["servers"]
    ]  # fmt: skip
    head = ["server", "util", "power W", "images", "batches", "mean batch", "loads/unloads", "peak MB"]
    return table(head, rows)


def format_comparison(comparison: Comparison) -> str:
    """The paper's table: one row a router, mean +- 95 % half-width over seeds."""
    baseline = comparison["baseline"]
    head = ["router", "accuracy %", "latency ms", "p99 ms", "E J", "J/image", "images/s", "latency vs", "E vs"]
    rows = [
        [
            row["router"],
            interval(row["accuracy"], 2, 100),
            interval(row["latency_s"]["mean"], 2, 1000),
            interval(row["latency_s"]["p99"], 1, 1000),
            energy(row["energy_j"]["mean"]),
            energy(row["energy_per_image_j"]["total"]),
            interval(row["throughput_img_s"], 1),
            change(row["latency_change_pct"]),
            change(row["energy_change_pct"]),
        ]
        for row in comparison["rows"]
    ]
    seeds = len(comparison["rows"][0]["seeds"])
    of = f"{seeds} seed{'s' if seeds > 1 else ''}"
    note = f"Mean and 95 % interval over {of}; E is the paper's (mean power x latency)."
    against = f" Changes are against {baseline!r}." if baseline else " No baseline, so no changes."
    return f"{comparison['scenario']} ({_provenance(comparison)})\n{table(head, rows)}\n{note}{against}"


def _provenance(of: Result | Comparison) -> str:
    """The weakest origin of the figures, and the accuracy's where no network was measured."""
    accuracy = of.get("accuracy_provenance", MEASURED)
    return of["provenance"] if accuracy == MEASURED else f"{of['provenance']}; accuracy: {accuracy}"


def format_validation(validation: Validation) -> str:
    """The sim-to-real table: hardware's figure, and the simulation's error."""
    names = ["latency_mean", "latency_p50", "latency_p95", "latency_p99", "throughput", "accuracy", "energy_per_image"]
    head = [
        "router",
        "seed",
        "sim ms",
        "real ms",
        "mean %",
        "p50 %",
        "p95 %",
        "p99 %",
        "images/s %",
        "accuracy %",
        "J %",
    ]
    rows = [
        [
            pair["router"],
            str(pair["seed"]),
            number(_milli(pair["simulated"]["latency_s"]["mean"]), 2),
            number(_milli(pair["hardware"]["latency_s"]["mean"]), 2),
            *(number(pair["error_pct"][name], 1, signed=True) for name in names),
        ]
        for pair in validation["pairs"]
    ]
    tau = number(validation["ranking_tau"], 2)
    reasons = sorted({f"{key}: {why}" for pair in validation["pairs"] for key, why in pair["not_applicable"].items()})
    notes = [f"Errors are (simulated - hardware) / hardware. Ranking of routers by mean latency: tau {tau}.", *reasons]
    return "\n".join([validation["scenario"], table(head, rows), *notes])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; the first to the left, the others to the right."""
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]

    def aligned(line: Sequence[str]) -> str:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([aligned(head), "  ".join("-" * width for width in widths), *map(aligned, rows)])


def _milli(value: float | None) -> float | None:
    return None if value is None else value * 1000


def number(value: float | None, digits: int, *, signed: bool = False) -> str:
    """A number with so many digits after the point; `-` for none."""
    return NONE if value is None else f"{value:{'+' if signed else ''}.{digits}f}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return NONE if value is None else f"{100 * value:.2f} %"


def duration(value_s: float | None) -> str:
    """Seconds, or milliseconds below one."""
    if value_s is None:
        return NONE
    return f"{value_s:.3f} s" if value_s >= 1 else f"{value_s * 1000:.2f} ms"


def interval(estimate: Estimate | dict[str, Any], digits: int, scale: float = 1.0) -> str:
    """`mean +- half-width`, or the mean alone where there is no interval."""
    mean, half = estimate["mean"], estimate["ci95"]
    if mean is None:
        return NONE
    text = number(mean * scale, digits)
    return text if half is None else f"{text} +-{number(half * scale, digits)}"


def energy(estimate: Estimate | dict[str, Any]) -> str:
    """An interval of joules with three digits that count: a small network's image takes millijoules."""
    mean = estimate["mean"]
    return interval(estimate, max(0, 2 - floor(log10(mean))) if mean else 0)


def change(estimate: Estimate | dict[str, Any]) -> str:
    """A change in percent."""
    mean, half = estimate["mean"], estimate["ci95"]
    if mean is None:
        return NONE
    return f"{mean:+.1f} %" if half is None else f"{mean:+.1f} +-{half:.1f} %"
