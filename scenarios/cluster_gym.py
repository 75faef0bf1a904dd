"""The simulated cluster as a Gymnasium environment: one step is one routing decision.

`gymnasium.make("slimsched.gym:SlimCluster-v0", scenario=...)` makes one, and then the name alone does.
`gymnasium.make_vec` makes many on the compiled engine, with `num_envs=64`, say (with `vectorization_mode="sync"` one by
one on the reference). They observe and are paid the same, bit for bit. `scenario` is a file, or the name of a shipped
one; `changes={"workload.rate_img_s": 600}` are other values than its own. `duration_s` is the length of an episode,
`training.horizon_s` of the scenario by default; `engine` of a single one is `simpy` or `compiled`.

An action is (server, width index, micro-batch size index). What is masked is replaced by the nearest that is allowed:
`info` has `server_mask` and `width_mask` before, and `replaced` after. `action_masks()` has them in one row, as
sb3-contrib's `MaskablePPO` requires it. With `batching_delays_s=[0.002, 0.01]` a fourth index waits so long for others
to join (0: does not).

When an episode ends, `info["figures"]` has the figures of its run: `accuracy`, `latency_mean_s`, `latency_p99_s`,
`energy_per_image_j`, `energy_j`, `throughput_img_s`, `completed_share`, over all its images; and `replaced_share`, the
share of its actions that were masked and replaced. A figure is not-a-number if nothing was completed.

Example:
    ```python
    import gymnasium

    env = gymnasium.make("slimsched.gym:SlimCluster-v0", scenario="paper", duration_s=0.5)
    observation, info = env.reset(seed=0)
    truncated = False
    while not truncated:
        server = int(info["server_mask"].argmax())  # the first that is free, at its narrowest width
        action = (server, int(info["width_mask"][server].argmax()), 0)
        observation, reward, _, truncated, info = env.step(action)
    print(info["figures"])
    ```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, nan
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import gymnasium
from gymnasium import logger

from kit.errors import InputError, nearest
from kit.jit_cache import IS_ON, is_kept
from scenarios.terminal.progress import say

if TYPE_CHECKING:
    from policies.run_records import RunColumns
    from scenarios.experiment.resolved_scenario import Experiment
    from scenarios.metrics.run_result import Simulator
    from sim.cluster_env import Run, SlimClusterEnv
    from sim.compiled.vector_env import SlimClusterVectorEnv
    from sim.simulated_cluster import RunSpec

PICTURES: Final = "rgb_array"
ID = "SlimCluster-v0"
FIGURES = (
    *("accuracy", "latency_mean_s", "latency_p99_s", "energy_per_image_j", "energy_j", "throughput_img_s"),
    "completed_share",
)
"""Of an episode, as `scenarios.metrics.metric_catalogue` names and explains them."""


def make_env(
    scenario: str | Path,
    duration_s: float | None = None,
    engine: Simulator = "simpy",
    batching_delays_s: Sequence[float] = (),
    changes: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
) -> SlimClusterEnv:
    """Make an environment for a scenario whose profiles and accuracy are known (a run folder may delay them).

    With `batching_delays_s` an action may be to wait (`SlimClusterEnv`); the scenario's `router.max_batching_delay_s`
    must be as long. `changes` are other values than the file's (`scenarios.files.scenario_reading.load_scenario`).
    Nothing is drawn.

    Raises:
        InputError: the scenario needs something measured first; `slimsched run` does that. Or it needs what the
            compiled engine can't do, or an argument is invalid.
    """
    from scenarios.metrics.run_result import Simulator

    _require_undrawn(render_mode)
    if engine not in get_args(Simulator):
        raise InputError(ID, "engine", f"{engine!r}; {nearest(str(engine), get_args(Simulator))}")
    if engine == "compiled":
        _tell_compiling("sim.compiled.event_loop", "run_cluster")
    return experiment_env(_experiment(scenario, changes), duration_s, engine, batching_delays_s)


def experiment_env(
    experiment: Experiment,
    duration_s: float | None = None,
    engine: Simulator = "simpy",
    batching_delays_s: Sequence[float] = (),
) -> SlimClusterEnv:
    """Make an environment for an experiment; each episode is one run of `duration_s` (the training horizon by default).

    On either engine observations and rewards are the same, bit for bit.
    """
    from policies.observation import ObservationSpec
    from sim.cluster_env import SlimClusterEnv

    limits_w = tuple(profile.power.cap_w for profile in experiment.profiles)
    simulate = partial(_simulated, experiment, _plan(experiment, duration_s), engine)
    return SlimClusterEnv(simulate, ObservationSpec(limits_w), batching_delays_s, figures_of)


def _simulated(experiment: Experiment, plan: Callable[[int], RunSpec], engine: Simulator, seed: int) -> Run:
    return experiment.simulation(plan(seed), engine)


def make_vector_env(
    scenario: str | Path,
    num_envs: int = 1,
    duration_s: float | None = None,
    batching_delays_s: Sequence[float] = (),
    changes: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
) -> SlimClusterVectorEnv:
    """Make environments on the compiled engine, stepped together.

    Raises:
        InputError: the scenario needs something measured first, or something that the compiled engine can't do; or an
            argument is invalid.
    """
    from sim.compiled.vector_env import SlimClusterVectorEnv

    _require_undrawn(render_mode)
    if not isinstance(num_envs, Integral) or num_envs < 1:
        raise InputError(ID, "num_envs", f"{num_envs!r}: must be a whole number from 1")
    experiment = _experiment(scenario, changes)
    plan = _plan(experiment, duration_s)
    _tell_compiling("sim.compiled.vector_env", "step_clusters")
    return SlimClusterVectorEnv(experiment.cluster, plan, num_envs, batching_delays_s, figures_of)


def _require_undrawn(render_mode: str | None) -> None:
    """Refuse to draw: Stable-Baselines3, CleanRL and others ask every environment for frames, and most show none."""
    if render_mode == PICTURES:
        logger.warn(f"{ID}: render_mode: nothing is drawn, so {PICTURES!r} gives no images")
    elif render_mode is not None:
        raise InputError(ID, "render_mode", f"{render_mode!r}: nothing is drawn; leave it out, or give None")


def _tell_compiling(module: str, entry: str) -> None:
    """Report the compilation before the compiled engine's first use on this machine, which takes a minute."""
    if IS_ON and not is_kept(module, entry):
        from scenarios.terminal.compiling import compiling_text  # opens Numba

        say(compiling_text(module))


