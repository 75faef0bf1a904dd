"""A router's own decisions: measured beside random's, kept in the run folder, charged to that router alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kit.documents import read_json
from kit.strict import validate
from policies.vocabulary import NS_PER_S, Choice, ClusterView
from scenarios.executors import serving_measurement
from scenarios.executors.serving_measurement import FIRST, ROUNDS, VIEWS, beside_random, measure_decisions, views_of
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.scenario_reading import load_scenario
from scenarios.files.series_files import DecisionTime
from scenarios.job import profile_stages
from scenarios.job.job_stages import Run
from scenarios.job.profile_stages import with_decision_times
from scenarios.metrics.run_result import Simulator
from scenarios.runs.simulated_runs import run_simulation
from scenarios.show.comparison_table import comparison_table
from slimsched.cli import main
from tests import tiny
from tests.scenarios.files import SEGMENTS, WIDTHS, write_scenario

HOST = {"decision": {"micro_batch_s": 1e-4, "image_s": 1e-5}, "returned": {"micro_batch_s": 2e-5, "image_s": 1e-6}}
MEASURED: dict[str, Any] = {
    "schema": "slimsched.decision-time/1", "router": "jsq", "provenance": "measured", "machine": "A Processor",
    "cores": [0], "views": 288, "rounds": 5, "own_s": 3e-4, "random_s": 1e-4,
}  # fmt: skip


def told(**changes: Any) -> DecisionTime:
    return validate(DecisionTime, {**MEASURED, **changes}, "jsq.json")


def hosted(folder: Path, old: str = "", new: str = "") -> Path:
    path = write_scenario(folder, old, new)
    for name, speed in (("fast", 1.0), ("slow", 0.5)):
        found = tiny.profile(name, segments=SEGMENTS, widths=WIDTHS, batches=(1, 4, 16), speed=speed, router_host=HOST)
        (folder / f"{name}.yaml").write_text(found.to_yaml())
    return path


def decisions_ns(
    experiment: Experiment, router: str, engine: Simulator
) -> tuple[list[tuple[int, int]], dict[str, float]]:
    """(images, time from the snapshot until the micro-batch is sent) of each decision, and the stages of the run."""
    result, record = run_simulation(experiment, experiment.router(router), router, 0, engine=engine)
    assert result["stages_s"] is not None
    return [
        (micro_batch.size, micro_batch.sent_ns - micro_batch.snapshot_ns) for micro_batch in record.micro_batches
    ], result["stages_s"]


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("has_host", [False, True])
def test_a_decision_is_longer_by_exactly_what_is_charged(engine: Simulator, has_host: bool, tmp_path: Path) -> None:
    """In both engines, beside what the host costs; it passes before a micro-batch is sent."""
    path = hosted(tmp_path) if has_host else write_scenario(tmp_path)
    experiment = load_experiment(path)
    before, stages = decisions_ns(experiment, "jsq", engine)
    after, longer = decisions_ns(experiment.with_decision_times({"jsq": 250e-6}), "jsq", engine)
    base_ns = experiment.cluster.decision_ns

    def usual_ns(images: int) -> int:
        return base_ns + (100_000 + 10_000 * images if has_host else 0)

    assert [took for _, took in before] == [usual_ns(images) for images, _ in before]
    assert [took for _, took in after] == [usual_ns(images) + 250_000 for images, _ in after]
    assert longer["decision"] > stages["decision"] + 250e-6, "each image is decided on twice"


class Slow:
    """Takes so many nanoseconds for its decisions, one after the other, and then the last one for all others."""

    def __init__(self, now: list[int], takes_ns: Callable[[int], int]) -> None:
        self.now, self.takes_ns, self.made = now, takes_ns, 0

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        self.now[0] += self.takes_ns(self.made)
        self.made += 1
        return None  # type: ignore[return-value]


def beside(takes_ns: Callable[[int, int], int], random_ns: int = 10_000) -> float:
    """What is found beyond random; `takes_ns` of a round and a view."""
    now, rounds = [0], iter(range(ROUNDS))

    def make() -> Slow:
        number = next(rounds)
        return Slow(now, lambda place: takes_ns(number, place))

    waited_ns: list[int] = []
    views: list[Any] = [SimpleNamespace(now_ns=700_000 * place**2) for place in range(VIEWS)]
    own_s, random_s = beside_random(
        views, make, lambda: Slow(now, lambda _: random_ns), 0, clock=lambda: now[0], wait=waited_ns.append
    )
    assert waited_ns[:6] == [0, 0, 700_000, 700_000, 10**6, 10**6], "as long as between the views, and no longer"
    assert len(waited_ns) == 2 * ROUNDS * VIEWS
    assert random_s == pytest.approx(random_ns / NS_PER_S)
    return own_s - random_s


def test_a_policy_is_timed_beside_random() -> None:
    """A mean over views: one that takes long now and then is as long as that on average."""
    assert beside(lambda *_: 300_000) == pytest.approx(290e-6)
    assert beside(lambda _, place: 500_000 if place % 2 else 100_000) == pytest.approx(290e-6)


def test_stalls_and_beginnings_do_not_count() -> None:
    """Two rounds of five that the host has stalled in, and the views that a policy begins with."""
    assert beside(lambda number, _: 10**9 if number < ROUNDS // 2 else 300_000) == pytest.approx(290e-6)
    assert beside(lambda _, place: 10**9 if place < FIRST else 300_000) == pytest.approx(290e-6)


def test_views_are_those_of_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load_experiment(write_scenario(tmp_path))
    first, again, other = (views_of(experiment, experiment.router("jsq"), seed) for seed in (7, 7, 8))
    assert len(first) == VIEWS
    assert first == again != other
    assert max(view.fifo_length for view in first) > 0
    monkeypatch.setattr(serving_measurement, "hardware_servers", lambda _: [])
    found = measure_decisions(experiment, "jsq", lambda: experiment.router("jsq"), 0)
    assert (found.router, found.views, found.rounds, found.provenance) == ("jsq", VIEWS, ROUNDS, "measured")
    assert 0 < found.own_s < 0.1
    assert 0 < found.random_s < 0.1


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which routers were measured: jsq takes 200 us, every other 50."""
    asked: list[str] = []

    def measure(_: Experiment, router: str, make: Callable[[], object], seed: int) -> DecisionTime:
        asked.append(router)
        make()
        return told(router=router, own_s=3e-4 if router == "jsq" else 1.5e-4)

    monkeypatch.setattr(profile_stages, "measure_decisions", measure)
    return asked


