"""The stage `validate`: every run of the plan on real executors and in simulation, kept, and set side by side."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hw.networks import ModelFile
from policies.errors import InputError
from scenarios.executors.campaign import Finished, Plan
from scenarios.executors.devices import device_of
from scenarios.executors.preflight import require_devices, require_ready, stamp_warnings
from scenarios.executors.run import validate_runs
from scenarios.files.documents import read_json, write_json
from scenarios.files.router_names import display_name, require_distinct_names
from scenarios.job.job import Job
from scenarios.job.network import load_measured
from scenarios.metrics.fidelity import Validation, ValidationRun, validate_results
from scenarios.runs.folder import RunFolder
from scenarios.runs.records import CORES_FILE, load_point, write_cores, write_run
from scenarios.terminal.progress import Progress
from scenarios.world.world import World


def validate(job: Job, world: World) -> Validation:
    """The same arrivals in simulation and on real executors; goes on from the last finished run.

    Raises:
        InputError: the scenario has no network or a server without a real device; or something of it does not fit
            this machine or what was made for it.
    """
    if not job.can_validate:
        problem = "real executors need a network (model.network or model.checkpoint) and a device for each server"
        raise InputError(job.scenario.name, "validate", problem)
    given = job.scenario.validate_
    require_distinct_names(given.routers)
    plan = Plan.of(world, [display_name(router) for router in given.routers], given)
    require_devices(job.scenario)
    require_ready(world, job.model, given.routers, job.trained)
    warn_of_another_stack(job, world)
    own = given.model_dump(mode="json")
    shape = (own, job.scenario.duration_s, job.scenario.warmup_s, job.scenario.training.deterministic)
    fingerprint = job.world_hash(shape, job.model.path, *job.trained_files(given.routers))
    target = job.folder / "validation.json"
    partial = job.folder / ".stages" / f"validate-{fingerprint[:12]}.json"

    def work() -> Sequence[Path]:
        if not partial.is_file():  # nothing of another plan stays
            shutil.rmtree(job.folder / "hardware", ignore_errors=True)
        write_cores(job.folder, world.cluster.router, [server.knobs for server in world.cluster.servers])
        validation = validate_world(
            world, job.folder, job.model, plan, given.routers, trained=job.trained, partial=partial,
            quiet=job.quiet,
        )  # fmt: skip
        write_json(target, validation)
        return [target, job.folder / CORES_FILE, *sorted(job.folder.path.glob("hardware/*/result.json"))]

    job.stage("validate", fingerprint, work)
    partial.unlink(missing_ok=True)
    document: Validation = read_json(target)
    return document


def warn_of_another_stack(job: Job, world: World) -> None:
    """A profile that was measured elsewhere may be good enough; the user should know before hardware is run."""
    servers = job.scenario.cluster.named_servers
    for server, profile in zip(servers, world.profiles, strict=True):
        if server.shares_device_with is None:
            for text in stamp_warnings(profile, device_of(server, servers)):
                job.warn(text)


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
    point = load_point(made.planned.load) if made.planned.kind == "pair" else made.planned.kind
    if made.simulated is not None:
        write_run(folder, made.run["simulated"], made.simulated, point=point)
    is_repeated = repeats > 1 and made.planned.kind != "saturated"
    write_run(
        folder, made.run["hardware"], made.hardware, point=point, repeat=made.planned.repeat if is_repeated else None
    )
