"""How a router is tuned: the runs on which a setting is judged, what they cost, and how many decisions they took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice
from math import log
from typing import Final, Literal

import numpy as np

from hw.host_resources import core_count
from kit.documents import Memo
from kit.random_streams import derived_seed
from policies.rules.rule_params import POINT, RouterSpec
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.router_scores import SampledRun, Scorer, mean_accuracy, unserved
from scenarios.experiment.workloads import TraceSlice
from scenarios.metrics.failure_signs import LIMIT
from sim.compiled.run_figures import RunScore

Objective = Literal["latency", "energy"]
TAIL: Final = 0.2  # weight of log p99 relative to the log mean: the tail constraint
MAX_THREADS = 2
BEYOND_PRICE = 10.0  # of a p99 at e times its limit, in the logarithm of the energy
NEAR = 0.95  # of the limit: runs that no tuning saw differ by some per cent
UNSERVED_PRICE = 100.0  # in the logarithm of the latency: no latency is so low that it offsets this


@dataclass(frozen=True, slots=True)
class TuningParams:
    """How a router is tuned.

    Attributes:
        floor: mean accuracy, a share, that must be kept; of classes of requests the strictest.
        class_floors: if requests have classes, of each the floor that must be kept; 0 for none.
        decisions: how many simulated decisions a search may take; accuracy matching comes on top, the same for all.
        searches: independent ones; a final evaluation picks from what they found.
        seed: of the first search, and of the runs it sees; those of the others are derived from it.
        episodes: runs that every candidate is measured on in a generation.
        episode_s: their length; slices of the scenario.
        matching_runs: full-length runs that the floor is set on.
        population, elite: of a generation.
        objective: what is made small: `latency`, or `energy` an image at a p99 latency of at most `p99_limit_s`.
        control: the router keeps the goals that the operator asks for in mid-run (`policies.goal_control`).
    """

    floor: float
    decisions: int = 40_000_000
    searches: int = 1
    seed: int = 0
    episodes: int = 3
    episode_s: float = 10.0
    matching_runs: int = 3
    population: int = 16
    elite: int = 4
    objective: Objective = "latency"
    p99_limit_s: float | None = None
    control: bool = False
    class_floors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Decisions:
    """Simulated decisions, expected or made, by what they are for: the parts of tuning."""

    search: int = 0
    settings: int = 0
    matching: int = 0
    final_evaluation: int = 0

    @property
    def in_all(self) -> int:
        """The sum."""
        return self.search + self.settings + self.matching + self.final_evaluation

    def at_least(self, other: Decisions) -> Decisions:
        """Return, of each part, the larger number."""
        return Decisions(*(max(pair) for pair in zip(astuple(self), astuple(other), strict=True)))

    @property
    def text(self) -> str:
        """The sum and the parts, in words."""
        parts = f"{self.search:,} of searches, {self.settings:,} of settings, {self.matching:,} of accuracy matching"
        return f"{self.in_all:,} decisions ({parts}, {self.final_evaluation:,} of the final evaluation)"


OnMeasured = Callable[[Decisions], None]


Try = tuple[RouterSpec, SampledRun]


def search_threads() -> ThreadPoolExecutor:
    """Return threads to measure on, no more than cores; results do not depend on how many there are."""
    return ThreadPoolExecutor(min(core_count(), MAX_THREADS))


class Remembered:
    """Scores of groups of runs, in order: what an interrupted search has measured is not measured again."""

    def __init__(self, memo: Memo | None) -> None:
        self._memo, self._rows = memo, iter([] if memo is None else [*memo.rows])

    def scores(self, measure: Callable[[], Iterable[RunScore]]) -> list[RunScore]:
        """Return the next group's scores; calls `measure` if they are not known."""
        if (rows := next(self._rows, None)) is not None:
            return [RunScore(**row) for row in rows]
        scores = list(measure())
        if self._memo is not None:
            self._memo.add([asdict(score) for score in scores])
        return scores


