"""Tunes a router on a scenario: the fastest one whose mean accuracy keeps a floor, by direct search on whole runs.

Learned router and rules are tuned with the same budget: the same search, the same number of simulated decisions, the
same runs (seeds that no report uses, slices of the scenario, its `tuning_file` if it follows a curve), the same
objective. Before and after it some settings are picked from lists. Then one number of each, that which trades latency
for accuracy, is set so that the floor is kept on full-length runs. A final evaluation on other runs picks one of
several searches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Final

import numpy as np

from kit.documents import Memo
from kit.errors import InputError, WorkError, nearest
from kit.random_streams import stream
from policies.router_kinds import COMPASS, CONTROLLED, KINDS, TUNED
from policies.rules.rule_context import RouterContext, efficient_tuples
from policies.rules.rule_params import (
    LARGEST,
    POINT,
    BatchingDelaySpec,
    FixedRule,
    LadderRule,
    PlacedRule,
    Reals,
    RuleSpec,
    Space,
)
from policies.rules.rule_parts import PLACEMENT_NAMES, ControlSpec
from policies.vocabulary import NS_PER_S
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.router_scores import CLOSE, Dial, SampledRun, find_dial, judged, mean_accuracy, unserved
from scenarios.learn.evaluator import (
    Decisions,
    Evaluator,
    OnMeasured,
    TuningParams,
    lacking,
    latency_cost,
    search_threads,
    shortfall,
)
from scenarios.metrics.failure_signs import LIMIT
from sim.compiled.run_figures import RunScore

ORIGINS: Final = ("mean of the last generation", "best of the last generation", "start of the search")
FLOORS: Final = ControlSpec(p99_limit_s=0.0)  # the operator's, and no limit
CHEAP: Final = 0.5  # of a search's decisions: the most that accuracy matching may take for the start to be matched, too
PRICE: Final = 0.4  # what a point of accuracy is worth at first, in the logarithm of the latency
EARLY: Final = 0.15  # of it after one run, which shows little of the floor
WAITS: Final = (0.3, 1.0)  # of what a request may be delayed in all, or of each segment's equal share of it
FEWEST: Final = 4  # that a micro-batch is limited to, or that are waited for
HOST: Final = ((1.0, 0.0), (1.7, 0.0), (1.7, 0.6), (2.7, 0.6))  # at the first segment and at later ones; see `holds_of`
_BLOWN_UP = 1.0  # so much more than another start costs, in the logarithm of the latency
_SETTLED = 0.15  # of the first deviations
_INERTIA = 0.3  # share of the old mean and deviation that is kept
_WIDENING = 1.2  # the elite's deviation is multiplied by this, because few samples underestimate it
_LEAST_SPREAD = 0.02  # of the first deviation: it never falls below this

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class RouterFigures:
    """A router on some full-length runs: means over runs, accuracy over images.

    Attributes:
        unserved: share of the images that failed.
        image_j: energy an image.
    """

    accuracy: float
    mean_s: float
    p99_s: float
    image_j: float = 0.0
    unserved: float = 0.0

    @property
    def document(self) -> dict[str, float]:
        """The figures as a router's file has them."""
        figures = {"mean_s": self.mean_s, "p99_s": self.p99_s, "image_j": self.image_j, "accuracy": self.accuracy}
        return {name: round(value, 6) for name, value in figures.items()}


def figures_of(scores: Sequence[RunScore]) -> RouterFigures:
    """Return the figures of some runs of one router."""
    return RouterFigures(
        accuracy=mean_accuracy(scores),
        mean_s=float(np.mean([score.mean_s for score in scores])),
        p99_s=float(np.mean([score.p99_s for score in scores])),
        image_j=float(np.mean([score.image_j for score in scores])),
        unserved=unserved(scores),
    )


@dataclass(frozen=True)
class Finalist:
    """A router in the final evaluation.

    Attributes:
        name: its origin: `search 1`, `start`, or a tuple.
        origin: what of that was matched.
        spec: what makes such routers.
        matched: on the runs that the floor was set on; None if there is nothing to set.
        history: of its search; of a start, the first's.
    """

    name: str
    origin: str
    spec: RuleSpec
    matched: RouterFigures | None = None
    history: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class FinalScore:
    """One of the final evaluation, with what it had in it; `lacking`: see `scenarios.learn.evaluator`."""

    finalist: Finalist
    figures: RouterFigures
    lacking: float = 0.0

    @property
    def document(self) -> dict[str, Any]:
        """The score as a router's file has it."""
        return {"of": self.finalist.name, **self.figures.document}


