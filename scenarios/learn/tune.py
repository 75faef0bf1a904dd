"""Tunes a router on a scenario: the fastest one whose mean accuracy keeps a floor, by direct search on whole runs.

Learned router and rules are tuned with the same budget: the same search, the same number of simulated decisions, the
same runs (seeds that no report uses, slices of the scenario, its `tuning_file` if it follows a curve), the same
objective. Then one number of each, that which trades latency for accuracy, is set so that the floor is kept on
full-length runs. A final evaluation on other runs picks one of several searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from kit.chance import stream
from kit.errors import InputError, WorkError, nearest
from kit.memo import Memo
from policies.registry import COMPASS, CONTROLLED, KINDS, TUNED
from policies.rules.controlled import ControlSpec
from policies.rules.costs import efficient_tuples
from policies.rules.specs import POINT, FixedRule, LadderRule, RuleSpec, Space
from scenarios.learn.evaluator import (
    Decisions,
    Evaluator,
    OnMeasured,
    lacking,
    latency_cost,
    search_threads,
    shortfall,
)
from scenarios.learn.final_evaluation import (
    OF_SEARCH,
    Finalist,
    FinalScore,
    RouterFigures,
    evaluate_finalists,
    figures_of,
)
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.search import CrossEntropy, FloorMultiplier, Reals, SearchKnobs
from scenarios.learn.settings import EARLY, PRICE, Settings, best_settings, settled
from scenarios.metrics.served import LIMIT
from scenarios.world.dials import CLOSE, Dial, find_dial, judged
from scenarios.world.scoring import SampledRun
from scenarios.world.world import World
from sim.compiled.scoring import RunScore

ORIGINS: Final = ("mean of the last generation", "best of the last generation", "start of the search")
FLOORS: Final = ControlSpec(p99_limit_s=0.0)  # the operator's, and no limit
CHEAP: Final = 0.5  # of a search's decisions: the most that accuracy matching may take for the start to be matched, too
_BLOWN_UP = 1.0  # so much more than another start costs, in the logarithm of the latency
_STEEP = 20.0  # what a point below the floor costs, in the logarithm of the latency


class FloorError(WorkError):
    """No setting of a router keeps the floor on a scenario."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        kind: one of `policies.registry.TUNED`.
        floor, class_floors: of accuracy; see `TuningKnobs`.
        winner: of the final evaluation; its spec goes into the router's file.
        figures: over the full-length runs that the floor was set on, or of the final evaluation if there was nothing to
            set.
        searches: how many there were; 0 if all candidates were evaluated.
        final_scores: of all finalists.
        spent: simulated decisions.
    """

    kind: str
    floor: float
    winner: Finalist
    figures: RouterFigures
    searches: int
    final_scores: tuple[FinalScore, ...]
    spent: Decisions
    class_floors: tuple[float, ...] = ()

    @property
    def spec(self) -> RuleSpec:
        """What makes such routers."""
        return self.winner.spec

    @property
    def history(self) -> tuple[tuple[int, float], ...]:
        """Of the winner's search: the decisions simulated until each generation's end, and its best objective."""
        return self.winner.history


# ------------------------------------------------------------------------------------------------ the search


def tune_world(
    world: World,
    kind: str,
    knobs: TuningKnobs,
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
    require_possible(world, kind, knobs)
    with search_threads() as workers:
        evaluator = Evaluator(world, knobs, workers, memo, on_progress)
        space = space_of(world, kind, knobs)
        finalists = _tuples(evaluator) if space is None else _searches(kind, space, evaluator)
        winner, final_scores = evaluate_finalists(finalists, evaluator)
        figures = winner.matched or next(each.figures for each in final_scores if each.finalist is winner)
        is_low = figures.accuracy < knobs.floor - CLOSE * POINT and figures.unserved <= LIMIT  # else that is reported
        if winner.matched is None and is_low and not knobs.class_floors:  # some servers hold too little
            raise FloorError(_too_low(kind, evaluator, figures.accuracy))
        searches = 0 if space is None else knobs.searches
        found = (winner, figures, searches, final_scores, evaluator.spent, knobs.class_floors)
        return Tuned(kind, knobs.floor, *found)


def require_possible(world: World, kind: str, knobs: TuningKnobs) -> None:
    """Raise `InputError` for an unknown kind, several models, or a floor that no width tuple reaches."""
    if kind not in TUNED:
        raise InputError("--router", "", f"{kind!r} can't be tuned; {nearest(kind, TUNED)}")
    if models := world.cluster.router.models:
        problem = f"a rule is tuned for one model, here are {len(models)}; take ladder or compass as they ship"
        raise InputError(world.scenario.name, "model", problem)
    best = max(world.held_top1.values())
    if knobs.floor > best:
        problem = f"{knobs.floor:g} is above the most accurate width tuple that the servers can hold"
        problem = f"{problem}; possible is up to {best:.4f}"
        raise InputError(world.scenario.name, "--floor", problem)


def space_of(world: World, kind: str, knobs: TuningKnobs) -> Space | None:
    """Return the space to search; None if all candidates can be evaluated."""
    space: Space | None = KINDS[kind].load().space(world.context, knobs.floor)
    if space is None or not _keeps_classes(kind, knobs):
        return space
    plain = space.spec
    return replace(space, spec=lambda values: plain(values).model_copy(update={"control": FLOORS}))


def _keeps_classes(kind: str, knobs: TuningKnobs) -> bool:
    """Check whether each candidate keeps the floors of the classes alone; other kinds treat all as the strictest."""
    return bool(knobs.class_floors) and kind in CONTROLLED


def _searches(kind: str, space: Space, evaluator: Evaluator) -> list[Finalist]:
    """Return what each search found, matched, and their start if accuracy matching costs little compared with a search.

    Compass' start is always among them: it is a complete router, made for any cluster.

    If even the first finds nothing that keeps the floor, there is no other: their starts were tried with it.
    """
    finalists: list[Finalist] = []
    settled_space = space
    first = best_settings(space.spec(space.start), evaluator, "settings, first", {})
    for number in range(evaluator.knobs.searches):
        settled_space, values, history = _search_with_settings(space, evaluator.seeded(number), first)
        found = [settled_space.spec(each) for each in values]
        starts = [*zip(ORIGINS, found, strict=False), *_start(settled_space)]
        try:
            finalists.append(_matched(f"{OF_SEARCH} {number + 1}", kind, evaluator, starts, history))
        except FloorError:
            if not finalists:
                raise
    is_cheap = evaluator.spent.matching <= CHEAP * evaluator.knobs.decisions * len(finalists)
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


def _search_with_settings(
    space: Space, evaluator: Evaluator, settings: Settings
) -> tuple[Space, list[Reals], list[tuple[int, float]]]:
    """Return the space with what was picked from lists; last mean and best of the last generation; the history."""
    evaluator.part = "search"
    values, history = _search(settled(space, settings), evaluator)
    evaluator.part = "settings"
    settings = best_settings(space.spec(values[0]), evaluator, "settings, last", settings)
    return settled(space, settings), values if len(space.start) > 1 else values[:1], history


def _search(space: Space, evaluator: Evaluator) -> tuple[list[Reals], list[tuple[int, float]]]:
    """Search until the decisions are used up, or it has settled; returns last mean, last generation's best, history."""
    knobs, before = evaluator.knobs, evaluator.decisions
    search = CrossEntropy(
        _first(space, evaluator),
        space.spread,
        stream(knobs.seed, f"tune:{space.stream}"),
        SearchKnobs(population=knobs.population, elite=knobs.elite),
    )
    price = FloorMultiplier((0.1, 0.05, 0.05), start=PRICE)
    history: list[tuple[int, float]] = []
    generation = 0
    limit = evaluator.decisions + knobs.decisions
    while evaluator.decisions < limit and not search.settled:
        candidates = search.ask()
        worth = price.value if knobs.pid else _STEEP
        costs, lacking = _generation(space, evaluator, candidates, generation, worth, halves=True)
        search.tell(candidates, costs, comparable=False)
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
    knobs = evaluator.knobs

    runs = [  # common to all; the first one is on every part in turn
        evaluator.trace_slice(f"{generation}:{episode}", (generation + episode) % knobs.episodes)
        for episode in range(knobs.episodes)
    ]
    specs = [space.spec(candidate) for candidate in candidates]

    def cost(scores: Sequence[RunScore]) -> float:
        lack = lacking(scores, knobs)
        return latency_cost(scores, knobs) + price * (lack if knobs.pid else max(0.0, lack))

    def early(scores: Sequence[RunScore]) -> float:
        return latency_cost(scores, knobs) + EARLY * price * max(0.0, lacking(scores, knobs))

    scores = evaluator.measure_all(specs, runs, early if halves else None)
    costs = np.full(len(candidates), inf)
    costs[list(scores)] = [cost(each) for each in scores.values()]
    return costs, lacking(next(iter(scores.values())), knobs)


