"""Tunes a router on a scenario: the quickest one whose mean accuracy keeps a floor, by direct search on whole runs.

Learned router and rules are tuned alike: the same search, the same number of simulated decisions, the same runs (seeds
that no report uses, excerpts of the scenario, its `tuning_file` where it follows a curve), the same objective. Then one
number of each, that which trades latency for accuracy, is set so that the floor is kept on full-length runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from policies.chance import stream
from policies.errors import InputError, WorkError, nearest
from policies.registry import KINDS, TUNED
from policies.rules.costs import efficient_tuples
from policies.rules.specs import POINT, FixedRule, LadderRule, RouterSpec, Space
from scenarios.learn.course import MOST_THREADS, Course, latency_cost, shortfall, unserved
from scenarios.learn.kept_scores import KeptScores
from scenarios.learn.knobs import TuningKnobs
from scenarios.learn.search import CrossEntropy, FloorMultiplier, Reals, SearchKnobs, level
from scenarios.learn.settings import PRICE, best_settings, settled
from scenarios.metrics.served import LIMIT
from scenarios.world.world import World
from sim.cluster import RunSpec
from sim.compiled.scoring import RunScore

ORIGINS: Final = ("mean of the last generation", "best of the last generation", "start of the search")
_BLOWN_UP = 1.0  # so much more than another start costs, in the logarithm of the latency
_STEEP = 20.0  # what a point below the floor costs, in the logarithm of the latency


class FloorError(WorkError):
    """No setting of a router keeps the floor on a scenario."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        kind: one of `policies.registry.TUNED`.
        origin: what was levelled: one of `ORIGINS`.
        values: the numbers searched over.
        spec: what makes such routers, and goes into its file.
        decisions: simulated in the search; `level_decisions` in setting the floor.
        accuracy, mean_s, p99_s: means over the full-length runs of tuning.
        unserved: share of their images that failed.
        image_j: energy an image in them.
        history: best objective after each generation, with the decisions simulated until then.
    """

    kind: str
    origin: str
    values: Reals
    spec: RouterSpec
    decisions: int
    level_decisions: int
    accuracy: float
    mean_s: float
    p99_s: float
    unserved: float = 0.0
    image_j: float = 0.0
    history: tuple[tuple[int, float], ...] = ()


# ------------------------------------------------------------------------------------------------ the search

Progress = Callable[[int, float], None]


def tune_world(
    world: World,
    kind: str,
    knobs: TuningKnobs,
    *,
    start: Reals | None = None,
    on_progress: Progress | None = None,
    kept: KeptScores | None = None,
) -> Tuned:
    """Tune one kind of router.

    Args:
        start: begin here, looking half as far.
        on_progress: gets decisions simulated and the best objective after each generation.
        kept: what was measured of the same before it was interrupted.

    Raises:
        InputError: unknown kind; a floor that no width tuple reaches.
        FloorError: the floor can't be kept on this scenario by this kind.
    """
    if kind not in TUNED:
        raise InputError("--router", "", f"{kind!r} can't be tuned; {nearest(kind, TUNED)}")
    best = max(world.accuracy.prior.top1.values())
    if knobs.floor > best:
        problem = f"{knobs.floor:g} is above the most accurate width tuple; possible is up to {best:.4f}"
        raise InputError(world.scenario.name, "--floor", problem)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as workers:
        course = Course(world, knobs, workers, kept)
        space: Space | None = KINDS[kind].load().space(world.context, knobs.floor, knobs.without)
        if space is None:
            return _best_tuple(course)
        first = space.spec(space.start if start is None else start)
        settings = best_settings(first, course, "settings, first", {})
        found, history = _search(settled(space, settings), course, start, on_progress)
        settings = best_settings(space.spec(found[0]), course, "settings, last", settings)
        searched = course.decisions
        levelled = _levelled(kind, settled(space, settings), course, found)
        return replace(levelled, decisions=searched, history=tuple(history))


def _search(
    space: Space, course: Course, start: Reals | None, on_progress: Progress | None
) -> tuple[list[Reals], list[tuple[int, float]]]:
    """Until the decisions are used up, or it has settled; the last mean, and the best of the last generation."""
    knobs = course.knobs
    first = _first(space, course) if start is None else np.where(space.spread > 0, start, space.start)
    search = CrossEntropy(
        first,
        space.spread * (1.0 if start is None else 0.5),
        stream(knobs.seed, f"tune:{space.stream}"),
        SearchKnobs(population=knobs.population, elite=knobs.elite),
    )
    price = FloorMultiplier((0.1, 0.05, 0.05), start=PRICE)
    history: list[tuple[int, float]] = []
    generation = 0
    limit = course.decisions + knobs.decisions
    while course.decisions < limit and not search.settled:
        candidates = search.ask()
        costs, lacking = _generation(
            space, course, candidates, generation, price.value if knobs.pid else _STEEP, race=knobs.race
        )
        search.tell(candidates, costs, comparable=False)
        price.update(lacking)
        history.append((course.decisions, search.best_cost))
        generation += 1
        if on_progress is not None:
            on_progress(course.decisions, search.best_cost)
    return [search.mean, search.best], history


def _first(space: Space, course: Course) -> Reals:
    """Where the search begins; finding that comes on top of the budget."""
    if not space.starts:
        return space.start
    starts = np.array(space.starts)
    costs, _ = _generation(space, course, starts, -1, PRICE, race=False)
    best: Reals = starts[int(np.argmin(costs)) if costs[0] > costs.min() + _BLOWN_UP else 0]
    return best


def _generation(
    space: Space, course: Course, candidates: Reals, generation: int, price: float, *, race: bool
) -> tuple[Reals, float]:
    """What each candidate costs, and what the mean one lacks of the floor."""
    knobs = course.knobs

    def runs(number: int, episode: int) -> RunSpec:
        own = "" if knobs.common else f":{number}"
        part = (generation + episode) % knobs.episodes  # so that the race is run on every part in turn
        if (episode, own) not in specs:
            specs[episode, own] = course.excerpt(f"{generation}:{episode}{own}", part)
        return specs[episode, own]

    specs: dict[tuple[int, str], RunSpec] = {}
    kinds = [space.spec(candidate) for candidate in candidates]
    first = course.measure([(kind.make(course.context), runs(n, 0)) for n, kind in enumerate(kinds)])
    scores = [[each] for each in first]

    def cost(found: Sequence[RunScore]) -> float:
        lacking = shortfall(found, knobs.floor)
        return latency_cost(found, knobs) + price * (lacking if knobs.pid else max(0.0, lacking))

    kept = list(range(len(candidates)))
    if race and knobs.episodes > 1:  # one run says little of the floor, so there it counts for less
        early = [latency_cost(s, knobs) + 0.15 * price * max(0.0, shortfall(s, knobs.floor)) for s in scores]
        kept = sorted(np.argsort(early, kind="stable")[: max(1, len(candidates) // 2)].tolist())
    more = [(n, episode) for n in kept for episode in range(1, knobs.episodes)]
    if more:
        found = course.measure([(kinds[n].make(course.context), runs(n, episode)) for n, episode in more])
        for (n, _), each in zip(more, found, strict=True):
            scores[n].append(each)
    costs = np.full(len(candidates), inf)
    costs[kept] = [cost(scores[n]) for n in kept]
    return costs, shortfall(scores[kept[0]], knobs.floor)


def _levelled(kind: str, space: Space, course: Course, found: Sequence[Reals]) -> Tuned:
    """Shift the first that can keep the floor on full-length runs until it about does; the last is its kind's start."""
    knobs, before = course.knobs, course.decisions
    specs = [course.full(number) for number in range(knobs.levels)]

    most = 0.0

    def measure(values: Reals) -> list[RunScore]:
        nonlocal most
        made = space.spec(values)
        scores = course.measure([(made.make(course.context), spec) for spec in specs])
        most = max(most, knobs.floor - shortfall(scores, knobs.floor) * POINT)
        return scores

    starts = [*found, space.start] if len(space.start) > 1 else found[:1]  # of one number every shift is the same line
    origins = zip(ORIGINS, starts, strict=False)
    shifts = ((origin, _find_shift(space, values, measure, knobs.floor)) for origin, values in origins)
    origin, shift = next(((origin, shift) for origin, shift in shifts if shift is not None), ("", None))
    if shift is None:
        problem = f"{kind}: no setting keeps an accuracy of {knobs.floor:g} on {course.world.scenario.name}"
        raise FloorError(f"{problem}; the most was {most:.4f}")
    values, scores = shift
    return Tuned(
        kind=kind,
        origin=origin,
        values=values,
        spec=space.spec(values),
        decisions=before,
        level_decisions=course.decisions - before,
        accuracy=knobs.floor - shortfall(scores, knobs.floor) * POINT,
        mean_s=float(np.mean([score.mean_s for score in scores])),
        p99_s=float(np.mean([score.p99_s for score in scores])),
        unserved=unserved(scores),
        image_j=float(np.mean([score.image_j for score in scores])),
    )


