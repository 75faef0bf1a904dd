"""Tuning keeps its floor, repeats itself, stops at its budget, and writes files that decide the same."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, replace
from math import log
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

from kit.documents import Memo
from kit.errors import InputError
from kit.random_streams import stream
from policies.router_kinds import TUNED
from policies.rules.compass import CompassRule
from policies.rules.rule_params import BatchingDelaySpec, FixedRule, LadderRule
from policies.rules.rule_parts import ControlSpec
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.router_scores import Scorer
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.router_files import made_by, read_router
from scenarios.learn.evaluator import Decisions, Evaluator, TuningParams, lacking, latency_cost
from scenarios.learn.tune import CrossEntropy, FloorError, FloorMultiplier, options_of, params_of, tune_experiment
from scenarios.learn.tuned_files import expected_decisions, save_tuned, tuned_text
from sim.compiled.run_figures import RunScore
from slimsched.cli import main

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = {
    "schema": "slimsched.scenario/1",
    "name": "tiny",
    "model": {"accuracy": str(ROOT / "scenarios/data/models/slimresnet18-paper.accuracy.json")},
    "cluster": {
        "servers": [
            {"name": "a", "profile": "rtx-2080-ti", "link": "10gbe"},
            {"name": "b", "profile": "gtx-980-ti", "link": "10gbe"},
        ],
        "greedy": {"preload": "all"},
    },
    "workload": {"kind": "mmpp", "rate_img_s": 4000, "burst_factor": 2.0, "burst_share": 0.3, "dwell_s": 0.2},
    "duration_s": 1.5,
    "warmup_s": 0.2,
    "compare": {"seeds": [100, 101]},
}
BRIEF = ("tuning.episode_s=0.5", "tuning.matching_runs=2")
PARAMS = TuningParams(floor=0.76, decisions=15_000, episodes=2, episode_s=0.5, matching_runs=2, population=4, elite=2)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "tiny.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    return path


@pytest.fixture(scope="module")
def experiment(scenario: Path) -> Experiment:
    return load_experiment(scenario)


SLOW_TO_START = {"milp": 0.72, "infaas": 0.74}  # they begin with the cheapest tuple, and a tiny run is over soon


@pytest.mark.parametrize("kind", TUNED)
def test_every_kind_keeps_the_floor_on_the_runs_it_was_set_on(experiment: Experiment, kind: str) -> None:
    floor = SLOW_TO_START.get(kind, PARAMS.floor)
    found = tune_experiment(experiment, kind, replace(PARAMS, floor=floor))
    figures = found.figures
    assert figures.accuracy >= floor
    assert figures.mean_s > 0
    assert figures.p99_s >= figures.mean_s
    assert (found.searches, found.spent.in_all) == (kind != "fixed", sum(asdict(found.spent).values()))
    assert found.spent.final_evaluation > 0
    if kind != "fixed":
        assert figures.accuracy < floor + 0.006, "no more accurate than asked for: that would cost latency"
        assert found.spent.search >= [n for n, _ in found.history][-1] >= PARAMS.decisions
        spent = [n for n, _ in found.history]
        assert all(n - spent[0] < PARAMS.decisions for n in spent[:-1]), "it stops at its budget"


CLASSES = [{"name": "gold", "share": 0.5, "floor": 0.76}, {"name": "tin", "share": 0.5, "floor": 0.74}]


@pytest.mark.parametrize("kind", ["ladder", "compass", "fixed", "slackfit"])
def test_classes_of_requests_keep_their_floors_each(tmp_path: Path, kind: str) -> None:
    """Who controls does so by itself, a fixed rule by a tuple for each, and any other treats all as the strictest."""
    path = tmp_path / "classes.yaml"
    path.write_text(yaml.safe_dump({**SCENARIO, "classes": CLASSES}))
    experiment = load_experiment(path)
    params = replace(PARAMS, decisions=4000, class_floors=params_of(experiment).class_floors)
    assert params.class_floors == (0.76, 0.74)
    found = tune_experiment(experiment, kind, params)
    scores = [
        Scorer(experiment).score(found.spec, Evaluator(experiment, params, ThreadPoolExecutor(1)).full(n))
        for n in range(2)
    ]
    reached = [
        sum(score.class_images[n] * score.class_accuracies[n] for score in scores)
        / sum(score.class_images[n] for score in scores)
        for n in range(2)
    ]
    assert lacking(scores, params) == pytest.approx(max(100 * (0.76 - reached[0]), 100 * (0.74 - reached[1])))
    if isinstance(found.spec, FixedRule):
        assert found.spec.tuples is not None
        tuples = [experiment.accuracy.prior(found.spec.tuples[name]) for name in ("gold", "tin")]
        assert [0.0 <= of - floor < 0.02 for of, floor in zip(tuples, params.class_floors, strict=True)] == [True, True]
    elif kind == "slackfit":
        assert lacking(scores, params) <= 0.02  # points: a step of its target
    else:
        assert found.spec.control == ControlSpec(p99_limit_s=0.0)  # type: ignore[attr-defined]
        assert reached[0] > reached[1]  # so short a run tells little of floors
    save_tuned(tmp_path / "made.rule.yaml", found, experiment, "classes")
    assert read_router(tmp_path / "made.rule.yaml") is not None
    assert "tuning.floor" not in made_by(tmp_path / "made.rule.yaml")["command"]


@pytest.mark.parametrize("kind", ["ladder", "compass", "fixed"])
def test_tuning_spends_decisions_within_a_factor_of_two_of_those_expected(experiment: Experiment, kind: str) -> None:
    """Each part is within a factor of three; the reported progress ends with the decisions spent."""
    params, told = replace(PARAMS, floor=0.75, searches=2, decisions=100_000), list[Decisions]()
    found = tune_experiment(experiment, kind, params, on_progress=told.append)
    assert (told[-1], [each.in_all for each in told]) == (found.spent, sorted(each.in_all for each in told))
    expected = expected_decisions(experiment, kind, params)
    assert 0.5 < expected.in_all / found.spent.in_all < 2
    for about, made in zip(astuple(expected), astuple(found.spent), strict=True):
        assert made / 3 <= about <= 3 * made


def test_before_it_begins_tuning_says_how_much_it_will_take(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--router", "ladder", *set_("tuning.floor=0.75", "tuning.decisions=5000", "tuning.searches=2", *BRIEF)]
    assert main(["train", str(scenario), *flags, "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().err.splitlines()
    told = made_by(tmp_path / "run" / "ladder.rule.yaml")
    parts = [told[f"{name}decisions"] for name in ("", "settings_", "matching_", "final_evaluation_")]
    about = next(line for line in lines if line.startswith("tune ladder: about"))
    assert re.match(r"tune ladder: about [\d,]+ decisions \(10,000 of searches, ", about)
    assert any(f"runs of tuning, {sum(parts):,} decisions" in line for line in lines)
    assert told["decisions_in_all"] == sum(parts)
    assert [each["of"] for each in told["final_scores"]][:2] == ["search 1", "search 2"]
    assert all({"mean_s", "p99_s", "image_j", "accuracy"} < each.keys() for each in told["final_scores"])
    assert told["winner"] in [each["of"] for each in told["final_scores"]]


def test_the_same_seed_finds_the_same_and_another_one_another(experiment: Experiment) -> None:
    params = replace(PARAMS, floor=0.75)
    one, again = tune_experiment(experiment, "ladder", params), tune_experiment(experiment, "ladder", params)
    assert one.spec == again.spec != tune_experiment(experiment, "ladder", replace(params, seed=1)).spec


def test_a_floor_that_cant_be_kept_leaves_word_of_the_most(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*set_("tuning.floor=0.7643", "tuning.decisions=1000", *BRIEF), "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["train", str(scenario), "--router", "milp", *flags]) == 1
    assert "no setting keeps an accuracy of 0.7643 on tiny; the most was 0.7" in capsys.readouterr().err
    assert not (tmp_path / "run" / "milp.rule.yaml").exists()


def test_the_search_stops_when_it_has_settled(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def settled(search: CrossEntropy) -> bool:
        asked.append(len(asked))
        return len(asked) > 3

    monkeypatch.setattr(CrossEntropy, "settled", property(settled))
    found = tune_experiment(experiment, "ladder", replace(PARAMS, floor=0.75, decisions=10**9))
    assert len(found.history) == 3


def set_(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def score(mean_s: float, p99_s: float, accuracy: float = 0.75) -> RunScore:
    return RunScore(100, 0, mean_s, 0.0, mean_s, p99_s, accuracy, 0.0, 7)


def test_the_objective_is_the_mean_with_a_share_of_the_tail() -> None:
    scores = [score(0.001, 0.01), score(0.1, 1.0)]
    assert latency_cost(scores, PARAMS) == pytest.approx(log(0.01) + 0.2 * log(0.1))


def test_tuning_an_unknown_kind_is_refused(experiment: Experiment) -> None:
    with pytest.raises(InputError, match="'lader' can't be tuned; did you mean 'ladder'"):
        tune_experiment(experiment, "lader", PARAMS)


@pytest.mark.parametrize("kind", ["compass", "ladder"])
def test_the_command_writes_a_file_that_runs(
    scenario: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run" / f"{kind}.rule.yaml"
    named = [] if kind == "compass" else ["--router", kind]
    flags = [
        *set_("tuning.floor=0.76", "tuning.decisions=5000", "tuning.control=true", *BRIEF),
        "--out",
        str(path.parent),
        "-q",
    ]
    assert main(["train", str(scenario), *named, *flags]) == 0
    capsys.readouterr()
    told = made_by(path)
    assert told["command"].endswith(" --set tuning.control=true")
    assert cast(Any, read_router(path)).control == ControlSpec()
    assert told["accuracy"] >= 0.76
    assert str(tmp_path) not in json.dumps(told)
    asked = ["simulate", str(scenario), "--router", str(path), *set_("duration_s=0.5"), "--quiet", "--json", "-"]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)["router"] == kind


def scored(mean_s: float, failed: int = 0, unfinished: int = 0) -> RunScore:
    return RunScore(1000, unfinished + failed, mean_s, 0.0, mean_s, 3 * mean_s, 0.75, 0.0, 9, failed)


def test_tuning_cost_of_unserved_images_exceeds_any_latency_cost() -> None:
    """Among routers with unserved images the one with fewer comes first; images cut off at the end don't count."""
    costs = [latency_cost([scored(*each)] * 2, PARAMS) for each in
             ((0.1,), (0.1, 10), (0.1, 0, 500), (100.0,), (1e-5, 11), (1e-5, 400))]  # fmt: skip
    assert costs[0] == costs[1] == costs[2]
    assert costs == sorted(costs)


