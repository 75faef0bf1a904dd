"""The table of decision times: what a row's world is, and that an interrupted one goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.study import faster
from benchmarks.study.tuned_rows import Asked
from kit.documents import read_json
from kit.errors import InputError
from scenarios.learn.tuning import knobs_of
from scenarios.show.table import to_markdown
from scenarios.world.materials import load_world

SCENARIO = Path("scenarios/main-mmpp-10g.yaml")


def test_a_row_changes_deciding_and_nothing_else() -> None:
    """Its time, the blocks at a server, and whether anybody may be held."""
    world = load_world(SCENARIO)
    fast = faster.Point(3, 16, True).world(world).cluster
    assert (fast.decision_ns, fast.host, fast.router.outstanding_blocks) == (3000, None, 16)
    assert fast.router.hold_limit_ns == world.cluster.router.hold_limit_ns > 0
    assert faster.Point(3, 16, False).world(world).cluster.router.hold_limit_ns == 0
    assert fast.devices == world.cluster.devices


def test_a_row_has_the_figures_of_so_many_searches() -> None:
    """Of each its own, by the number that was asked for and not the scenario's; all at one floor."""
    world = load_world(SCENARIO)
    world = replace(world, scenario=world.scenario.model_copy(update={"duration_s": 2.0, "warmup_s": 0.5}))
    knobs = knobs_of(world, seed=0, decisions=60_000, searches=2)
    row = faster.row_of(world, "ladder", faster.Point(100, 16, True), knobs)
    assert (row["scenario"], row["router"], row["blocks"]) == ("main-mmpp-10g", "ladder", 16)
    assert world.scenario.tuning.searches == 3
    assert [len(row[key]) for key in ("means_ms", "p99s_ms", "accuracies")] == [2, 2, 2]
    assert (row["unserved"], row["floor"]) == (0.0, world.scenario.tuning.floor)
    assert len(set(row["means_ms"])) == 2, "two searches that found one rule would be a wonder"
    assert all(mean_ms < p99_ms for mean_ms, p99_ms in zip(row["means_ms"], row["p99s_ms"], strict=True))


def row(means_ms: list[float], **changes: Any) -> dict[str, Any]:
    found = {"scenario": "main-mmpp-10g", "blocks": 16, "may_wait": True, "decision_us": 10, "means_ms": means_ms}
    return {**found, "accuracies": [0.753, 0.754], "floor": 0.753, "unserved": 0.0} | changes


def test_a_cell_says_what_its_figures_were_bought_with() -> None:
    """Accuracy below the floor, images unserved; or why there are none."""
    rows = [
        row([1.0, 3.0], decision_us=1000),
        row([1.0, 3.0], decision_us=100, accuracies=[0.7522, 0.7526]),
        row([1.0, 3.0], decision_us=10, unserved=0.02),
        {"scenario": "main-mmpp-10g", "blocks": 16, "may_wait": True, "decision_us": 3, "problem": "the most was 0.7"},
    ]
    (cells,) = faster.faster_table(rows).rows
    text = "2.00 (1.00 to 3.00)"
    assert cells[3:] == [
        text, f"{text} ! (75.24 % accurate)", f"{text} ! (2.0 % unserved)", "the most was 0.7"
    ]  # fmt: skip


def test_worse_is_a_faster_one_whose_range_lies_above_a_slower_ones() -> None:
    """Among rows with figures that are not marked, where the router may wait; by scenario and number of blocks."""
    slow, quick = row([1.0, 2.0], decision_us=1000), row([2.1, 3.0], decision_us=3)
    near, quicker = row([1.9, 3.0], decision_us=100), row([0.5, 0.6], decision_us=10)
    worse = "3 us (2.10 to 3.00 ms) is worse than 1000 us (1.00 to 2.00 ms)"
    left = "(left out, for no figures or marked ones: "
    for rows, told in (
        ([slow, near], f"never worse beyond the searches' ranges {left}10 us, 3 us)"),
        ([slow, near, row([0.7, 0.8], decision_us=3), quicker],
         "3 us (0.70 to 0.80 ms) is worse than 10 us (0.50 to 0.60 ms) beyond the searches' ranges"),
        ([slow, quick], f"{worse} beyond the searches' ranges {left}100 us, 10 us)"),
        ([slow, {**quick, "may_wait": False}],
         f"can't be said, for want of rows with two searches or more {left}100 us, 10 us, 3 us)"),
        ([slow, near, {**quick, "unserved": 0.02}, {**quicker, "problem": "none"}],
         f"never worse beyond the searches' ranges {left}10 us, 3 us)"),
        ([row([1.0], decision_us=us) for us in faster.DECISIONS_US],
         "can't be said, for want of rows with two searches or more"),
    ):  # fmt: skip
        assert faster.verdicts(rows) == [f"main-mmpp-10g, waiting: 16 blocks: {told}."]
    rest = [row([1.0, 2.0], decision_us=us, blocks=4) for us in faster.DECISIONS_US]
    (text,) = faster.verdicts([*rest, slow, quick])
    start = "main-mmpp-10g, waiting: 4 blocks: never worse beyond the searches' ranges; 16 blocks: "
    assert text == f"{start}{worse} beyond the searches' ranges {left}100 us, 10 us)."
    assert faster.verdicts([{**quick, "may_wait": False}]) == []


def test_rows_are_kept_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted table goes on with the row that is missing; other settings are refused."""
    made: list[faster.Point] = []

    def row_of(world: Any, kind: str, point: faster.Point, *_: Any) -> dict[str, Any]:
        if len(made) == most:
            raise KeyboardInterrupt
        made.append(point)
        return {**row([1.0, 3.0]), **vars(point)}

    monkeypatch.setattr(faster, "row_of", row_of)
    path, most = tmp_path / "faster.json", 5
    with pytest.raises(KeyboardInterrupt):
        faster.make_rows(Asked([SCENARIO], 1000, 2), "ladder", path)
    most = 1000
    faster.make_rows(Asked([SCENARIO], 1000, 2), "ladder", path)
    rows = read_json(path)["rows"]
    assert made == list(faster.points()), "each once"
    assert [(row["decision_us"], row["blocks"], row["may_wait"]) for row in rows] == [
        (point.decision_us, point.blocks, point.may_wait) for point in faster.points()
    ]
    assert "| `main-mmpp-10g` | 16 | no | 2.00 (1.00 to 3.00) | 2.00" in to_markdown(faster.faster_table(rows))
    with pytest.raises(InputError, match="which can't stand beside"):
        faster.make_rows(Asked([SCENARIO], 1000, 2), "tide", path)


def test_a_scenario_in_which_nobody_may_wait_is_refused(tmp_path: Path) -> None:
    """There is nothing to compare."""
    path = tmp_path / "none.yaml"
    document = yaml.safe_load(SCENARIO.read_text())
    folder = str(SCENARIO.parent.resolve() / "data")
    document["model"]["accuracy"] = document["model"]["accuracy"].replace("data", folder, 1)
    document["router"]["hold_limit_s"] = 0
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=r"router.hold_limit_s: must be above 0"):
        faster.make_rows(Asked([path], 1000, 1), "ladder", tmp_path / "faster.json")
    with pytest.raises(InputError, match=r"tuning.floor: missing; every row"):
        faster.make_rows(Asked([SCENARIO.parent / "paper.yaml"], 1000, 1), "ladder", tmp_path / "faster.json")
