"""The whole job on the hosts of a Ray cluster, as a user runs it: three nodes of this machine, emulated devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slimsched.cli import main
from tests.ray_nodes import RAY_HOSTS, RayNodes

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
validate: {{routers: [random, sticky], seeds: [0], go_on: true}}
duration_s: 3
warmup_s: 0.5
"""


@pytest.fixture
def scenario(ray_hosts: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path, ray_hosts)


def write(folder: Path, nodes: RayNodes, host: str = "gamma") -> Path:
    path = folder / "three.yaml"
    path.write_text(SCENARIO.format(accuracy=ACCURACY, address=nodes.address, host=host))
    return path


def test_one_command_does_the_main_job_on_all_hosts(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links are measured and simulated, servers serve on their hosts, and the tables tell of their clocks."""
    assert main(["run", str(scenario), "--quiet"]) == 0
    folder = scenario.parent / "runs" / "three"
    links = json.loads((folder / "calibration" / "links.json").read_text())
    assert {(each["source"], each["destination"]) for each in links["links"]} == {
        (one, other) for one in RAY_HOSTS for other in RAY_HOSTS if one != other
    }
    validation = json.loads((folder / "validation.json").read_text())
    for pair in validation["pairs"]:
        images = pair["hardware"]["images"]
        assert images["completed"] == images["arrived"] > 100
    clocks = {clock["server"]: clock for clock in validation["clocks"]}
    assert set(clocks) == {"fast", "other", "slow"}
    assert all(abs(clock["offset_s"]) <= clock["error_s"] < 0.05 for clock in clocks.values())  # it is one machine
    assert "Clocks of other hosts beside the router's" in capsys.readouterr().out
    assert main(["replay", str(folder)]) == 0
    assert main(["cluster", "check", str(scenario), "--logs", "logs"]) == 0
    assert main(["run", str(scenario)]) == 0
    assert "validate: skipped, done before" in capsys.readouterr().err


def test_what_is_wrong_with_a_host_is_one_line(
    scenario: Path, ray_hosts: RayNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured; exit code 2, as `cluster check` has it, too. A process of its own ends without a
    traceback."""
    write(scenario.parent, ray_hosts, host="delta")
    command = [sys.executable, "-m", "slimsched", "run", "three.yaml"]
    done = subprocess.run(command, cwd=scenario.parent, capture_output=True, text=True)
    checked, streams = main(["cluster", "check", "three.yaml"]), capsys.readouterr()
    for code, said in ((done.returncode, done.stdout + done.stderr), (checked, streams.out + streams.err)):
        assert code == 2, said
        assert "no host 'delta'" in said
        assert "there are alpha, beta, gamma" in said
        assert "Traceback" not in said
    assert not (scenario.parent / "runs" / "three" / "calibration").exists()
