"""Pages of HTML: a run folder's report, and one profile's curves. Nothing in them is fetched from anywhere.

A report reads the run folder's files alone, and shows what is there; a part whose files are missing is left out, and
the page states it. Words and looks: `templates/page.html.j2`.
"""

from __future__ import annotations

import gzip
import os
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from hw.networks.accuracy import MEASURED
from kit import strict
from kit.documents import read_text, write_text
from kit.errors import InputError
from policies.vocabulary import Provenance
from scenarios.files.made_routers import PPO, made_name
from scenarios.files.reading import read_profile
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.comparison import ComparisonDocument, accuracy_measure
from scenarios.metrics.fidelity import ValidationDocument, middle_load
from scenarios.metrics.ranking import Promise
from scenarios.metrics.result import Result
from scenarios.runs.folder import RunFolder
from scenarios.runs.records import StoredRun, load_point, read_runs
from scenarios.show import charts, profile_charts
from scenarios.show.answers import answers
from scenarios.show.comparison import comparison_table
from scenarios.show.learning import Steps, curves_of, save_curves, trainings_in
from scenarios.show.numbers import NONE, PLUS_MINUS
from scenarios.show.plan import short_plan
from scenarios.show.profile import PROMISES_NOTHING, tables_of
from scenarios.show.profile_curves import loaded_at_once, loaded_batch, stated_solo_error
from scenarios.show.summary import compared_classes, places, summary_table, validated_classes
from scenarios.show.table import Answer, Table
from scenarios.show.validation import (
    disturbance_warnings,
    errors_tables,
    far_apart_warnings,
    rows_at_middle,
    saturation_tables,
    stages_table,
    validation_notes,
)
from scenarios.show.wording import environment
from scenarios.show.words import downtime_table
from scenarios.terminal.screen import visible_text
from scenarios.world.materials import SCENARIO_FILE
from sim.profile import Profile

MAX_PAGE = 1_500_000  # bytes: what can be mailed; timelines take what room the rest leaves
WORLD_WORDS = {"simulation": "simulated", "hardware": "on executors"}  # one word each for a reader
CHARTED_PROFILES = 4  # of some 220 kB each


@dataclass(frozen=True)
class Material:
    """All that the page is made of."""

    scenario: Mapping[str, Any]
    environment: Mapping[str, Any]
    comparison: ComparisonDocument | None
    validation: ValidationDocument | None
    runs: tuple[StoredRun, ...]
    profiles: Mapping[str, Profile]
    results: Sequence[Result]  # of the comparison
    training: Mapping[str, Steps]  # by the kind of router


def build_report(run_folder: RunFolder | os.PathLike[str] | str) -> Path:
    """Write `report.html` into a run folder; returns its path.

    Raises:
        InputError: this is not a run folder, or there is nothing in it to report yet.
    """
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    path = folder.path
    if not path.is_dir() or (not folder.is_flagged and any(path.iterdir())):
        what = "is no run folder that serves" if path.is_dir() else "no such run folder"
        raise InputError(str(path), "", f"{what}; `slimsched run` and `slimsched compare --out` make one")
    with folder.opened():
        material = gather(folder)
        if not (material.comparison or material.validation or material.runs or material.profiles or material.training):
            raise InputError(str(path), "", "holds no results, no trainings and no profiles; nothing to report")
        write_text(path / "report.html", report(material))
    return path / "report.html"


def save_picture(folders: Sequence[Path], picture: Path, say: Callable[[str], None]) -> None:
    """Save, of one run folder, the latency distributions of a validation, or trade-offs, or learning curves.

    Of several it is their learning curves. It is PNG or SVG, by the file's ending.

    Raises:
        InputError: there is none of these.
    """
    materials = {folder: gather(RunFolder(folder)) for folder in folders}
    material, *others = materials.values()
    if not others and (curves := _in_both_worlds(_latency_curves(material))):
        charts.save(charts.latency_distributions(curves, _colors(material)), picture)
    elif not others and material.comparison and any(material.comparison["pareto"]["fronts"].values()):
        charts.save(charts.trade_off_chart(material.comparison), picture)
    else:
        save_curves({folder: (each.scenario, each.training) for folder, each in materials.items()}, picture, say)


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
        results=document("results.json") or (),
        training=trainings_in(folder),
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


