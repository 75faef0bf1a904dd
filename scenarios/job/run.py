"""The main run, end to end: model, calibration, router, comparison, validation; each stage resumes.

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
from scenarios.job.context import Run
from scenarios.job.deciding import with_decision_times
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


def carry_out(run: Run) -> JobOutcome:
    """Run everything; raises `InputError` or `WorkError`, and leaves what is finished for the next time."""
    with run.opened(), ExitStack() as joined:
        if run.can_validate and run.scenario.cluster.backend == "ray":
            joined.enter_context(joined_hosts(run.scenario.cluster, run.scenario.name))  # once, for all its stages
        return _carry_out(run)


def _carry_out(run: Run) -> JobOutcome:
    require_what_is_known(run)
    run.describe()
    if line := devices_text(run.scenario.cluster.owners):
        run.say(line)
    if run.scenario.model.is_runnable:
        require_accuracy(run)
        make_model(run)
        make_accuracy(run)
    make_profiles(run)
    world = run.world()
    require_routers(run.scenario, world.cluster.router.segments, world.cluster.router.widths)
    engine = "compiled" if run.kinds_to_make else engine_of(world, "auto", run.scenario.compare.runs)
    require_memory(world, engine)
    for warning in routers_tuned_elsewhere(run.routers, world.device_names, world.cluster):
        run.warn(warning)
    if run.can_validate:
        require_ready(world, run.model_to_serve, run.scenario.validate_.routers, None)
        warn_of_another_stack(run, world)
        if all(server.emulated for server in run.scenario.cluster.owners):  # not while anything is measured
            with compiling_ahead(run.say) as wait_for_engine:
                make_serving(run)
                wait_for_engine()
        else:
            make_serving(run)
        world = run.world()
    for doubt in world.trace_doubts():
        run.warn(f"warning: {doubt}")
    if text := pressure_text(world):
        run.say(text)
    make_routers(run, world, run.kinds_to_make, says_scores=True)
    world = with_decision_times(run, world, run.routers_that_run)
    comparison = compare(run, world, engine_to_go_on(run, world, engine))
    validation = validate(run, world) if run.can_validate else None
    return JobOutcome(comparison, validation)


def require_what_is_known(run: Run) -> None:
    """Report what can be known now to be wrong now, and not after hours; it needs no profile.

    Raises:
        InputError: something does not fit this machine, or together.
    """
    network = run.network
    if PPO in made_kinds(run.routers_that_run):
        require_one_class(run.scenario)
    run.router_parts(run.routers_that_run)  # one of the user's own that is not there, or refused, shows now
    if run.scenario.model.is_runnable:
        require_devices(run.scenario)
        if any(map(is_router_file, run.routers)) or _has_caps(run):
            with own_code(network):
                given = run.scenario.model.checkpoint
                model = network.build() if network and given is None else run.model.load()[0]
            require_routers(run.scenario, model.spec.segments, model.spec.widths)
            require_caps(run.scenario, model)
    if run.can_validate:
        require_possible(run.scenario)


def _has_caps(run: Run) -> bool:
    """Return whether the scenario limits servers' memory, or names its content."""
    cluster = run.scenario.cluster
    knobs = [cluster.greedy_of(server) for server in cluster.named_servers]
    devices = [server.device for server in cluster.named_servers if server.device is not None]
    said = any(each.vram_cap_gb is not None or not isinstance(each.preload, str) for each in knobs)
    return said or any(device.vram_gb is not None for device in devices)
