"""The dial of a rule, set so that it keeps a mean accuracy on simulated runs: routers compare at equal accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kit.chance import derived_seed
from policies.plan_of import plan_of
from policies.rules.compass import CompassRule
from policies.rules.specs import POINT
from scenarios.metrics.served import LIMIT
from scenarios.world.scoring import SampledRun, Scorer, Simulated, mean_accuracy, unserved
from scenarios.world.workloads import TraceSlice
from sim.compiled import UnsupportedScenario
from sim.compiled.scoring import RunScore

Runs = TypeVar("Runs")

CLOSE: Final = 0.02  # points: so far above the floor a dial may stay
REACH: Final = 6.0  # of a dial, either way
TRIES: Final = 9
FIRST_STEP: Final = 0.25
STARTS: Final = 3  # runs that Compass' level is set on, each of another part of the scenario
IMAGES: Final = 60_000  # of each, at most


@dataclass(frozen=True)
class Judged(Generic[Runs]):
    """What a router has on some runs: its mean accuracy, and the share of the images that it leaves unserved."""

    accuracy: float
    unserved: float
    runs: Runs


@dataclass(frozen=True)
class Dial(Generic[Runs]):
    """The value a dial was set to.

    Attributes:
        by: how far; above 0 towards accuracy.
        judged: what the router has there.
        is_kept: whether the floor is kept there; if not, no dial that was tried keeps it, and this is the most
            accurate.
    """

    by: float
    judged: Judged[Runs]
    is_kept: bool


def judged(scores: list[RunScore]) -> Judged[list[RunScore]]:
    """Return the judgement of some scores."""
    return Judged(mean_accuracy(scores), unserved(scores), scores)


def find_dial(measure: Callable[[float], Judged[Runs]], floor: float) -> Dial[Runs]:
    """Find the fastest dial at which the floor is kept: within `CLOSE` above it, if the tries last.

    Of those that keep it, one that serves all is taken first.

    Args:
        measure: what the router has on the same runs at a dial.
        floor: mean accuracy over these runs.
    """
    found, over = dict[float, Judged[Runs]](), dict[float, float]()
    by, step = 0.0, FIRST_STEP
    for _ in range(TRIES):
        found[by] = measure(by)
        over[by] = (found[by].accuracy - floor) / POINT
        if 0.0 <= over[by] < CLOSE:
            break
        if min(over.values()) < 0.0 <= max(over.values()):
            by = crossing(over, 0.5 * CLOSE, min(over), max(over))
        else:
            by = min(max(over) + step, REACH) if over[by] < 0.0 else max(min(over) - step, -REACH)
            step *= 3.0
        if by in found:
            break
    kept = [dial for dial in over if over[dial] >= 0.0]
    if not kept:
        best = max(over, key=lambda dial: over[dial])
        return Dial(best, found[best], is_kept=False)
    chosen = min([dial for dial in kept if found[dial].unserved <= LIMIT] or kept)
    return Dial(chosen, found[chosen], is_kept=True)


def crossing(found: Mapping[float, float], wanted: float, low: float, high: float) -> float:
    """Return the next point in the search for where a rising quantity reaches a value: secant within a bracket.

    Args:
        found: what was measured so far, point -> quantity.
        low, high: the bracket; the quantity is below the value at `low` and above at `high`, if it rises.
    """
    below = max((x for x, y in found.items() if y < wanted), default=None)
    above = min((x for x, y in found.items() if y >= wanted), default=None)
    if below is None and above is None:
        return (low + high) / 2
    if below is None:
        return (low + min(above or high, high)) / 2
    if above is None:
        return (max(below, low) + high) / 2
    rise = found[above] - found[below]
    share = min(0.9, max(0.1, (wanted - found[below]) / rise)) if rise > 0 else 0.5
    return below + share * (above - below)


def levelled(world: Simulated, rule: CompassRule) -> CompassRule:
    """Set the level that Compass starts from, so that it about keeps the operator's first floor without its control.

    It is set on three simulated runs of the scenario's load. It stays as it is if the scenario has no floor for all
    requests, if none can be kept, or if the compiled engine can't play the scenario.
    """
    scenario = world.scenario
    floor = scenario.slo.goals(scenario.tuning.floor)[0].floor
    if floor <= 0.0 or plan_of(rule.make(world.context), world.context.config) is None:
        return rule
    try:
        scorer = Scorer(world)
        runs = [_part(world, number) for number in range(STARTS)]
        scorer.keep(runs)
    except UnsupportedScenario:
        return rule

    def measure(by: float) -> Judged[list[RunScore]]:
        return judged([scorer.score(rule.dialled(by, world.context), run) for run in runs])

    dial = find_dial(measure, floor)
    level = rule.numbers.level - (dial.by if dial.is_kept else 0.0)
    return rule.model_copy(update={"numbers": rule.numbers.model_copy(update={"level": level})})


def _part(world: Simulated, number: int) -> SampledRun:
    scenario, rate_img_s = world.scenario, world.mean_rate_img_s
    seed = derived_seed(scenario.seed, f"level:{number}")
    if rate_img_s is None:  # a trace's: count its requests
        rate_img_s = len(world.run_spec(seed, detail=False).arrivals_ns) / scenario.duration_s
    duration_s = min(scenario.duration_s, IMAGES / rate_img_s)
    return SampledRun(seed, duration_s=duration_s, trace_slice=TraceSlice(number, STARTS))
