"""Scores of routers on simulated runs, and dials of rules that keep a mean accuracy on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from kit.random_streams import derived_seed, stream
from policies.interfaces import RoutingPolicy, limit_ns_of
from policies.router_plans import plan_of
from policies.rules.compass import CompassRule
from policies.rules.rule_context import RouterContext
from policies.rules.rule_params import POINT
from policies.vocabulary import OwnLimit
from scenarios.experiment.workloads import TraceSlice
from scenarios.files.scenario_keys import Scenario
from scenarios.metrics.failure_signs import LIMIT
from sim.compiled import UnsupportedScenario
from sim.compiled.cluster_rows import program_of
from sim.compiled.compiled_run import RunRow, run_to_end
from sim.compiled.run_figures import RunScore, score_run, tuple_priors
from sim.simulated_cluster import ClusterSpec, RunSpec

KEPT_RUNS: Final = 8  # of those that a process has measured on: drawing one takes as long as a short run


class Simulated(Protocol):
    """The part of an `Experiment` that is needed here; its module imports this one."""

    @property
    def scenario(self) -> Scenario:
        """The simulated scenario."""
        ...

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster, as engines take it."""
        ...

    @property
    def context(self) -> RouterContext:
        """The inputs that a router is built from."""
        ...

    @property
    def mean_rate_img_s(self) -> float | None:
        """Images expected to arrive, a second; None for a trace."""
        ...

    @property
    def run_spec(self) -> Callable[..., RunSpec]:
        """Draws one run of the workload; called as `Experiment.run_spec`."""
        ...

    def with_series(self) -> Simulated:
        """Return the same with what its files hold."""
        ...


class Maker(Protocol):
    """What makes a router; `RouterSpec` and `RouterMaker` do."""

    def make(self, context: RouterContext) -> RoutingPolicy:
        """Make a fresh router for a cluster."""
        ...


@dataclass(frozen=True, slots=True)
class SampledRun:
    """A run by what it is drawn from: the same wherever that is done; see `Experiment.run_spec`."""

    seed: int
    scale: float = 1.0
    duration_s: float | None = None
    trace_slice: TraceSlice | None = None
    end: str = "cut"

    def spec(self, experiment: Simulated) -> RunSpec:
        """Return the run with everything that happens in it."""
        return experiment.run_spec(
            self.seed,
            duration_s=self.duration_s,
            scale=self.scale,
            detail=False,
            end=self.end,
            trace_slice=self.trace_slice,
        )


class Scorer:
    """Scores routers on runs of one experiment; the last runs are kept, because many routers are tried on each."""

    def __init__(self, experiment: Simulated) -> None:
        self.experiment = experiment.with_series()
        self._program, self._context = program_of(experiment.cluster), experiment.context
        self._priors = tuple_priors(self._program)
        self._specs: dict[SampledRun, RunSpec] = {}

    def keep(self, runs: Iterable[SampledRun]) -> None:
        """Draw these, and forget the others."""
        self._specs = {run: self._specs.get(run) or run.spec(self.experiment) for run in dict.fromkeys(runs)}

    def score(self, rule: Maker, run: SampledRun) -> RunScore:
        """Score a router on a run; one that is kept, if threads do that concurrently."""
        if run not in self._specs:
            self.keep([*self._specs, run][-KEPT_RUNS:])
        spec, router = self._specs[run], rule.make(self._context)
        planned = plan_of(router, self._context.config)
        assert planned is not None, "every kind that is tuned has a compiled form"
        row = RunRow(self._program, spec)
        if planned.batching_delay is not None:
            row.set_batching_delay_rule(planned.batching_delay)
        row.set_limit(OwnLimit(limit_ns_of(router)))
        run_to_end(row, planned, stream(spec.seed, "router:tuned"))
        warmup_s = min(self.experiment.scenario.warmup_s, 0.2 * spec.horizon_ns / 1e9)
        return score_run(row, self._priors, round(warmup_s * 1e9))


