"""How far simulation is off: predicted ranges and measured values, and the results of simulation and executors.

It computes from finished results alone; how they came about is `scenarios.executors.validation_plan`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Final, Generic, Literal, NotRequired, TypedDict, TypeVar

import numpy as np

from hw.telemetry.background_load import STRONG
from policies.vocabulary import Provenance
from scenarios.metrics.failure_signs import Served, leaves_many, served
from scenarios.metrics.metric_catalogue import MEASURES, VALIDATED, Measure
from scenarios.metrics.run_result import Cpu, Lateness, Result, cpu_share, lateness_share
from scenarios.metrics.statistics import (
    UNMETERED,
    WIDE_PCT,
    Case,
    Coverage,
    MeanInterval,
    Range,
    Ranges,
    change_pct,
    coverage,
    estimate,
    half_width_pct,
    holds,
    mean_range,
)

Kind = Literal["pair", "saturated"]
T = TypeVar("T")

PROMISED_PCT = {"latency_mean": 5.0, "latency_p99": 10.0, "energy_per_image": 5.0}
PROMISED_THROUGHPUT_PCT = 2.0
PROMISED_TAU = 0.9
GROWTH_OF_SATURATION = 0.1  # of what arrives in the window: a run whose backlog grows by less was not saturated
MAX_APART_PCT: Final = 50.0  # ten times the promised error of a mean: beyond any noise and fine tuning
LOADS_APART: Final = 0.1  # of the larger count; a difference within it is the timing of a server short of memory
MIN_IMAGES: Final = 30  # to judge a run by: their mean latency is known to 18 %
MIN_RUNS: Final = 2  # far from their paired simulations, before anything is stopped: one alone may have met a stall

_LATENCY = MEASURES["latency_mean_s"]
PREDICTED: Final = (_LATENCY, MEASURES["latency_p99_s"])
"""What is judged by whether it is inside its predicted range."""
_ENERGIES = tuple(measure.stem for measure in VALIDATED if measure.name in ("energy_per_image_j", "energy_j"))


class Sides(TypedDict, Generic[T]):
    """The same thing in simulation and on executors."""

    simulated: T
    executors: T


class BackgroundShares(TypedDict):
    """The share of the busiest real device's time that others took during a run; see `ForeignLoad`."""

    programs: float
    stolen: float


class ClockRow(TypedDict):
    """How far a server's clock was ahead of the router's at a run's end, how wrong that may be, and its jumps."""

    server: str
    offset_s: float
    error_s: float
    jumps: int


class ValidationRun(TypedDict):
    """One executor run and its paired simulation, as `validate` leaves them: both of one router and seed.

    `backlog_growth` is of saturated runs: by how much the backlog grew, as a share of what arrived. `slowdown` is how
    many times as long as at full speed the devices took during the executor run (their paired simulation replays it),
    the mean over the readings; null without readings. `background_load` is null if it was not measured. `clocks` are
    those of servers on other hosts.
    """

    kind: Kind
    router: str
    load: float | None
    rate_img_s: float | None
    seed: int
    repeat: int
    simulated: Result
    executors: Result
    backlog_growth: Sides[float] | None
    slowdown: float | None
    background_load: BackgroundShares | None
    clocks: list[ClockRow]


class PairDocument(TypedDict):
    """One run in simulation and on executors; errors are 100 (simulated - executors) / executors, null if meaningless.

    `simulated` is one run, which replays the devices' slowdowns if they are known; `predicted` are the ranges of
    many, which draw them.
    """

    router: str
    seed: int
    load: float | None
    rate_img_s: float | None
    repeat: int
    predicted: Ranges
    simulated: Result
    executors: Result
    error_pct: dict[str, float | None]
    not_applicable: dict[str, str]
    background_load: BackgroundShares | None


class Span(TypedDict):
    """From the least to the most that was measured."""

    least: float
    most: float


