"""The file of a tuned router, which records how it was made; and how much tuning takes, reported before it begins."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kit.strict import with_paths
from policies.router_kinds import CONTROLLED
from policies.rules.rule_params import POINT, FixedRule, RuleSpec
from policies.rules.rule_parts import ControlSpec
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_routers import MADE_WITH, deciding_in
from scenarios.files.router_files import write_rule
from scenarios.learn.evaluator import Decisions, Evaluator, OnMeasured, TuningParams, search_threads
from scenarios.learn.tune import Tuned, able_tuples, options_of, require_possible, space_of
from scenarios.metrics.failure_signs import LIMIT
from scenarios.terminal.progress import Progress, Say

USUAL_TRIES: Final = 5  # of accuracy matching, each on all its runs
LOW: Final = 0.001  # of accuracy: a larger shortfall from the floor on other runs is reported


def save_tuned(
    path: Path,
    tuned: Tuned,
    experiment: Experiment,
    scenario: str,
    *,
    wall_s: float | None = None,
    is_of_a_run: bool = False,
    command: str = "",
) -> None:
    """Write the router's file.

    Args:
        scenario: its file or name, for the command that the router's file names.
        wall_s: how long it took; without it the file is the same every time.
        command: that makes the file again, if that is not one of `slimsched train`.
        is_of_a_run: it is in a run's folder under its kind's name: the file has all that it was made for.
    """
    params, spec = tuned.params, tuned.spec
    if params.control and tuned.kind in CONTROLLED:
        spec = spec.model_copy(update={"control": ControlSpec()})  # goals to keep: those of the operator
    making = {"command": command or train_command(scenario, tuned.kind, params), **_making(tuned, experiment)}
    making["wall_s"] = None if wall_s is None else round(wall_s, 1)
    if is_of_a_run:
        making[MADE_WITH] = dict(experiment.made_with)
    write_rule(path, spec.model_copy(update={"made_by": making}))


def train_command(scenario: str, kind: str, params: TuningParams) -> str:
    """Return the command that tunes the same again, with the numbers that the scenario decided."""
    settings: dict[str, object] = {} if params.class_floors else {"tuning.floor": f"{params.floor:g}"}
    settings |= {"tuning.decisions": params.decisions, "tuning.searches": params.searches, "seed": params.seed}
    if params.objective != "latency":
        settings |= {"tuning.objective": params.objective, "slo.p99_limit_s": f"{params.p99_limit_s:g}"}
    if params.control:
        settings["tuning.control"] = "true"
    changes = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    return shlex.join(["slimsched", "train", scenario, "--router", kind, *changes])


def _making(tuned: Tuned, experiment: Experiment) -> dict[str, Any]:
    params = tuned.params
    load = with_paths(experiment.scenario, lambda path: Path(path).name)  # files by their names alone
    keys = {"workload", "faults", "duration_s"}
    return {
        "devices": list(experiment.device_names),
        "deciding": deciding_in(experiment.cluster),
        "load": load.model_dump(mode="json", include=keys, exclude_defaults=True),
        "floor": params.floor,
        **({"class_floors": params.class_floors} if params.class_floors else {}),
        "decisions": tuned.spent.search,
        "settings_decisions": tuned.spent.settings,
        "matching_decisions": tuned.spent.matching,
        "final_evaluation_decisions": tuned.spent.final_evaluation,
        "decisions_in_all": tuned.spent.in_all,
        "searches": tuned.searches,
        "final_scores": [each.document for each in tuned.final_scores],
        "winner": tuned.winner.name,
        "origin": tuned.winner.origin,
        "accuracy": round(tuned.figures.accuracy, 6),
        "latency_mean_s": round(tuned.figures.mean_s, 6),
        "latency_p99_s": round(tuned.figures.p99_s, 6),
        "objective": params.objective,
        "p99_limit_s": params.p99_limit_s,
        "image_j": round(tuned.figures.image_j, 6),
        "unserved": round(tuned.figures.unserved, 6),
    }


def tuned_text(tuned: Tuned) -> str:
    """Describe what was found, in a line or two."""
    params, figures = tuned.params, tuned.figures
    beware = ""
    final = next(each for each in tuned.final_scores if each.finalist is tuned.winner)
    accuracy_elsewhere = final.figures.accuracy
    if params.class_floors and final.lacking > LOW / POINT:
        beware = f"\nbeware: on runs that tuning did not see a class is {final.lacking:.2f} points below its floor"
    elif not params.class_floors and accuracy_elsewhere < params.floor - LOW:
        beware = (
            f"\nbeware: on runs that tuning did not see it has {100 * accuracy_elsewhere:.2f} %, below the floor of "
        )
        beware += f"{100 * params.floor:g} %; set the floor on more runs (tuning.matching_runs)"
    if figures.unserved > LIMIT:
        beware += f"\nbeware: it leaves {100 * figures.unserved:.2f} % of their images unserved"
    limit_s = params.p99_limit_s
    if params.objective == "energy" and limit_s is not None and figures.p99_s > limit_s:
        remedy = "allow more (slo.p99_limit_s), or lower the load"
        beware += f"\nbeware: its p99 is above the limit of {1000 * limit_s:g} ms; {remedy}"
    return (
        f"{tuned.kind}: {1000 * figures.mean_s:.2f} ms (p99 {1000 * figures.p99_s:.1f}), {figures.image_j:.3g} J an "
        f"image at {100 * figures.accuracy:.3f} % on runs of tuning, {tuned.spent.in_all:,} decisions{beware}"
    )


# ------------------------------------------------------------------------------------------------- what it will take


def expected_decisions(experiment: Experiment, kind: str, params: TuningParams) -> Decisions:
    """Return about what tuning will simulate, from a run of each slice with the router that the search begins with.

    Others make larger or smaller micro-batches, searches settle early, and accuracy matching takes more tries or fewer.

    Raises:
        InputError: unknown kind; a floor that no width tuple reaches.
    """
    require_possible(experiment, kind, params)
    space = space_of(experiment, kind, params)
    with search_threads() as workers:
        evaluator = Evaluator(experiment, params, workers)
        tuples = able_tuples(evaluator, evaluator.params.floor)
        spec: RuleSpec = FixedRule(tuple=tuples[-1]) if space is None else space.spec(space.start)
        runs = [evaluator.trace_slice(f"expected:{part}", part) for part in range(params.episodes)]
        evaluator.measure([(spec, run) for run in runs])
    slices = evaluator.decisions
    full = params.matching_runs * slices / params.episodes * max(1.0, experiment.scenario.duration_s / params.episode_s)
    halved = (1 + max(params.episodes - 1, 0) / 2) / params.episodes  # half of the options have the first run alone
    options = round(halved * slices) * sum(len(each) for _, each in options_of(spec, evaluator))
    if space is None:
        return Decisions(settings=len(tuples) * options, final_evaluation=round(len(tuples) * full))
    return Decisions(
        search=params.searches * params.decisions,
        settings=(params.searches + 1) * options,
        matching=round(params.searches * USUAL_TRIES * full),
        final_evaluation=round(params.searches * full),
    )


@contextmanager
def announced(
    experiment: Experiment, kind: str, params: TuningParams, *, say: Say, quiet: bool
) -> Iterator[OnMeasured]:
    """Print what is expected, and show a bar over all of it, which is updated with what was simulated so far."""
    expected = expected_decisions(experiment, kind, params)
    say(f"tune {kind}: about {expected.text}")
    spent = Decisions()
    with Progress(f"tune {kind}", expected.in_all, unit="decision", quiet=quiet) as bar:

        def tell(simulated: Decisions) -> None:
            nonlocal spent
            spent = simulated
            bar.set(simulated.in_all, simulated.at_least(expected).in_all)

        yield tell
        bar.set(spent.in_all, spent.in_all)