class FloorError(WorkError):
    """No setting of a router keeps the floor on a scenario."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        kind: one of `policies.router_kinds.TUNED`.
        params: how it was tuned.
        winner: of the final evaluation; its spec goes into the router's file.
        figures: over the full-length runs that the floor was set on, or of the final evaluation if there was nothing to
            set.
        searches: how many there were; 0 if all candidates were evaluated.
        final_scores: of all finalists.
        spent: simulated decisions.
    """

    kind: str
    params: TuningParams
    winner: Finalist
    figures: RouterFigures
    searches: int
    final_scores: tuple[FinalScore, ...]
    spent: Decisions

    @property
    def spec(self) -> RuleSpec:
        """The winner's rule."""
        return self.winner.spec

    @property
    def history(self) -> tuple[tuple[int, float], ...]:
        """The winner's search: the decisions simulated until each generation's end, and its best objective."""
        return self.winner.history


# ------------------------------------------------------------------------------------------------------ direct search


class CrossEntropy:
    """Each generation is drawn around the best of the last one; the mean and the last best are always among it.

    The cross-entropy method (Rubinstein 1999; Mannor, Rubinstein, Gat 2003). It is independent of what it searches:
    `ask` for candidates, then report their costs to `tell`.

    Args:
        start: (K,) the first mean.
        spread: (K,) the first deviation; a number with 0 stays as it is.
        rng: what candidates are drawn with.
        population: candidates of one generation.
        elite: how many of the best the next generation is drawn around.
    """

    def __init__(
        self, start: Reals, spread: Reals, rng: np.random.Generator, population: int = 16, elite: int = 4
    ) -> None:
        self._population, self._elite = population, elite
        self.mean, self.deviation = start.astype(np.float64), spread.astype(np.float64)
        self.best, self.best_cost = self.mean.copy(), np.inf
        self._spread, self._rng = spread.astype(np.float64), rng

    @property
    def settled(self) -> bool:
        """Whether every number is searched within a seventh of the initial spread: more of it changes little."""
        return bool(np.all(self.deviation <= _SETTLED * self._spread))

    def ask(self) -> Reals:
        """Return (population, K) candidates; the first is the mean, the second the last generation's best, if any."""
        drawn = self._rng.standard_normal((self._population, len(self.mean)))
        candidates: Reals = self.mean + self.deviation * drawn
        candidates[0] = self.mean
        if np.isfinite(self.best_cost) and len(candidates) > 1:
            candidates[1] = self.best
        return candidates

    def tell(self, candidates: Reals, costs: Reals) -> None:
        """Record what candidates cost; not a number, or infinite, for those that were given up.

        No generation's costs are compared with another's: each has other runs.
        """
        costs = np.where(np.isnan(costs), np.inf, costs)
        order = np.argsort(costs, kind="stable")
        self.best, self.best_cost = candidates[order[0]].copy(), float(costs[order[0]])
        finite = [index for index in order[: self._elite] if np.isfinite(costs[index])]
        if not finite:
            return
        elite = candidates[finite]
        self.mean = _INERTIA * self.mean + (1 - _INERTIA) * elite.mean(axis=0)
        wider = _WIDENING * elite.std(axis=0) + _LEAST_SPREAD * self._spread
        self.deviation = _INERTIA * self.deviation + (1 - _INERTIA) * wider


class FloorMultiplier:
    """The price of falling short of a floor, by proportional, integral and derivative control (Stooke et al. 2020).

    Args:
        gains: of the shortfall, of its sum, of its change.
        start: the first sum's part of the price.
    """

    def __init__(self, gains: tuple[float, float, float], start: float = 0.0) -> None:
        self._gains = gains
        self._sum, self._last = start, 0.0
        self.value = max(0.0, start)

    def update(self, shortfall: float) -> float:
        """Return the new price after a shortfall (negative if the floor was passed)."""
        proportional, integral, derivative = self._gains
        self._sum = max(0.0, self._sum + integral * shortfall)
        change, self._last = shortfall - self._last, shortfall
        self.value = max(0.0, proportional * shortfall + self._sum + derivative * max(0.0, change))
        return self.value


