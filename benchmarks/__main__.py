"""`python -m benchmarks NAME ...`: runs the studies. Each shows what it makes with `--help`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, CycloptsError, Parameter

from benchmarks.grid import ROOT, kept_rows, make_rows
from benchmarks.marked import fill
from benchmarks.study import advised_slurm, live, pages, paper_seeds, paper_table, rltune, scale, suite
from hw.host_resources import core_count
from kit.errors import InputError
from scenarios.terminal.screen import exit_code, terminated_as_interrupted

SCENARIOS: Final = ROOT / "scenarios"
DOCS: Final = ROOT / "docs"
PROG: Final = "python -m benchmarks"
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]
app = App(name=PROG, help=__doc__, version_flags=(), result_action="return_value")


@app.command(name="suite")
def _suite(*only: str, force: bool = False, tune: bool = True) -> None:
    """The published rows of the suite and docs/results.md: tunes what has no file, runs all at equal accuracy.

    Args:
        only: cases; all by default, and the others' rows stay as they are.
        force: tune also what has a file (hours).
        tune: `--no-tune` runs what has a file, and tunes nothing.
    """
    with terminated_as_interrupted():
        print(suite.make_suite(only, force=force, tunes=tune))


@app.command(name="ablation")
def _ablation(*only: str) -> None:
    """What each number of Compass brings on the suite: docs/data/ablation.csv, of which `suite` makes its page.

    Args:
        only: cases; nothing is written then.
    """
    with terminated_as_interrupted():
        print(suite.ablate(only))


@app.command(name="scale")
def _scale(
    *,
    only: Names = scale.LOADS,
    size: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative="")] = scale.SIZES,
    router: Names = scale.ROUTERS,
    seeds: int = 3,
    scenarios: Path = SCENARIOS / "scale",
    kept: Path = Path("runs/scale.jsonl"),
    docs: Path = DOCS,
) -> None:
    """Compare the bundled router with tuned rules and the fluid bound on 10 to 1,000 servers; docs/data/scale.csv.

    Args:
        only: a crowd, or a night.
        size: of the cluster, in tens of servers.
        router: these; with `, all seen` behind its name one looks at every server at each decision.
        seeds: how many of the comparison's seeds are used, the first ones.
        scenarios: the folder of the scenario files.
        kept: where rows are kept; an interrupted command resumes there.
        docs: whose data it is written to.
    """
    points = scale.points(scenarios, only, size, router, seeds)
    make_rows(kept, points, scale.measure, seeds)
    frame = scale.frame_of([row for row in kept_rows(kept, points) if row is not None])
    pages.write_frames(docs / "data", {"scale": frame})
    print(frame.to_string(index=False))


@app.command(name="live")
def _live(*, scenarios: Path = SCENARIOS / "live", runs: Path = Path("runs"), docs: Path = DOCS) -> None:
    """Collect what `slimsched run scenarios/live/NAME.yaml` left in run folders, and write who wins on executors.

    Args:
        scenarios: the live scenarios' files.
        runs: where run folders are.
        docs: where live.md goes, and into data/ what is kept of the runs.
    """
    print(live.make_page(sorted(scenarios.glob("*.yaml")), runs, docs))


@app.command(name="advised-slurm")
def _advised_slurm(*, out: Path = Path("runs/advised-slurm"), guard: float = 150.0, every: float = 2.0) -> None:
    """Compare a real Slurm that `jobs advise` advises with one that it does not, and both with their simulation.

    Args:
        out: a new folder for logs, journals and the document.
        guard: seconds; jobs that have waited longer go first.
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
    """Measure what `slimsched serve` costs and withstands, as ratios in one run, and compare them with their goals.

    Args:
        only: what is measured; `soak` (an hour: `--seconds 3600`) and `rivals` are available, too.
        seconds: duration of each load; below ten, fewer images and fuzzed requests are sent.
        scenario: whose network is served on this machine's devices.
        folder: its run folder, with profiles and routers.
        router: the router that decides.
        rivals: their environment; benchmarks/serving/rivals.py shows how to make it.
        json: where rows are kept.
    """
    from benchmarks.serving.measuring import measure  # imports the extra `serve`
    from benchmarks.serving.stand import Stand

    with terminated_as_interrupted():  # so that servers end, too
        print(measure(only, Stand(scenario, folder, router, seconds), rivals, json))


@app.command(name="paper")
def _paper(*, seeds: int = 5, scenarios: Path = SCENARIOS, runs: Path = Path("runs"), docs: Path = DOCS) -> None:
    """Train the paper's PPO by several seeds, and compare it with `sticky`: docs/data/paper-seeds.csv, paper-map.md.

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
    docs: Path = DOCS,
    jobs: int | None = None,
) -> None:
    """Train RLTune by several seeds, and compare it with its base order: docs/data/rltune.csv, docs/jobs-learning.md.

    Args:
        scenario: of training jobs.
        seeds: trainings.
        epochs: updates of a training.
        episodes: windows before each.
        runs: where the trained files are; a finished one is not trained again.
        docs: whose data and page are written.
        jobs: processes in parallel; one a core by default.
    """
    frame = rltune.make_frame(scenario, runs, seeds, epochs, episodes, jobs or core_count())
    pages.write_frames(docs / "data", {"rltune": frame})
    fill(docs / "jobs-learning.md", "rltune", rltune.text(frame))
    print(rltune.text(frame))


@app.command(name="paper-table")
def _paper_table() -> None:
    """Print the paper's Tables I and II, completed to all 256 width tuples."""
    sys.stdout.write(paper_table.text())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the studies; returns the exit code."""

    def work() -> int:
        try:
            app(argv, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            raise InputError(PROG, "", str(error)) from None
        return 0

    return exit_code(PROG, work)


if __name__ == "__main__":
    sys.exit(main())
