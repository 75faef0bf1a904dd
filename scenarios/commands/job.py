"""Commands of the main job: run, train, tune, validate, replay, report."""

from __future__ import annotations

from argparse import Namespace

from policies.errors import InputError, WorkError
from scenarios.commands.shared import (
    announcing_compilation,
    begin_job,
    make_job,
    read_scenario,
    require_trained,
    scenario_and_folder,
    tell_effort,
    tell_overload,
    with_routers,
)
from scenarios.files.documents import told_of
from scenarios.files.router_names import TRAINED_ROUTER
from scenarios.metrics.fidelity import results_in
from scenarios.metrics.served import require_completed
from scenarios.runs.folder import RunFolder
from scenarios.runs.logs import LOG_FILE, logged_places, read_cores
from scenarios.show.comparison import format_comparison
from scenarios.show.replay import format_replay
from scenarios.show.result import format_score
from scenarios.show.validation import format_validation
from scenarios.terminal.output import Output


def run(arguments: Namespace) -> int:
    """Everything, end to end."""
    from scenarios.job.comparison import results_of
    from scenarios.job.run import carry_out

    output = Output(arguments)
    scenario, folder = scenario_and_folder(arguments)
    job = make_job(scenario, folder, output)
    with (
        job.folder.opened(arguments.scenario),
        announcing_compilation(output, job.routers),
    ):
        outcome = carry_out(job)
    texts = [format_comparison(outcome.comparison)]
    if outcome.validation is not None:
        texts.append(format_validation(outcome.validation))
    document = {"comparison": outcome.comparison, "validation": outcome.validation, "report": str(outcome.report)}
    output.result("\n\n".join([*texts, f"report: {outcome.report}"]), document)
    require_completed([*results_of(job), *(results_in(outcome.validation) if outcome.validation else [])])
    return 0


def train(arguments: Namespace) -> int:
    """Train the PPO router."""
    from scenarios.job.router import make_router

    output = Output(arguments)
    scenario, folder = scenario_and_folder(arguments)
    if arguments.decisions is not None:
        if arguments.decisions < scenario.training.batch:
            problem = f"{arguments.decisions} is less than training.batch ({scenario.training.batch}): not one update"
            raise InputError("--decisions", "", problem)
        training = scenario.training.model_copy(update={"decisions": arguments.decisions})
        scenario = scenario.model_copy(update={"training": training})
    if arguments.seed is not None:
        scenario = scenario.model_copy(update={"seed": arguments.seed})
    job = make_job(scenario, folder, output)
    with job.folder.opened(arguments.scenario), announcing_compilation(output, (TRAINED_ROUTER,), arguments.engine):
        world = begin_job(job)
        tell_effort(output, world, 1, arguments.engine)  # of the run that scores it
        tell_overload(output, world)
        score = make_router(job, world, arguments.engine)
    text = f"{format_score(score)}\nrouter: {job.trained}"
    output.result(text, {"router": str(job.trained), "engine": arguments.engine, "score": score})
    if "shares" in score and not score["shares"]["completed"]:
        problem = "the trained router completed nothing on the run that it was scored on"
        raise WorkError(f"{problem}; train it for longer (--decisions), or lower the rate")
    return 0


def tune(arguments: Namespace) -> int:
    """Tune a rule, or Tide, and write its file."""
    from scenarios.learn.tuning import Tuning, tune_router, tuned_text

    output = Output(arguments)
    wanted = Tuning(
        scenario=arguments.scenario,
        router=arguments.router,
        out=arguments.out,
        floor=arguments.floor,
        decisions=arguments.decisions,
        seed=arguments.seed,
        start=arguments.start,
        without=tuple(arguments.without),
    )
    path = wanted.path
    read_scenario(arguments)  # refuses results in the place of its files
    with announcing_compilation(output, (), "compiled"):
        found, document = tune_router(wanted, quiet=output.quiet, say=output.remark)
    return output.result(f"{tuned_text(found)}\nrouter: {path}", document)


def validate(arguments: Namespace) -> int:
    """Simulation against real executors."""
    from scenarios.job import validation as stage

    output = Output(arguments)
    scenario, folder = scenario_and_folder(arguments)
    scenario = with_routers(scenario, "validate_", arguments)
    require_trained(scenario.validate_.routers, folder)
    job = make_job(scenario, folder, output)
    with job.folder.opened(arguments.scenario), announcing_compilation(output, scenario.validate_.routers):
        validation = stage.validate(job, begin_job(job))
    output.result(format_validation(validation), validation)
    require_completed(results_in(validation))
    return 0


def replay(arguments: Namespace) -> int:
    """Every event log of a run folder through fresh cores, and those of a run against each other; exit code 1 where
    cores part, a log is not whole, or two do not fit together.
    """
    from scenarios.runs.replays import replay_folder

    output = Output(arguments)
    folder = RunFolder(arguments.run)
    if not logged_places(folder):
        raise InputError(str(folder.path), "", f"holds no event log ({LOG_FILE}); `slimsched validate` keeps them")
    runs = replay_folder(folder, *read_cores(folder))
    output.result(format_replay(runs), {"schema": "slimsched.replay/2", "runs": runs})
    return 1 if any(run["problems"] for run in runs.values()) else 0


def report(arguments: Namespace) -> int:
    """The page again."""
    from scenarios.show.report import build_report, save_picture

    output = Output(arguments)
    with told_of(arguments.run, "make it anew with `slimsched run`"):
        path = build_report(RunFolder(arguments.run, output.remark))
        if arguments.picture is not None:
            save_picture(arguments.run, arguments.picture)
    return output.result(f"report: {path}", {"report": str(path)})