_CLOSE = 0.02  # points
_MOST_TRIES = 9


def _find_shift(
    space: Space, values: Reals, measure: Callable[[Reals], list[RunScore]], floor: float
) -> tuple[Reals, list[RunScore]] | None:
    """The least shift found at which the floor is kept: within two hundredths of a point, if the tries last."""
    seen: dict[float, float] = {}
    kept: dict[float, tuple[Reals, list[RunScore]]] = {}
    width, shift = 0.25, 0.0
    for _ in range(_MOST_TRIES):
        shifted = space.shifted(values, shift)
        scores = measure(shifted)
        lacking = shortfall(scores, floor)
        seen[shift] = -lacking
        if lacking <= 0:
            kept[shift] = (shifted, scores)
            if lacking > -_CLOSE:
                break
        below, above = (any(y < 0 for y in seen.values()), any(y >= 0 for y in seen.values()))
        if below and above:
            shift = level(seen, 0.5 * _CLOSE, min(seen), max(seen))
        else:
            shift = min(max(seen) + width, space.reach) if below else max(min(seen) - width, -space.reach)
            width *= 3
        if shift in seen:
            break
    able = [shift for shift, (_, scores) in kept.items() if unserved(scores) <= LIMIT]  # they come first
    return kept[min(able or kept)] if kept else None


