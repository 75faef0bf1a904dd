"""Pages of HTML: a run folder's report, one profile's curves, and the parts that they are made of.

The layout and the colors of a page (`page`) are in `templates/page.html.j2`.

A report (`build_report`) reads only files of the run folder, and shows what they contain. A part whose files are
missing is left out, and the page states that.
"""

from __future__ import annotations

import gzip
import os
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from hw.networks.accuracy_table import MEASURED
from kit import strict
from kit.documents import read_text, write_text
from kit.errors import InputError
from policies.vocabulary import Provenance
from scenarios.experiment.scenario_building import SCENARIO_FILE
from scenarios.files.bundled_files import PPO, made_name
from scenarios.files.scenario_reading import read_profile
from scenarios.metrics.fidelity import ValidationDocument, middle_load
from scenarios.metrics.metric_catalogue import MEASURES
from scenarios.metrics.router_comparison import ComparisonDocument, Promise, accuracy_measure
from scenarios.metrics.run_result import Result
from scenarios.runs.folder import RunFolder
from scenarios.runs.run_store import StoredRun, load_point, read_runs
from scenarios.show import charts, profile_charts
from scenarios.show.answers import answers
from scenarios.show.charts import Steps, curves_of, save_curves, trainings_in
from scenarios.show.command_tables import PROMISES_NOTHING, tables_of
from scenarios.show.comparison_table import comparison_table
from scenarios.show.plan_table import short_plan
from scenarios.show.profile_charts import loaded_at_once, loaded_batch, stated_solo_error
from scenarios.show.result_words import downtime_table
from scenarios.show.summary_table import compared_classes, places, summary_table, validated_classes
from scenarios.show.tables import NONE, PLUS_MINUS, Answer, Column, Table
from scenarios.show.validation_table import (
    disturbance_warnings,
    errors_tables,
    far_apart_warnings,
    rows_at_middle,
    saturation_tables,
    stages_table,
    validation_notes,
)
from scenarios.show.wording import environment, say
from scenarios.terminal.screen import visible_text
from sim.device_profile import Profile

# ---------------------------------------------------------------------------------------------------------------- pages


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, and what to see in it."""

    figure: Figure | Markup
    caption: str

    @property
    def svg(self) -> Markup:
        """The chart as an element; it may be drawn already."""
        return charts.to_svg(self.figure) if isinstance(self.figure, Figure) else self.figure


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of a page.

    Attributes:
        notes: sentences below its blocks; `warnings`: those above them.
        badge: a word behind the title, and how it is colored.
        is_folded: whether it is opened by a click.
    """

    title: str
    blocks: Sequence[Table | Chart | Section] = ()
    notes: Sequence[str | Markup] = ()
    warnings: Sequence[str] = ()
    badge: tuple[str, str] = ("", "")
    is_folded: bool = False


def page(
    title: str,
    sections: Sequence[Section],
    *,
    badges: Sequence[tuple[str, str]] = (),
    answers: Sequence[Answer] = (),
    top: Sequence[Table | Chart] = (),
) -> str:
    """Render a page: what HTML does not allow in a name is written out; the only program is allowed by its hash.

    Args:
        sections: those with nothing in them are left out.
        badges: below the title: how each is colored, and its words.
        top: what is below the answers.
    """
    script = files("scenarios.show").joinpath("templates/page.js").read_text(encoding="utf-8")
    templates = environment()
    templates.filters |= {
        "interval_small": _interval,
        "prose": _prose,
        "anchor": lambda title: title.lower().replace(" ", "-"),
        "sha256": lambda text: b64encode(sha256(text.encode()).digest()).decode(),
    }
    text = templates.get_template("page.html.j2").render(
        title=title,
        sections=[section for section in sections if section.blocks or section.notes],
        badges=badges,
        answers=answers,
        top=top,
        script=Markup(script),  # noqa: S704 - our own
    )
    return visible_text(text)


def _prose(text: str | Markup) -> Markup:
    """Return a sentence of the terminal's as HTML: its keys and commands as code."""
    escaped = str(escape(text)).replace(PLUS_MINUS, " \u00b1")
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escaped))  # noqa: S704 - escaped


def _interval(cell: str) -> Markup:
    """Return a cell's text, with the half-width of its interval in small letters."""
    mean, sign, half = cell.partition(PLUS_MINUS)
    return Markup("{} <small>±{}</small>").format(mean, half) if sign else Markup("{}").format(mean)


# ----------------------------------------------------------------------------------------------------------- the report


