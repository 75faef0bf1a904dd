"""Tunes a router on a scenario: the quickest one whose mean accuracy keeps a floor, by direct search on whole runs.

Learned router and rules are tuned alike: the same search, the same number of simulated decisions, the same runs (seeds
that no report uses, excerpts of the scenario, its `tuning_file` where it follows a curve), the same objective. Then one
number of each, that which trades latency for accuracy, is set so that the floor is kept on full-length runs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import exp, inf, log
from pathlib import Path
from typing import Any, Final

import numpy as np

from policies.chance import derived_seed, stream
from policies.errors import InputError, WorkError, nearest
from policies.interfaces import RoutingPolicy
from policies.plan_of import plan_of
from policies.rules.context import RouterContext
from policies.rules.costs import default_target_s, efficient_tuples, spread
from policies.rules.specs import FixedRule, InfaasRule, LadderRule, MilpRule, RuleSpec, SlackFitRule
from policies.tide import knobs as tide_knobs
from policies.tide.router import TideRouter
from scenarios.files.reading import ROUTER_SUFFIX, RULE_SUFFIX
from scenarios.learn.search import CrossEntropy, FloorMultiplier, Reals, SearchKnobs, level
from scenarios.runs.folder import write_rule
from scenarios.world.build import World
from sim.cluster import RunSpec
from sim.compiled.program import program_of
from sim.compiled.run_plan import run_to_end
from sim.compiled.scoring import RunScore, score_run, tuple_priors
from sim.compiled.simulation import RunRow

FAILURE_SUFFIX: Final = ".failed.txt"
POINT = 0.01  # of accuracy
ORIGINS: Final = ("mean of the last generation", "best of the last generation", "start of the search")
RUNGS = 8
MOST_THREADS = 2
_PRICE = 0.4  # what a point of accuracy is worth at first, in the logarithm of the latency
_BLOWN_UP = 1.0  # so much more than another start costs, in the logarithm of the latency
_STEEP = 20.0  # what a point below the floor costs, in the logarithm of the latency


class FloorError(WorkError):
    """No setting of a router keeps the floor on a scenario."""


@dataclass(frozen=True, slots=True)
class TuningKnobs:
    """How a router is tuned; the switches are those of the ablation in docs/tide.md.

    Attributes:
        floor: mean accuracy, a share, that must be kept.
        decisions: how many simulated decisions the search may take; levelling comes on top, for all alike.
        seed: of the search, and of the runs it sees.
        episodes: runs that every candidate is measured on in a generation.
        episode_s: their length; excerpts of the scenario.
        levels: full-length runs that the floor is set on.
        tail: weight of log p99 beside the log mean: the tail constraint.
        common: all candidates of a generation see the same runs (common random numbers).
        logs: objectives are logarithms, so that runs of unequal load count alike.
        race: candidates that are worst on the first run are given up: those that blew up cost little.
        pid: what a point of accuracy is worth is controlled (a Lagrangian multiplier); else the floor is a steep wall.
        rates: each run's rate is drawn from this range, in times of the workload's.
        without: groups of Tide's knobs that are switched off.
        population, elite: of a generation.
    """

    floor: float
    decisions: int = 40_000_000
    seed: int = 0
    episodes: int = 3
    episode_s: float = 10.0
    levels: int = 3
    tail: float = 0.2
    common: bool = True
    logs: bool = True
    race: bool = True
    pid: bool = True
    rates: tuple[float, float] = (1.0, 1.0)
    without: tuple[str, ...] = ()
    population: int = 16
    elite: int = 4


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        kind: a name of `KINDS`.
        origin: what was levelled: one of `ORIGINS`.
        values: the numbers searched over.
        router: makes a fresh router.
        spec: the rule, for its file; None for Tide.
        decisions: simulated in the search; `level_decisions` in setting the floor.
        accuracy, mean_s, p99_s: means over the full-length runs of tuning.
        history: best objective after each generation, with the decisions simulated until then.
    """

    kind: str
    origin: str
    values: Reals
    router: Callable[[], RoutingPolicy]
    spec: RuleSpec | None
    decisions: int
    level_decisions: int
    accuracy: float
    mean_s: float
    p99_s: float
    history: tuple[tuple[int, float], ...] = ()


# --------------------------------------------------------------------------------------- what is searched over


class Space(ABC):
    """The numbers of one kind of router.

    Attributes:
        start, spread: where the search begins, and how far it looks.
        levelled: which of them trades latency for accuracy; accuracy rises with `direction` times it.
    """

    start: Reals
    spread: Reals
    levelled: int = 0
    direction: float = 1.0
    reach: float = 6.0  # how far levelling may move it

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        self.context = context

    @abstractmethod
    def rule(self, values: Reals) -> RuleSpec | None:
        """The rule with these numbers; None for Tide."""

    def router(self, values: Reals) -> RoutingPolicy:
        """A fresh router with these numbers."""
        rule = self.rule(values)
        assert rule is not None
        return rule.make(self.context)

    def starts(self) -> list[Reals]:
        """Where the search may begin: with the first, unless that blows up and another does not."""
        return [self.start]

    def shifted(self, values: Reals, by: float) -> Reals:
        """More accurate for `by` above 0."""
        moved = values.copy()
        moved[self.levelled] += self.direction * by
        return moved


