"""Hardware far from its simulation: a validation that can only say so again and again is stopped, and told why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.documents import Memo
from kit.errors import WorkError
from policies.vocabulary import Provenance
from scenarios.executors.validation_plan import Campaign, FinishedRun, PlannedRun, ValidationPlan
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.files.scenario_keys import ValidateSection
from scenarios.job import validation_stage
from scenarios.job.job_stages import Run
from scenarios.job.validation_stage import validate_experiment
from scenarios.metrics.fidelity import (
    MIN_IMAGES,
    ValidationDocument,
    ValidationRun,
    far_runs,
    is_hopeless,
    validate_results,
    was_stopped,
)
from scenarios.metrics.run_result import Result
from scenarios.runs.folder import RunFolder
from scenarios.show.summary_table import format_summary
from scenarios.show.validation_table import require_hopeful
from slimsched.cli import main
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import run_of, summary, validation_run
from tests.scenarios.test_campaign import opened, side
from tests.scenarios.test_result import WINDOW, record, request

ROUTERS = ("random", "jsq", "sticky")
DOWN = {"server": "s", "cause": "planned", "planned": True, "down_s": 1.0, "up_s": None}


def result(latency_s: float, images: int = MIN_IMAGES, **changes: Any) -> Result:
    found = summary(record(*(request(i, 3, latency_s) for i in range(images)), ended_s=20), **WINDOW)
    return {**found, **changes}  # type: ignore[typeddict-item]


def run(simulated_s: float, hardware_s: float, images: int = MIN_IMAGES, **place: Any) -> ValidationRun:
    return validation_run(result(simulated_s, images), result(hardware_s, images, mode="executors"), **place)


@pytest.mark.parametrize(
    ("simulated_s", "hardware_s", "is_far"), [(1.4, 1.0, False), (1.6, 1.0, True), (1.0, 1.9, False), (1.0, 2.1, True)]
)
def test_far_is_an_error_of_more_than_half(simulated_s: float, hardware_s: float, is_far: bool) -> None:
    assert bool(far_runs([run(simulated_s, hardware_s)])) is is_far


def test_validation_is_hopeless_after_two_far_runs_and_no_near_one() -> None:
    far, near = run(1.0, 3.0), run(1.0, 1.1)
    assert not is_hopeless([far])
    assert is_hopeless([far, far])
    for runs in ([far, near], [near, far, far], [far, far, near]):
        assert not is_hopeless(runs)
        assert far_runs(runs) == []


def test_far_runs_exclude_small_saturated_and_faulty_runs() -> None:
    """Runs with few or no images, saturated ones and those in which a server was down don't count."""
    few = run(1.0, 3.0, MIN_IMAGES - 1)
    saturated, down, twin_down, empty_run = (run(1.0, 3.0) for _ in range(4))
    saturated["kind"] = "saturated"
    down["executors"]["restarts"] = [DOWN]  # type: ignore[list-item]
    twin_down["simulated"]["restarts"] = [DOWN]  # type: ignore[list-item]
    empty_run["executors"]["images"]["completed"] = 0
    for each in (few, saturated, down, twin_down, empty_run):
        assert far_runs([each, each]) == []
    assert len(far_runs([few, saturated, run(1.0, 3.0)])) == 1


def test_the_message_says_what_why_and_what_to_do() -> None:
    runs = [run(0.010, 0.030, load=0.5), run(0.010, 0.030, load=0.5, router="jsq", repeat=1)]
    document = validate_results(runs, Provenance.MEASURED)
    document["far_apart"] = {"made": 2, "planned": 9, "runs": far_runs(runs), "kept": ".stages/validate-0.json"}
    with pytest.raises(WorkError) as raised:
        require_hopeful(document)
    assert str(raised.value) == (
        "validate: stopped after 2 runs on executors of 9: more than 50 % from simulation: random, load 0.5, seed 0: "
        "mean latency -66.7 %, throughput +0.0 %; jsq, load 0.5, seed 0, repeat 1: mean latency -66.7 %, throughput "
        "+0.0 %. "
        "The profiles are of another host, stack or load (`slimsched profile check`), or other programs use the "
        "machine, or it can't sustain the load. To measure these runs again remove .stages/validate-0.json in the run "
        "folder. To continue anyway: --set validate.go_on=true. Everything that was made is kept"
    )


