"""Simulated runs: one or many routers and seeds on the same arrivals, the default engine, and predictions.

Engines: both give the same results (docs/engines.md). The reference is available at once. The compiled engine takes
half a second to open, and half a minute to compile on a machine without its cached code, and is then 50 times as fast.

Predictions: the p99 of one simulated run of a thousand images is chaotic. In a quarter to a half of all pairs, two
replicas differ by more than 10 %. So a prediction is a range.
"""

from __future__ import annotations

import time  # noqa: TID251 - wall time of a run
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypedDict, Unpack

import numpy as np

from hw.host_resources import core_count, machine_bytes
from kit.errors import InputError
from kit.jit_cache import IS_ON, is_kept
from kit.parallel import each
from kit.random_streams import derived_seed, stream
from policies.interfaces import RoutingPolicy
from policies.run_records import RunRecord
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_routers import RouterMaker
from scenarios.files.router_files import display_name, require_distinct_names
from scenarios.files.scenario_keys import ChaosFault
from scenarios.metrics.failure_signs import against_reference, diagnosed
from scenarios.metrics.metric_catalogue import VALIDATED
from scenarios.metrics.run_result import Result, RunLabel, Simulator, summarise, window_of
from scenarios.metrics.statistics import Ranges, range_of
from sim.simulated_cluster import RunSpec

if TYPE_CHECKING:
    from sim.compiled.compiled_simulation import CompiledSimulation
    from sim.simulated_cluster import Simulation


FEW_IMAGES: Mapping[Simulator, int] = {"simpy": 20_000, "compiled": 500_000}  # in all runs: seconds of one process


class RunOptions(TypedDict, total=False):
    """What one run may have otherwise than the scenario; both engines give the same.

    Attributes:
        scale: multiplies the workload's rate.
        detail: without it only requests are recorded.
        keep_log: every step; by the reference alone.
        slowdowns: those of the devices if they are known (`RunSpec.slowdowns`).
        replica: the number of another draw of all that executors do not repeat: what profiles and the router draw, and
            how late an image comes. Arrivals, images and faults stay.
    """

    duration_s: float | None
    warmup_s: float | None
    scale: float
    end: str | None
    detail: bool
    keep_log: bool
    slowdowns: Mapping[int, tuple[tuple[int, float], ...]] | None
    replica: int
    engine: Simulator


def run_simulation(
    experiment: Experiment, policy: RoutingPolicy, router: str, seed: int, **options: Unpack[RunOptions]
) -> tuple[Result, RunRecord]:
    """Run once and return the summary and the record. `router` names the policy in the result and its random stream.

    Both engines give the same result but for `wall_s` and `engine`, and the same record. Without the record,
    `simulate_metrics` is faster and takes far less memory.
    """
    result, simulation = _simulate(experiment, policy, router, seed, options)
    return result, simulation.record()


def simulate_metrics(
    experiment: Experiment, policy: RoutingPolicy, router: str, seed: int, **options: Unpack[RunOptions]
) -> Result:
    """Return the result of `run_simulation`, bit for bit, without its record."""
    return _simulate(experiment, policy, router, seed, options)[0]


def _simulate(
    experiment: Experiment, policy: RoutingPolicy, router: str, seed: int, options: RunOptions
) -> tuple[Result, Simulation | CompiledSimulation]:
    experiment = experiment.decided_by(router)
    scenario, engine = experiment.scenario, options.get("engine", "simpy")
    duration_s, warmup_s = options.get("duration_s"), options.get("warmup_s")
    run = experiment.run_spec(
        seed,
        duration_s=duration_s,
        scale=options.get("scale", 1.0),
        end=options.get("end"),
        detail=options.get("detail", True),
        keep_log=options.get("keep_log", False),
        slowdowns=options.get("slowdowns"),
    )
    due_ns = run.arrivals_ns
    if "replica" in options:
        run = _replica(run, derived_seed(seed, f"replica {options['replica']}"))
    if engine == "compiled":
        experiment.simulation(run, engine).advance()  # compiled or loaded now: that is not part of the run's wall time
    began_ns = time.monotonic_ns()
    simulation = experiment.simulation(run, engine)
    simulation.finish(policy, stream(run.seed, f"router:{router}"))
    columns = simulation.columns()
    if "replica" in options:
        requests = columns.requests
        columns = replace(columns, requests=replace(requests, arrived_ns=due_ns[requests.request]))
    wall_s = (time.monotonic_ns() - began_ns) / 1e9
    label = RunLabel(
        scenario=scenario.name,
        router=router,
        seed=seed,
        mode="simulation",
        engine=engine,
        provenance=experiment.provenance,
        accuracy_provenance=experiment.accuracy.provenance,
        emulated_slowdowns=experiment.emulated_slowdowns,
        own_decision_s=experiment.decision_times_s.get(router, 0.0),
    )
    warmup_s = scenario.warmup_s if warmup_s is None else warmup_s
    window = window_of(scenario, warmup_s, duration_s or scenario.duration_s, run.end, run.classes)
    result = summarise(columns, label, window, wall_s=wall_s, prior=experiment.accuracy.prior)
    return diagnosed(result, experiment.signature_context), simulation


