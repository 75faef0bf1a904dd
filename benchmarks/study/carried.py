"""How many images a second each tuned router carries: at a p99 within the promised limit, at the promised floor.

    python -m benchmarks.study carried scenarios/main-mmpp-10g.yaml scenarios/main-failing-10g.yaml

The scenario's own arrivals and faults, at more or fewer times their rate, with seeds of its comparison, which no tuning
saw. A router serves as it was tuned; one that can keep goals also told the floor (`control`), and the better
way counts. Rows are told as they come, and kept: an interrupted run goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.study.findings import EQUAL
from benchmarks.study.sources import file_digest
from benchmarks.study.tuned_rows import RowsFile, router_file_of, rule_of_now
from kit.errors import InputError
from kit.parallel import each
from policies.registry import CONTROLLED
from policies.rules.controlled import ControlSpec
from policies.rules.specs import RuleSpec
from scenarios.learn.course import Course, Run, unserved
from scenarios.learn.tuned_files import with_control
from scenarios.learn.tuning import Tuning
from scenarios.metrics.served import LIMIT
from scenarios.runs.capacity import GROWTH_LIMIT
from scenarios.world.materials import load_world
from scenarios.world.world import World
from sim.compiled.scoring import RunScore

SCHEMA: Final = "slimsched.carried/1"
STEP: Final = 1.25  # from a rate to the next, until one is carried and the next is not
WIDEST: Final = 20.0  # times the scenario's rate, or as small a part of it: beyond, nobody looks
PRECISION: Final = 0.01


@dataclass(frozen=True)
class Wanted:
    """One row."""

    scenario: Path
    router: str
    seeds: tuple[int, ...]


def make_rows(scenarios: Sequence[Path], kinds: Sequence[str], seeds: int, path: Path, jobs: int) -> None:
    """Every row of these scenarios whose router's file is of now, and that is not there yet for that very file.

    Raises:
        InputError: a scenario promises no limit or no floor, or has fewer seeds; what is there is of another command
            or of another state of a scenario.
    """
    names = " ".join(one.as_posix() for one in scenarios)
    kept = RowsFile(path, SCHEMA, f"python -m benchmarks.study carried {names} --seeds {seeds}", scenarios)
    wanted = []
    for scenario in scenarios:
        world = world_with_promise(scenario, seeds)
        for kind in kinds:
            if rule_of_now(scenario, world, kind) is not None:
                kept.forget_others(world.scenario.name, kind, file_digest(router_file_of(scenario, kind)))
                if not kept.of(world.scenario.name, router=kind):
                    wanted.append(Wanted(scenario, kind, world.scenario.compare.seeds[:seeds]))
    with closing(each(row_of, None, wanted, jobs)) as rows:
        for _, row in rows:
            kept.add(row, ("router", "images_s", "p99s_ms", "accuracies", "problem"))


def world_with_promise(scenario: Path, seeds: int) -> World:
    """A scenario's.

    Raises:
        InputError: it promises no limit or no floor, or has fewer seeds.
    """
    world = load_world(scenario)
    require_promise(scenario, world)
    if len(world.scenario.compare.seeds) < seeds:
        raise InputError("--seeds", "", f"{seeds}; {scenario.name} has {len(world.scenario.compare.seeds)}")
    return world


def require_promise(scenario: Path, world: World) -> None:
    """Raises `InputError` unless a scenario promises a floor and a limit."""
    for key in ("floor", "p99_limit_s"):
        if getattr(world.scenario.service, key) is None:
            raise InputError(str(scenario), f"service.{key}", "missing; both a floor and a limit are asked for here")


def row_of(_: None, wanted: Wanted) -> dict[str, Any]:
    """What one router carries, seed by seed; in whatever process."""
    world = load_world(wanted.scenario)
    spec = rule_of_now(wanted.scenario, world, wanted.router)
    assert spec is not None, "it was there"
    row = {
        "scenario": world.scenario.name,
        "router": wanted.router,
        "file": file_digest(router_file_of(wanted.scenario, wanted.router)),
        "seeds": list(wanted.seeds),
    }
    ways = {False: _by_seed(world, spec, wanted.seeds)}
    if wanted.router in CONTROLLED:  # the floor alone: told the limit, too, it would be as late as that allows
        told = with_control(spec, ControlSpec(floor=world.scenario.service.floor, p99_limit_s=0.0))
        ways[True] = _by_seed(world, told, wanted.seeds)
    controls = max(ways, key=lambda way: sum(images_s for images_s, _ in ways[way]))
    able = ways[controls]
    if not able:
        return {**row, "problem": f"no rate from {1 / WIDEST:g} times the scenario's is carried with every seed"}
    return {
        **row,
        "controls": controls,
        "images_s": [images_s for images_s, _ in able],
        "p99s_ms": [1000 * score.p99_s for _, score in able],
        "accuracies": [score.accuracy for _, score in able],
        "images_j": [score.image_j for _, score in able],
    }


def _by_seed(world: World, spec: RuleSpec, seeds: Sequence[int]) -> list[tuple[float, RunScore]]:
    """What it carries with each; empty where it carries nothing with one of them."""
    found = [_carried(world, spec, seed) for seed in seeds]
    able = [each for each in found if each is not None]
    return able if len(able) == len(found) else []


def _carried(world: World, spec: RuleSpec, seed: int) -> tuple[float, RunScore] | None:
    """Images a second at the largest rate, and what they had; None where none is carried."""
    service, scores = world.scenario.service, dict[float, RunScore]()
    assert service.floor is not None and service.p99_limit_s is not None, "they were looked at"  # noqa: PT018
    floor, limit_s = service.floor, service.p99_limit_s
    knobs = Tuning(Path(), "ladder").knobs(world)
    with ThreadPoolExecutor(1) as worker:
        course = Course(world, knobs, worker)

        def keeps(scale: float) -> bool:
            (score,) = course.measure([(spec, Run(seed, scale))])
            scores[scale] = score
            return is_carried(score, floor, limit_s)

        scale = largest(keeps)
    if scale is None:
        return None
    return scores[scale].images / (world.scenario.duration_s - world.scenario.warmup_s), scores[scale]


def is_carried(score: RunScore, floor: float, limit_s: float) -> bool:
    """Whether a run kept both (the floor within `EQUAL`), failed hardly any image, and left no queue that grew."""
    left = score.unfinished - score.failed
    is_steady = unserved([score]) <= LIMIT and left <= GROWTH_LIMIT * score.images
    return is_steady and score.p99_s <= limit_s and score.accuracy >= floor - EQUAL


def largest(keeps: Callable[[float], bool], precision: float = PRECISION) -> float | None:
    """The largest scale that is kept, by that precision, as a share of it; from 1 up or down, then by halves.

    It is taken that who keeps one keeps all below. None where not even the least is kept.
    """
    low = high = 1.0
    if keeps(1.0):
        while keeps(high := low * STEP):
            low = high
            if low > WIDEST:
                return low
    else:
        while not keeps(low := high / STEP):
            high = low
            if low < 1 / WIDEST:
                return None
    while high > low * (1 + precision):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
