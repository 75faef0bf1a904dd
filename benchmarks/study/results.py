"""The project's results: every main scenario and the paper's, all routers, at least ten seeds, and the page about them.

    python -m benchmarks results               # what is not kept yet, docs/data/*.csv, docs/results.md and its pictures

Runs are kept in `runs/results`; a page is made of the CSV files alone. A part (`--only`, `--seeds`) has both there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from benchmarks.grid import ROOT, Row
from benchmarks.study import judge, pages, tables
from benchmarks.study.candidates import (
    GROUPS,
    SCENARIOS,
    TOLD,
    ScenarioCase,
    experiments,
    read_case,
    scenario_files,
)
from benchmarks.study.judge import JudgedScenario, columns, known
from benchmarks.study.paper import paper_row
from benchmarks.study.runs import bounds_of, corner_of, results_of, run_missing, versions
from hw.host.limits import core_count
from kit.parallel import Jobs
from policies.vocabulary import Provenance
from scenarios.files.router_names import made_by
from scenarios.metrics.catalogue import MEASURES
from scenarios.metrics.result import Result
from scenarios.metrics.served import LIMIT
from scenarios.metrics.signatures import tally, tally_text
from scenarios.metrics.statistics import change_pct, estimate, widened

SHOWN: Final = (
    *("expected_accuracy", "accuracy", "latency_mean_s", "latency_p99_s", "latency_std_s", "slo_attainment"),
    *("energy_per_image_j", "energy_dynamic_j", "moves_per_image"),
    *("energy_j", "energy_std_j", "gpu_var", "gpu_var_std"),  # of the paper's tables
)


def make_results(
    *,
    scenarios: Path = SCENARIOS,
    out: Path = Path("runs/results"),
    docs: Path = ROOT / "docs",
    only: Sequence[str] = (),
    seeds: int | None = None,
    jobs: Jobs = 1,
    quiet: bool = False,
) -> str:
    """Run what is missing, then write the data and the page of them.

    Args:
        scenarios: the folder of the scenario files, with `data/routers/` in it.
        out: where runs are kept; a part (`only`, `seeds`) has its page there, too.
        docs: where the page of all goes, and whose `data/` has what other studies made.
        only: names of scenarios.
        seeds: the first so many of each.

    Raises:
        InputError: a scenario or a router's file is wrong, or `only` names none.
        WorkError: a run can't go on.
    """
    target = out if only or seeds is not None else docs
    cases = experiments([read_case(path, seeds) for path in scenario_files(scenarios, only)])
    count = run_missing(cases, out, jobs, quiet=quiet)
    bounds = {row["scenario"]: row for row in bounds_of(cases, out, jobs, quiet=quiet)}
    parts = [found_in(case, results_of(case, out), bounds[case.name]) for case in cases]
    pages.write_frames(target / "data", {**frames_of(cases, parts, bounds), **tables.frames(docs / "data", cases)})
    pages.results_page(target)
    return f"{count} runs made; {target / 'results.md'}"


def found_in(case: ScenarioCase, results: Mapping[str, list[Result]], bounds: Row) -> JudgedScenario:
    """One scenario's kept runs as frames, with the bound beside each router."""
    groups = {each.label: each.group for each in case.candidates}
    files = {each.label: each.file for each in case.candidates if each.file is not None and each.group != TOLD}
    spreads = {label: judge.spreads_in(made_by(file)) for label, file in files.items()}
    labels = [each.label for each in case.candidates if each.label in results]
    runs = pd.DataFrame([_run_row(label, result) for label in labels for result in results[label]])
    limits = {tuple(least[:2]): least[2:] for least in bounds["bounds"]}
    rows = []
    for label in labels:
        least = limits.get(corner_of(results[label]) or (), (None, None))
        row = _router_row(label, results[label], runs[runs["router"] == label], spreads.get(label, {}), least)
        rows.append({"scenario": case.name, "router": label, "group": groups[label], **row})
    top1 = [100 * value for value in case.world.accuracy.prior.top1.values()]
    return JudgedScenario(
        name=case.name,
        load=case.load,
        floor=case.scenario.tuning.floor,
        runs=runs,
        routers=pd.DataFrame(rows, index=pd.Index(labels)),
        spreads=spreads,
        is_of_energy=case.scenario.tuning.objective == "energy",
        extremes_pct=(min(top1), max(top1)),
    )


