"""Training from the command line: which engine, what it is scored, and what is told."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit import checkpoint
from kit.errors import InputError, WorkError
from policies.ppo import PPORouter
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.scenario_building import make_experiment
from scenarios.files.router_files import read_rule
from scenarios.files.scenario_reading import load_scenario
from scenarios.job.job_stages import Run
from scenarios.job.training_stage import make_routers
from scenarios.learn import ppo_training as train_module
from scenarios.learn.ppo import train_experiment
from scenarios.learn.ppo_training import score_router
from scenarios.runs.simulated_runs import run_simulation
from slimsched.cli import main
from tests.scenarios.files import write_scenario

OLD = "compare: {routers: [random, jsq], seeds: [0, 1]}"
TRAINING = """compare: {routers: [random, ppo], seeds: [0]}
training: {decisions: 1500, batch: 256, minibatch: 128, horizon_s: 500ms, environments: 4, checkpoint_every: 1}
"""
TOO_LONG = ("horizon_s: 500ms", "horizon_s: 8950")


def write(folder: Path, *changes: tuple[str, str]) -> Path:
    path = write_scenario(folder, OLD, TRAINING)
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def experiment_of(folder: Path) -> Experiment:
    return make_experiment(load_scenario(write(folder)), folder)


def train(path: Path, *flags: str) -> int:
    return main(["train", str(path), "--out", str(path.parent / "run"), *flags])


def as_run_does(path: Path, said: list[str] | None = None) -> None:
    """The stage of `slimsched run`."""
    scenario = load_scenario(path)
    job = Run(scenario, path.parent / "run", say=([] if said is None else said).append, quiet=True)
    with job.folder.opened(path):
        make_routers(job, make_experiment(scenario, path.parent / "run"), ["ppo"], says_scores=True)


def test_a_router_is_trained_and_both_engines_score_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert train(path, "--json", "-") == 0
    (made,) = json.loads(capsys.readouterr().out)["routers"]
    score = made["score"]
    assert 0.5 < score["accuracy"] <= 1
    assert train(path) == 0
    again = capsys.readouterr()
    assert "train-ppo: skipped" in again.err
    assert f"accuracy {100 * score['accuracy']:.2f} %" in again.out
    assert "both engines, bit for bit the same" in again.out
    assert main(["simulate", str(path), "--router", made["router"], "--json", "-", "--quiet"]) == 0


def test_a_policy_with_waits_is_trained(tmp_path: Path) -> None:
    """The file has them; what was learned is scored alike on both engines; the new head is logged."""
    router = "router: {max_batching_delay_s: 0.02}\ncompare: {routers: [random, ppo]"
    changes = ("compare: {routers: [random, ppo]", router), ("checkpoint_every: 1", "batching_delays_s: [0.002, 0.01]")
    path = write(tmp_path, *changes)
    assert train(path, "--quiet") == 0
    assert PPORouter.load(tmp_path / "run" / "ppo.safetensors").spec.batching_delays_s == (0.002, 0.01)
    logs = [path.read_text() for path in (tmp_path / "run").rglob("scalars.json")]
    assert sum("entropy/batching_delay" in log for log in logs) == 1


def test_rules_are_made_as_ppo_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its file and its score, and not again; what is compared decides by these files."""
    routers = 'compare: {routers: ["tuned:compass", "tuned:fixed", ppo], seeds: [0]}'
    tuning = f"{routers}\nvalidate: {{routers: [ppo]}}\ntuning: {{decisions: 2000, episode_s: 0.5, matching_runs: 1}}"
    path = write(tmp_path, ("compare: {routers: [random, ppo], seeds: [0]}", tuning))
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:  # what opens torch can't be opened: this is told before
        for stage in ("scenarios.job.comparing_stage", "scenarios.job.validation_stage"):
            patch.setitem(sys.modules, stage, None)
        for command, names, kinds in (
            ("compare", "tuned:compass, tuned:fixed, ppo", "--router compass --router fixed --router ppo"),
            ("validate", "ppo", "--router ppo"),
        ):
            assert main([command, str(path), "--out", str(run), "--quiet"]) == 2
            told = capsys.readouterr().err
            assert (
                f"not made yet for this scenario: {names}; `slimsched train {path} --out {run} {kinds}` does it" in told
            )
            assert f", or name others in {command}.routers (left out, it is: random, jsq," in told
    assert train(path, "--json", "-") == 0
    made = json.loads(capsys.readouterr().out)["routers"]
    assert [each["score"]["router"] for each in made] == ["tuned:compass", "tuned:fixed", "ppo"]
    files = [Path(each["router"]) for each in made]
    assert [file.name for file in files] == ["compass.rule.yaml", "fixed.rule.yaml", "ppo.safetensors"]
    before = [file.read_bytes() for file in files]
    assert train(path) == 0
    told = capsys.readouterr().err
    assert all(f"{stage}: skipped" in told for stage in ("train-ppo", "train-compass", "train-fixed"))
    assert [file.read_bytes() for file in files] == before
    assert main(["compare", str(path), "--out", str(run), "--quiet", "--json", "-"]) == 0
    assert [row["router"] for row in json.loads(capsys.readouterr().out)["rows"]] == [
        "tuned:compass",
        "tuned:fixed",
        "ppo",
    ]
    by_name = experiment_of(tmp_path).router("tuned:fixed", run)
    assert read_rule(files[1]).make(experiment_of(tmp_path).context).width == by_name.width  # type: ignore[attr-defined]


