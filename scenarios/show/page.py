"""A run folder turned into one HTML page: tables and figures, with nothing fetched from anywhere.

It reads the run folder's files alone, and shows what is there; a part whose files are missing is left out, and the
page says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import yaml

from hw.accuracy import MEASURED
from policies.errors import InputError
from policies.vocabulary import Provenance
from scenarios.files.documents import read_json, write_text
from scenarios.metrics.comparison import Comparison
from scenarios.metrics.fidelity import Row, Validation, middle_load
from scenarios.runs.folder import RunFolder
from scenarios.runs.records import StoredRun, load_point, read_runs
from scenarios.show import charts as figures
from scenarios.show.profile import ERROR_HEAD, PROMISES_NOTHING, RANGE_HEAD, error_rows, range_rows
from scenarios.show.profile_curves import latency_bands, loaded_at_once, loaded_batch, under_load
from scenarios.show.words import (
    NONE,
    change,
    energy,
    energy_reasons,
    interval,
    load_title,
    milli,
    number,
    ranking_text,
    saturated_cells,
    signature_lines,
    signed,
    validation_notes,
    verdict,
)
from sim.profile import Profile

TRAINING_PANELS = 4  # as many scalars as a page can bear
MS = 1000
_COMPARED = (
    *("router", "accuracy, %", "mean latency, ms", "p99, ms", "E, J", "energy, J/image", "images/s", "imbalance"),
    *("change of latency", "change of E"),
)
_ERRORS = {
    "latency_mean": "error of mean",
    "latency_p50": "of p50",
    "latency_p95": "of p95",
    "latency_p99": "of p99",
    "throughput": "of images/s",
    "accuracy": "of accuracy",
    "energy_per_image": "of energy",
    "energy": "of E",
}
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1b1b1b; background: #fff;
  max-width: 1160px; margin: 0 auto; padding: 1.2rem 1rem 3rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; padding-top: .6rem;
  border-top: 1px solid #ddd; } h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
p { margin: .3rem 0 .6rem; max-width: 46rem; } .note { color: #555; font-size: .87rem; }
.lead { font-size: 1.05rem; }
.badge { display: inline-block; font-size: .78rem; padding: .05rem .5rem; border-radius: .7rem; background: #eee;
  color: #333; margin-right: .3rem; }
.measured { background: #d9efe2; } .polled { background: #dbe8f6; } .modelled { background: #fbedcf; }
.datasheet { background: #f7dcd7; } .warning { background: #fdeeea; padding: .3rem .6rem; font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .84rem; margin: .4rem 0; }
th, td { padding: .28rem .45rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e6e6e6; }
th { font-weight: 600; color: #444; border-bottom: 1.5px solid #999; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } td { font-variant-numeric: tabular-nums; }
td small { color: #777; } tr.base td { background: #f7f7f7; }
.grid { display: grid; gap: 1rem 1.6rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
figure { margin: .4rem 0; break-inside: avoid; } figcaption { font-size: .87rem; color: #444; }
figure svg { width: 100%; height: auto; display: block; } .narrow { max-width: 640px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .88rem; margin: .4rem 0; }
dt { color: #666; } dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { font-size: 11px; max-width: none; padding: 0; } h2 { break-after: avoid; }
  .scroll { overflow: visible; } th, td { padding: .15rem .4rem; white-space: normal; } }
"""
_HTML = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style></head>
<body>
{body}
</body></html>
"""


@dataclass(frozen=True)
class Material:
    """All that the page is made of."""

    scenario: Mapping[str, Any]
    environment: Mapping[str, Any]
    comparison: Comparison | None
    validation: Validation | None
    runs: tuple[StoredRun, ...]
    profiles: Mapping[str, Profile]
    training: Sequence[Mapping[str, float]]


def build_report(run_folder: os.PathLike[str] | str) -> Path:
    """Write `report.html` into a run folder; returns its path.

    Raises:
        InputError: this is no run folder, or there is nothing in it to report yet.
    """
    path = Path(run_folder)
    if not path.is_dir():
        raise InputError(str(path), "", "no such run folder; `slimsched run` and `slimsched compare --out` make one")
    material = gather(RunFolder(path))
    if not (material.comparison or material.validation or material.runs or material.profiles):
        raise InputError(str(path), "", "holds no results and no profiles; nothing to report")
    write_text(path / "report.html", page(material))
    return path / "report.html"


def gather(folder: RunFolder) -> Material:
    """Read a run folder."""

    def document(name: str) -> Any:
        return read_json(folder / name) if (folder / name).exists() else None

    scenario = folder / "scenario.yaml"
    profiles = sorted((folder / "profiles").glob("*.yaml"))
    return Material(
        scenario=yaml.safe_load(scenario.read_text(encoding="utf-8")) if scenario.exists() else {},
        environment=document("environment.json") or {},
        comparison=document("comparison.json"),
        validation=document("validation.json"),
        runs=tuple(read_runs(folder)),
        profiles={path.stem: Profile.from_yaml(path.read_text(encoding="utf-8"), str(path)) for path in profiles},
        training=document("training.json") or (),
    )


def page(material: Material) -> str:
    """The whole HTML page."""
    name = str(material.scenario.get("name", "run"))
    sections: list[tuple[str, Callable[[Material], Iterator[str]]]] = [
        ("Routers compared in simulation", _comparison),
        ("Simulation against hardware", _validation),
        ("Latency", _latency),
        ("Accuracy against cost", _trade_offs),
        ("Servers over time", _timelines),
        ("Training of the PPO router", _training),
        ("Devices as calibrated", _profiles),
    ]
    parts, missing = list(_head(material, name)), []
    for title, section in sections:
        body = list(section(material))
        if body:
            parts += [f"<h2>{title}</h2>", *body]
        else:
            missing.append(title.lower())
    if missing:
        parts.append(f'<p class="note">Not in this run folder: {escape("; ".join(missing))}.</p>')
    parts += list(_environment(material))
    return _HTML.format(title=escape(name), style=_STYLE, body="\n".join(parts))


def profile_page(profile: Profile) -> str:
    """A page of one profile's curves and the paper's Figures 1-3."""
    body = "\n".join([f"<h1>{escape(profile.name)}</h1>", *_profile(profile.name, profile)])
    return _HTML.format(title=escape(profile.name), style=_STYLE, body=body)


# ---------------------------------------------------------------------------------------------------------------- head


def _head(material: Material, name: str) -> Iterator[str]:
    yield f"<h1>{escape(name)}</h1>"
    words = dict.fromkeys(str(profile.provenance) for profile in material.profiles.values())
    badges = "".join(f'<span class="badge {word}">profiles: {word}</span>' for word in words)
    accuracy = material.comparison.get("accuracy_provenance", MEASURED) if material.comparison else MEASURED
    if accuracy != MEASURED:
        badges += f'<span class="badge datasheet">accuracy: {escape(accuracy)}</span>'
    worlds = dict.fromkeys(run.result["mode"] for run in material.runs)
    yield f"<p>{badges}{''.join(f'<span class=badge>{world}</span>' for world in worlds)}</p>"
    yield from (f'<p class="lead">{sentence}</p>' for sentence in _headlines(material))
    devices = ", ".join(f"{server}: {profile.device.name}" for server, profile in material.profiles.items())
    if devices:
        yield f'<p class="note">{escape(devices)}</p>'


def _headlines(material: Material) -> Iterator[str]:
    """The best router's gain, and how far the simulation is off: what a reader wants first."""
    found = material.comparison
    rows = [row for row in found["rows"] if row["router"] != found["baseline"]] if found else []
    rows = [row for row in rows if row["latency_change_pct"]["mean"] is not None]
    if found and rows:
        best = min(rows, key=lambda row: row["latency_change_pct"]["mean"])
        latency, joules = best["latency_change_pct"], best["energy_change_pct"]
        yield (
            f"<b>{escape(best['router'])}</b> changes mean latency by {_cell(change(latency))} and energy by "
            f"{_cell(change(joules))} against <b>{escape(str(found['baseline']))}</b>, at "
            f"{_cell(interval(best['accuracy'], 2, 100))} % accuracy (simulated)."
        )
    pairs = material.validation["pairs"] if material.validation else []
    errors = [pair["error_pct"]["latency_mean"] for pair in pairs]
    known = [abs(error) for error in errors if error is not None]
    if known:
        yield f"Simulated mean latency is off by {sum(known) / len(known):.1f} % on average against real executors."


