"""The end-to-end workflow of a scenario, stage by stage, and the compilation that runs ahead of it.

Compilation (`compiling_ahead`): a separate process of the lowest priority compiles the engine.

Stages (`carry_out`): a stage is skipped if its outputs exist and what it was made from is unchanged, so an
interrupted job resumes after the last finished stage (and, inside calibration, training and comparison, after the last
finished piece).

=============================  ================================  =======================================================
stage                          by                                makes
=============================  ================================  =======================================================
`model`, `accuracy`            `scenarios.job.network_stages`    the network's weights, its accuracy by width tuple
`calibrate-SERVER`, `serving`  `scenarios.job.profile_stages`    each device's profile
`train`, `train-KIND`          `scenarios.job.training_stage`    the routers that the scenario names as its own, scores
`decide-ROUTER`                `scenarios.job.profile_stages`    what each router's own decisions take on this host
`compare`                      `scenarios.job.comparing_stage`   every router with every seed, simulated
`validate`                     `scenarios.job.validation_stage`  simulation compared with real executors
=============================  ================================  =======================================================
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kit.jit_cache import IS_ON, cache_folder, cache_problem, is_kept
from scenarios.executors.device_choice import joined_hosts
from scenarios.executors.preflight import require_caps, require_devices, require_possible, require_ready
from scenarios.experiment.scenario_building import default_folder, make_experiment
from scenarios.experiment.scenario_routers import require_routers, routers_tuned_elsewhere
from scenarios.files.bundled_files import PPO, made_kinds, scenario_file
from scenarios.files.router_files import is_router_file
from scenarios.files.scenario_reading import load_scenario
from scenarios.job.comparing_stage import compare, engine_to_go_on
from scenarios.job.job_stages import Run, devices_text, pressure_text
from scenarios.job.network_stages import make_accuracy, make_model, own_code, require_accuracy
from scenarios.job.profile_stages import make_profiles, make_serving, with_decision_times
from scenarios.job.training_stage import make_routers
from scenarios.job.validation_stage import validate, warn_of_another_stack
from scenarios.learn.ppo_training import require_one_class
from scenarios.metrics.fidelity import ValidationDocument
from scenarios.metrics.router_comparison import ComparisonDocument
from scenarios.runs.simulated_runs import engine_of, require_memory
from scenarios.terminal.progress import Say

SHIPPED = "paper"
LOWEST_PRIORITY = 19


@contextmanager
def compiling_ahead(say: Say) -> Iterator[Callable[[], None]]:
    """Begin to compile the engine if its code is not cached yet; yields a function that waits until that is done."""
    if not IS_ON or cache_problem() is not None or is_kept("sim.compiled.event_loop", "run_cluster"):
        yield lambda: None
        return
    say(f"compile: the engine, in the background; only once, it is kept in {cache_folder()}")
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-m", __name__], stdin=nowhere, stdout=nowhere, stderr=nowhere)  # noqa: S603 - this module

    def wait() -> None:
        if process.poll() is None:
            say("compile: still running; the job waits for it")
            process.wait()  # if it failed, the first simulation compiles, and shows why

    try:
        yield wait
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Compile it by a simulation's first steps."""
    os.nice(LOWEST_PRIORITY)
    scenario = load_scenario(scenario_file(Path(SHIPPED)))
    experiment = make_experiment(scenario, default_folder(scenario))
    experiment.simulation(experiment.run_spec(scenario.seed), "compiled").advance()


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
    experiment = run.experiment()
    require_routers(run.scenario, experiment.cluster.router.segments, experiment.cluster.router.widths)
    engine = "compiled" if run.kinds_to_make else engine_of(experiment, "auto", run.scenario.compare.runs)
    require_memory(experiment, engine)
    for warning in routers_tuned_elsewhere(run.routers, experiment.device_names, experiment.cluster):
        run.warn(warning)
    if run.can_validate:
        require_ready(experiment, run.model_to_serve, run.scenario.validate_.routers, None)
        warn_of_another_stack(run, experiment)
        if all(server.emulated for server in run.scenario.cluster.owners):  # not while anything is measured
            with compiling_ahead(run.say) as wait_for_engine:
                make_serving(run)
                wait_for_engine()
        else:
            make_serving(run)
        experiment = run.experiment()
    for doubt in experiment.trace_doubts():
        run.warn(f"warning: {doubt}")
    if text := pressure_text(experiment):
        run.say(text)
    make_routers(run, experiment, run.kinds_to_make, says_scores=True)
    experiment = with_decision_times(run, experiment, run.routers_that_run)
    comparison = compare(run, experiment, engine_to_go_on(run, experiment, engine))
    validation = validate(run, experiment) if run.can_validate else None
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
                checkpoint = run.scenario.model.checkpoint
                model = network.build() if network and checkpoint is None else run.model.load()[0]
            require_routers(run.scenario, model.spec.segments, model.spec.widths)
            require_caps(run.scenario, model)
    if run.can_validate:
        require_possible(run.scenario)


def _has_caps(run: Run) -> bool:
    """Return whether the scenario limits servers' memory, or names its content."""
    cluster = run.scenario.cluster
    params = [cluster.greedy_of(server) for server in cluster.named_servers]
    devices = [server.device for server in cluster.named_servers if server.device is not None]
    if any(param.vram_cap_gb is not None or not isinstance(param.preload, str) for param in params):
        return True
    return any(device.vram_gb is not None for device in devices)


if __name__ == "__main__":
    main()