class Bench:
    """A validation of three routers on executors that is so many times slower than its profiles."""

    def __init__(self, here: Path, slowness: float, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("experiment", "executors", "run"):
            (here / name).mkdir()
        self.experiment: Experiment = opened(here / "experiment", 1.0)
        self.executors: Experiment = opened(here / "executors", slowness)
        self.said: list[str] = []
        self.folder = RunFolder(here / "run", self.said.append)
        self.asked: list[PlannedRun] = []
        monkeypatch.setattr(validation_stage, "load_measured", lambda *_: None)
        monkeypatch.setattr(validation_stage, "validate_runs", self._runs)

    def _runs(self, *given: Any, finished: tuple[ValidationRun, ...], **_: Any) -> Iterator[FinishedRun]:
        simulate, serve = side(self.experiment, []), side(self.executors, self.asked, "executors")
        yield from Campaign(given[3], simulate, serve, finished).carry_out()

    def validate(self, routers: tuple[str, ...] = ROUTERS, **given: Any) -> ValidationDocument:
        """How many executor runs it made stands in `asked`."""
        self.asked.clear()
        plan = ValidationPlan.of(self.experiment, routers, ValidateSection.model_validate(given))
        with self.folder.opened():
            return validate_experiment(run_of(self.folder, routers), self.experiment, plan, "0" * 12)

    @property
    def memo(self) -> Memo:
        return self.folder.memo("validate", "0" * 12)


def test_a_hopeless_validation_stops_and_tells_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two runs, which are kept; asked again nothing is run; going on makes the rest alone."""
    bench = Bench(tmp_path, 4.0, monkeypatch)
    found = bench.validate()
    assert [each.router for each in bench.asked] == ["random", "jsq"]
    assert was_stopped(found)
    assert [pair["router"] for pair in found["pairs"]] == ["random", "jsq"]
    assert (tmp_path / "run" / "executors" / "jsq-seed0" / "result.json").is_file()
    assert bench.validate()["far_apart"] == found["far_apart"]
    assert bench.asked == []
    assert "Far apart" not in format_summary(None, found), "the command's error says it"
    whole = bench.validate(go_on=True)
    assert [each.router for each in bench.asked] == ["sticky"]
    assert not was_stopped(whole)
    require_hopeful(whole)
    assert "Far apart: 3 runs on executors: more than 50 % from simulation: random" in format_summary(None, whole)
    bench.memo.path.unlink()
    bench.validate()
    assert [each.router for each in bench.asked] == ["random", "jsq"], "the remedy measures again"


def test_a_validation_near_its_simulation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And when it is resumed on executors that got slow meanwhile it still does: it has passed."""
    bench = Bench(tmp_path, 1.1, monkeypatch)
    assert bench.validate(("random",)).get("far_apart") is None
    (tmp_path / "slow").mkdir()
    bench.executors = opened(tmp_path / "slow", 4.0)
    assert bench.validate().get("far_apart") is None
    assert [each.router for each in bench.asked] == ["jsq", "sticky"]


def test_the_command_prints_its_tables_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the tables so far on standard output, one line of what is wrong."""
    document = validate_results([run(0.01, 0.03)] * 2, Provenance.MEASURED)
    document["far_apart"] = {"made": 2, "planned": 9, "runs": far_runs([run(0.01, 0.03)] * 2), "kept": "x.json"}
    seen: list[Run] = []

    def made(job: Run, *_: object) -> object:
        seen.append(job)
        return document

    monkeypatch.setattr(validation_stage, "validate", made)
    scenario = write_scenario(tmp_path)
    words = ["validate", str(scenario), "--out", str(tmp_path / "run"), "-r", "jsq", "--set", "validate.go_on=true"]
    assert main([*words, "-q"]) == 1
    streams = capsys.readouterr()
    assert "random" in streams.out
    assert streams.err.splitlines()[-1].startswith("slimsched: validate: stopped after 2 runs on executors of 9")
    assert seen[0].scenario.validate_.go_on
