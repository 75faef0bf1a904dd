"""What stands in `examples/` is what others read: our own reader, systemd, hadolint and Ray's schema."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import slimsched
from hw.frontend.inference_protocol import Answer, Served
from hw.frontend.router_link import ServerState, Status
from hw.frontend.traffic_metrics import Metrics
from policies.ppo.ppo_router import PPORouter
from scenarios.experiment.scenario_building import load_experiment
from scenarios.files.scenario_reading import load_scenario
from slimsched.launching import app_of
from tests.test_docs import ROOT

THREE = ROOT / "examples" / "three-hosts"
SERVING = ROOT / "examples" / "serving"
UNTRIED = {"scenario.yaml", "slimsched-node.service", "Containerfile", "ray-up.yaml"}
UNTRIED_UNITS = {"slimsched.service", "slimsched.socket"}


@pytest.mark.parametrize(
    "path", [*(THREE / name for name in sorted(UNTRIED)), *(SERVING / name for name in sorted(UNTRIED_UNITS))]
)
def test_example_file_that_was_not_run_states_that_in_its_first_lines(path: Path) -> None:
    head = " ".join(path.read_text(encoding="utf-8").splitlines()[:3])
    assert re.search(r"not run|not built|Untried", head)


@pytest.mark.parametrize("name", ["scenario", "emulated"])
def test_scenarios_are_read(name: str) -> None:
    scenario = load_scenario(THREE / f"{name}.yaml")
    assert scenario.cluster.backend == "ray"
    assert [server.host for server in scenario.cluster.named_servers] == ["alpha", "beta", "gamma"]
    assert scenario.cluster.beyond_loopback is (name == "scenario")


def test_the_emulated_scenario_has_all_that_it_names(tmp_path: Path) -> None:
    text = (THREE / "emulated.yaml").read_text(encoding="utf-8")
    linked = re.sub(r"slowdown: 20}}", "slowdown: 20}, link: 10gbe}", text)
    assert linked.count("link: 10gbe") == 3
    path = tmp_path / "scenario.yaml"
    path.write_text(linked.replace("../..", str(ROOT)), encoding="utf-8")
    experiment = load_experiment(path, tmp_path)
    assert [server.name for server in experiment.cluster.servers] == ["alpha", "beta", "gamma"]


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "slimsched-node.service"
    text = (THREE / unit.name).read_text(encoding="utf-8")
    assert "/opt/slimsched/bin/ray start --block" in text
    unit.write_text(text.replace("/opt/slimsched/bin/ray", shutil.which("true") or "/bin/true"), encoding="utf-8")
    assert _verified(unit) == ""
    unit.write_text(text.replace("Restart=always", "Restart=perhaps"), encoding="utf-8")
    assert "perhaps" in _verified(unit)


def test_the_server_is_a_unit_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "slimsched.service"
    shutil.copy(SERVING / "slimsched.socket", tmp_path)
    text = (SERVING / unit.name).read_text(encoding="utf-8")
    (words,) = re.findall("^ExecStart=/opt/slimsched/bin/slimsched (serve .*)$", text, re.MULTILINE)
    app_of("serve").parse_args(words.split()[1:], exit_on_error=False)
    unit.write_text(text.replace("/opt/slimsched/bin/slimsched", shutil.which("true") or "/bin/true"), encoding="utf-8")
    assert _verified(unit) == ""
    unit.write_text(unit.read_text(encoding="utf-8").replace("Type=notify", "Type=notified"), encoding="utf-8")
    assert "notified" in _verified(unit)


def test_the_dashboard_asks_for_what_is_counted() -> None:
    """Each name that a panel asks for, and each of ours but two; panels lie side by side."""
    nvml_device = json.loads((SERVING / "dashboard.json").read_text(encoding="utf-8"))
    told = Status(True, 1, 1, 1, 1.0, 0.5, 1, (ServerState("a", True, 1, 1),))
    served = Served("tiny", (1, 8, 8), 3, 0, (), (), 16)
    metrics = Metrics(lambda: served, lambda: 0, lambda: told, lambda: 0.0)
    metrics.requests.labels("200"), metrics.refused.labels("full"), metrics.failed.labels("deadline")
    answers = [Answer(1, (1.0,), b"", "1", 1)]
    metrics.note_answered(0, answers, 0.1, 0.0)
    metrics.note_compared(answers, answers)
    metrics.version_failed.labels("1")
    counted = set(re.findall(r"^(slimsched_\w+)", metrics.text().decode(), re.MULTILINE))
    texts = [target["expr"] for panel in nvml_device["panels"] for target in panel["targets"]]
    asked = set(re.findall(r"slimsched_\w+", " ".join(texts)))
    assert asked <= counted
    ours = {name for name in counted if not name.endswith(("_sum", "_count"))}
    assert ours - asked == {"slimsched_images_arrived_total", "slimsched_router_collections_total"}
    assert all(text.count("slimsched_") == text.count('{job="$job"}') for text in texts)
    places = [tuple(panel["gridPos"][each] for each in "xywh") for panel in nvml_device["panels"]]
    assert len({place[:2] for place in places}) == len(places)
    assert {(x % 12, y % 8, w, h) for x, y, w, h in places} == {(0, 0, 12, 8)}


def _verified(unit: Path) -> str:
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    return "\n".join(line for line in found.stderr.splitlines() if unit.name in line)


def test_the_unit_keeps_the_token_to_itself() -> None:
    text = (THREE / "slimsched-node.service").read_text(encoding="utf-8")
    assert "RAY_AUTH_MODE=token" in text
    assert "RAY_AUTH_TOKEN_PATH=%d/token" in text
    assert "LoadCredential=token:" in text
    assert "RAY_AUTH_TOKEN=" not in text


def test_the_container_is_built_of_what_is_there() -> None:
    """Whole packages of the project, as a user other than root; by hadolint where it is."""
    path = THREE / "Containerfile"
    steps = [
        line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if re.match("[A-Z]", line)
    ]
    words = [word for word, _ in steps]
    assert set(words) == {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "ENTRYPOINT"}
    assert (words[0], words[-1], json.loads(steps[-1][1])[:3]) == ("FROM", "ENTRYPOINT", ["ray", "start", "--block"])
    assert words.index("USER") > max(index for index, word in enumerate(words) if word == "RUN")
    copied = {name for word, rest in steps if word == "COPY" for name in rest.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    wheel = re.search(r"packages = (\[.*\])", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert wheel is not None
    assert set(json.loads(wheel[1])) <= copied
    if (hadolint := shutil.which("hadolint")) is not None:
        found = subprocess.run([hadolint, str(path)], capture_output=True, text=True, timeout=60)
        assert found.returncode == 0, found.stdout


def test_ray_takes_the_cluster_file() -> None:
    ray, jsonschema = find_spec("ray"), find_spec("jsonschema")
    if ray is None or jsonschema is None or ray.origin is None:
        pytest.skip("Ray is not installed")
    from jsonschema import Draft7Validator

    schema = json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text(encoding="utf-8"))
    document = yaml.safe_load((THREE / "ray-up.yaml").read_text(encoding="utf-8"))
    assert [error.message for error in Draft7Validator(schema).iter_errors(document)] == []
    assert list(Draft7Validator(schema).iter_errors({**document, "min_workers": 2}))
    starts = [line for key in ("head", "worker") for line in document[f"{key}_start_ray_commands"] if " start " in line]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in line and "--labels=host=" in line for line in starts)


def _trainer() -> Any:
    spec = importlib.util.spec_from_file_location("train_router", ROOT / "examples" / "train_router.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_router"] = module
    spec.loader.exec_module(module)
    return module


def test_the_trainers_advantages_are_sums_of_what_follows() -> None:
    trainer = _trainer()
    gamma, lam = trainer.GAMMA, trainer.LAMBDA
    rng = torch.Generator().manual_seed(0)
    values, rewards, last = (torch.rand(shape, generator=rng) for shape in ((6, 2), (6, 2), (2,)))
    dones = torch.zeros(6, 2)
    dones[2, 0] = 1
    found = trainer.advantages_of(values, rewards, dones, last)
    following = torch.cat([values[1:], last[None]])
    errors = rewards + gamma * following * (1 - dones) - values
    for env in range(2):
        for step in range(6):
            wanted, weight = 0.0, 1.0
            for later in range(step, 6):
                wanted += weight * float(errors[later, env])
                if dones[later, env]:
                    break
                weight *= gamma * lam
            assert float(found[step, env]) == pytest.approx(wanted, abs=1e-5)


def test_the_trainer_refuses_less_than_an_update() -> None:
    with pytest.raises(SystemExit, match="0 decisions are less than one update's, 1024"):
        _trainer().main(0)


@pytest.mark.slow
def test_router_saved_by_the_example_trainer_has_the_trained_logits(tmp_path: Path) -> None:
    """The example has at most 60 lines of code."""
    trainer = _trainer()
    trainer.ENVIRONMENTS, trainer.STEPS, trainer.EPOCHS = 2, 16, 1
    actor, curve = trainer.learn(64, 0)
    assert len(curve) == 2
    path = slimsched.save_router("paper", actor, tmp_path / "x.safetensors", deterministic=True)
    seen = torch.rand(11)
    assert PPORouter.load(path).logits(seen.numpy()) == pytest.approx(actor(seen).detach().numpy(), abs=1e-5)
    code = (ROOT / "examples" / "train_router.py").read_text(encoding="utf-8")
    ours = code.partition("the 60 lines\n")[2].partition("# ----")[0].splitlines()
    assert sum(bool(line.strip()) and '"""' not in line for line in ours) <= 60
