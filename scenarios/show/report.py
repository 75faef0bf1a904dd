"""A run folder turned into one HTML page: tables and charts, with nothing fetched from anywhere.

It reads the run folder's files alone, and shows what is there; a part whose files are missing is left out, and the
page says so.
"""

from __future__ import annotations

import gzip
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hw.networks.accuracy import MEASURED
from kit import strict
from kit.documents import read_text, write_text
from kit.errors import InputError
from scenarios.files.made_routers import MADE_KINDS, PPO, made_name, training_file
from scenarios.files.reading import read_profile
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.comparison import Comparison
from scenarios.metrics.fidelity import Validation, middle_load
from scenarios.runs.folder import RunFolder
from scenarios.runs.records import StoredRun, load_point, read_runs
from scenarios.show import charts
from scenarios.show.answers import answers
from scenarios.show.comparison import comparison_table
from scenarios.show.html import Block, Chart, Grid, Note, Page, Trace, Traces, chart, render
from scenarios.show.numbers import NONE
from scenarios.show.profile_page import origin_badge, profile_blocks
from scenarios.show.standing_bars import standing_bars
from scenarios.show.table import Table
from scenarios.show.validation import (
    disturbance_warnings,
    errors_tables,
    far_apart_warnings,
    rows_at_middle,
    saturation_tables,
    validation_notes,
)
from scenarios.show.words import downtime_table
from scenarios.world.materials import SCENARIO_FILE
from sim.profile import Profile

PERFETTO = "https://ui.perfetto.dev/"
MOST_HELD = 6_000_000  # characters of packed timelines in a page: about 20 of a run of the quickstart
INTERVALS = "The pale line through a point is its 95 % interval; an arrowhead says that it goes on."
TRAINING_PANELS = 4  # as many scalars as a page can bear


@dataclass(frozen=True)
class Material:
    """All that the page is made of."""

    scenario: Mapping[str, Any]
    environment: Mapping[str, Any]
    comparison: Comparison | None
    validation: Validation | None
    runs: tuple[StoredRun, ...]
    profiles: Mapping[str, Profile]
    training: Mapping[str, Sequence[Mapping[str, float]]]  # by the kind of router


def build_report(run_folder: RunFolder | os.PathLike[str] | str) -> Path:
    """Write `report.html` into a run folder; returns its path.

    Raises:
        InputError: this is no run folder, or there is nothing in it to report yet.
    """
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    path = folder.path
    if not path.is_dir():
        raise InputError(str(path), "", "no such run folder; `slimsched run` and `slimsched compare --out` make one")
    with folder.opened():
        return _write_report(folder)


def _write_report(folder: RunFolder) -> Path:
    material, path = gather(folder), folder.path
    if not (material.comparison or material.validation or material.runs or material.profiles):
        raise InputError(str(path), "", "holds no results and no profiles; nothing to report")
    write_text(path / "report.html", render(report(material)))
    return path / "report.html"


def save_picture(run_folder: os.PathLike[str] | str, picture: Path) -> None:
    """The latency distributions of both worlds as a picture (PNG or SVG, by the file's ending).

    Raises:
        InputError: no router of this run folder ran in both worlds.
    """
    material = gather(RunFolder(Path(run_folder)))
    curves = _in_both_worlds(_latency_curves(material))
    if not curves:
        raise InputError(str(run_folder), "", "no router ran both in simulation and on real executors")
    charts.save(charts.latency_distributions(curves, _colors(material)), picture)


def gather(folder: RunFolder) -> Material:
    """Read a run folder."""

    def document(name: str) -> Any:
        return folder.read_json(name) if (folder / name).exists() else None

    return Material(
        scenario=_scenario(folder),
        environment=document("environment.json") or {},
        comparison=document("comparison.json"),
        validation=document("validation.json"),
        runs=tuple(read_runs(folder)),
        profiles=dict(_read_profiles(folder)),
        training={kind: steps for kind in MADE_KINDS if (steps := document(training_file(kind)))},
    )


def _scenario(folder: RunFolder) -> Mapping[str, Any]:
    path = folder / SCENARIO_FILE
    if not path.exists():
        return {}
    with folder.mending(path.name):
        return strict.mapping(read_text(path), str(path))


