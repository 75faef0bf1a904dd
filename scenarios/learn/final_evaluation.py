"""The final evaluation: everything that tuning found, on full-length runs that are new to it.

The fastest at the floor wins. Each search was matched on the same runs, so that what they found is about equally
accurate, and differs in its cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

from policies.rules.specs import RuleSpec
from scenarios.learn.evaluator import Evaluator, lacking, latency_cost
from scenarios.world.dials import CLOSE
from scenarios.world.scoring import mean_accuracy, unserved
from sim.compiled.scoring import RunScore

OF_SEARCH: Final = "search"  # before its number


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
    def told(self) -> dict[str, float]:
        """As a router's file has them."""
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

    @property
    def is_of_search(self) -> bool:
        """Whether a search found it."""
        return self.name.startswith(OF_SEARCH)


@dataclass(frozen=True)
class FinalScore:
    """One of the final evaluation, with what it had in it; `lacking`: see `scenarios.learn.evaluator`."""

    finalist: Finalist
    figures: RouterFigures
    lacking: float = 0.0

    @property
    def told(self) -> dict[str, Any]:
        """As a router's file has it."""
        return {"of": self.finalist.name, **self.figures.told}


def evaluate_finalists(finalists: Sequence[Finalist], evaluator: Evaluator) -> tuple[Finalist, tuple[FinalScore, ...]]:
    """Return the winner, and all: at the floor, or as near to it as the most accurate came, the cheapest one."""
    evaluator.part = "final_evaluation"
    runs = [evaluator.fresh(number) for number in range(evaluator.knobs.matching_runs)]
    scores = [evaluator.measure([(finalist.spec, run) for run in runs]) for finalist in finalists]
    final_scores = tuple(
        FinalScore(finalist, figures_of(each), lacking(each, evaluator.knobs))
        for finalist, each in zip(finalists, scores, strict=True)
    )
    bar = max(0.0, min(each.lacking for each in final_scores)) + CLOSE
    costs = [
        latency_cost(each, evaluator.knobs) if one.lacking <= bar else inf
        for one, each in zip(final_scores, scores, strict=True)
    ]
    return finalists[int(np.argmin(costs))], final_scores