def _matched(
    name: str,
    kind: str,
    evaluator: Evaluator,
    starts: Sequence[tuple[str, RuleSpec]],
    history: Sequence[tuple[int, float]] = (),
) -> Finalist:
    """Dial the first that can keep the floor on full-length runs until it about does; raises `FloorError` if none."""
    evaluator.part, knobs = "matching", evaluator.knobs
    runs = [evaluator.full(number) for number in range(knobs.matching_runs)]
    if _keeps_classes(kind, knobs):
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
    problem = f"{kind}: no setting keeps an accuracy of {evaluator.knobs.floor:g} on {evaluator.world.scenario.name}"
    return f"{problem}; the most was {most:.4f}. Lower the floor (tuning.floor), or name this router nowhere"


def at_floor(spec: RuleSpec, evaluator: Evaluator, runs: Sequence[SampledRun]) -> tuple[Dial[list[RunScore]], RuleSpec]:
    """Dial a rule until it about keeps the floor on these runs, or as near as it comes."""

    def dialled(by: float) -> RuleSpec:
        rule = spec.dialled(by, evaluator.context)
        assert rule is not None, "every kind that is tuned by numbers has a dial"
        return rule

    dial = find_dial(lambda by: judged(evaluator.measure([(dialled(by), run) for run in runs])), evaluator.knobs.floor)
    return dial, dialled(dial.by)


