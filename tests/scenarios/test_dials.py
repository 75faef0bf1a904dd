"""Dials: found on curves, what they do to every kind, and routers at one accuracy with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from policies.router_kinds import KINDS, TUNED
from policies.router_names import parse_router_name
from policies.rules.compass import CompassRule
from policies.rules.rule_context import RouterContext
from policies.rules.rule_params import FixedRule, PaperRandom, RuleSpec
from policies.vocabulary import Choice, ClusterView
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.router_scores import (
    CLOSE,
    REACH,
    TRIES,
    Judged,
    SampledRun,
    Scorer,
    find_dial,
    levelled,
    mean_accuracy,
)
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.router_files import is_compiled
from scenarios.runs.router_planning import EqualRuns
from scenarios.runs.simulated_runs import simulate_metrics
from tests.scenarios.test_tune import SCENARIO

FLOOR = 0.75
Curve = Callable[[float], float]


def on(
    curve: Curve, unserved: Curve = lambda by: 0.0, tried: list[float] | None = None
) -> Callable[[float], Judged[float]]:
    """What a router with this accuracy at a dial is judged as."""

    def measure(by: float) -> Judged[float]:
        if tried is not None:
            tried.append(by)
        return Judged(curve(by), unserved(by), by)

    return measure


@pytest.mark.parametrize("at", [-3.0, -0.3, 0.0, 0.7, 4.0])
def test_a_dial_is_set_where_a_rising_curve_has_the_floor(at: float) -> None:
    found = find_dial(on(lambda by: FLOOR + 0.01 * (by - at) + 0.001 * np.sin(by - at)), FLOOR)
    assert found.is_kept
    assert 0.0 <= found.judged.accuracy - FLOOR < CLOSE / 100
    assert found.by == found.judged.runs == pytest.approx(at, abs=0.02)


@pytest.mark.parametrize("curve", [lambda by: 0.70 - (by - 1.0) ** 2 / 100, lambda by: 0.74 - 0.01 * abs(by)])
def test_dial_search_that_misses_the_floor_returns_the_most_accurate_dial(curve: Curve) -> None:
    tried: list[float] = []
    found = find_dial(on(curve, tried=tried), FLOOR)
    assert not found.is_kept
    assert found.judged.accuracy == max(map(curve, tried))
    assert max(tried) <= REACH
    assert len(tried) <= TRIES


def test_dial_search_always_above_the_floor_returns_the_lowest_dial() -> None:
    assert (found := find_dial(on(lambda by: 0.76), FLOOR)).is_kept
    assert found.by == -REACH


@pytest.mark.parametrize("curve", [lambda by: 0.76 if by > 0.4 else 0.74, lambda by: FLOOR + 0.02 * np.sin(3 * by - 1)])
def test_steps_and_waves_leave_a_dial_that_keeps_the_floor(curve: Curve) -> None:
    found = find_dial(on(curve), FLOOR)
    assert found.is_kept
    assert found.judged.accuracy == curve(found.by) >= FLOOR


def test_of_those_that_keep_it_one_that_serves_all_comes_first() -> None:
    found = find_dial(on(lambda by: 0.7525 + 0.001 * by, lambda by: float(by < 0.0)), FLOOR)
    assert found.by == 0.0


def experiment_of(folder: Path, **changes: object) -> Experiment:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**SCENARIO, **changes}))
    return load_experiment(path)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return experiment_of(tmp_path_factory.mktemp("dials"), tuning={"floor": FLOOR})


@pytest.mark.parametrize("kind", [kind for kind in TUNED if kind != "fixed"])
def test_above_0_every_kind_is_more_accurate(experiment: Experiment, kind: str) -> None:
    load = KINDS[kind].load()
    scorer, spec, run = Scorer(experiment), load(), SampledRun(3, duration_s=4.0)  # milp begins with the cheapest

    dialled = [spec.dialled(by, experiment.context) for by in (-1.5, 0.0, 1.5)]
    accuracies = [scorer.score(each, run).accuracy for each in dialled if each is not None]
    assert accuracies == sorted(accuracies)
    assert accuracies[-1] > accuracies[0] + 0.001
    assert [getattr(each, "control", None) for each in dialled] == [None] * 3


def test_router_without_a_numeric_width_choice_has_no_dial(experiment: Experiment) -> None:
    for spec in (FixedRule(), PaperRandom(), parse_router_name("jsq")):
        assert spec.dialled(1.0, experiment.context) is None


class Plain:
    """Full width, but at the last segment for a share of the images alone, on the server with fewest."""

    share = 0.3

    def __init__(self, context: RouterContext) -> None:
        self.widths, self.wide, self.all = context.config.widths, 0, 1

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        server = int(np.argmin([each.outstanding_requests if each.valid else np.inf for each in view.servers]))
        if view.head.segment < 4:
            return Choice(server, self.widths[-1], 8)
        images, is_wide = min(8, view.candidates), self.wide < self.share * self.all
        self.wide, self.all = self.wide + images * is_wide, self.all + images
        return Choice(server, self.widths[-is_wide], 8)


class Dialled(Plain):
    """Its dial is the logit of that share."""

    dial = 0.0

    @property
    def share(self) -> float:  # type: ignore[override]
        return float(1 / (1 + np.exp(-self.dial)))


@pytest.mark.parametrize("router", ["ladder", "compass", f"{__name__}:Dialled"])
def test_routers_come_to_one_accuracy_on_the_very_runs(experiment: Experiment, router: str) -> None:
    runs = EqualRuns(experiment, (0, 1))
    found = runs.at_floor(router, FLOOR)
    assert found.is_kept
    assert 0.0 <= found.mean("accuracy") - FLOOR < 0.002  # two short runs: a step of the dial may move this much
    assert [run.seed for run in found.runs] == [0, 1]
    assert found.counts


@pytest.mark.parametrize("each_s", [0.0, 3e-4])
def test_results_at_the_found_dial_equal_those_of_the_simulation(experiment: Experiment, each_s: float) -> None:
    timed = experiment.with_decision_times({"ladder": each_s})
    found = EqualRuns(timed, (0,)).at_floor("ladder", FLOOR)
    assert found.by is not None
    there = timed.with_dials({"ladder": found.by})
    result = simulate_metrics(there, there.router("ladder"), "ladder", 0, engine="compiled")
    assert found.mean("accuracy") == pytest.approx(result["expected_accuracy"], abs=1e-9)
    assert found.mean("mean_s") == pytest.approx(result["latency_s"]["mean"])


@pytest.mark.parametrize("router", [f"{__name__}:Plain", "jsq", "fixed:1,1,1,1"])
def test_a_router_without_a_dial_is_as_it_is(experiment: Experiment, router: str) -> None:
    found = EqualRuns(experiment, (0,)).at_floor(router, FLOOR)
    assert (found.by, found.is_kept, found.counts) == (None, False, False)
    assert found.mean("accuracy") != pytest.approx(FLOOR, abs=2e-3)


def off(experiment: Experiment, rule: RuleSpec) -> float:
    """By how much a rule misses the floor without its control, on runs that its level was not set on."""
    scorer, dialled = Scorer(experiment), rule.dialled(0.0, experiment.context)
    assert dialled is not None
    return abs(mean_accuracy([scorer.score(dialled, SampledRun(seed)) for seed in (100, 101, 102)]) - FLOOR)


def test_compass_by_name_starts_where_it_about_has_the_floor(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, tuning={"floor": FLOOR}, duration_s=6.0)
    rule = experiment.compass
    assert off(experiment, rule) < 0.002
    for by in (-1.5, 1.5):
        level = rule.numbers.level + by
        far = rule.model_copy(update={"numbers": rule.numbers.model_copy(update={"level": level})})
        assert off(experiment, far) > 0.002
        assert off(experiment, levelled(experiment, far)) < 0.002
    assert experiment.router_maker("compass").spec == rule


@pytest.mark.parametrize("changes", [{}, {"classes": [{"name": "a", "share": 1.0, "floor": FLOOR}]}])
def test_without_a_floor_of_all_compass_is_left_as_it_is(tmp_path: Path, changes: dict[str, object]) -> None:
    assert experiment_of(tmp_path, **changes).compass == CompassRule()


def test_a_floor_that_no_dial_keeps_leaves_it_as_it_is(experiment: Experiment) -> None:
    highest = max(experiment.accuracy.prior.accuracies.values())
    hopeless = replace(
        experiment,
        scenario=experiment.scenario.model_copy(
            update={"tuning": experiment.scenario.tuning.model_copy(update={"floor": highest})}
        ),
    )
    assert hopeless.compass == CompassRule()


def test_a_cluster_that_has_no_compiled_router_leaves_it_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.router_plans.MAX_TRANSFERS", 0)
    experiment = experiment_of(tmp_path, tuning={"floor": FLOOR})
    assert experiment.compass == CompassRule()
    assert is_compiled("compass")
    assert not is_compiled("ladder")
