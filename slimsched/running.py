"""The end-to-end workflow, its training and validation, and operations on its run folder afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kit.errors import InputError, nearest
from policies.router_kinds import COMPASS
from slimsched.arguments import Changes, File, NewFile, Out, Picture, Routers, Scenario, ScenarioLike, changes_of
from slimsched.results import CommandResult, Comparison, Job, TrainedRouter, Training, Validation
from slimsched.working import (
    announcing_compilation,
    begin,
    load,
    observer,
    require_made,
    tell_overload,
    verb,
    with_routers,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import nn


@verb
def run(scenario: ScenarioLike, /, *, out: Out = None, changes: Changes | None = None) -> Job:
    """Run the whole workflow, from the network to the report.

    The stages are network, calibration, routers, comparison, validation, report. An interrupted run resumes.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name, such as quickstart.
        out: the run folder for all results; `runs/NAME` by default.
        changes: values that replace the scenario's, by dotted keys, such as workload.rate_img_s=600.

    Returns:
        The run; its report is drawn if it is asked for.

    Raises:
        InputError: something is wrong with the scenario, or does not fit this machine.
        WorkError: the work failed; what is finished is kept.

    Example:
        ```python
        job = slimsched.run("scenario.yaml")
        print(job.report)
        ```
    """
    from scenarios.job.comparing_stage import results_of
    from scenarios.job.job_stages import cuts_text
    from scenarios.job.main_job import carry_out

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

    The same arrivals run in simulation and on processes, in real time. Every server needs a device, real or emulated
    (docs/emulated.md), and its profile: `run` or `calibrate` makes that of a real one. An interrupted validation
    resumes.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name.
        routers: a router, by name or file, instead of the scenario's (`validate.routers`); may be given several times.
        out: the run folder for every run's record; `runs/NAME` by default.
        changes: values that replace the scenario's, by dotted keys, such as validate.seeds=[0,1].

    Returns:
        The validation. Workers are processes, so a script needs the guard `if __name__ == "__main__":`.

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
    from scenarios.job import validation_stage as stage
    from scenarios.job.profile_stages import with_decision_times

    names = run.scenario.validate_.routers
    with run.opened(), announcing_compilation(names, "compiled"):
        experiment = run.experiment()
        run.describe()
        return Validation(stage.validate(run, with_decision_times(run, experiment, names)), run.folder.path)


@verb
def replay(run: File, /, *, trace_file: NewFile | None = None) -> CommandResult:
    """Check that fresh cores repeat the decisions in a run's logs.

    Args:
        run: a run folder.
        trace_file: write the arrivals of the last `serve` there instead, as CSV: a workload of any scenario (`workload:
            {kind: trace, file: ...}`).

    Raises:
        InputError: it holds no event log.
    """
    from scenarios.runs.folder import SERVED, RunFolder
    from scenarios.runs.run_store import (
        LOG_FILE,
        logged_places,
        read_cores,
        replay_folder,
        replay_served,
        write_arrivals,
    )
    from scenarios.show.command_tables import format_replay
    from scenarios.show.tables import plural

    folder = RunFolder(Path(run))
    if not folder.path.is_dir():
        raise InputError(str(folder.path), "", "no such run folder; `slimsched validate` and `slimsched run` make one")
    if trace_file is not None:
        count, length_s = write_arrivals(folder, Path(trace_file))
        facts = {"schema": "slimsched.arrivals/1", "file": str(trace_file), "arrivals": count, "duration_s": length_s}
        return CommandResult(facts, f"{trace_file}: {plural(count, 'arrival')} in {length_s:.1f} s")
    runs = replay_served(folder)
    if logged_places(folder):
        runs |= replay_folder(folder, *read_cores(folder))
    if not runs:
        problem = f"holds no event log ({LOG_FILE}, {SERVED}/); `slimsched validate` and `slimsched serve` keep them"
        raise InputError(str(folder.path), "", problem)
    is_wrong = any(each["problems"] for each in runs.values())
    return CommandResult({"schema": "slimsched.replay/2", "runs": runs}, format_replay(runs), code=1 if is_wrong else 0)


@verb
def report(run: File, /, *others: File, plot: Picture | None = None) -> CommandResult:
    """Write a run folder's report.html again.

    With several folders it writes each report, and can draw their learning curves in one chart.

    Args:
        run: a run folder, or one of `jobs compare --out`.
        others: more run folders, such as trainings with other seeds.
        plot: also draw a chart there (.png or .svg): latency distributions, simulated and on executors; without a
            validation accuracy against latency, p99 and energy; without a comparison, or with several folders, learning
            curves, with their mean and range.

    Raises:
        InputError: one is not a run folder, or something in it can't be read.
    """
    from kit.documents import told_of
    from scenarios.runs.folder import RunFolder
    from scenarios.show.report import build_report, save_picture
    from slimsched.jobs.comparison_page import build_report as build_jobs_report
    from slimsched.jobs.comparison_page import is_of_jobs

    folders, pages = [Path(run), *map(Path, others)], []
    of_jobs = [folder for folder in folders if is_of_jobs(folder)]
    if of_jobs and plot is not None:
        raise InputError("--plot", "", f"is of routers; of training jobs, {of_jobs[0]} holds prices.svg")
    for folder in folders:
        with told_of(folder, "make it again with `slimsched run`"):
            is_one = folder in of_jobs
            pages.append(build_jobs_report(folder) if is_one else build_report(RunFolder(folder, observer().remark)))
    if plot is not None:
        with told_of(folders[0], "make it again with `slimsched run`"):
            save_picture(folders, Path(plot), observer().remark)
    return CommandResult({"reports": list(map(str, pages))}, "\n".join(f"report: {page}" for page in pages))


@verb
def train(
    scenario: ScenarioLike | None = None,
    /,
    routers: Annotated[Sequence[str], Parameter(name="--router", alias="-r")] = (),
    *,
    over: File | None = None,
    out: Out = None,
    changes: Changes | None = None,
) -> Training:
    """Train routers in simulation.

    PPO learns by gradients, rules by direct search over whole runs. Compass learns for one scenario, or over random
    clusters. An interrupted training resumes from its last checkpoint.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name.
        routers: a kind, such as compass, ppo or ladder (docs/routers.md); may be given several times. By default those
            that the scenario's run makes, otherwise `compass`.
        over: a file of drawn clusters instead of a scenario, or the bundled `clusters`; the router is `compass`.
        out: the run folder for the routers' files; `runs/NAME` by default.
        changes: values that replace the scenario's, by dotted keys: seed, training.decisions, tuning.floor,
            tuning.decisions, tuning.searches, tuning.objective, tuning.control ...

    Raises:
        InputError: no such kind, too few decisions, something that it needs is missing, or the compiled engine can't do
            what the scenario asks for.
        WorkError: no setting of a rule keeps the accuracy that is asked for.

    Example:
        ```python
        learning = slimsched.load("paper", {"duration_s": 2, "warmup_s": 0.5, "training.decisions": 20_000})
        made = slimsched.train(learning, out="runs/learning")
        result = slimsched.simulate(learning, made.routers[0].path)
        ```
    """
    from scenarios.files.bundled_files import MADE_KINDS, PPO, made_kind, made_kinds

    if over is not None:
        return _train_over(scenario, routers, Path(over), out, changes)
    if scenario is None:
        raise InputError("SCENARIO", "", "missing; name one (`slimsched list` shows them), or --over clusters")
    run = begin(scenario, changes, out)
    keys = run.scenario
    kinds = tuple(made_kind(name) or name for name in routers)
    kinds = tuple(dict.fromkeys(kinds)) or made_kinds((*keys.compare.routers, *keys.validate_.routers)) or (COMPASS,)
    for kind in kinds:
        if kind not in MADE_KINDS:
            raise InputError("--router", "", f"{kind!r} can't be trained; {nearest(kind, MADE_KINDS)}")
    from scenarios.job.training_stage import make_routers
    from scenarios.runs.simulated_runs import require_memory

    with run.opened(), announcing_compilation((PPO,), "compiled"):
        experiment = run.experiment()
        run.describe()
        require_memory(experiment, "compiled")  # of the runs that score them
        tell_overload(experiment)
        scores = make_routers(run, experiment, kinds)
    trained = tuple(TrainedRouter(run.made(kind), score) for kind, score in scores.items())
    return Training(routers=trained, folder=run.folder.path)


def _train_over(
    scenario: ScenarioLike | None, routers: Sequence[str], over: Path, out: Out, changes: Changes | None
) -> Training:
    from kit.files import writable_folder
    from scenarios.job.training_stage import make_compass
    from scenarios.learn.drawn_clusters import read_clusters
    from scenarios.runs.folder import RunFolder

    if scenario is not None:
        raise InputError("--over", "", "takes the place of a scenario; name one of both")
    if any(kind != COMPASS for kind in routers):
        raise InputError("--router", "", f"over drawn clusters {COMPASS} alone is trained; leave --router out")
    clusters = read_clusters(over, changes_of(changes))
    folder = RunFolder(writable_folder(Path("runs") / clusters.name if out is None else Path(out)), observer().remark)
    with folder.opened(), announcing_compilation((), "compiled"):
        path, score = make_compass(clusters, folder, quiet=observer().quiet)
    return Training(routers=(TrainedRouter(path, score),), folder=folder.path)


def save_router(
    scenario: Scenario | str | Path,
    layers: Sequence[tuple[ArrayLike, ArrayLike]] | nn.Sequential,
    out: str | Path,
    *,
    deterministic: bool = False,
) -> Path:
    """Write what another library has learned on `SlimCluster-v0` as a router's file.

    The network takes an observation of the environment and has a tanh, or a ReLU, after each layer but the last. The
    last one gives the logits of server, width and group, side by side (and of the hold, where
    `training.batching_delays_s` names waits). The router chooses each part by its logits, among what is not masked: of
    widths, those that the chosen server holds.

    Between two activations of a `torch.nn.Sequential` may be any affine modules, such as a scaling of inputs. The file
    is only written if it gives the module's own logits on 256 observations.

    Args:
        scenario: the one that was learned on; what `load` returned, or takes.
        layers: a `torch.nn.Sequential`; or from the input on, with a tanh between them, each layer's weights
            (outputs, inputs) and biases (outputs,), as `torch.nn.Linear` has them.
        out: the file, `NAME.safetensors`. An existing router is replaced, another file is not.
        deterministic: the router takes the most probable of each part; by default it draws, as libraries do in
            training.

    Returns:
        The file, which is a router's name wherever one is expected.

    Raises:
        InputError: the network does not fit the scenario, computes what no router's file can hold, or the file can't
            be written.

    Example:
        ```python
        from torch import nn

        seen, chosen = 2 + 3 * 3, 3 + 4 + 6  # by 3 servers; of servers, 4 widths and 6 groups
        network = nn.Sequential(nn.Linear(seen, 64), nn.Tanh(), nn.Linear(64, chosen))
        path = slimsched.save_router(short, network, "untrained.safetensors")
        print(slimsched.simulate(short, path).router)
        ```
    """
    from scenarios.experiment.scenario_building import default_folder, make_experiment
    from scenarios.learn.ppo_training import write_router

    keys, path = load(scenario).keys, Path(out)
    write_router(make_experiment(keys, default_folder(keys)), layers, path, deterministic)
    return path
