"""The live scenarios on executors: which router wins, whether simulation predicted it, and by how much.

    slimsched run scenarios/live/bursts.yaml        # one after the other, in any order, in any number of sessions
    python -m benchmarks live                       # after each: docs/data/live.json, its CSV files, page and chart

The JSON file stores the runs' figures, so that the page can be regenerated without them. A scenario without a finished
run here keeps its earlier measurement; one that was never measured is listed as missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, Final, Literal, cast

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.grid import ROOT, Row
from benchmarks.study.pages import columns, render, rows_of, write_frames
from kit.documents import read_json, write_json, write_text
from kit.errors import InputError
from policies.router_kinds import COMPASS
from policies.rules.rule_params import POINT
from scenarios.experiment.scenario_building import default_folder
from scenarios.files.bundled_files import PPO, RULE_SUFFIX, made_name
from scenarios.files.router_files import made_by
from scenarios.files.scenario_reading import load_scenario
from scenarios.metrics.failure_signs import leaves_many
from scenarios.metrics.fidelity import PREDICTED, PairDocument, ValidationDocument, farthest_stage, was_stopped
from scenarios.metrics.metric_catalogue import MEASURES, measures
from scenarios.metrics.router_comparison import P99, ComparisonDocument, Promise, Ranking, SideName, by_run, validated
from scenarios.metrics.run_result import cpu_share
from scenarios.metrics.slo import ABOUT, ROUNDING
from scenarios.metrics.statistics import MeanInterval, estimate, least_inside, paired_difference, paired_ratio
from scenarios.runs.folder import RunFolder
from scenarios.show.charts import GREY, WIDTH, canvas, joint_legend, plain_log_ticks, router_colors, save
from scenarios.show.validation_table import disturbance_warnings, emulated_devices

SCHEMA: Final = "slimsched.live/1"
FOCAL: Final = made_name(COMPASS)
OURS: Final = (FOCAL, COMPASS, PPO)
"""Routers learned here: not rivals of each other."""
FELT: Final = measures("slo_attainment", "latency_p99_s", "expected_accuracy", "energy_per_image_j", "latency_mean_s")
"""Measures that a user notices first; then the mean."""
_ACCURACY: Final = MEASURES["expected_accuracy"]
SIDES: Final[tuple[SideName, SideName]] = ("simulated", "executors")
SaidSo = Literal["yes", "no", "open"]
Measured = dict[str, Any]
"""One scenario's figures: as much of its validation as the page needs, in the validation's form (`rows`, `pairs`).

