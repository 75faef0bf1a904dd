"""The final race: everything that tuning found, on full-length runs that are new to it.

The quickest at the floor wins. Each search was levelled on the same runs, so that what they
found is about equally accurate, and differs in its cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

from policies.rules.specs import POINT, RuleSpec
from scenarios.learn.course import Course, latency_cost, mean_accuracy, unserved
from scenarios.learn.search import Reals
from sim.compiled.scoring import RunScore

OF_SEARCH: Final = "search"  # before its number
CLOSE: Final = 0.02  # points: how near the floor levelling comes, and the race asks for


@dataclass(frozen=True)
class Figures:
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
        found = {"mean_s": self.mean_s, "p99_s": self.p99_s, "image_j": self.image_j, "accuracy": self.accuracy}
        return {name: round(value, 6) for name, value in found.items()}


def figures_of(scores: Sequence[RunScore]) -> Figures:
    """Of some runs of one router."""
    return Figures(
        accuracy=mean_accuracy(scores),
        mean_s=float(np.mean([score.mean_s for score in scores])),
        p99_s=float(np.mean([score.p99_s for score in scores])),
        image_j=float(np.mean([score.image_j for score in scores])),
        unserved=unserved(scores),
    )


@dataclass(frozen=True)
class Racer:
    """A router in the race.

    Attributes:
        name: where it comes from: `search 1`, `start`, or a tuple.
        origin: what of that was levelled.
        values: the numbers searched over.
        spec: what makes such routers.
        levelled: on the runs that the floor was set on; None where there is nothing to set.
        history: of its search; of a start, the first's.
    """

    name: str
    origin: str
    values: Reals
    spec: RuleSpec
    levelled: Figures | None = None
    history: tuple[tuple[int, float], ...] = ()

    @property
    def is_of_search(self) -> bool:
        """Whether a search found it."""
        return self.name.startswith(OF_SEARCH)


@dataclass(frozen=True)
class Raced:
    """One of the race, with what it had in it."""

    racer: Racer
    figures: Figures

    @property
    def told(self) -> dict[str, Any]:
        """As a router's file has it."""
        return {"of": self.racer.name, **self.figures.told}


def run_race(racers: Sequence[Racer], course: Course) -> tuple[Racer, tuple[Raced, ...]]:
    """The winner, and all: at the floor, or as near to it as the most accurate came, whoever costs least."""
    course.part = "race"
    runs = [course.fresh(number) for number in range(course.knobs.levels)]
    scores = [course.measure([(racer.spec, run) for run in runs]) for racer in racers]
    raced = tuple(Raced(racer, figures_of(each)) for racer, each in zip(racers, scores, strict=True))
    bar = min(course.knobs.floor, max(each.figures.accuracy for each in raced)) - CLOSE * POINT
    costs = [
        latency_cost(each, course.knobs) if one.figures.accuracy >= bar else inf
        for one, each in zip(raced, scores, strict=True)
    ]
    return racers[int(np.argmin(costs))], raced
