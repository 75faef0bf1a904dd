"""The stage that validates: every run of the plan, kept, and set side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hw.accuracy import Evaluation
from hw.datasets import Dataset, is_image_folder, load_dataset
from hw.networks import ModelFile
from policies.errors import InputError
from scenarios.executors.campaign import Finished, Plan
from scenarios.executors.run import validate_runs
from scenarios.files.documents import read_json, write_json
from scenarios.files.spec import Scenario
from scenarios.job.network import blamed_on
from scenarios.metrics.fidelity import Validation, ValidationRun, validate_results
from scenarios.runs.folder import RunFolder
from scenarios.runs.records import load_point, write_run
from scenarios.terminal.progress import Progress
from scenarios.world.world import World


def validate_world(
    world: World,
    folder: RunFolder,
    model: ModelFile,
    plan: Plan,
    routers: Sequence[str],
    *,
    trained: Path | None,
    partial: Path,
    quiet: bool = False,
) -> Validation:
    """Make every run of the plan, keep its records in the folder, and set the results side by side.

    Finished runs are kept in `partial` as well; those that are there already are not made again.
    """
    evaluation = world.accuracy.evaluation
    if evaluation is None:
        raise InputError(world.scenario.name, "model.accuracy", "real executors need the network's own evaluation")
    data = load_measured(world.scenario, evaluation)
    runs: list[ValidationRun] = read_json(partial) if partial.is_file() else []
    total = round(plan.duration_s * plan.hardware_runs)
    with Progress("real executors", total, unit="second", quiet=quiet) as progress:

        def tell(state: Any) -> None:
            progress.set(round(len(runs) * plan.duration_s + min(state.now_ns, state.horizon_ns) / 1e9))

        for made in validate_runs(
            world, model, data, plan, routers, trained=trained, finished=tuple(runs), on_progress=tell
        ):
            keep_runs(folder, made, plan.repeats)
            runs.append(made.run)
            write_json(partial, runs)
    return validate_results(runs, world.power_provenance)


def keep_runs(folder: RunFolder, made: Finished, repeats: int) -> None:
    """The records of a hardware run and, where it is new, of its simulated twin."""
    point = load_point(made.job.load) if made.job.kind == "pair" else made.job.kind
    if made.simulated is not None:
        write_run(folder, made.run["simulated"], made.simulated, point=point)
    is_repeated = repeats > 1 and made.job.kind != "saturated"
    write_run(folder, made.run["hardware"], made.hardware, point=point, repeat=made.job.repeat if is_repeated else None)


def load_measured(scenario: Scenario, evaluation: Evaluation) -> Dataset:
    """The data set that an accuracy was measured on: the images that requests are drawn from.

    Raises:
        InputError: it is not there, or is a folder that has changed since.
    """
    with blamed_on(scenario):
        given = scenario.model.dataset
        if not is_image_folder(given):
            return load_dataset(evaluation.dataset)
        found = load_dataset(given)
        if found.name != evaluation.dataset:
            problem = f"the accuracy was measured on {evaluation.dataset}, this is {found.name}; evaluate again"
            raise InputError("model", "dataset", problem)
        return found