`accuracy` is, by router, the expected one in the simulated comparison, over `seeds` seeds. `floor` and `p99_limit_s`
are the SLO; `devices` the emulated ones, empty for real ones; `searches` the fewest by which a router was tuned;
`warnings` effects in the executors' figures and in no simulation; `made_with` the validation's environment."""


# --------------------------------------------------------------------------------------------------------- what is kept


def make_page(files: Sequence[Path], runs: Path, docs: Path) -> str:
    """Collect, store and write; returns the winners, and what is missing.

    Raises:
        InputError: a scenario is missing, or a scenario, validation or the stored file can't be read.
    """
    if not files:
        raise InputError("--scenarios", "", "no *.yaml there; name the folder of the live scenarios, scenarios/live")
    path = docs / "data" / "live.json"
    measured, missing = collect(files, runs, known_in(path))
    write_json(path, {"schema": SCHEMA, "scenarios": measured})
    summary = pd.DataFrame([summary_row(name, each) for name, each in measured.items()])
    routers = pd.DataFrame([row for name, each in measured.items() for row in router_rows(name, each)])
    worse = pd.DataFrame([row for name, each in measured.items() for row in worse_rows(name, each)])
    ranges = pd.DataFrame([row for name, each in measured.items() for row in range_rows(name, each)])
    frames = {"live-summary": summary, "live-routers": routers, "live-worse": worse, "live-ranges": ranges}
    write_frames(docs / "data", frames)
    facts = {"summary": summary, "worse": worse, "ranges": ranges, "missing": missing, "found": measured}
    facts["inside"] = _inside(ranges)
    outcomes = {name: _outcomes(each) for name, each in measured.items()}
    text = render("live.md.j2", **facts, outcomes=outcomes, focal=FOCAL, shipped=COMPASS)
    write_text(docs / "live.md", text)
    save(p99_chart(measured), docs / "images" / "live.svg")
    lines = [f"{r['scenario']}: {r['wins_on_executors']} (said so: {r['said_so']})" for r in rows_of(summary)]
    return "\n".join([*lines, *missing])


def collect(files: Sequence[Path], runs: Path, stored: Mapping[str, Measured]) -> tuple[dict[str, Measured], list[str]]:
    """Return these scenarios' measurements by name, new or stored; and a sentence for each that has none.

    Raises:
        InputError: a scenario or validation is unreadable.
    """
    by_name: dict[str, Measured] = {}
    missing = []
    for file in files:
        scenario, resolved = load_scenario(file), file.resolve()
        label = (resolved.relative_to(ROOT) if resolved.is_relative_to(ROOT) else file).as_posix()
        folder = RunFolder(runs / default_folder(scenario).name)
        now = measured_in(folder, label) or stored.get(scenario.name)
        if now is not None:
            by_name[scenario.name] = now
        else:
            state = "begun and not finished" if folder.path.exists() else "not measured yet"
            missing.append(f"`{scenario.name}` is {state}: `slimsched run {label}`")
    return by_name, missing


def known_in(path: Path) -> dict[str, Measured]:
    """Read the stored measurements; raises `InputError` if the file is not valid."""
    if not path.exists():
        return {}
    document = read_json(path)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(str(path), "schema", f"must be {SCHEMA!r}; delete the file, or name other docs")
    return cast(dict[str, Measured], document["scenarios"])


def measured_in(folder: RunFolder, file: str) -> Measured | None:
    """Return a run folder's measurements; None if its validation is not finished.

    Raises:
        InputError: the validation was changed since it was made, or was run at several loads.
    """
    if not all((folder / name).exists() for name in ("comparison.json", "validation.json")):
        return None
    validation: ValidationDocument = folder.read_json("validation.json")
    comparison: ComparisonDocument = folder.read_json("comparison.json")
    if was_stopped(validation):
        return None
    if len({row["load"] for row in validation["rows"]}) > 1:
        problem = "was run at several loads, of which this page shows none; leave validate.loads out"
        raise InputError(str(folder / "validation.json"), "", problem)
    searches = [made_by(path).get("searches") for path in folder.path.glob(f"*{RULE_SUFFIX}")]
    slo = validation["pairs"][0]["executors"]["slo"]
    keys = ("router", "load", "served", "cpu", "coverage", "error_pct", "stages_s")
    return {
        "file": file,
        "devices": emulated_devices(validation),
        "floor": slo["floor"],
        "p99_limit_s": slo["p99_limit_s"],
        "accuracy": {row["router"]: _ACCURACY.of(row) for row in comparison["rows"]},
        "seeds": max(len(row["seeds"]) for row in comparison["rows"]),
        "searches": min((count for count in searches if count), default=0),
        "made_with": _made_with(folder.environments.get("validate", {})),
        "warnings": disturbance_warnings(validation),
        "rows": [{key: row[key] for key in keys if key in row} for row in cast(list[Any], validation["rows"])],
        "pairs": [_less_of(pair) for pair in validation["pairs"]],
    }


def _made_with(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine and the code, without versions of packages."""
    devices = [device["name"] for device in environment.get("devices", [])]
    host = {"host": ", ".join(devices)} if devices else {}
    return {**host, **{key: environment[key] for key in ("python", "system", "cores", "code") if key in environment}}


def _less_of(pair: PairDocument) -> dict[str, Any]:
    """Return only the parts that the page shows."""
    names = ("router", "seed", "load", "rate_img_s", "repeat", "not_applicable")
    part: dict[str, Any] = {key: value for key, value in pair.items() if key in names}
    for side in SIDES:
        part[side] = {}
        for measure in FELT:
            section = part[side]
            for key in measure.keys[:-1]:
                section = section.setdefault(key, {})
            section[measure.keys[-1]] = measure.of(pair[side])
    return part


# ------------------------------------------------------------------------------------------------------------ who wins