# ------------------------------------------------------------------------------------------------ picked from lists
# Each setting in turn is set to the best option with the others as they are, on runs that are the same for all options;
# after the first of them the better half continues.


def holds_of(context: RouterContext) -> tuple[BatchingDelaySpec | None, ...]:
    """Return the options: nothing; until N or for a time, in every segment or at the first alone; or Compass' way.

    Compass' way waits for the number that arrives while the router's host decides an image's end-to-end path alone,
    times a factor (`HOST`). If batching delays are not allowed, the only option is nothing.
    """
    config = context.config
    limit_s, later = config.max_batching_delay_ns / NS_PER_S, config.segments - 1
    share_s, host_s = limit_s / config.segments, config.segments * context.micro_batch_ns / NS_PER_S
    if not limit_s:
        return (None,)
    sizes = [(size, wait) for size in config.micro_batch_sizes if size >= FEWEST for wait in WAITS]
    every = [
        BatchingDelaySpec(requests=(size,) * (later + 1), wait_s=(wait * share_s,) * (later + 1))
        for size, wait in sizes
    ]
    first = [
        BatchingDelaySpec(requests=(size, *[1] * later), wait_s=(wait * limit_s, *[0.0] * later))
        for size, wait in sizes
    ]
    by_host = [
        BatchingDelaySpec(
            requests=(FEWEST, *[1] * later),
            wait_s=(limit_s, *[share_s] * later),
            arrivals_s=(at_first * host_s, *[at_later * host_s] * later),
        )
        for at_first, at_later in (HOST if host_s else ())
    ]
    return None, *every, *first, *by_host


def with_settings(spec: RuleSpec, settings: Settings) -> RuleSpec:
    """Return the same router with these."""
    return spec.model_copy(update=dict(settings))


def best_settings(spec: RuleSpec, evaluator: Evaluator, name: str, settings: Settings) -> Settings:
    """Return the best settings for this router, beginning with some; the runs are named after `name`.

    Finding it comes on top of the budget of the search.
    """
    params = evaluator.params
    runs = [evaluator.trace_slice(f"{name}:{part}", part) for part in range(params.episodes)]

    def cost(scores: Sequence[RunScore], price: float = PRICE) -> float:
        return latency_cost(scores, params) + price * max(0.0, lacking(scores, params))

    picked = dict(settings)
    for key, options in options_of(spec, evaluator):
        specs = [with_settings(spec, {**picked, key: option}) for option in options]
        scores = evaluator.measure_all(specs, runs, partial(cost, price=EARLY * PRICE))
        picked[key] = options[min(scores, key=lambda index: cost(scores[index]))]
    return picked