MAX_TRACES = 600_000  # bytes of packed timelines in a page, which can still be mailed
SIDE_WORDS: Final = dict(zip(("simulation", "executors"), charts.SIDES, strict=True))
CHARTED_PROFILES = 4  # of some 220 kB each
PERFETTO: Final = Markup('<a href="https://ui.perfetto.dev/" target="_blank" rel="noopener"{} data-title="{}">{}</a>')


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

    @cached_property
    def compared(self) -> list[str]:
        """The compared routers."""
        return [row["router"] for row in self.comparison["rows"]] if self.comparison else []

    @cached_property
    def first_runs(self) -> list[StoredRun]:
        """One run a router and mode: at the middle load if there are several, of its lowest seed."""
        rows = self.validation["rows"] if self.validation else []
        point = load_point(middle_load(row["load"] for row in rows))
        runs: dict[tuple[str, str], StoredRun] = {}
        for run in sorted(self.runs, key=lambda run: (run.point != point, run.result["seed"], run.repeat)):
            if run.point in (point, ""):
                runs.setdefault((run.result["router"], run.result["mode"]), run)
        rank = {router: index for index, router in enumerate(self.compared)}
        return sorted(
            runs.values(),
            key=lambda run: (rank.get(run.result["router"], len(rank)), run.result["mode"] != "simulation"),
        )

    @cached_property
    def colors(self) -> dict[str, str]:
        """By router."""
        return charts.router_colors(self.compared + [run.result["router"] for run in self.first_runs])


def build_report(run_folder: RunFolder | os.PathLike[str] | str) -> Path:
    """Write `report.html` into a run folder; returns its path.

    Raises:
        InputError: this is not a run folder, or there is nothing in it to report yet.
    """
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    path = folder.path
    if not path.is_dir() or (not folder.is_flagged and any(path.iterdir())):
        problem = "is not a run folder that serves" if path.is_dir() else "no such run folder"
        raise InputError(str(path), "", f"{problem}; `slimsched run` and `slimsched compare --out` make one")
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
    curves = _latency_curves(material)
    real = {curve.router for curve in curves if curve.side == charts.SIDES[1]}
    if not others and real:
        curves = [curve for curve in curves if curve.router in real]
        charts.save(charts.latency_distributions(curves, material.colors), picture)
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
    parts: dict[str, Sequence[Table | Chart | Section]] = {
        "Routers in simulation": list(_in_simulation(comparison, validation)) if comparison else [],
        "Simulation and executors": list(_on_executors(validation)) if validation else [],
        "Latency": list(_latency(material)),
        "Accuracy against cost": list(_trade_offs(material)),
        "Servers over time": list(_over_time(material)),
        "Training": list(_training(material)),
        "Devices": list(_profiles(material.profiles)),
    }
    missing = [title.lower() for title, blocks in parts.items() if not blocks]
    notes = [f"Not in this run folder: {'; '.join(missing)}."] if missing else []
    facts = _environment(material.environment)
    made_with = [Table([Column("results of"), Column("this run folder", is_text=True)], facts)] if facts else []
    return page(
        str(material.scenario.get("name", "run")),
        [*(Section(title, blocks) for title, blocks in parts.items()), Section("Environment", made_with, notes)],
        badges=list(_badges(material)),
        answers=_answers(material),
        top=list(_summary(material)),
    )


def profile_page(profile: Profile) -> str:
    """Return a page of one profile's curves and the paper's Figures 1-3."""
    return page(profile.name, [Section("Curves", [_profile(profile.name, profile)])])


# ---------------------------------------------------------------------------------------------------------------- head


def _badges(material: Material) -> Iterator[tuple[str, str]]:
    for color, text in dict.fromkeys(map(origin_badge, material.profiles.values())):
        yield color, f"profiles: {text}"
    accuracy = material.comparison["accuracy_provenance"] if material.comparison else MEASURED
    if accuracy != MEASURED:
        yield "datasheet", f"accuracy: {accuracy}"
    yield from (("", SIDE_WORDS[side]) for side in dict.fromkeys(run.result["mode"] for run in material.runs))
    yield from (("", f"{server}: {profile.device.name}") for server, profile in material.profiles.items())


def _answers(material: Material) -> list[Answer]:
    """Return the terminal's answers, what to run where included."""
    first = answers(material.comparison, material.validation)
    return [*first, *short_plan(material.comparison, material.results)] if first and material.comparison else first


def _summary(material: Material) -> Iterator[Table | Chart]:
    """Yield the terminal's table, the first answer as a chart, and what each class of requests got."""
    comparison, validation = material.comparison, material.validation
    if summary := summary_table(comparison, validation):
        yield summary
    points = charts.standings(comparison, validation)
    routers = list(dict.fromkeys(point.router for point in points))
    if len(routers) > 1:
        colors = charts.router_colors([*material.compared, *routers])
        floor = Promise.of(comparison["slo"]).floor if comparison else None
        accuracy = accuracy_measure(comparison["rows"] if comparison else [])
        chart = charts.ranking_chart(points, colors, accuracy, places(comparison, validation), floor)
        yield Chart(chart, say("report", "ranking", validation is not None))
    yield from filter(None, (compared_classes(comparison), validated_classes(validation)))