def test_the_score_is_of_a_run_that_nobody_trained_on(tmp_path: Path) -> None:
    """Its seed is not an episode's and no run's of the scenario; its figures are those of that run."""
    experiment = experiment_of(tmp_path)
    router = experiment.router("jsq")
    score = score_router(experiment, lambda: router, "jsq", 7)
    assert score["seed"] not in (7, *experiment.scenario.compare.seeds)
    assert score["seed"] != score_router(experiment, lambda: router, "jsq", 8)["seed"]
    result, record = run_simulation(experiment, router, "jsq", score["seed"])
    assert score["latency_s"] == result["latency_s"]["mean"]
    assert score["reward"] == pytest.approx(
        sum(b.reward.total for b in record.micro_batches) / len(record.micro_batches)
    )


def test_an_interrupted_training_goes_on(tmp_path: Path) -> None:
    experiment, told = experiment_of(tmp_path), []
    folder = tmp_path / "training"

    def stop(done: int, _: Any) -> None:
        told.append(done)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_experiment(experiment, folder, seed=0, on_progress=stop)
    train_experiment(experiment, folder, seed=0, on_progress=lambda done, _: told.append(done))
    assert told[1] < told[3] < told[1] + 2 * (told[1] - told[0])  # the third update was told, but not kept
    assert told[2] < told[-1]


def test_train_beyond_the_limits_of_the_compiled_engine_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes with a remedy before any training, and no router file is left."""
    path = write(tmp_path, TOO_LONG)
    assert train(path, "--quiet") == 2
    problem = "routers are trained on the compiled engine, which can't do runs longer than"
    assert re.match(rf"slimsched: tiny: {problem} \d+ s; shorten training\.horizon_s, .*", capsys.readouterr().err)
    assert not (tmp_path / "run" / "ppo.safetensors").exists()


def test_engines_that_disagree_are_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = experiment_of(tmp_path)
    honest = run_simulation

    def off_by_one(*arguments: Any, engine: str, **options: Any) -> Any:
        result, record = honest(*arguments, **options)
        return result, replace(record, ended_ns=record.ended_ns + (engine == "compiled"))

    monkeypatch.setattr(train_module, "run_simulation", off_by_one)
    with pytest.raises(WorkError, match=r"disagree about the trained router's run \(ended_ns\): this is a bug"):
        score_router(experiment, lambda: experiment.router("jsq"), "jsq", 0)


def test_a_damaged_training_is_refused_and_begins_again_without_its_file(tmp_path: Path) -> None:
    path, folder = write(tmp_path), tmp_path / "run"
    as_run_does(path)
    before = checkpoint.read(folder / "ppo.safetensors")[0], (folder / "training-ppo.json").read_bytes()
    [damaged] = folder.glob("training/*/checkpoint.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-100])
    (folder / "ppo.safetensors").unlink()
    with pytest.raises(InputError, match=r"checkpoint.safetensors: not a safetensors file, or damaged .*; remove"):
        as_run_does(path)
    damaged.unlink()
    as_run_does(path)
    tensors, _ = checkpoint.read(folder / "ppo.safetensors")
    assert {each: value.tobytes() for each, value in tensors.items()} == {
        each: value.tobytes() for each, value in before[0].items()
    }
    assert (folder / "training-ppo.json").read_bytes() == before[1]
