"""The published rows of the suite: Compass by its name, and every rule tuned for each case, at equal accuracy.

    python -m benchmarks suite                        # tunes what has no file, runs, and writes docs/results.md
    python -m benchmarks suite memory-tight           # one case; the others' rows stay as they are

A rule is tuned as by `slimsched train`, with the same budget for all, on seeds that the suite does not use. It is in
`scenarios/data/routers/CASE/`; a kind that can't keep the floor has a note there instead.
"""

from __future__ import annotations

import csv
import sys
import time  # noqa: TID251 - how long tuning took
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pandas as pd

from benchmarks.grid import ROOT
from benchmarks.study.pages import render, write_frames
from hw.telemetry import cpu_name
from kit.documents import write_text
from kit.errors import InputError, nearest
from policies.router_kinds import BASELINES, COMPASS
from policies.rules.compass import CompassRule, Numbers
from scenarios.files.bundled_files import RULE_SUFFIX, SHIPPED
from scenarios.files.router_files import write_rule
from scenarios.job import comparing_stage
from scenarios.job.comparing_stage import PUBLISHED, SuiteCase, SuiteFile
from scenarios.learn.evaluator import TuningParams
from scenarios.learn.tune import FloorError, tune_experiment
from scenarios.learn.tuned_files import announced, save_tuned, tuned_text
from scenarios.metrics.result_documents import Case, Figure, SuiteScore, rows_of
from scenarios.runs.folder import RunFolder
from scenarios.runs.router_planning import EqualRuns
from scenarios.show.comparison_table import counts_text, ratios, suite_table
from scenarios.show.tables import to_markdown

ROUTERS: Final = SHIPPED / "routers"
FAILED: Final = ".failed.txt"
DECISIONS, SEARCHES = 2_000_000, 2  # the same for all kinds and cases
OF_DRAWN: Final = ("ladder",)  # kinds that are tuned for drawn clusters: the best rule in most scenarios
PAGE: Final = ROOT / "docs" / "results.md"
ABLATION: Final = ROOT / "docs" / "data" / "ablation.csv"
FIGURES: Final[tuple[Figure, Figure]] = ("p99_s", "mean_s")


def make_suite(only: Sequence[str] = (), *, force: bool = False, tunes: bool = True) -> str:
    """Tune rules without a file, run every case's routers, write the published rows and their page.

    Args:
        only: cases; all by default.
        force: tune also rules with a file.
        tunes: whether to tune; otherwise only rules with a file are run.

    Raises:
        InputError: a case is unknown.
    """
    suite = comparing_stage.read_suite()
    names = comparing_stage.case_names(suite)
    for name in only:
        if name not in names:
            raise InputError("suite", "", f"{name!r} is not a case; {nearest(name, names)}")
    cases = {case.name: case for case in comparing_stage.published()} if PUBLISHED.is_file() else {}
    for name in [name for name in names if not only or name in only]:
        case = comparing_stage.load_case(suite, name)
        for kind in kinds_of(name) if tunes else ():
            _tune(case, kind, force=force)
        cases[name] = _run(case)
        _write([cases[name] for name in names if name in cases])  # an interrupted command keeps what it has
    return make_page(suite)


def make_page(suite: SuiteFile | None = None) -> str:
    """Write docs/results.md from the published rows; returns its beginning."""
    suite = suite or comparing_stage.read_suite()
    cases = comparing_stage.published()
    names = list(dict.fromkeys(name for case in cases for name in case.routers))
    score = SuiteScore(published=tuple(names), entrants=(COMPASS,), cases=cases)
    rules = [name for name in names if name != COMPASS]
    table = suite_table(score, COMPASS)
    rivals = {
        rule: {
            figure: counts_text(of_figure)
            for figure in FIGURES
            if (of_figure := [*ratios(score, COMPASS, rule, rules, figure)])
        }
        for rule in rules
    }
    missing = {case.name: [rule for rule in kinds_of(case.name) if rule not in case.routers] for case in cases}
    text = render(
        "results.md.j2", table=to_markdown(table), notes=table.notes, suite=suite, cases=cases,
        rivals={rule: of for rule, of in rivals.items() if of},
        missing={name: lacking for name, lacking in missing.items() if lacking}, processor=cpu_name(),
        ablation=pd.read_csv(ABLATION, keep_default_na=False), defaults=Numbers().model_dump(),
    )  # fmt: skip
    write_text(PAGE, text)
    return "\n".join(table.notes)