def report(material: Material) -> str:
    """Return the page, section by section."""
    comparison, validation = material.comparison, material.validation
    timelines, traces = list(_timelines(material)), list(_traces(material))
    sections = {
        "summary": summary_table(comparison, validation),
        "simulated": summary_table(comparison, None),
        "compared": comparison_table(comparison) if comparison else None,
        "classes": [*filter(None, (compared_classes(comparison), validated_classes(validation)))],
        "validation": _validation(validation) if validation else None,
        "latency": _latency(material),
        "trade_offs": _trade_offs(material),
        "downtimes": _downtimes(material),
        "timelines": timelines,
        "traces": traces,
        "training": list(_training(material)),
    }
    parts = {
        "Routers in simulation": comparison,
        "Simulation beside executors": validation,
        "Latency": sections["latency"],
        "Accuracy against cost": sections["trade_offs"],
        "Servers over time": sections["downtimes"] or timelines or traces,
        "Training": sections["training"],
        "Devices": material.profiles,
    }
    run = {
        **sections,
        "parts": (),
        "badges": list(_badges(material)),
        "answers": _answers(material),
        "ranking": _ranking(material),
        "contents": [title for title, part in {**parts, "Environment": material.environment}.items() if part],
        "missing": [title.lower() for title, part in parts.items() if not part],
        "environment": _environment(material.environment),
    }
    title, profiles = str(material.scenario.get("name", "run")), list(_profiles(material.profiles))
    _pack(material, traces, MAX_PAGE - len(_page(title, run, profiles).encode()))
    return _page(title, run, profiles)


def page_of(title: str, answers: Sequence[Answer], summary: Table, parts: Sequence[Mapping[str, Any]]) -> str:
    """Return a page of answers, one table, and parts: each a `title`, a `chart` with `caption`, or None, `tables`."""
    run: Mapping[str, Any] = defaultdict(  # a run folder's own parts are not here
        lambda: None, answers=answers, summary=summary, parts=parts, contents=[part["title"] for part in parts]
    )
    return _page(title, run, [])


def profile_page(profile: Profile) -> str:
    """Return a page of one profile's curves and the paper's Figures 1-3."""
    return _page(profile.name, None, [_profile(profile.name, profile)])


def _page(title: str, run: Mapping[str, Any] | None, profiles: Sequence[Mapping[str, Any]]) -> str:
    """Render the page: what HTML does not allow in a name is written out; the only program is allowed by its hash."""
    script = files("scenarios.show").joinpath("templates/page.js").read_text(encoding="utf-8")
    filters = environment().filters
    filters["interval_small"], filters["prose"] = _interval, _prose
    filters["anchor"] = lambda title: title.lower().replace(" ", "-")
    filters["sha256"] = lambda text: b64encode(sha256(text.encode()).digest()).decode()
    text = environment().get_template("page.html.j2").render(
        title=title, run=run, profiles=profiles, script=Markup(script)  # noqa: S704 - our own
    )  # fmt: skip
    return visible_text(text)


def _prose(text: str) -> Markup:
    """Return a sentence of the terminal's as HTML: its keys and commands as code."""
    escaped = str(escape(text)).replace(PLUS_MINUS, " \u00b1")
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escaped))  # noqa: S704 - escaped


def _interval(cell: str) -> Markup:
    """Return a cell's text, with the half-width of its interval in small letters."""
    mean, sign, half = cell.partition(PLUS_MINUS)
    return Markup("{} <small>±{}</small>").format(mean, half) if sign else Markup("{}").format(mean)