def _read_profiles(folder: RunFolder) -> Iterator[tuple[str, Profile]]:
    for path in sorted((folder / "profiles").glob("*.yaml")):
        with folder.mending(f"profiles/{path.name}"):
            yield path.stem, read_profile(path)


def report(material: Material) -> Page:
    """What the page says, section by section."""
    return Page(
        title=str(material.scenario.get("name", "run")),
        sections={
            "": list(_standing(material)),
            "Routers compared in simulation": [comparison_table(material.comparison)] if material.comparison else [],
            "Simulation against hardware": list(_validation(material)),
            "Latency": list(_latency(material)),
            "Accuracy against cost": list(_trade_offs(material)),
            "Servers over time": [*_downtimes(material), *_timelines(material), *_in_perfetto(material)],
            "Training of the routers": list(_training(material)),
            "Devices as calibrated": list(_profiles(material)),
        },
        badges=list(_badges(material)),
        answers=answers(material.comparison, material.validation),
        environment=_environment(material.environment),
    )


# ---------------------------------------------------------------------------------------------------------------- head


def _badges(material: Material) -> Iterator[tuple[str, str]]:
    for word, words in dict.fromkeys(map(origin_badge, material.profiles.values())):
        yield word, f"profiles: {words}"
    accuracy = material.comparison["accuracy_provenance"] if material.comparison else MEASURED
    if accuracy != MEASURED:
        yield "datasheet", f"accuracy: {accuracy}"
    yield from (("", world) for world in dict.fromkeys(run.result["mode"] for run in material.runs))
    yield from (("", f"{server}: {profile.device.name}") for server, profile in material.profiles.items())


def _standing(material: Material) -> Iterator[Chart]:
    """The first answer as a picture."""
    bars = list(standing_bars(material.comparison, material.validation))
    if len(bars) > 1:
        colors = charts.router_colors([*_compared(material), *(bar.router for bar in bars)])
        caption = f"Mean latency, and the accuracy of what ran. {INTERVALS} Look for who is far left on one side and "
        caption += "far right on the other: quick, and right."
        if material.validation:
            caption += (
                " How far a hollow point (simulated) is from the filled one (real executors) is simulation's error."
            )
        yield chart(charts.standing(bars, colors), caption)


def _environment(found: Mapping[str, Any]) -> dict[str, str]:
    """What the results were made with; where stages differ, of which ones it is."""
    stages = found.get("stages", {})
    told = {stage: _environment_texts(its) for stage, its in stages.items()}
    lines = {}
    for name in dict.fromkeys(name for texts in told.values() for name in texts):
        values: dict[str, list[str]] = {}
        for stage, texts in told.items():
            values.setdefault(texts.get(name, NONE), []).append(stage)
        for value, of in values.items():
            lines[name if len(values) == 1 else f"{name} ({', '.join(of)})"] = value
    return lines


def _environment_texts(found: Mapping[str, Any]) -> dict[str, str]:
    devices = "; ".join(
        ", ".join(f"{key} {_device_text(value)}" for key, value in device.items())
        for device in found.get("devices", [])
    )
    return {
        "system": f"{found.get('system')}, {found.get('cores')} cores, Python {found.get('python')}",
        "devices": devices or NONE,
        "packages": ", ".join(f"{name} {version or NONE}" for name, version in found.get("packages", {}).items()),
        "code": found.get("code", NONE),
        "seeds": ", ".join(f"{name} {value}" for name, value in found.get("seeds", {}).items()) or NONE,
    }


