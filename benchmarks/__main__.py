"""`python -m benchmarks NAME ...`: the one door to the studies. Each says what it makes with `--help`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, CycloptsError, Parameter

from benchmarks.grid import GridRow, Row, kept_rows, make_rows
from benchmarks.marked import fill
from benchmarks.study import (
    advised_slurm,
    headroom,
    learned,
    live,
    pages,
    paper_seeds,
    paper_table,
    results,
    rltune,
    scale,
    tables,
    tune,
)
from benchmarks.study.candidates import SCENARIOS, scenario_files
from benchmarks.study.paper import is_replica
from benchmarks.study.tables import DATA, Budget
from hw.host.limits import core_count
from kit.errors import InputError
from kit.units import parse_duration
from policies.registry import TUNED
from scenarios.terminal.exits import exit_code, terminated_as_interrupted
from slimsched.working import spread

PROG: Final = "python -m benchmarks"
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]
app = App(name=PROG, help=__doc__, version_flags=(), result_action="return_value")


@app.command(name="results")
def _results(
    *,
    only: Names = (),
    seeds: int | None = None,
    scenarios: Path = SCENARIOS,
    out: Path = Path("runs/results"),
    jobs: int | None = None,
    ray: str | None = None,
    quiet: bool = False,
) -> None:
    """Run what is missing of every main scenario and the paper's; write docs/results.md and docs/data (`make results`).

    Args:
        only: these scenarios; page and data go to --out.
        seeds: the first so many of each; page and data go to --out.
        scenarios: the folder of the scenario files, with data/routers/ in it.
        out: where runs are kept.
        jobs: processes beside each other; one a core by default.
        ray: spread over the Ray cluster at this address; `auto` for the one that runs here.
        quiet: no progress.
    """
    with spread(ray, jobs, core_count) as where:
        said = results.make_results(scenarios=scenarios, out=out, only=only, seeds=seeds, jobs=where, quiet=quiet)
    print(said)


@app.command(name="tune")
def _tune(
    *,
    only: Names = (),
    router: Names = tune.KINDS,
    scenarios: Path = SCENARIOS,
    force: bool = False,
    jobs: int | None = None,
    dry_run: bool = False,
) -> None:
    """Tune the routers that the results need and that have no file, or a stale one (`make routers`).

    Args:
        only: these scenarios.
        router: these kinds.
        scenarios: the folder of the scenario files, with data/routers/ in it.
        force: also what is up to date.
        jobs: routers beside each other; one a core by default.
        dry_run: only tell the commands.
    """
    wanted = tune.tunings(scenarios, only, router, force=force)
    if not wanted:
        print("nothing to tune: each has a file of now, or is not of a main scenario (--force tunes anew)")
    elif dry_run:
        print("\n".join(f"{one.command} ({one.why})" for one in wanted))
    else:
        with terminated_as_interrupted():
            tune.tune_all(wanted, jobs or core_count())


@Parameter(name="*")
@dataclass(frozen=True)
class Grid:
    """What a table of tuned routers is made with.

    Attributes:
        decisions: of a search; 2,000,000 for `faster`, 5,000,000 for the others.
        searches: of each row; 3 for `ablation`, 2 for `faster`, 1 for `fronts`.
        duration: of the full-length runs, such as 60s; the scenario's by default.
        json: where rows are kept, docs/data/NAME.jsonl by default; an interrupted command goes on there.
        jobs: rows beside each other.
    """

    decisions: int | None = None
    searches: int | None = None
    duration: str = ""
    json: Path | None = None
    jobs: int = 1

    def budget(self, decisions: int, searches: int) -> Budget:
        """With these where none was given."""
        duration_s = parse_duration(self.duration) if self.duration else None
        return Budget(self.decisions or decisions, self.searches or searches, duration_s)

    def rows(
        self,
        name: str,
        points: Sequence[GridRow],
        work: Callable[[Budget, GridRow], Row],
        budget: Budget,
        *,
        is_whole: bool = True,
    ) -> list[Row]:
        """A table's, made where its file lacks them; what could not be tuned is a row, too."""
        path = self.json or DATA / name
        make_rows(path, points, work, budget, jobs=self.jobs, is_whole=is_whole)
        return [row for row in kept_rows(path, points) if row is not None]


@app.command(name="ablation")
def _ablation(*scenario: Path, grid: Grid = Grid()) -> None:
    """What each ingredient of Compass's tuning is worth: each left out, at the same budget, on seeds no tuning saw.

    Args:
        scenario: files with a floor to keep.
    """
    budget = grid.budget(5_000_000, 3)
    rows = grid.rows(tables.ABLATION, tables.ablation_points(scenario, budget), tables.ablate, budget)
    print(tables.ablation_frame(rows).to_string(index=False))