def _environment(document: Mapping[str, Any]) -> list[list[str]]:
    """Return what the results were made with, a row a fact; if stages differ, of which ones it is."""
    stages_of: dict[tuple[str, str], list[str]] = {}
    for stage, facts in document.get("stages", {}).items():
        for name, value in facts.items():
            stages_of.setdefault((name, _in_words(value)), []).append(stage)
    values = Counter(name for name, _ in stages_of)
    return [
        [name if values[name] == 1 else f"{name} ({', '.join(stages)})", text]
        for (name, text), stages in sorted(stages_of.items(), key=lambda each: [*values].index(each[0][0]))
    ]


def _in_words(value: object) -> str:
    """Return a value in words, not as Python writes a dictionary or a list."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_in_words(item)}" for key, item in value.items()) or NONE
    if isinstance(value, list | tuple):
        return "; ".join(map(_in_words, value)) or NONE
    return NONE if value is None else str(value)


# ------------------------------------------------------------------------------------------------------------ sections


def _in_simulation(comparison: ComparisonDocument, validation: ValidationDocument | None) -> Iterator[Table | Section]:
    table = comparison_table(comparison)
    if validation and (simulated := summary_table(comparison, None)):
        yield simulated
    yield Table((), (), warnings=table.warnings)
    yield Section("All numbers of the comparison", [replace(table, warnings=())], is_folded=True)


def _on_executors(validation: ValidationDocument) -> Iterator[Table | Chart | Section]:
    tables = [*errors_tables(validation), *saturation_tables(validation)]
    unserved = [text for table in tables for text in table.warnings]
    warnings = [*unserved, *far_apart_warnings(validation), *disturbance_warnings(validation)]
    yield Table((), (), warnings=warnings)
    plain = [replace(table, warnings=()) for table in tables]
    yield Section("Predictions, measurements and errors", plain, validation_notes(validation), is_folded=True)
    rows = [row for row in rows_at_middle(validation["rows"]) if all(row["stages_s"].values())]
    if rows:
        yield Chart(charts.stage_bars(rows), say("report", "stages", rows[0]["load"]))
        yield Section("The same in milliseconds", [stages_table(rows)], is_folded=True)


def _latency(material: Material) -> Iterator[Chart]:
    if curves := _latency_curves(material):
        has_both = len({curve.side for curve in curves}) > 1
        yield Chart(charts.latency_distributions(curves, material.colors), say("report", "latencies", has_both))


def _latency_curves(material: Material) -> list[charts.Latencies]:
    runs = [(run.result["router"], SIDE_WORDS[run.result["mode"]], _latencies_s(run)) for run in material.first_runs]
    return [charts.Latencies(*run) for run in runs if run[-1]]


def _latencies_s(run: StoredRun) -> list[float]:
    columns = run.columns("requests", "arrived_ns", "finished_ns", "status")
    if not columns:
        return []
    start_ns = run.result["warmup_s"] * 1e9
    return [
        (finished_ns - arrived_ns) / 1e9
        for arrived_ns, finished_ns, status in zip(*columns.values(), strict=True)
        if status == "completed" and arrived_ns >= start_ns
    ]


def _trade_offs(material: Material) -> Iterator[Chart]:
    rows = material.comparison["rows"] if material.comparison else []
    accuracy = accuracy_measure(rows)  # as the tables have it
    if any(accuracy.of(row)["mean"] is not None for row in rows):
        for name in ("latency_mean_s", "energy_per_image_j"):
            figure = charts.trade_offs(rows, accuracy, [MEASURES[name]], material.colors)
            yield Chart(figure, say("report", name))


def _over_time(material: Material) -> Iterator[Table | Chart]:
    """Yield downtimes, the telemetry of the baseline's and the best router's runs, and links to all timelines."""
    downtimes = []
    for run in material.runs:
        repeat = f"repeat {run.repeat}" if run.repeat else ""
        parts = (SIDE_WORDS[run.result["mode"]], run.point, f"seed {run.result['seed']}", repeat)
        downtimes.append((", ".join(filter(None, parts)), run.result))
    if table := downtime_table(downtimes):
        yield table
    routers = list(dict.fromkeys(run.result["router"] for run in material.first_runs))
    best = [name for name in places(material.comparison, material.validation) if name in routers]
    for router in dict.fromkeys((*routers[:1], *[*best, *routers[-1:]][:1])):
        runs = {SIDE_WORDS[run.result["mode"]]: run for run in material.first_runs if run.result["router"] == router}
        sides = {side: telemetry for side, run in runs.items() if (telemetry := _telemetry(run))}
        if sides:
            seeds = {side: runs[side].result["seed"] for side in sides}
            yield Chart(charts.over_time(sides), say("report", "over_time", router, seeds))
    traced = [run for run in material.first_runs if (run.path / "timeline.json").exists()]
    if traced:
        yield Table((), (), notes=_timelines(traced))


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


def _timelines(runs: Sequence[StoredRun]) -> list[Markup]:
    """Return links that open runs batch by batch: by a click if they fit into the page (gzip and base64), and files."""
    packed = [b64encode(gzip.compress((run.path / "timeline.json").read_bytes(), mtime=0)).decode() for run in runs]
    room, embedded = MAX_TRACES, set[int]()
    for number in sorted(range(len(runs)), key=lambda number: len(packed[number])):
        room -= len(packed[number])
        if room >= 0:
            embedded.add(number)
    links, files = [], []
    for number, run in enumerate(runs):
        title = f"{run.result['router']}, {SIDE_WORDS[run.result['mode']]}"
        trace = Markup(' data-trace="{}"').format(packed[number]) if number in embedded else ""
        links.append(PERFETTO.format(trace, title, title))
        href = quote((run.path / "timeline.json").relative_to(run.folder.path).as_posix())
        files.append(Markup('<a href="{}">{}</a>').format(href, title))
    opened = Markup(
        "Every batch and decision of a run on a timeline, opened in Perfetto (ui.perfetto.dev, which shows it in your "
        "browser and sends it nowhere; it may ask whether you trust this page): {}."
    )
    dropped = Markup("If Perfetto opens empty: drop the run's file on it. The files are next to this page: {}.")
    return [opened.format(Markup(", ").join(links)), dropped.format(Markup(", ").join(files))]


def _training(material: Material) -> Iterator[Chart]:
    """Yield the curves: gradients raise a reward, if the learner reports one; a direct search lowers a cost."""
    for kind, steps in material.training.items():
        curves, name = curves_of([steps]), made_name(kind)
        tells_reward = next(iter(curves)).startswith("reward")
        learns = "rewards" if tells_reward else "by gradients" if kind == PPO else "costs"
        yield Chart(charts.training_curves({name: curves}), say("report", "training", name, learns))


# ------------------------------------------------------------------------------------------------------------ profiles


def origin_badge(profile: Profile) -> tuple[str, str]:
    """Return the weaker origin of latency and power, for the color, and both in words: no model looks measured."""
    latency, power = profile.provenance, profile.power.provenance
    weakest = Provenance.weakest(latency, power)
    return (profile.origin,) * 2 if weakest == latency else (str(weakest), f"latency {profile.origin}, power {power}")


def _profiles(profiles: Mapping[str, Profile]) -> Iterator[Section]:
    """Yield each one's description; of the second of two equal ones only that. Charts of many may not fit."""
    owners: dict[str, str] = {}
    for server, profile in profiles.items():
        first = owners.setdefault(profile.to_yaml(), server)
        if first == server:
            yield _profile(server, profile, has_charts=len(owners) <= CHARTED_PROFILES)
        else:
            yield replace(_profile(server, profile, has_charts=False), blocks=(), warnings=(),
                          notes=[f"{server} has the same profile as {first}."])  # fmt: skip


