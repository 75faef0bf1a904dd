"""What there is to win in a scenario: its tuned rules in worlds where a difficulty of it is taken away.

    python -m benchmarks headroom                              # every main scenario, and the page anew
    python -m benchmarks headroom --only main-vram-10g night   # these alone

In each world a rule's one dial is set so that its runs have the scenario's floor of accuracy, so that figures compare.
What the best rule gains where a difficulty is gone is the most that a router could win which knew all about it; part of
it (a dead server's capacity, say) nobody can win.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pandas as pd

from benchmarks.grid import GridRow, Row, code_state, kept_rows, make_rows
from benchmarks.study.candidates import state_of, tuned_label
from benchmarks.study.judge import EQUAL_POINTS, LITTLE_PCT, columns
from benchmarks.study.tables import rule_of_now
from kit.documents import inputs_hash
from kit.errors import InputError
from kit.parallel import Jobs
from policies.ppo.candidate_router import CandidateSpec
from policies.registry import COMPASS
from policies.rules.compass import CompassRule
from policies.rules.specs import LadderRule, Reals, Space
from scenarios.files.spec import LinkSection, PoissonWorkload, Scenario
from scenarios.learn.evaluator import Evaluator, SampledRun, unserved, workers_of
from scenarios.learn.tune import find_shift, knobs_of
from scenarios.metrics.served import LIMIT
from scenarios.metrics.statistics import estimate, paired_difference
from scenarios.runs.bound import FluidModel
from scenarios.world.materials import default_folder, load_world, make_world
from scenarios.world.world import World
from sim.compiled.scoring import RunScore

SEEDS: Final = 3
KINDS: Final = (LadderRule.KIND, COMPASS)  # whose tuned rules are tried; and Compass as it ships
Dialled = CompassRule | LadderRule | CandidateSpec
FASTEST: Final = LinkSection(latency_s=30e-6, bandwidth_bytes_s=11.7e9)  # 100 GbE
FIGURES: Final = {"mean": "mean_s", "p99": "p99_s", "energy": "image_j"}


def _without_memory_cap(world: World) -> dict[str, Any]:
    """Everything is loaded before a run begins, and stays."""
    scenario = world.scenario
    if all(scenario.cluster.greedy_of(server).vram_cap_gb is None for server in scenario.cluster.named_servers):
        return {}
    everything = {"vram_cap_gb": None, "preload": "all", "idle_unload_s": None}
    greedy = scenario.cluster.greedy.model_copy(update=everything)
    return {"cluster": scenario.cluster.model_copy(update={"greedy": greedy})}


def _without_faults(world: World) -> dict[str, Any]:
    return {"faults": ()} if world.scenario.faults else {}


def _without_changes_of_load(world: World) -> dict[str, Any]:
    """As many images on average, at a rate that stays."""
    if isinstance(world.scenario.workload, PoissonWorkload) or world.mean_rate_img_s is None:
        return {}
    return {"workload": PoissonWorkload(kind="poisson", rate_img_s=world.mean_rate_img_s)}


def _without_slow_links(world: World) -> dict[str, Any]:
    cluster = world.scenario.cluster
    servers = tuple(server.model_copy(update={"link": FASTEST}) for server in cluster.named_servers)
    return {} if servers == cluster.servers else {"cluster": cluster.model_copy(update={"servers": servers})}


REMOVALS: Final[Mapping[str, Callable[[World], dict[str, Any]]]] = {
    "memory": _without_memory_cap,
    "faults": _without_faults,
    "changes of load": _without_changes_of_load,
    "links": _without_slow_links,
}
"""By difficulty the keys of the scenario that change where it is gone; none where there is no such difficulty."""
AS_IT_IS, ALL, BOUND = "as it is", "all", "bound"


def without(world: World, *difficulties: str) -> World:
    """A scenario's world in which nothing but these is otherwise."""
    for difficulty in difficulties:
        scenario: Scenario = world.scenario.model_copy(update=REMOVALS[difficulty](world))
        world = make_world(scenario, default_folder(scenario))
    return world


def worlds_of(world: World) -> dict[str, World]:
    """By what is gone: as it is, each of its difficulties, and all of them where it has several."""
    difficulties = [name for name, change in REMOVALS.items() if change(world)]
    worlds = {AS_IT_IS: world} | {name: without(world, name) for name in difficulties}
    return worlds | ({ALL: without(world, *difficulties)} if len(difficulties) > 1 else {})