def options_of(spec: RuleSpec, evaluator: Evaluator) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the settings in the order of the search; those with one option not."""
    context, is_placed = evaluator.context, isinstance(spec, PlacedRule)
    options: dict[str, tuple[Any, ...]] = {
        "placement": PLACEMENT_NAMES if is_placed else (),
        "paths": (False, True) if "paths" in type(spec).model_fields else (),
        "batching_delay": holds_of(context),
        "micro_batch_size": (
            LARGEST,
            *(
                micro_batch_size
                for micro_batch_size in context.config.micro_batch_sizes[:-1]
                if micro_batch_size >= FEWEST
            ),
        ),
    }
    for key, values in options.items():
        if len(values) > 1:
            yield key, values


def settled(space: Space, settings: Settings) -> Space:
    """Return a space whose routers all have these settings."""
    return replace(space, spec=lambda values: with_settings(space.spec(values), settings))


# ------------------------------------------------------------------------------------------------ the search


def tune_experiment(
    experiment: Experiment,
    kind: str,
    params: TuningParams,
    *,
    on_progress: OnMeasured | None = None,
    memo: Memo | None = None,
) -> Tuned:
    """Tune one kind of router.

    Args:
        on_progress: gets the decisions simulated so far, after every group of runs.
        memo: what was measured of the same before it was interrupted.

    Raises:
        InputError: unknown kind; a floor that no width tuple reaches.
        FloorError: the floor can't be kept on this scenario by this kind.
    """
    require_possible(experiment, kind, params)
    with search_threads() as workers:
        evaluator = Evaluator(experiment, params, workers, memo, on_progress)
        space = space_of(experiment, kind, params)
        finalists = _tuples(evaluator) if space is None else _searches(kind, space, evaluator)
        winner, final_scores = evaluate_finalists(finalists, evaluator)
        figures = winner.matched or next(each.figures for each in final_scores if each.finalist is winner)
        is_low = figures.accuracy < params.floor - CLOSE * POINT and figures.unserved <= LIMIT  # else that is reported
        if winner.matched is None and is_low and not params.class_floors:  # some servers hold too little
            raise FloorError(_too_low(kind, evaluator, figures.accuracy))
        searches = 0 if space is None else params.searches
        return Tuned(kind, params, winner, figures, searches, final_scores, evaluator.spent)


def require_possible(experiment: Experiment, kind: str, params: TuningParams) -> None:
    """Raise `InputError` for an unknown kind, several models, or a floor that no width tuple reaches."""
    if kind not in TUNED:
        raise InputError("--router", "", f"{kind!r} can't be tuned; {nearest(kind, TUNED)}")
    if models := experiment.cluster.router.models:
        problem = f"a rule is tuned for one model, here are {len(models)}; take the built-in ladder or compass"
        raise InputError(experiment.scenario.name, "model", problem)
    best = max(experiment.held_accuracies.values())
    if params.floor > best:
        problem = f"{params.floor:g} is above the most accurate width tuple that the servers can hold"
        problem = f"{problem}; possible is up to {best:.4f}"
        raise InputError(experiment.scenario.name, "--floor", problem)


def space_of(experiment: Experiment, kind: str, params: TuningParams) -> Space | None:
    """Return the space to search; None if all candidates can be evaluated."""
    space: Space | None = KINDS[kind].load().space(experiment.context, params.floor)
    if space is None or not _keeps_classes(kind, params):
        return space
    plain = space.spec
    return replace(space, spec=lambda values: plain(values).model_copy(update={"control": FLOORS}))


def _keeps_classes(kind: str, params: TuningParams) -> bool:
    """Check whether each candidate keeps the floors of the classes alone; other kinds treat all as the strictest."""
    return bool(params.class_floors) and kind in CONTROLLED


def _searches(kind: str, space: Space, evaluator: Evaluator) -> list[Finalist]:
    """Return what each search found, matched, and their start if accuracy matching costs little compared with a search.

    Compass' start is always among them: it is a complete router, made for any cluster.

    If even the first finds nothing that keeps the floor, no other is tried: their starts were tried with it.
    """
    finalists: list[Finalist] = []
    settled_space = space
    first = best_settings(space.spec(space.start), evaluator, "settings, first", {})
    for number in range(evaluator.params.searches):
        seeded = evaluator.seeded(number)
        seeded.part = "search"
        values, history = _search(settled(space, first), seeded)
        seeded.part = "settings"
        settings = best_settings(space.spec(values[0]), seeded, "settings, last", first)
        settled_space = settled(space, settings)
        specs = [settled_space.spec(each) for each in (values if len(space.start) > 1 else values[:1])]
        starts = [*zip(ORIGINS, specs, strict=False), *_start(settled_space)]
        try:
            finalists.append(_matched(f"search {number + 1}", kind, evaluator, starts, history))
        except FloorError:
            if not finalists:
                raise
    is_cheap = evaluator.spent.matching <= CHEAP * evaluator.params.decisions * len(finalists)
    if (
        (is_cheap or kind == COMPASS)
        and _start(space)
        and not any(finalist.origin == ORIGINS[-1] for finalist in finalists)
    ):
        with suppress(FloorError):
            finalists.append(_matched("start", kind, evaluator, _start(settled_space), finalists[0].history))
    return finalists


def _start(space: Space) -> list[tuple[str, RuleSpec]]:
    """Return the starting point of the search, to be matched; of one number every dial is the same line."""
    return [(ORIGINS[-1], space.spec(space.start))] if len(space.start) > 1 else []


def _search(space: Space, evaluator: Evaluator) -> tuple[list[Reals], list[tuple[int, float]]]:
    """Search until the decisions are used up, or it has settled; returns last mean, last generation's best, history."""
    params, before = evaluator.params, evaluator.decisions
    search = CrossEntropy(
        _first(space, evaluator),
        space.spread,
        stream(params.seed, f"tune:{space.stream}"),
        params.population,
        params.elite,
    )
    price = FloorMultiplier((0.1, 0.05, 0.05), start=PRICE)
    history: list[tuple[int, float]] = []
    generation = 0
    limit = evaluator.decisions + params.decisions
    while evaluator.decisions < limit and not search.settled:
        candidates = search.ask()
        costs, lacking = _generation(space, evaluator, candidates, generation, price.value, halves=True)
        search.tell(candidates, costs)
        price.update(lacking)
        history.append((evaluator.decisions - before, search.best_cost))
        generation += 1
    return [search.mean, search.best], history


