"""Profiles in a run folder: edited by hand they count, damaged or gone they are made again from what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from scenarios.files.scenario_reading import load_scenario
from scenarios.job import profile_stages
from scenarios.job.job_stages import Run
from slimsched.cli import main
from tests import tiny

SCENARIO = """
schema: slimsched.scenario/1
name: small
model: {checkpoint: model.safetensors, accuracy: accuracy.json, dataset: digits}
cluster: {servers: [{name: a, device: {cores: [0]}}]}
workload: {kind: poisson, rate_img_s: 30}
validate: {routers: [random]}
duration_s: 3
warmup_s: 1
"""
CALIBRATED = tiny.profile("a", dispatch_s=0.001)
SERVED = tiny.profile("a", dispatch_s=0.002)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Carry out the stages of profiles; returns what was said of them. Nothing is measured."""
    (tmp_path / "small.yaml").write_text(SCENARIO)
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "accuracy.json").touch()
    monkeypatch.setattr(profile_stages, "calibrate_device", lambda *_, **__: CALIBRATED)
    monkeypatch.setattr(profile_stages, "measure_serving", lambda *_, **__: None)
    monkeypatch.setattr(profile_stages, "with_overheads", lambda *_: SERVED)
    monkeypatch.setattr(profile_stages, "load_dataset", lambda _: None)
    monkeypatch.setattr(Run, "experiment", lambda _: SimpleNamespace())

    def carry_out() -> list[str]:
        said: list[str] = []
        job = Run(load_scenario(tmp_path / "small.yaml"), tmp_path / "run", say=said.append, quiet=True)
        profile_stages.make_profiles(job)
        profile_stages.make_serving(job)
        return [line for line in said if "profiles" in line or "a.yaml" in line or line.startswith("serving")]

    return carry_out


def test_a_profile_that_was_edited_counts(made: Callable[[], list[str]], tmp_path: Path) -> None:
    path = tmp_path / "run" / "profiles" / "a.yaml"
    assert made() == ["serving: begins"]
    assert path.read_text() == SERVED.to_yaml()
    assert made() == ["serving: skipped, done before"]
    edited = tiny.profile("a", dispatch_s=0.003).to_yaml()
    path.write_text(edited)
    assert made() == ["profiles/a.yaml was edited since, and is taken so", "serving: skipped, done before"]
    assert path.read_text() == edited


def test_a_profile_that_is_gone_is_made_again(made: Callable[[], list[str]], tmp_path: Path) -> None:
    """From what was kept in `calibration/`, with what serving costs; nothing is measured again."""
    path = tmp_path / "run" / "profiles" / "a.yaml"
    made()
    path.unlink()
    assert made()[-1] == "serving: skipped, done before"
    assert path.read_text() == SERVED.to_yaml()


def test_an_edited_profile_stays_beside_a_new_measurement(
    made: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What serving costs is measured again, of the calibrated profile."""
    path = tmp_path / "run" / "profiles" / "a.yaml"
    made()
    edited = tiny.profile("a", dispatch_s=0.003).to_yaml()
    path.write_text(edited)
    (tmp_path / "run" / ".stages" / "serving.json").unlink()
    assert any("was edited since: it is kept as a.yaml.edited" in line for line in made())
    assert path.read_text() == SERVED.to_yaml()
    assert path.with_name("a.yaml.edited").read_text() == edited


def test_calibrate_replaces_only_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile from elsewhere, or one that was edited, is kept beside; its own is not."""
    monkeypatch.setattr("calibrate.model_costs", lambda *_: None)
    monkeypatch.setattr("scenarios.executors.device_calibration.calibrate_device", lambda *_, **__: CALIBRATED)
    monkeypatch.setattr("scenarios.executors.device_calibration.with_serving", lambda *_, **__: SERVED)
    (tmp_path / "model.safetensors").touch()
    place = tmp_path / "profiles" / "cpu0.yaml"
    place.parent.mkdir()
    place.write_text("mine")
    words = ["calibrate", "--model", str(tmp_path / "model.safetensors"), "--out", str(place.parent)]
    words += ["--device", "cpu:0", "--budget", "60s"]
    assert main(words) == 0
    assert f"{place} was not made by this calibration, or was edited since: it is kept as" in capsys.readouterr().err
    place.with_suffix(".jsonl").touch()
    assert main(words) == 0
    assert "it is kept as" not in capsys.readouterr().err
    edited = place.read_text().replace("checksum: ", "# ")
    place.write_text(edited)
    assert main(words) == 0
    kept = {path.name: path.read_text() for path in place.parent.glob("*.kept*")}
    assert kept == {"cpu0.yaml.kept": "mine", "cpu0.yaml.kept-2": edited}
    assert place.read_text() == SERVED.to_yaml()