def figures_of(run: RunSpec, columns: RunColumns) -> Mapping[str, float]:
    """Return `FIGURES` of an episode, over all its images."""
    from policies.vocabulary import NS_PER_S, Provenance
    from scenarios.metrics.metric_catalogue import measures
    from scenarios.metrics.run_result import RunLabel, Window, summarise

    label = RunLabel("", "", run.seed, "simulation", "simpy", Provenance.MODELLED, "measured")
    result = summarise(columns, label, Window(0.0, run.horizon_ns / NS_PER_S, end="cut"), wall_s=0.0)
    figures = {measure.name: measure.of(result) for measure in measures(*FIGURES)}
    return {name: nan if value is None else float(value) for name, value in figures.items()}


def _experiment(scenario: str | Path, changes: Mapping[str, Any] | None) -> Experiment:
    from scenarios.experiment.scenario_building import default_folder, make_experiment
    from scenarios.files.bundled_files import scenario_file
    from scenarios.files.scenario_reading import load_scenario

    read = load_scenario(scenario_file(Path(scenario)), changes)
    if read.classes:
        raise InputError(read.name, "classes", f"{ID} shows no classes of requests; leave them out")
    return make_experiment(read, default_folder(read))


def _plan(experiment: Experiment, duration_s: float | None) -> Callable[[int], RunSpec]:
    """Map a seed to an episode of such a length, by default of the training horizon."""
    horizon_s = experiment.scenario.training.horizon_s if duration_s is None else duration_s
    if not (isinstance(horizon_s, Real) and 0 < horizon_s < inf):
        raise InputError(ID, "duration_s", f"{duration_s!r}: expected a number of seconds above 0")
    return partial(_episode, experiment, horizon_s)


def _episode(experiment: Experiment, horizon_s: float, seed: int) -> RunSpec:
    from scenarios.experiment.workloads import TraceSlice

    return experiment.run_spec(seed, duration_s=horizon_s, detail=False, end="cut", trace_slice=TraceSlice())


if ID not in gymnasium.registry:
    gymnasium.register(
        ID, entry_point="scenarios.cluster_gym:make_env", vector_entry_point="scenarios.cluster_gym:make_vector_env"
    )