class Row(TypedDict):
    """One router at one load, over all seeds and repeats; its parts are by measure, as `Measure.stem` names it.

    `predicted` is the mean of the seeds' ranges, `error_pct` of its median compared with the mean that was measured
    (the bias of the model). Intervals of `executors` are over seeds, with the repeats of each averaged; over the
    repeats of one trace if there is one seed. `background_load`, `lateness_s` and `cpu` are those of the run with the
    most of it. If more than 1 % is unserved in simulation or on executors, nothing is judged: latencies are of the
    served alone. `stages_s` are mean seconds an image spent in each stage, null if that is not known.
    """

    router: str
    load: float | None
    rate_img_s: float | None
    seeds: list[int]
    repeats: int
    predicted: Ranges
    executors: dict[str, MeanInterval]
    measured: dict[str, Span | None]
    coverage: dict[str, Coverage | None]
    error_pct: dict[str, float | None]
    case: dict[str, Case | None]
    stages_s: Sides[dict[str, float] | None]
    slowdown: MeanInterval
    background_load: BackgroundShares | None
    lateness_s: Lateness | None
    cpu: Cpu | None
    served: Sides[Served]


class SaturatedRow(TypedDict):
    """Throughput of one router with arrivals above its capacity, of which the backlog grows.

    If only one of the two is saturated, the error is larger than it looks (the other could have sustained more); if
    neither is, nothing is judged.
    """

    router: str
    rate_img_s: float | None
    simulated_img_s: float
    hardware_img_s: float
    error_pct: float | None
    target_pct: float
    met: bool | None
    saturated: dict[str, bool]
    background_load: BackgroundShares | None
    lateness_s: Lateness | None
    cpu: Cpu | None
    served: Sides[Served]


class RankCorrelation(TypedDict):
    """Kendall's tau of the routers' mean latencies at one load.

    `separated`: over pairs whose latencies on executors differ significantly, seed by seed and repeat by repeat.
    `left_out`: routers that leave more than 1 % unserved in simulation or on executors.
    """

    load: float | None
    tau: float | None
    pairs: int
    tau_separated: float | None
    separated_pairs: int
    target: float
    met: bool | None
    left_out: list[str]


class FarRun(TypedDict):
    """A run that is more than 50 % from its paired simulation, with its errors of mean latency and throughput."""

    router: str
    load: float | None
    seed: int
    repeat: int
    error_pct: dict[str, float | None]


class FarApart(TypedDict):
    """All runs that can be judged are more than 50 % from their paired simulations.

    Attributes:
        made, planned: executor runs; if fewer were made the validation was stopped.
        kept: the file of the run folder that holds those that were made.
    """

    made: int
    planned: int
    runs: list[FarRun]
    kept: str


class ValidationDocument(TypedDict):
    """`slimsched.validation/1`; without `far_apart` if its runs are not. `coverage` is of all judged rows."""

    schema: str
    scenario: str
    pairs: list[PairDocument]
    ranking_tau: float | None
    reference_img_s: float | None
    rows: list[Row]
    coverage: dict[str, Coverage | None]
    saturated: list[SaturatedRow]
    ranking: list[RankCorrelation]
    far_apart: NotRequired[FarApart]
    busy: bool
    clocks: list[ClockRow]


def background_share(load: BackgroundShares) -> float:
    """Return the total load of other processes."""
    return load["programs"] + load["stolen"]


def is_busy(load: BackgroundShares | None) -> bool:
    """Return whether others used so much of a device that errors are not the simulator's alone, as for calibration."""
    return load is not None and background_share(load) > STRONG


@dataclass(frozen=True, slots=True)
class OtherLoads:
    """A server that loaded other instances in simulation than on executors, over all pairs of runs."""

    server: str
    simulated: int
    executors: int


def other_loads(validation: ValidationDocument) -> list[OtherLoads]:
    """Return servers whose simulated and real loads differ by more than `LOADS_APART`: they served other work."""
    counts: dict[str, list[int]] = {}
    for pair in validation["pairs"]:
        for simulated, executors in zip(pair["simulated"]["servers"], pair["executors"]["servers"], strict=True):
            total = counts.setdefault(simulated["name"], [0, 0])
            total[0] += simulated["loads"]
            total[1] += executors["loads"]
    return [
        OtherLoads(name, *pair) for name, pair in counts.items() if abs(pair[0] - pair[1]) > LOADS_APART * max(pair)
    ]


