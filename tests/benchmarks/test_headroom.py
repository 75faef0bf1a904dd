"""What there is to win: worlds without one difficulty, and what the best rule gains in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.grid import Row
from benchmarks.study.headroom import (
    ALL,
    AS_IT_IS,
    BOUND,
    at_floor,
    equal_frame,
    headroom_frame,
    without,
    worlds_of,
)
from benchmarks.study.learned import frame_of
from benchmarks.study.pages import WINNERS, equal_rows, won_rows
from policies.rules.compass import CompassRule
from policies.rules.specs import LadderRule
from scenarios.files.reading import load_scenario
from scenarios.learn.evaluator import Evaluator, SampledRun, mean_accuracy, workers_of
from scenarios.learn.tune import knobs_of
from scenarios.world.materials import default_folder, make_world
from scenarios.world.world import World

SEED, LENGTH_S = 3, 100.0


@pytest.fixture(scope="module")
def hard() -> World:
    """All difficulties at once."""
    changes = {"cluster.greedy": {"vram_cap_gb": 0.75, "idle_unload_s": 5}}
    scenario = load_scenario(Path("scenarios/main-failing-1g.yaml"), changes)
    return make_world(scenario, default_folder(scenario))


def keys_that_differ(one: Any, other: Any, place: str = "") -> set[str]:
    """Where two documents differ, lists without their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = one.keys() | other.keys()
        return set().union(*(keys_that_differ(one.get(n), other.get(n), f"{place}.{n}".strip(".")) for n in names))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        return set().union(*(keys_that_differ(a, b, place) for a, b in zip(one, other, strict=True)))
    return set() if one == other else {place}


@pytest.mark.parametrize(
    ("difficulty", "keys"),
    [
        ("memory", {f"cluster.greedy.{key}" for key in ("vram_cap_gb", "preload", "idle_unload_s")}),
        ("faults", {"faults"}),
        ("links", {"cluster.servers.link"}),
    ],
)
def test_a_world_without_a_difficulty_is_otherwise_the_same(hard: World, difficulty: str, keys: set[str]) -> None:
    """No other key, and the same arrivals; the servers hold what they then can, and the rest of them is as it was."""
    easy = without(hard, difficulty)
    assert keys_that_differ(hard.scenario.model_dump(), easy.scenario.model_dump()) == keys
    runs = [world.run_spec(SEED, duration_s=LENGTH_S) for world in (hard, easy)]
    assert np.array_equal(runs[0].arrivals_ns, runs[1].arrivals_ns)
    assert (runs[0].faults == runs[1].faults) == (difficulty != "faults")
    assert bool(runs[1].faults) == (difficulty != "faults")
    for before, after in zip(hard.cluster.servers, easy.cluster.servers, strict=True):
        assert (before.attachment == after.attachment) == (difficulty != "links")
        assert (before.knobs == after.knobs) == (difficulty != "memory")
        assert (set(after.knobs.preload) == set(after.knobs.instance_bytes)) == (difficulty == "memory")