def _device_text(value: object) -> str:
    """A sensor's answers in words, not as Python writes a dictionary."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_device_text(each)}" for key, each in value.items()) or NONE
    return NONE if value is None else str(value)


# -------------------------------------------------------------------------------------------------------------- worlds


def _validation(material: Material) -> Iterator[Block]:
    found = material.validation
    if found is None:
        return
    yield from errors_tables(found)
    yield from map(Note, validation_notes(found))
    yield from (Note(text, "warning") for text in (*far_apart_warnings(found), *disturbance_warnings(found)))
    yield from saturation_tables(found)
    rows = rows_at_middle(found["rows"])
    bars = [
        charts.StageBar(row["router"], simulated, hardware)
        for row in rows
        if (simulated := row["stages_s"]["simulated"]) and (hardware := row["stages_s"]["hardware"])
    ]
    if bars:
        at = "" if rows[0]["load"] is None else f", at load {rows[0]['load']:g}"
        caption = (
            f"Where an image's time goes: simulated (above) and on real executors (hatched){at}. The longest color is "
        )
        caption += "what makes a router slow; where the two bars of a router differ, simulation is off."
        yield chart(charts.stage_bars(bars), caption)


def _first_seeds(material: Material) -> list[StoredRun]:
    """One run a router and world: at the middle load where there are several, of its lowest seed."""
    rows = material.validation["rows"] if material.validation else []
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
    return charts.router_colors(_compared(material) + [run.result["router"] for run in _first_seeds(material)])


def _compared(material: Material) -> list[str]:
    return [row["router"] for row in material.comparison["rows"]] if material.comparison else []


# -------------------------------------------------------------------------------------------------------------- charts


def _latency_curves(material: Material) -> list[charts.Latencies]:
    runs = [(run.result["router"], run.result["mode"], _latencies_s(run)) for run in _first_seeds(material)]
    return [charts.Latencies(router, mode, latencies_s) for router, mode, latencies_s in runs if latencies_s]


def _in_both_worlds(curves: Sequence[charts.Latencies]) -> list[charts.Latencies]:
    """The curves of the routers that ran in simulation and on real executors."""
    worlds = {(curve.router, curve.world) for curve in curves}
    return [c for c in curves if {(c.router, "simulation"), (c.router, "hardware")} <= worlds]


def _latency(material: Material) -> Iterator[Grid]:
    curves, colors = _latency_curves(material), _colors(material)
    simulated = [curve for curve in curves if curve.world == "simulation"]
    captioned = {
        "Latency distributions in simulation, one seed a router. A line further left is quicker; one that bends far to "
        "the right at the top leaves a few images waiting long.": simulated,
        "Simulated (solid) and on real executors (dashed). The closer the two lines of a router, the better the "
        "simulation.": _in_both_worlds(curves),
    }
    drawn = [chart(charts.latency_distributions(of, colors), caption) for caption, of in captioned.items() if of]
    if drawn:
        yield Grid(drawn)


def _latencies_s(run: StoredRun) -> list[float]:
    columns = run.columns("requests", "arrived_ns", "finished_ns", "status")
    if not columns:
        return []
    start_ns = run.result["warmup_s"] * 1e9
    rows = zip(columns["arrived_ns"], columns["finished_ns"], columns["status"], strict=True)
    return [(done - came) / 1e9 for came, done, status in rows if status == "completed" and came >= start_ns]


def _trade_offs(material: Material) -> Iterator[Grid]:
    compared = material.comparison["rows"] if material.comparison else []
    rows = [row for row in compared if row["accuracy"]["mean"] is not None]
    if not rows:
        return
    captioned = {
        "latency_mean_s": "Up and to the left is better; the dotted line joins routers that no other beats on both. "
        + INTERVALS,
        "energy_per_image_j": "The same against the energy of all devices: further left is less for an image. "
        + INTERVALS,
    }
    accuracy, colors = MEASURES["accuracy"], _colors(material)
    yield Grid(
        [
            chart(charts.trade_offs([charts.trade_off(rows, accuracy, MEASURES[cost])], colors=colors), caption)
            for cost, caption in captioned.items()
        ]
    )


def _downtimes(material: Material) -> list[Table]:
    """Of every run whose result is kept."""
    runs = []
    for run in material.runs:
        parts = (
            run.result["mode"],
            run.point,
            f"seed {run.result['seed']}",
            f"repeat {run.repeat}" if run.repeat else "",
        )
        runs.append((", ".join(filter(None, parts)), run.result))
    found = downtime_table(runs)
    return [found] if found else []


def _in_perfetto(material: Material) -> Iterator[Traces]:
    """Each charted run, batch by batch: as many as the page has room for by a click, all as files beside it."""
    traces, held = [], 0
    for run in _first_seeds(material):
        path = run.path / "timeline.json"
        if path.exists():
            packed = b64encode(gzip.compress(path.read_bytes(), mtime=0)).decode()
            held += len(packed)
            file = quote(path.relative_to(run.folder.path).as_posix())
            title = f"{run.result['router']}, {run.result['mode']}"
            traces.append(Trace(title, file, packed if held <= MOST_HELD else ""))
    if traces:
        yield Traces(
            "Every batch and decision of a run on a timeline, opened in Perfetto (ui.perfetto.dev, which shows it in "
            "your browser and sends it nowhere; it may ask whether you trust this page):",
            "If Perfetto opens empty: drop the run's file on it. The files lie beside this page:",
            PERFETTO,
            traces,
        )


def _timelines(material: Material) -> Iterator[Grid]:
    """The baseline's and the last router's run, in each world: enough to see how load is spread."""
    runs = _first_seeds(material)
    routers = list(dict.fromkeys(run.result["router"] for run in runs))
    drawn: list[Chart] = []
    for router in dict.fromkeys((*routers[:1], *routers[-1:])):
        drawn += _both_timelines([run for run in runs if run.result["router"] == router])
    if drawn:
        yield Grid(drawn)


def _both_timelines(runs: Sequence[StoredRun]) -> list[Chart]:
    """What one router's runs look like over time; what ran in both worlds is laid over each other as well."""
    drawn = []
    readings = {run.result["mode"]: telemetry for run in runs if (telemetry := _telemetry(run))}
    for run in runs:
        mode, router, seed = run.result["mode"], run.result["router"], run.result["seed"]
        if mode in readings:
            caption = (
                f"{router}, {mode}, seed {seed}, as the sensors report it. One server at 100 % while another has time "
            )
            caption += "to spare is load that is badly spread."
            drawn.append(chart(charts.over_time(readings[mode]), caption))
    if {"simulation", "hardware"} <= readings.keys():
        caption = (
            f"{runs[0].result['router']}: simulated (solid) over real executors (dashed). Both should rise and fall "
        )
        caption += "together; where they part, simulation spreads load otherwise than the hardware had it."
        drawn.append(chart(charts.both_over_time(readings["simulation"], readings["hardware"]), caption))
    return drawn


