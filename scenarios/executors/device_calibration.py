"""The check that a profile still holds, and calibration of one device, here or on another host.

The check: `calibrate.fresh_points` has the rule by which a metric has drifted. In an open-loop run the real router,
scheduler and executor serve Poisson arrivals on that one device, at about half of the capacity of the profile's
simulation; the same arrivals are simulated from the profile. There are several such runs, each with separate arrivals;
each run is one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from calibrate.calibration_log import CalibrationRequest, Log
from calibrate.device_identity import VERSIONS, device_name, differences, stamps_here, stamps_of
from calibrate.fresh_points import Allowed, CheckedMetric, ComparedValue, estimated_s, numbers_of, repeatability_pct
from calibrate.measurement_plan import CalibrationPlan, InstancePoints, PlannedStep, Steady
from calibrate.profile_fit import SOLO_ERROR
from calibrate.session import START_S, CalibrationObserver, calibrate, check_profile, start_s
from hw.device_settings import DeviceSpec, formats_of
from hw.networks.datasets import Dataset
from hw.networks.network_files import ModelFile
from hw.router.ray_workers import cache, kept
from kit.errors import InputError
from kit.random_streams import derived_seed
from policies.interfaces import AccuracyPrior
from policies.vocabulary import Provenance
from scenarios.executors.device_choice import candidates, device_of, device_spec, host_key, joined_hosts, section_of
from scenarios.executors.executor_runs import SATURATED_IMAGES, RealRun, real_cluster, run_on_hardware
from scenarios.executors.preflight import require_device
from scenarios.executors.serving_measurement import is_served, measure_serving, with_overheads
from scenarios.executors.validation_plan import mean_slowdown, observed_slowdowns
from scenarios.experiment.resolved_scenario import Experiment, NetworkAccuracy
from scenarios.experiment.scenario_building import build_experiment, device_section
from scenarios.files.scenario_keys import (
    GB,
    ClassSection,
    ClusterSection,
    DeviceSection,
    GreedySection,
    ModelSection,
    PoissonWorkload,
    Scenario,
    ServerSection,
)
from scenarios.metrics.fidelity import PROMISED_PCT, PROMISED_THROUGHPUT_PCT
from scenarios.metrics.metric_catalogue import CHECKED
from scenarios.metrics.run_result import Result
from scenarios.metrics.slo import Slo
from scenarios.metrics.statistics import UNMETERED
from scenarios.runs.capacity_search import Search, capacity
from scenarios.runs.simulated_runs import simulate_metrics
from scenarios.show.tables import facts, to_text
from scenarios.show.wording import lines_of
from scenarios.terminal.progress import Progress, Say
from sim.device_profile import Profile

TOO_LITTLE = 2.0  # times the budget: what needs more was not meant
SENSIBLE_STEP_S = 5.0


def announcement(
    plan: CalibrationPlan, log: Log, *, budget_s: float, kind: str = "cpu", reserved_s: float = 0.0
) -> list[str]:
    """Describe what is measured, how long it takes, and the log; `name: text` a line.

    Args:
        log: the one it resumes from.
        budget_s: for the start and for measuring.
        kind: of the device.
        reserved_s: what was taken off the budget that the user gave, for what serving costs.
    """
    missing = _left(plan, log)
    usable_s = max(0.0, budget_s - start_s(kind, budget_s, metered=_is_metered(plan))) - log.spent_s
    required_s = sum(planned.estimated_s for planned in missing if planned.required)
    least_s = min((planned.estimated_s for planned in missing), default=0.0)
    points = [
        point for planned in plan.steps if isinstance(planned.step, InstancePoints) for point in planned.step.points
    ]
    return lines_of(
        "calibration", "announcement", plan, log,
        required=sum(planned.required for planned in plan.steps),
        keys=len({point.key for point in points}),
        left=len(missing),
        is_too_little=least_s > usable_s and not required_s,
        is_all_required=required_s > budget_s - log.spent_s,
        needed=span(max(required_s, min(sum(planned.estimated_s for planned in missing), budget_s - log.spent_s))),
        a_round=span(plan.round_s),
        budget=span(budget_s + reserved_s),
        spent=span(log.spent_s) if log.spent_s else "",
    )  # fmt: skip


def require_budget(plan: CalibrationPlan, log: Log, budget_s: float, source: str, key: str, kind: str = "cpu") -> None:
    """Check that what must be measured in any case fits; the time that it takes is a guess.

    Args:
        source, key: origin of the budget.
        kind: of the device.

    Raises:
        InputError: the budget is far too small; it names the smallest sensible one. The log is kept.
    """
    needed_s = sum(planned.estimated_s for planned in _left(plan, log) if planned.required)
    if needed_s > TOO_LITTLE * budget_s:
        budgets_s = (SENSIBLE_STEP_S * number for number in count(1))
        is_metered = _is_metered(plan)
        sensible_s = next(
            budget for budget in budgets_s if budget - start_s(kind, budget, metered=is_metered) >= needed_s
        )
        problem = f"{span(budget_s)} is too little: every combination of segment and widths must be measured, "
        problem += f"which takes about {span(needed_s)} here, {span(plan.round_s)} a round"
        raise InputError(source, key, f"{problem}; give {sensible_s:.0f}s or more, or lower the batch limit")


def _is_metered(plan: CalibrationPlan) -> bool:
    return any(isinstance(planned.step, Steady) for planned in plan.steps)


def _left(plan: CalibrationPlan, log: Log) -> list[PlannedStep]:
    return [planned for planned in plan.steps if planned.id not in log.results]


def span(duration_s: float) -> str:
    """Format a duration, in the two units that are usual for it."""
    seconds = round(duration_s)
    if seconds < 60:
        return f"{seconds if seconds >= 10 else round(duration_s, 1):g} s"
    units = ("min", "s") if seconds < 3600 else ("h", "min")
    big, small = divmod(seconds if seconds < 3600 else round(seconds / 60), 60)
    return f"{big} {units[0]}" + (f" {small} {units[1]}" if small else "")


# ----------------------------------------------------------------------------------------------- the check of a profile


ROUTER = "random"
SERVER = "checked"
SHARE = 0.5  # of the largest stable rate
LIGHT_SHARE, LIGHT_IMG_S = 0.3, 20.0  # of it, and what is light in any case
RUNS = 5
OPEN_LOOP_S = 20.0  # of all runs together, at least
WARMUP_SHARE = 0.1
MIN_IMAGES = 50  # of a run
SERVING_S = 22.0  # what `with_serving` takes: a start, a look or two, and two short runs
CAPACITY_IMAGES, CAPACITY_PRECISION = 2000, 0.2
NO_SERVING = "what serving costs is not in this profile; `slimsched calibrate` measures it"
FOREIGN = (
    "other tenants of the host cause it, and it changes; points are compared at full speed, and each run at the "
    "slowdown that was read during it"
)
MODELLED = "power is modelled: nothing measures it"

_PROMISED_PCT = {**PROMISED_PCT, "throughput": PROMISED_THROUGHPUT_PCT}


def profile_device(profile: Profile, source: str) -> DeviceSpec:
    """Return the device of this machine that a profile was measured on, used in the same way.

    Raises:
        InputError: this host has no such device.
    """
    path = profile.execution
    cores = path.get("cores", "any")
    section = DeviceSection(
        kind=profile.device.kind,
        cores=() if cores == "any" else tuple(int(core) for core in cores.split(",")),
        threads=int(path.get("threads", "1")),
        onednn=path.get("onednn", "True") == "True",
        index=int(path.get("device", "cuda:0").partition(":")[2] or 0),
        idle_w=profile.power.bare_idle_w,
        tdp_w=profile.power.cap_w,
    )
    require_device(section, source, "execution")
    spec = device_spec(section)
    return replace(spec, **formats_of(path), graphs="graphs" in path) if section.kind == "cuda" else spec


def require_measured(profile: Profile, source: str) -> None:
    """Raise `InputError` for a profile of published figures, or of no device at all."""
    if profile.provenance == Provenance.EMULATED:
        problem = "is of an emulated device, which plays it as it is; check that of a real one"
        raise InputError(source, "provenance", problem)
    if profile.provenance == Provenance.DATASHEET:
        problem = "was derived from a datasheet and promises nothing that could be checked; calibrate the device"
        raise InputError(source, "provenance", problem)


def require_same(profile: Profile, device: DeviceSpec, source: str) -> None:
    """Refuse other cores, threads or libraries' paths, which would look like drift; other versions are to be checked.

    Raises:
        InputError: it differs; the message names all that is known to differ.
    """
    differing = differences(stamps_of(profile), stamps_here(device))
    conflicts = [
        difference
        for difference in differing
        if difference.stamp not in VERSIONS and None not in (difference.profile, difference.here)
    ]
    if conflicts:
        listed = ", ".join(f"{conflict.title} {conflict.here} instead of {conflict.profile}" for conflict in conflicts)
        problem = f"not the device that the profile {profile.name} was measured on: {listed}; calibrate this one"
        raise InputError(source, "execution", problem)


def announced_check(profile: Profile, points: int, seconds: float) -> str:
    """Describe what will be measured, and about how long it takes."""
    expected_s = estimated_s(profile, points) + seconds + 2 * START_S[profile.device.kind]
    numbers = numbers_of(profile, points)
    sets = ", ".join(f"{number} sets ({metric})" for metric, number in numbers.items() if metric != SOLO_ERROR)
    runs = f"{RUNS} open-loop runs of {seconds / RUNS:g} s"
    return f"check {profile.name}: {numbers[SOLO_ERROR]} points, {sets}, {runs}; about {span(expected_s)}"


# ------------------------------------------------------------------------------------------------------- the metrics


def solo_metrics(
    file: ModelFile, device: DeviceSpec, profile: Profile, points: int, seed: int, *, quiet: bool
) -> Sequence[CheckedMetric]:
    """Measure fresh points and sets, each against the profile."""
    with Progress("measure", unit="point", quiet=quiet) as progress:
        return check_profile(file, device, profile, seed=seed, points=points, on_progress=progress.set)


def open_loop_s(experiment: Experiment) -> float:
    """Return how long the open-loop runs are together: too few images would show nothing."""
    assert experiment.rate_img_s is not None, "it was given one"
    return max(OPEN_LOOP_S, RUNS * MIN_IMAGES / experiment.rate_img_s)


def open_loop(
    file: ModelFile, experiment: Experiment, profile: Profile, seconds: float, seed: int, *, quiet: bool
) -> list[CheckedMetric]:
    """Measure open-loop runs, each against its simulation."""
    with Progress("serve", RUNS, unit="run", quiet=quiet) as progress:
        runs = []
        for run in open_loop_runs(experiment, file, seconds / RUNS, seed):
            runs.append(run)
            progress.update(1)
    return open_loop_metrics(profile, runs)


def open_loop_experiment(profile: Profile, device: DeviceSpec, seed: int) -> Experiment:
    """Return one server on the device, all its instances loaded if they fit, and arrivals that it serves easily."""
    experiment, stable_img_s = _lone_experiment(profile, device_section(device), seed)
    return _at_rate(experiment, SHARE * stable_img_s)


def _at_rate(experiment: Experiment, rate_img_s: float) -> Experiment:
    workload = PoissonWorkload(kind="poisson", rate_img_s=rate_img_s)
    return replace(experiment, scenario=experiment.scenario.model_copy(update={"workload": workload}))


def _lone_experiment(profile: Profile, device: DeviceSection, seed: int) -> tuple[Experiment, float]:
    """Return the device's experiment, and the largest rate that is stable in it."""
    vram_bytes = profile.device.vram_bytes if device.vram_gb is None else device.vram_gb * GB
    needed = profile.memory.context_bytes + sum(instance.vram_bytes for instance in profile.memory.instances)
    server = ServerSection(
        name=SERVER,
        device=device,
        link="measured" if profile.link is not None else "loopback",
    )
    greedy = GreedySection(
        batch_limit=profile.batch_limit,
        preload="all" if needed <= min(profile.device.vram_bytes, vram_bytes) else "none",
        idle_unload_s=None,
    )
    models = profile.model.widths_by_model
    scenario = Scenario(
        schema="slimsched.scenario/1",
        name="check",
        model=ModelSection(checkpoint="checked"),
        cluster=ClusterSection(servers=(server,), greedy=greedy),
        workload=PoissonWorkload(kind="poisson", load=SHARE),
        classes=tuple(ClassSection(name=name, model=name, share=1 / len(models)) for name in models),
    )
    widest = [widths[-1] for widths in models.values()] or profile.model.widths[-1:]
    prior = AccuracyPrior({(width,) * profile.model.segments: 0.5 for width in widest})  # labels are not looked at
    experiment = build_experiment(scenario, {SERVER: profile}, NetworkAccuracy(prior))
    search = Search(
        ROUTER, (seed,), CAPACITY_IMAGES / experiment.capacity_img_s, CAPACITY_PRECISION, slo=Slo.of(scenario)
    )
    limit = capacity(experiment, lambda: experiment.router(ROUTER), search)
    return experiment, limit.stable_img_s


