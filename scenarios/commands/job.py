"""Commands of the main job: run, train, tune, validate, replay, report."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from policies.errors import InputError, WorkError
from scenarios.commands.shared import (
    announcing_compilation,
    begin_job,
    load_world_of,
    make_job,
    read_scenario,
    require_made,
    scenario_and_folder,
    spread,
    tell_effort,
    tell_overload,
    with_routers,
)
from scenarios.files.documents import told_of
from scenarios.files.made_routers import PPO, made_kinds
from scenarios.files.spec import Scenario
from scenarios.metrics.fidelity import results_in
from scenarios.metrics.served import require_completed
from scenarios.runs.folder import RunFolder
from scenarios.runs.logs import LOG_FILE, logged_places, read_cores
from scenarios.show.answers import format_answers
from scenarios.show.comparison import format_comparison
from scenarios.show.far_apart import require_hopeful
from scenarios.show.replay import format_replay
from scenarios.show.result import format_score
from scenarios.show.table import to_text
from scenarios.show.validation import format_validation
from scenarios.show.verdict import verdict
from scenarios.terminal.output import Output
from scenarios.terminal.screen import screen_width
from scenarios.world.materials import default_folder


def run(arguments: Namespace) -> int:
    """Everything, end to end."""
    from scenarios.job.comparison import results_of
    from scenarios.job.run import carry_out
    from scenarios.job.sizes import cuts_text

    output = Output(arguments)
    scenario, folder = scenario_and_folder(arguments)
    job = make_job(_going_on(scenario, arguments), folder, output)
    with (
        job.folder.opened(arguments.scenario),
        announcing_compilation(output, job.routers),
    ):
        outcome = carry_out(job)
    documents = outcome.comparison, outcome.validation
    box, paragraph = format_answers(*documents), to_text([verdict(*documents)], screen_width())
    texts = [*filter(None, [box, paragraph]), format_comparison(outcome.comparison)]
    if outcome.validation is not None:
        texts.append(format_validation(outcome.validation))
    document = {"comparison": outcome.comparison, "validation": outcome.validation, "report": str(outcome.report)}
    ending = [job.wall_text, *filter(None, [cuts_text(scenario)]), f"report: {outcome.report}"]
    output.result("\n\n".join([*texts, "\n".join(ending)]), document)
    require_completed([*results_of(job), *(results_in(outcome.validation) if outcome.validation else [])])
    if outcome.validation is not None:
        require_hopeful(outcome.validation)
    return 0


def _going_on(scenario: Scenario, arguments: Namespace) -> Scenario:
    """With `--go-on`."""
    if not arguments.go_on:
        return scenario
    return scenario.model_copy(update={"validate_": scenario.validate_.model_copy(update={"go_on": True})})


def train(arguments: Namespace) -> int:
    """Train the routers that the scenario's own run makes; PPO where it names none."""
    from scenarios.job.router import make_routers

    output = Output(arguments)
    scenario, folder = scenario_and_folder(arguments)
    kinds = made_kinds((*scenario.compare.routers, *scenario.validate_.routers)) or (PPO,)
    if arguments.decisions is not None:
        scenario = _with_decisions(scenario, arguments.decisions, kinds)
    if arguments.seed is not None:
        scenario = scenario.model_copy(update={"seed": arguments.seed})
    job = make_job(scenario, folder, output)
    with job.folder.opened(arguments.scenario), announcing_compilation(output, (PPO,), arguments.engine):
        world = begin_job(job)
        tell_effort(output, world, len(kinds), arguments.engine)  # of the runs that score them
        tell_overload(output, world)
        scores = make_routers(job, world, arguments.engine, kinds)
    texts = [f"{kind}: {format_score(score)}\nrouter: {job.made(kind)}" for kind, score in scores.items()]
    made = [{"router": str(job.made(kind)), "score": score} for kind, score in scores.items()]
    output.result("\n".join(texts), {"engine": arguments.engine, "routers": made})
    for kind, score in scores.items():
        if "shares" in score and not score["shares"]["completed"]:
            problem = f"the trained {kind} completed nothing on the run that it was scored on"
            raise WorkError(f"{problem}; train it for longer (--decisions), or lower the rate")
    return 0


def _with_decisions(scenario: Scenario, decisions: int, kinds: Sequence[str]) -> Scenario:
    """For gradients and for direct search."""
    if PPO in kinds and decisions < scenario.training.batch:
        problem = f"{decisions} is less than training.batch ({scenario.training.batch}): not one update"
        raise InputError("--decisions", "", problem)
    longer = {"decisions": decisions}
    update = {name: getattr(scenario, name).model_copy(update=longer) for name in ("training", "tuning")}
    return scenario.model_copy(update=update)


def tune(arguments: Namespace) -> int:
    """Tune a rule, and write its file."""
    from scenarios.learn.course import MOST_THREADS
    from scenarios.learn.tuning import Tuning, tune_router, tuned_text

    output = Output(arguments)
    wanted = Tuning(
        scenario=arguments.scenario,
        router=arguments.router,
        out=arguments.out,
        floor=arguments.floor,
        decisions=arguments.decisions,
        searches=arguments.searches,
        seed=arguments.seed,
        objective=arguments.objective,
        p99_limit_s=arguments.p99,
        control=arguments.control,
    )
    path = wanted.path
    scenario = read_scenario(arguments)  # refuses results in the place of its files
    tell_overload(output, load_world_of(scenario, default_folder(scenario)))
    with announcing_compilation(output, (), "compiled"), spread(arguments, lambda: MOST_THREADS) as jobs:
        found, document = tune_router(wanted, quiet=output.quiet, say=output.remark, jobs=jobs)
    limit_s = document["p99_limit_s"] if document["objective"] == "energy" else None
    return output.result(f"{tuned_text(found, limit_s)}\nrouter: {path}", document)


def validate(arguments: Namespace) -> int:
    """Simulation against real executors."""
    from scenarios.job import validation as stage
    from scenarios.job.deciding import with_decision_times

    output = Output(arguments)
    scenario, folder = scenario_and_folder(arguments)
    scenario = with_routers(_going_on(scenario, arguments), "validate_", arguments)
    require_made(scenario.validate_.routers, folder)
    job = make_job(scenario, folder, output)
    with job.folder.opened(arguments.scenario), announcing_compilation(output, scenario.validate_.routers):
        world = with_decision_times(job, begin_job(job), scenario.validate_.routers)
        validation = stage.validate(job, world)
    output.result(format_validation(validation), validation)
    require_completed(results_in(validation))
    require_hopeful(validation)
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
