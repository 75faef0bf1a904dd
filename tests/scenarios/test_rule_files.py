"""Rule files as routers: named in scenarios and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.rules.compass import CompassRule
from policies.rules.rule_context import ComposedRouter
from policies.rules.rule_params import LadderRule
from policies.rules.rule_parts import ControlSpec, Ladder
from scenarios.experiment.scenario_building import load_experiment
from scenarios.experiment.scenario_routers import deciding_in
from scenarios.files.router_files import display_name, learned_among, write_rule
from scenarios.files.scenario_reading import load_scenario, relative_paths
from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.test_engines import experiment_of, save_router

RULE = LadderRule(rungs=((1.0, 1.0), (0.5, 0.5)), thresholds=(3.0,), micro_batch_size=8, made_by={"seed": 1})


def with_rule(folder: Path) -> Path:
    path = write_scenario(folder, "[random, jsq]", "[random, rules/mine.rule.yaml]")
    write_rule(folder / "rules" / "mine.rule.yaml", RULE)
    return path


def test_a_scenario_names_rules_beside_it(tmp_path: Path) -> None:
    """The path is relative to the scenario; the router is the rule's; its name is the file's without both endings."""
    path = with_rule(tmp_path)
    scenario = load_scenario(path)
    named = scenario.compare.routers[1]
    assert (named, display_name(named)) == (str(tmp_path / "rules" / "mine.rule.yaml"), "mine")
    assert relative_paths(scenario, tmp_path).compare.routers[1] == "rules/mine.rule.yaml"
    router = load_experiment(path).router(named)
    assert isinstance(router, ComposedRouter)
    assert isinstance(router.width, Ladder)
    assert router.width.rungs == (RULE.rungs,)
    assert router.micro_batch_size.micro_batch_sizes == (1, 2, 4, 8)  # type: ignore[attr-defined]


def test_rules_are_compared_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = with_rule(tmp_path)
    assert main(["compare", str(path), "--quiet", "--json", "-", "--out", str(tmp_path / "run"), "--seed", "0"]) == 0
    assert [row["router"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["random", "mine"]
    rule = str(tmp_path / "rules" / "mine.rule.yaml")
    assert main(["simulate", str(path), "--router", rule, "--json", "-", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["router"] == "mine"


def test_a_file_has_the_name_in_tables_that_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`NAME=FILE`, in a scenario or by a flag; else two files of one name can't be told apart."""
    path, rules = with_rule(tmp_path), tmp_path / "rules"
    path.write_text(path.read_text().replace("rules/mine", "quick=rules/mine"))
    write_rule(tmp_path / "mine.rule.yaml", LadderRule(rungs=RULE.rungs, thresholds=(1.0,)))
    scenario = load_scenario(path)
    assert scenario.compare.routers[1] == f"quick={rules / 'mine.rule.yaml'}"
    assert relative_paths(scenario, tmp_path).compare.routers[1] == "quick=rules/mine.rule.yaml"
    command = ["compare", str(path), "--out", str(tmp_path / "run"), "--seed", "0", "--quiet"]
    both = [f"{rules / 'mine.rule.yaml'}", f"{tmp_path / 'mine.rule.yaml'}"]
    assert main([*command, "--router", both[0], "--router", both[1]]) == 2
    assert f"have the same name 'mine' in tables; name one otherwise: NAME={both[1]}" in capsys.readouterr().err
    assert main([*command, "--router", both[0], "--router", f"soon={both[1]}", "--json", "-"]) == 0
    assert [row["router"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["mine", "soon"]
    assert main([*command, "--router", f"soon={tmp_path / 'none.rule.yaml'}"]) == 2
    assert f"{tmp_path / 'none.rule.yaml'}: no such file" in capsys.readouterr().err


def test_learned_routers_are_recognized_by_file_content_not_by_name(tmp_path: Path) -> None:
    """Names such as `tuned:ladder` are resolved to files of the run folder."""
    experiment = experiment_of(tmp_path)
    save_router(experiment, tmp_path / "jsq.safetensors", deterministic=True)
    save_router(experiment, tmp_path / "router.safetensors", deterministic=True)
    rules = {"compass.rule.yaml": LadderRule(), "ladder.rule.yaml": CompassRule()}
    for name, rule in rules.items():
        write_rule(tmp_path / name, rule)
    files = [str(tmp_path / name) for name in ("jsq.safetensors", *rules)]
    assert learned_among([*files, f"mine={files[0]}", "jsq", "compass"], tmp_path) == ["jsq", "ladder", "mine"]
    assert learned_among(["ppo", "tuned:compass", "tuned:ladder"], tmp_path) == ["ppo", "tuned:ladder"]


def test_a_router_that_was_tuned_elsewhere_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It fits, but its numbers were found on other devices; one that says nothing of them is taken as it is."""
    path = with_rule(tmp_path)
    rule = tmp_path / "rules" / "mine.rule.yaml"
    command = ["compare", str(path), "--router", str(rule), "--seed", "0", "--out", str(tmp_path / "run")]
    for devices, told in ((["toy", "toy"], False), (["T4", "toy", "toy"], True), (None, False)):
        write_rule(rule, RULE.model_copy(update={"made_by": {} if devices is None else {"devices": devices}}))
        assert main(command) == 0
        warning = f"warning: {rule} was tuned for other servers (T4, toy, toy; here: toy, toy)"
        assert (warning in capsys.readouterr().err) == told


def test_a_router_that_was_tuned_for_another_way_of_deciding_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what a decision costs, if it is half as dear again, and by what may be held; a little dearer is the same."""
    path = with_rule(tmp_path)
    rule = tmp_path / "rules" / "mine.rule.yaml"
    here = deciding_in(load_experiment(path).cluster)
    for changes, told in (
        ({}, False),
        ({"decision_s": 1.2 * here["decision_s"]}, False),
        ({"decision_s": 2 * here["decision_s"]}, True),
        ({"max_batching_delay_s": 0.004}, True),
        ({"max_batching_delay_s": "long"}, False),
    ):
        write_rule(rule, RULE.model_copy(update={"made_by": {"deciding": {**here, **changes}}}))
        assert main(["compare", str(path), "--router", str(rule), "--seed", "0", "--out", str(tmp_path / "run")]) == 0
        assert ("another way of deciding" in capsys.readouterr().err) == told


def test_router_that_cannot_follow_slo_changes_is_warned_about_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_rule(tmp_path)
    rule = tmp_path / "rules" / "mine.rule.yaml"
    text = path.read_text()
    ladder = LadderRule(thresholds=(4.0,), control=ControlSpec())
    for slo, control, told in (
        ("{floor: 0.7, p99_limit_s: 1}", False, []),
        ("{floor: 0.7, schedule: [{at_s: 0.5, p99_limit_s: 1}]}", True, []),
        (
            "{floor: 0.7, schedule: [{at_s: 0.5, p99_limit_s: 1}]}",
            False,
            [f"jsq, {rule} can't follow slo.floor, slo.p99_limit_s; what can is ladder, lookahead, compass, with"],
        ),
        ("{energy_weight: 3}", True, [f"{rule} can't follow slo.energy_weight; what can is compass, with `control`"]),
    ):
        path.write_text(f"{text}slo: {slo}\n")
        write_rule(rule, ladder if control else ladder.model_copy(update={"control": None}))
        routers = ["--router", str(rule)] if control else ["--router", "jsq", "--router", str(rule)]
        assert main(["compare", str(path), *routers, "--seed", "0", "--out", str(tmp_path / "run")]) == 0
        found = [line for line in capsys.readouterr().err.splitlines() if "can't follow" in line]
        assert len(found) == len(told)
        assert all(words in line for words, line in zip(told, found, strict=True))