def with_serving(
    profile: Profile, file: ModelFile, device: DeviceSection, seed: int, *, allow_busy: bool = False
) -> Profile:
    """Return the profile with what serving costs on this host, from a few seconds of it on the device alone.

    What it costs is not known yet, so the rate is low: an overloaded router would measure its own queue.

    Raises:
        InputError: other processes used much of the device meanwhile, and that is not allowed.
    """
    experiment, stable_img_s = _lone_experiment(profile, device, seed)
    experiment = _at_rate(experiment, min(SHARE * stable_img_s, max(LIGHT_SHARE * stable_img_s, LIGHT_IMG_S)))
    return with_overheads(profile, measure_serving(experiment, file, _any_images(file), seed, allow_busy=allow_busy), 0)


@dataclass(frozen=True, slots=True)
class OpenLoopRun:
    """A run on executors and its paired simulation, which has the same arrivals and replays the device's slowdown.

    `slowdown`: how much longer things took than at full speed, on average; None without readings.
    """

    simulated: Result
    real: Result
    slowdown: float | None = None


def open_loop_runs(experiment: Experiment, file: ModelFile, duration_s: float, seed: int) -> Iterator[OpenLoopRun]:
    """Yield one run after the other, each with separate arrivals."""
    dataset = _any_images(file)
    warmup_s = WARMUP_SHARE * duration_s
    with real_cluster(experiment, file) as cluster:
        for index in range(RUNS):
            run_seed = derived_seed(seed, f"check:{index}")
            run = RealRun(
                ROUTER, experiment.router(ROUTER), run_seed, duration_s, warmup_s,
                image_limit=SATURATED_IMAGES, keep_log=False,
            )  # fmt: skip
            real, record = run_on_hardware(experiment, cluster, dataset, run)
            slowdowns = observed_slowdowns(record, experiment.cluster.devices, [0])
            simulated = simulate_metrics(
                experiment,
                experiment.router(ROUTER),
                ROUTER,
                run_seed,
                duration_s=duration_s,
                warmup_s=warmup_s,
                slowdowns=slowdowns,
            )
            yield OpenLoopRun(simulated, real, mean_slowdown(slowdowns[0], record.ended_ns) if slowdowns else None)


