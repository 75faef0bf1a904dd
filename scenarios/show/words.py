"""Results as plain text for a terminal: aligned columns, units in the heads. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any

from hw.accuracy import MEASURED
from policies.records import STAGES
from scenarios.metrics.comparison import Comparison
from scenarios.metrics.fidelity import (
    REPEATS_OF_NOISE,
    LoadAxisRow,
    Ranking,
    Row,
    SaturatedRow,
    Validation,
    middle_load,
)
from scenarios.metrics.result import Result, Score, Signature
from scenarios.metrics.signatures import tally_text
from scenarios.metrics.statistics import Estimate

NONE = "-"


def format_result(result: Result) -> str:
    """One run: its figures, then its servers."""
    images, latency, joules = result["images"], result["latency_s"], result["energy_per_image_j"]
    ran = f"{result['mode']} ({result['engine']})"
    head = f"{result['scenario']}: router {result['router']}, seed {result['seed']}, {ran}"
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
    if (extrapolated := result.get("extrapolated_share", 0.0)) > 0:
        lines.append(("beware", _extrapolated(extrapolated)))
    lines += [("signature", text) for text in signature_texts(result.get("signatures"))]
    body = "\n".join(f"  {name:<11} {text}" for name, text in lines)
    return f"{head}\n{body}\n\n{_servers(result)}"


def format_score(score: Score) -> str:
    """What a trained router was scored."""
    figures = f"reward {number(score['reward'], 4)}, latency {duration(score['latency_s'])}"
    where = "both engines, bit for bit the same" if len(score["engines"]) > 1 else "the reference"
    text = f"{figures}, accuracy {share(score['accuracy'])} on a run not trained on; scored on {where}"
    return "\n".join([text, *(f"signature: {found}" for found in signature_texts(score.get("signatures")))])


def signature_texts(found: Sequence[Signature] | None) -> list[str]:
    """Each failure that a run shows, with its reason."""
    return [f"{signature['name']}: {signature['reason']}" for signature in found or ()]


def signature_lines(comparison: Comparison) -> list[str]:
    """Which routers show which failures, in how many of their runs."""
    rows = [row for row in comparison["rows"] if row.get("signatures")]
    return [f"{row['router']} shows {tally_text(row['signatures'], len(row['seeds']))}" for row in rows]


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
    largest = max((row.get("extrapolated_share") or {"mean": 0.0})["mean"] or 0.0 for row in comparison["rows"])
    beware = f"\nBeware: up to {_extrapolated(largest)}" if largest > 0 else ""
    shown = "".join(f"\nSignature: {line}." for line in signature_lines(comparison))
    return f"{comparison['scenario']} ({_provenance(comparison)})\n{table(head, rows)}\n{note}{against}{beware}{shown}"


def _extrapolated(of_time: float) -> str:
    return f"{share(of_time)} of the time more batches ran at once than were measured together: slow-downs extrapolated"


def _provenance(of: Result | Comparison) -> str:
    """The weakest origin of the figures, and the accuracy's where no network was measured."""
    accuracy = of.get("accuracy_provenance", MEASURED)
    return of["provenance"] if accuracy == MEASURED else f"{of['provenance']}; accuracy: {accuracy}"


_ERRORS = {
    "latency_mean": "mean %",
    "latency_p50": "p50 %",
    "latency_p95": "p95 %",
    "latency_p99": "p99 %",
    "throughput": "images/s %",
    "accuracy": "accuracy %",
    "energy_per_image": "J/image %",
    "energy": "E %",
}


def format_validation(validation: Validation) -> str:
    """The sim-to-real table of each load: both worlds' mean latency, the errors and what is allowed; then the rest."""
    rows = validation["rows"]
    parts = [validation["scenario"]]
    for load in dict.fromkeys(row["load"] for row in rows):
        parts.append(_errors_table([row for row in rows if row["load"] == load]))
    shown = middle_load(row["load"] for row in rows)
    parts.append(_stages_table([row for row in rows if row["load"] == shown]))
    parts.append(_saturated_table(validation["saturated"]))
    parts.append(_load_axis_table(validation["load_axis"]))
    notes = ["Errors are (simulated - hardware) / hardware; noise is the hardware's own, between repeats."]
    notes += validation_notes(validation)
    notes += [ranking_text(ranking) for ranking in validation["ranking"]]
    notes += energy_reasons(validation)
    return "\n\n".join([*(part for part in parts if part), "\n".join(notes)])


def load_title(row: Row) -> str:
    """What a table of rows at one load is headed with."""
    rate = f"{number(row['rate_img_s'], 1)} images/s" if row["rate_img_s"] is not None else "a trace's own rate"
    of = f"load {row['load']:g} ({rate})" if row["load"] is not None else rate
    runs = len(row["seeds"]) * row["repeats"]
    return f"{of}, {runs} hardware run{'s' if runs > 1 else ''} a router"


def _errors_table(rows: Sequence[Row]) -> str:
    judged = {name for name in _ERRORS for row in rows if row["met"][name] is not None}
    paced = [row["pace"] for row in rows if row.get("pace") and row["pace"]["mean"] is not None]
    head = ["router", "sim ms", "real ms", "noise %", *(["pace"] if paced else [])]
    for name, title in _ERRORS.items():
        head += [title, "allowed"] if name in judged else [title]
    body = []
    for row in rows:
        cells = [
            row["router"],
            number(milli(row["simulated"]["latency_mean"]), 2),
            interval(row["hardware"]["latency_mean"], 2, 1000),
            number(row["repeatability_pct"]["latency_mean"], 1),
            *([interval(row["pace"], 2)] if paced else []),
        ]
        for name in _ERRORS:
            cells.append(signed(row["error_pct"][name]))
            if name in judged:
                cells.append(verdict(row["target_pct"][name], row["met"][name]))
        body.append(cells)
    return f"{load_title(rows[0])}\n{table(head, body)}"


