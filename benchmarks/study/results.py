"""The results: runs what is missing, then writes the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.study import pictures
from benchmarks.study.cases import WINDOWED, Case, Contender, experiments, read_case, scenario_files
from benchmarks.study.findings import Found, Made, Notes, Row, judge, searches_in
from benchmarks.study.page import results_page
from benchmarks.study.runs import Fluid, collect, fluid_of, point_of, run_missing, versions
from benchmarks.study.sources import file_digest
from benchmarks.study.tuned_rows import outdated
from hw.host.limits import core_count
from kit.documents import read_json, write_text
from kit.parallel import Jobs
from policies.vocabulary import Provenance
from scenarios.files.router_names import made_by
from scenarios.show import charts

ROOT: Final = Path(__file__).parents[2]
SCENARIOS: Final = ROOT / "scenarios"
TABLES: Final = ("ablation", "carried", "faster", "fronts", "margins")  # `ablation.json` and so on, beside the page
REMARKS: Final = "results-remarks.md"  # there, too


def make_results(
    *,
    folder: Path = SCENARIOS,
    out: Path = Path("runs/results"),
    page: Path | None = None,
    only: Sequence[str] = (),
    seeds: int | None = None,
    jobs: Jobs | None = None,
    quiet: bool = False,
) -> tuple[Path, int]:
    """Everything; returns the page and how many runs had to be made.

    Args:
        folder: of the scenario files, with `data/routers/` in it.
        page: by default `docs/results.md` for all of it, and a page in `out` for a part.

    Raises:
        InputError: a scenario or a router's file is wrong, or `only` names none.
        WorkError: a run can't go on.
    """
    is_part = bool(only) or seeds is not None
    target = page or (out / "results.md" if is_part else ROOT / "docs" / "results.md")
    tables, _ = _tables(target.parent, folder)
    margins = tables.get("margins", {"rows": ()})["rows"]
    cases = experiments([read_case(path, seeds, margins) for path in scenario_files(folder, tuple(only))])
    number = jobs or core_count()
    made = run_missing(cases, out, number, quiet=quiet)
    fluid = fluid_of(cases, out, number, quiet=quiet)
    found = [found_in(case, out, fluid[case.name], tables.get("carried", {"rows": ()})["rows"]) for case in cases]
    write_text(target, results_page(found, notes_of(cases, found, target)))
    return target, made


def found_in(case: Case, out: Path, fluid: Fluid, carried: Sequence[Mapping[str, Any]] = ()) -> Found:
    """One scenario's stored runs, with the bound beside each router, and its rows of what is carried."""
    stored, rows = collect(case, out), []
    files = {each.label: file_digest(each.file) for each in case.contenders if each.file is not None}
    for contender in case.contenders:
        results = stored.get(contender.label)
        if not results:
            continue
        point = point_of(results)
        rows.append(
            Row(
                label=contender.label,
                group=contender.group,
                results=tuple(results),
                bound_energy_j=None if point is None else fluid.energy_j.get(point),
                bound_latency_s=None if point is None else fluid.latency_s.get(point),
                searches=_searches(contender),
            )
        )
    prior = case.world.accuracy.prior
    return Found(
        name=case.name,
        file=case.path.name,
        remark=case.remark,
        load=case.load,
        is_paper=case.is_paper,
        seeds=case.seeds,
        duration_s=case.scenario.duration_s,
        warmup_s=case.scenario.warmup_s,
        floor=case.scenario.tuning.floor,
        accuracies=(min(prior.top1.values()), max(prior.top1.values())),
        rows=tuple(rows),
        missing=case.missing,
        oracle=fluid.oracle,
        carried=tuple(
            row for row in carried if row["scenario"] == case.name and row.get("file", "") == files.get(row["router"])
        ),
    )


def _searches(contender: Contender) -> tuple[Mapping[str, Any], ...]:
    """Of its tuning; who is told goals while it serves, or has a margin, was tuned without."""
    return () if contender.file is None or contender.group in WINDOWED else searches_in(made_by(contender.file))


def _tables(folder: Path, scenarios: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """What studies have left beside the page, by name; and of what scenarios of another state those are left out."""
    made = {name: found for name in TABLES if (found := _read(folder / f"{name}.json"))}
    changed = {name: others for name, table in made.items() if (others := outdated(table, scenarios))}
    return {name: table for name, table in made.items() if name not in changed}, changed


def notes_of(
    cases: Sequence[Case],
    found: Sequence[Found],
    target: Path,
) -> Notes:
    """What stands beside the tables; the pictures are drawn here."""
    from hw.telemetry import cpu_name

    remarks = target.parent / REMARKS
    tables, changed = _tables(target.parent, cases[0].path.parent)
    fronts = tables.get("fronts")
    return Notes(
        machine={"processor": cpu_name(), "cores": str(core_count())},
        versions=versions(),
        wall_s=sum(result["wall_s"] for each in found for row in each.rows for result in row.results),
        provenance=str(Provenance.weakest(*(case.world.provenance for case in cases))),
        ablation=tables.get("ablation"),
        faster=tables.get("faster"),
        fronts=fronts,
        outdated=changed,
        made=tuple(_made(cases)),
        remarks=remarks.read_text(encoding="utf-8") if remarks.is_file() else "",
        pictures=_pictures(found, target.parent),
        front_picture=None if fronts is None else _front_picture(fronts, target.parent),
    )


def _made(cases: Sequence[Case]) -> list[Made]:
    """Each router's file once."""
    found: dict[Path, Made] = {}
    for case in cases:
        for contender in case.contenders:
            if contender.file is not None and contender.file not in found:
                named = contender.file.relative_to(case.path.parent).as_posix()
                found[contender.file] = Made(case.name, contender.label, named, made_by(contender.file))
    return list(found.values())


def _read(path: Path) -> dict[str, Any] | None:
    """What a study has left; None where it was not made."""
    if not path.is_file():
        return None
    found: dict[str, Any] = read_json(path)
    return found


def _front_picture(fronts: Mapping[str, Any], folder: Path) -> str:
    name = "images/results-energy.svg"
    charts.save(pictures.energy_chart(fronts["rows"]), folder / name)
    return name


def _pictures(found: Sequence[Found], folder: Path) -> dict[str, str]:
    main = [each for each in found if not each.is_paper and each.rows]
    verdicts = [judge(each) for each in main]
    drawn: dict[str, str] = {}
    if any(verdict.versus is not None for verdict in verdicts):
        charts.save(pictures.gains_chart(verdicts), folder / "images" / "results-gains.svg")
        drawn[pictures.GAINS] = "images/results-gains.svg"
    if main:
        charts.save(pictures.fronts_chart(main), folder / "images" / "results-fronts.svg")
        drawn[pictures.FRONTS] = "images/results-fronts.svg"
    return drawn
