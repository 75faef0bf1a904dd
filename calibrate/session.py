"""A calibration from end to end: from a model's file and a device to a profile; it only composes."""

from __future__ import annotations

import time  # noqa: TID251 - a budget is real time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from calibrate.calibration_log import PADDED_SIZES, CalibrationRequest, Log
from calibrate.device_identity import OF_A_GPU, Probe, require_captured, require_model
from calibrate.device_opening import FALL_LOAD_S, Opened, bench_of, opened, settled
from calibrate.fresh_points import CheckedMetric, captured_here, check, has_across
from calibrate.measurement_bench import Bench, PathsResult
from calibrate.measurement_plan import (
    EFFORTS,
    GPU_PASS_S,
    CalibrationPlan,
    Extras,
    ForwardGuess,
    ModelCosts,
    Paths,
    PlannedStep,
    costs_of,
    full_grid,
    guess_from,
    make_plan,
    path_of,
)
from calibrate.plan_execution import CalibrationProgress, measure, once
from calibrate.profile_fit import fit
from hw.device_settings import DeviceSpec
from hw.networks.network_files import ModelFile
from hw.transport.messages import Point
from hw.worker.torch_outfit import ARENA_BYTES
from kit.random_streams import stream
from policies.vocabulary import NS_PER_S
from sim.device_profile import Profile

# The time before the first measurement is guessed, not measured, so that a resumed plan is the same plan: starting
# processes with torch, contexts, bandwidth, detecting other programs.
START_S = {"cpu": 8.0, "cuda": 25.0}
AWAKE_BUDGET_S = 120.0  # a smaller budget omits the measurement of clocks that stay up
FALL_LOOK_S = 10.0
IDLE_SHARE = 0.02  # share of the budget for each of the two idle measurements
IDLE_S = (0.5, 30.0)  # at least and at most


@dataclass(frozen=True, slots=True)
class CalibrationObserver:
    """Callbacks of a calibration.

    Attributes:
        on_warning: called for other programs on the device, before anything is measured.
        on_plan: called once, with the log, before all measurements except the survey.
        on_progress: called before each step.
    """

    on_warning: Callable[[str], None] = lambda _: None
    on_plan: Callable[[CalibrationPlan, Log], None] = lambda *_: None
    on_progress: Callable[[CalibrationProgress], None] = lambda _: None


def calibrate(request: CalibrationRequest, observer: CalibrationObserver | None = None) -> Profile:
    """Measure a device running a model, and fit the simulator's model of it.

    Raises:
        InputError: the file is not a model, or the log is of another calibration.
        WorkError: the device failed.
    """
    listener = observer or CalibrationObserver()
    begin_ns = time.monotonic_ns()
    request, text = settled(request)
    budget_s, kind = request.budget_s, request.device.kind
    costs = model_costs(request.file)
    fall_look_s = fall_look_of(kind, budget_s)
    load = Point(*max(costs.keys), request.batch_limit)
    with (
        opened(request, idle_look_s(budget_s), load, fall_look_s) as ready,
        Log(request.log_path, log_stamp(ready.probed, costs, request)) as log,
    ):
        for warning in ready.warnings:
            listener.on_warning(warning)
        setup_s = (time.monotonic_ns() - begin_ns) / NS_PER_S
        plan = _plan(request, costs, ready, log, awake=fall_look_s > 0)
        listener.on_plan(plan, log)
        left_s = budget_s - setup_s
        measured = measure(ready.bench, plan, log, left_s, time.monotonic_ns, listener.on_progress)
        facts = ready.facts
    if text:
        facts = replace(facts, info=facts.info.model_copy(update={"stamps": {**facts.info.stamps, "ways_timed": text}}))
    omitted = [*measured.omitted]
    if request.peer is None:
        omitted.append("the link between servers of this host")
    if kind == "cuda" and ready.probed.metered and not fall_look_s:
        omitted.append("the power of clocks that stay up for a while after work")
    return fit(measured.measurements, costs, facts, request.name or f"{kind}-{costs.info.name}", omitted)