# -------------------------------------------------------------------------------------------------------------- tables


def _comparison(material: Material) -> Iterator[str]:
    found = material.comparison
    if found is None:
        return
    rows = []
    for row in found["rows"]:
        cells = [
            interval(row["accuracy"], 2, 100),
            interval(row["latency_s"]["mean"], 2, MS),
            interval(row["latency_s"]["p99"], 1, MS),
            energy(row["energy_j"]["mean"]),
            energy(row["energy_per_image_j"]["total"]),
            interval(row["throughput_img_s"], 1),
            interval(row["gpu_var"]["mean"], 4),
            change(row["latency_change_pct"]),
            change(row["energy_change_pct"]),
        ]
        rows.append(([row["router"], *cells], row["router"] == found["baseline"]))
    yield _table(_COMPARED, rows)
    seeds = max(len(row["seeds"]) for row in found["rows"])
    yield (
        f'<p class="note">Mean and 95 % interval over {seeds} seed{"s" if seeds > 1 else ""}. E is the paper\'s: mean '
        "power x latency. Energy per image is all devices' power over the run, shared among the completed images. "
        "Imbalance is the variance of utilization over servers. The last two columns are changes against "
        f"{escape(str(found['baseline']))}, seed by seed.</p>"
    )
    yield from (f'<p class="warning">Signature of a failure: {escape(line)}.</p>' for line in signature_lines(found))


