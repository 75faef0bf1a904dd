"""How routers stand to each other in one world: who beats whom at comparable accuracy, and whether chance could do it.

It computes from finished documents alone (a comparison, a validation), and knows neither sentence nor picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from scenarios.metrics.catalogue import MEASURES, Measure
from scenarios.metrics.comparison import ComparisonDocument, accuracy_measure
from scenarios.metrics.fidelity import PairDocument, ValidationDocument, is_flagged, middle_load
from scenarios.metrics.statistics import MeanInterval, PairedDifference, estimate, paired_difference

COMPARABLE: Final = 0.1 / 100  # of accuracy: who is less accurate by more is no match, however quick
ROUNDING: Final = 1e-9  # of means of accuracies
_LATENCY = MEASURES["latency_mean_s"]

InWorld = Literal["simulated", "hardware"]


@dataclass(frozen=True)
class RankedRouter:
    """A router with what it reached.

    Attributes:
        accuracy: mean over its runs.
        latency_s: mean latencies (or those that were asked for), by what runs of two routers have in common: the seed
            (of the mean over its repeats), or, where there is one seed, the repeat.
    """

    router: str
    accuracy: float
    latency_s: Mapping[int, float]

    @cached_property
    def mean_s(self) -> float:
        """Its mean latency over its runs."""
        return float(np.mean(list(self.latency_s.values())))

    @property
    def interval_s(self) -> MeanInterval:
        """Its mean latency with the 95 % interval."""
        return estimate(list(self.latency_s.values()))

    def is_match_for(self, other: RankedRouter) -> bool:
        """Whether it is as accurate as the other, or hardly less."""
        return self.accuracy >= other.accuracy - COMPARABLE - ROUNDING

    def beats(self, other: RankedRouter) -> bool:
        """Quicker, and a match in accuracy; whether by more than chance `lead` tells."""
        return self is not other and self.is_match_for(other) and self.mean_s < other.mean_s

    def lead(self, other: RankedRouter) -> PairedDifference:
        """Its mean latency less the other's, over the runs that both have."""
        common = sorted(self.latency_s.keys() & other.latency_s.keys())
        return paired_difference([self.latency_s[run] for run in common], [other.latency_s[run] for run in common])


@dataclass(frozen=True)
class Ranking:
    """The routers of one world; `left_out` are those that serve too little, or have no latency."""

    candidates: tuple[RankedRouter, ...]
    left_out: tuple[str, ...]

    def of(self, router: str) -> RankedRouter | None:
        """That router; None where it is not there, or left out."""
        return next((each for each in self.candidates if each.router == router), None)

    def beaten_by(self, one: RankedRouter) -> list[RankedRouter]:
        """Whom it beats, the quickest first."""
        return sorted((each for each in self.candidates if one.beats(each)), key=lambda each: each.mean_s)

    @property
    def winner(self) -> RankedRouter | None:
        """Find the router that nobody beats and that beats most; None where nobody beats anybody."""
        unbeaten = [one for one in self.candidates if not any(each.beats(one) for each in self.candidates)]
        best = max(unbeaten, key=lambda one: (len(self.beaten_by(one)), -one.mean_s), default=None)
        return best if best is not None and self.beaten_by(best) else None

    def next_of(self, winner: RankedRouter) -> RankedRouter:
        """Whom a winner is to be measured by: the quickest that is a match for it, else the quickest that it beats."""
        beaten = self.beaten_by(winner)
        return next((each for each in beaten if each.is_match_for(winner)), beaten[0])

    def baseline_of(self, one: RankedRouter, rules: Sequence[str]) -> RankedRouter | None:
        """The quickest of these rules that is a match for it."""
        able = [each for each in self.candidates if each.router in rules and each.is_match_for(one)]
        return min(able, key=lambda each: each.mean_s, default=None)


def compared(comparison: ComparisonDocument) -> Ranking:
    """How routers stand in a simulated comparison."""
    axis, ranked, left_out = accuracy_measure(comparison["rows"]), [], []
    for row in comparison["rows"]:
        values = row["by_seed"][_LATENCY.name]
        accuracy = axis.of(row)["mean"]
        if row["is_flagged"] or None in values or accuracy is None:
            left_out.append(row["router"])
        else:
            ranked.append(RankedRouter(row["router"], accuracy, dict(zip(row["seeds"], values, strict=True))))
    return Ranking(tuple(ranked), tuple(left_out))


def validated(validation: ValidationDocument, world: InWorld, of: Measure = _LATENCY) -> Ranking:
    """How routers stand in one world of a validation, at the load that charts show; `of`: by which of the latencies."""
    load = middle_load(row["load"] for row in validation["rows"])
    rows = [row for row in validation["rows"] if row["load"] == load]
    pairs = [pair for pair in validation["pairs"] if pair["load"] == load]
    is_expected = all(pair[world]["expected_accuracy"] is not None for pair in pairs)
    axis = MEASURES["expected_accuracy" if is_expected else "accuracy"]
    ranked, left_out = [], []
    for row in rows:
        its_pairs = [pair for pair in pairs if pair["router"] == row["router"]]
        accuracies = [axis.of(pair[world]) for pair in its_pairs]
        latency_s = by_run(its_pairs, world, of)
        if is_flagged(row["served"]) or None in accuracies or latency_s is None:
            left_out.append(row["router"])
        else:
            ranked.append(RankedRouter(row["router"], float(np.mean(accuracies)), latency_s))
    return Ranking(tuple(ranked), tuple(left_out))


def by_run(pairs: Sequence[PairDocument], world: InWorld, measure: Measure) -> dict[int, float] | None:
    """A router's values, or None where one is missing. Repeats of one trace are not independent: over seeds, each the
    mean of its repeats; of one seed, by repeat."""
    is_one = len({pair["seed"] for pair in pairs}) == 1
    values: dict[int, list[float]] = {}
    for pair in pairs:
        if (value := measure.of(pair[world])) is None:
            return None
        values.setdefault(pair["repeat"] if is_one else pair["seed"], []).append(value)
    return {run: float(np.mean(of)) for run, of in values.items()}