# ---------------------------------------------------------------------------------------------------------------- rows


def points(scenarios: Sequence[Path], seeds: int) -> list[GridRow]:
    """A row a scenario and world.

    Raises:
        InputError: a scenario has no floor, or no tuned rule that is of now.
    """
    rows, code = [], code_state()
    for path in scenarios:
        world = load_world(path)
        if world.scenario.tuning.floor is None:
            raise InputError(str(path), "tuning.floor", "missing; figures compare at a floor of accuracy")
        rules = rules_of(path, world)
        if len(rules) == 1:
            problem = f"{path.stem} has no tuned {', '.join(KINDS)} of now"
            raise InputError("--only", "", f"{problem}; `python -m benchmarks tune --only {path.stem}` makes them")
        state = inputs_hash(state_of(world.scenario), code, [rule.model_dump_json() for rule in rules.values()])
        names = [*worlds_of(world), BOUND]
        rows += [GridRow({"scenario": path.stem, "without": name, "seeds": seeds}, state, path) for name in names]
    return rows


def rules_of(path: Path, world: World) -> dict[str, CompassRule | LadderRule]:
    """By label Compass as it ships, and the tuned rules that lie beside a scenario; none keeps a goal."""
    tuned = {tuned_label(kind): rule_of_now(path, world, kind) for kind in KINDS}
    rules = {COMPASS: CompassRule(), **{label: rule for label, rule in tuned.items() if rule is not None}}
    free = {label: rule.model_copy(update={"control": None}) for label, rule in rules.items()}
    return cast("dict[str, CompassRule | LadderRule]", free)


def turned(rule: Dialled, shift: float) -> Dialled:
    """The same router, more accurate for a shift above 0: a lower price, or higher thresholds."""
    if isinstance(rule, CandidateSpec):
        return CandidateSpec(_cheaper(rule.rule, shift), rule.tensors)
    if isinstance(rule, CompassRule):
        return _cheaper(rule, shift)
    assert rule.thresholds is not None, "tuning writes them"
    return rule.model_copy(update={"thresholds": tuple(exp(shift) * load for load in rule.thresholds)})


def _cheaper(rule: CompassRule, shift: float) -> CompassRule:
    numbers = rule.numbers.model_copy(update={"level": rule.numbers.level - shift})
    return rule.model_copy(update={"numbers": numbers})


def at_floor(rule: Dialled, evaluator: Evaluator, runs: Sequence[SampledRun]) -> list[RunScore]:
    """What a router has on these runs at the dial where it keeps the floor on them, or as near as it comes."""

    def measure(values: Reals) -> list[RunScore]:
        spec = turned(rule, float(values[0]))
        return evaluator.measure([(spec, run) for run in runs])

    space = Space("dial", np.zeros(1), np.ones(1), np.ones(1), lambda values: CompassRule())
    found = find_shift(space, space.start, measure, evaluator.knobs.floor)
    return measure(space.shifted(space.start, space.reach)) if found is None else found[1]


def measure(_: None, point: GridRow) -> Row:
    """Each rule in one world, by seed; of the bound what no router can beat at the floor, in the world as it is."""
    world, knobs = load_world(point.given), knobs_of(load_world(point.given))
    if point.key["without"] == BOUND:
        bound = FluidModel(world).bound(knobs.floor, world.mean_rate_img_s)
        return {"least": {"mean_s": bound.latency_mean_s, "image_j": bound.energy_per_image_j}}
    changed = worlds_of(world)[point.key["without"]]
    names, routers = (*FIGURES.values(), "accuracy"), {}
    with workers_of() as workers:
        evaluator = Evaluator(changed, knobs, workers)
        runs = [SampledRun(seed) for seed in world.scenario.compare.seeds[: point.key["seeds"]]]
        for label, rule in rules_of(point.given, world).items():
            scores = at_floor(rule, evaluator, runs)
            figures = {name: [getattr(score, name) for score in scores] for name in names}
            routers[label] = {"unserved": unserved(scores), **figures}
    return {"routers": routers}


# -------------------------------------------------------------------------------------------------------------- figures