def open_loop_metrics(profile: Profile, runs: Sequence[OpenLoopRun]) -> list[CheckedMetric]:
    """Return latencies, throughput and energy of runs; and the device's slowdown, if the profile has one."""
    metrics = []
    for measure in CHECKED:
        name, is_latency = measure.title, measure.unit == "ms"
        values = [(measure.of(run.simulated), measure.of(run.real)) for run in runs]
        pairs = tuple(
            ComparedValue(f"run {index}", (simulated,), (real,))
            for index, (simulated, real) in enumerate(values, start=1)
            if simulated and real
        )
        repeatability = repeatability_pct(profile) if is_latency else 0.0
        allowed = Allowed.by(_PROMISED_PCT[measure.stem], repeatability_pct=repeatability)
        more, less = ("slower", "faster") if is_latency else ("more", "less")
        unjudged = NO_SERVING if is_latency and not is_served(profile) else ""
        if name == "energy per image" and profile.power.provenance in UNMETERED:
            unjudged = MODELLED
        metrics.append(CheckedMetric(name, pairs, allowed, more, less, unjudged))
    usual = 1.0 if profile.slowdown is None else profile.slowdown.mean_factor
    slowdowns = tuple(
        ComparedValue(f"run {i}", (usual,), (run.slowdown,)) for i, run in enumerate(runs, start=1) if run.slowdown
    )
    if slowdowns:
        metrics.append(
            CheckedMetric("slowdown of the device", slowdowns, Allowed(0.0, 0.0), "slower", "faster", FOREIGN)
        )
    return metrics