def job_of(path: Path, *, is_here: bool = True) -> Run:
    """One whose folder says that serving was measured on this machine."""
    job = Run(load_scenario(path), path.parent / "run", say=lambda _: None, quiet=True)
    with job.folder.opened():
        here = dict(job.environment) if is_here else {**job.environment, "cores": 999}
        job.folder.note_environment("serving", here)
    return job


def times_of(job: Run, *routers: str) -> dict[str, float]:
    with job.folder.opened():
        return dict(with_decision_times(job, job.experiment(), routers).decision_times_s)


def test_each_router_is_measured_once(measured: list[str], tmp_path: Path) -> None:
    """A stage each, so that another router makes none of the others again; random is what they are measured beside."""
    job = job_of(hosted(tmp_path))
    assert times_of(job, "random", "jsq", "jsq") == {"jsq": pytest.approx(2e-4)}
    assert times_of(job, "jsq", "sticky") == {"jsq": pytest.approx(2e-4), "sticky": pytest.approx(5e-5)}
    assert (measured, read_json(tmp_path / "run" / "decisions" / "jsq.json")["router"]) == (["jsq", "sticky"], "jsq")
    (tmp_path / "run" / "decisions" / "jsq.json").write_text("damaged")
    assert times_of(job, "jsq") == {"jsq": pytest.approx(2e-4)}
    assert measured == ["jsq", "sticky", "jsq"]


def test_elsewhere_nothing_is_measured_but_what_was_is_kept(measured: list[str], tmp_path: Path) -> None:
    path = hosted(tmp_path)
    assert times_of(job_of(path, is_here=False), "jsq") == {}
    assert times_of(job_of(path), "jsq") == {"jsq": pytest.approx(2e-4)}
    assert times_of(job_of(path, is_here=False), "jsq", "sticky") == {"jsq": pytest.approx(2e-4)}
    assert measured == ["jsq"]


def test_a_comparison_in_the_folder_charges_and_says_so(measured: list[str], tmp_path: Path) -> None:
    path = hosted(tmp_path)
    command = ["compare", str(path), "--out", str(tmp_path / "run"), "--seed", "0", "--jobs", "1"]
    assert main(command) == 0
    plain = read_json(tmp_path / "run" / "results.json")
    assert not any(
        "than random's" in note for note in comparison_table(read_json(tmp_path / "run" / "comparison.json")).notes
    )
    job_of(path)
    assert main([*command, "--json", str(tmp_path / "found.json")]) == 0
    found = read_json(tmp_path / "found.json")
    assert found["own_decision_s"] == {"jsq": pytest.approx(2e-4)}
    told = "In simulation a decision takes so much longer than random's, as measured here: jsq 200 us."
    assert told in comparison_table(found).notes
    charged = read_json(tmp_path / "run" / "results.json")
    by_router = {result["router"]: result["own_decision_s"] for result in charged}
    assert by_router == {"random": 0.0, "jsq": pytest.approx(2e-4)}
    stages = [{r["router"]: r["stages_s"]["decision"] for r in results} for results in (plain, charged)]
    assert stages[0]["random"] == stages[1]["random"]
    assert stages[1]["jsq"] > stages[0]["jsq"] + 3e-4