def _validation(material: Material) -> Iterator[str]:
    found = material.validation
    if found is None:
        return
    rows = found.get("rows", [])
    for load in dict.fromkeys(row["load"] for row in rows):
        at_load = [row for row in rows if row["load"] == load]
        yield f"<h3>{escape(load_title(at_load[0]))}</h3>"
        yield _errors_table(at_load)
    notes = [
        "Errors are (simulated − hardware) / hardware of the same arrivals, in percent. Noise is the hardware's own: "
        "the standard deviation of its mean latency over repeats."
    ]
    notes += validation_notes(found)
    notes += [ranking_text(ranking) for ranking in found.get("ranking", [])]
    notes += energy_reasons(found)
    yield f'<p class="note">{escape(" ".join(notes))}</p>'
    yield from _saturation(found)
    bars = [
        figures.StageBar(row["router"], simulated, hardware)
        for row in _at_middle_load(rows)
        if (simulated := row["stages_s"]["simulated"]) and (hardware := row["stages_s"]["hardware"])
    ]
    if bars:
        caption = f"Where an image's time goes: simulated (above) and on real executors (hatched){_at(rows)}."
        yield _drawn(figures.stage_bars(bars), caption, narrow=True)


def _errors_table(rows: Sequence[Row]) -> str:
    judged = {name for name in _ERRORS for row in rows if row["met"][name] is not None}
    head = ["router", "simulated mean, ms", "hardware mean, ms", "noise, %"]
    for name, title in _ERRORS.items():
        head += [f"{title}, %", "allowed"] if name in judged else [f"{title}, %"]
    body = []
    for row in rows:
        cells = [
            row["router"],
            number(milli(row["simulated"]["latency_mean"]), 2),
            interval(row["hardware"]["latency_mean"], 2, MS),
            number(row["repeatability_pct"]["latency_mean"], 1),
        ]
        for name in _ERRORS:
            cells.append(signed(row["error_pct"][name]))
            if name in judged:
                cells.append(verdict(row["target_pct"][name], row["met"][name]))
        body.append((cells, False))
    return _table(head, body)