# ---------------------------------------------------------------------------------------------------------------- head


def _badges(material: Material) -> Iterator[tuple[str, str]]:
    for word, words in dict.fromkeys(map(origin_badge, material.profiles.values())):
        yield word, f"profiles: {words}"
    accuracy = material.comparison["accuracy_provenance"] if material.comparison else MEASURED
    if accuracy != MEASURED:
        yield "datasheet", f"accuracy: {accuracy}"
    yield from (("", WORLD_WORDS[world]) for world in dict.fromkeys(run.result["mode"] for run in material.runs))
    yield from (("", f"{server}: {profile.device.name}") for server, profile in material.profiles.items())


def _answers(material: Material) -> list[Answer]:
    """Return the terminal's answers, what to run where included."""
    first = answers(material.comparison, material.validation)
    return [*first, *short_plan(material.comparison, material.results)] if first and material.comparison else first


def _ranking(material: Material) -> Markup | None:
    """Draw the first answer as a chart."""
    worlds = charts.standings(material.comparison, material.validation)
    routers = [one.router for candidates in [*worlds.values()][-1:] for one in candidates]
    if len(routers) < 2:
        return None
    first = places(material.comparison, material.validation)
    colors = charts.router_colors([*_compared(material), *routers])
    floor = Promise.of(material.comparison["slo"]).floor if material.comparison else None
    accuracy = accuracy_measure(material.comparison["rows"] if material.comparison else [])
    return charts.to_svg(charts.ranking_chart(worlds, colors, accuracy, first, floor))


