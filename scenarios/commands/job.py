"""Commands of the main job: run, train, tune, validate, replay, report."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.errors import InputError
from scenarios.commands.shared import (
    announcing_compilation,
    begin_job,
    make_job,
    require_trained,
    scenario_and_folder,
    tell_overload,
    with_routers,
)
from scenarios.files.router_names import TRAINED_ROUTER
from scenarios.runs.folder import RunFolder
from scenarios.runs.records import LOG_FILE, read_cores, read_log
from scenarios.show.comparison import format_comparison
from scenarios.show.result import format_score
from scenarios.show.validation import format_validation
from scenarios.terminal.output import Output

if TYPE_CHECKING:
    from policies.replay import Divergence

SHOWN = 400  # characters of an event or of a step's commands


def run(arguments: Namespace) -> int:
    """Everything, end to end."""
    from scenarios.job.run import carry_out

    output = Output(arguments)
    scenario, folder = scenario_and_folder(arguments)
    job = make_job(scenario, folder, output)
    with announcing_compilation(output, (*scenario.compare.routers, *scenario.validate_.routers)):
        outcome = carry_out(job)
    texts = [format_comparison(outcome.comparison)]
    if outcome.validation is not None:
        texts.append(format_validation(outcome.validation))
    document = {"comparison": outcome.comparison, "validation": outcome.validation, "report": str(outcome.report)}
    return output.result("\n\n".join([*texts, f"report: {outcome.report}"]), document)


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
    job, world = begin_job(scenario, folder, output)
    tell_overload(output, world)
    with announcing_compilation(output, (TRAINED_ROUTER,), arguments.engine):
        score = make_router(job, world, arguments.engine)
    text = f"{format_score(score)}\nrouter: {job.trained}"
    return output.result(text, {"router": str(job.trained), "engine": arguments.engine, "score": score})


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
    with announcing_compilation(output, (), "compiled"):
        found, document = tune_router(wanted, quiet=output.quiet)
    return output.result(f"{tuned_text(found)}\nrouter: {path}", document)


def validate(arguments: Namespace) -> int:
    """Simulation against real executors."""
    from scenarios.job import validation as stage

    output = Output(arguments)
    scenario, folder = scenario_and_folder(arguments)
    scenario = with_routers(scenario, "validate_", arguments)
    require_trained(scenario.validate_.routers, folder)
    job, world = begin_job(scenario, folder, output)
    with announcing_compilation(output, scenario.validate_.routers):
        validation = stage.validate(job, world)
    return output.result(format_validation(validation), validation)


def replay(arguments: Namespace) -> int:
    """Every event log of a run folder through fresh cores; exit code 1 where they part."""
    from policies.replay import replay as replay_log

    output = Output(arguments)
    folder: Path = arguments.run
    logs = sorted(folder.glob(f"*/*/{LOG_FILE}"))
    if not logs:
        raise InputError(str(folder), "", f"holds no event log ({LOG_FILE}); `slimsched validate` keeps them")
    router, knobs = read_cores(RunFolder(folder))
    answers = {}
    for log in logs:
        name = str(log.parent.relative_to(folder))
        divergence = replay_log(read_log(log), router, knobs)
        answers[name] = None if divergence is None else _divergence_text(divergence)
    text = "\n".join(f"{name}: {answer or 'identical commands'}" for name, answer in answers.items())
    output.result(text, {"schema": "slimsched.replay/1", "runs": answers})
    return 1 if any(answers.values()) else 0


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

    path = build_report(arguments.run)
    if arguments.picture is not None:
        save_picture(arguments.run, arguments.picture)
    return Output(arguments).result(f"report: {path}", {"report": str(path)})
