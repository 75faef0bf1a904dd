"""`python -m scenarios.study`: runs what is missing, then writes the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from policies.errors import InputError
from policies.vocabulary import Provenance
from scenarios.files.documents import read_json, write_text
from scenarios.runs.parallel import core_count
from scenarios.show import charts
from scenarios.study import pictures
from scenarios.study.cases import Case, experiments, made_by, read_case, scenario_files
from scenarios.study.findings import Found, Made, Notes, Row, judge
from scenarios.study.page import results_page
from scenarios.study.runs import Fluid, collect, fluid_of, point_of, run_missing, versions
from scenarios.terminal.exits import exit_code

ROOT: Final = Path(__file__).parents[2]
SCENARIOS: Final = ROOT / "scenarios"
ABLATION, REMARKS = "ablation.json", "results-remarks.md"  # beside the page


def make_results(
    *,
    folder: Path = SCENARIOS,
    out: Path = Path("runs/results"),
    page: Path | None = None,
    only: Sequence[str] = (),
    seeds: int | None = None,
    jobs: int | None = None,
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
    cases = experiments([read_case(path, seeds) for path in scenario_files(folder, tuple(only))])
    is_part = bool(only) or seeds is not None
    target = page or (out / "results.md" if is_part else ROOT / "docs" / "results.md")
    number = jobs or core_count()
    made = run_missing(cases, out, number, quiet=quiet)
    fluid = fluid_of(cases, out, number, quiet=quiet)
    found = [found_in(case, out, fluid[case.name]) for case in cases]
    write_text(target, results_page(found, notes_of(cases, found, target)))
    return target, made


def found_in(case: Case, out: Path, fluid: Fluid) -> Found:
    """One scenario's stored runs, with the bound beside each router."""
    stored, rows = collect(case, out), []
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
            )
        )
    prior = case.world.accuracy.prior
    return Found(
        name=case.name,
        file=case.path.name,
        remark=case.remark,
        is_moving=case.is_moving,
        is_paper=case.is_paper,
        seeds=case.seeds,
        duration_s=case.scenario.duration_s,
        warmup_s=case.scenario.warmup_s,
        floor=case.scenario.tuning.floor,
        accuracies=(min(prior.top1.values()), max(prior.top1.values())),
        rows=tuple(rows),
        missing=case.missing,
        oracle=fluid.oracle,
    )


def notes_of(cases: Sequence[Case], found: Sequence[Found], target: Path) -> Notes:
    """What stands beside the tables; the pictures are drawn here."""
    from hw.telemetry import cpu_name

    ablation, remarks = target.parent / ABLATION, target.parent / REMARKS
    return Notes(
        machine={"processor": cpu_name(), "cores": str(core_count())},
        versions=versions(),
        wall_s=sum(result["wall_s"] for each in found for row in each.rows for result in row.results),
        provenance=str(Provenance.weakest(*(case.world.provenance for case in cases))),
        ablation=read_json(ablation) if ablation.is_file() else None,
        made=tuple(_made(cases)),
        remarks=remarks.read_text(encoding="utf-8") if remarks.is_file() else "",
        pictures=_pictures(found, target.parent),
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scenarios.study", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these scenarios; the page goes to --out")
    parser.add_argument("--seeds", type=int, metavar="N", help="the first N of each; the page goes to --out")
    parser.add_argument("--out", type=Path, default=Path("runs/results"), metavar="DIR", help="where runs are stored")
    parser.add_argument("--page", type=Path, metavar="FILE", help="docs/results.md by default")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs beside each other; one a core by default")
    parser.add_argument("--scenarios", type=Path, default=SCENARIOS, metavar="DIR", help="with data/routers/ in it")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args(argv)

    def work() -> int:
        for flag in ("seeds", "jobs"):
            if (value := getattr(given, flag)) is not None and value < 1:
                raise InputError(f"--{flag}", "", f"{value}; allowed are whole numbers from 1")
        if given.out.is_file():
            raise InputError("--out", "", f"{given.out}: this is a file; name a folder")
        if given.page is not None and given.page.is_dir():
            raise InputError("--page", "", f"{given.page}: this is a folder; name a file")
        page, made = make_results(
            folder=given.scenarios, out=given.out, page=given.page, only=given.only, seeds=given.seeds,
            jobs=given.jobs, quiet=given.quiet,
        )  # fmt: skip
        sys.stdout.write(f"{made} runs made; {page}\n")
        return 0

    return exit_code("results", work)


if __name__ == "__main__":
    sys.exit(main())