def _profile(server: str, profile: Profile, *, has_charts: bool = True) -> Section:
    power, concurrency = profile.power.provenance, profile.concurrency.provenance
    sources = f"latency {profile.origin}, power {power}, concurrency {concurrency}"
    notes = [f"Sources: {sources}; shares of the memory bandwidth modelled from shapes."]
    if profile.omitted:
        notes.append(f"Left out: {'; '.join(profile.omitted)}.")
    if not has_charts:
        command = f"slimsched profile show profiles/{server}.yaml --plot {server}.html"
        notes.append(f"The page has no room for its charts: `{command}` draws them.")
    return Section(
        f"{server}: {profile.device.name}",
        [*tables_of(profile), *(_profile_charts(profile.to_yaml()) if has_charts else ())],
        notes,
        [f"{PROMISES_NOTHING}."] if profile.provenance == Provenance.DATASHEET else [],
        origin_badge(profile),
    )


@lru_cache(maxsize=16)
def _profile_charts(text: str) -> list[Chart]:
    """Return a profile's charts, cached by its file's text: they take seconds to draw, and may be on several pages."""
    profile = Profile.from_yaml(text, "")
    figures = profile_charts.charts_of(profile)
    if profile_charts.is_flat(profile):  # a CPU's utilization is uninformative
        del figures["figure1"]
    facts = {
        "batch": loaded_batch(profile),
        "at_once": loaded_at_once(profile),
        "has_sms": any(curve.sm_utilization for curve in profile.latency),
        "error_share": stated_solo_error(profile),
    }
    return [Chart(charts.to_svg(figure), say("report", name, facts)) for name, figure in figures.items()]
