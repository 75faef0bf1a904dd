"""Clusters are drawn as their file says and run alike on both engines; training over them repeats itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kit.documents import Memo
from kit.errors import InputError
from policies.rules.compass import Numbers
from scenarios.experiment.router_scores import SampledRun, Scorer
from scenarios.files.router_files import read_rule
from scenarios.files.scenario_keys import ServerDownFault, StragglerFault
from scenarios.learn.drawn_clusters import Case, ClusterTraining, Generation, drawn_experiment, read_clusters, rule_of
from sim.compiled.run_figures import RunScore
from slimsched.cli import main

SHIPPED = read_clusters(Path("clusters"), {})
TINY = SHIPPED.model_copy(
    update={"clusters": 3, "rounds": 1, "generations": 2, "population": 4, "at_once": 2, "held_back": 1}
    | {"images": 600, "servers": (2, 3), "load": (0.2, 0.5)}
)
RUN = SampledRun(7)


def test_drawn_cluster_is_within_the_ranges_of_its_file() -> None:
    for number in range(3):
        experiment = drawn_experiment(SHIPPED, str(number))
        its = experiment.scenario
        assert len(experiment.cluster.servers) in SHIPPED.servers
        assert len(set(experiment.device_names)) <= max(SHIPPED.kinds)
        slowdowns = {profile.device.emulated_slowdown for profile in experiment.profiles}
        assert len(slowdowns) == 1
        assert SHIPPED.slowdown[0] <= (slowdowns.pop() or 1.0) <= SHIPPED.slowdown[1]
        assert its.workload.kind in SHIPPED.workloads
        assert experiment.mean_rate_img_s is not None
        assert experiment.mean_rate_img_s * its.duration_s >= SHIPPED.images / 3
        assert all(isinstance(fault, ServerDownFault | StragglerFault) for fault in its.faults)
    same, other = (drawn_experiment(TINY, name).scenario for name in ("3", "4"))
    assert drawn_experiment(TINY, "3").scenario == same != other


def scored(mean_s: float, accuracy: float, failed: int = 0) -> RunScore:
    return RunScore(1000, 0, mean_s, 0.005, mean_s, 2 * mean_s, accuracy, 0.1, 500, failed, 0.2)


def test_candidates_are_compared_at_equal_accuracy() -> None:
    """Who slides along the reference's own price of accuracy is no better; who is faster at both dials is, by that."""
    pair = (scored(0.020, 0.752), scored(0.018, 0.748))
    case = Case(Scorer(drawn_experiment(TINY, "0")), (RUN,), 0.0, (pair,))
    assert case.cost(pair, 0) == 0
    quicker = (scored(0.9 * 0.020, 0.752), scored(0.9 * 0.018, 0.748))
    assert case.cost(quicker, 0) == pytest.approx(1.2 * np.log(0.9))
    ratio = (0.020 / 0.018) ** 0.2  # a fifth of the way from one dial to the other
    for slid in (
        (scored(0.020 * ratio, 0.7528), scored(0.018 * ratio, 0.7488)),
        (scored(0.020 / ratio, 0.7512), scored(0.018 / ratio, 0.7472)),
    ):
        assert case.cost(slid, 0) == pytest.approx(0.0, abs=1e-9)
    flat = scored(0.020 * ratio, 0.7528)  # whatever the dial: 0.28 points off, of which 0.18 are too far
    assert case.cost((flat, flat), 0) == pytest.approx(0.4 * 0.18)
    assert case.cost((scored(0.017, 0.740), scored(0.0169, 0.739)), 0) > 0  # too far off to be believed
    assert case.cost((scored(0.9 * 0.020, 0.752, 100), scored(0.9 * 0.018, 0.748, 100)), 0) > 0


def test_a_dial_that_is_higher_is_quicker_and_less_accurate() -> None:
    scorer, numbers = Scorer(drawn_experiment(TINY, "5")), Numbers().to_vector()
    wide, narrow = (scorer.score(rule_of(numbers, dial), RUN) for dial in (-2.0, 2.0))
    assert wide.accuracy > narrow.accuracy
    assert wide.mean_s > narrow.mean_s


def test_training_repeats_itself_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    told: list[Generation] = []
    first = ClusterTraining(TINY, told.append, Memo(tmp_path / "memo", "it")).run()
    assert [each.number for each in told] == [0, 1]
    memo = Memo(tmp_path / "memo", "it")
    count = len(memo.rows)
    again = ClusterTraining(TINY, told.append, memo).run()
    assert len(Memo(tmp_path / "memo", "it").rows) == count  # nothing was simulated
    assert again.numbers == first.numbers != Numbers()
    assert again.costs.tolist() == first.costs.tolist()


def test_the_command_writes_a_router_for_any_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = [f"{key}={value}" for key, value in TINY.model_dump(include=TINY_KEYS).items()]
    sets = [word for change in changes for word in ("--set", change.replace("(", "[").replace(")", "]"))]
    assert main(["train", "--over", "clusters", *sets, "--out", "out"]) == 0
    assert "clusters" in capsys.readouterr().out
    rule = read_rule(tmp_path / "out/compass.rule.yaml")
    assert rule.made_by["drawn_from"]["clusters"] == TINY.clusters
    played = ["--router", "out/compass.rule.yaml", "--set", "duration_s=3", "--set", "warmup_s=1"]
    assert main(["simulate", "main-ten-10g", *played]) == 0


TINY_KEYS = {"clusters", "rounds", "generations", "population", "at_once", "held_back", "images", "servers", "load"}


def test_clusters_that_all_drown_train_nobody() -> None:
    drowning = TINY.model_copy(update={"clusters": 1, "images": 300, "load": (40.0, 41.0), "busiest": 50.0})
    with pytest.raises(InputError, match="draw more of them, or others"):
        ClusterTraining(drowning, lambda _: None).run()
