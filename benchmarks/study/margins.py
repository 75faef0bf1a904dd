"""With which margin a tuned router keeps most of what is promised: tried on runs that no report uses.

    python -m benchmarks.study margins scenarios/main-mmpp-10g.yaml scenarios/main-failing-10g.yaml

Tuning sets the mean accuracy of whole runs on the floor; floor and limit in each window want more than that. So each
router's dial is turned further (`with_margin`), on runs with seeds of their own (and on the curve of tuning, where the
load follows one). Picked is who keeps most windows; of those that keep as many, the quickest. Rows are told as they
come, and kept: an interrupted run goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.study.carried import require_promise
from benchmarks.study.margin import margins_of, with_margin
from benchmarks.study.sources import file_digest
from benchmarks.study.tuned_rows import RowsFile, router_file_of, rule_of_now
from kit.chance import derived_seed
from kit.parallel import each
from policies.rules.specs import RuleSpec
from scenarios.files.spec import RatesWorkload
from scenarios.metrics.catalogue import MEASURES
from scenarios.runs.simulate import simulate_metrics
from scenarios.world.materials import load_world
from scenarios.world.world import World

SCHEMA: Final = "slimsched.margins/1"
TOLD: Final = ("kept_share", "expected_accuracy", "latency_p99_s", "latency_mean_s")


@dataclass(frozen=True)
class Wanted:
    """One row."""

    scenario: Path
    router: str
    runs: int


def make_rows(scenarios: Sequence[Path], kinds: Sequence[str], runs: int, path: Path, jobs: int) -> None:
    """Every row of these scenarios whose router's file is of now, and that is not there yet for that very file.

    Raises:
        InputError: a scenario promises no limit or no floor; what is there is of another command or of another state
            of a scenario.
    """
    names = " ".join(one.as_posix() for one in scenarios)
    kept = RowsFile(path, SCHEMA, f"python -m benchmarks.study margins {names} --runs {runs}", scenarios)
    wanted = []
    for scenario in scenarios:
        world = load_world(scenario)
        require_promise(scenario, world)
        for kind in kinds:
            if rule_of_now(scenario, world, kind) is not None:
                kept.forget_others(world.scenario.name, kind, file_digest(router_file_of(scenario, kind)))
                if not kept.of(world.scenario.name, router=kind):
                    wanted.append(Wanted(scenario, kind, runs))
    with closing(each(row_of, None, wanted, jobs)) as rows:
        for _, row in rows:
            kept.add(row, ("router", "margin", "kept_share"))


def row_of(_: None, wanted: Wanted) -> dict[str, Any]:
    """What every margin of one router keeps, and which one is picked; in whatever process."""
    own = load_world(wanted.scenario)
    spec, world = rule_of_now(wanted.scenario, own, wanted.router), of_tuning(own)
    assert spec is not None, "it was there"
    tried = [
        (margin, _means(world, with_margin(spec, margin, world), wanted.runs)) for margin in margins_of(spec, world)
    ]
    margin, best = max(tried, key=lambda each: rank(each[1]))
    return {
        "scenario": world.scenario.name,
        "router": wanted.router,
        "file": file_digest(router_file_of(wanted.scenario, wanted.router)),
        "margin": margin,
        "kept_share": best["kept_share"],
        "tried": [{"margin": margin, **found} for margin, found in tried],
    }


def of_tuning(world: World) -> World:
    """The same, on the curve that tuning sees."""
    workload = world.scenario.workload
    if not isinstance(workload, RatesWorkload) or workload.tuning_file is None:
        return world
    other = workload.model_copy(update={"file": workload.tuning_file})
    return replace(world, scenario=world.scenario.model_copy(update={"workload": other}))


def rank(means: Mapping[str, float | None]) -> tuple[float, float]:
    """The higher, the better: windows kept, then speed; what a run could not tell counts as the worst."""
    kept, latency_s = means["kept_share"], means["latency_mean_s"]
    return (0.0 if kept is None else kept, -inf if latency_s is None else -latency_s)


def _means(world: World, spec: RuleSpec, runs: int) -> dict[str, float | None]:
    results = [
        simulate_metrics(
            world,
            spec.make(world.context),
            spec.KIND,
            derived_seed(0, f"margin:{run}"),
            engine="compiled",
            detail=False,
        )
        for run in range(runs)
    ]
    return {name: _mean(MEASURES[name].of(result) for result in results) for name in TOLD}


def _mean(values: Iterable[float | None]) -> float | None:
    """None where one run has none: it completed nothing."""
    known = np.array(list(values), float)
    return None if np.isnan(known).any() else float(np.mean(known))
