"""Grids of tuned routers, on seeds that no tuning saw; rows are kept in `docs/data/*.jsonl`.

    python -m benchmarks ablation scenarios/main-mmpp-10g.yaml      # what each ingredient of Compass's tuning is worth
    python -m benchmarks faster scenarios/main-mmpp-10g.yaml        # is a router that decides faster ever worse?
    python -m benchmarks fronts scenarios/main-mmpp-10g.yaml        # energy an image within limits of the p99

`python -m benchmarks results` then writes them as CSV files. Rows of a scenario that has changed since are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from benchmarks.grid import ROOT, GridRow, Row, read_rows
from benchmarks.study.candidates import ROUTERS, ScenarioCase, state_of, tuned_file
from benchmarks.study.judge import EQUAL_POINTS, columns
from benchmarks.study.tuned_files import why_tune
from kit.documents import inputs_hash
from kit.errors import InputError, WorkError
from policies.registry import COMPASS
from policies.rules.controlled import ControlSpec
from policies.rules.specs import RouterSpec, RuleSpec
from scenarios.files.router_names import read_rule
from scenarios.learn.evaluator import Evaluator, SampledRun, unserved, workers_of
from scenarios.learn.knobs import TAIL, TuningKnobs
from scenarios.learn.tune import Tuned, knobs_of, tune_world
from scenarios.learn.tuned_files import train_command, with_control
from scenarios.metrics.served import LIMIT
from scenarios.metrics.statistics import MeanInterval, estimate, relative_half_width, widened
from scenarios.world.materials import load_world
from scenarios.world.world import World
from sim.compiled.scoring import RunScore

DATA: Final = ROOT / "docs" / "data"
ABLATION, FASTER, FRONTS = (f"{name}.jsonl" for name in ("ablation", "faster", "fronts"))


@dataclass(frozen=True)
class Budget:
    """Of a row that is tuned: decisions of a search, searches, seconds of full-length runs (None: the scenario's)."""

    decisions: int
    searches: int
    duration_s: float | None = None

    def world(self, scenario: Path) -> World:
        """A scenario's, with this length.

        Raises:
            InputError: it has no floor.
        """
        world = load_world(scenario)
        if world.scenario.tuning.floor is None:
            raise InputError(str(scenario), "tuning.floor", "missing; every row is tuned to keep it")
        if self.duration_s is None:
            return world
        return replace(world, scenario=world.scenario.model_copy(update={"duration_s": self.duration_s}))

    def knobs(self, world: World, **changes: Any) -> TuningKnobs:
        """The scenario's, with this budget and these changes."""
        return replace(knobs_of(world), seed=0, decisions=self.decisions, searches=self.searches, **changes)

    def point(self, scenario: Path, **key: Any) -> GridRow:
        """A row of a scenario."""
        world = self.world(scenario)
        decided_by = inputs_hash(state_of(load_world(scenario).scenario), asdict(self))
        return GridRow({"scenario": world.scenario.name, **key, **asdict(self)}, decided_by, scenario)


def held_out(
    world: World, specs: Sequence[RouterSpec], knobs: TuningKnobs, seeds: int | None = None
) -> list[list[RunScore]]:
    """Each router on the scenario's own runs with the seeds of its comparison, the first so many or all."""
    with workers_of() as workers:
        evaluator = Evaluator(world, knobs, workers)
        runs = [SampledRun(seed) for seed in world.scenario.compare.seeds[:seeds]]
        return [evaluator.measure([(spec, run) for run in runs]) for spec in specs]


def tuned_row(
    world: World, kind: str, knobs: TuningKnobs, change: Callable[[RuleSpec], RuleSpec] = lambda spec: spec
) -> Row:
    """Tune, and run what each search found: means over searches and seeds; by seed, and by search."""
    try:
        tuned = tune_world(world, kind, knobs)
    except WorkError as error:
        return {"floor": knobs.floor, "problem": str(error)}
    scores = held_out(world, [change(spec) for spec in _searched(tuned)], knobs)
    flat = [score for each in scores for score in each]
    by_seed = list(zip(*scores, strict=True))
    return {
        "floor": knobs.floor,
        "accuracy": _mean(flat, "accuracy"),
        **_means(flat),
        "unserved": unserved(flat),
        "means_s": [_mean(of, "mean_s") for of in by_seed],
        "stds_s": [float(np.sqrt(np.mean([score.std_s**2 for score in of]))) for of in by_seed],
        "p99s_s": [_mean(of, "p99_s") for of in by_seed],
        "images_j": [_mean(of, "image_j") for of in by_seed],
        "searches_found": [{**_means(each), "accuracy": _mean(each, "accuracy")} for each in scores],
    }


def _searched(tuned: Tuned) -> list[RuleSpec]:
    """What each search found; the winner where there was none."""
    return [each.finalist.spec for each in tuned.final_scores if each.finalist.is_of_search] or [tuned.spec]


def _mean(scores: Sequence[RunScore], key: str) -> float:
    return float(np.mean([getattr(score, key) for score in scores]))


def _means(scores: Sequence[RunScore]) -> dict[str, float]:
    milliseconds = {f"{key}_ms": 1000 * _mean(scores, f"{key}_s") for key in ("mean", "std", "p99")}
    return {**milliseconds, "image_j": _mean(scores, "image_j")}


def change_of(row: Row, base: Row, by_seed: str, by_search: str, power: int = 1) -> MeanInterval:
    """Of one row against another in percent, seed by seed; its interval holds the spread of both rows' searches."""
    ratio = estimate([100 * (a / b) ** power for a, b in zip(row[by_seed], base[by_seed], strict=True)])
    spreads = [] if row is base else [power * _spread(each, by_search) for each in (row, base)]
    wider = widened(ratio, *spreads)
    assert wider["mean"] is not None, "it has run with some seed"
    return MeanInterval(mean=wider["mean"] - 100, ci95=wider["ci95"])


def _spread(row: Row, key: str) -> float:
    return relative_half_width([each[key] for each in row["searches_found"]])


def flaws(row: Mapping[str, Any]) -> str:
    """What a row's figures were bought with: images left unserved, accuracy below its floor, or nothing."""
    problems = ["unserved"] if row["unserved"] > LIMIT else []
    return " ".join([*problems, *(["below the floor"] if row["accuracy"] < row["floor"] - EQUAL_POINTS / 100 else [])])


# ------------------------------------------------------------------------------------------------------------ ablation

ALL: Final = "compass, all of it"
CONTROL: Final = "all of it, told to keep the floor while it serves"
NO_PRICE: Final = "no price: one tuple, whatever the load"
LADDER: Final = "ladder, the same search"
NO_TAIL: Final = "the mean alone, no tail"
SWITCHES: Final[dict[str, dict[str, Any]]] = {
    ALL: {},
    "its numbers' own hold": {"as_they_are": ("hold",)},
    "groups up to the largest": {"as_they_are": ("group",)},
    NO_TAIL: {"tail": 0.0},
    "five times the weight of the tail": {"tail": 1.0},
    "a steep wall at the floor instead of a controlled worth": {"pid": False},
    "rates drawn from 0.8 to 1.2 times": {"rates": (0.8, 1.2)},
    "nothing is searched, only the floor set": {"decisions": 0},
    CONTROL: {},
    NO_PRICE: {},
    LADDER: {},
}
KINDS: Final = {NO_PRICE: "fixed", LADDER: "ladder"}
LITTLE_VARIANCE_PCT: Final = 5.0  # more than the ladder's, at most, for nearly all
MAX_GAIN_PCT: Final = 80.0  # of the gain over the ladder


def ablation_points(scenarios: Sequence[Path], budget: Budget) -> list[GridRow]:
    """Every switch of every scenario."""
    return [budget.point(path, switch=name) for path in scenarios for name in SWITCHES]


def ablate(budget: Budget, point: GridRow) -> Row:
    """Compass tuned without one thing, with the same budget."""
    world, switch = budget.world(point.given), point.key["switch"]
    knobs = budget.knobs(world, **SWITCHES[switch])
    goals = ControlSpec(floor=knobs.floor, p99_limit_s=0.0)
    change = (lambda spec: with_control(spec, goals)) if switch == CONTROL else (lambda spec: spec)
    return tuned_row(world, KINDS.get(switch, COMPASS), knobs, change)


def ablation_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """A row a scenario and switch; changes against all of Compass."""
    base = {row["scenario"]: row for row in rows if row["switch"] == ALL and "problem" not in row}
    table = []
    for row in rows:
        key = {"scenario": row["scenario"], "switch": row["switch"]}
        if "problem" in row or row["scenario"] not in base:
            table.append({**key, "problem": row.get("problem")})
            continue
        changes = [("mean_pct", "means_s", "mean_ms"), ("p99_pct", "p99s_s", "p99_ms")]
        of = base[row["scenario"]]
        shown = {
            k: v for name, seed, search in changes for k, v in columns(name, change_of(row, of, seed, search)).items()
        }
        table.append({**key, **_shown(row), **shown})
    return pd.DataFrame(table)


def _shown(row: Row) -> Row:
    """What all tables have."""
    figures = {key: row[key] for key in ("mean_ms", "std_ms", "p99_ms", "image_j")}
    counts = {"seeds": len(row["means_s"]), "searches": len(row["searches_found"])}
    return {"accuracy_pct": 100 * row["accuracy"], **figures, **counts, "flaws": flaws(row)}


def tail_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """What a weight of the tail is worth against the ladder: the paper's open question."""
    table = []
    for name in dict.fromkeys(row["scenario"] for row in rows):
        by_switch = {row["switch"]: row for row in rows if row["scenario"] == name and "problem" not in row}
        if {ALL, NO_TAIL, LADDER} <= by_switch.keys():
            table += [
                _tail(by_switch, switch)
                for switch in (NO_TAIL, ALL, "five times the weight of the tail")
                if switch in by_switch
            ]
    return pd.DataFrame(table)


def _tail(by_switch: Mapping[str, Row], switch: str) -> Row:
    gain, plain = (100 * (1 - by_switch[name]["mean_ms"] / by_switch[LADDER]["mean_ms"]) for name in (switch, NO_TAIL))
    kept = 100 * gain / plain if plain > 0 else None
    variance = change_of(by_switch[switch], by_switch[LADDER], "stds_s", "std_ms", power=2)
    holds = kept is not None and kept > MAX_GAIN_PCT and (variance["mean"] or 0.0) < LITTLE_VARIANCE_PCT
    return {
        "scenario": by_switch[switch]["scenario"],
        "switch": switch,
        "weight": SWITCHES[switch].get("tail", TAIL),
        "below_ladder_pct": gain,
        "of_gain_without_tail_pct": kept,
        **columns("variance_pct", variance),
        "holds": holds,
    }


# -------------------------------------------------------------------------------------------------------------- faster

DECISIONS_US: Final = (1000, 100, 10, 3)
BLOCKS: Final = (4, 16, 64)


def faster_points(scenarios: Sequence[Path], budget: Budget, kind: str) -> list[GridRow]:
    """A decision time, blocks a server, and whether requests may wait; deciding takes that time and nothing else.

    Raises:
        InputError: nobody may wait in a scenario.
    """
    for path in scenarios:
        if not load_world(path).cluster.router.max_batching_delay_ns:
            raise InputError(str(path), "router.max_batching_delay_s", "must be above 0: rows with and without waiting")
    return [
        budget.point(path, router=kind, decision_us=decision_us, blocks=blocks, may_wait=may_wait)
        for path, blocks, may_wait, decision_us in product(scenarios, BLOCKS, (True, False), DECISIONS_US)
    ]


def try_speed(budget: Budget, point: GridRow) -> Row:
    """One kind tuned where deciding takes as long as the point says."""
    world, key = budget.world(point.given), point.key
    limit_ns = world.cluster.router.max_batching_delay_ns if key["may_wait"] else 0
    router = replace(world.cluster.router, outstanding_blocks=key["blocks"], max_batching_delay_ns=limit_ns)
    cluster = replace(world.cluster, router=router, decision_ns=1000 * key["decision_us"], host=None)
    world = replace(world, cluster=cluster)
    return tuned_row(world, key["router"], budget.knobs(world))


def faster_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """A row a point, with the range of its searches; `worse_than_us`: a slower one's, beyond both ranges.

    Rows with flaws, and those of one search, are compared with nobody.
    """
    table = []
    for row in rows:
        key = {name: row[name] for name in ("scenario", "router", "blocks", "may_wait", "decision_us")}
        if "problem" in row:
            table.append({**key, "flaws": row["problem"]})
            continue
        means = [each["mean_ms"] for each in row["searches_found"]]
        table.append({**key, "mean_ms": float(np.mean(means)), "least_ms": min(means), "most_ms": max(means),
                      "accuracy_pct": 100 * row["accuracy"], "searches": len(means), "flaws": flaws(row)})  # fmt: skip
    frame = pd.DataFrame(table)
    frame["worse_than_us"] = None
    able = frame[(frame["flaws"] == "") & (frame.get("searches", 0) > 1)]
    for _, of in able.groupby(["scenario", "router", "blocks", "may_wait"]):
        for slow, quick in combinations(of.sort_values("decision_us", ascending=False).index, 2):
            if of.loc[quick, "least_ms"] > of.loc[slow, "most_ms"]:
                frame.loc[quick, "worse_than_us"] = of.loc[slow, "decision_us"]
    return frame


# -------------------------------------------------------------------------------------------------------------- fronts

FRONT_KINDS: Final = (COMPASS, "ladder")
TIMES: Final = (1.1, 1.5, 2.0, 3.0)  # the lowest p99 of all kinds' quickest rows
ALIKE: Final = 0.02  # of a limit: one that is so near to another has no row of its own
QUICKEST: Final = "the quickest"


def front_points(scenarios: Sequence[Path], budget: Budget, kinds: Sequence[str]) -> list[GridRow]:
    """Each kind tuned for latency: these rows set the limits."""
    return [budget.point(path, router=kind, limit=QUICKEST, limit_ms=None) for path, kind in product(scenarios, kinds)]


def limited_points(
    scenarios: Sequence[Path], budget: Budget, kinds: Sequence[str], quickest: Sequence[Row]
) -> list[GridRow]:
    """Each kind tuned for energy within each limit; who could not be tuned for latency is not tried."""
    able = {(row["scenario"], row["router"]) for row in quickest if "problem" not in row}
    points = []
    for path in scenarios:
        scenario = load_world(path).scenario
        limits = limits_of([row for row in quickest if row["scenario"] == scenario.name], scenario.slo.p99_limit_s)
        points += [
            budget.point(path, router=kind, limit=what, limit_ms=limit_ms)
            for (limit_ms, what), kind in product(limits, kinds)
            if (scenario.name, kind) in able
        ]
    return points


def limits_of(quickest: Sequence[Row], promised_s: float | None) -> list[tuple[float, str]]:
    """(ms, what it is), common to all kinds, ascending: so many times the lowest p99, and what is promised.

    Who leaves many images unserved is quick with the others, and sets no limit unless all do.
    """
    kept = [row for row in quickest if "problem" not in row]
    able = [row for row in kept if row["unserved"] <= LIMIT] or kept
    if not able:
        return []
    lowest_ms = min(row["p99_ms"] for row in able)
    limits = [(times * lowest_ms, f"{times:g} times") for times in TIMES]
    promised_ms = 1000 * (promised_s or 0.0)
    if promised_ms > lowest_ms and all(abs(limit_ms - promised_ms) > ALIKE * promised_ms for limit_ms, _ in limits):
        limits.append((promised_ms, "promised"))
    return sorted(limits)


def try_limit(budget: Budget, point: GridRow) -> Row:
    """One kind tuned for latency, or for energy within a limit of the p99."""
    world, limit_ms = budget.world(point.given), point.key["limit_ms"]
    goal = {"objective": "latency"} if limit_ms is None else {"objective": "energy", "p99_limit_s": limit_ms / 1000}
    return tuned_row(world, point.key["router"], budget.knobs(world, **goal))


def front_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """A row a scenario, kind and limit; energy against the kind's own quickest; `kept`: its limit, on these seeds."""
    quickest = {(row["scenario"], row["router"]): row for row in rows if row["limit_ms"] is None}
    table = []
    for row in rows:
        key = {name: row[name] for name in ("scenario", "router", "limit", "limit_ms")}
        base = quickest.get((row["scenario"], row["router"]), row)
        if "problem" in row or "problem" in base:
            table.append({**key, "flaws": row.get("problem", "the quickest could not be tuned")})
            continue
        change = columns("energy_pct", change_of(row, base, "images_j", "image_j"))
        kept = None if row["limit_ms"] is None else bool(row["p99_ms"] <= row["limit_ms"])
        table.append({**key, **_shown(row), **change, "kept": kept})
    return pd.DataFrame(table)


# ---------------------------------------------------------------------------------------------------------- rule files


def _router_file(scenario: Path, kind: str) -> Path:
    return tuned_file(scenario.parent / ROUTERS / scenario.stem, kind)


def rule_of_now(scenario: Path, world: World, kind: str) -> RuleSpec | None:
    """The tuned rule of this kind that lies beside a scenario; None where there is none, or a stale one."""
    file = _router_file(scenario, kind)
    if not file.is_file() or why_tune(file, train_command(str(scenario), kind, knobs_of(world)), world):
        return None
    return read_rule(file)


# --------------------------------------------------------------------------------------------------------- all of them


def frames(data: Path, cases: Sequence[ScenarioCase]) -> dict[str, pd.DataFrame]:
    """By name, what goes into `NAME.csv`: rows of scenarios that are as they were when they were made."""
    rows = {
        name: [row for row in read_rows(data / name) if _is_of_now(row, cases)] for name in (ABLATION, FASTER, FRONTS)
    }
    tables = {
        "ablation": (ablation_frame, rows[ABLATION]),
        "ablation-tail": (tail_frame, rows[ABLATION]),
        "faster": (faster_frame, rows[FASTER]),
        "fronts": (front_frame, rows[FRONTS]),
    }
    return {name: frame(of) for name, (frame, of) in tables.items() if of}


def _is_of_now(row: Row, cases: Sequence[ScenarioCase]) -> bool:
    case = next((case for case in cases if case.name == row["scenario"]), None)
    if case is None:
        return False
    budget = {name: row[name] for name in ("decisions", "searches", "duration_s")}
    names = ("scenario", "switch", "router", "decision_us", "blocks", "may_wait", "limit", "limit_ms")
    key = {name: row[name] for name in names if name in row}
    return GridRow({**key, **budget}, inputs_hash(state_of(case.scenario), budget)).inputs == str(row["inputs"])