def was_stopped(validation: ValidationDocument) -> bool:
    """Return whether executor runs of the plan were not made, as the first were far from their paired simulations."""
    far_apart = validation.get("far_apart")
    return far_apart is not None and far_apart["made"] < far_apart["planned"]


def is_flagged(sides: Sides[Served]) -> bool:
    """Return whether simulation or executors leaves too many images unserved."""
    return leaves_many(sides["simulated"]) or leaves_many(sides["executors"])


def _served(runs: Sequence[ValidationRun]) -> Sides[Served]:
    simulated, executors = (served([run[side] for run in runs]) for side in ("simulated", "executors"))
    return Sides(simulated=simulated, executors=executors)


Place = tuple[str, float | None, int]
"""A router, a load and a seed."""

Predictions = Mapping[Place, Ranges]


def validate_results(
    runs: Sequence[ValidationRun], power: Provenance, predictions: Predictions = MappingProxyType({})
) -> ValidationDocument:
    """Compare all executor runs with their simulations; `power` is the source of the executors' watts."""
    pairs = [run for run in runs if run["kind"] == "pair"]
    saturated = [run for run in runs if run["kind"] == "saturated"]
    assert pairs, "nothing to validate"
    documents = [_pair(run, power, predictions) for run in pairs]
    rows = [_row(group, documents, power) for group in _groups(pairs)]
    flagged = {(row["router"], row["load"]) for row in rows if is_flagged(row["served"])}
    judged = [pair for pair in documents if (pair["router"], pair["load"]) not in flagged]
    return ValidationDocument(
        schema="slimsched.validation/1",
        scenario=pairs[0]["simulated"]["scenario"],
        pairs=documents,
        ranking_tau=_overall_tau(pairs, {row["router"] for row in rows if is_flagged(row["served"])}),
        reference_img_s=reference_img_s(saturated) if saturated else None,
        rows=rows,
        coverage={measure.stem: _coverage(judged, measure) for measure in PREDICTED},
        saturated=[_saturated_row(run) for run in saturated],
        ranking=[
            _ranking([row for row in rows if row["load"] == load], [run for run in pairs if run["load"] == load])
            for load in dict.fromkeys(row["load"] for row in rows)
        ],
        busy=any(is_busy(run["background_load"]) for run in runs),
        clocks=_worst_clocks(runs),
    )


def _worst_clocks(runs: Iterable[ValidationRun]) -> list[ClockRow]:
    """Return, of each server on another host, the clock of the run with the largest error; jumps of all."""
    clocks: dict[str, ClockRow] = {}
    for clock in (clock for run in runs for clock in run["clocks"]):
        before = clocks.get(clock["server"])
        jumps = clock["jumps"] + (0 if before is None else before["jumps"])
        worse = clock if before is None or clock["error_s"] > before["error_s"] else before
        clocks[clock["server"]] = ClockRow(
            server=clock["server"], offset_s=worse["offset_s"], error_s=worse["error_s"], jumps=jumps
        )
    return list(clocks.values())


def results_in(validation: ValidationDocument) -> list[Result]:
    """Return the results of its paired runs, simulated and on executors."""
    return [result for pair in validation["pairs"] for result in (pair["simulated"], pair["executors"])]


def reference_img_s(saturated: Iterable[ValidationRun]) -> float:
    """Return the rate that all routers sustain: the lowest throughput of any of them on saturated executors."""
    return min(run["executors"]["throughput_img_s"] for run in saturated)