def ablate(only: Sequence[str] = (), folder: Path = ROOT / "runs" / "ablation") -> str:
    """Run Compass on the suite with each of its numbers at 0, and write the changes; returns the rows.

    Args:
        only: cases; all by default.
        folder: folder of the runs; the next call resumes there.
    """
    defaults = Numbers().model_dump()
    names = [f"no-{name}" for name in defaults if name != "level"]  # the dial
    run = RunFolder(folder)
    with run.opened():
        files = []
        for name in names:
            rule = CompassRule(numbers=Numbers.model_validate(defaults | {name.removeprefix("no-"): 0.0}))
            write_rule(run / f"{name}{RULE_SUFFIX}", rule)
            files.append(f"{name}={run / name}{RULE_SUFFIX}")
        score = comparing_stage.race([COMPASS, *files], run, only)
    rows = []
    for name in names:
        row = {"number": name.removeprefix("no-")}
        for among in ("scenarios", "drawn"):
            cases = tuple(case for case in score.cases if case.name.startswith("drawn-") == (among == "drawn"))
            for figure in FIGURES:
                compared = [*ratios(replace(score, cases=cases), name, COMPASS, (), figure)]
                lost = len(cases) - len(compared)
                text = [counts_text(compared)] if compared else []
                text += [f"{lost} not compared: floor missed, or images unserved"] if lost else []
                row[f"{among}_{figure.removesuffix('_s')}"] = "; ".join(text)
        rows.append(row)
    frame = pd.DataFrame(rows)
    if not only:
        write_frames(ABLATION.parent, {ABLATION.stem: frame})
    return str(frame.to_string(index=False))


def kinds_of(case: str) -> tuple[str, ...]:
    """Return the rules that are tuned for a case."""
    return OF_DRAWN if case.startswith("drawn-") else BASELINES


def file_of(case: str, kind: str) -> Path:
    """Return the path of the kind tuned for a case."""
    return ROUTERS / case / f"{kind}{RULE_SUFFIX}"


def _tune(case: SuiteCase, kind: str, *, force: bool) -> None:
    path = file_of(case.name, kind)
    failed = path.with_name(f"{kind}{FAILED}")
    if (path.is_file() or failed.is_file()) and not force:
        return
    scenario = case.experiment.scenario
    params = TuningParams(floor=case.floor, decisions=DECISIONS, searches=SEARCHES, seed=scenario.seed)

    def say(text: str) -> None:
        print(f"{case.name}: {text}", file=sys.stderr)

    began_s = time.monotonic()
    try:
        with announced(case.experiment, kind, params, say=say, quiet=False) as tell:
            tuned = tune_experiment(case.experiment, kind, params, on_progress=tell)
    except FloorError as error:
        path.unlink(missing_ok=True)
        write_text(failed, f"{error}\n")
        return
    failed.unlink(missing_ok=True)
    wall_s, command = time.monotonic() - began_s, f"python -m benchmarks suite {case.name}"
    save_tuned(path, tuned, case.experiment, scenario.name, wall_s=wall_s, command=command)
    say(tuned_text(tuned))


def _run(case: SuiteCase) -> Case:
    runs, result = (
        EqualRuns(case.experiment, case.seeds),
        Case(case.name, case.floor, comparing_stage.bound_s(case), {}),
    )
    files = {kind: file_of(case.name, kind) for kind in BASELINES}
    routers = {COMPASS: COMPASS, **{kind: f"{kind}={path}" for kind, path in files.items() if path.is_file()}}
    for label, router in routers.items():
        result = replace(result, routers={**result.routers, label: runs.at_floor(router, case.floor)})
        own = result.routers[label]
        print(f"{case.name}: {label} {1e3 * own.mean('mean_s'):.2f}, {1e3 * own.mean('p99_s'):.2f} ms", flush=True)
    return result


def _write(cases: Sequence[Case]) -> None:
    rows = rows_of(cases)
    with PUBLISHED.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