def test_a_steady_load_brings_as_many_images(hard: World) -> None:
    """Only when they come is otherwise: their numbers in seconds vary as Poisson's do."""
    easy = without(hard, "changes of load")
    assert keys_that_differ(hard.scenario.model_dump(), easy.scenario.model_dump()) == {
        f"workload.{key}" for key in ("kind", "burst_factor", "burst_share", "dwell_s")
    }
    assert easy.cluster.servers == hard.cluster.servers
    counts = [np.bincount(world.arrivals_ns(SEED, LENGTH_S) // 10**9) for world in (hard, easy)]
    assert easy.mean_rate_img_s == hard.mean_rate_img_s == pytest.approx(np.mean(counts[1]), rel=0.01)
    assert np.var(counts[1]) < 2 * np.mean(counts[1]) < np.var(counts[0]) / 10


def test_difficulties_are_those_that_a_scenario_has(hard: World) -> None:
    assert list(worlds_of(hard)) == [AS_IT_IS, "memory", "faults", "changes of load", "links", ALL]
    easy = worlds_of(hard)[ALL]
    assert list(worlds_of(easy)) == [AS_IT_IS]


def row(name: str, difficulty: str, **routers: tuple[float, float, float]) -> Row:
    """Of rules with a mean latency, p99 and accuracy, alike with two seeds."""
    found = {
        kind: {"unserved": 0.0, "mean_s": [mean] * 2, "p99_s": [p99] * 2, "image_j": [mean] * 2, "accuracy": [top1] * 2}
        for kind, (mean, p99, top1) in routers.items()
    }
    return {"scenario": name, "without": difficulty, "seeds": 2, "routers": found}


def test_the_best_rule_at_the_floor_tells_what_there_is(hard: World) -> None:
    """By figure, of those that keep the floor (75 %). The bound counts for energy alone."""
    rows = [
        row("hard", AS_IT_IS, ladder=(0.100, 0.4, 0.75), compass=(0.110, 0.3, 0.7496), quick=(0.01, 0.02, 0.74)),
        row("hard", "links", ladder=(0.098, 0.4, 0.75), compass=(0.110, 0.294, 0.75)),
        {"scenario": "hard", "without": BOUND, "seeds": 2, "least": {"mean_s": 0.005, "image_j": None}},
    ]
    frame = headroom_frame(rows, {"hard": hard}).set_index("without")
    assert frame.loc["links", ["mean_pct", "p99_pct"]].tolist() == pytest.approx([-2.0, -2.0])
    assert frame.loc[BOUND, "mean_pct"] == pytest.approx(-95.0)
    assert frame.loc["links", "accuracy_pct"] == pytest.approx(75.0)
    assert frame["is_little"].all()
    rows[1] = row("hard", "links", ladder=(0.098, 0.28, 0.75))
    assert headroom_frame(rows, {"hard": hard})["most_pct"].tolist() == pytest.approx([100 * 0.02 / 0.3] * 3)
    tuning = hard.scenario.tuning.model_copy(update={"objective": "energy"})
    night = make_world(hard.scenario.model_copy(update={"tuning": tuning}), Path())
    rows[2]["least"]["image_j"] = 0.05
    assert headroom_frame(rows, {"hard": night})["most_pct"].tolist() == pytest.approx([50.0] * 3)
    rows[0] = row("hard", AS_IT_IS, quick=(0.01, 0.02, 0.74))
    assert headroom_frame(rows, {"hard": hard})["flaws"].tolist() == ["nobody keeps the floor and serves all", "", ""]


def test_a_dial_is_turned_to_the_floor() -> None:
    """Which each kind has in its own way; who can't come so far is as accurate as it can be."""
    scenario = load_scenario(Path("scenarios/main-poisson70-10g.yaml"), {"duration_s": 2, "warmup_s": 0.5})
    world = make_world(scenario, default_folder(scenario))
    ladder = LadderRule(thresholds=(8.0, 16.0), rungs=((1.0,) * 4, (0.5,) * 4, (0.25,) * 4))
    with workers_of(1) as workers:
        for floor, least, most in ((0.74, 0.74, 0.743), (0.9, 0.755, 0.765)):
            evaluator = Evaluator(world, replace(knobs_of(world), floor=floor), workers)
            for rule in (ladder, CompassRule(control=None)):
                scores = at_floor(rule, evaluator, [SampledRun(3), SampledRun(4)])
                assert least <= mean_accuracy(scores) <= most, rule.KIND


def test_what_each_router_wins_is_of_the_way_to_the_best_without_difficulties(hard: World) -> None:
    """From the tuned tuple on; nothing is said of who misses the floor."""
    rows = [row("hard", AS_IT_IS, ladder=(0.010, 0.04, 0.75)), row("hard", ALL, ladder=(0.006, 0.02, 0.75))]
    rooms = headroom_frame(rows, {"hard": hard})
    figures = {"fixed": (0.75, 14, 60), "compass": (0.75, 10, 40), "ladder": (0.75, 15, 60), "milp": (0.74, 6, 20)}
    routers = pd.DataFrame(
        {"scenario": "hard", "router": label, "accuracy_pct": 100 * top1, "mean_ms": mean_ms, "p99_ms": p99_ms}
        for label, (top1, mean_ms, p99_ms) in figures.items()
    ).assign(is_flagged=False)
    ((name, *cells),) = won_rows(rooms, routers)
    won = dict(zip(WINNERS, cells, strict=True))
    assert (name, won["compass"], won["ladder"], won["milp"]) == ("hard", "50, 50", "-12, 0", "")
    missing = routers[routers["router"] != "fixed"]
    assert won_rows(rooms, missing) == []


def test_what_policy_gradient_adds_is_told_over_its_trainings() -> None:
    """Against Compass as it ships, and fine-tuned."""

    def figures(mean: float) -> dict[str, float]:
        return {"mean_s": mean, "p99_s": 2 * mean, "accuracy": 0.75}

    compass = {"compass": figures(0.012), "compass, fine-tuned": figures(0.010)}
    rows: list[Row] = [{"scenario": "main-a", "seed": None, "decisions": 9, "routers": compass}]
    rows += [
        {"scenario": "main-a", "seed": seed, "decisions": 9, "routers": {"ppo": figures(mean)}}
        for seed, mean in enumerate((0.009, 0.011))
    ]
    (found,) = frame_of(rows).to_dict("records")
    assert (found["trainings"], found["compass_mean_ms"]) == (2, pytest.approx(12))
    assert found["mean_against_tuned_pct"] == pytest.approx(0)
    assert found["p99_against_shipped_pct"] == pytest.approx(100 * (20 / 24 - 1))
    assert found["mean_against_tuned_pct_ci95"] == pytest.approx(12.706 * 10, rel=1e-3)


def test_at_equal_accuracy_all_are_set_against_the_ladder() -> None:
    """As the scenario is; a scenario without a ladder shows figures alone."""
    of_hard = {"ladder": (0.010, 0.04, 0.75), "compass": (0.009, 0.05, 0.75)}
    rows = [row("hard", AS_IT_IS, **of_hard), row("hard", "links", ladder=(1.0, 1.0, 0.75))]
    rows.append(row("new", AS_IT_IS, compass=(0.009, 0.05, 0.75)))
    equal = equal_frame(rows)
    assert equal["mean_pct"].tolist()[1] == pytest.approx(-10)
    assert equal_rows(equal) == [
        ["hard", "10.0, 40.0", "9.00, 50.0 (-10, +25)", ""],
        ["new", "", "9.00, 50.0", ""],
    ]
    assert equal_rows(equal.iloc[:0]) == []