def make_headroom(scenarios: Sequence[Path], seeds: int, kept: Path, jobs: Jobs) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make what is missing of these scenarios; returns their figures (`headroom_frame`, `equal_frame`).

    Args:
        seeds: the first so many of each comparison.
        kept: where rows are kept; an interrupted command goes on there.

    Raises:
        InputError: a scenario has no floor or no tuned rule.
        WorkError: a run can't go on.
    """
    wanted = points(scenarios, seeds)
    make_rows(kept, wanted, measure, jobs=jobs)
    rows = [row for row in kept_rows(kept, wanted) if row is not None]
    return headroom_frame(rows, {path.stem: load_world(path) for path in scenarios}), equal_frame(rows)


def equal_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """A row a scenario as it is and router, all at the floor: figures, and their change against the tuned ladder."""
    table = []
    for row in (row for row in rows if row["without"] == AS_IT_IS):
        base = row["routers"].get(LadderRule.KIND)
        for label, figures in row["routers"].items():
            row_of: Row = {"scenario": row["scenario"], "router": label, "seeds": row["seeds"]}
            row_of["accuracy_pct"] = 100 * sum(figures["accuracy"]) / row["seeds"]
            for stem, key in FIGURES.items():
                row_of[key] = estimate(figures[key])["mean"]
                if base is not None and figures is not base:
                    row_of |= columns(f"{stem}_pct", paired_difference(figures[key], base[key])["percent"])
            table.append(row_of)
    return pd.DataFrame(table)


def headroom_frame(rows: Sequence[Row], worlds: Mapping[str, World]) -> pd.DataFrame:
    """A row a scenario and world: the best rule's latencies and energy, each with its change against the best as it is.

    `accuracy_pct` is that of the rule with the least mean latency; `flaws` says where no rule keeps the floor.

    Args:
        worlds: of the scenarios, by name.
    """
    table = []
    for name, world in worlds.items():
        by_difficulty = {row["without"]: row for row in rows if row["scenario"] == name}
        base = _best(by_difficulty[AS_IT_IS], world)
        for difficulty, row in by_difficulty.items():
            best = _best(row, world) if difficulty != BOUND else _bound(row, base)
            row_of: Row = {"scenario": name, "without": difficulty, "seeds": row["seeds"]}
            row_of["floor_pct"] = 100 * knobs_of(world).floor
            row_of["flaws"] = best.get("flaws", "")
            row_of["accuracy_pct"] = 100 * sum(best["accuracy"]) / row["seeds"] if "accuracy" in best else None
            for stem, key in FIGURES.items():
                if key in best:
                    change = paired_difference(best[key], base[key])["percent"]
                    row_of |= {key: estimate(best[key])["mean"], **columns(f"{stem}_pct", change)}
            table.append(row_of)
    frame = pd.DataFrame(table)
    return frame.merge(pd.DataFrame([_to_win(name, frame, world) for name, world in worlds.items()]), on="scenario")


def _best(row: Row, world: World) -> dict[str, Any]:
    """By figure the least of a rule that keeps the floor and serves all, by seed; else of all rules, and why."""
    floor = knobs_of(world).floor - EQUAL_POINTS / 100
    routers = list(row["routers"].values())
    able = [each for each in routers if each["unserved"] <= LIMIT and sum(each["accuracy"]) >= floor * row["seeds"]]
    least = {key: min((each[key] for each in able or routers), key=sum) for key in FIGURES.values()}
    quickest = min(able or routers, key=lambda each: sum(each["mean_s"]))
    return {**least, "accuracy": quickest["accuracy"], "flaws": "" if able else "nobody keeps the floor and serves all"}


def _bound(row: Row, base: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [value] * len(base[name]) for name, value in row["least"].items() if value is not None}


def _to_win(name: str, frame: pd.DataFrame, world: World) -> Row:
    """The most that there is, in percent; of energy down to the bound, as batches that wait come near it."""
    rows = frame[frame["scenario"] == name]
    of_energy = knobs_of(world).objective == "energy"
    stems, left_out = (("energy",), ()) if of_energy else (("mean", "p99"), (BOUND,))
    changes = rows[~rows["without"].isin(left_out)][[f"{stem}_pct" for stem in stems]]
    most = max(0.0, -float(changes.min(axis=None)))
    return {"scenario": name, "is_of_energy": of_energy, "most_pct": most, "is_little": most < LITTLE_PCT}
