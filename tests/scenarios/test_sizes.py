"""What a run says of itself before it begins: its devices, what is cut for time; and at its end, how long it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit import strict
from scenarios.experiment.scenario_building import estimated_capacity_img_s, load_experiment
from scenarios.files.scenario_keys import DeviceSection, Scenario, ServerSection
from scenarios.job import job_stages
from scenarios.job.job_stages import Run, cuts_text, devices_text, pressure_text
from tests.scenarios.files import SCENARIO, write_scenario


def scenario(more: str = "") -> Scenario:
    return strict.parse(Scenario, SCENARIO.replace("duration_s: 1\n", "duration_s: 60\n") + more, "tiny")


def server(name: str, **device: Any) -> ServerSection:
    return ServerSection(name=name, device=DeviceSection(**device))


def test_settings_below_their_defaults_are_listed_as_cut_for_time() -> None:
    assert cuts_text(scenario()) == ""
    cut = scenario("tuning: {decisions: 2000000, matching_runs: 5}\ncalibration: {budget: 30s}\n")
    told = "cut for time, of the defaults: calibration.budget 30 of 300, tuning.decisions 2,000,000 of 40,000,000"
    assert cuts_text(cut) == told


def test_devices_are_named_with_what_makes_them_unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores: both are taken, so the router shares them; with a third one it has that to itself."""
    fast, slow = server("cpu0", cores=(0,)), server("cpu1", cores=(1,), onednn=False)
    monkeypatch.setattr(job_stages, "usable_cores", lambda: (0, 1))
    assert devices_text([fast, slow]) == (
        "devices: cpu0: core 0, 1 thread, cpu1: core 1, 1 thread without oneDNN, which makes it slower; "
        "the router's process and theirs share 2 cores"
    )
    monkeypatch.setattr(job_stages, "usable_cores", lambda: (0, 1, 2))
    assert devices_text([fast, slow]).endswith("the router's process has core 2 to itself")
    assert devices_text([fast, server("any")]).endswith("the router's process and theirs share 3 cores")
    played = server("gpu0", emulated="t4", slowdown=20)
    assert devices_text([played]).startswith("devices: gpu0: emulated (t4, 20 times as slow)")
    assert devices_text([server("gpu0", kind="cuda", index=1)]).startswith("devices: gpu0: GPU 1;")
    assert devices_text([ServerSection(name="a", profile="t4")]) == ""


@pytest.mark.parametrize(
    ("load", "words"),
    [(0.3, "routers will hardly differ"), (0.5, "a router must choose"), (1.2, "not even the narrowest")],
)
def test_pressure_text_compares_the_load_with_the_capacity_of_widths(tmp_path: Path, load: float, words: str) -> None:
    """Bursts must exceed the capacity at full width but not at the narrowest, or the run shows little."""
    bursts = f"{{kind: mmpp, load: {load}, burst_factor: 2.5, burst_share: 0.2}}"
    experiment = load_experiment(write_scenario(tmp_path, "{kind: poisson, rate_img_s: 200}", bursts))
    narrow_img_s = estimated_capacity_img_s(experiment.cluster, experiment.costs, 0)
    assert 1.25 * experiment.capacity_img_s < narrow_img_s < 3 * experiment.capacity_img_s
    text = pressure_text(experiment)
    assert words in text
    assert f"at most {2.5 * load * experiment.capacity_img_s:.4g} for a while" in text
    assert f"{experiment.capacity_img_s:.4g} at full width and {narrow_img_s:.4g} at the narrowest" in text


def test_stages_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("scenarios.job.job_stages.time.monotonic", lambda: now_s[0])
    job = Run(scenario(), tmp_path / "run", say=lambda _: None)

    def work() -> list[Path]:
        now_s[0] += 12.4
        (job.folder / "made.txt").write_text("made")
        return [job.folder / "made.txt"]

    with job.folder.opened():
        for _ in range(2):
            job.stage("model", "same", work)
            now_s[0] += 3.0
        assert job.wall_text == "wall time 18 s: model 12 s"
        for name in ("serving", "train", "validate"):
            now_s[0] += len(name)
            job.stage(name, "same", work)
    assert job.wall_text == "wall time 76 s: model 12 s, serving 12 s, train 12 s", "the longest"
