"""The main job, end to end: model, calibration, router, comparison, validation; each stage resumes.

A stage is skipped when its outputs are there and what it was made from is unchanged, so an interrupted job resumes
after the last finished stage (and, inside calibration, training and comparison, after the last finished piece).

=============================  ===========================  ===========================================================
stage                          by                           makes
=============================  ===========================  ===========================================================
`model`, `accuracy`            `scenarios.job.network`      the network's weights, its accuracy by width tuple
`calibrate-SERVER`, `serving`  `scenarios.job.profiles`     each device's profile
`train`, `train-KIND`          `scenarios.job.router`       the routers that the scenario names as its own, scores
`decide-ROUTER`                `scenarios.job.deciding`     what each router's own decisions take on this host
`compare`                      `scenarios.job.comparison`   every router with every seed, simulated
`validate`                     `scenarios.job.validation`   simulation compared with real executors
=============================  ===========================  ===========================================================
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from scenarios.executors.hosts import joined_hosts
from scenarios.executors.preflight import require_caps, require_devices, require_possible, require_ready
from scenarios.files.made_routers import PPO, made_kinds
from scenarios.files.router_names import is_router_file
from scenarios.job.ahead import compiling_ahead
from scenarios.job.comparison import compare, engine_to_go_on
from scenarios.job.deciding import with_decision_times
from scenarios.job.job import ScenarioJob
from scenarios.job.network import make_accuracy, make_model, own_code, require_accuracy
from scenarios.job.profiles import make_profiles, make_serving
from scenarios.job.router import make_routers
from scenarios.job.sizes import devices_text, pressure_text
from scenarios.job.validation import validate, warn_of_another_stack
from scenarios.learn.train import require_one_class
from scenarios.metrics.comparison import ComparisonDocument
from scenarios.metrics.fidelity import ValidationDocument
from scenarios.runs.engines import engine_of, require_memory
from scenarios.world.routers import require_routers, routers_tuned_elsewhere


@dataclass(frozen=True)
class JobOutcome:
    """What a job ends with: the tables' documents."""

    comparison: ComparisonDocument
    validation: ValidationDocument | None


def carry_out(job: ScenarioJob) -> JobOutcome:
    """Run everything; raises `InputError` or `WorkError`, and leaves what is finished for the next time."""
    with job.folder.opened(), ExitStack() as joined:
        if job.can_validate and job.scenario.cluster.backend == "ray":
            joined.enter_context(joined_hosts(job.scenario.cluster, job.scenario.name))  # once, for all its stages
        return _carry_out(job)


def _carry_out(job: ScenarioJob) -> JobOutcome:
    require_what_is_known(job)
    job.describe()
    if line := devices_text(job.scenario.cluster.owners):
        job.say(line)
    if job.scenario.model.is_runnable:
        require_accuracy(job)
        make_model(job)
        make_accuracy(job)
    make_profiles(job)
    world = job.world()
    require_routers(job.scenario, world.cluster.router.segments, world.cluster.router.widths)
    engine = "compiled" if job.kinds_to_make else engine_of(world, "auto", job.scenario.compare.runs)
    require_memory(world, engine)
    for warning in routers_tuned_elsewhere(job.routers, world.device_names, world.cluster):
        job.warn(warning)
    if job.can_validate:
        require_ready(world, job.model_to_serve, job.scenario.validate_.routers, None)
        warn_of_another_stack(job, world)
        if all(server.emulated for server in job.scenario.cluster.owners):  # not while anything is measured
            with compiling_ahead(job.say) as wait_for_engine:
                make_serving(job)
                wait_for_engine()
        else:
            make_serving(job)
        world = job.world()
    for doubt in world.trace_doubts():
        job.warn(f"warning: {doubt}")
    if text := pressure_text(world):
        job.say(text)
    make_routers(job, world, job.kinds_to_make, says_scores=True)
    world = with_decision_times(job, world, job.routers_that_run)
    comparison = compare(job, world, engine_to_go_on(job, world, engine))
    validation = validate(job, world) if job.can_validate else None
    return JobOutcome(comparison, validation)


def require_what_is_known(job: ScenarioJob) -> None:
    """Report what can be known now to be wrong now, and not after hours; it needs no profile.

    Raises:
        InputError: something does not fit this machine, or together.
    """
    network = job.network
    if PPO in made_kinds(job.routers_that_run):
        require_one_class(job.scenario)
    job.router_parts(job.routers_that_run)  # one of the user's own that is not there, or refused, shows now
    if job.scenario.model.is_runnable:
        require_devices(job.scenario)
        if any(map(is_router_file, job.routers)) or _has_caps(job):
            with own_code(network):
                given = job.scenario.model.checkpoint
                model = network.build() if network and given is None else job.model.load()[0]
            require_routers(job.scenario, model.spec.segments, model.spec.widths)
            require_caps(job.scenario, model)
    if job.can_validate:
        require_possible(job.scenario)


def _has_caps(job: ScenarioJob) -> bool:
    """Return whether the scenario limits servers' memory, or names its content."""
    cluster = job.scenario.cluster
    knobs = [cluster.greedy_of(server) for server in cluster.named_servers]
    devices = [server.device for server in cluster.named_servers if server.device is not None]
    said = any(each.vram_cap_gb is not None or not isinstance(each.preload, str) for each in knobs)
    return said or any(device.vram_gb is not None for device in devices)
