"""A calibration from end to end: from a model's file and a device to a profile; it only composes."""

from __future__ import annotations

import time  # noqa: TID251 - a budget is real time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from calibrate.calibration import CalibrationRequest
from calibrate.check import CheckedMetric, check, has_across
from calibrate.costs import ModelCosts, costs_of
from calibrate.design import LeastSure
from calibrate.fit import DeviceFacts, fit
from calibrate.gpu import captured_here, gpu_plan, typical_pass_s
from calibrate.log import PADDED_SIZES, Log
from calibrate.measure import CalibrationProgress, Measurement, measure, scout
from calibrate.opening import bench_of, opened
from calibrate.plan import CalibrationPlan, Extras, ForwardGuess, make_plan
from calibrate.probe import Probe
from calibrate.slowdown import UNSEEN, SlowdownLook, Speed
from calibrate.stamps import OF_A_GPU, require_captured, require_model
from calibrate.ways import settled
from hw.agent.torch_outfit import ARENA_BYTES
from hw.device import DeviceSpec
from hw.networks.registry import ModelFile
from hw.transport.messages import Point
from kit.chance import stream
from policies.vocabulary import NS_PER_S
from sim.profile import Profile

# The time before the first measurement is guessed, not measured, so that a resumed plan is the same plan: starting
# processes with torch, contexts, bandwidth, detecting other programs.
START_S = {"cpu": 8.0, "cuda": 25.0}
SELF_TEST_S = 4.0  # of a sensor
AWAKE_BUDGET_S = 120.0  # a smaller budget omits the measurement of clocks that stay up
FALL_LOOK_S = 10.0
IDLE_SHARE = 0.02  # share of the budget for each of the two idle measurements
IDLE_S = (0.5, 30.0)  # at least and at most


