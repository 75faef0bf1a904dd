"""The main job on this machine, interrupted in every stage and carried on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hw.networks.accuracy_table import load_accuracy
from kit.documents import read_json
from scenarios.files.scenario_reading import load_scenario
from scenarios.job import network_stages, profile_stages, training_stage, validation_stage
from scenarios.job.job_stages import Run
from scenarios.job.main_job import JobOutcome, carry_out
from slimsched.cli import main
from tests.scenarios.files import shorten_serving

pytestmark = pytest.mark.workers

SCENARIO = """
schema: slimsched.scenario/1
name: small
model: {network: 'tests.scenarios.own_network:DigitsPerceptron', options: {features: 32}, dataset: digits}
cluster: {servers: auto, greedy: {batch_limit: 8, preload: all}}
router: {micro_batch_sizes: [1, 4]}
workload: {kind: poisson, rate_img_s: 30}
calibration: {budget: 4s, allow_busy: true}
training: {decisions: 3000, batch: 1024, minibatch: 256, environments: 2, horizon_s: 2}
compare: {routers: [random, sticky, ppo], seeds: [0]}
validate: {routers: [random, ppo], go_on: true, duration_s: 2s, warmup_s: 0.2s}
duration_s: 3
warmup_s: 0.5
"""
STAGES = {
    "train_model": network_stages,
    "evaluate_model": network_stages,
    "calibrate_device": profile_stages,
    "measure_serving": profile_stages,
    "train_router": training_stage,
    "validate_experiment": validation_stage,
}


@dataclass
class Finished:
    """A whole job that was interrupted as each of its stages began, and then carried out."""

    folder: Path
    began: list[str]
    said: list[str]
    outcome: JobOutcome


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("job")
    (folder / "small.yaml").write_text(SCENARIO)
    began: list[str] = []

    def interrupt(name: str) -> Callable[..., None]:
        def stop(*_: object, **__: object) -> None:
            began.append(name)
            raise KeyboardInterrupt

        return stop

    def run(say: Callable[[str], None]) -> JobOutcome:
        return carry_out(Run(load_scenario(folder / "small.yaml"), folder / "run", say=say, quiet=True))

    for name, module in STAGES.items():
        with pytest.MonkeyPatch.context() as patch:
            shorten_serving(patch)
            patch.setattr(module, name, interrupt(name))
            with pytest.raises(KeyboardInterrupt):
                run(lambda _: None)
    said: list[str] = []
    return Finished(folder / "run", began, said, run(said.append))


@pytest.mark.slow
def test_interrupted_in_any_stage_it_goes_on_from_the_last_finished_one(
    job: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each try is interrupted as the next stage begins; no finished stage runs again; then replay and report work."""
    assert job.began == list(STAGES)
    said = [line for line in job.said if not line.startswith("warning: other programs")]  # this machine may be busy
    assert said[0].startswith("devices: ")
    told = [line for line in said[1:] if "skipped" not in line and "images/s arrive" not in line]
    assert told[0] == "validate: begins"
    advice = r"validate: in runs of \d+ images chance moves the p99 of \w+ by \+-\d+ %"  # unless it is narrow
    assert len(told) <= 2
    assert all(re.match(advice, line) for line in told[1:])
    pairs = read_json(job.folder / "validation.json")["pairs"]
    assert [pair["router"] for pair in pairs] == ["random", "ppo"]
    for pair in pairs:
        for experiment in ("simulated", "executors"):
            images = pair[experiment]["images"]
            assert images["arrived"] == images["completed"] > 30
        assert pair["simulated"]["images"]["arrived"] == pair["executors"]["images"]["arrived"]
        assert 0.0 <= pair["background_load"]["programs"] <= 1.0
    assert main(["replay", str(job.folder)]) == 0
    assert capsys.readouterr().out.count("identical commands") == 2


def test_a_users_network_goes_through_the_whole_job(job: Finished) -> None:
    """Named `module:Class` in the scenario: trained, evaluated, calibrated, simulated, and served by real workers."""
    table = load_accuracy(job.folder / "accuracy.json")
    assert len(table.tuples) == 4
    assert min(table.top1().values()) > 0.5
    for pair in read_json(job.folder / "validation.json")["pairs"]:
        assert pair["executors"]["accuracy"] > 0.5  # served labels are those of the trained network
