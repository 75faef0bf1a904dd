"""The capacity of a cluster with a router: the largest rate at which it keeps what is asked, found by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from kit.errors import InputError, WorkError
from kit.random_streams import stream
from policies.faults import NO_PREDICTION
from policies.interfaces import RoutingPolicy
from policies.run_records import COMPLETED, FAILED, IN_FLIGHT, RequestColumns, RunColumns
from policies.vocabulary import NS_PER_S
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.files.scenario_keys import PoissonWorkload, ServerDownFault
from scenarios.metrics.failure_signs import LIMIT
from scenarios.metrics.result_documents import Capacity, ClassCarried, FallenRate
from scenarios.metrics.run_result import Simulator, energy_per_image, expected_accuracy_of, percentile
from scenarios.metrics.slo import NO_SLO, P99, ROUNDING, Slo, has_floor
from scenarios.metrics.statistics import NEW_RUNS, range_of_new_runs

GROWTH_LIMIT = 0.03  # of the second half's arrivals: more backlog than that is growth, not noise
NOISE_IMAGES = 30
MIN_IMAGES = 200  # in a run, so that its second half has a p99
CHECKS: Final = (0.97, 0.9)  # of the answer, each with two other seeds
OF_FAULTS = (NO_PREDICTION, "server_down")  # reasons of failed requests that no load brings about


@dataclass(frozen=True)
class RateReading:
    """What one run shows of its rate; None if no image was completed, `p99_s` also if that one failed.

    Attributes:
        is_steady: see `read`.
        p99_s, accuracy: of the run's second half; accuracy is the table's, of the width tuples that ran.
        energy_per_image_j: of all devices over the whole run.
        classes: of each class of requests alone; they are as steady as the whole.
    """

    is_steady: bool
    p99_s: float | None = None
    accuracy: float | None = None
    energy_per_image_j: float | None = None
    classes: tuple[RateReading, ...] = ()

    def keeps_limit(self, slo: Slo) -> bool:
        """Return whether its p99 is within what is asked, and that of each class."""
        keeps = slo.p99_limit_s is None or (self.p99_s is not None and self.p99_s <= slo.p99_limit_s)
        return keeps and all(map(RateReading.keeps_limit, self.classes, slo.classes))

    def keeps_floor(self, slo: Slo) -> bool:
        """Return whether it is as accurate as is asked, and each class."""
        return has_floor(self.accuracy, slo.floor) and all(map(RateReading.keeps_floor, self.classes, slo.classes))

    def keeps(self, slo: Slo) -> bool:
        """Return whether it is steady, and keeps both."""
        return self.is_steady and self.keeps_limit(slo) and self.keeps_floor(slo)


@dataclass(frozen=True)
class TriedRate:
    """What the runs at one rate show; `sustains`: most of the seeds keep what is asked."""

    rate_img_s: float
    sustains: bool
    readings: tuple[RateReading, ...]

    def kept(self, slo: Slo) -> list[RateReading]:
        """Return the readings at which the rate is sustained."""
        return [reading for reading in self.readings if reading.keeps(slo)]

    def missed(self, slo: Slo) -> RateReading:
        """Return the first reading at which the rate is not sustained."""
        return next(reading for reading in self.readings if not reading.keeps(slo))


@dataclass(frozen=True)
class Search:
    """How a capacity is searched for.

    Attributes:
        router: its name, for random streams and the result.
        duration_s: of each run.
        precision: of the rate, as a share of it.
        slo: what a rate must keep, besides being stable.
        lost: servers that are down for the whole run.
        is_checked: whether rates below the answer are run once more, with separate seeds, and the answer itself if a
            p99 is asked for.
    """

    router: str
    seeds: tuple[int, ...]
    duration_s: float = 20.0
    precision: float = 0.05
    engine: Simulator = "simpy"
    slo: Slo = NO_SLO
    lost: tuple[str, ...] = ()
    is_checked: bool = False


def read(experiment: Experiment, policy: RoutingPolicy, scale: float, seed: int, search: Search) -> RateReading:
    """Run at `scale` times the experiment's rate; steady if its second half ends with about the backlog it began with.

    A backlog kept small by dropping images does not count as steady: no more than `LIMIT` of what arrived then may fail
    (except for what only planned faults cause).
    """
    run = experiment.run_spec(seed, duration_s=search.duration_s, scale=scale, detail=False, end="cut")
    simulation = experiment.simulation(run, search.engine)
    simulation.finish(policy, stream(seed, f"router:{search.router}"))
    columns = simulation.columns()
    requests, half_ns = columns.requests, run.horizon_ns // 2
    is_steady, class_of = _is_steady(columns, half_ns), run.class_of[requests.request]
    classes = []
    for number, class_slo in enumerate(search.slo.classes):
        class_requests = requests.where(class_of == number)
        p99_s = p99_of(class_requests, half_ns, class_slo.p99_limit_s)
        classes.append(RateReading(is_steady, p99_s, _accuracy(class_requests, half_ns, experiment)))
    completed = requests.status == COMPLETED
    joules = energy_per_image(columns.devices, columns.ended_ns / NS_PER_S, int(np.count_nonzero(completed)))
    return RateReading(
        is_steady=is_steady,
        p99_s=p99_of(requests, half_ns, search.slo.p99_limit_s),
        accuracy=_accuracy(requests, half_ns, experiment),
        energy_per_image_j=joules["total"],
        classes=tuple(classes),
    )


def _accuracy(requests: RequestColumns, half_ns: int, experiment: Experiment) -> float | None:
    """Return the accuracy, by the table, of what was completed in the second half."""
    completed = (requests.status == COMPLETED) & (requests.finished_ns > half_ns)
    return expected_accuracy_of(requests, completed, experiment.accuracy.prior)


def _is_steady(columns: RunColumns, half_ns: int) -> bool:
    requests = columns.requests
    arrived = int(np.count_nonzero(requests.arrived_ns > half_ns))
    ended = int(np.count_nonzero((requests.status != IN_FLIGHT) & (requests.finished_ns > half_ns)))
    by_load = [reason not in OF_FAULTS for reason in requests.reasons]
    is_failed = (requests.status == FAILED) & np.array(by_load, np.bool_)[requests.reason]
    failed = int(np.count_nonzero(is_failed & (requests.arrived_ns > half_ns)))
    return arrived - ended <= GROWTH_LIMIT * arrived + NOISE_IMAGES and failed <= LIMIT * arrived


def p99_of(requests: RequestColumns, half_ns: int, limit_s: float | None) -> float | None:
    """Return the p99 of requests that ended in the second half, judged as windows are (`scenarios.metrics.slo`).

    A failed image has infinite latency, and one that is in flight at the run's end counts once its latency exceeds the
    limit.
    """
    latency_s = (requests.finished_ns - requests.arrived_ns) / NS_PER_S
    overdue = (requests.status == IN_FLIGHT) & (latency_s > (np.inf if limit_s is None else limit_s))
    latency_s[requests.status == FAILED] = np.inf
    ascending_s = np.sort(latency_s[(requests.finished_ns > half_ns) & ((requests.status != IN_FLIGHT) | overdue)])
    value = percentile(ascending_s, P99) if len(ascending_s) else np.inf
    return value if np.isfinite(value) else None


def capacity(
    experiment: Experiment,
    policy: Callable[[], RoutingPolicy],
    search: Search,
    *,
    read: Callable[[Experiment, RoutingPolicy, float, int, Search], RateReading] = read,
    on_progress: Callable[[TriedRate], None] = lambda tried: None,
) -> Capacity:
    """Bisect on stability (not on overload throughput, which falls as the rate rises), and on what else is asked.

    A rate is stable if, over the second half of a run, the backlog grows by no more than 3 % of what arrives, and that
    with more than half of the seeds: near its limit a router may do well or badly by chance. If a floor or a limit of
    p99 is asked, the same runs must keep them; the search assumes that a router that keeps all at a rate does so below
    it, and checks this at `CHECKS` of the answer if `search` requests it.

    A stable rate is one that can last, so it is searched with Poisson arrivals and no faults on the scenario's cluster,
    whatever moves there.

    Args:
        read: returns what one run shows, by experiment, router, scale of the rate, seed and search.

    Raises:
        InputError: no width tuple is as accurate as the floor.
        WorkError: no rate keeps what is asked, down to a thousandth of the estimated capacity.
    """
    experiment = without(under_poisson(experiment), search.lost)
    _require_possible(experiment, search.slo)
    first_img_s, tries = experiment.capacity_img_s, list[TriedRate]()

    def run(rate_img_s: float, seed: int) -> RateReading:
        return read(experiment, policy(), rate_img_s / first_img_s, seed, search)

    def attempt(rate_img_s: float) -> TriedRate:
        trial = _try_rate(rate_img_s, partial(run, rate_img_s), search)
        tries.append(trial)
        on_progress(trial)
        return trial

    low, high = _bracket(attempt, first_img_s, _least_img_s(experiment, search), search.precision)
    if low is None:
        raise WorkError(f"{search.router}: {_why_none(tries, search.slo, experiment)}")
    unused = range(max(search.seeds) + 1, max(search.seeds) + 1 + NEW_RUNS)
    shares = CHECKS if search.is_checked else ()
    checks = [FallenRate(share * low.rate_img_s, seed) for share in shares for seed in unused[:2]]
    fell = [check for check in checks if not run(check.rate_img_s, check.seed).keeps(search.slo)]
    is_promised = search.is_checked and search.slo.p99_limit_s is not None
    new = [run(low.rate_img_s, seed) for seed in unused] if is_promised else []
    return Capacity(
        engine=search.engine,
        duration_s=search.duration_s,
        router=search.router,
        workload=experiment.scenario.workload.kind,
        seeds=search.seeds,
        stable_img_s=low.rate_img_s,
        unstable_img_s=high.rate_img_s,
        runs=sum(len(each.readings) for each in tries) + len(checks) + len(new),
        checks=len(checks),
        fell=tuple(fell),
        floor=search.slo.floor,
        p99_limit_s=search.slo.p99_limit_s,
        p99_s=_mean(each.p99_s for each in low.kept(search.slo)),
        p99_range_s=range_of_new_runs([each.p99_s for each in new]) if new else None,
        accuracy=_mean(each.accuracy for each in low.kept(search.slo)),
        energy_per_image_j=_mean(each.energy_per_image_j for each in low.kept(search.slo)),
        classes=_classes_at(low, experiment.scenario.class_names, search.slo),
    )


def _bracket(
    attempt: Callable[[float], TriedRate], first_img_s: float, least_img_s: float, precision: float
) -> tuple[TriedRate | None, TriedRate]:
    """Return a rate that is sustained and one that is not, within the precision; None if none is, down to the least."""
    low: TriedRate | None = None
    high = attempt(first_img_s)
    while high.sustains:
        low, high = high, attempt(high.rate_img_s * 2)
    while low is None or high.rate_img_s - low.rate_img_s > precision * high.rate_img_s:
        if low is None and high.rate_img_s < least_img_s:
            break
        middle = attempt(((0.0 if low is None else low.rate_img_s) + high.rate_img_s) / 2)
        low, high = (middle, high) if middle.sustains else (low, middle)
    return low, high


def _classes_at(rate: TriedRate, names: Sequence[str], slo: Slo) -> dict[str, ClassCarried]:
    readings = rate.kept(slo)
    return {
        name: ClassCarried(
            floor=class_slo.floor,
            p99_limit_s=class_slo.p99_limit_s,
            p99_s=_mean(reading.classes[number].p99_s for reading in readings),
            accuracy=_mean(reading.classes[number].accuracy for reading in readings),
        )
        for number, (name, class_slo) in enumerate(zip(names, slo.classes, strict=True))
    }


def _try_rate(rate_img_s: float, run: Callable[[int], RateReading], search: Search) -> TriedRate:
    """Try as many seeds as it takes until the others can't change the majority."""
    needed, sustained = len(search.seeds) // 2 + 1, 0
    readings: list[RateReading] = []
    for seed in search.seeds:
        readings.append(run(seed))
        if readings[-1].keeps(search.slo):
            sustained += 1
        if sustained >= needed or sustained + len(search.seeds) - len(readings) < needed:
            break
    return TriedRate(rate_img_s, sustained >= needed, tuple(readings))


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _least_img_s(experiment: Experiment, search: Search) -> float:
    """Return the lower end of the search: the fewer images a run has, the less it shows, least of all of a p99."""
    least = 0.0 if search.slo == NO_SLO else MIN_IMAGES / search.duration_s
    return max(1e-3 * experiment.capacity_img_s, least)