def _saturation(found: Validation) -> Iterator[str]:
    saturated, near = found.get("saturated", []), found.get("load_axis", [])
    if saturated:
        yield "<h3>Saturated: arrivals just above capacity</h3>"
        head = ["router", "arriving/s", "simulated images/s", "hardware images/s", "error, %", "allowed", ""]
        yield _table(head, [(saturated_cells(row), False) for row in saturated])
    if near:
        yield "<h3>Near saturation: error along the load axis</h3>"
        head = ["router", "images/s", "simulated mean, ms", "hardware mean, ms", "error of load, %", "allowed"]
        body = [
            [
                row["router"],
                number(row["rate_img_s"], 1),
                number(milli(row["simulated_latency_s"]), 2),
                interval(row["hardware_latency_s"], 2, MS),
                signed(row["error_pct"]),
                verdict(row["target_pct"], row["met"]),
            ]
            for row in near
        ]
        yield _table(head, [(cells, False) for cells in body])
        yield (
            '<p class="note">At 90 % of what the router carries on the hardware: how much more (or less) load makes '
            "the simulation as slow as the hardware is.</p>"
        )


def _at_middle_load(rows: Sequence[Row]) -> list[Row]:
    shown = middle_load(row["load"] for row in rows)
    return [row for row in rows if row["load"] == shown]


def _at(rows: Sequence[Row]) -> str:
    shown = middle_load(row["load"] for row in rows)
    return "" if shown is None else f", at load {shown:g}"


