"""What there is to win: worlds without one difficulty, and what the best rule gains in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.grid import Row
from benchmarks.study.headroom import ALL, AS_IT_IS, BOUND, headroom_frame, without, worlds_of
from scenarios.files.reading import load_scenario
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