def test_a_tuned_router_that_sheds_is_told(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "overload.yaml"
    workload = {"kind": "poisson", "rate_img_s": 60_000}
    changes = {"workload": workload, "deadline_s": 0.02, "shed": True, "duration_s": 0.5}
    path.write_text(yaml.safe_dump({**SCENARIO, **changes}))
    flags = set_("tuning.floor=0.75", "tuning.decisions=2000", *BRIEF)
    assert main(["train", str(path), "--router", "fixed", *flags, "--out", str(tmp_path / "run")]) == 0
    assert "beware: it leaves " in capsys.readouterr().err
    assert made_by(tmp_path / "run" / "fixed.rule.yaml")["unserved"] > 0.01


def test_a_floor_that_other_runs_miss_is_told(experiment: Experiment) -> None:
    tuned = tune_experiment(experiment, "ladder", PARAMS)
    for others, is_told in ((PARAMS.floor, False), (PARAMS.floor - 0.03, True)):
        scores = [replace(each, figures=replace(each.figures, accuracy=others)) for each in tuned.final_scores]
        text = tuned_text(replace(tuned, final_scores=tuple(scores)))
        assert ("beware: on runs that tuning did not see it has" in text) == is_told


def test_the_lists_offer_what_compass_has(experiment: Experiment) -> None:
    config = replace(experiment.context.config, max_batching_delay_ns=20_000_000)
    evaluator = Evaluator(experiment, PARAMS, ThreadPoolExecutor(1))
    evaluator.context = replace(experiment.context, config=config, micro_batch_ns=100_000)
    options = dict(options_of(LadderRule(), evaluator))
    assert BatchingDelaySpec(requests=(8, 1, 1, 1), wait_s=(0.02, 0.0, 0.0, 0.0)) in options["batching_delay"]
    assert BatchingDelaySpec(requests=(8,) * 4, wait_s=(0.005,) * 4) in options["batching_delay"]
    by_host = [each for each in options["batching_delay"] if each and each.arrivals_s]
    assert {each.arrivals_s[0] for each in by_host} == {n * 4 * 1e-4 for n in (1.0, 1.7, 2.7)}
    assert len({each and each.model_dump_json() for each in options["batching_delay"]}) == len(
        options["batching_delay"]
    )
    assert {*dict(options_of(CompassRule(), evaluator))} == {"batching_delay", "micro_batch_size"}
    evaluator.context = replace(experiment.context, config=replace(config, max_batching_delay_ns=0))
    assert {*dict(options_of(LadderRule(), evaluator))} == {"placement", "paths", "micro_batch_size"}


def test_the_worse_half_of_a_list_sees_one_run(experiment: Experiment) -> None:
    evaluator = Evaluator(experiment, PARAMS, ThreadPoolExecutor(1))
    runs = [evaluator.trace_slice(f"run {part}", part) for part in range(2)]
    specs = [FixedRule(tuple=(width,) * 4) for width in (1.0, 0.5)] * 2
    scores = evaluator.measure_all(specs, runs, lambda each: each[0].mean_s)
    assert len(scores) == 2
    every = evaluator.measure_all(specs, runs)
    assert scores == {place: every[place] for place in (1, 3)}
    assert every[1][0].mean_s < every[0][0].mean_s


@pytest.mark.parametrize("damage", ["none", "torn"])
def test_an_interrupted_search_goes_on(
    experiment: Experiment, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, path = replace(PARAMS, floor=0.75), tmp_path / "scores.jsonl"
    whole, runs = tune_experiment(experiment, "ladder", params), list[int]()
    one = Scorer.score

    def counted(self: Scorer, *arguments: Any) -> Any:
        runs.append(1)
        return one(self, *arguments)

    def interrupt(spent: Decisions) -> None:
        if spent.in_all > 3 * params.decisions:
            raise KeyboardInterrupt

    monkeypatch.setattr(Scorer, "score", counted)
    with pytest.raises(KeyboardInterrupt):
        tune_experiment(experiment, "ladder", params, on_progress=interrupt, memo=Memo(path, "ladder"))
    before, lost = len(runs), 0
    if damage != "none":
        lines = path.read_bytes().splitlines(keepends=True)
        lost = len(json.loads(lines[-1]))
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:-9])
    runs.clear()
    again = tune_experiment(experiment, "ladder", params, memo=Memo(path, "ladder"))
    assert (again.spec, again.spent, again.history) == (whole.spec, whole.spent, whole.history)
    first = len(runs)
    runs.clear()
    tune_experiment(experiment, "ladder", params, memo=Memo(path, "ladder"))
    assert not runs
    assert before > lost or damage == "none"
    assert first + before - lost == sum(map(len, Memo(path, "ladder").rows))


