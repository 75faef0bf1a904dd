"""Trains Compass over drawn clusters (`scenarios.learn.clusters`): one set of numbers that serves unseen clusters.

A candidate is judged by whole runs. On each cluster it is compared with a reference, the numbers that the last round
found, at a dial of the accuracy that is drawn, too; its extra accuracy there counts by what accuracy costs there. All
candidates of a generation see the same runs. The search is the separable CMA-ES (Ros and Hansen 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from math import log
from typing import Final

import numpy as np
from cmaes import SepCMA

from hw.host.limits import core_count
from kit import strict
from kit.chance import derived_seed, stream
from kit.errors import InputError
from kit.memo import Memo
from policies.rules.compass import SPREAD, CompassRule, Numbers
from policies.rules.specs import POINT, Reals
from scenarios.learn.clusters import Clusters, drawn_world
from scenarios.learn.evaluator import MAX_THREADS
from scenarios.learn.knobs import TAIL
from scenarios.world.scoring import SampledRun, Scorer
from sim.compiled.scoring import RunScore

STEP: Final = 0.25  # of the price's logarithm, either way of a cluster's dial: every candidate runs at both
DIALS: Final = tuple(2 * STEP * n for n in range(-6, 9))  # of the price's logarithm, of which each cluster has one
PRICES: Final = (0.1, 1.0)  # what a point of accuracy costs there, in the logarithm of the latency
SLOPES: Final = (0.02, 2.0)  # a point of accuracy, in the logarithm of the latency
NEAR: Final = 0.1  # points: up to this far beyond its two runs a candidate's price is still believed
BEYOND: Final = 0.4  # what a point further off costs
MOST: Final = 0.4  # weight of one cluster for or against a candidate
FAILED: Final = 20.0  # what the share of images that failed costs
MIN_POINTS: Final = 0.05  # between the reference's two runs: otherwise a dial moves nothing there
DROWNED: Final = 0.05  # of the images are left when a run ends
RUNS: Final = 2  # of a cluster, in turn
SIGMA: Final = 0.5  # of the first deviations (`policies.rules.compass.SPREAD`)


Try = tuple[Scorer, CompassRule, SampledRun]
Pair = tuple[RunScore, RunScore]
"""The scores of one run, at the more accurate dial and at the faster one."""


def cost_of(score: RunScore) -> float:
    """Return what is minimised."""
    return log(score.mean_s) + TAIL * log(score.p99_s) + FAILED * score.failed / max(1, score.images)


def points_between(pair: Pair) -> float:
    """Return the points of accuracy between the two."""
    return (pair[0].accuracy - pair[1].accuracy) / POINT


def slope_of(pair: Pair) -> float:
    """Return what a point of accuracy costs."""
    points = points_between(pair)
    return float(np.clip((cost_of(pair[0]) - cost_of(pair[1])) / points, *SLOPES)) if points > 0 else SLOPES[1]


def cost_at(pair: Pair, accuracy: float) -> float:
    """Return what a router costs at an accuracy, between its two runs or beyond them."""
    accurate, quick = pair
    above, below = (accuracy - accurate.accuracy) / POINT, (quick.accuracy - accuracy) / POINT
    slope = slope_of(pair)
    if above > below:
        return cost_of(accurate) + slope * above + BEYOND * max(0.0, above - NEAR)
    return cost_of(quick) - slope * below + BEYOND * max(0.0, below - NEAR)


@dataclass(frozen=True)
class Case:
    """A drawn cluster, and how the reference does on its runs.

    Attributes:
        dial: what every candidate's price has more, in its logarithm.
        references: for each run.
    """

    scorer: Scorer
    runs: tuple[SampledRun, ...]
    dial: float
    references: tuple[Pair, ...]

    def cost(self, pair: Pair, run: int) -> float:
        """Return a candidate's cost on one run, at the accuracy of the reference: below 0 if it does better."""
        reference = self.references[run]
        accuracy = (reference[0].accuracy + reference[1].accuracy) / 2
        return float(np.clip(cost_at(pair, accuracy) - cost_at(reference, accuracy), -MOST, MOST))

    def tries(self, numbers: Reals, run: int) -> list[Try]:
        """Return a candidate's two tries."""
        return [(self.scorer, rule_of(numbers, self.dial + step), self.runs[run]) for step in (-STEP, STEP)]


def rule_of(numbers: Reals, dial: float) -> CompassRule:
    """Return Compass with these numbers, at a dial, and no goal to keep."""
    its = Numbers.of_vector(numbers)
    return CompassRule(numbers=its.model_copy(update={"level": its.level + dial}), control=None)


@dataclass(frozen=True)
class Generation:
    """What is reported of one: its number, the decisions simulated until its end, and the median candidate's cost."""

    number: int
    decisions: int
    median: float
    best: float


@dataclass(frozen=True)
class Found:
    """What a training found.

    Attributes:
        decisions: simulated for it.
        costs: (clusters,) what the numbers cost on clusters that no training sees, at the accuracy of those that it
            began with: below 0 if they do better (`Case.cost`).
    """

    numbers: Numbers
    decisions: int
    costs: Reals