def _table(head: Sequence[str], rows: Sequence[tuple[Sequence[str], bool]]) -> str:
    """An HTML table; a row with True is the baseline's."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "\n".join(
        f"<tr{' class=base' if is_base else ''}>{''.join(f'<td>{_cell(cell)}</td>' for cell in cells)}</tr>"
        for cells, is_base in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(text: str) -> str:
    mean, sign, half = text.partition(" +-")
    return f"{escape(mean)} <small>±{escape(half)}</small>" if sign else escape(text)


# ------------------------------------------------------------------------------------------------------------- figures


def _drawn(figure: Any, caption: str, narrow: bool = False) -> str:
    css = ' class="narrow"' if narrow else ""
    return f"<figure{css}>{figures.to_svg(figure)}<figcaption>{escape(caption)}</figcaption></figure>"


def _first_seeds(material: Material) -> list[StoredRun]:
    """One run a router and world: at the middle load where there are several, of its lowest seed."""
    rows = material.validation.get("rows", []) if material.validation else []
    wanted = load_point(middle_load(row["load"] for row in rows))
    chosen: dict[tuple[str, str], StoredRun] = {}
    for run in sorted(material.runs, key=lambda run: (run.point != wanted, run.result["seed"], run.repeat)):
        if run.point in (wanted, ""):
            chosen.setdefault((run.result["router"], run.result["mode"]), run)
    rank = {router: index for index, router in enumerate(_compared(material))}
    return sorted(
        chosen.values(), key=lambda run: (rank.get(run.result["router"], len(rank)), run.result["mode"] != "simulation")
    )


def _colors(material: Material) -> dict[str, str]:
    return figures.router_colors(_compared(material) + [run.result["router"] for run in _first_seeds(material)])


def _compared(material: Material) -> list[str]:
    return [row["router"] for row in material.comparison["rows"]] if material.comparison else []


def _latency_curves(material: Material) -> list[figures.Latencies]:
    runs = [(run.result["router"], run.result["mode"], _latencies_s(run)) for run in _first_seeds(material)]
    return [figures.Latencies(router, mode, latencies_s) for router, mode, latencies_s in runs if latencies_s]


def _in_both_worlds(curves: Sequence[figures.Latencies]) -> list[figures.Latencies]:
    """The curves of the routers that ran in simulation and on real executors."""
    worlds = {(curve.router, curve.world) for curve in curves}
    return [c for c in curves if {(c.router, "simulation"), (c.router, "hardware")} <= worlds]


def save_picture(run_folder: os.PathLike[str] | str, picture: Path) -> None:
    """The latency distributions of both worlds as a picture (PNG or SVG, by the file's ending).

    Raises:
        InputError: no router of this run folder ran in both worlds.
    """
    material = gather(RunFolder(Path(run_folder)))
    curves = _in_both_worlds(_latency_curves(material))
    if not curves:
        raise InputError(str(run_folder), "", "no router ran both in simulation and on real executors")
    figures.latency_distributions(curves, _colors(material)).savefig(picture, dpi=110)


def _latency(material: Material) -> Iterator[str]:
    curves, colors = _latency_curves(material), _colors(material)
    simulated = [curve for curve in curves if curve.world == "simulation"]
    yield '<div class="grid">' if curves else ""
    if simulated:
        yield _drawn(
            figures.latency_distributions(simulated, colors), "Latency distributions in simulation, one seed a router."
        )
    overlaid = _in_both_worlds(curves)
    if overlaid:
        yield _drawn(
            figures.latency_distributions(overlaid, colors), "Simulated (solid) and on real executors (dashed)."
        )
    yield "</div>" if curves else ""


def _latencies_s(run: StoredRun) -> list[float]:
    columns = run.columns("requests")
    if not columns:
        return []
    start_ns = run.result["warmup_s"] * 1e9
    rows = zip(columns["arrived_ns"], columns["finished_ns"], columns["status"], strict=True)
    return [(done - came) / 1e9 for came, done, status in rows if status == "completed" and came >= start_ns]


def _trade_offs(material: Material) -> Iterator[str]:
    compared = material.comparison["rows"] if material.comparison else []
    rows = [row for row in compared if row["accuracy"]["mean"] is not None]
    if not rows:
        return
    colors = _colors(material)
    latency = [_point(row, row["latency_s"]["mean"], MS) for row in rows]
    joules = [_point(row, row["energy_per_image_j"]["total"], 1.0) for row in rows]
    yield '<div class="grid">'
    caption = "Up and to the left is better; the dotted line joins the routers that no other beats on both."
    yield _drawn(figures.trade_off(latency, "mean latency, ms", colors=colors), caption)
    yield _drawn(
        figures.trade_off(joules, "energy, J per image (all devices)", colors=colors), "The same against energy."
    )
    yield "</div>"


def _point(row: Mapping[str, Any], cost: Mapping[str, float | None], scale: float) -> figures.Point:
    accuracy = row["accuracy"]
    return figures.Point(
        name=row["router"],
        x=(cost["mean"] or 0.0) * scale,
        y=accuracy["mean"] * 100,
        x_error=(cost["ci95"] or 0.0) * scale,
        y_error=(accuracy["ci95"] or 0.0) * 100,
    )


def _timelines(material: Material) -> Iterator[str]:
    """The baseline's and the last router's run, in each world: enough to see how load is spread."""
    runs = _first_seeds(material)
    routers = list(dict.fromkeys(run.result["router"] for run in runs))
    drawn = []
    for router in dict.fromkeys((*routers[:1], *routers[-1:])):
        drawn += _both_timelines([run for run in runs if run.result["router"] == router])
    if drawn:
        yield '<div class="grid">'
        yield from drawn
        yield "</div>"


def _both_timelines(runs: Sequence[StoredRun]) -> list[str]:
    """What one router's runs look like over time; what ran in both worlds is laid over each other as well."""
    drawn = []
    readings = {run.result["mode"]: telemetry for run in runs if (telemetry := _telemetry(run))}
    for run in runs:
        mode, router, seed = run.result["mode"], run.result["router"], run.result["seed"]
        if mode in readings:
            caption = f"{router}, {mode}, seed {seed}: as the sensors report it."
            drawn.append(_drawn(figures.over_time(readings[mode]), caption))
    if {"simulation", "hardware"} <= readings.keys():
        caption = f"{runs[0].result['router']}: simulated (solid) over real executors (dashed)."
        drawn.append(_drawn(figures.both_over_time(readings["simulation"], readings["hardware"]), caption))
    return drawn


def _telemetry(run: StoredRun) -> list[figures.Telemetry]:
    columns = run.columns("telemetry")
    if not columns:
        return []
    found = []
    for index, server in enumerate(run.result["servers"]):
        rows = [row for row, of in enumerate(columns["server"]) if of == index]
        times_s = [columns["sampled_ns"][row] / 1e9 for row in rows]
        utilization = [columns["utilization"][row] for row in rows]
        power_w = [columns["power_w"][row] for row in rows]
        found.append(figures.Telemetry(server["name"], times_s, utilization, power_w))
    return found


def _training(material: Material) -> Iterator[str]:
    if not material.training:
        return
    names = _first_of_each_kind([name for name in material.training[0] if name != "decisions"])
    panels = {name: [step.get(name, float("nan")) for step in material.training] for name in names[:TRAINING_PANELS]}
    decisions = [step["decisions"] for step in material.training]
    caption = "Each update's value (pale) and its running mean."
    yield _drawn(figures.training_curve(decisions, panels), caption, narrow=True)


def _first_of_each_kind(names: Sequence[str]) -> list[str]:
    """Of `reward/mean`, `reward/accuracy`, `loss/value` ... the first with each beginning, rewards before all."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(name.partition("/")[0], name)
    return sorted(first.values(), key=lambda name: not name.startswith("reward"))


def _profiles(material: Material) -> Iterator[str]:
    seen: dict[str, str] = {}
    for server, profile in material.profiles.items():
        text = profile.to_yaml()
        if text in seen:
            yield f'<p class="note">{escape(server)} has the same profile as {escape(seen[text])}.</p>'
            continue
        seen[text] = server
        yield from _profile(server, profile)


def _profile(server: str, profile: Profile) -> Iterator[str]:
    word = str(profile.provenance)
    yield f'<h3>{escape(server)}: {escape(profile.device.name)} <span class="badge {word}">{word}</span></h3>'
    if profile.provenance == Provenance.DATASHEET:
        yield f'<p class="warning">{escape(PROMISES_NOTHING)}.</p>'
    if profile.errors:
        yield _table(ERROR_HEAD, [(cells, False) for cells in error_rows(profile)])
    if profile.ranges:
        yield _table(RANGE_HEAD, [(cells, False) for cells in range_rows(profile)])
    sources = f"latency {word}, power {profile.power.provenance}, concurrency {profile.concurrency.provenance}"
    yield f'<p class="note">Where it comes from: {sources}; shares of the memory bandwidth modelled from shapes.</p>'
    if profile.omitted:
        yield f'<p class="note">Left out: {escape("; ".join(profile.omitted))}.</p>'
    yield from _profile_figures(profile)


def _profile_figures(profile: Profile) -> Iterator[str]:
    bands, loaded = latency_bands(profile), under_load(profile)
    stated = next(iter(bands.values())).error_share
    dashes = "" if stated is None else f"; dashed, the stated error of {100 * stated:.1f} % around it"
    stream = (
        f"as a Poisson stream of batches of {loaded_batch(profile)} fills the device, "
        f"up to {loaded_at_once(profile)} at once. "
        "Dots: where latency bends most. Shaded: where the paper saw it"
    )
    drawn = {
        f"Median latency of a batch alone, shaded from the 5th to the 95th percentile{dashes}.": figures.latency_curves(
            profile, bands
        ),
        "The paper's Figure 1: utilization (any kernel running) against batch size; dotted, the share of the SMs.": (
            figures.utilization_by_batch(profile)
        ),
        f"The paper's Figure 2: energy of a batch (mean power x latency) against utilization, {stream}.": (
            figures.energy_by_utilization(profile, loaded)
        ),
        f"The paper's Figure 3: mean latency against utilization, {stream}.": figures.latency_by_utilization(
            profile, loaded
        ),
    }
    yield '<div class="grid">'
    yield from (_drawn(figure, caption) for caption, figure in drawn.items())
    yield "</div>"


def _environment(material: Material) -> Iterator[str]:
    found = material.environment
    if not found:
        return
    packages = ", ".join(f"{name} {version or NONE}" for name, version in found.get("packages", {}).items())
    devices = "; ".join(
        ", ".join(f"{key} {value}" for key, value in device.items()) for device in found.get("devices", [])
    )
    seeds = ", ".join(f"{name} {value}" for name, value in found.get("seeds", {}).items())
    rows = {
        "system": f"{found.get('system')}, {found.get('cores')} cores, Python {found.get('python')}",
        "devices": devices or NONE,
        "packages": packages,
        "seeds": seeds or NONE,
    }
    yield "<h2>Environment</h2><dl>"
    yield from (f"<dt>{key}</dt><dd>{escape(value)}</dd>" for key, value in rows.items())
    yield "</dl>"
