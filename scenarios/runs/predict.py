"""Predictions: the same arrivals simulated many times, with other draws of what profiles leave to chance.

One simulated run of a thousand images tells little of its p99: two replicas differ by more than 10 % in a quarter to a
half of all pairs. So what is predicted is a range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from kit.parallel import Jobs, each
from scenarios.files.router_names import display_name
from scenarios.metrics.catalogue import VALIDATED
from scenarios.metrics.prediction import Ranges, range_of
from scenarios.runs.simulate import RunOptions, simulate_metrics
from scenarios.world.routers import RouterMaker
from scenarios.world.world import World

REPLICAS: Final = 100
"""The standard error of their 95th percentile is 5 ms where a p99 of 83 ms lies between 76 and 106 ms."""


class PredictedRun(NamedTuple):
    """What is to be predicted: the latencies and the like of one router with one seed's arrivals."""

    router: RouterMaker
    seed: int
    scale: float


def predict(
    world: World,
    runs: Sequence[PredictedRun],
    options: RunOptions,
    jobs: Jobs = 1,
    told: Callable[[], None] = lambda: None,
) -> list[Ranges]:
    """Predict each run as ranges by measure, from `REPLICAS` simulations.

    Args:
        options: of all runs.
        told: is called as each is done.
    """
    found: list[Ranges] = [{}] * len(runs)
    with closing(each(_predicted, (world, options), runs, jobs)) as results:
        for place, ranges in results:
            found[place] = ranges
            told()
    return found


def _predicted(common: tuple[World, RunOptions], run: PredictedRun) -> Ranges:
    world, options = common
    name, values = display_name(run.router.name), dict[str, list[float | None]]()
    for replica in range(REPLICAS):
        policy = run.router.make(world.context)
        of: RunOptions = {**options, "scale": run.scale, "replica": replica}
        result = simulate_metrics(world, policy, name, run.seed, **of)
        for measure in VALIDATED:
            values.setdefault(measure.stem, []).append(measure.of(result))
    return {stem: range_of(several) for stem, several in values.items()}
