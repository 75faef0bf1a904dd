"""`python -m benchmarks.study`: the one door to what is made of the shipped scenarios."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from benchmarks.study import (
    ablation,
    carried,
    faster,
    fronts,
    jobs_results,
    live,
    margins,
    paper_table,
    results,
    tune_all,
)
from benchmarks.study.page import ablation_table
from benchmarks.study.tuned_rows import Asked
from hw.host.limits import core_count
from kit.documents import read_json
from policies.registry import TUNED
from scenarios.commands.shared import spread
from scenarios.show.table import to_markdown
from scenarios.terminal.exits import exit_code, terminated_as_interrupted
from scenarios.terminal.flags import Parser, add_ray, duration_s, new_file, new_folder, positive

PROG: Final = "python -m benchmarks.study"
Work = Callable[[argparse.Namespace], int]


def _results(parser: Parser) -> Work:
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these scenarios; the page goes to --out")
    parser.add_argument("--seeds", type=positive, metavar="N", help="the first N of each; the page goes to --out")
    parser.add_argument(
        "--out", type=new_folder, default="runs/results", metavar="DIR", help="where runs are stored (runs/results)"
    )
    parser.add_argument("--page", type=new_file, metavar="FILE", help="docs/results.md by default")
    _jobs(parser, "runs")
    add_ray(parser)
    _scenarios(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")

    def work(given: argparse.Namespace) -> int:
        with spread(given, lambda: given.jobs or core_count()) as jobs:
            page, made = results.make_results(
                folder=given.scenarios,
                out=given.out,
                page=given.page,
                only=given.only,
                seeds=given.seeds,
                jobs=jobs,
                quiet=given.quiet,
            )
        sys.stdout.write(f"{made} runs made; {page}\n")
        return 0

    return work


def _tune(parser: Parser) -> Work:
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these scenarios")
    kinds = tune_all.KINDS
    parser.add_argument("--router", nargs="+", default=kinds, metavar="KIND", help=f"these of {', '.join(kinds)}")
    _scenarios(parser)
    parser.add_argument("--force", action="store_true", help="also what is up to date")
    _jobs(parser, "routers")
    parser.add_argument("--dry-run", action="store_true", help="only tell the commands")

    def work(given: argparse.Namespace) -> int:
        found = tune_all.tunings(given.scenarios, given.only, given.router, force=given.force)
        with terminated_as_interrupted():
            tune_all.tune_all(found, jobs=given.jobs or core_count(), only_told=given.dry_run)
        return 0

    return work


def _ablation(parser: Parser) -> Work:
    _tuned_rows(parser, decisions=5_000_000, searches=3, file="docs/ablation.json")

    def work(given: argparse.Namespace) -> int:
        ablation.make_rows(_asked(given), given.json)
        sys.stdout.write(to_markdown(ablation_table(read_json(given.json))) + "\n")
        return 0

    return work


def _faster(parser: Parser) -> Work:
    parser.add_argument("--router", choices=TUNED, default="ladder", metavar="KIND", help="what is tuned (ladder)")
    _tuned_rows(parser, decisions=2_000_000, searches=2, file="docs/faster.json")

    def work(given: argparse.Namespace) -> int:
        faster.make_rows(_asked(given), given.router, given.json)
        rows = read_json(given.json)["rows"]
        sys.stdout.write("\n".join([to_markdown(faster.faster_table(rows)), "", *faster.verdicts(rows), ""]))
        return 0

    return work


def _fronts(parser: Parser) -> Work:
    text = f"what is tuned ({' '.join(fronts.KINDS)})"
    parser.add_argument("--router", choices=TUNED, nargs="+", default=list(fronts.KINDS), metavar="KIND", help=text)
    _tuned_rows(parser, decisions=5_000_000, searches=1, file="docs/fronts.json")

    def work(given: argparse.Namespace) -> int:
        fronts.make_rows(_asked(given), given.router, given.json)
        sys.stdout.write(to_markdown(fronts.front_table(read_json(given.json))) + "\n")
        return 0

    return work


def _tuned_rows(parser: Parser, *, decisions: int, searches: int, file: str) -> None:
    """What all tables take whose rows are tuned."""
    text = "scenario files (YAML), with a floor to keep"
    parser.add_argument("scenario", type=Path, nargs="+", metavar="SCENARIO", help=text)
    text = f"of a search ({decisions:,})"
    parser.add_argument("--decisions", type=positive, default=decisions, metavar="N", help=text)
    text = f"of each row ({searches})"
    parser.add_argument("--searches", type=positive, default=searches, metavar="N", help=text)
    text = "of the full-length runs, such as 60s; the scenario's by default"
    parser.add_argument("--duration", type=duration_s, metavar="TIME", help=text)
    text = f"for the rows; an interrupted run goes on with the next one ({file})"
    parser.add_argument("--json", type=new_file, default=file, metavar="FILE", help=text)


def _carried(parser: Parser) -> Work:
    text = "the first so many of each scenario's comparison (3)"
    parser.add_argument("--seeds", type=positive, default=3, metavar="N", help=text)
    return _kept_promises(parser, carried.make_rows, "seeds", "docs/carried.json")


def _margins(parser: Parser) -> Work:
    parser.add_argument("--runs", type=positive, default=5, metavar="N", help="that each margin is tried on (5)")
    return _kept_promises(parser, margins.make_rows, "runs", "docs/margins.json")


def _kept_promises(parser: Parser, make_rows: Callable[..., None], count: str, file: str) -> Work:
    """What the tables take whose rows tell how a tuned router keeps what is promised, each on `count` runs."""
    text = "scenario files (YAML) that promise a floor and a limit of the p99"
    parser.add_argument("scenario", type=Path, nargs="+", metavar="SCENARIO", help=text)
    text = f"for the rows; an interrupted run goes on with the next one ({file})"
    parser.add_argument("--json", type=new_file, default=file, metavar="FILE", help=text)
    _jobs(parser, "routers")

    def work(given: argparse.Namespace) -> int:
        with terminated_as_interrupted():
            make_rows(given.scenario, TUNED, getattr(given, count), given.json, given.jobs or core_count())
        return 0

    return work


def _asked(given: argparse.Namespace) -> Asked:
    return Asked(given.scenario, given.decisions, given.searches, given.duration)


def _live(parser: Parser) -> Work:
    folder = results.SCENARIOS / "live"
    parser.add_argument("--scenarios", type=Path, default=folder, metavar="DIR", help="the live scenarios' files")
    parser.add_argument("--runs", type=Path, default="runs", metavar="DIR", help="where run folders are (runs)")
    text = "for the figures, which are kept there (docs/live.json)"
    parser.add_argument("--json", type=new_file, default="docs/live.json", metavar="FILE", help=text)
    parser.add_argument("--page", type=new_file, default="docs/live.md", metavar="FILE", help="docs/live.md by default")

    def work(given: argparse.Namespace) -> int:
        files = sorted(given.scenarios.glob("*.yaml"))
        sys.stdout.write(live.make_page(files, given.runs, given.json, given.page) + "\n")
        return 0

    return work


def _jobs_results(parser: Parser) -> Work:
    effort = jobs_results.Effort()
    text = "of training jobs, as `slimsched jobs import` makes it"
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help=text)
    for flag, what in (
        ("epochs", "of each training"),
        ("episodes", "windows before each update"),
        ("windows", "of each judgement"),
    ):
        most: int = getattr(effort, flag)
        parser.add_argument(f"--{flag}", type=positive, default=most, metavar="N", help=f"{what} ({most})")
    text = "for what is trained and judged; an interrupted command goes on there (runs/jobs-results)"
    parser.add_argument("--out", type=new_folder, default="runs/jobs-results", metavar="DIR", help=text)
    page = "docs/jobs-results.md"
    parser.add_argument("--page", type=new_file, default=page, metavar="FILE", help=f"{page} by default")
    _jobs(parser, "windows")

    def work(given: argparse.Namespace) -> int:
        effort = jobs_results.Effort(given.epochs, given.episodes, given.windows, given.jobs or core_count())
        with terminated_as_interrupted():
            jobs_results.make_page(given.trace, given.out, given.page, effort)
        sys.stdout.write(f"{given.page}\n")
        return 0

    return work


def _paper_table(parser: Parser) -> Work:
    def work(given: argparse.Namespace) -> int:
        sys.stdout.write(paper_table.text())
        return 0

    return work


def _jobs(parser: Parser, what: str) -> None:
    parser.add_argument("--jobs", type=positive, metavar="N", help=f"{what} beside each other; one a core by default")


def _scenarios(parser: Parser) -> None:
    text = "the scenario files, with data/routers/ in it"
    parser.add_argument("--scenarios", type=Path, default=results.SCENARIOS, metavar="DIR", help=text)


COMMANDS: Final[dict[str, tuple[ModuleType, Callable[[Parser], Work]]]] = {
    "results": (results, _results),
    "tune": (tune_all, _tune),
    "ablation": (ablation, _ablation),
    "carried": (carried, _carried),
    "faster": (faster, _faster),
    "jobs": (jobs_results, _jobs_results),
    "live": (live, _live),
    "margins": (margins, _margins),
    "fronts": (fronts, _fronts),
    "paper-table": (paper_table, _paper_table),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of them; returns the exit code."""

    def work() -> int:
        words = sys.argv[1:] if argv is None else argv
        parser = Parser(prog=PROG, description=__doc__)
        top = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
        for name, (module, add) in COMMANDS.items():
            about = (module.__doc__ or "").strip()
            command = top.add_parser(name, help=about.splitlines()[0], description=about)
            command.set_defaults(parser=command, work=add(command))
        if words and not words[0].startswith("-"):
            parser.require_word("COMMAND", words[0], COMMANDS)
        given, unknown = parser.parse_known_args(words)
        given.parser.require_none(unknown)
        code: int = given.work(given)
        return code

    return exit_code(PROG, work)


if __name__ == "__main__":
    sys.exit(main())