class Evaluator:
    """The runs of one experiment that candidates are measured on.

    Args:
        workers: what they run on: threads, as compiled code holds no lock.
        memo: what an interrupted tuning of the same has measured, group of runs by group.
        on_measured: gets what was simulated so far, after every group of runs.

    Attributes:
        decisions: simulated for this seed.
        part: of `Decisions`: what runs are for from now on.
    """

    def __init__(
        self,
        experiment: Experiment,
        params: TuningParams,
        workers: ThreadPoolExecutor,
        memo: Memo | None = None,
        on_measured: OnMeasured | None = None,
    ) -> None:
        self.experiment = experiment
        self.params = params
        self.decisions = 0
        self._scorer = Scorer(experiment)
        self._workers = workers
        self._remembered = Remembered(memo)
        self.context = experiment.context
        self.part = "settings"
        self._spent, self._on_measured = Counter[str](), on_measured

    def seeded(self, number: int) -> Evaluator:
        """Return the runs of one of several searches, the first with the same seed; decisions are counted together."""
        evaluator = copy(self)
        seed = self.params.seed if number == 0 else derived_seed(self.params.seed, f"search:{number}")
        evaluator.params, evaluator.decisions = replace(self.params, seed=seed), 0
        return evaluator

    @property
    def spent(self) -> Decisions:
        """The decisions of all seeds."""
        return Decisions(**self._spent)

    def trace_slice(self, name: str, part: int) -> SampledRun:
        """Return a run of the search, from one part of the scenario; its name gives its seed."""
        seed = derived_seed(self.params.seed, f"tune:{name}")
        length_s = min(self.params.episode_s, self.experiment.scenario.duration_s)
        return SampledRun(seed, duration_s=length_s, trace_slice=TraceSlice(part, self.params.episodes))

    def full(self, number: int) -> SampledRun:
        """Return a run of full length, for accuracy matching."""
        return self._whole(f"tune:level:{number}")

    def fresh(self, number: int) -> SampledRun:
        """Return a run of full length that no search and no accuracy matching saw, for the final evaluation."""
        return self._whole(f"tune:race:{number}")

    def _whole(self, name: str) -> SampledRun:
        return SampledRun(derived_seed(self.params.seed, name), trace_slice=TraceSlice())

    def measure(self, tries: Sequence[Try]) -> list[RunScore]:
        """Measure each router on its run."""

        def measured() -> Iterable[RunScore]:
            self._scorer.keep(run for _, run in tries)
            return self._workers.map(self._scorer.score, *zip(*tries, strict=True))

        scores = self._remembered.scores(measured)
        decisions = sum(score.decisions for score in scores)
        self.decisions += decisions
        self._spent[self.part] += decisions
        if self._on_measured is not None:
            self._on_measured(self.spent)
        return scores

    def measure_all(
        self,
        specs: Sequence[RouterSpec],
        runs: Sequence[SampledRun],
        early: Callable[[Sequence[RunScore]], float] | None = None,
    ) -> dict[int, list[RunScore]]:
        """Measure each on all runs, by index; with `early` only those in its lower half after the first run."""
        first = self.measure([(spec, runs[0]) for spec in specs])
        indices = list(range(len(specs)))
        if early is not None and len(runs) > 1:
            order = np.argsort([early([score]) for score in first], kind="stable")
            indices = sorted(order[: max(1, len(specs) // 2)].tolist())
        if len(runs) == 1:
            return {index: [first[index]] for index in indices}
        more = iter(self.measure([(specs[index], run) for index in indices for run in runs[1:]]))
        return {index: [first[index], *islice(more, len(runs) - 1)] for index in indices}


def latency_cost(scores: Sequence[RunScore], params: TuningParams) -> float:
    """Return what is minimised: mean latency and, with a weight, 99th percentile, over runs; or energy within a limit.

    A router that sheds images has low latency for the others: one that leaves more than `LIMIT` unserved ranks behind
    all that do not.
    """
    share = unserved(scores)
    return _cost(scores, params) + (UNSERVED_PRICE * (1 + share) if share > LIMIT else 0.0)


def _cost(scores: Sequence[RunScore], params: TuningParams) -> float:
    if params.objective == "energy":
        assert params.p99_limit_s is not None, "asked for with the objective"
        limit_s = NEAR * params.p99_limit_s  # so that no search ends on the edge
        beyond = [BEYOND_PRICE * max(0.0, log(score.p99_s / limit_s)) for score in scores]
        return float(np.mean([log(score.image_j) + price for score, price in zip(scores, beyond, strict=True)]))
    return float(np.mean([log(score.mean_s) + TAIL * log(score.p99_s) for score in scores]))


def shortfall(scores: Sequence[RunScore], floor: float) -> float:
    """Return points of accuracy below the floor, over the images of all runs; negative above it."""
    return (floor - mean_accuracy(scores)) / POINT


def lacking(scores: Sequence[RunScore], params: TuningParams) -> float:
    """Return points of accuracy below the floor.

    With classes of requests, those of the class that is furthest below its own, of those in which a request was
    completed.
    """
    if not params.class_floors:
        return shortfall(scores, params.floor)
    points = []
    for number, floor in enumerate(params.class_floors):
        images = sum(score.class_images[number] for score in scores)
        right = sum(score.class_images[number] * score.class_accuracies[number] for score in scores)
        if images:
            points.append((floor - right / images) / POINT)
    return max(points, default=0.0)
