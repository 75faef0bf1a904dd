"""Predictions: the same arrivals simulated many times, each time with other draws of what profiles leave to chance.

The p99 of one simulated run of a thousand images is chaotic: in a quarter to a half of all pairs, two replicas differ
by more than 10 %. So a prediction is a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from kit.parallel import each
from scenarios.files.router_names import display_name
from scenarios.metrics.catalogue import VALIDATED
from scenarios.metrics.prediction import Ranges, range_of
from scenarios.runs.simulate import RunOptions, simulate_metrics
from scenarios.world.routers import RouterMaker
from scenarios.world.world import World

REPLICAS: Final = 100
"""With a p99 of 83 ms (76 to 106), the standard error of their 95th percentile is 5 ms."""


class PredictedRun(NamedTuple):
    """One router with the arrivals of one seed, at `scale` times the workload's own rate."""

    router: RouterMaker
    seed: int
    scale: float


def predict(
    world: World, runs: Sequence[PredictedRun], options: RunOptions, jobs: int = 1, replicas: int = REPLICAS
) -> Iterator[tuple[int, Ranges]]:
    """Predict each run from several simulations: its index and its ranges by measure, as they are finished.

    Args:
        options: of all runs.
    """
    with closing(each(_predicted, (world, options, replicas), runs, jobs, _compile)) as results:
        yield from results


def _compile(common: tuple[World, RunOptions, int]) -> None:
    """Compile once on a machine, and not in every process."""
    world, options, _ = common
    world.simulation(world.run_spec(world.scenario.seed), options.get("engine", "simpy")).advance()


def _predicted(common: tuple[World, RunOptions, int], run: PredictedRun) -> Ranges:
    world, options, replicas = common
    name, values = display_name(run.router.name), dict[str, list[float | None]]()
    for replica in range(replicas):
        policy = run.router.make(world.context)
        of: RunOptions = {**options, "scale": run.scale, "replica": replica}
        result = simulate_metrics(world, policy, name, run.seed, **of)
        for measure in VALIDATED:
            values.setdefault(measure.stem, []).append(measure.of(result))
    return {stem: range_of(several) for stem, several in values.items()}
