"""A calibration from end to end: a model's file and a device in, a profile out. It composes; it decides nothing."""

from __future__ import annotations

import time  # noqa: TID251 - a budget is real time
from collections.abc import Callable
from pathlib import Path

from calibrate.check import CheckedFigure, check, has_across
from calibrate.costs import ModelCosts, costs_of
from calibrate.fit import fit
from calibrate.log import Log
from calibrate.measure import Progress, measure, scout
from calibrate.opening import bench_of, opened
from calibrate.plan import Extras, Plan, Point, make_plan
from calibrate.probe import Probe
from calibrate.stamps import OF_A_GPU, require_model
from hw.device import DeviceSpec
from hw.networks import ModelFile
from policies.chance import stream
from policies.errors import InputError
from policies.vocabulary import NS_PER_S
from sim.profile import Profile

# What comes before the first measurement is guessed, not timed, so that a resumed plan is the same plan.
START_S = {"cpu": 8.0, "cuda": 15.0}  # processes that open torch, contexts, bandwidth, a look at who else is there
SELF_TEST_S = 4.0  # of a sensor
IDLE_SHARE = 0.02  # of the budget, for each of the two idle measurements
IDLE_S = (0.5, 30.0)  # at least and at most


def calibrate(
    file: ModelFile,
    device: DeviceSpec,
    *,
    budget_s: float,
    batch_limit: int,
    log_path: Path,
    seed: int = 0,
    peer: DeviceSpec | None = None,
    sensor_period_s: float = 0.1,
    name: str = "",
    allow_busy: bool = False,
    on_warning: Callable[[str], None] = lambda _: None,
    on_plan: Callable[[Plan], None] = lambda _: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Profile:
    """Measure a device running a model, and fit the simulator's model of it.

    Args:
        file: the slimmable network.
        budget_s: wall time; a small one leaves things out and says so (`Profile.omitted`), never a key.
        batch_limit: the largest batch measured; the simulator refuses larger ones.
        log_path: finished measurements; an interrupted calibration goes on from there.
        seed: of the order and of the held-out points.
        peer: a second device of this host: moving activations to it gives `Profile.link`; None leaves it out.
        sensor_period_s: how often serving reads the device's sensor.
        name: of the profile; made from the device and the model by default.
        allow_busy: measure although other programs use the device.
        on_warning: told of others on the device and of sensors that are not to be trusted, before anything is measured.
        on_plan: called once, before anything is measured but for a first hasty look.
        on_progress: called before each step.

    Raises:
        InputError: the model is no model, the budget or the limit makes no sense, or the log is of something else.
        WorkError: the device failed.
    """
    _require(budget_s, batch_limit)
    begin_ns = time.monotonic_ns()
    costs = model_costs(file)
    keys = sorted(costs.keys)
    with (
        opened(
            file,
            device,
            peer,
            batch_limit,
            sensor_period_s,
            idle_look_s(budget_s),
            Point(*keys[-1], batch_limit),
            sibling=True,
            allow_busy=allow_busy,
        ) as ready,
        Log(log_path, _stamp(ready.found, costs, device, batch_limit, seed)) as log,
    ):
        for warning in ready.warnings:
            on_warning(warning)
        setup_s = (time.monotonic_ns() - begin_ns) / NS_PER_S
        planned_s = max(0.0, budget_s - start_s(device.kind, budget_s, metered=ready.found.metered))
        seen = scout(ready.bench, keys, batch_limit, log, time.monotonic_ns, planned_s)
        extras = Extras(power=ready.found.metered, peer=peer is not None, sibling=True, rise_s=ready.bench.meter.rise_s)
        rng = stream(seed, "calibration")
        plan = make_plan(keys, batch_limit, planned_s, seen.guess_s, extras, rng, seen.curves)
        on_plan(plan)
        measured = measure(
            ready.bench, plan, seen.guess_s, log, budget_s - setup_s, time.monotonic_ns, on_progress, seen.pace
        )
        facts = ready.facts
    omitted = (*plan.omitted, *measured.omitted, *(() if peer else ("the link between servers of this host",)))
    profile_name = name or f"{device.kind}-{costs.info.name}"
    return fit(measured.measurements, costs, facts, profile_name, omitted, seen.pace)


def check_profile(
    file: ModelFile,
    device: DeviceSpec,
    profile: Profile,
    *,
    seed: int = 0,
    points: int = 24,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[CheckedFigure, ...]:
    """Whether a profile still holds for a device here; see `calibrate.check`.

    Raises:
        InputError: the profile is of another model.
        WorkError: the device failed.
    """
    require_model(profile, model_costs(file).info.hash, f"profile {profile.name}", "model.hash")
    with bench_of(file, device, None, 0, sibling=has_across(profile)) as bench:
        return check(bench, profile, stream(seed, "check"), points=points, on_progress=on_progress)


def start_s(kind: str, budget_s: float, *, metered: bool) -> float:
    """About how long it takes until the first measurement; the same for the same device and budget.

    Args:
        kind: of the device.
        metered: whether a sensor tells its power: then it is tested, and idle power is looked at twice.
    """
    return START_S[kind] + (SELF_TEST_S + 2 * idle_look_s(budget_s) if metered else 0.0)


def idle_look_s(budget_s: float) -> float:
    """How long each idle power is looked at."""
    return min(max(IDLE_S[0], IDLE_SHARE * budget_s), IDLE_S[1])


def model_costs(file: ModelFile) -> ModelCosts:
    """The costs of a model's file; raises `InputError` where it is none."""
    model, metadata = file.load()
    return costs_of(model, metadata.get("network") or file.path.stem, metadata["hash"])


def _require(budget_s: float, batch_limit: int) -> None:
    if not budget_s > 0:
        raise InputError("calibrate", "budget", f"must be more than 0 s, found {budget_s:g}; 45s to 15m is usual")
    if batch_limit < 1:
        raise InputError("calibrate", "batch_limit", f"must be at least 1, found {batch_limit}")


def _stamp(found: Probe, costs: ModelCosts, device: DeviceSpec, batch_limit: int, seed: int) -> dict[str, str]:
    """What must agree for a log to be continued; of a GPU also what may be updated between two sittings."""
    stamps = found.info.stamps
    return {
        "device": found.info.name,
        **{name: stamps[name] for name in OF_A_GPU if name in stamps},
        "model": costs.info.hash,
        "batch_limit": str(batch_limit),
        "seed": str(seed),  # another one holds out and draws other points: what one fit saw, another would be judged by
        **{f"execution.{key}": value for key, value in device.execution().items()},
    }
