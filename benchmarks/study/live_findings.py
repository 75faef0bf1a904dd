"""What the live scenarios' runs on executors say: who wins there, whether simulation had said so, and by how much.

Pure: figures in, plain data out. Statistics are those of `scenarios.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, cast

from policies.registry import TIDE
from policies.rules.specs import POINT
from scenarios.metrics.catalogue import MEASURES, measures
from scenarios.metrics.fidelity import Pair, Validation
from scenarios.metrics.result import Cpu, cpu_share
from scenarios.metrics.standing import COMPARABLE, ROUNDING, Contender, InWorld, by_run, validated
from scenarios.metrics.statistics import Estimate, PairedDifference, estimate, paired_difference

FELT: Final = measures("kept_share", "latency_p99_s", "expected_accuracy", "energy_per_image_j", "latency_mean_s")
"""What a user feels first; then the mean."""
P99: Final = MEASURES["latency_p99_s"]
_ACCURACY: Final = MEASURES["expected_accuracy"]

SaidSo = Literal["yes", "no", "open"]


class Measured(TypedDict):
    """One scenario's figures: as much of its validation as the page needs, in the validation's own form.

    `accuracy` is, by router, the expected one in the simulated comparison, over `seeds` seeds. `floor` and
    `p99_limit_s` are what it promises; `devices` what was emulated, empty for real ones; `searches` the fewest by which
    a router was tuned, 0 where nothing tells; `warnings` what is in the hardware's figures and in no simulation;
    `made_with` the validation's environment.
    """

    file: str
    devices: str
    floor: float | None
    p99_limit_s: float | None
    accuracy: dict[str, Estimate]
    seeds: int
    searches: int
    made_with: dict[str, Any]
    warnings: list[str]
    rows: list[dict[str, Any]]
    pairs: list[Pair]


@dataclass(frozen=True)
class Outcome:
    """Who wins in one world: of the routers that keep the floor, the one with the lowest p99.

    Attributes:
        able: those routers, the quickest first.
        tied: of the others those that the paired 95 % interval cannot tell from the quickest.
        below: routers that miss the floor; `left_out`: that serve too little, or can't be judged.
    """

    able: tuple[Contender, ...]
    tied: tuple[str, ...]
    below: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def winner(self) -> str | None:
        """None for a tie, and where fewer than two can be judged."""
        return self.able[0].router if len(self.able) > 1 and not self.tied else None

    @property
    def first(self) -> tuple[str, ...]:
        """The quickest, and who can't be told from it."""
        return (self.able[0].router, *self.tied) if self.able else ()

    def of(self, router: str) -> Contender | None:
        """That router, where it can win."""
        return next((each for each in self.able if each.router == router), None)


@dataclass(frozen=True)
class Worse:
    """A measure in which a router is worse than a rival for certain: the paired 95 % interval leaves 0 out."""

    rival: str
    measure: str
    own: float
    others: float


def outcome(measured: Measured, world: InWorld) -> Outcome:
    """By p99, of the routers that keep the floor in this world.

    That is, to a tenth of a point, as comparable accuracies are: the mean over seeds decides, so that a router whose
    accuracy varies more keeps no floor more easily.
    """
    found = validated(cast(Validation, measured), world, P99)
    reached = {one.router: long_run_accuracy(measured, one.router, world) for one in found.contenders}
    least = (measured["floor"] or 0.0) - COMPARABLE - ROUNDING
    known = [one for one in found.contenders if reached[one.router] is not None]
    able = sorted((one for one in known if (reached[one.router] or 0.0) >= least), key=lambda one: one.mean_s)
    return Outcome(
        able=tuple(able),
        tied=tuple(one.router for one in able[1:] if not one.lead(able[0])["differs"]),
        below=tuple(one.router for one in known if one not in able),
        left_out=(*found.left_out, *(one.router for one in found.contenders if one not in known)),
    )