def _run_row(label: str, result: Result) -> Row:
    images, shares = result["images"], result["shares"]
    figures = {name: MEASURES[name].of(result) for name in SHOWN}
    lost = images["failed"] + images["in_flight"]  # or never finished
    row = {"router": label, "seed": result["seed"], **figures, "arrived": images["arrived"], "lost": lost}
    return {
        **row,
        "completed": images["completed"],
        "wall_s": result["wall_s"],
        "unserved": shares["unserved"],
        "failed": shares["failed"],
    }


def _router_row(
    label: str,
    results: Sequence[Result],
    runs: pd.DataFrame,
    spreads: Mapping[str, float],
    least: Sequence[float | None],
) -> Row:
    """Means over seeds; intervals of latency hold how far the router's searches lie apart."""
    mean = {name: estimate(known(runs[name]))["mean"] for name in SHOWN}
    row: Row = {"seeds": len(results), "attainment_pct": _times(mean["slo_attainment"], 100)}
    for name, measure in (("p99_ms", "latency_p99_s"), ("mean_ms", "latency_mean_s")):
        interval = widened(estimate(known(1000 * runs[measure])), spreads.get(measure, 0.0))
        row |= columns(name, interval)
    worst_s = runs["latency_mean_s"]
    unserved = [estimate(known(runs[name]))["mean"] or 0.0 for name in ("unserved", "failed")]
    return row | {
        "accuracy_pct": _times(mean["expected_accuracy"], 100),
        "label_accuracy_pct": _times(mean["accuracy"], 100),
        "energy_j": mean["energy_per_image_j"],
        "std_ms": _times(mean["latency_std_s"], 1000),
        "worst_ms": None if worst_s.isna().any() else 1000 * worst_s.max(),
        "dynamic_j": mean["energy_dynamic_j"],
        "energy_over_bound_pct": change_pct(mean["energy_dynamic_j"], least[0]),
        "latency_over_bound_pct": change_pct(mean["latency_mean_s"], least[1]),
        "lost_images": int(runs["lost"].sum()),
        "moves": mean["moves_per_image"],
        "signs": tally_text(tally(result.get("signatures") for result in results), len(results)),
        "is_flagged": max(unserved) > LIMIT,
        "lost_share": runs["lost"].sum() / runs["arrived"].sum(),
    }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


# -------------------------------------------------------------------------------------------------------------- frames


def frames_of(
    cases: Sequence[ScenarioCase], parts: Sequence[JudgedScenario], bounds: Mapping[str, Row]
) -> dict[str, pd.DataFrame]:
    """By name, what goes into `results-NAME.csv`."""
    main = [each for each in parts if not each.name.startswith("paper")]
    replicas = [each for each in parts if each.name.startswith("paper")]
    judged = {each.name: judge.judge(each) for each in main}
    versus = [row for row, _ in judged.values()]
    for each in main:
        row = judge.compare_told(each)
        versus += [] if row is None else [{"scenario": each.name, "load": each.load, "group": TOLD, **row}]
    losses = [{"scenario": name, **goal} for name, (_, goals) in judged.items() for goal in goals]
    return {
        "results-scenarios": pd.DataFrame([_scenario_row(case, bounds[case.name]) for case in cases]),
        "results-missing": pd.DataFrame(
            [row for case in cases for row in _missing_rows(case)], columns=["scenario", "kind", "why"]
        ),
        "results-routers": pd.concat([_ordered(each.routers) for each in parts]),
        "results-versus": pd.DataFrame(versus, columns=list(judge.VERSUS)),
        "results-losses": pd.DataFrame(losses, columns=["scenario", *judge.LOSSES]),
        "results-paper": pd.DataFrame([row for each in replicas for row in _paper_rows(each)]),
        "results-checks": pd.DataFrame([row for each in replicas for row in judge.replica_checks(each)]),
        "results-tuning": pd.DataFrame([row for case in cases for row in _tuning_rows(case)]).drop_duplicates("file"),
        "results-machine": pd.DataFrame([_machine(cases, parts)]),
    }