def simulate_experiment(
    experiment: Experiment, router: str, seed: int, made_in: Path | None = None, engine: Simulator = "simpy"
) -> Result:
    """Run the scenario once with one router."""
    return simulate_metrics(experiment, experiment.router(router, made_in), display_name(router), seed, engine=engine)


def simulate_all(
    experiment: Experiment,
    routers: Sequence[str],
    seeds: Sequence[int],
    *,
    made_in: Path | None = None,
    finished: Sequence[Result] = (),
    on_result: Callable[[Result], None] | None = None,
    engine: Simulator = "simpy",
    jobs: int = 1,
) -> list[Result]:
    """Run every router with every seed, in that order; runs that are among `finished` are not run again.

    Args:
        made_in: the folder of the run that makes the scenario's own routers.
        on_result: called with each result, as it comes.
        jobs: number of runs at a time (`kit.parallel`); the results are the same, bit for bit but for `wall_s`.

    Raises:
        InputError: two routers have one name, or one is not known or not made yet.
        WorkError: a process was killed, or a run can't continue.
    """
    require_distinct_names(routers)
    by_run = {(result["router"], result["seed"]): result for result in finished}
    pairs = [(router, seed) for router in routers for seed in seeds]
    results = [by_run.get((display_name(router), seed)) for router, seed in pairs]
    for result in results:
        if result is not None and on_result is not None:
            on_result(result)
    open_indices = [index for index, result in enumerate(results) if result is None]
    makers = {
        router: experiment.router_maker(router, made_in) for router in {pairs[index][0] for index in open_indices}
    }
    tasks = [(makers[router], seed) for router, seed in (pairs[index] for index in open_indices)]
    prepare = partial(_compile, seeds[0]) if engine == "compiled" else None
    with closing(each(_run_of, (experiment.with_series(), engine), tasks, jobs, prepare)) as runs:
        for index, result in runs:
            results[open_indices[index]] = result
            if on_result is not None:
                on_result(result)
    return against_reference([result for result in results if result is not None], experiment.signature_context)


def _compile(seed: int, common: tuple[Experiment, Simulator]) -> None:
    """Compile once on a machine, and not in every process."""
    experiment, engine = common
    experiment.simulation(experiment.run_spec(seed), engine).advance()


def _run_of(common: tuple[Experiment, Simulator], task: tuple[RouterMaker, int]) -> Result:
    """Run one run, in any process, of any machine."""
    (experiment, engine), (maker, seed) = common, task
    return simulate_metrics(experiment, maker.make(experiment.context), display_name(maker.name), seed, engine=engine)


def default_jobs(experiment: Experiment, runs: int, seed: int, engine: Simulator) -> int:
    """Return as many processes as there are cores; 1 if starting them would take longer than the runs."""
    images = runs * len(experiment.arrivals_ns(seed, experiment.scenario.duration_s))
    return core_count() if images > FEW_IMAGES[engine] else 1


EngineChoice = Simulator | Literal["auto"]
SHORT_IMAGES: Final = 4_000  # in all runs: half a second of the reference
SHORT_IMAGES_UNKEPT: Final = 200_000  # if the compiled engine has to be compiled first
_IMAGE_BYTES = {"simpy": 1400, "compiled": 700}
_DRAWN_BYTES = 16  # of an arrival that is drawn, whether kept or thinned out


def engine_of(experiment: Experiment, choice: EngineChoice, runs: int, *, duration_s: float | None = None) -> Simulator:
    """Return the engine that was asked for; by default the reference for short work, the compiled one for the rest."""
    if choice != "auto":
        return choice
    images = runs * _images(experiment, duration_s or experiment.scenario.duration_s)[0]
    if not IS_ON or images <= SHORT_IMAGES:
        return "simpy"
    short = SHORT_IMAGES if is_kept("sim.compiled.event_loop", "run_cluster") else SHORT_IMAGES_UNKEPT
    return "compiled" if images > short else "simpy"


def able_to_run(
    experiment: Experiment, engine: Simulator, run: Callable[[], RunSpec], say: Callable[[str], None]
) -> Simulator:
    """Return a default engine, or simpy with a message if the default can't do such a run."""
    if engine == "compiled":
        from sim.compiled import UnsupportedScenario  # it opens Numba

        try:
            experiment.simulation(run(), engine)
        except UnsupportedScenario as error:
            say(f"the compiled engine can't do {error.feature}: simpy does it, and takes many times as long")
            return "simpy"
    return engine


