"""The end-to-end workflow, its validation on real executors, and operations on its run folder afterwards."""

from __future__ import annotations

from pathlib import Path

from kit.errors import InputError
from slimsched.arguments import Changes, File, NewFile, Out, Picture, Routers, ScenarioLike
from slimsched.results import CommandResult, Comparison, Job, Validation
from slimsched.working import announcing_compilation, begin, observer, require_made, verb, with_routers


@verb
def run(scenario: ScenarioLike, /, *, out: Out = None, changes: Changes | None = None) -> Job:
    """Do the whole job, from the network to the report.

    That is: network, calibration, routers, comparison, validation, report. It resumes. The report
    is drawn when it is asked for, and by the command at its end.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name, such as quickstart; or what `load` returned.
        out: the run folder, which keeps all of it; `runs/NAME` by default.
        changes: other values than the scenario's, by dotted keys, such as workload.rate_img_s=600.

    Raises:
        InputError: something is wrong with the scenario, or does not fit this machine.
        WorkError: the work failed; what is finished is kept.

    Example:
        ```python
        job = slimsched.run("scenario.yaml")
        print(job.report)
        ```
    """
    from scenarios.job.comparison import results_of
    from scenarios.job.run import carry_out
    from scenarios.job.sizes import cuts_text

    job = begin(scenario, changes, out)
    with announcing_compilation(job.routers, "compiled"):  # which the comparison may come to
        outcome = carry_out(job)
    folder = job.folder.path
    return Job(
        Comparison(outcome.comparison, results_of(job), folder),
        None if outcome.validation is None else Validation(outcome.validation, folder),
        folder,
        tuple(filter(None, (job.wall_text, cuts_text(job.scenario)))),
    )


@verb
def validate(
    scenario: ScenarioLike,
    /,
    routers: Routers = (),
    *,
    out: Out = None,
    changes: Changes | None = None,
) -> Validation:
    """Compare simulation with runs on real processes.

    The same arrivals run in both worlds, on processes in real time.

    Every server needs a device, real or emulated (docs/emulated.md), and its profile: `run` or `calibrate` makes that
    of a real one. It goes on from what is finished. Agents are processes: a Python script must keep what it does under
    `if __name__ == "__main__":`.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name; or what `load` returned.
        routers: by name or file, instead of the scenario's (`validate.routers`); may be given several times.
        out: the run folder, which keeps every run's record; `runs/NAME` by default.
        changes: other values than the scenario's, by dotted keys, such as validate.seeds=[0,1].

    Raises:
        InputError: a router is not known or not made yet, or something does not fit this machine.
        WorkError: executors failed.

    Example:
        ```python
        live = slimsched.load("paper-live", {"validate": {"routers": ["jsq"], "duration_s": 3, "warmup_s": 1}})
        checked = slimsched.validate(live, out="runs/live")
        print({name: error for name, error in checked.pairs[0].error_pct.items() if error is not None})
        ```
    """
    run = with_routers(begin(scenario, changes, out), "validate_", routers)
    require_made(run, "validate_")
    from scenarios.job import validation as stage
    from scenarios.job.deciding import with_decision_times

    named = run.scenario.validate_.routers
    with run.opened(), announcing_compilation(named, "compiled"):
        world = run.world()
        run.describe()
        return Validation(stage.validate(run, with_decision_times(run, world, named)), run.folder.path)


@verb
def replay(run: File, /, *, trace_file: NewFile | None = None) -> CommandResult:
    """Feed a run's logs to fresh cores: do they decide the same?

    Args:
        run: a run folder.
        trace_file: instead write there, as CSV, when each image came to the last `serve`: a workload of any scenario
            (`workload: {kind: trace, file: ...}`).

    Raises:
        InputError: it holds no event log.
    """
    from scenarios.runs.folder import SERVED, RunFolder
    from scenarios.runs.logs import LOG_FILE, logged_places, read_cores
    from scenarios.runs.replays import replay_folder, replay_served, write_arrivals
    from scenarios.show.numbers import plural
    from scenarios.show.replay import format_replay

    folder = RunFolder(Path(run))
    if not folder.path.is_dir():
        raise InputError(str(folder.path), "", "no such run folder; `slimsched validate` and `slimsched run` make one")
    if trace_file is not None:
        count, length_s = write_arrivals(folder, Path(trace_file))
        found = {"schema": "slimsched.arrivals/1", "file": str(trace_file), "arrivals": count, "duration_s": length_s}
        return CommandResult(found, f"{trace_file}: {plural(count, 'arrival')} in {length_s:.1f} s")
    runs = replay_served(folder)
    if logged_places(folder):
        runs |= replay_folder(folder, *read_cores(folder))
    if not runs:
        problem = f"holds no event log ({LOG_FILE}, {SERVED}/); `slimsched validate` and `slimsched serve` keep them"
        raise InputError(str(folder.path), "", problem)
    is_wrong = any(each["problems"] for each in runs.values())
    return CommandResult({"schema": "slimsched.replay/2", "runs": runs}, format_replay(runs), code=int(is_wrong))


@verb
def report(run: File, /, *others: File, plot: Picture | None = None) -> CommandResult:
    """Write a run folder's report.html again.

    Of several folders each page is written, and their learning curves can be drawn in one picture.

    Args:
        run: a run folder, or one that `jobs compare --out` made.
        others: more run folders, such as trainings with other seeds.
        plot: also write a picture there (.png or .svg): the latency distributions of both worlds; before validation
            accuracy against latency, its p99 and energy; before a comparison, or of several folders, learning curves,
            with their mean and a band from the lowest to the highest.

    Raises:
        InputError: one is no run folder, or something in it can't be read.
    """
    from kit.documents import told_of
    from scenarios.runs.folder import RunFolder
    from scenarios.show.report import build_report, save_picture
    from slimsched.jobs.report import build_report as build_jobs_report
    from slimsched.jobs.report import is_of_jobs

    places, pages = [Path(run), *map(Path, others)], []
    of_jobs = [place for place in places if is_of_jobs(place)]
    if of_jobs and plot is not None:
        raise InputError("--plot", "", f"is of routers; of training jobs, {of_jobs[0]} holds prices.svg")
    for place in places:
        with told_of(place, "make it anew with `slimsched run`"):
            is_one = place in of_jobs
            pages.append(build_jobs_report(place) if is_one else build_report(RunFolder(place, observer().remark)))
    if plot is not None:
        with told_of(places[0], "make it anew with `slimsched run`"):
            save_picture(places, Path(plot), observer().remark)
    return CommandResult({"reports": list(map(str, pages))}, "\n".join(f"report: {page}" for page in pages))