def unserved(scores: Sequence[RunScore]) -> float:
    """Return the share of the images that failed. Those in flight when a run is cut off count with their wait."""
    return sum(score.failed for score in scores) / max(1, sum(score.images for score in scores))


def mean_accuracy(scores: Sequence[RunScore]) -> float:
    """Return the mean accuracy over the images of all runs that were finished."""
    images = sum(score.images - score.unfinished for score in scores)
    return sum(score.accuracy * (score.images - score.unfinished) for score in scores) / max(images, 1)


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
    judgements, over = dict[float, Judged[Runs]](), dict[float, float]()
    by, step = 0.0, FIRST_STEP
    for _ in range(TRIES):
        judgements[by] = measure(by)
        over[by] = (judgements[by].accuracy - floor) / POINT
        if 0.0 <= over[by] < CLOSE:
            break
        if min(over.values()) < 0.0 <= max(over.values()):
            by = crossing(over, 0.5 * CLOSE, min(over), max(over))
        else:
            by = min(max(over) + step, REACH) if over[by] < 0.0 else max(min(over) - step, -REACH)
            step *= 3.0
        if by in judgements:
            break
    keeping = [dial for dial in over if over[dial] >= 0.0]
    if not keeping:
        best = max(over, key=lambda dial: over[dial])
        return Dial(best, judgements[best], is_kept=False)
    fastest = min([dial for dial in keeping if judgements[dial].unserved <= LIMIT] or keeping)
    return Dial(fastest, judgements[fastest], is_kept=True)


def crossing(measured: Mapping[float, float], target: float, low: float, high: float) -> float:
    """Return the next point to try so that a rising quantity reaches a value: secant within a bracket.

    Args:
        measured: what was measured so far, point -> quantity.
        low, high: the bracket; the quantity is below the value at `low` and above at `high`, if it rises.
    """
    below = max((point for point, value in measured.items() if value < target), default=None)
    above = min((point for point, value in measured.items() if value >= target), default=None)
    if below is None and above is None:
        return (low + high) / 2
    if below is None:
        return (low + min(above or high, high)) / 2
    if above is None:
        return (max(below, low) + high) / 2
    rise = measured[above] - measured[below]
    share = min(0.9, max(0.1, (target - measured[below]) / rise)) if rise > 0 else 0.5
    return below + share * (above - below)


def levelled(experiment: Simulated, rule: CompassRule) -> CompassRule:
    """Set the level that Compass starts from, so that it about keeps the operator's first floor without its control.

    It is set on three simulated runs of the scenario's load. It stays as it is if the scenario has no floor for all
    requests, if none can be kept, or if the compiled engine can't play the scenario.
    """
    scenario = experiment.scenario
    floor = scenario.slo.goals(scenario.tuning.floor)[0].floor
    if floor <= 0.0 or plan_of(rule.make(experiment.context), experiment.context.config) is None:
        return rule
    try:
        scorer = Scorer(experiment)
        runs = [_part(experiment, number) for number in range(STARTS)]
        scorer.keep(runs)
    except UnsupportedScenario:
        return rule

    def measure(by: float) -> Judged[list[RunScore]]:
        return judged([scorer.score(rule.dialled(by, experiment.context), run) for run in runs])

    dial = find_dial(measure, floor)
    level = rule.numbers.level - (dial.by if dial.is_kept else 0.0)
    return rule.model_copy(update={"numbers": rule.numbers.model_copy(update={"level": level})})


def _part(experiment: Simulated, number: int) -> SampledRun:
    scenario, rate_img_s = experiment.scenario, experiment.mean_rate_img_s
    seed = derived_seed(scenario.seed, f"level:{number}")
    if rate_img_s is None:  # a trace's: count its requests
        rate_img_s = len(experiment.run_spec(seed, detail=False).arrivals_ns) / scenario.duration_s
    duration_s = min(scenario.duration_s, IMAGES / rate_img_s)
    return SampledRun(seed, duration_s=duration_s, trace_slice=TraceSlice(number, STARTS))