def _stages_table(rows: Sequence[Row]) -> str:
    """Mean milliseconds an image spent in each stage, simulated/real; nothing where no run kept them."""
    known = [(row["router"], row["stages_s"]["simulated"], row["stages_s"]["hardware"]) for row in rows]
    body = [
        [router, *(f"{1000 * simulated[name]:.2f}/{1000 * hardware[name]:.2f}" for name in simulated)]
        for router, simulated, hardware in known
        if simulated is not None and hardware is not None
    ]
    if not body:
        return ""
    head = ["router", *(name.replace("_", " ") for name in STAGES)]
    return f"{load_title(rows[0])}: where an image's time goes, simulated/real ms\n{table(head, body)}"


def saturated_cells(row: SaturatedRow) -> list[str]:
    """A saturated row as text."""
    return [
        row["router"],
        number(row["rate_img_s"], 0),
        number(row["simulated_img_s"], 1),
        number(row["hardware_img_s"], 1),
        number(row["error_pct"], 1, signed=True),
        verdict(row["target_pct"], row["met"]),
        saturation_text(row),
    ]


def _saturated_table(rows: Sequence[SaturatedRow]) -> str:
    if not rows:
        return ""
    body = [saturated_cells(row) for row in rows]
    head = ["router", "arriving/s", "sim images/s", "real images/s", "error %", "allowed", ""]
    return f"saturated\n{table(head, body)}"


def saturation_text(row: SaturatedRow) -> str:
    """Which world kept up with what arrived, if one did."""
    kept_up = [world for world, is_saturated in row["saturated"].items() if not is_saturated]
    return f"not saturated: {', '.join(kept_up)}" if kept_up else ""


def _load_axis_table(rows: Sequence[LoadAxisRow]) -> str:
    if not rows:
        return ""
    body = [
        [
            row["router"],
            number(row["rate_img_s"], 1),
            number(milli(row["simulated_latency_s"]), 2),
            interval(row["hardware_latency_s"], 2, 1000),
            signed(row["error_pct"]),
            verdict(row["target_pct"], row["met"]),
        ]
        for row in rows
    ]
    head = ["router", "images/s", "sim ms", "real ms", "load axis %", "allowed"]
    title = "near saturation: at how much more load the simulation is as slow as the hardware"
    return f"{title}\n{table(head, body)}"


def ranking_text(ranking: Ranking) -> str:
    """One sentence about the order of the routers at one load."""
    at = "" if ranking["load"] is None else f" at load {ranking['load']:g}"
    text = f"Ranking of routers by mean latency{at}: tau {number(ranking['tau'], 2)} over {ranking['pairs']} pairs"
    if not ranking["separated_pairs"]:
        return f"{text}; no two differ on the hardware by more than chance."
    apart = f"{number(ranking['tau_separated'], 2)} over the {ranking['separated_pairs']} that differ on the hardware"
    verdict = "met" if ranking["met"] else "missed"
    return f"{text}; {apart} by more than chance (allowed {ranking['target']:g}: {verdict})."


def validation_notes(validation: Validation) -> list[str]:
    """What the intervals are over, when noise widens what is allowed, and what has no interval."""
    rows = validation.get("rows", [])
    notes = [f"From {REPEATS_OF_NOISE} repeats on, twice the noise is allowed where that is more than the promise."]
    if any(len(row["seeds"]) > 1 for row in rows):
        notes.append("Intervals (95 %) are over seeds, each the mean of its repeats.")
    elif any(row["repeats"] > 1 for row in rows):
        notes.append("Intervals (95 %) are over repeats of one trace.")
    if any(row.get("pace") and row["pace"]["mean"] is not None for row in rows):
        notes.append("Pace: how many times as long as at full pace the devices took; each run's twin replays it.")
    if validation.get("saturated"):
        notes.append("A saturated row is a single run: no interval, and no noise in what is allowed.")
    return notes


def energy_reasons(validation: Validation) -> list[str]:
    """Why errors that nobody can know are left out."""
    reasons: dict[str, list[str]] = {}
    for pair in validation["pairs"]:
        for figure, why in pair["not_applicable"].items():
            if figure not in reasons.setdefault(why, []):
                reasons[why].append(figure)
    return [f"{', '.join(found)}: {why}" for why, found in reasons.items()]


def verdict(target: float | None, is_met: bool | None) -> str:
    """What is allowed, and whether it was kept."""
    if target is None:
        return NONE
    return f"{target:.1f} {'' if is_met is None else 'met' if is_met else 'missed'}".rstrip()


def signed(estimate: Estimate) -> str:
    """A percentage with its sign and interval."""
    mean, half = estimate["mean"], estimate["ci95"]
    return NONE if mean is None else f"{mean:+.1f}" if half is None else f"{mean:+.1f} +-{half:.1f}"


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


def milli(value: float | None) -> float | None:
    """Seconds as milliseconds."""
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