@app.command(name="faster")
def _faster(*scenario: Path, router: str = "ladder", grid: Grid = Grid()) -> None:
    """Is a faster router ever worse? One kind tuned at several decision times and blocks a server, waiting or not.

    Args:
        scenario: files with a floor to keep, in which requests may wait.
        router: the kind.
    """
    budget = grid.budget(2_000_000, 2)
    points = tables.faster_points(scenario, budget, _kind(router))
    rows = grid.rows(tables.FASTER, points, tables.try_speed, budget)
    print(tables.faster_frame(rows).to_string(index=False))


@app.command(name="fronts")
def _fronts(*scenario: Path, router: Names = tables.FRONT_KINDS, grid: Grid = Grid()) -> None:
    """The least energy an image that each kind takes at limits of its p99 latency which all kinds have in common.

    Args:
        scenario: files with a floor to keep.
        router: the kinds.
    """
    budget = grid.budget(5_000_000, 1)
    kinds = [_kind(name) for name in router]
    points = tables.front_points(scenario, budget, kinds)
    quickest = grid.rows(tables.FRONTS, points, tables.try_limit, budget, is_whole=False)
    points += tables.limited_points(scenario, budget, kinds, quickest)
    rows = grid.rows(tables.FRONTS, points, tables.try_limit, budget)
    print(tables.front_frame(rows).to_string(index=False))


@Parameter(name="*")
@dataclass(frozen=True)
class Study:
    """Rows of every main scenario.

    Attributes:
        only: these scenarios.
        scenarios: the folder of the scenario files, with data/routers/ in it.
        kept: where rows are kept, runs/NAME.jsonl by default; an interrupted command goes on there.
        docs: whose data it is written to.
        jobs: rows beside each other; one a core by default.
    """

    only: Names = ()
    scenarios: Path = SCENARIOS
    kept: Path | None = None
    docs: Path = DATA.parent
    jobs: int | None = None

    @property
    def files(self) -> list[Path]:
        """Those of the scenarios."""
        return [path for path in scenario_files(self.scenarios, self.only) if not is_replica(path.stem)]

    def place(self, name: str) -> Path:
        """Where rows are kept."""
        return self.kept or Path("runs") / f"{name}.jsonl"


@app.command(name="headroom")
def _headroom(*, seeds: int = headroom.SEEDS, study: Study = Study()) -> None:
    """What there is to win: tuned rules in every main scenario, and where its difficulty is taken away.

    Args:
        seeds: the first so many of each scenario's comparison.
    """
    rows, equal = headroom.make_headroom(study.files, seeds, study.place("headroom"), study.jobs or core_count())
    pages.add_headroom(study.docs, rows, equal)
    print(rows.drop_duplicates("scenario")[["scenario", "most_pct", "is_little"]].to_string(index=False))


@app.command(name="ppo")
def _ppo(*, seeds: int = 5, decisions: int = 2_000_000, study: Study = Study()) -> None:
    """What policy gradient adds: `ppo` trained on every main scenario with several seeds, beside Compass.

    Args:
        seeds: trainings of each.
        decisions: of a training.
    """
    points = learned.points(study.files, seeds, decisions)
    make_rows(study.place("ppo"), points, learned.measure, jobs=study.jobs or core_count())
    frame = learned.frame_of([row for row in kept_rows(study.place("ppo"), points) if row is not None])
    pages.write_frames(study.docs / "data", {"ppo": frame})
    print(frame.to_string(index=False))


@app.command(name="scale")
def _scale(
    *,
    only: Names = scale.LOADS,
    size: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative="")] = scale.SIZES,
    router: Names = scale.ROUTERS,
    seeds: int = 3,
    scenarios: Path = SCENARIOS / "scale",
    kept: Path = Path("runs/scale.jsonl"),
    docs: Path = DATA.parent,
) -> None:
    """From ten servers to a thousand: the shipped router beside tuned rules and the fluid bound; docs/data/scale.csv.

    Args:
        only: a crowd, or a night.
        size: of the cluster, in tens of servers.
        router: these; with `, all seen` behind its name one looks at every server at each decision.
        seeds: the first so many of the scenario's comparison.
        scenarios: the folder of the scenario files.
        kept: where rows are kept; an interrupted command goes on there.
        docs: whose data it is written to.
    """
    points = scale.points(scenarios, only, size, router, seeds)
    make_rows(kept, points, scale.measure, seeds, is_whole=False)
    frame = scale.frame_of([row for row in kept_rows(kept, points) if row is not None])
    pages.write_frames(docs / "data", {"scale": frame})
    print(frame.to_string(index=False))


