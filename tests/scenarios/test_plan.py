"""A plan: plain replication carries what `capacity` says, the choice is the best that keeps what is asked, and losing
a device helps nobody."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import slimsched
from hw.networks.accuracy_table import Evaluation
from kit.documents import read_json, write_json
from scenarios.experiment.scenario_building import load_experiment
from scenarios.metrics.result_documents import Outcome, Plan, PlannedRouter, Sustained
from scenarios.metrics.slo import Slo, has_floor
from scenarios.metrics.statistics import NEW_RUNS, MeanInterval
from scenarios.runs.router_planning import (
    FULL,
    Trial,
    best_single,
    candidates,
    choice_of,
    fastest_device,
    floor_doubt,
    nearest_of,
)
from scenarios.show.answers import answers
from scenarios.show.plan_table import format_plan, short_plan
from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.test_answers import CLEAR, validation
from tests.scenarios.test_metrics_page import explained

ASKED = "slo: {floor: 0.8, p99_limit_s: 100ms}\nduration_s: 1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    path = write_scenario(tmp_path_factory.mktemp("plan"), "duration_s: 1", ASKED)
    return path, slimsched.plan(path, ["jsq"], out=path.parent / "run")


def test_plain_replication_carries_what_capacity_says(made: tuple[Path, Plan]) -> None:
    path, plan = made
    asked: dict[str, Any] = {"floor": 0.8, "p99_s": 0.1, "duration_s": 1.0, "precision": 0.02}
    found = [slimsched.capacity(path, FULL, [seed], **asked) for seed in (0, 1)]
    full = plan.of(FULL)
    assert full is not None
    assert full.role == "full width"
    assert full.sustained is not None
    assert full.sustained.low_img_s == min(each.stable_img_s for each in found)
    assert full.sustained.high_img_s == max(each.unstable_img_s for each in found)
    chosen = plan.of(plan.choice)
    assert chosen is not None
    assert chosen.outcome.keeps
    assert chosen.sustained is not None
    for each in plan.routers:
        if each.outcome.keeps and each.sustained is not None:
            assert chosen.sustained.high_img_s > each.sustained.low_img_s


def test_plan_p99_is_a_range_over_new_seeds(made: tuple[Path, Plan]) -> None:
    path, plan = made
    assert plan.choice is not None
    runs = slimsched.compare(path, [plan.choice], range(2, 2 + NEW_RUNS), out=path.parent / "new").results
    p99s_s = [result["latency_s"]["p99"] or 0.0 for result in runs]
    assert plan.p99_range_s == {"low": min(p99s_s), "median": np.median(p99s_s), "high": max(p99s_s)}
    low, high = (f"{1000 * limit(p99s_s):.2f} ms" for limit in (min, max))
    assert f"({low} to {high} in 90 % of runs)" in words_of(plan)


def words_of(plan: Plan) -> str:
    return " ".join(format_plan(plan).split())


def test_a_tie_is_called_one(made: tuple[Path, Plan]) -> None:
    plan = made[1]
    assert plan.tied
    text = words_of(plan)
    assert f"a tie with {', '.join(plan.tied)}: their ranges overlap" in text
    chosen = plan.of(plan.choice)
    assert chosen is not None
    alike = replace(plan, routers=tuple(replace(router, sustained=chosen.sustained) for router in plan.routers))
    assert "times as much" in text
    assert "times as much" not in words_of(alike)
    assert f"a tie with {plan.choice}" in words_of(alike)


def test_a_floor_that_nobody_named_is_said_to_be_the_ladders(made: tuple[Path, Plan]) -> None:
    assert made[1].is_floor_named
    path = made[0]
    plan = slimsched.plan(path, ["jsq"], out=path.parent / "floor", changes={"slo": {"p99_limit_s": "100ms"}})
    assert not plan.is_floor_named
    texts = [words_of(each) for each in (plan, made[1])]
    assert ["(the untuned ladder's, for no `slo.floor` is named)" in text for text in texts] == [True, False]


def test_plan_without_feasible_choice_reports_the_nearest_outcome(
    made: tuple[Path, Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", str(made[0]), "--router", "fixed:0.5,0.5@sticky", "--quiet", "--out", str(tmp_path / "run")]
    words += ["--set", "slo.p99_limit_s=1ms"]
    assert main([*words, "--json", str(tmp_path / "plan.json")]) == 1
    text = " ".join(capsys.readouterr().out.split())
    routers = read_json(tmp_path / "plan.json")["routers"]
    keeping = [router["outcome"] for router in routers if router["outcome"]["accuracy"]["mean"] >= 0.8 - 0.001 - 1e-9]
    least = min(keeping, key=lambda outcome: (max(0.01, outcome["unserved"]), outcome["latency_p99_s"]["mean"]))
    assert re.search(rf"nearest is \S+: p99 {1000 * least['latency_p99_s']['mean']:.2f} ms", text)
    assert "lower the rate" not in text


def test_plan_states_findings_of_earlier_runs_in_the_folder(tmp_path: Path) -> None:
    """The plan reports disturbed calibrations and the validation, and lists as assumed only what wasn't measured."""
    path, run = write_scenario(tmp_path, "duration_s: 1", ASKED), tmp_path / "run"
    profile, why = tmp_path / "fast.yaml", "8 stayed disturbed: 6 by other programs, 2 below full speed"
    disturbed = f"disturbed: 'of 20 points and sets, {why}'"
    text = profile.read_text().replace("stamps: {}", f"stamps: {{{disturbed}}}")
    profile.write_text(re.sub("^checksum:.*\n", "", text, flags=re.MULTILINE))
    plan = slimsched.plan(path, ["jsq"], out=run)
    assert plan.trusted == ()
    assert plan.assumed["run times"] == "datasheet"
    (run / ".slimsched").mkdir(parents=True)
    write_json(run / "validation.json", dict(validation(*CLEAR)))
    plan = slimsched.plan(path, ["jsq"], out=run)
    told = words_of(plan)
    assert "UNRELIABLE: the calibration of fast stayed disturbed" in told
    trusted, *_ = answers(None, validation(*CLEAR))
    assert f"Trusted {' '.join(trusted.lines)}" in told
    assert "slimsched validate" not in told
    calibrated = words_of(replace(plan, assumed={"power": "modelled"}))
    assert "(`slimsched calibrate`)" in told
    assert "(`slimsched calibrate`)" not in calibrated
    assert "not measured: power (modelled)" in calibrated


