"""Emulated devices in a scenario: what simulation takes for them, what results and tables say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.documents import write_json
from kit.errors import InputError
from policies.run_records import BatchRecord
from policies.vocabulary import Provenance
from scenarios.experiment.scenario_building import calibrated_path, load_experiment, make_experiment, profile_path
from scenarios.files.scenario_reading import load_scenario
from scenarios.job.job_stages import Run
from scenarios.job.profile_stages import make_profiles
from scenarios.job.validation_stage import validate
from scenarios.metrics.fidelity import ValidationRun, validate_results
from scenarios.metrics.run_result import Result
from scenarios.runs.simulated_runs import simulate_experiment
from scenarios.show.command_tables import described, format_result
from scenarios.show.report import gather, report
from scenarios.show.validation_table import errors_tables, saturation_tables
from tests.scenarios.files import write_scenario
from tests.scenarios.folders import run_folder, summary, validation_run
from tests.scenarios.test_result import WINDOW, record, request

pytestmark = pytest.mark.usefixtures("undrawn")
REAL: dict[str, Any] = {"mode": "executors", "engine": "torch"}
SERVERS = """\
  - {name: fast, profile: fast.yaml, link: 10gbe}
  - {name: slow, profile: slow.yaml, link: {latency_s: 0.1ms, bandwidth_bytes_s: 1e9}}
"""
EMULATED = """\
  - {{name: fast, device: {{emulated: fast.yaml, slowdown: {0:g}}}, link: 10gbe}}
  - {{name: slow, device: {{emulated: slow.yaml, slowdown: {1:g}}}, link: 10gbe}}
"""


def scenario(folder: Path, fast: float = 10, slow: float = 10) -> Path:
    return write_scenario(folder, SERVERS, EMULATED.format(fast, slow))


def test_simulation_takes_the_slowed_profile(tmp_path: Path) -> None:
    slow = simulate_experiment(load_experiment(scenario(tmp_path, 10, 10), tmp_path / "run"), "jsq", 0)
    usual = simulate_experiment(load_experiment(scenario(tmp_path, 1, 1), tmp_path / "run"), "jsq", 0)
    assert usual["stages_s"] is not None
    assert slow["stages_s"] is not None
    assert slow["stages_s"]["run"] > 8 * usual["stages_s"]["run"]
    assert (slow["provenance"], slow["emulated_slowdowns"]) == ("emulated", [10.0])
    assert usual["emulated_slowdowns"] == [1.0]
    assert "emulated x10" in format_result(slow)


def test_an_emulated_profile_is_never_taken_for_a_measured_one(tmp_path: Path) -> None:
    profile = load_experiment(scenario(tmp_path, 10), tmp_path / "run").profiles[0]
    assert profile.origin == "emulated x10"
    assert described(profile).splitlines()[0].endswith(", emulated x10")
    assert {profile.power.provenance, profile.concurrency.provenance} == {Provenance.EMULATED}


def job(path: Path, folder: Path, said: list[str]) -> Run:
    return Run(load_scenario(path), folder, say=said.append, quiet=True)


def test_a_run_keeps_what_its_devices_play(tmp_path: Path) -> None:
    """Once; again where the slowdown has changed; and with what serving costs, where a run has found that out."""
    said: list[str] = []
    path, folder = scenario(tmp_path, 10), tmp_path / "run"
    first = job(path, folder, said)
    with first.folder.opened():
        make_profiles(first)
    kept = profile_path(folder, "fast")
    assert kept.read_text() == calibrated_path(folder, "fast").read_text()
    assert make_experiment(first.scenario, folder).profiles[0].origin == "emulated x10"
    said.clear()
    again = job(path, folder, said)
    with again.folder.opened():
        make_profiles(again)
    assert [line for line in said if "emulate-fast" in line and "skipped" in line]
    served = (
        make_experiment(again.scenario, folder).profiles[0].model_copy(update={"served_extra_s": 0.5, "checksum": None})
    )
    kept.write_text(served.to_yaml())
    assert make_experiment(again.scenario, folder).profiles[0].served_extra_s == 0.5
    other = load_scenario(scenario(tmp_path, 20))
    assert make_experiment(other, folder).profiles[0].origin == "emulated x20"
    assert make_experiment(other, folder).profiles[0].served_extra_s == 0.0


def test_without_a_network_emulated_devices_can_be_validated(tmp_path: Path) -> None:
    """Labels come from the accuracy table; servers that are only simulated can't be run at all."""
    assert job(scenario(tmp_path), tmp_path / "run", []).can_validate
    simulated = job(write_scenario(tmp_path), tmp_path / "run", [])
    assert not simulated.can_validate
    with pytest.raises(InputError, match=r"validate: executors need a device for each server; give one to 'fast', 's"):
        validate(simulated, simulated.experiment())


def batch(number: int, late_ns: int, length_ns: int = 1_000_000) -> BatchRecord:
    return BatchRecord(0, number, 1, 1, 1.0, 0.0, 4, 0, 0, length_ns, length_ns + late_ns, late_ns)


def emulated_result(late_ns: int, **changes: Any) -> Result:
    found = record(request(0, 3, 1.0), ended_s=20, batches=tuple(batch(n, late_ns) for n in range(10)))
    label = {"mode": "executors", "engine": "emulated", "emulated_slowdowns": (10.0,)}
    return summary(found, **WINDOW, **label, **changes)


def pair(late_ns: int, **place: Any) -> ValidationRun:
    simulated = summary(record(request(0, 3, 1.0), ended_s=20), **WINDOW)
    return validation_run(simulated, emulated_result(late_ns), **place)


def test_a_result_says_how_late_ends_were_seen() -> None:
    found = emulated_result(20_000)
    assert found["lateness_s"] == pytest.approx({"p50": 2e-5, "p99": 2e-5, "mean_pass": 1e-3})
    assert "lateness    ends seen 0.02 ms late (p50)" in format_result(found)
    assert "beware      ends seen" in format_result(emulated_result(150_000))


def test_no_validation_on_emulated_devices_can_be_taken_for_one_on_real_ones(tmp_path: Path) -> None:
    saturated = pair(0, kind="saturated", backlog_growth={"simulated": 1.0, "executors": 1.0})
    found = validate_results([pair(0), saturated], Provenance.EMULATED)
    tables = [*errors_tables(found), *saturation_tables(found)]
    assert [table.title.endswith("(emulated x10)") for table in tables] == [True, True]
    folder = run_folder(tmp_path / "run", seeds=(0,), profiles=())
    write_json(folder / "validation.json", found)
    assert "[executors, emulated x10, " in report(gather(folder))
    simulated, real = (summary(record(request(0, 3, 1.0), ended_s=20), **WINDOW, **of) for of in ({}, REAL))
    tables = errors_tables(validate_results([validation_run(simulated, real)], Provenance.MEASURED))
    assert not any("emulated" in table.title for table in tables)