def _require_possible(experiment: Experiment, slo: Slo) -> None:
    best = max(experiment.held_accuracies.values())
    if slo.floor is not None and slo.floor > best + ROUNDING:
        problem = f"{slo.floor:g} is beyond the most accurate width tuple that the servers can hold"
        raise InputError("--floor", "", f"{problem}; expected up to {best:.4f}")


def _why_none(tries: Sequence[TriedRate], slo: Slo, experiment: Experiment) -> str:
    """Describe what was not kept even at the lowest rate, and the nearest to it that was seen at any."""
    lowest = min(tries, key=lambda each: each.rate_img_s)
    if not all(reading.is_steady for reading in lowest.readings):
        return f"no stable rate above {lowest.rate_img_s:.3g} images/s"
    readings = [(run, each.rate_img_s) for each in tries for run in each.readings]
    parts = []
    if not all(reading.keeps_limit(slo) for reading in lowest.readings) and slo.p99_limit_s is not None:
        text = f"no rate keeps a p99 of {slo.p99_limit_s * 1000:g} ms"
        if p99s := [(run.p99_s, rate_img_s) for run, rate_img_s in readings if run.p99_s is not None]:
            text += f": the lowest seen is {min(p99s)[0] * 1000:.2f} ms, at {min(p99s)[1]:.4g} images/s"
        parts.append(f"{text}; allow more with --p99, or take narrower widths")
    if not all(reading.keeps_floor(slo) for reading in lowest.readings) and slo.floor is not None:
        text = f"no rate keeps an accuracy of {100 * slo.floor:g} %"
        if accuracies := [(run.accuracy, rate_img_s) for run, rate_img_s in readings if run.accuracy is not None]:
            text += f": the highest seen is {100 * max(accuracies)[0]:.2f} %, at {max(accuracies)[1]:.4g} images/s"
        best = 100 * max(experiment.held_accuracies.values())
        parts.append(f"{text} (the most accurate width tuple has {best:.2f} %); lower --floor, or take wider widths")
    if not parts:
        parts.append("no rate keeps what each class is promised; promise less (classes), or take another router")
    return "; ".join(parts)


def under_poisson(experiment: Experiment) -> Experiment:
    """Return the same cluster under Poisson arrivals at its estimated capacity, without faults."""
    workload = PoissonWorkload(kind="poisson", rate_img_s=experiment.capacity_img_s)
    return replace(experiment, scenario=experiment.scenario.model_copy(update={"workload": workload, "faults": ()}))


def without(experiment: Experiment, servers: Sequence[str]) -> Experiment:
    """Return the same experiment with these servers down from the first moment on; a router sees that they are."""
    lost = (ServerDownFault(kind="server_down", server=name, start_s=0.0) for name in servers)
    return replace(
        experiment, scenario=experiment.scenario.model_copy(update={"faults": (*experiment.scenario.faults, *lost)})
    )