def middle_load(loads: Iterable[float | None]) -> float | None:
    """Return the load that charts show: the middle of those that were run, the lower one of two."""
    ascending = sorted({load for load in loads if load is not None})
    return ascending[(len(ascending) - 1) // 2] if ascending else None


def _groups(runs: Iterable[ValidationRun]) -> list[list[ValidationRun]]:
    """Group the runs by load and router, in the order of first appearance."""
    groups: dict[tuple[float | None, str], list[ValidationRun]] = {}
    for run in runs:
        groups.setdefault((run["load"], run["router"]), []).append(run)
    return list(groups.values())


# ---------------------------------------------------------------------------------------------------------- one router


def _pair(run: ValidationRun, power: Provenance, predictions: Predictions) -> PairDocument:
    reason = f"the executors' power is {power}, not metered: both sides would come from one formula"
    return PairDocument(
        router=run["router"],
        seed=run["seed"],
        load=run["load"],
        rate_img_s=run["rate_img_s"],
        repeat=run["repeat"],
        predicted=predictions.get((run["router"], run["load"], run["seed"]), {}),
        simulated=run["simulated"],
        executors=run["executors"],
        error_pct={measure.stem: _error_pct(run, measure, power) for measure in VALIDATED},
        not_applicable=dict.fromkeys(_ENERGIES, reason) if power in UNMETERED else {},
        background_load=run["background_load"],
    )


def _error_pct(run: ValidationRun, measure: Measure, power: Provenance) -> float | None:
    if measure.stem in _ENERGIES and power in UNMETERED:
        return None
    return change_pct(measure.of(run["simulated"]), measure.of(run["executors"]))


def _coverage(pairs: Sequence[PairDocument], measure: Measure) -> Coverage | None:
    return coverage([(pair["predicted"].get(measure.stem), measure.of(pair["executors"])) for pair in pairs])


def _row(runs: Sequence[ValidationRun], documents: Sequence[PairDocument], power: Provenance) -> Row:
    shares, first = _served(runs), runs[0]
    pairs = [pair for pair in documents if (pair["router"], pair["load"]) == (first["router"], first["load"])]
    measures = [each for each in VALIDATED if each.stem not in _ENERGIES or power not in UNMETERED]
    predicted = {measure.stem: _predicted(pairs, measure) for measure in measures}
    executors = {each.stem: _estimate_of(runs, [each.of(run["executors"]) for run in runs]) for each in VALIDATED}
    covered = {measure.stem: _coverage(pairs, measure) for measure in measures}
    medians = {stem: None if interval is None else interval["median"] for stem, interval in predicted.items()}
    return Row(
        router=first["router"],
        load=first["load"],
        rate_img_s=first["rate_img_s"],
        seeds=list(dict.fromkeys(run["seed"] for run in runs)),
        repeats=len({run["repeat"] for run in runs}),
        predicted=predicted,
        executors=executors,
        measured={each.stem: _span([each.of(run["executors"]) for run in runs]) for each in VALIDATED},
        coverage=covered,
        error_pct={stem: change_pct(median, executors[stem]["mean"]) for stem, median in medians.items()},
        case={stem: None if is_flagged(shares) else _case(predicted[stem], covered[stem]) for stem in predicted},
        slowdown=estimate([run["slowdown"] for run in runs]),
        background_load=_most((run["background_load"] for run in runs), background_share),
        lateness_s=_most((run["executors"]["lateness_s"] for run in runs), lateness_share),
        cpu=_most((run["executors"]["cpu"] for run in runs), cpu_share),
        stages_s=Sides(
            simulated=_mean_stages([run["simulated"] for run in runs]),
            executors=_mean_stages([run["executors"] for run in runs]),
        ),
        served=shares,
    )


def _predicted(pairs: Sequence[PairDocument], measure: Measure) -> Range | None:
    """Return the range over all seeds, each counted once."""
    return mean_range(list({pair["seed"]: pair["predicted"].get(measure.stem) for pair in pairs}.values()))


def _span(values: Sequence[float | None]) -> Span | None:
    numbers = [value for value in values if value is not None]
    return Span(least=min(numbers), most=max(numbers)) if numbers else None


def _case(predicted: Range | None, covered: Coverage | None) -> Case | None:
    if predicted is None or covered is None:
        return None
    if not holds(covered):
        return "outside"
    return "wide" if (half_width_pct(predicted) or 0.0) > WIDE_PCT else "inside"


def farthest_stage(row: Row) -> tuple[str, float] | None:
    """Return the stage that differs most, and by how many seconds an image it was longer on executors."""
    simulated, executors = row["stages_s"]["simulated"], row["stages_s"]["executors"]
    if simulated is None or executors is None:
        return None
    longer_s = {name: executors[name] - took_s for name, took_s in simulated.items() if name in executors}
    return max(longer_s.items(), key=lambda stage: abs(stage[1]), default=None)


def replayed_error_pct(row: Row) -> float | None:
    """Return the error of the mean when simulation replays the devices' speed; None if no speed was read."""
    simulated, executors = row["stages_s"]["simulated"], row["stages_s"]["executors"]
    if row["slowdown"]["mean"] is None or simulated is None or executors is None:
        return None
    return 100 * (sum(simulated.values()) / sum(executors.values()) - 1)


def _most(values: Iterable[T | None], share: Callable[[T], float]) -> T | None:
    """Return the value of the run that had most of it: a mean would hide one that was disturbed."""
    return max((value for value in values if value is not None), key=share, default=None)


def _estimate_of(runs: Sequence[ValidationRun], values: Sequence[float | None]) -> MeanInterval:
    """Estimate a value a run.

    Repeats of one trace are not independent: over seeds, each is the mean of its repeats; of one seed, over repeats.
    """
    by_seed: dict[int, list[float | None]] = {}
    for run, value in zip(runs, values, strict=True):
        by_seed.setdefault(run["seed"], []).append(value)
    if len(by_seed) == 1:
        return estimate(*by_seed.values())
    return estimate([estimate(values)["mean"] for values in by_seed.values()])


def _mean_stages(results: Sequence[Result]) -> dict[str, float] | None:
    runs = [stages for result in results if (stages := result["stages_s"])]
    return {name: float(np.mean([stages[name] for stages in runs])) for name in runs[0]} if runs else None


# ---------------------------------------------------------------------------------------------------------- saturation


def _saturated_row(run: ValidationRun) -> SaturatedRow:
    simulated, executors = run["simulated"]["throughput_img_s"], run["executors"]["throughput_img_s"]
    growth = run["backlog_growth"]
    assert growth is not None, "known of every saturated run"
    saturated = {
        "simulated": growth["simulated"] >= GROWTH_OF_SATURATION,
        "executors": growth["executors"] >= GROWTH_OF_SATURATION,
    }
    error, shares = change_pct(simulated, executors), _served([run])
    is_judged = any(saturated.values()) and not is_flagged(shares)
    return SaturatedRow(
        router=run["router"],
        rate_img_s=run["rate_img_s"],
        simulated_img_s=simulated,
        hardware_img_s=executors,
        error_pct=error,
        target_pct=PROMISED_THROUGHPUT_PCT,
        met=abs(error) <= PROMISED_THROUGHPUT_PCT if is_judged and error is not None else None,
        saturated=saturated,
        background_load=run["background_load"],
        lateness_s=run["executors"]["lateness_s"],
        cpu=run["executors"]["cpu"],
        served=shares,
    )


# ----------------------------------------------------------------------------------------------------------- far apart

_FAR: Final = (MEASURES["latency_mean_s"], MEASURES["throughput_img_s"])


def far_runs(runs: Sequence[ValidationRun]) -> list[FarRun]:
    """Return all runs that can be judged, if each of them is more than 50 % from its paired simulation; otherwise none.

    If a profile is of another machine, or this one is overloaded, every run is that far off. One that is nearer clears
    the rest for good: a validation that has passed does not stop when it is resumed.
    """
    judged = [_far_run(run) for run in runs if _is_comparable(run)]
    far = [run for run in judged if any(abs(error or 0.0) > MAX_APART_PCT for error in run["error_pct"].values())]
    return far if len(far) == len(judged) else []


def is_hopeless(runs: Sequence[ValidationRun]) -> bool:
    """Check whether enough of them are far off: hours of more of them add nothing."""
    return len(far_runs(runs)) >= MIN_RUNS


def _is_comparable(run: ValidationRun) -> bool:
    """Check whether a run can reveal a wrong profile.

    Not a saturated one, whose latency is that of a backlog, nor one of few images, nor one while a server is down.
    """
    sides = run["simulated"], run["executors"]
    is_enough = run["simulated"]["images"]["completed"] >= MIN_IMAGES and run["executors"]["images"]["completed"] > 0
    return run["kind"] == "pair" and is_enough and not any(result["restarts"] for result in sides)


def _far_run(run: ValidationRun) -> FarRun:
    errors = {each.stem: change_pct(each.of(run["simulated"]), each.of(run["executors"])) for each in _FAR}
    return FarRun(router=run["router"], load=run["load"], seed=run["seed"], repeat=run["repeat"], error_pct=errors)


# ------------------------------------------------------------------------------------------------------------- ranking


def _overall_tau(runs: Sequence[ValidationRun], left_out: Set[str]) -> float | None:
    """Return the tau over the routers whose simulated and hardware latency is known, each at its mean over all runs."""
    latencies: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        simulated, executors = run["simulated"]["latency_s"]["mean"], run["executors"]["latency_s"]["mean"]
        if simulated is not None and executors is not None and run["router"] not in left_out:
            latencies.setdefault(run["router"], []).append((simulated, executors))
    means = [np.mean(values, axis=0) for values in latencies.values()]
    return _tau([(float(mean[0]), float(mean[1])) for mean in means])


def _tau(points: Sequence[tuple[float, float]]) -> float | None:
    if len(points) < 2:
        return None
    from scipy import stats  # slow to import, and every command passes here

    tau = float(stats.kendalltau(*zip(*points, strict=True)).statistic)
    return None if np.isnan(tau) else tau


def _ranking(rows: Sequence[Row], runs: Sequence[ValidationRun]) -> RankCorrelation:
    left_out = [row["router"] for row in rows if is_flagged(row["served"])]
    latencies_s = {
        row["router"]: (simulated, executors)
        for row in rows
        if row["router"] not in left_out
        and (simulated := _mean_of(runs, row["router"])) is not None
        and (executors := row["executors"]["latency_mean"]["mean"]) is not None
    }
    signs = [
        np.sign(latencies_s[first][0] - latencies_s[second][0]) * np.sign(difference)
        for first, second in combinations(latencies_s, 2)
        if (difference := _separation_s(runs, first, second)) is not None
    ]
    separated = float(np.mean(signs)) if signs else None
    return RankCorrelation(
        load=rows[0]["load"],
        tau=_tau(list(latencies_s.values())),
        pairs=len(latencies_s) * (len(latencies_s) - 1) // 2,
        tau_separated=separated,
        separated_pairs=len(signs),
        target=PROMISED_TAU,
        met=None if separated is None else separated >= PROMISED_TAU,
        left_out=left_out,
    )


def _mean_of(runs: Sequence[ValidationRun], router: str) -> float | None:
    return estimate([_LATENCY.of(run["simulated"]) for run in runs if run["router"] == router])["mean"]


def _separation_s(runs: Sequence[ValidationRun], first: str, second: str) -> float | None:
    """Return the difference of their mean latencies on executors, on the same seeds and repeats.

    These had the same arrivals at about the same time. Null if the interval of that difference contains 0.
    """
    latency_s = {(run["router"], run["seed"], run["repeat"]): run["executors"]["latency_s"]["mean"] for run in runs}

    def difference_s(run: ValidationRun) -> float | None:
        one_s, other_s = (latency_s[router, run["seed"], run["repeat"]] for router in (first, second))
        return None if one_s is None or other_s is None else one_s - other_s

    shared = [run for run in runs if run["router"] == first and (second, run["seed"], run["repeat"]) in latency_s]
    far = _estimate_of(shared, [difference_s(run) for run in shared]) if shared else MeanInterval(mean=None, ci95=None)
    mean_s, half_s = far["mean"], far["ci95"]
    return mean_s if mean_s is not None and half_s is not None and abs(mean_s) > half_s else None