def outcome(measured: Measured, side: SideName) -> Ranking:
    """Rank routers in one world (`scenarios.metrics.router_comparison`); the comparison decides which keep the
    floor."""
    long_run = {router: interval["mean"] for router, interval in measured["accuracy"].items()}
    promise = Promise(P99, measured["floor"])
    return validated(cast(ValidationDocument, measured), side, promise=promise, long_run=long_run)


def _outcomes(measured: Measured) -> tuple[Ranking, Ranking]:
    return outcome(measured, "simulated"), outcome(measured, "executors")


def shown(ranking: Ranking) -> str | None:
    """Return `tuned:compass`, `tie: tuned:compass, ppo`; None if fewer than two can win."""
    if ranking.winner is not None:
        return ranking.winner.router
    return f"tie: {', '.join(ranking.first)}" if ranking.tied else None


def said_so(simulated: Ranking, real: Ranking) -> SaidSo:
    """Return whether simulation predicted the winner on executors.

    `open` if in simulation or on executors the named router is not significantly different from the other's fastest, or
    simulation could judge fewer than two; `no` only if simulation was certain, and wrong.
    """
    if simulated.winner is not None and real.winner is not None and simulated.first == real.first:
        return "yes"
    is_certain = len(simulated.able) > 1 and set(simulated.first).isdisjoint(real.first)
    return "no" if is_certain else "open"


def change_over(name: str, ranking: Ranking, baseline: str | None, router: str = FOCAL) -> Row:
    """Return its p99 change from the baseline's, in percent, with the interval; unknown if either can't win there."""
    one, other = ranking.of(router), ranking.of(baseline)
    lead = paired_ratio([], []) if one is None or other is None else one.lead(other)
    parts = {"": lead["ratio"], "_low": lead["low"], "_high": lead["high"]}
    return {f"{name}{part}": None if ratio is None else 100 * (ratio - 1) for part, ratio in parts.items()}


def _estimate(measured: Measured, router: str, side: SideName, name: str) -> MeanInterval:
    values = by_run(_pairs_of(measured, router), side, MEASURES[name])
    return estimate([None] if values is None else list(values.values()))


def _pairs_of(measured: Measured, router: str) -> list[PairDocument]:
    return [pair for pair in measured["pairs"] if pair["router"] == router]


# -------------------------------------------------------------------------------------------------------------- frames


def summary_row(name: str, measured: Measured) -> Row:
    """Return both winners, and Compass's p99 against the fastest rule that keeps the floor on executors."""
    simulated, real = _outcomes(measured)
    baseline = next((one.router for one in real.able if one.router not in OURS), None)
    cpu = [cpu_share(row["cpu"]) for row in measured["rows"] if row.get("cpu") is not None]
    return {
        "scenario": name,
        "devices": measured["devices"] or "real",
        "wins_in_simulation": shown(simulated),
        "wins_on_executors": shown(real),
        "said_so": said_so(simulated, real),
        "best_baseline": baseline,
        **change_over("p99_predicted_pct", simulated, baseline),
        **change_over("p99_measured_pct", real, baseline),
        **change_over("shipped_p99_predicted_pct", simulated, baseline, COMPASS),
        **change_over("shipped_p99_measured_pct", real, baseline, COMPASS),
        "cpu_pct": 100 * max(cpu) if cpu else None,
        "winner_less_accurate_points": _points_less(real),
    }


def _points_less(real: Ranking) -> float | None:
    """Return by how many points the fastest trails the next (or Compass, if that is beaten); None if comparable."""
    if len(real.able) < 2:
        return None
    best, last = real.able[0], real.of(FOCAL)
    other = real.able[1] if best.router == FOCAL or last is None else last
    less = other.accuracy - best.accuracy
    return less / POINT if less > ABOUT + ROUNDING else None


def router_rows(name: str, measured: Measured) -> list[Row]:
    """Return a row a router, in the order of executors' p99; each measure in simulation and on executors."""
    rows = []
    for row in measured["rows"]:
        router = row["router"]
        figures: Row = {"scenario": name, "router": router}
        figures |= _scaled("accuracy_over_seeds", _ACCURACY, measured["accuracy"].get(router, estimate([])))
        for measure in FELT:
            for side, label in zip(SIDES, ("predicted", "measured"), strict=True):
                figures |= _scaled(f"{measure.name}_{label}", measure, _estimate(measured, router, side, measure.name))
        figures["is_flagged"] = any(leaves_many(served) for served in row["served"].values())
        rows.append((_estimate(measured, router, "executors", P99.name)["mean"], figures))
    return [row for _, row in sorted(rows, key=lambda each: (each[0] is None, each[0]))]


