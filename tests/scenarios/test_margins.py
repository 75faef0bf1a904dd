"""Margins: what a step does to each kind, who is picked, on which runs, and that rows are kept."""

from __future__ import annotations

from math import e
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.study import margins
from benchmarks.study.__main__ import main
from benchmarks.study.margin import STEPS, margins_in, margins_of, with_margin
from kit.documents import read_json
from policies.rules.infaas import InfaasRule
from policies.rules.lookahead import LookaheadRule
from policies.rules.milp import MilpRule
from policies.rules.slackfit import SlackFitRule
from policies.rules.specs import FixedRule, LadderRule, RuleSpec
from policies.rules.tide import TideRule
from scenarios.learn.tuning import Tuning, tune_router
from scenarios.world.materials import load_world
from tests.scenarios.test_tune import write_promising


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return write_promising(tmp_path / "tiny.yaml")


@pytest.mark.parametrize(
    ("spec", "changed"),
    [
        (LadderRule(thresholds=(2.0, 8.0)), {"thresholds": (2.0 * e, 8.0 * e)}),
        (TideRule(level=-5.0, rise=1.7), {"level": -6.7}),
        (TideRule(level=-5.0, rise=0.5), {"level": -6.0}),
        (LookaheadRule(worth_s=0.001), {"worth_s": 0.001 * e}),
        (SlackFitRule(target_s=0.01), {"target_s": 0.01 * e}),
        (MilpRule(headroom=1.2), {"headroom": 1.2 / e}),
    ],
)
def test_a_step_turns_a_routers_own_dial(spec: RuleSpec, changed: dict[str, Any], scenario: Path) -> None:
    """Towards accuracy, and nothing else of it."""
    world = load_world(scenario)
    found = with_margin(spec, 1.0, world).model_dump()
    before = spec.model_dump()
    assert {key: found[key] for key in found if found[key] != before[key]} == {
        key: pytest.approx(value) for key, value in changed.items()
    }
    assert with_margin(spec, 0.0, world) == spec


def test_a_cheapest_variant_is_no_better_than_the_best(scenario: Path) -> None:
    world = load_world(scenario)
    best = max(world.held_top1.values())
    found = with_margin(InfaasRule(floor=best - 0.001, up=0.02, down=0.1), 1.0, world)
    assert isinstance(found, InfaasRule)
    assert found.floor == best
    assert (found.up, found.down) == pytest.approx((0.02 * e**0.5, 0.1 * e**0.5))


def test_a_fixed_router_has_the_tuples_that_keep_the_floor(scenario: Path) -> None:
    """It has no dial; every other kind has the same steps."""
    world = load_world(scenario)
    tuples = list(margins_of(FixedRule(), world))
    assert tuples
    assert all(isinstance(each, tuple) and world.accuracy.prior(each) >= 0.75 for each in tuples)
    found = with_margin(FixedRule(), tuples[-1], world)
    assert isinstance(found, FixedRule)
    assert found.tuple_ == tuples[-1]
    assert tuple(margins_of(TideRule(), world)) == STEPS


def test_who_keeps_most_is_picked_and_then_the_quickest(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune_router(Tuning(scenario, "ladder", scenario.parent / "data/routers/tiny/ladder.rule.yaml"), quiet=True)
    kept = iter([(0.5, 1.0), (0.7, 3.0), (0.7, 2.0), (0.6, 1.0), (0.7, 4.0), (0.1, 0.1), (0.0, 0.1)])

    def means(*_: object) -> dict[str, float]:
        return dict(zip(("kept_share", "latency_mean_s"), next(kept), strict=True))

    monkeypatch.setattr(margins, "_means", means)
    row = margins.row_of(None, margins.Wanted(scenario, "ladder", 1))
    assert (row["margin"], row["kept_share"]) == (STEPS[2], 0.7)
    assert [each["margin"] for each in row["tried"]] == list(STEPS)


def test_a_run_that_completed_nothing_is_never_picked() -> None:
    """Neither its windows nor its speed are known: both count as the worst."""
    nothing: dict[str, float | None] = {"kept_share": None, "latency_mean_s": None}
    slow: dict[str, float | None] = {"kept_share": 0.0, "latency_mean_s": 9.0}
    assert margins.rank(nothing) < margins.rank(slow)
    assert margins.rank({"kept_share": None, "latency_mean_s": 0.1}) < margins.rank({**slow, "kept_share": 0.1})


def test_rows_are_of_routers_of_now_and_kept(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is not made again; what the page reads of them is what was picked."""
    for kind in ("fixed", "ladder"):
        tune_router(Tuning(scenario, kind, tmp_path / f"data/routers/tiny/{kind}.rule.yaml"), quiet=True)
    out = tmp_path / "margins.json"
    command = ["margins", str(scenario), "--runs", "1", "--json", str(out), "--jobs", "1"]
    assert main(command) == 0
    rows = read_json(out)["rows"]
    assert {row["router"] for row in rows} == {"fixed", "ladder"}, "the others have no file"
    for row in rows:
        assert row["kept_share"] == max(each["kept_share"] for each in row["tried"])
    read = margins_in(rows, "tiny")
    assert isinstance(read["fixed"][1], tuple)
    assert read["ladder"][1] in STEPS
    assert margins_in(rows, "another") == {}
    monkeypatch.setattr(margins, "row_of", None)
    assert main(command) == 0


def test_margins_are_tried_on_the_curve_of_tuning(scenario: Path) -> None:
    """A report's is new to them."""
    for name, counts in (("one.csv", "1\n2\n"), ("other.csv", "2\n1\n")):
        (scenario.parent / name).write_text(f"count\n{counts}")
    document = yaml.safe_load(scenario.read_text())
    workload = {"kind": "rates", "file": "one.csv", "tuning_file": "other.csv", "rate_img_s": 100}
    scenario.write_text(yaml.safe_dump({**document, "workload": workload}))
    world = load_world(scenario)
    other = margins.of_tuning(world)
    files = [Path(each.scenario.workload.file).name for each in (world, other)]  # type: ignore[union-attr]
    assert files == ["one.csv", "other.csv"]
    rates = [each.arrivals_ns(0, 60.0) for each in (world, other)]
    assert len(rates[0]) != len(rates[1]) or (rates[0] != rates[1]).any()


def test_what_promises_nothing_has_no_margin(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load(scenario.read_text())
    scenario.write_text(yaml.safe_dump({**document, "service": {"floor": 0.75}}))
    assert main(["margins", str(scenario), "--json", str(scenario.parent / "x.json")]) == 2
    assert "service.p99_limit_s: missing" in capsys.readouterr().err