def _any_images(file: ModelFile) -> Dataset:
    """Return one image of noise: how long a pass takes does not depend on the image's content."""
    spec = file.load()[0].spec
    image = np.random.default_rng(0).standard_normal((1, *spec.input_shape), dtype=np.float32)
    label = np.zeros(1, dtype=np.int64)
    return Dataset("noise", image, label, image, label, spec.classes)


# ---------------------------------------------------------------------------------------------------------- calibration


def calibrate_device(
    request: CalibrationRequest,
    *,
    quiet: bool,
    say: Say = lambda _: None,
    budget_key: tuple[str, str] = ("--budget", ""),
    reserved_s: float = 0.0,
) -> Profile:
    """Measure one device; its log lets an interrupted calibration resume.

    Args:
        request: its seed is the run's; the calibration's own comes from it and from the name.
        say: called, before anything is measured, with what will be done and what it costs.
        budget_key: origin of the budget, for the message that it is too small.
        reserved_s: what was taken off the budget that the user gave, reported together with it.
    """
    name, kind = request.name, request.device.kind
    log_path = request.log_path
    progress = Progress(f"calibrate {name}", None, unit="point", quiet=quiet)

    def announce(plan: CalibrationPlan, log: Log) -> None:
        require_budget(plan, log, request.budget_s, *budget_key, kind)
        lines = announcement(plan, log, budget_s=request.budget_s, kind=kind, reserved_s=reserved_s)
        say(f"calibrate {name}: {device_name(request.device)}\n{to_text([facts(lines)])}")
        progress.note = f" ({sum(planned.required for planned in plan.steps)} in any case)"
        begun.enter_context(progress)

    observer = CalibrationObserver(
        on_warning=lambda text: say(f"calibrate {name}: {text}"),
        on_plan=announce,
        on_progress=lambda state: progress.set(state.done, state.total, state.left_s),
    )
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as begun:
        return calibrate(replace(request, seed=derived_seed(request.seed, f"calibrate:{name}")), observer)