def _environment(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what the results were made with; if stages differ, of which ones it is."""
    stages = document.get("stages", {})
    texts_of = {stage: _environment_texts(its) for stage, its in stages.items()}
    lines = {}
    for name in dict.fromkeys(name for texts in texts_of.values() for name in texts):
        values: dict[str, list[str]] = {}
        for stage, texts in texts_of.items():
            values.setdefault(texts.get(name, NONE), []).append(stage)
        for value, of in values.items():
            lines[name if len(values) == 1 else f"{name} ({', '.join(of)})"] = value
    return lines


def _environment_texts(stage: Mapping[str, Any]) -> dict[str, str]:
    devices = "; ".join(
        ", ".join(f"{key} {_device_text(value)}" for key, value in device.items())
        for device in stage.get("devices", [])
    )
    return {
        "system": f"{stage.get('system')}, {stage.get('cores')} cores, Python {stage.get('python')}",
        "devices": devices or NONE,
        "packages": ", ".join(f"{name} {version or NONE}" for name, version in stage.get("packages", {}).items()),
        "code": stage.get("code", NONE),
        "seeds": ", ".join(f"{name} {value}" for name, value in stage.get("seeds", {}).items()) or NONE,
    }


def _device_text(value: object) -> str:
    """Return a sensor's answers in words, not as Python writes a dictionary."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_device_text(each)}" for key, each in value.items()) or NONE
    return NONE if value is None else str(value)


# -------------------------------------------------------------------------------------------------------------- worlds


def _validation(validation: ValidationDocument) -> dict[str, Any]:
    rows = rows_at_middle(validation["rows"])
    known = [row for row in rows if all(row["stages_s"].values())]
    errors, saturated = errors_tables(validation), saturation_tables(validation)
    unserved = [text for table in (*errors, *saturated) for text in table.warnings]
    return {
        "errors": errors,
        "notes": validation_notes(validation),
        "warnings": [*unserved, *far_apart_warnings(validation), *disturbance_warnings(validation)],
        "saturated": saturated,
        "stages": charts.to_svg(charts.stage_bars(known)) if known else None,
        "stages_ms": stages_table(known) if known else None,
        "load": rows[0]["load"] if rows else None,
    }


def _first_seeds(material: Material) -> list[StoredRun]:
    """Return one run a router and mode: at the middle load if there are several, of its lowest seed."""
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
    """Return the curves of the routers that ran in simulation and on executors."""
    worlds = {(curve.router, curve.world) for curve in curves}
    return [c for c in curves if {(c.router, "simulation"), (c.router, "hardware")} <= worlds]


def _latency(material: Material) -> dict[str, Markup | None]:
    curves, colors = _latency_curves(material), _colors(material)
    simulated = [curve for curve in curves if curve.world == "simulation"]
    return {
        name: charts.to_svg(charts.latency_distributions(of, colors)) if of else None
        for name, of in (("simulated", simulated), ("both", _in_both_worlds(curves)))
        if curves
    }


def _latencies_s(run: StoredRun) -> list[float]:
    columns = run.columns("requests", "arrived_ns", "finished_ns", "status")
    if not columns:
        return []
    start_ns = run.result["warmup_s"] * 1e9
    rows = zip(columns["arrived_ns"], columns["finished_ns"], columns["status"], strict=True)
    return [(done - came) / 1e9 for came, done, status in rows if status == "completed" and came >= start_ns]


def _trade_offs(material: Material) -> list[Markup]:
    rows = material.comparison["rows"] if material.comparison else []
    accuracy = accuracy_measure(rows)  # as the tables have it
    if all(accuracy.of(row)["mean"] is None for row in rows):
        return []
    costs = [MEASURES[name] for name in ("latency_mean_s", "energy_per_image_j")]
    return [charts.to_svg(charts.trade_offs(rows, accuracy, [cost], _colors(material))) for cost in costs]


def _downtimes(material: Material) -> Table | None:
    """Return the downtimes of every run whose result is kept."""
    runs = []
    for run in material.runs:
        repeat = f"repeat {run.repeat}" if run.repeat else ""
        parts = (WORLD_WORDS[run.result["mode"]], run.point, f"seed {run.result['seed']}", repeat)
        runs.append((", ".join(filter(None, parts)), run.result))
    return downtime_table(runs)


def _traces(material: Material) -> Iterator[dict[str, str]]:
    """Yield each charted run, batch by batch, as a file next to the page."""
    for run in _first_seeds(material):
        path = run.path / "timeline.json"
        if path.exists():
            yield {
                "title": f"{run.result['router']}, {WORLD_WORDS[run.result['mode']]}",
                "file": quote(path.relative_to(run.folder.path).as_posix()),
                "packed": "",
            }


def _pack(material: Material, traces: Sequence[dict[str, str]], room: int) -> None:
    """Pack the traces that fit, the smallest first, into the page (gzip and base64): a click opens them."""
    paths = [run.path / "timeline.json" for run in _first_seeds(material)]
    held = [b64encode(gzip.compress(path.read_bytes(), mtime=0)).decode() for path in paths if path.exists()]
    for trace, packed in sorted(zip(traces, held, strict=True), key=lambda each: len(each[1])):
        room -= len(packed) + len(' data-trace=""')
        if room >= 0:
            trace["packed"] = packed


def _timelines(material: Material) -> Iterator[dict[str, Any]]:
    """Yield the baseline's and the best router's run, simulated and on executors, enough to see how load is spread.

    Runs in both are also drawn over each other.
    """
    runs = _first_seeds(material)
    routers = list(dict.fromkeys(run.result["router"] for run in runs))
    best = [name for name in places(material.comparison, material.validation) if name in routers]
    for router in dict.fromkeys((*routers[:1], *[*best, *routers[-1:]][:1])):
        runs_of = [run for run in runs if run.result["router"] == router]
        by_world = {run.result["mode"]: telemetry for run in runs_of if (telemetry := _telemetry(run))}
        both = [by_world[world] for world in ("simulation", "hardware") if world in by_world]
        if both:
            yield {
                "router": router,
                "seeds": {WORLD_WORDS[run.result["mode"]]: run.result["seed"] for run in runs_of},
                "worlds": {WORLD_WORDS[mode]: charts.to_svg(charts.over_time(of)) for mode, of in by_world.items()},
                "both": charts.to_svg(charts.both_over_time(*both)) if len(both) > 1 else None,
            }


def _telemetry(run: StoredRun) -> list[charts.Telemetry]:
    columns = run.columns("telemetry", "server", "sampled_ns", "utilization", "power_w")
    if not columns:
        return []
    servers = []
    for index, server in enumerate(run.result["servers"]):
        rows = [row for row, of in enumerate(columns["server"]) if of == index]
        times_s = [columns["sampled_ns"][row] / 1e9 for row in rows]
        utilization = [columns["utilization"][row] for row in rows]
        power_w = [columns["power_w"][row] for row in rows]
        servers.append(charts.Telemetry(server["name"], times_s, utilization, power_w))
    return servers


def _training(material: Material) -> Iterator[dict[str, Any]]:
    """Yield the curves: gradients raise a reward, if the learner reports one; a direct search lowers a cost."""
    for kind, steps in material.training.items():
        curves, name = curves_of([steps]), made_name(kind)
        tells_reward = next(iter(curves)).startswith("reward")
        learns = "rewards" if tells_reward else "by gradients" if kind == PPO else "costs"
        yield {"router": name, "learns": learns, "svg": charts.to_svg(charts.training_curves({name: curves}))}


# ------------------------------------------------------------------------------------------------------------ profiles


def origin_badge(profile: Profile) -> tuple[str, str]:
    """Return the weaker origin of latency and power, for the color, and both in words: no model looks measured."""
    latency, power = profile.provenance, profile.power.provenance
    weakest = Provenance.weakest(latency, power)
    return (profile.origin,) * 2 if weakest == latency else (str(weakest), f"latency {profile.origin}, power {power}")


def _profiles(profiles: Mapping[str, Profile]) -> Iterator[dict[str, Any]]:
    """Yield each one's description; of the second of two equal ones only that. Charts of many may not fit."""
    seen: dict[str, str] = {}
    for server, profile in profiles.items():
        first = seen.setdefault(profile.to_yaml(), server)
        has_charts = first == server and len(seen) <= CHARTED_PROFILES
        yield _profile(server, profile, has_charts=has_charts) | {"same_as": "" if first == server else first}


def _profile(server: str, profile: Profile, *, has_charts: bool = True) -> dict[str, Any]:
    power, concurrency = profile.power.provenance, profile.concurrency.provenance
    return {
        "server": server,
        "device": profile.device.name,
        "badge": origin_badge(profile),
        "same_as": "",
        "promises_nothing": f"{PROMISES_NOTHING}." if profile.provenance == Provenance.DATASHEET else "",
        "tables": tables_of(profile),
        "sources": f"latency {profile.origin}, power {power}, concurrency {concurrency}",
        "omitted": profile.omitted,
        "charts": _profile_charts(_Drawable(profile.to_yaml(), profile)) if has_charts else None,
    }


@dataclass(frozen=True, slots=True)
class _Drawable:
    """A profile that is identified by its text."""

    text: str
    profile: Profile = field(compare=False)


@lru_cache(maxsize=16)
def _profile_charts(of: _Drawable) -> dict[str, Any]:
    """Return a profile's charts, cached: they take seconds to draw, and may be shown on several pages."""
    profile = of.profile
    facts: dict[str, Any] = {"batch": loaded_batch(profile), "at_once": loaded_at_once(profile)}
    facts["has_sms"] = any(curve.sm_utilization for curve in profile.latency)
    facts["is_always_busy"] = profile_charts.is_flat(profile)
    drawn = {name: charts.to_svg(figure) for name, figure in profile_charts.charts_of(profile).items()}
    return {**facts, "error_share": stated_solo_error(profile), **drawn}