def _first(space: Space, evaluator: Evaluator) -> Reals:
    """Return the starting point of the search; finding that comes on top of the budget."""
    if not space.starts:
        return space.start
    starts = np.array(space.starts)
    costs, _ = _generation(space, evaluator, starts, -1, PRICE, halves=False)
    best: Reals = starts[int(np.argmin(costs)) if costs[0] > costs.min() + _BLOWN_UP else 0]
    return best


def _generation(
    space: Space, evaluator: Evaluator, candidates: Reals, generation: int, price: float, *, halves: bool
) -> tuple[Reals, float]:
    """Return what each candidate costs, and what the mean one lacks of the floor."""
    params = evaluator.params

    runs = [  # common to all; the first one is on every part in turn
        evaluator.trace_slice(f"{generation}:{episode}", (generation + episode) % params.episodes)
        for episode in range(params.episodes)
    ]
    specs = [space.spec(candidate) for candidate in candidates]

    def cost(scores: Sequence[RunScore]) -> float:
        return latency_cost(scores, params) + price * lacking(scores, params)

    def early(scores: Sequence[RunScore]) -> float:
        return latency_cost(scores, params) + EARLY * price * max(0.0, lacking(scores, params))

    scores = evaluator.measure_all(specs, runs, early if halves else None)
    costs = np.full(len(candidates), inf)
    costs[list(scores)] = [cost(score) for score in scores.values()]
    return costs, lacking(next(iter(scores.values())), params)


def _matched(
    name: str,
    kind: str,
    evaluator: Evaluator,
    starts: Sequence[tuple[str, RuleSpec]],
    history: Sequence[tuple[int, float]] = (),
) -> Finalist:
    """Dial the first that can keep the floor on full-length runs until it about does; raises `FloorError` if none."""
    evaluator.part, params = "matching", evaluator.params
    runs = [evaluator.full(number) for number in range(params.matching_runs)]
    if _keeps_classes(kind, params):
        origin, spec = starts[0]
        return Finalist(
            name, origin, spec, figures_of(evaluator.measure([(spec, run) for run in runs])), tuple(history)
        )
    most = 0.0
    for origin, spec in starts:
        dial, matched = at_floor(spec, evaluator, runs)
        if dial.is_kept:
            return Finalist(name, origin, matched, figures_of(dial.judged.runs), tuple(history))
        most = max(most, dial.judged.accuracy)
    raise FloorError(_too_low(kind, evaluator, most))


def _too_low(kind: str, evaluator: Evaluator, most: float) -> str:
    problem = (
        f"{kind}: no setting keeps an accuracy of {evaluator.params.floor:g} on {evaluator.experiment.scenario.name}"
    )
    return f"{problem}; the most was {most:.4f}. Lower the floor (tuning.floor), or name this router nowhere"