class TideSpace(Space):
    """Tide's knobs; its price's level is levelled."""

    direction = -1.0

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        size = (context.config.segments, len(context.config.widths))
        self.start = tide_knobs.start(*size, knobs.without)
        self.spread = tide_knobs.spread(*size, knobs.without)

    def rule(self, values: Reals) -> None:
        """It is no rule."""

    def router(self, values: Reals) -> TideRouter:
        """See `Space`."""
        return TideRouter(values, self.context)


class LadderSpace(Space):
    """The gaps between a ladder's thresholds, in logarithms; all of them are levelled."""

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        self.rungs = spread(efficient_tuples(context), RUNGS)
        self.start, self.spread = np.full(len(self.rungs) - 1, 2.5), np.full(len(self.rungs) - 1, 0.8)

    def rule(self, values: Reals) -> LadderRule:
        """See `Space`."""
        return LadderRule(rungs=self.rungs, thresholds=tuple(np.cumsum(np.exp(values)).tolist()))

    def starts(self) -> list[Reals]:
        """See `Space`."""
        return [self.shifted(self.start, by) for by in (0.0, -1.0, -2.0, 1.0)]

    def shifted(self, values: Reals, by: float) -> Reals:
        """All thresholds at so many times the load."""
        return values + by


class SlackFitSpace(Space):
    """The latency target's logarithm."""

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        self.start, self.spread = np.array([log(default_target_s(context))]), np.array([1.5])

    def rule(self, values: Reals) -> SlackFitRule:
        """See `Space`."""
        return SlackFitRule(target_s=exp(values[0]))


class InfaasSpace(Space):
    """Logarithms of the share of the target above which a server steps down, of the target, and of up over down.

    The last is the accuracy of the cheapest variant, in points: at the floor itself that is kept whatever comes.
    """

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        accuracies = [context.prior(widths) for widths in efficient_tuples(context)]
        self._least, self._most = min(accuracies), max(accuracies)
        self.start = np.array([log(0.1), log(default_target_s(context)), log(0.3), knobs.floor / POINT])
        self.spread = np.array([1.0, 1.0, 0.6, 1.0])

    def rule(self, values: Reals) -> InfaasRule:
        """See `Space`."""
        down, floor = exp(values[0]), min(max(float(values[3]) * POINT, self._least), self._most)
        return InfaasRule(target_s=exp(values[1]), down=down, up=down * min(0.95, exp(values[2])), floor=floor)

    def starts(self) -> list[Reals]:
        """See `Space`."""
        return [np.append(self.start[:3], self._least / POINT), self.start]


class MilpSpace(Space):
    """Logarithms of the headroom (less of it is more accurate) and of the period."""

    direction = -1.0

    def __init__(self, context: RouterContext, knobs: TuningKnobs) -> None:
        super().__init__(context, knobs)
        self.start, self.spread = np.array([log(1.2), log(1.0)]), np.array([0.4, 0.8])

    def rule(self, values: Reals) -> MilpRule:
        """See `Space`."""
        return MilpRule(headroom=exp(values[0]), period_s=max(0.5, exp(values[1])))


SPACES: Final[Mapping[str, type[Space]]] = {
    "tide": TideSpace,
    "ladder": LadderSpace,
    "slackfit": SlackFitSpace,
    "infaas": InfaasSpace,
    "milp": MilpSpace,
}
KINDS: Final = (*SPACES, "fixed")


# -------------------------------------------------------------------------------------------- what is measured