@app.command(name="live")
def _live(*, scenarios: Path = SCENARIOS / "live", runs: Path = Path("runs"), docs: Path = DATA.parent) -> None:
    """Who wins on executors: collect what `slimsched run scenarios/live/NAME.yaml` left in run folders, and say it.

    Args:
        scenarios: the live scenarios' files.
        runs: where run folders are.
        docs: where live.md goes, and into data/ what is kept of the runs.
    """
    print(live.make_page(sorted(scenarios.glob("*.yaml")), runs, docs))


@app.command(name="advised-slurm")
def _advised_slurm(*, out: Path = Path("runs/advised-slurm"), guard: float = 150.0, every: float = 2.0) -> None:
    """A real Slurm that `jobs advise` advises beside one that it does not, and what simulation had said of both.

    Args:
        out: a new folder for logs, journals and the document.
        guard: seconds; who has waited longer goes first.
        every: seconds from pass to pass.
    """
    print(json.dumps(advised_slurm.measure(out, guard, every), indent=1))


@app.command(name="serving")
def _serving(
    *,
    only: Names = ("added", "saturated", "overload", "memory", "faults", "fuzz"),
    seconds: float = 10.0,
    scenario: str = "quickstart",
    folder: Path = Path("runs/quickstart"),
    router: str = "tuned:compass",
    rivals: Path = Path("runs/rivals"),
    json: Path = Path("runs/serving.jsonl"),
) -> None:
    """What `slimsched serve` costs and withstands, as ratios in one run beside their goals.

    Args:
        only: these; there are `soak` (an hour: `--seconds 3600`) and `rivals`, too.
        seconds: of each load; where there are fewer than ten, fewer images and fuzzed requests are sent.
        scenario: whose network is served on this machine's devices.
        folder: its run folder, with profiles and routers.
        router: that decides as shipped.
        rivals: their environment; benchmarks/serving/rivals.py says how to make it.
        json: where rows are kept.
    """
    from benchmarks.serving.measuring import measure  # the extra `serve` is opened
    from benchmarks.serving.stand import Stand

    with terminated_as_interrupted():  # servers end, too
        print(measure(only, Stand(scenario, folder, router, seconds), rivals, json))


@app.command(name="paper")
def _paper(*, seeds: int = 5, scenarios: Path = SCENARIOS, runs: Path = Path("runs"), docs: Path = DATA.parent) -> None:
    """The paper's PPO by seeds of training, beside who stays put: docs/data/paper-seeds.csv, tables of its map.

    Args:
        seeds: trainings of each weights.
        scenarios: the folder of the scenario files.
        runs: where the trainings' run folders are; a finished one is not trained again.
        docs: whose data and page are written.
    """
    frame = paper_seeds.make_frame(scenarios, runs, range(seeds))
    pages.write_frames(docs / "data", {"paper-seeds": frame})
    fill(docs / "paper-map.md", "paper", paper_seeds.text(frame))
    print(paper_seeds.text(frame))


@app.command(name="rltune")
def _rltune(
    scenario: Path,
    *,
    seeds: int = 5,
    epochs: int = 20,
    episodes: int = 32,
    runs: Path = Path("runs/rltune"),
    docs: Path = DATA.parent,
    jobs: int | None = None,
) -> None:
    """RLTune by seeds of training, beside the order that it is given: docs/data/rltune.csv, docs/jobs-learning.md.

    Args:
        scenario: of training jobs.
        seeds: trainings.
        epochs: updates of a training.
        episodes: windows before each.
        runs: where the trained files are; a finished one is not trained again.
        docs: whose data and page are written.
        jobs: processes beside each other; one a core by default.
    """
    frame = rltune.make_frame(scenario, runs, seeds, epochs, episodes, jobs or core_count())
    pages.write_frames(docs / "data", {"rltune": frame})
    fill(docs / "jobs-learning.md", "rltune", rltune.text(frame))
    print(rltune.text(frame))


@app.command(name="paper-table")
def _paper_table() -> None:
    """Print the paper's Tables I and II, completed to all 256 width tuples."""
    sys.stdout.write(paper_table.text())


def _kind(name: str) -> str:
    if name not in TUNED:
        raise InputError("--router", "", f"{name!r} is not tuned; allowed are {', '.join(TUNED)}")
    return name


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of them; returns the exit code."""

    def work() -> int:
        try:
            app(argv, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            raise InputError(PROG, "", str(error)) from None
        return 0

    return exit_code(PROG, work)


if __name__ == "__main__":
    sys.exit(main())