def _plan(request: CalibrationRequest, costs: ModelCosts, ready: Opened, log: Log, *, awake: bool) -> CalibrationPlan:
    kind, keys = request.device.kind, sorted(costs.keys)
    sizes = ready.facts.padded_sizes or full_grid(request.batch_limit)
    extras = Extras(
        power=ready.probed.metered,
        peer=request.peer is not None,
        rise_s=ready.bench.meter.rise_s,
        largest_bytes=largest_transfer_bytes(costs, request.batch_limit),
        awake=ready.probed.metered and awake,
    )
    guess = _guess(ready.bench, costs, sizes, log) if kind == "cpu" else lambda _: GPU_PASS_S
    return make_plan(kind, keys, sizes, extras, guess, stream(request.seed, "calibration"))


def _guess(bench: Bench, costs: ModelCosts, sizes: Sequence[int], log: Log) -> ForwardGuess:
    """Guess a CPU's passes from micro-batches on the widest path; logged, so that a resumed plan has the same
    estimates."""
    paths = (path_of(sorted(costs.keys), sizes[0], max), path_of(sorted(costs.keys), sizes[-1], max))
    result = once(bench, PlannedStep(Paths(paths), 0, True, 0.0), EFFORTS["cpu"], log, time.monotonic_ns)
    assert isinstance(result, PathsResult)
    return guess_from(costs.keys, paths, result.medians_s)


def check_profile(
    file: ModelFile,
    device: DeviceSpec,
    profile: Profile,
    *,
    seed: int = 0,
    points: int = 24,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[CheckedMetric, ...]:
    """Check whether a profile still holds for a device here; see `calibrate.fresh_points`.

    Raises:
        InputError: the profile is for another model, or other passes are captured here.
        WorkError: the device failed.
    """
    require_model(profile, model_costs(file).info.hash, f"profile {profile.name}", "model.hash")
    with bench_of(file, device, None, sibling=has_across(profile)) as bench:
        if profile.padded_sizes:
            require_captured(profile, *captured_here(bench, profile), f"profile {profile.name}", "execution.captured")
        return check(bench, profile, stream(seed, "check"), points=points, on_progress=on_progress)


def start_s(kind: str, budget_s: float, *, metered: bool) -> float:
    """Estimate the time until the first measurement; the same for the same device and budget.

    Args:
        kind: kind of the device.
        metered: whether a sensor measures its power: then idle power is measured twice.
    """
    fall_look_s = fall_look_of(kind, budget_s)
    looks_s = 2 * idle_look_s(budget_s) + (FALL_LOAD_S + fall_look_s if fall_look_s else 0.0)
    return START_S[kind] + (looks_s if metered else 0.0)


def fall_look_of(kind: str, budget_s: float) -> float:
    """Return how long to observe a device's clocks fall; 0 without such a state, or if the budget is too small."""
    return FALL_LOOK_S if kind == "cuda" and budget_s >= AWAKE_BUDGET_S else 0.0


def largest_transfer_bytes(costs: ModelCosts, batch_limit: int) -> int:
    """Return the transfer of a micro-batch after the segment with the largest output; at most half of an arena."""
    image_bytes = max(max(row) for row in costs.info.activation_bytes)
    return min(batch_limit * image_bytes, ARENA_BYTES // 2)


def idle_look_s(budget_s: float) -> float:
    """Return the time for which each idle power is sampled."""
    return min(max(IDLE_S[0], IDLE_SHARE * budget_s), IDLE_S[1])


def model_costs(file: ModelFile) -> ModelCosts:
    """Return the costs of a model's file; raises `InputError` if it is not a model."""
    model, metadata = file.load()
    return costs_of(model, metadata.get("network") or file.path.stem, metadata["hash"])


def log_stamp(probed: Probe, costs: ModelCosts, request: CalibrationRequest) -> dict[str, str]:
    """Return the stamp that a log must match to be continued; a GPU's includes versions that may be updated."""
    stamps = probed.info.stamps
    return {
        "device": probed.info.name,
        **{name: stamps[name] for name in OF_A_GPU if name in stamps},
        "model": costs.info.hash,
        "batch_limit": str(request.batch_limit),
        "seed": str(request.seed),  # another seed has other paths and orders: another plan
        **{f"execution.{key}": value for key, value in request.device.execution().items()},
        **({PADDED_SIZES: ",".join(map(str, sizes))} if (sizes := request.device.warm_sizes) else {}),
    }