def at_floor(spec: RuleSpec, evaluator: Evaluator, runs: Sequence[SampledRun]) -> tuple[Dial[list[RunScore]], RuleSpec]:
    """Dial a rule until it about keeps the floor on these runs, or as near as it comes."""

    def dialled(by: float) -> RuleSpec:
        rule = spec.dialled(by, evaluator.context)
        assert rule is not None, "every kind that is tuned by numbers has a dial"
        return rule

    dial = find_dial(lambda by: judged(evaluator.measure([(dialled(by), run) for run in runs])), evaluator.params.floor)
    return dial, dialled(dial.by)


def able_tuples(evaluator: Evaluator, floor: float) -> list[tuple[float, ...]]:
    """Return the four cheapest efficient ones that are as accurate as a floor."""
    prior = evaluator.context.prior
    return [widths for widths in efficient_tuples(evaluator.context) if prior(widths) >= floor][-4:]


def _tuples(evaluator: Evaluator) -> list[Finalist]:
    """Return accurate enough fixed tuples, with their best settings; of classes one for each, as cheap in turn."""
    finalists, classes = [], evaluator.context.config.classes
    floors = evaluator.params.class_floors or (evaluator.params.floor,)
    cheapest_first = [reversed(able_tuples(evaluator, floor)) for floor in floors]
    for tuples in [*zip(*cheapest_first, strict=False)][::-1]:
        name = "; ".join(", ".join(f"{width:g}" for width in widths) for widths in tuples)
        rule = FixedRule(tuples=dict(zip(classes, tuples, strict=True))) if classes else FixedRule(tuple=tuples[0])
        of_what = f"settings of {tuples if classes else tuples[0]}"
        rule = rule.model_copy(update=dict(best_settings(rule, evaluator, of_what, {})))
        finalists.append(Finalist(f"tuple ({name})", "the fastest", rule))
    assert finalists, "the floor is not above the best tuple"
    return finalists


# ------------------------------------------------------------------------------------------------ the final evaluation


def evaluate_finalists(finalists: Sequence[Finalist], evaluator: Evaluator) -> tuple[Finalist, tuple[FinalScore, ...]]:
    """Return the winner, and all: at the floor, or as near to it as the most accurate came, the cheapest one."""
    evaluator.part = "final_evaluation"
    runs = [evaluator.fresh(number) for number in range(evaluator.params.matching_runs)]
    scores = [evaluator.measure([(finalist.spec, run) for run in runs]) for finalist in finalists]
    final_scores = tuple(
        FinalScore(finalist, figures_of(each), lacking(each, evaluator.params))
        for finalist, each in zip(finalists, scores, strict=True)
    )
    bar = max(0.0, min(each.lacking for each in final_scores)) + CLOSE
    costs = [
        latency_cost(each, evaluator.params) if final.lacking <= bar else inf
        for final, each in zip(final_scores, scores, strict=True)
    ]
    return finalists[int(np.argmin(costs))], final_scores


# ------------------------------------------------------------------------------------------------------------ the floor


def params_of(experiment: Experiment) -> TuningParams:
    """Return the scenario's settings for tuning rules; a floor that it does not name is the untuned ladder's.

    Raises:
        InputError: energy without a limit of the p99 latency: the longest wait would have the least.
    """
    scenario = experiment.scenario
    section, limit_s = scenario.tuning, scenario.slo.p99_limit_s
    if section.objective == "energy" and limit_s is None:
        problem = "energy needs a limit of the p99 latency; add slo.p99_limit_s"
        raise InputError(scenario.name, "tuning.objective", problem)
    floors = tuple(each.floor or 0.0 for each in scenario.classes)
    settings = section.model_dump() | {"floor": max(floors, default=section.floor or 0.0), "class_floors": floors}
    params = TuningParams(**settings, seed=scenario.seed, p99_limit_s=limit_s)
    return params if floors or section.floor is not None else replace(params, floor=natural_floor(experiment, params))


def natural_floor(experiment: Experiment, params: TuningParams) -> float:
    """Return what the untuned ladder has on the runs that floors are set on, rounded down to a tenth of a point."""
    with search_threads() as workers:
        evaluator = Evaluator(experiment, params, workers)
        scores = evaluator.measure([(LadderRule(), evaluator.full(number)) for number in range(params.matching_runs)])
    step = 0.1 * POINT
    return round(int(-shortfall(scores, 0.0) * POINT / step) * step, 6)