def test_energy_is_saved_within_the_limit_of_latency(experiment: Experiment) -> None:
    """The same rule, tuned for either: less energy at a p99 within its limit."""
    params = replace(PARAMS, decisions=60_000, seed=1)  # with less both searches end in the same rule
    quick = tune_experiment(experiment, "ladder", params)
    limit_s = 4 * quick.figures.p99_s
    frugal = tune_experiment(experiment, "ladder", replace(params, objective="energy", p99_limit_s=limit_s))
    assert frugal.figures.image_j < quick.figures.image_j
    assert frugal.figures.p99_s <= 1.05 * limit_s, "also on runs that the search has not seen"


def test_a_tuple_is_one_that_servers_hold_and_that_keeps_the_floor(experiment: Experiment) -> None:
    """The most accurate one is looked for among all that can be held; where only some can, others serve it narrower."""
    config = experiment.cluster.router
    best = max(experiment.held_accuracies, key=lambda widths: experiment.held_accuracies[widths])
    lacking = tuple(tuple(width != best[-1] or segment < config.segments - 1 for width in config.widths)
                    for segment in range(config.segments))  # fmt: skip

    def holding(*fits: Any) -> Experiment:
        return replace(experiment, cluster=replace(experiment.cluster, router=replace(config, fits=fits)))

    small = holding(*[lacking] * config.servers)
    floor = max(small.held_accuracies.values()) - 1e-6
    found = tune_experiment(small, "fixed", replace(PARAMS, floor=floor))
    assert isinstance(found.spec, FixedRule)
    assert small.held_accuracies[found.spec.tuple_ or ()] >= floor
    assert found.figures.accuracy >= floor
    with pytest.raises(InputError, match=r"tuple that the servers can hold; possible is up to 0\.\d{4}$"):
        tune_experiment(small, "fixed", replace(PARAMS, floor=experiment.held_accuracies[best]))
    some = holding(*config.fits[:-1], lacking)
    with pytest.raises(FloorError, match=r"fixed: no setting keeps an accuracy of .*; the most was 0\."):
        tune_experiment(some, "fixed", replace(PARAMS, floor=experiment.held_accuracies[best]))


