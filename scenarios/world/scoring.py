"""Scores of routers on runs of a world, by the compiled engine: what tuning and dials are judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kit.chance import stream
from policies.interfaces import RoutingPolicy, limit_ns_of
from policies.plan_of import plan_of
from policies.rules.context import RouterContext
from policies.vocabulary import OwnLimit
from scenarios.files.spec import Scenario
from scenarios.world.workloads import TraceSlice
from sim.cluster import ClusterSpec, RunSpec
from sim.compiled.program import program_of
from sim.compiled.run import RunRow
from sim.compiled.run_plan import run_to_end
from sim.compiled.scoring import RunScore, score_run, tuple_priors

KEPT_RUNS: Final = 8  # of those that a process has measured on: drawing one takes as long as a short run


class Simulated(Protocol):
    """What is needed of a `World`, whose module imports this one."""

    @property
    def scenario(self) -> Scenario:
        """What is simulated."""
        ...

    @property
    def cluster(self) -> ClusterSpec:
        """As engines have it."""
        ...

    @property
    def context(self) -> RouterContext:
        """What a router is built from."""
        ...

    @property
    def mean_rate_img_s(self) -> float | None:
        """Images expected to arrive, a second; None for a trace."""
        ...

    @property
    def run_spec(self) -> Callable[..., RunSpec]:
        """Draws one run of the workload; called as `World.run_spec`."""
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
    """A run by what it is drawn from: the same wherever that is done; see `World.run_spec`."""

    seed: int
    scale: float = 1.0
    duration_s: float | None = None
    trace_slice: TraceSlice | None = None
    end: str = "cut"

    def spec(self, world: Simulated) -> RunSpec:
        """Return the run with everything that happens in it."""
        return world.run_spec(
            self.seed,
            duration_s=self.duration_s,
            scale=self.scale,
            detail=False,
            end=self.end,
            trace_slice=self.trace_slice,
        )


class Scorer:
    """Scores routers on runs of one world; the last runs are kept, because many routers are tried on each."""

    def __init__(self, world: Simulated) -> None:
        self.world = world.with_series()
        self._program, self._context = program_of(world.cluster), world.context
        self._priors = tuple_priors(self._program)
        self._specs: dict[SampledRun, RunSpec] = {}

    def keep(self, runs: Iterable[SampledRun]) -> None:
        """Draw these, and forget the others."""
        self._specs = {run: self._specs.get(run) or run.spec(self.world) for run in dict.fromkeys(runs)}

    def score(self, rule: Maker, run: SampledRun) -> RunScore:
        """Score a router on a run; one that is kept, if threads do that concurrently."""
        if run not in self._specs:
            self.keep([*self._specs, run][-KEPT_RUNS:])
        spec, router = self._specs[run], rule.make(self._context)
        planned = plan_of(router, self._context.config)
        assert planned is not None, "every kind that is tuned has a compiled form"
        row = RunRow(self._program, spec)
        if planned.hold is not None:
            row.set_hold_rule(planned.hold)
        row.set_limit(OwnLimit(limit_ns_of(router)))
        run_to_end(row, planned, stream(spec.seed, "router:tuned"))
        warmup_s = min(self.world.scenario.warmup_s, 0.2 * spec.horizon_ns / 1e9)
        return score_run(row, self._priors, round(warmup_s * 1e9))


def unserved(scores: Sequence[RunScore]) -> float:
    """Return the share of the images that failed. Those in flight when a run is cut off count with their wait."""
    return sum(score.failed for score in scores) / max(1, sum(score.images for score in scores))


def mean_accuracy(scores: Sequence[RunScore]) -> float:
    """Return the mean accuracy over the images of all runs that were finished."""
    images = sum(score.images - score.unfinished for score in scores)
    return sum(score.accuracy * (score.images - score.unfinished) for score in scores) / max(images, 1)