def _is_told(pairs: Sequence[Pair]) -> bool:
    """Check whether they show what accuracy costs: a dial moves it, and the cluster is not overloaded."""
    return all(points_between(pair) > MIN_POINTS and pair[1].unfinished < DROWNED * pair[1].images for pair in pairs)


def _price(pairs: Sequence[Pair]) -> float:
    return log(float(np.mean([slope_of(pair) for pair in pairs])))


class ClusterTraining:
    """One training. What it finds follows from the distribution alone.

    Args:
        on_generation: called after each.
        memo: what was measured before it was interrupted.
    """

    def __init__(self, given: Clusters, on_generation: Callable[[Generation], None], memo: Memo | None = None) -> None:
        self.given, self.decisions = given, 0
        self._memo, self._tell = memo, on_generation
        self._known = iter([] if memo is None else [*memo.rows])

    def run(self) -> Found:
        """Train, starting from the bundled numbers."""
        given = self.given
        start = strict.validate(Numbers, given.start, f"{given.name}: start").to_vector()
        self._spread = SPREAD
        scorers = [Scorer(drawn_world(given, str(number))) for number in range(given.clusters)]
        search = SepCMA(
            mean=np.zeros(len(start)),
            sigma=SIGMA,
            seed=derived_seed(given.seed, "over") % 2**31,
            population_size=given.population,
        )
        with ThreadPoolExecutor(min(core_count(), MAX_THREADS)) as workers:
            for number in range(given.rounds * given.generations):
                if number % given.generations == 0:
                    cases = self._cases(scorers, start + self._spread * search.mean, workers)
                    if not cases:
                        problem = "accuracy has a price in none of the clusters that were drawn, or all drown"
                        raise InputError(given.name, "clusters", f"{problem}; draw more of them, or others")
                self._generation(search, start, cases, number, workers)
            numbers = start + self._spread * search.mean
            others = [Scorer(drawn_world(given, f"held-back-{number}")) for number in range(given.held_back)]
            held_back = self._cases(others, start, workers)
            pairs = self._pairs(
                [each for case in held_back for n in range(RUNS) for each in case.tries(numbers, n)], workers
            )
        costs = [case.cost(pair, n) for (case, n), pair in zip(product(held_back, range(RUNS)), pairs, strict=True)]
        return Found(Numbers.of_vector(numbers), self.decisions, np.reshape(costs, (-1, RUNS)).mean(axis=1))

    def _cases(self, scorers: Sequence[Scorer], reference: Reals, workers: ThreadPoolExecutor) -> list[Case]:
        """Return each cluster at the dial where accuracy costs about what is drawn, as an operator would choose it.

        Clusters for which the reference has no such dial are left out.
        """
        runs = tuple(SampledRun(derived_seed(self.given.seed, f"over:run:{n}")) for n in range(RUNS))
        rules = [rule_of(reference, dial - STEP) for dial in (*DIALS, DIALS[-1] + 2 * STEP)]
        tries = [(scorer, rule, run) for scorer, run, rule in product(scorers, runs, rules)]
        scores = iter(self._measure(tries, workers))
        rng, cases = stream(self.given.seed, "over:prices"), list[Case]()
        for scorer in scorers:
            wanted = float(rng.uniform(*np.log(PRICES)))
            on_runs = [list(pairwise([next(scores) for _ in rules])) for _ in runs]
            at_dials = {
                dial: pairs for dial, pairs in zip(DIALS, zip(*on_runs, strict=True), strict=True) if _is_told(pairs)
            }
            if at_dials:
                dial = min(at_dials, key=lambda each: abs(_price(at_dials[each]) - wanted))
                cases.append(Case(scorer, runs, dial, at_dials[dial]))
        return cases

    def _generation(
        self, search: SepCMA, start: Reals, cases: Sequence[Case], number: int, workers: ThreadPoolExecutor
    ) -> None:
        candidates = [search.ask() for _ in range(self.given.population)]
        rng, run = stream(self.given.seed, f"over:generation:{number}"), number % RUNS
        picked = [cases[n] for n in rng.choice(len(cases), size=min(self.given.at_once, len(cases)), replace=False)]
        tries = [each for z in candidates for case in picked for each in case.tries(start + self._spread * z, run)]
        pairs = iter(self._pairs(tries, workers))
        costs = [float(np.mean([case.cost(next(pairs), run) for case in picked])) for _ in candidates]
        search.tell(list(zip(candidates, costs, strict=True)))
        self._tell(Generation(number, self.decisions, float(np.median(costs)), min(costs)))

    def _pairs(self, tries: Sequence[Try], workers: ThreadPoolExecutor) -> list[Pair]:
        scores = self._measure(tries, workers)
        return list(zip(scores[::2], scores[1::2], strict=True))

    def _measure(self, tries: Sequence[Try], workers: ThreadPoolExecutor) -> list[RunScore]:
        if (known := next(self._known, None)) is not None:
            scores = [RunScore(**score) for score in known]
        else:
            scores = list(workers.map(lambda tried: tried[0].score(tried[1], tried[2]), tries))
            if self._memo is not None:
                self._memo.add([asdict(score) for score in scores])
        self.decisions += sum(score.decisions for score in scores)
        return scores