def range_rows(name: str, measured: Measured) -> list[Row]:
    """Return a row for each router that is judged: how many measured values are inside their ranges, and the bias."""
    rows = []
    for row in measured["rows"]:
        if any(leaves_many(served) for served in row["served"].values()) or not row.get("coverage", {}).get(P99.stem):
            continue
        figures: Row = {"scenario": name, "router": row["router"]}
        for measure in PREDICTED:
            coverage = row["coverage"][measure.stem]
            figures[f"{measure.stem}_inside"], figures[f"{measure.stem}_of"] = coverage["inside"], coverage["of"]
            figures[f"{measure.stem}_bias_pct"] = row["error_pct"][measure.stem]
        stage, longer_s = farthest_stage(row) or ("", None)
        rows.append(figures | {"stage": stage, "stage_longer_ms": None if longer_s is None else 1000 * longer_s})
    return rows


def _inside(ranges: pd.DataFrame) -> dict[str, int]:
    """Return by measure the number of judged values inside, of all, and the least number that honest ranges have."""
    counts = {measure.stem: int(ranges.get(f"{measure.stem}_inside", pd.Series()).sum()) for measure in PREDICTED}
    of = int(ranges.get(f"{P99.stem}_of", pd.Series()).sum())
    return {**counts, "of": of, "least": least_inside(of)}


def _scaled(name: str, measure: Any, interval: MeanInterval) -> Row:
    """Return percent if the measure is shown so; seconds stay seconds."""
    scale = measure.scale if measure.unit == "%" else 1.0
    mean, half = (None if value is None else scale * value for value in (interval["mean"], interval["ci95"]))
    title = f"{name}_pct" if measure.unit == "%" else name
    return columns(title, MeanInterval(mean=mean, ci95=half))


def worse_rows(name: str, measured: Measured, router: str = FOCAL) -> list[Row]:
    """Return measures in which, on executors, another router with the floor kept is significantly better.

    The paired 95 % interval decides.
    """
    rows = []
    for baseline in (one.router for one in outcome(measured, "executors").able if one.router not in OURS):
        for measure in FELT:
            mine, other = (by_run(_pairs_of(measured, each), "executors", measure) for each in (router, baseline))
            if mine is None or other is None:
                continue
            common = sorted(mine.keys() & other.keys())
            difference = paired_difference([mine[run] for run in common], [other[run] for run in common])
            mean = difference["difference"]["mean"]
            if difference["differs"] and mean is not None and (mean < 0) == (measure.better == "higher"):
                means = (estimate(list(each.values()))["mean"] or 0.0 for each in (mine, other))
                values = dict(zip(("compass", "baselines"), (measure.scale * each for each in means), strict=True))
                rows.append(
                    {"scenario": name, "baseline": baseline, "measure": measure.title, **values, "unit": measure.unit}
                )
    return rows


# --------------------------------------------------------------------------------------------------------------- chart


def p99_chart(measured: Mapping[str, Measured]) -> Figure:
    """Draw the p99 of every run, simulated and on executors: a point on the line is predicted exactly."""
    pairs = [pair for each in measured.values() for pair in each["pairs"]]
    with canvas(WIDTH, 0.75 * WIDTH) as (figure, axes):
        for router, color in router_colors([*dict.fromkeys(pair["router"] for pair in pairs)]).items():
            of = [pair for pair in pairs if pair["router"] == router]
            simulated, real = ([1000 * (P99.of(pair[side]) or nan) for pair in of] for side in SIDES)
            axes.loglog(simulated, real, "o", color=color, alpha=0.6, markersize=4, label=router)
        axes.axline((100, 100), (1000, 1000), color=GREY, linewidth=0.8)
        axes.set(xlabel="p99 latency in simulation, ms", ylabel="p99 latency on executors, ms")
        for axis in (axes.xaxis, axes.yaxis):
            plain_log_ticks(axis)
        joint_legend(figure, [axes], columns=3)
    return figure
