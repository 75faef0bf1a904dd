"""`slimsched profile check`: fresh points, concurrency sets and a short open-loop run compared with a profile.

The rule by which a metric has drifted is `calibrate.check`'s. The open-loop run serves Poisson arrivals, at about half
of the capacity of the profile's simulation, by the real router, scheduler and executor on that one device; the same
arrivals are simulated from the profile. There are several such runs, each with separate arrivals; each is one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.check import (
    Allowed,
    CheckedMetric,
    ComparedValue,
    estimated_s,
    numbers_of,
    repeatability_pct,
)
from calibrate.errors import SOLO_ERROR
from calibrate.session import START_S, check_profile
from calibrate.stamps import VERSIONS, differences, stamps_here, stamps_of
from hw.device import DeviceSpec, formats_of
from hw.networks.datasets import Dataset
from hw.networks.registry import ModelFile
from kit.chance import derived_seed
from kit.errors import InputError
from policies.reward import AccuracyPrior
from policies.vocabulary import Provenance
from scenarios.executors.announce import span
from scenarios.executors.devices import device_spec
from scenarios.executors.preflight import require_device
from scenarios.executors.run import SATURATED_IMAGES, RealRun, real_cluster, run_on_hardware
from scenarios.executors.serving import is_served, measure_serving, with_overheads
from scenarios.executors.slowdown import mean_slowdown, observed_slowdowns
from scenarios.files.spec import (
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
from scenarios.metrics.catalogue import CHECKED
from scenarios.metrics.fidelity import PROMISED_PCT, PROMISED_THROUGHPUT_PCT
from scenarios.metrics.result import Result
from scenarios.metrics.slo import Slo
from scenarios.metrics.statistics import UNMETERED
from scenarios.runs.capacity import Search, capacity
from scenarios.runs.simulate import simulate_metrics
from scenarios.terminal.progress import Progress
from scenarios.world.build import build_world, device_section
from scenarios.world.world import NetworkAccuracy, World
from sim.profile import Profile

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
        InputError: there is no such device here.
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
    other = [d for d in differing if d.stamp not in VERSIONS and d.profile is not None and d.here is not None]
    if other:
        listed = ", ".join(f"{d.title} {d.here} instead of {d.profile}" for d in other)
        problem = f"not the device that the profile {profile.name} was measured on: {listed}; calibrate this one"
        raise InputError(source, "execution", problem)


def announced_check(profile: Profile, points: int, seconds: float) -> str:
    """Describe what will be measured, and about how long it takes."""
    needed_s = estimated_s(profile, points) + seconds + 2 * START_S[profile.device.kind]
    numbers = numbers_of(profile, points)
    sets = ", ".join(f"{number} sets ({metric})" for metric, number in numbers.items() if metric != SOLO_ERROR)
    runs = f"{RUNS} open-loop runs of {seconds / RUNS:g} s"
    return f"check {profile.name}: {numbers[SOLO_ERROR]} points, {sets}, {runs}; about {span(needed_s)}"


# ------------------------------------------------------------------------------------------------------- the metrics


def solo_metrics(
    file: ModelFile, device: DeviceSpec, profile: Profile, points: int, seed: int, *, quiet: bool
) -> Sequence[CheckedMetric]:
    """Measure fresh points and sets, each against the profile."""
    with Progress("measure", unit="point", quiet=quiet) as progress:
        return check_profile(file, device, profile, seed=seed, points=points, on_progress=progress.set)


def open_loop_s(world: World) -> float:
    """Return how long the open-loop runs are together: too few images would show nothing."""
    assert world.rate_img_s is not None, "it was given one"
    return max(OPEN_LOOP_S, RUNS * MIN_IMAGES / world.rate_img_s)


def open_loop(
    file: ModelFile, world: World, profile: Profile, seconds: float, seed: int, *, quiet: bool
) -> list[CheckedMetric]:
    """Measure open-loop runs, each against its simulation."""
    with Progress("serve", RUNS, unit="run", quiet=quiet) as progress:
        runs = []
        for run in open_loop_runs(world, file, seconds / RUNS, seed):
            runs.append(run)
            progress.update(1)
    return open_loop_metrics(profile, runs)


def open_loop_world(profile: Profile, device: DeviceSpec, seed: int) -> World:
    """Return one server on the device, all its instances loaded if they fit, and arrivals that it serves easily."""
    world, stable_img_s = _lone_world(profile, device_section(device), seed)
    return _at_rate(world, SHARE * stable_img_s)


def _at_rate(world: World, rate_img_s: float) -> World:
    workload = PoissonWorkload(kind="poisson", rate_img_s=rate_img_s)
    return replace(world, scenario=world.scenario.model_copy(update={"workload": workload}))


def _lone_world(profile: Profile, device: DeviceSection, seed: int) -> tuple[World, float]:
    """Return the device's world, and the largest rate that is stable in it."""
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
    world = build_world(scenario, {SERVER: profile}, NetworkAccuracy(prior))
    search = Search(ROUTER, (seed,), CAPACITY_IMAGES / world.capacity_img_s, CAPACITY_PRECISION, slo=Slo.of(scenario))
    limit = capacity(world, lambda: world.router(ROUTER), search)
    return world, limit.stable_img_s