class Course:
    """The runs of one world that candidates are measured on.

    Args:
        workers: what they run on; compiled code holds no lock.
    """

    def __init__(self, world: World, knobs: TuningKnobs, workers: ThreadPoolExecutor) -> None:
        self.world, self.knobs, self.decisions = world, knobs, 0
        self._program, self._workers = program_of(world.cluster), workers
        self._priors = tuple_priors(self._program)
        self._context = world.context

    def excerpt(self, name: str, part: int) -> RunSpec:
        """A run of the search, from one part of the scenario; its name gives its seed."""
        seed = derived_seed(self.knobs.seed, f"tune:{name}")
        scale = float(stream(seed, "load").uniform(*self.knobs.rates))
        length_s = min(self.knobs.episode_s, self.world.scenario.duration_s)
        return self.world.run_spec(
            seed,
            duration_s=length_s,
            scale=scale,
            detail=False,
            end="cut",
            tuning=True,
            part=(part, self.knobs.episodes),
        )

    def full(self, number: int) -> RunSpec:
        """A run of full length, for levelling."""
        seed = derived_seed(self.knobs.seed, f"tune:level:{number}")
        return self.world.run_spec(seed, detail=False, end="cut", tuning=True)

    def measure(self, tries: Sequence[tuple[RoutingPolicy, RunSpec]]) -> list[RunScore]:
        """Each router on its run; a router serves one run."""
        scores = list(self._workers.map(self._one, *zip(*tries, strict=True)))
        self.decisions += sum(score.decisions for score in scores)
        return scores

    def _one(self, router: RoutingPolicy, spec: RunSpec) -> RunScore:
        planned = plan_of(router, self._context.config)
        assert planned is not None, "every kind that is tuned has a compiled form"
        run = RunRow(self._program, spec)
        run_to_end(run, planned.row, stream(spec.seed, "router:tuned"), planned.replan)
        warmup_s = min(self.world.scenario.warmup_s, 0.2 * spec.horizon_ns / 1e9)
        return score_run(run, self._priors, round(warmup_s * 1e9))


def latency_cost(scores: Sequence[RunScore], knobs: TuningKnobs) -> float:
    """What is made small: the mean latency and, with a weight, the 99th percentile, over runs."""
    costs = [(score.mean_s, score.p99_s) for score in scores]
    if knobs.logs:
        return float(np.mean([log(mean_s) + knobs.tail * log(p99_s) for mean_s, p99_s in costs]))
    return log(float(np.mean([mean_s for mean_s, _ in costs]))) + knobs.tail * log(
        float(np.mean([p99_s for _, p99_s in costs]))
    )


def shortfall(scores: Sequence[RunScore], floor: float) -> float:
    """Points of accuracy below the floor, over the images of all runs; negative above it."""
    images = sum(score.images - score.unfinished for score in scores)
    accuracy = sum(score.accuracy * (score.images - score.unfinished) for score in scores) / max(images, 1)
    return (floor - accuracy) / POINT


# ------------------------------------------------------------------------------------------------ the search

Progress = Callable[[int, float], None]