def able_tuples(evaluator: Evaluator, floor: float) -> list[tuple[float, ...]]:
    """Return the four cheapest efficient ones that are as accurate as a floor."""
    prior = evaluator.context.prior
    return [widths for widths in efficient_tuples(evaluator.context) if prior(widths) >= floor][-4:]


def _tuples(evaluator: Evaluator) -> list[Finalist]:
    """Return accurate enough fixed tuples, with their best settings; of classes one for each, as cheap in turn."""
    finalists, classes = [], evaluator.context.config.classes
    floors = evaluator.knobs.class_floors or (evaluator.knobs.floor,)
    cheapest_first = [reversed(able_tuples(evaluator, floor)) for floor in floors]
    for tuples in [*zip(*cheapest_first, strict=False)][::-1]:
        name = "; ".join(", ".join(f"{width:g}" for width in widths) for widths in tuples)
        rule = FixedRule(tuples=dict(zip(classes, tuples, strict=True))) if classes else FixedRule(tuple=tuples[0])
        of_what = f"settings of {tuples if classes else tuples[0]}"
        rule = rule.model_copy(update=dict(best_settings(rule, evaluator, of_what, {})))
        finalists.append(Finalist(f"tuple ({name})", "the quickest", rule))
    assert finalists, "the floor is not above the best tuple"
    return finalists


# ------------------------------------------------------------------------------------------------------------ the floor


def knobs_of(world: World) -> TuningKnobs:
    """Return the scenario's settings for tuning rules; a floor that it does not name is the untuned ladder's.

    Raises:
        InputError: energy without a limit of the p99 latency: the longest wait would have the least.
    """
    scenario = world.scenario
    section, limit_s = scenario.tuning, scenario.slo.p99_limit_s
    if section.objective == "energy" and limit_s is None:
        problem = "energy needs a limit of the p99 latency; add slo.p99_limit_s"
        raise InputError(scenario.name, "tuning.objective", problem)
    floors = tuple(each.floor or 0.0 for each in scenario.classes)
    settings = section.model_dump() | {"floor": max(floors, default=section.floor or 0.0), "class_floors": floors}
    knobs = TuningKnobs(**settings, seed=scenario.seed, p99_limit_s=limit_s)
    return knobs if floors or section.floor is not None else replace(knobs, floor=natural_floor(world, knobs))


def natural_floor(world: World, knobs: TuningKnobs) -> float:
    """Return what the untuned ladder has on the runs that floors are set on, rounded down to a tenth of a point."""
    with search_threads() as workers:
        evaluator = Evaluator(world, knobs, workers)
        scores = evaluator.measure([(LadderRule(), evaluator.full(number)) for number in range(knobs.matching_runs)])
    return floor_to(-shortfall(scores, 0.0) * POINT, 0.1 * POINT)


def floor_to(value: float, step: float) -> float:
    """Return the next lower multiple of a step."""
    return round(int(value / step) * step, 6)