def test_a_p99_beyond_its_limit_costs_more_than_any_energy() -> None:
    params = replace(PARAMS, objective="energy", p99_limit_s=0.1)
    within, near, beyond = (
        latency_cost([replace(score(0.01, p99_s, 0.76), image_j=image_j)], params)
        for p99_s, image_j in ((0.09, 2.0), (0.0975, 2.0), (0.13, 1.0))
    )
    assert within == log(2.0) < near < beyond


def searched(spread: np.ndarray, cost, generations: int = 60) -> CrossEntropy:  # type: ignore[no-untyped-def]
    search = CrossEntropy(np.zeros(len(spread)), spread, stream(1, "search"), 32, 8)
    for _ in range(generations):
        candidates = search.ask()
        search.tell(candidates, np.array([cost(x) for x in candidates]))
    return search


def test_finds_the_minimum_of_a_slanted_bowl() -> None:
    goal = np.array([1.0, -2.0, 0.5])
    search = searched(np.ones(3), lambda x: float((x - goal) @ np.diag([1, 10, 100]) @ (x - goal)))
    assert search.best == pytest.approx(goal, abs=0.05)
    assert search.mean == pytest.approx(goal, abs=0.1)


def test_search_leaves_a_parameter_without_spread_unchanged() -> None:
    search = searched(np.array([1.0, 0.0]), lambda x: float((x[0] - 1) ** 2 + (x[1] - 1) ** 2))
    assert (search.best[1], search.best[0]) == (0.0, pytest.approx(1.0, abs=0.05))


