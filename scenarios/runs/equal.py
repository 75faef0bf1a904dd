"""Routers at equal accuracy: the dial of each is set so that it has the floor on the very runs that are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from hw.host.limits import core_count
from policies.plan_of import plan_of
from scenarios.files.router_names import display_name
from scenarios.metrics.suite import Equal, Run
from scenarios.runs.simulate import simulate_metrics
from scenarios.world.dials import Judged, find_dial
from scenarios.world.scoring import SampledRun, Scorer, unserved
from scenarios.world.world import World

MAX_THREADS: Final = 2


class EqualRuns:
    """The runs of one world, on which routers are brought to one accuracy.

    Args:
        made_in: the folder of the run that makes the scenario's own routers.
    """

    def __init__(self, world: World, seeds: Sequence[int], made_in: Path | None = None) -> None:
        self._world, self._made_in = world, made_in
        self._runs = [SampledRun(seed, end=world.scenario.end) for seed in seeds]
        self._scorer = Scorer(world)

    def at_floor(self, router: str, floor: float) -> Equal:
        """Set a router's dial so that the mean accuracy of its runs is the floor.

        Raises:
            InputError: as `World.router` does.
            WorkError: a router of the user's own fails.
        """
        if not self._world.has_dial(router, self._made_in):
            found = self._judged(router, None)
            return Equal(None, is_kept=False, runs=found.runs)
        dial = find_dial(lambda by: self._judged(router, by), floor)
        return Equal(dial.by, dial.is_kept, dial.judged.runs)

    def _judged(self, router: str, by: float | None) -> Judged[tuple[Run, ...]]:
        world = self._world if by is None else self._world.with_dials({display_name(router): by})
        runs = tuple(self._played(world, router))
        of = {name: float(np.mean([getattr(run, name) for run in runs])) for name in ("accuracy", "unserved")}
        return Judged(**of, runs=runs)

    def _played(self, world: World, router: str) -> Iterator[Run]:
        maker = world.router_maker(router, self._made_in)
        plan = plan_of(maker.make(world.context), world.cluster.router)
        if plan is None or world.decision_times_s.get(display_name(router)):
            for each in self._runs:
                yield _simulated(world, router, each.seed, self._made_in)
            return
        self._scorer.keep(self._runs)
        with ThreadPoolExecutor(min(core_count(), MAX_THREADS)) as threads:
            scores = list(threads.map(lambda run: self._scorer.score(maker, run), self._runs))
        for run, score in zip(self._runs, scores, strict=True):
            yield Run(run.seed, score.accuracy, score.mean_s, score.p99_s, score.image_j, unserved([score]))


def _simulated(world: World, router: str, seed: int, made_in: Path | None) -> Run:
    """Return a run of a router whose decisions are Python's, or take their own time, which a scorer does not charge."""
    result = simulate_metrics(world, world.router(router, made_in), display_name(router), seed, engine="compiled")
    latency, energy = result["latency_s"], result["energy_per_image_j"]
    figures = (
        result["expected_accuracy"],
        latency["mean"],
        latency["p99"],
        energy["total"],
        result["shares"]["unserved"],
    )
    return Run(seed, *(float("nan") if figure is None else figure for figure in figures))