def tune_world(
    world: World,
    kind: str,
    knobs: TuningKnobs,
    *,
    start: Reals | None = None,
    on_progress: Progress | None = None,
) -> Tuned:
    """Tune one kind of router.

    Args:
        start: begin here, looking half as far.
        on_progress: gets decisions simulated and the best objective after each generation.

    Raises:
        InputError: unknown kind; a floor that no width tuple reaches.
        FloorError: the floor can't be kept on this scenario by this kind.
    """
    if kind not in KINDS:
        raise InputError("--router", "", f"{kind!r} can't be tuned; {nearest(kind, KINDS)}")
    best = max(world.accuracy.prior.top1.values())
    if knobs.floor > best:
        problem = f"{knobs.floor:g} is above the most accurate width tuple; possible is up to {best:.4f}"
        raise InputError(world.scenario.name, "--floor", problem)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as workers:
        course = Course(world, knobs, workers)
        if kind == "fixed":
            return _best_tuple(course)
        space = SPACES[kind](world.context, knobs)
        found, history = _search(space, course, start, on_progress)
        searched = course.decisions
        levelled = _levelled(kind, space, course, found)
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
        stream(knobs.seed, f"tune:{type(space).__name__}"),
        SearchKnobs(population=knobs.population, elite=knobs.elite),
    )
    price = FloorMultiplier((0.1, 0.05, 0.05), start=_PRICE)
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
    starts = np.array(space.starts())
    if len(starts) == 1:
        return space.start
    costs, _ = _generation(space, course, starts, -1, _PRICE, race=False)
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
    scores = [[each] for each in course.measure([(space.router(x), runs(n, 0)) for n, x in enumerate(candidates)])]

    def cost(found: Sequence[RunScore]) -> float:
        lacking = shortfall(found, knobs.floor)
        return latency_cost(found, knobs) + price * (lacking if knobs.pid else max(0.0, lacking))

    kept = list(range(len(candidates)))
    if race and knobs.episodes > 1:  # one run says little of the floor, so there it counts for less
        early = [latency_cost(s, knobs) + 0.15 * price * max(0.0, shortfall(s, knobs.floor)) for s in scores]
        kept = sorted(np.argsort(early, kind="stable")[: max(1, len(candidates) // 2)].tolist())
    more = [(n, episode) for n in kept for episode in range(1, knobs.episodes)]
    if more:
        found = course.measure([(space.router(candidates[n]), runs(n, episode)) for n, episode in more])
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
        scores = course.measure([(space.router(values), spec) for spec in specs])
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
        router=lambda: space.router(values),
        spec=space.rule(values),
        decisions=before,
        level_decisions=course.decisions - before,
        accuracy=knobs.floor - shortfall(scores, knobs.floor) * POINT,
        mean_s=float(np.mean([score.mean_s for score in scores])),
        p99_s=float(np.mean([score.p99_s for score in scores])),
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
    return kept[min(kept)] if kept else None


def _best_tuple(course: Course) -> Tuned:
    """The quickest fixed tuple that is accurate enough, of the four cheapest efficient ones, on full-length runs."""
    knobs, context = course.knobs, course.world.context
    able = [widths for widths in efficient_tuples(context) if context.prior(widths) >= knobs.floor][-4:]
    specs = [course.full(number) for number in range(knobs.levels)]
    best: tuple[float, FixedRule, list[RunScore]] | None = None
    for widths in able:
        rule = FixedRule(tuple_=widths)
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
        router=lambda: rule.make(context),
        spec=rule,
        decisions=course.decisions,
        level_decisions=0,
        accuracy=float(np.mean([score.accuracy for score in scores])),
        mean_s=float(np.mean([score.mean_s for score in scores])),
        p99_s=float(np.mean([score.p99_s for score in scores])),
    )


# ----------------------------------------------------------------------------------------- for the command line


def knobs_of(world: World, arguments: Any) -> TuningKnobs:
    """The scenario's tuning settings, or what the flags say instead; raises `InputError` for an unknown switch."""
    given = world.scenario.tuning
    floor = arguments.floor if arguments.floor is not None else given.floor
    knobs = TuningKnobs(
        floor=0.0 if floor is None else floor,
        decisions=arguments.decisions or given.decisions,
        seed=arguments.seed,
        episodes=given.episodes,
        episode_s=given.episode_s,
        levels=given.levels,
        without=_switches(arguments.router, arguments.without),
    )
    return knobs if floor is not None else replace(knobs, floor=natural_floor(world, knobs))


def _switches(kind: str, without: Sequence[str]) -> tuple[str, ...]:
    if without and kind != tide_knobs.KIND:
        raise InputError("--without", "", f"only tide has something to switch off; {kind!r} has not")
    for switch in without:
        if switch not in tide_knobs.SWITCHES:
            raise InputError("--without", "", f"no switch {switch!r}; {nearest(switch, tide_knobs.SWITCHES)}")
    return tuple(without)


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


def tuned_path(out: Path | None, kind: str) -> Path:
    """Where a tuned router goes.

    Raises:
        InputError: nothing of that kind is tuned; the file could not be read back.
    """
    if kind not in KINDS:
        raise InputError("--router", "", f"{kind!r} can't be tuned; {nearest(kind, KINDS)}")
    ending = ROUTER_SUFFIX if kind == tide_knobs.KIND else RULE_SUFFIX
    path = out or Path(f"{kind}{ending}")
    if not path.name.endswith(ending):
        raise InputError("--out", "", f"{path}: the file of a tuned {kind} ends with {ending}")
    return path


def failure_path(path: Path) -> Path:
    """Beside where a router would lie: why there is none."""
    ending = next((each for each in (ROUTER_SUFFIX, RULE_SUFFIX) if path.name.endswith(each)), path.suffix)
    return path.with_name(path.name.removesuffix(ending) + FAILURE_SUFFIX)


def read_start(path: Path, world: World, kind: str) -> Reals:
    """The numbers of a Tide that was trained before."""
    if kind != tide_knobs.KIND:
        raise InputError("--start", "", "only tide can begin with a file")
    return TideRouter.load(path, world.context).values


def save_tuned(
    found: Tuned,
    world: World,
    knobs: TuningKnobs,
    path: Path,
    scenario: Path,
    *,
    start: str | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Write the router with how it was made (`start`: from which file; `seconds`: in how long); what is reported."""
    without = "".join(f" --without {switch}" for switch in knobs.without)
    command = f"slimsched tune scenarios/{scenario.name} --router {found.kind} --floor {knobs.floor:g}"
    made_by = {
        "command": f"{command} --decisions {knobs.decisions} --seed {knobs.seed}{without}"
        + (f" --start {start}" if start else ""),
        "floor": knobs.floor,
        "decisions": found.decisions,
        "level_decisions": found.level_decisions,
        "origin": found.origin,
        "wall_s": None if seconds is None else round(seconds, 1),
        "accuracy": round(found.accuracy, 6),
        "latency_mean_s": round(found.mean_s, 6),
        "latency_p99_s": round(found.p99_s, 6),
    }
    failure_path(path).unlink(missing_ok=True)
    if found.spec is None:
        router = found.router()
        assert isinstance(router, TideRouter)
        router.save(path, made_by)
    else:
        write_rule(path, replace(found.spec, made_by=made_by))
    return {"schema": "slimsched.tuned/1", "router": found.kind, "scenario": world.scenario.name, **made_by}