def test_search_ignores_candidates_of_infinite_or_nan_cost() -> None:
    search = searched(np.ones(1), lambda x: np.inf if x[0] > 0 else float("nan") if x[0] < -2 else (x[0] + 1) ** 2)
    assert search.best[0] == pytest.approx(-1.0, abs=0.05)


def test_the_mean_and_the_best_are_always_tried() -> None:
    search = CrossEntropy(np.zeros(2), np.ones(2), stream(0, "search"))
    first = search.ask()
    assert first[0] == pytest.approx([0, 0])
    costs = np.arange(len(first), dtype=float)[::-1].copy()
    search.tell(first, costs)
    second = search.ask()
    assert (second[0], second[1]) == (pytest.approx(search.mean), pytest.approx(first[-1]))


def test_the_multiplier_settles_where_the_floor_is_kept() -> None:
    """A plant whose shortfall falls with the price: integral control leaves no lasting error."""
    price, shortfall = FloorMultiplier((0.5, 0.5, 0.1)), 1.0
    for _ in range(200):
        shortfall = 1.0 - 0.4 * price.update(shortfall)
    assert shortfall == pytest.approx(0.0, abs=1e-3)
    for _ in range(200):
        price.update(-1.0)
    assert price.value == 0.0, "far above the floor it costs nothing"


def test_search_is_settled_once_its_spread_is_below_a_seventh() -> None:
    assert not searched(np.ones(3), lambda x: float(x @ x), generations=2).settled
    assert searched(np.array([1.0, 0.0]), lambda x: float(x @ x)).settled