def test_a_familys_members_stand_in_the_headline(made: tuple[Path, Plan]) -> None:
    plan = made[1]
    assert plan.members == {}
    names = {0.5: "resnet18 int8", 1.0: "resnet18"}
    one, two = (
        replace(plan.servers[0], share=share, widths=({0.5: narrow, 1.0: 1 - narrow},), names=names)
        for share, narrow in ((0.75, 0.8), (0.25, 0.0))
    )
    told = replace(plan, servers=(one, two))
    assert told.members == {"resnet18 int8": pytest.approx(0.6), "resnet18": pytest.approx(0.4)}
    assert ": resnet18 int8 for 60 % of the passes, resnet18 for 40 % of the passes" in words_of(told)


def test_plan_shares_of_servers_and_widths_sum_to_one(made: tuple[Path, Plan]) -> None:
    _, plan = made
    assert sum(server.share for server in plan.servers) == pytest.approx(1.0)
    assert [server.server for server in plan.servers] == ["fast", "slow"]
    for server in plan.servers:
        assert [sum(widths.values()) for widths in server.widths] == pytest.approx([1.0, 1.0])
        assert all(width in (0.5, 1.0) for widths in server.widths for width in widths)


def test_every_key_is_explained_and_no_other(made: tuple[Path, Plan]) -> None:
    assert explained("Plan: `slimsched.plan/1`") == made[1].document.keys()