def _telemetry(run: StoredRun) -> list[charts.Telemetry]:
    columns = run.columns("telemetry", "server", "sampled_ns", "utilization", "power_w")
    if not columns:
        return []
    found = []
    for index, server in enumerate(run.result["servers"]):
        rows = [row for row, of in enumerate(columns["server"]) if of == index]
        times_s = [columns["sampled_ns"][row] / 1e9 for row in rows]
        utilization = [columns["utilization"][row] for row in rows]
        power_w = [columns["power_w"][row] for row in rows]
        found.append(charts.Telemetry(server["name"], times_s, utilization, power_w))
    return found


def _training(material: Material) -> Iterator[Grid]:
    drawn = []
    for kind, steps in material.training.items():
        names = _first_of_each_kind([name for name in steps[0] if name != "decisions"])
        panels = {name: [step.get(name, float("nan")) for step in steps] for name in names[:TRAINING_PANELS]}
        each = "update's" if kind == PPO else "generation's best"
        caption = (
            f"{made_name(kind)}: each {each} value (pale) and its running mean. A first line that still rises at its "
        )
        caption += "right end says that longer training would help."
        drawn.append(chart(charts.training_curve([step["decisions"] for step in steps], panels), caption))
    if drawn:
        yield Grid(drawn)


def _first_of_each_kind(names: Sequence[str]) -> list[str]:
    """Of `reward/mean`, `reward/accuracy`, `loss/value` ... the first with each beginning, rewards before all."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(name.partition("/")[0], name)
    return sorted(first.values(), key=lambda name: not name.startswith("reward"))


def _profiles(material: Material) -> Iterator[Block]:
    seen: dict[str, str] = {}
    for server, profile in material.profiles.items():
        text = profile.to_yaml()
        if text in seen:
            yield Note(f"{server} has the same profile as {seen[text]}.")
            continue
        seen[text] = server
        yield from profile_blocks(server, profile)