def require_memory(
    experiment: Experiment, engine: Simulator, *, duration_s: float | None = None, processes: int = 1
) -> None:
    """Check the memory before anything is drawn.

    Raises:
        InputError: this many runs in parallel need more memory than there is.
    """
    length_s = duration_s or experiment.scenario.duration_s
    images, drawn = _images(experiment, length_s)
    of_what = {
        "images": images * _IMAGE_BYTES[engine] + drawn * _DRAWN_BYTES,
        **dict(_events_bytes(experiment, length_s)),
    }
    needed_bytes, here_bytes = max(1, processes) * sum(of_what.values()), machine_bytes()
    if needed_bytes > here_bytes:
        most = max(of_what, key=lambda name: of_what[name])
        problem = f"about {needed_bytes / 1e9:,.0f} GB of memory, most of it for {most}"
        remedy = "Shorten duration_s, or lower what there is so much of"
        raise InputError(
            experiment.scenario.name, "", f"{problem}; this machine has {here_bytes / 1e9:.0f} GB. {remedy}"
        )


def _images(experiment: Experiment, length_s: float) -> tuple[float, float]:
    """Return the images that arrive in a run, and those that are drawn for it."""
    workload, rate_img_s = experiment.scenario.workload, experiment.rate_img_s
    if rate_img_s is None:  # a trace, which is no longer than its file
        images = float(len(experiment.arrivals_ns(experiment.scenario.seed, length_s)))
        return images, images
    return rate_img_s * workload.mean_factor(length_s) * length_s, rate_img_s * workload.peak_factor() * length_s


def _events_bytes(experiment: Experiment, length_s: float) -> Iterator[tuple[str, float]]:
    yield "changes of the load", 250 * experiment.scenario.workload.mean_changes(length_s)
    chaos = (fault for fault in experiment.scenario.faults if isinstance(fault, ChaosFault))
    yield "deaths of workers", 250 * sum(length_s / fault.mean_gap_s for fault in chaos)
    sensors = (tables.profile.sensor for tables in experiment.cluster.devices)
    yield "readings of sensors", 60 * sum(length_s / sensor.period_s for sensor in sensors)


REPLICAS: Final = 100
"""With a p99 of 83 ms (76 to 106), the standard error of their 95th percentile is 5 ms."""


ARRIVAL_LAG_NS: Final = 100_000
"""How late executors take an image, on average (`arrival_lag_s`, two cores): 0.09 to 0.17 ms with emulated devices, 0.3
to 0.6 with CPU devices."""


def _replica(run: RunSpec, seed: int) -> RunSpec:
    """Return the run with other chances, its images a little late; latencies count from when they were due.

    Without the lags replicas of a calm run stay equal for seconds; executors differ from them after six decisions.
    """
    lags_ns = stream(seed, "arrival lags").exponential(ARRIVAL_LAG_NS, len(run.arrivals_ns)).astype(np.int64)
    arrivals_ns = np.maximum.accumulate(run.arrivals_ns + lags_ns)
    return replace(run, arrivals_ns=np.minimum(arrivals_ns, run.horizon_ns - 1), seed=seed)


class PredictedRun(NamedTuple):
    """One router with the arrivals of one seed, at `scale` times the workload's own rate."""

    router: RouterMaker
    seed: int
    scale: float


def predict(
    experiment: Experiment, runs: Sequence[PredictedRun], options: RunOptions, jobs: int = 1, replicas: int = REPLICAS
) -> Iterator[tuple[int, Ranges]]:
    """Predict each run from several simulations: its index and its ranges by measure, as they are finished.

    Args:
        options: of all runs.
    """
    with closing(each(_predicted, (experiment, options, replicas), runs, jobs, _compile_predicted)) as results:
        yield from results


def _compile_predicted(common: tuple[Experiment, RunOptions, int]) -> None:
    """Compile once on a machine, and not in every process."""
    experiment, options, _ = common
    experiment.simulation(experiment.run_spec(experiment.scenario.seed), options.get("engine", "simpy")).advance()


def _predicted(common: tuple[Experiment, RunOptions, int], run: PredictedRun) -> Ranges:
    experiment, options, replicas = common
    name, values = display_name(run.router.name), dict[str, list[float | None]]()
    for replica in range(replicas):
        policy = run.router.make(experiment.context)
        of: RunOptions = {**options, "scale": run.scale, "replica": replica}
        result = simulate_metrics(experiment, policy, name, run.seed, **of)
        for measure in VALIDATED:
            values.setdefault(measure.stem, []).append(measure.of(result))
    return {stem: range_of(several) for stem, several in values.items()}