def _best_tuple(course: Course) -> Tuned:
    """The quickest fixed tuple that is accurate enough, of the four cheapest efficient ones, on full-length runs.

    Each has its best settings.
    """
    knobs, context = course.knobs, course.world.context
    able = [widths for widths in efficient_tuples(context) if context.prior(widths) >= knobs.floor][-4:]
    specs = [course.full(number) for number in range(knobs.levels)]
    best: tuple[float, FixedRule, list[RunScore]] | None = None
    for widths in able:
        rule = FixedRule(tuple=widths)
        rule = rule.model_copy(update=dict(best_settings(rule, course, f"settings of {widths}", {})))
        scores = course.measure([(rule.make(context), spec) for spec in specs])
        cost = latency_cost(scores, knobs)
        if best is None or cost < best[0]:
            best = (cost, rule, scores)
    assert best is not None, "the floor is not above the best tuple"
    _, rule, scores = best
    return Tuned(
        kind="fixed",
        origin="the quickest",
        values=np.array(rule.tuple_),
        spec=rule,
        decisions=course.decisions,
        level_decisions=0,
        accuracy=float(np.mean([score.accuracy for score in scores])),
        mean_s=float(np.mean([score.mean_s for score in scores])),
        p99_s=float(np.mean([score.p99_s for score in scores])),
        unserved=unserved(scores),
        image_j=float(np.mean([score.image_j for score in scores])),
    )


# ------------------------------------------------------------------------------------------------------------ the floor


def natural_floor(world: World, knobs: TuningKnobs) -> float:
    """What the untuned ladder has on the runs that floors are set on, rounded down to a tenth of a point."""
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as workers:
        course = Course(world, knobs, workers)
        specs = [course.full(number) for number in range(knobs.levels)]
        scores = course.measure([(LadderRule().make(world.context), spec) for spec in specs])
    return floor_to(-shortfall(scores, 0.0) * POINT, 0.1 * POINT)


def floor_to(value: float, step: float) -> float:
    """The next lower multiple of a step."""
    return round(int(value / step) * step, 6)