def long_run_accuracy(measured: Measured, router: str, world: InWorld) -> float | None:
    """What a router reaches over many runs as long as the measured ones, which a floor is of; None if unknown.

    The few measured ones can't tell: of twenty seconds of bursts the accuracies of two seeds differ by a point. So it
    is that of the simulated comparison; on executors, plus what they differ from their twins on the same arrivals.
    """
    base = measured["accuracy"].get(router, estimate([]))["mean"]
    if base is None or world == "simulated":
        return base
    real, twin = (estimates(measured, router, each)[_ACCURACY.name]["mean"] for each in ("hardware", "simulated"))
    return None if real is None or twin is None else base + real - twin


def points_less(one: Contender, other: Contender) -> float | None:
    """By how many points of accuracy it is behind the other on the measured runs; None where they are comparable."""
    return None if one.is_match_for(other) else (other.accuracy - one.accuracy) / POINT


def most_cpu(measured: Measured) -> Cpu | None:
    """Of all routers' runs, what the one took whose cores were fullest; None where nothing tells it."""
    known = [cpu for row in measured["rows"] if (cpu := row.get("cpu")) is not None]
    return max(known, key=cpu_share, default=None)


def said_so(simulated: Outcome, real: Outcome) -> SaidSo:
    """Whether simulation named who wins on executors.

    `open` where either world can't tell whom it named from the quickest of the other, or simulation could judge fewer
    than two; `no` is left for those of whom simulation was certain, and wrong.
    """
    if simulated.winner is not None and simulated.winner == real.winner:
        return "yes"
    is_certain = len(simulated.able) > 1 and set(simulated.first).isdisjoint(real.first)
    return "no" if is_certain else "open"


def rival_of(real: Outcome, router: str = TIDE) -> str | None:
    """The quickest other that keeps the floor on executors."""
    return next((one.router for one in real.able if one.router != router), None)


def change_over(found: Outcome, rival: str | None, router: str = TIDE) -> Estimate:
    """Its p99 less the rival's, in percent of the rival's mean; unknown where either can't be judged in that world."""
    one, other = found.of(router), None if rival is None else found.of(rival)
    if one is None or other is None:
        return Estimate(mean=None, ci95=None)
    lead = one.lead(other)["difference"]
    scaled = (None if value is None else 100 * value / other.mean_s for value in (lead["mean"], lead["ci95"]))
    mean, half = scaled
    return Estimate(mean=mean, ci95=half)


def estimates(measured: Measured, router: str, world: InWorld) -> dict[str, Estimate]:
    """By the name of what is felt, a router's mean with its interval."""
    own = _pairs_of(measured, router)
    values = {each.name: by_run(own, world, each) for each in FELT}
    return {name: estimate([None] if found is None else list(found.values())) for name, found in values.items()}


def _pairs_of(measured: Measured, router: str) -> list[Pair]:
    return [pair for pair in measured["pairs"] if pair["router"] == router]


def worse_than_rivals(measured: Measured, router: str = TIDE) -> list[Worse]:
    """In what, on executors, who else keeps the floor there is better for certain."""
    found = []
    for rival in (one.router for one in outcome(measured, "hardware").able if one.router != router):
        for measure in FELT:
            own, other = (by_run(_pairs_of(measured, each), "hardware", measure) for each in (router, rival))
            if own is None or other is None:
                continue
            difference = _paired(own, other)
            mean = difference["difference"]["mean"]
            if difference["differs"] and mean is not None and (mean < 0) == (measure.better == "higher"):
                means = (estimate(list(each.values()))["mean"] or 0.0 for each in (own, other))
                found.append(Worse(rival, measure.name, *means))
    return found


def _paired(own: Mapping[int, float], other: Mapping[int, float]) -> PairedDifference:
    common = sorted(own.keys() & other.keys())
    return paired_difference([own[run] for run in common], [other[run] for run in common])
