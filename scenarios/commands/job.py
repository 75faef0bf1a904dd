"""Commands of the main job: run, train, tune, validate, replay, report."""

from __future__ import annotations

from argparse import Namespace

from kit.documents import told_of
from kit.errors import InputError, WorkError
from scenarios.commands.shared import asked_of, read_scenario
from scenarios.metrics.fidelity import results_in
from scenarios.runs.folder import RunFolder
from scenarios.runs.logs import LOG_FILE, logged_places, read_cores
from scenarios.show.answers import format_answers
from scenarios.show.comparison import format_comparison
from scenarios.show.replay import format_replay
from scenarios.show.result import format_score
from scenarios.show.table import to_text
from scenarios.show.validation import format_validation, require_hopeful
from scenarios.show.words import require_completed
from scenarios.tasks import making
from scenarios.tasks.asked import announcing_compilation, job_of, world_of
from scenarios.terminal.output import Output
from scenarios.terminal.screen import screen_width
from scenarios.world.materials import default_folder


def run(arguments: Namespace) -> int:
    """Everything, end to end."""
    from scenarios.job.comparison import results_of
    from scenarios.job.run import carry_out
    from scenarios.job.sizes import cuts_text

    output = Output(arguments)
    asked = asked_of(arguments, output)
    scenario = asked.scenario
    job = job_of(asked.with_section("validate_", go_on=True) if arguments.go_on else asked)
    with (
        job.folder.opened(arguments.scenario),
        announcing_compilation(output, job.routers, "compiled"),  # which the comparison may come to
    ):
        outcome = carry_out(job)
    documents = outcome.comparison, outcome.validation
    texts = [*filter(None, [format_answers(*documents)]), format_comparison(outcome.comparison)]
    if outcome.validation is not None:
        texts.append(format_validation(outcome.validation))
    document = {"comparison": outcome.comparison, "validation": outcome.validation, "report": str(outcome.report)}
    ending = to_text(["\n".join([job.wall_text, *filter(None, [cuts_text(scenario)])])], screen_width())
    output.result("\n\n".join([*texts, f"{ending}\nreport: {outcome.report}"]), document)
    require_completed([*results_of(job), *(results_in(outcome.validation) if outcome.validation else [])])
    if outcome.validation is not None:
        require_hopeful(outcome.validation)
    return 0


def train(arguments: Namespace) -> int:
    """Train the routers that the scenario's own run makes; PPO where it names none."""
    output = Output(arguments)
    found = making.train(asked_of(arguments, output), arguments.decisions, arguments.seed, arguments.engine)
    texts = [f"{kind}: {format_score(score)}\nrouter: {path}" for kind, path, score in found]
    made = [{"router": str(path), "score": score} for _, path, score in found]
    output.result("\n".join(texts), {"engine": arguments.engine, "routers": made})
    for kind, _, score in found:
        if "shares" in score and not score["shares"]["completed"]:
            problem = f"the trained {kind} completed nothing on the run that it was scored on"
            raise WorkError(f"{problem}; train it for longer (--decisions), or lower the rate")
    return 0


def tune(arguments: Namespace) -> int:
    """Tune a rule, and write its file."""
    from scenarios.learn.tuning import Tuning, tuned_text

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
    world = world_of(scenario, default_folder(scenario))
    found, document = making.tune(wanted, world, output, arguments.ray)
    limit_s = document["p99_limit_s"] if document["objective"] == "energy" else None
    return output.result(f"{tuned_text(found, limit_s)}\nrouter: {path}", document)


def validate(arguments: Namespace) -> int:
    """Simulation against real executors."""
    from scenarios.tasks.validating import validate as compare_worlds

    output = Output(arguments)
    asked = asked_of(arguments, output).with_routers("validate_", arguments.router or (), arguments.seed or ())
    validation = compare_worlds(asked, goes_on=arguments.go_on)
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
        if arguments.plot is not None:
            save_picture(arguments.run, arguments.plot)
    return output.result(f"report: {path}", {"report": str(path)})
