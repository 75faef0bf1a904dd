"""Commands of the main job: run, train, tune, validate, replay, report."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from scenarios.runs.records import LOG_FILE, read_cores, read_log
from scenarios.show.comparison import format_comparison
from scenarios.show.result import format_score
from scenarios.show.validation import format_validation
from scenarios.terminal.output import Output

if TYPE_CHECKING:
    from policies.greedy import GreedyKnobs
    from policies.interfaces import RouterConfig
    from policies.records import LoggedStep
    from policies.replay import Divergence

SHOWN = 400  # characters of an event or of a step's commands


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
    """Every event log of a run folder through fresh cores; exit code 1 where they part, or a log is not whole."""
    output = Output(arguments)
    folder = RunFolder(arguments.run)
    lengths = {name: entry.steps for name, entry in folder.entries.items() if entry.steps is not None}
    names = {path.relative_to(folder).as_posix() for path in folder.path.glob(f"*/*/{LOG_FILE}")}
    if not (names or lengths):
        raise InputError(str(folder.path), "", f"holds no event log ({LOG_FILE}); `slimsched validate` keeps them")
    router, knobs = read_cores(folder)
    answers = {
        str(Path(name).parent): _replayed(folder, name, lengths.get(name), router, knobs)
        for name in sorted(names | lengths.keys())
    }
    text = "\n".join(f"{name}: {answer or 'identical commands'}" for name, answer in answers.items())
    output.result(text, {"schema": "slimsched.replay/1", "runs": answers})
    return 1 if any(answers.values()) else 0


def _replayed(
    folder: RunFolder, name: str, length: int | None, router: RouterConfig, knobs: Sequence[GreedyKnobs]
) -> str | None:
    """What is wrong with a log, or with what fresh cores say to it; None where all of it is there and the same."""
    from policies.replay import replay as replay_log

    read = 0
    problem = "" if (folder / name).exists() else "the file is missing"

    def steps() -> Iterator[LoggedStep]:
        nonlocal read, problem
        try:
            for step in read_log(folder / name):
                yield step
                read += 1
        except InputError as error:
            problem = f"{error.key}: {error.problem}"

    with told_of(folder / name, folder.remedy(name)):
        divergence = None if problem else replay_log(steps(), router, knobs)
    if divergence is not None:
        return _divergence_text(divergence)
    if not problem and length in (None, read):
        return None
    of = "" if length is None else f" of {length}"
    word = "incomplete" if length is None or read < length else "too long"
    remedy = folder.remedy(name)
    return f"{word}: {read}{of} steps{f' ({problem})' if problem else ''}, with identical commands; {remedy}"


def _divergence_text(found: Divergence) -> str:
    """Where the cores part, and what each said there, each part on a line."""
    step = found.logged
    return "\n".join(
        [
            f"step {found.step} at {step.now_ns / 1e9:.6f} s, {step.core}, differs",
            f"  event     {_shortened(step.event)}",
            f"  logged    {_shortened(list(step.commands))}",
            f"  replayed  {_shortened(list(found.replayed))}",
        ]
    )


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def report(arguments: Namespace) -> int:
    """The page again."""
    from scenarios.show.report import build_report, save_picture

    output = Output(arguments)
    with told_of(arguments.run, "make it anew with `slimsched run`"):
        path = build_report(RunFolder(arguments.run, output.remark))
        if arguments.picture is not None:
            save_picture(arguments.run, arguments.picture)
    return output.result(f"report: {path}", {"report": str(path)})