def with_serving(
    profile: Profile, file: ModelFile, device: DeviceSection, seed: int, *, allow_busy: bool = False
) -> Profile:
    """Return the profile with what serving costs on this host, from a few seconds of it on the device alone.

    What it costs is not known yet, so the rate is low: an overloaded router would measure its own queue.

    Raises:
        InputError: other processes used much of the device meanwhile, and that is not allowed.
    """
    world, stable_img_s = _lone_world(profile, device, seed)
    world = _at_rate(world, min(SHARE * stable_img_s, max(LIGHT_SHARE * stable_img_s, LIGHT_IMG_S)))
    return with_overheads(profile, measure_serving(world, file, _any_images(file), seed, allow_busy=allow_busy), 0)


@dataclass(frozen=True, slots=True)
class OpenLoopRun:
    """A run on the hardware and its paired simulation, which has the same arrivals and replays the device's slowdown.

    `slowdown`: how much longer things took than at full speed, on average; None without readings.
    """

    simulated: Result
    real: Result
    slowdown: float | None = None


def open_loop_runs(world: World, file: ModelFile, duration_s: float, seed: int) -> Iterator[OpenLoopRun]:
    """Yield one run after the other, each with separate arrivals."""
    dataset = _any_images(file)
    warmup_s = WARMUP_SHARE * duration_s
    with real_cluster(world, file) as cluster:
        for index in range(RUNS):
            run_seed = derived_seed(seed, f"check:{index}")
            wanted = RealRun(
                ROUTER, world.router(ROUTER), run_seed, duration_s, warmup_s,
                image_limit=SATURATED_IMAGES, keep_log=False,
            )  # fmt: skip
            real, record = run_on_hardware(world, cluster, dataset, wanted)
            slowdowns = observed_slowdowns(record, world.cluster.devices, [0])
            simulated = simulate_metrics(
                world,
                world.router(ROUTER),
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
        metrics.append(CheckedMetric(name, pairs, allowed, more, less, _not_judged(profile, name)))
    usual = 1.0 if profile.slowdown is None else profile.slowdown.mean_factor
    slowdowns = tuple(
        ComparedValue(f"run {i}", (usual,), (run.slowdown,)) for i, run in enumerate(runs, start=1) if run.slowdown
    )
    if slowdowns:
        metrics.append(
            CheckedMetric("slowdown of the device", slowdowns, Allowed(0.0, 0.0), "slower", "faster", FOREIGN)
        )
    return metrics


def _not_judged(profile: Profile, metric: str) -> str:
    if metric == "energy per image" and profile.power.provenance in UNMETERED:
        return MODELLED
    return NO_SERVING if "latency" in metric and not is_served(profile) else ""


def _any_images(file: ModelFile) -> Dataset:
    """Return one image of noise: how long a pass takes does not depend on the image's content."""
    spec = file.load()[0].spec
    image = np.random.default_rng(0).standard_normal((1, *spec.input_shape), dtype=np.float32)
    label = np.zeros(1, dtype=np.int64)
    return Dataset("noise", image, label, image, label, spec.classes)