@dataclass(frozen=True, slots=True)
class CalibrationObserver:
    """Callbacks of a calibration.

    Attributes:
        on_warning: called for other programs on the device and for untrusted sensors, before anything is measured.
        on_plan: called once, with the log, before all measurements except the survey.
        on_progress: called before each step.
    """

    on_warning: Callable[[str], None] = lambda _: None
    on_plan: Callable[[CalibrationPlan, Log], None] = lambda *_: None
    on_progress: Callable[[CalibrationProgress], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Observed:
    """The data to which a profile is fitted, with descriptions of omissions; see `calibrate.fit.fit`."""

    measurements: Sequence[Measurement]
    costs: ModelCosts
    facts: DeviceFacts
    omitted: tuple[str, ...]
    seen: SlowdownLook


def calibrate(wanted: CalibrationRequest, observer: CalibrationObserver | None = None) -> Profile:
    """Measure a device running a model, and fit the simulator's model of it.

    Raises:
        InputError: the file is not a model, or the log is of another calibration.
        WorkError: the device failed.
    """
    observed = observe(wanted, observer)
    name = wanted.name or f"{wanted.device.kind}-{observed.costs.info.name}"
    return fit(observed.measurements, observed.costs, observed.facts, name, observed.omitted, observed.seen)


def observe(wanted: CalibrationRequest, observer: CalibrationObserver | None = None) -> Observed:
    """Measure without fitting; raises as `calibrate` does."""
    listener = observer or CalibrationObserver()
    begin_ns = time.monotonic_ns()
    wanted, ways = settled(wanted)
    budget_s, batch_limit = wanted.budget_s, wanted.batch_limit
    costs = model_costs(wanted.file)
    keys = sorted(costs.keys)
    load = Point(*keys[-1], batch_limit)
    fall_look_s = fall_look_of(wanted.device.kind, budget_s)
    with (
        opened(wanted, idle_look_s(budget_s), load, fall_look_s) as ready,
        Log(wanted.log_path, log_stamp(ready.probed, costs, wanted)) as log,
    ):
        for warning in ready.warnings:
            listener.on_warning(warning)
        setup_s = (time.monotonic_ns() - begin_ns) / NS_PER_S
        planned_s = max(0.0, budget_s - start_s(wanted.device.kind, budget_s, metered=ready.probed.metered))
        has_peer, rise_s = wanted.peer is not None, ready.bench.meter.rise_s
        largest_bytes = largest_transfer_bytes(costs, batch_limit)
        is_awake = ready.probed.metered and fall_look_s > 0
        extras = Extras(
            ready.probed.metered, has_peer, sibling=True, rise_s=rise_s, largest_bytes=largest_bytes, awake=is_awake
        )
        rng = stream(wanted.seed, "calibration")
        guess: ForwardGuess
        if sizes := ready.facts.padded_sizes:
            plan = gpu_plan(keys, sizes, extras, rng)
            guess, slowdown = typical_pass_s, UNSEEN
        else:
            scouted = scout(ready.bench, keys, batch_limit, log, time.monotonic_ns, planned_s)
            guess, slowdown = scouted.guess_s, scouted.slowdown
            plan = make_plan(keys, batch_limit, planned_s, guess, extras, rng, scouted.curves)
            plan = replace(plan, order=LeastSure(costs.keys, Speed(slowdown.full_s)))
        listener.on_plan(plan, log)
        measured = measure(
            ready.bench,
            plan,
            guess,
            log,
            budget_s - setup_s,
            time.monotonic_ns,
            listener.on_progress,
            slowdown,
        )
        facts = _with_ways(ready.facts, ways)
    omitted = (*plan.omitted, *measured.omitted, *(() if has_peer else ("the link between servers of this host",)))
    if wanted.device.kind == "cuda" and ready.probed.metered and not is_awake:
        omitted = (*omitted, "the power of clocks that stay up for a while after work")
    return Observed(measured.measurements, costs, facts, omitted, slowdown)


def _with_ways(facts: DeviceFacts, ways: str) -> DeviceFacts:
    if not ways:
        return facts
    return replace(facts, info=facts.info.model_copy(update={"stamps": {**facts.info.stamps, "ways_timed": ways}}))


def check_profile(
    file: ModelFile,
    device: DeviceSpec,
    profile: Profile,
    *,
    seed: int = 0,
    points: int = 24,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[CheckedMetric, ...]:
    """Check whether a profile still holds for a device here; see `calibrate.check`.

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
        metered: whether a sensor measures its power: then it is tested, and idle power is measured twice.
    """
    looks_s = SELF_TEST_S + 2 * idle_look_s(budget_s) + fall_look_of(kind, budget_s)
    return START_S[kind] + (looks_s if metered else 0.0)


def fall_look_of(kind: str, budget_s: float) -> float:
    """Return how long to observe a device's clocks fall; 0 without such a state, or if the budget is too small."""
    return FALL_LOOK_S if kind == "cuda" and budget_s >= AWAKE_BUDGET_S else 0.0


def largest_transfer_bytes(costs: ModelCosts, batch_limit: int) -> int:
    """Return the transfer of a block after the segment with the largest output; at most half of an arena."""
    image_bytes = max(max(row) for row in costs.info.activation_bytes)
    return min(batch_limit * image_bytes, ARENA_BYTES // 2)


def idle_look_s(budget_s: float) -> float:
    """Return the time for which each idle power is sampled."""
    return min(max(IDLE_S[0], IDLE_SHARE * budget_s), IDLE_S[1])


def model_costs(file: ModelFile) -> ModelCosts:
    """Return the costs of a model's file; raises `InputError` if it is not a model."""
    model, metadata = file.load()
    return costs_of(model, metadata.get("network") or file.path.stem, metadata["hash"])


def log_stamp(probed: Probe, costs: ModelCosts, wanted: CalibrationRequest) -> dict[str, str]:
    """Return the stamp that a log must match to be continued; a GPU's includes versions that may be updated."""
    stamps = probed.info.stamps
    return {
        "device": probed.info.name,
        **{name: stamps[name] for name in OF_A_GPU if name in stamps},
        "model": costs.info.hash,
        "batch_limit": str(wanted.batch_limit),
        "seed": str(
            wanted.seed
        ),  # another seed holds out and draws other points: points that one fit used would be held out in another
        **{f"execution.{key}": value for key, value in wanted.device.execution().items()},
        **({PADDED_SIZES: ",".join(map(str, sizes))} if (sizes := wanted.device.warm_sizes) else {}),
    }