def calibrate_on_host(scenario: Scenario, server: ServerSection, request: CalibrationRequest, say: Say) -> Profile:
    """Measure the device of a server of a cluster, on its host.

    The network's file is sent there. An interrupted calibration resumes from the log that is kept there.
    """
    section, key = scenario.cluster, host_key(scenario.cluster, server)
    with joined_hosts(section, scenario.name) as hosts:
        host = section.host_of(server) or hosts.here
        say(f"calibrate {server.name}: on host {host}, for about {request.budget_s:.0f} s")
        sent = replace(request, log_path=Path(request.log_path.name))
        text, lines = hosts.ask(
            host, key, calibrated_there, sent, request.file.path.read_bytes(), server, section.named_servers
        )
    for line in lines:
        say(line)
    return Profile.from_yaml(text, f"host {host}")


def calibrated_there(
    request: CalibrationRequest, model: bytes, server: ServerSection, servers: Sequence[ServerSection]
) -> tuple[str, list[str]]:
    """Calibrate on the host; returns the profile as YAML, and the messages."""
    section, lines = section_of(server, servers), list[str]()
    device = device_of(server, servers)
    local = replace(
        request,
        file=replace(request.file, path=kept(model)),
        device=device,
        peer=device,
        candidates=candidates(device, section),
        log_path=cache() / "calibrations" / request.log_path,
    )
    profile = calibrate_device(local, quiet=True, say=lines.append)
    local.log_path.unlink(missing_ok=True)
    return profile.to_yaml(), lines