def _missing_rows(case: ScenarioCase) -> list[Row]:
    split = ((text.partition(": ")[0], text) for text in case.missing)
    return [{"scenario": case.name, "kind": kind, "why": text} for kind, text in split]


def _ordered(routers: pd.DataFrame) -> pd.DataFrame:
    """By group, then the quickest first."""
    places = routers["group"].map(GROUPS.index)
    return routers.assign(place=places).sort_values(["place", "mean_ms"], kind="stable").drop(columns="place")


def _scenario_row(case: ScenarioCase, bounds: Row) -> Row:
    return {
        "scenario": case.name,
        "load": case.load,
        "seeds": len(case.seeds),
        "first_seed": case.seeds[0],
        "duration_s": case.scenario.duration_s,
        "warmup_s": case.scenario.warmup_s,
        "floor_pct": _times(case.scenario.tuning.floor, 100),
        "foresight_accuracy_pct": _times(bounds["oracle"], 100),
    }


def _paper_rows(judged: JudgedScenario) -> list[Row]:
    """The layout of Tables III to V; under each router that the paper has, what the paper reports."""
    rows = []
    for label in judged.runs["router"].unique():
        runs = judged.runs[judged.runs["router"] == label]
        mean = {name: estimate(known(runs[name]))["mean"] for name in (*SHOWN, "completed")}
        row = {"scenario": judged.name, "router": label, "source": "here"}
        row |= {"accuracy_pct": _times(mean["accuracy"], 100), "latency_s": mean["latency_mean_s"]}
        row |= {"latency_std_s": mean["latency_std_s"], "energy_j": mean["energy_j"]}
        row |= {name: mean[name] for name in ("energy_std_j", "gpu_var", "gpu_var_std")}
        row["images"] = mean["completed"]
        for name, measure in (("latency_pct", "latency_mean_s"), ("energy_pct", "energy_j")):
            row[name] = judge.change_mean(judged, label, "random", measure)
        rows.append(row)
        if (reported := paper_row(label)) is not None:
            rows.append(
                {
                    "scenario": judged.name,
                    "router": label,
                    "source": f"the paper, Table {reported.table}",
                    **{key: getattr(reported, key) for key in _REPORTED},
                    "latency_pct": reported.latency_change_pct,
                    "energy_pct": reported.energy_change_pct,
                }
            )
    return rows


_REPORTED: Final = (
    *("accuracy_pct", "latency_s", "latency_std_s", "energy_j", "energy_std_j", "gpu_var", "gpu_var_std", "images"),
)


def _tuning_rows(case: ScenarioCase) -> list[Row]:
    """What each router's file says of how it was made."""
    rows = []
    for candidate in case.candidates:
        if candidate.file is not None and candidate.group != TOLD:
            origin = made_by(candidate.file)
            searches = judge.searches_in(origin)
            rows.append(
                {
                    "scenario": case.name,
                    "router": candidate.label,
                    "searches": len(searches),
                    "decisions": origin.get("decisions"),
                    "matching_decisions": origin.get("matching_decisions"),
                    "decisions_in_all": origin.get("decisions_in_all"),
                    "wall_s": origin.get("wall_s"),
                    "accuracy_pct": _times(origin.get("accuracy"), 100),
                    "mean_ms": _times(origin.get("latency_mean_s"), 1000),
                    "p99_ms": _times(origin.get("latency_p99_s"), 1000),
                    "searches_mean_ms": " ".join(f"{1000 * each['mean_s']:.4g}" for each in searches),
                    "file": candidate.file.relative_to(case.path.parent).as_posix(),
                    "command": origin.get("command"),
                }
            )
    return rows


def _machine(cases: Sequence[ScenarioCase], parts: Sequence[JudgedScenario]) -> Row:
    from hw.telemetry import cpu_name

    return {
        "processor": cpu_name(),
        "cores": core_count(),
        **versions(),
        "runs": sum(len(each.runs) for each in parts),
        "runs_min": sum(each.runs["wall_s"].sum() for each in parts) / 60,
        "provenance": str(Provenance.weakest(*(case.world.provenance for case in cases))),
    }
