"""The whole job on the hosts of a Ray cluster, as a user runs it: three nodes of this machine, emulated devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.show.validation_table import validation_notes
from slimsched.cli import main
from tests.ray_nodes import RAY_HOSTS, RayNodes
from tests.scenarios.files import shorten_serving

pytestmark = [pytest.mark.workers, pytest.mark.ray, pytest.mark.slow]

ACCURACY = Path("scenarios/data/models/slimresnet18-paper.accuracy.json").resolve()
SCENARIO = """
schema: slimsched.scenario/1
name: three
model: {{accuracy: {accuracy}}}
cluster:
  backend: ray
  address: "{address}"
  servers:
    - {{name: fast, host: alpha, device: {{emulated: rtx-2080-ti, slowdown: 20}}}}
    - {{name: other, host: beta, device: {{emulated: rtx-2080-ti, slowdown: 20}}}}
    - {{name: slow, host: {host}, device: {{emulated: gtx-980-ti, slowdown: 20}}}}
  greedy: {{preload: all, idle_unload_s: null}}
workload: {{kind: poisson, rate_img_s: 100}}
calibration: {{allow_busy: true}}
compare: {{routers: [random, sticky], seeds: [0]}}
validate: {{routers: [random], seeds: [0], go_on: true}}
duration_s: 2
warmup_s: 0.5
"""


@pytest.fixture
def scenario(ray_hosts: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shorten_serving(monkeypatch)
    return write(tmp_path, ray_hosts)


def write(folder: Path, nodes: RayNodes, host: str = "gamma") -> Path:
    path = folder / "three.yaml"
    path.write_text(SCENARIO.format(accuracy=ACCURACY, address=nodes.address, host=host))
    return path


@pytest.mark.release
def test_run_command_does_the_main_job_on_all_ray_hosts(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links are measured and simulated, servers serve on their hosts, and the tables tell of their clocks."""
    assert main(["run", str(scenario), "--quiet"]) == 0
    folder = scenario.parent / "runs" / "three"
    links = json.loads((folder / "calibration" / "links.json").read_text())
    assert {(each["source"], each["destination"]) for each in links["links"]} == {
        (one, other) for one in RAY_HOSTS for other in RAY_HOSTS if one != other
    }
    validation = json.loads((folder / "validation.json").read_text())
    for pair in validation["pairs"]:
        images = pair["executors"]["images"]
        assert images["completed"] == images["arrived"] > 50
    clocks = {clock["server"]: clock for clock in validation["clocks"]}
    assert set(clocks) == {"fast", "other", "slow"}
    assert all(abs(clock["offset_s"]) <= clock["error_s"] < 0.05 for clock in clocks.values())  # it is one machine
    assert any(note.startswith("Clocks of other hosts compared with") for note in validation_notes(validation))
    assert main(["replay", str(folder)]) == 0
    assert main(["cluster", "check", str(scenario), "--logs", "logs"]) == 0
    assert main(["run", str(scenario)]) == 0
    assert "validate: skipped, done before" in capsys.readouterr().err


def test_run_with_an_unknown_host_is_refused_before_any_measurement(
    scenario: Path, ray_hosts: RayNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cluster check` reports the same."""
    write(scenario.parent, ray_hosts, host="delta")
    for command in ("run", "cluster check"):
        assert main([*command.split(), "three.yaml", "--quiet"]) == 2
        streams = capsys.readouterr()
        assert "no host 'delta'" in streams.out + streams.err
        assert "there are alpha, beta, gamma" in streams.out + streams.err
    assert not (scenario.parent / "runs" / "three" / "calibration").exists()