def test_the_command_finds_the_same(
    made: tuple[Path, Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan = made
    words = ["plan", str(path), "--router", "jsq", "--quiet", "--out", str(tmp_path / "run")]
    assert main([*words, "--json", str(tmp_path / "plan.json")]) == 0
    again, first = read_json(tmp_path / "plan.json"), json.loads(plan.to_json())
    assert again | {"engine": ""} == first | {"engine": ""}
    out = capsys.readouterr().out
    assert f"Run {plan.choice}" in " ".join(out.split())


@pytest.mark.parametrize(("floor", "keeps"), [("0.85", True), ("0.7", False)])
def test_plan_prints_a_command_that_runs_with_its_floor(
    floor: str, keeps: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = write_scenario(tmp_path, "duration_s: 1", ASKED), tmp_path / "run"
    words = [str(path), "--out", str(run), "--quiet", "--set", f"slo.floor={floor}"]
    assert main(["plan", *words, "--router", "jsq"]) == 0
    (typed,) = re.findall(r"^  slimsched (simulate .*)$", capsys.readouterr().out, re.MULTILINE)
    made = re.findall(rf"{re.escape(str(run))}/[a-z]+-keeping\.rule\.yaml", typed)
    assert run.exists() == bool(made) == keeps
    assert all(Path(each).is_file() for each in made)
    assert main([*shlex.split(typed), "--quiet", "--json", str(tmp_path / "result.json")]) == 0
    assert read_json(tmp_path / "result.json")["slo"]["floor"] == float(floor)


def test_a_comparison_says_it_in_short(made: tuple[Path, Plan], tmp_path: Path) -> None:
    """Of its best router alone; one of two servers is twice as fast, so weights give it two thirds of the passes."""
    table = slimsched.compare(made[0], ["weighted-random", "round-robin"], range(5), out=tmp_path / "run")
    (answer,) = short_plan(table.document, table.results)
    names = r"(weighted-random|round-robin)"  # five short runs don't tell one from the other
    p99, passes, _ = answer.lines
    told = re.match(rf"{names} \(or {names}: not statistically significant\): simulated p99 ", p99)
    assert told is not None
    p99s_s = [result["latency_s"]["p99"] or 0.0 for result in table.results if result["router"] == told[1]]
    assert f"({1000 * min(p99s_s):.2f} ms to {1000 * max(p99s_s):.2f} ms over 5 seeds)" in p99
    fast, slow = (int(share) for share in re.findall(r"(?:fast|slow) (\d+) %", passes))
    assert fast + slow == pytest.approx(100, abs=1)
    assert fast == pytest.approx(67 if told[1] == "weighted-random" else 50, abs=6)


def test_a_lost_device_carries_nothing(made: tuple[Path, Plan]) -> None:
    path, plan = made
    load, lost = plan.changes
    assert (load.what, load.sustained, lost.what) == ("load", None, "fast")
    experiment = load_experiment(path)
    assert fastest_device(experiment) == ("fast",)
    trial = Trial(experiment, Slo(0.8, 0.1), (3,), "compiled", 0.5)
    routers, _ = candidates(experiment, trial.slo, ["jsq"], path.parent)
    for router in routers:
        both, one = trial.sustained(router), trial.sustained(router, ("fast",))
        if one is not None:
            assert both is not None
            assert one.low_img_s < both.high_img_s
    full = next(each for each in routers if each.name == FULL)
    both, one = trial.sustained(full), trial.sustained(full, ("fast",))
    assert both is not None
    assert one is not None
    assert one.mean_img_s < 0.6 * both.mean_img_s  # the other one is half as fast
    slow, both_s = (trial.outcome(full, lost=servers).latency_p99_s["mean"] for servers in (("fast",), ()))
    assert slow is not None
    assert both_s is not None
    assert slow > both_s


def test_plan_with_one_server_has_no_variant_without_a_device(tmp_path: Path) -> None:
    path = write_scenario(
        tmp_path, "  - {name: slow, profile: slow.yaml, link: {latency_s: 0.1ms, bandwidth_bytes_s: 1e9}}\n"
    )
    plan = slimsched.plan(path, ["jsq"], out=tmp_path / "run", changes={"slo.floor": 0.8})
    assert [change.what for change in plan.changes] == ["load"]
    assert [(server.server, round(server.share, 9)) for server in plan.servers] == [("fast", 1.0)]


def row(router: str, keeps: bool, sustained_img_s: float | None, p99_s: float, joules: float = 1.0) -> PlannedRouter:
    p99, accuracy, energy_j = (MeanInterval(mean=value, ci95=None) for value in (p99_s, 0.8, joules))
    sustained = (
        None if sustained_img_s is None else Sustained(sustained_img_s, sustained_img_s, sustained_img_s + 10, 0.8, 1.0)
    )
    return PlannedRouter(router, "candidate", None, Outcome(p99, accuracy, energy_j, 0.0, keeps), sustained)


def test_the_choice_keeps_what_is_asked_and_then_carries_most() -> None:
    """Who can't be told apart is chosen by p99; where energy is the objective, joules decide."""
    rows = [row("a", True, 100, 0.02, 3.0), row("b", True, 105, 0.03, 2.0), row("c", False, 500, 0.01)]
    rows += [row("d", True, 50, 0.001, 1.0), row("e", True, None, 0.001, 0.5)]

    def chosen(rows: list[PlannedRouter], saves_energy: bool = False) -> str | None:
        found, _ = choice_of(rows, saves_energy)
        return None if found is None else found.router

    assert (chosen(rows), chosen([replace(each, router=f"{each.router}2") for each in rows[1:]])) == ("a", "b2")
    assert chosen(rows, saves_energy=True) == "d"
    assert chosen(rows[2:3]) is None, "it keeps nothing of what is asked"
    assert chosen(rows[4:]) is None
    assert chosen([row("random", True, 900, 0.001), *rows]) == "a", "a control is nothing to run"


@pytest.mark.parametrize("saves_energy", [False, True])
def test_plan_choice_ties_with_routers_that_are_not_significantly_different(saves_energy: bool) -> None:
    energies = {"a": (2.0, 0.3), "b": (2.4, 0.2), "c": (3.0, 0.1)}
    rows = [row("a", True, 100, 0.02), row("b", True, 105, 0.03), row("c", True, 50, 0.01)]
    rows = [
        replace(each, outcome=replace(each.outcome, energy_per_image_j=MeanInterval(mean=mean, ci95=half)))
        for each, (mean, half) in zip(rows, energies.values(), strict=True)
    ]
    found, tied = choice_of(rows, saves_energy)
    assert found is rows[0]
    assert tied == [rows[1]]


def test_a_floor_is_kept_to_a_tenth_of_a_point_and_nothing_nearest_is_a_control() -> None:
    """As everywhere: else a router of twelve times the p99 is chosen for two hundredths of a point."""
    assert [has_floor(top1, 0.75) for top1 in (0.7499, 0.749, 0.7489, None)] == [True, True, False, False]
    rows = [row("random", False, None, 0.01), row("near", False, None, 0.02), row("far", False, None, 0.03)]
    assert nearest_of(rows, 0.8005) == "near"
    low = replace(rows[1].outcome, accuracy=MeanInterval(mean=0.79, ci95=None))
    assert nearest_of([rows[0], replace(rows[1], outcome=low), rows[2]], 0.8) == "far"


@pytest.mark.parametrize(("floor", "is_told"), [(0.731, True), (0.75, False), (0.6, False), (None, False)])
def test_a_floor_between_members_that_may_differ_by_chance_is_told(floor: float | None, is_told: bool) -> None:
    """73.3 and 72.9 % of 240 images, of which six are right for one of them alone; a third has 55 %."""
    correct = np.zeros((240, 3), np.bool_)
    correct[:176, 2] = correct[1:176, 1] = correct[:132, 0] = True
    correct[[0, 10, 11], 1], correct[[200, 201], 1] = False, True
    evaluation = Evaluation(((0.25,), (0.5,), (1.0,)), correct, "h", "d")
    names = {0.25: "small", 0.5: "resnet18 int8", 1.0: "resnet18"}
    model = SimpleNamespace(labels=(*names.values(),), name_of=names.__getitem__)
    device = SimpleNamespace(profile=SimpleNamespace(model=model))
    experiment: Any = SimpleNamespace(
        accuracy=SimpleNamespace(evaluation=evaluation), cluster=SimpleNamespace(devices=[device])
    )
    told = floor_doubt(experiment, Slo(floor))
    said = "resnet18 (73.3%) and resnet18 int8 (72.9%) do not differ significantly on 240 images"
    assert (said in told) is is_told
    model.labels = ()
    assert floor_doubt(experiment, Slo(floor)) == "", "widths of one network are mixed"


def test_the_single_width_keeps_the_floor(made: tuple[Path, Plan]) -> None:
    experiment = load_experiment(made[0])
    for floor, wanted in ((0.7, (0.5, 0.5)), (0.8, {(0.5, 1.0), (1.0, 0.5)}), (0.9, None)):
        found = best_single(experiment, Slo(floor))
        assert found in wanted if isinstance(wanted, set) else found == wanted
