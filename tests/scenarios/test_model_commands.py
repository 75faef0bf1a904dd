"""`slimsched model ...`: training, evaluation and checking from the command line, and what a user can get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.study.paper_table import paper_table
from hw.networks.accuracy_table import load_accuracy, save_accuracy
from hw.networks.network_checks import RULES
from hw.networks.network_files import Network, save_model
from slimsched.cli import main
from tests.scenarios.given_network import trained

SCENARIO = """
schema: slimsched.scenario/1
name: small
model: {model}
cluster: {{servers: auto}}
workload: {{kind: poisson, rate_img_s: 30}}
duration_s: 10
"""


def scenario(folder: Path, model: str) -> Path:
    path = folder / "small.yaml"
    path.write_text(SCENARIO.format(model=model))
    return path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


def test_train_then_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training ends with the table of all tuples; given again, it does not repeat itself."""
    network = "{network: 'tests.scenarios.own_network:DigitsPerceptron', options: {features: 8}, dataset: digits}"
    path = scenario(tmp_path, network)
    flags = [str(path), "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["model", "train", *flags, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["tuples"]) == 4
    table = load_accuracy(Path(found["accuracy"]))
    assert table.top1()[1.0, 1.0] == found["tuples"][-1]["top1"] > 0.3
    assert list((tmp_path / "run" / "training").glob("model-*/events*"))  # TensorBoard
    assert main(["model", "train", *flags]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4 + 4


def test_networks_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """A good one is told so; one that breaks a rule has exit code 1 and shows where."""
    assert main(["model", "check", 'tests.scenarios.own_network:DigitsPerceptron {"features": 8}']) == 0
    assert capsys.readouterr().out.count("kept") == len(RULES)
    broken = ["model", "check", 'tests.hw.test_networks:Pooled {"fault": "cost"}']
    assert main(broken) == 1
    assert "expected (macs, params" in capsys.readouterr().out
    assert "not a JSON object" in refused(["model", "check", "tests.hw.test_networks:Pooled [1]"], capsys)
    assert "did you mean 'digits'" in refused(["model", "check", "digit"], capsys)


def test_a_given_network_is_slimmed_and_taken_by_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What torch.save wrote, from one command to the table of all tuples; the checkpoint of tuning is gone."""
    weights, path = tmp_path / "given.pt", tmp_path / "slim.safetensors"
    state = {f"module.{name}": tensor for name, tensor in trained().state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, weights)
    slim = ["model", "slim", "tests.scenarios.given_network:Plain", "--weights", str(weights), "--images", "digits"]
    assert main([*slim, "--widths", "0.5,1", "--minutes", "0.1", "--out", str(path), "--quiet", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["given_top1"] > 0.9
    assert [each["width"] for each in found["widths"]] == [0.5, 1.0]
    assert min(each["top1"] for each in found["widths"]) > 0.85
    assert sorted(tmp_path.iterdir()) == [weights, path]
    assert main(["model", "check", str(path)]) == 0
    assert capsys.readouterr().out.count("kept") == len(RULES)
    brought = scenario(tmp_path, f"{{checkpoint: {path.name}, dataset: digits}}")
    assert main(["model", "train", str(brought), "--out", str(tmp_path / "run"), "--quiet", "--json", "-"]) == 0
    table = {tuple(row["widths"]): row["top1"] for row in json.loads(capsys.readouterr().out)["tuples"]}
    for each in found["widths"]:
        assert table[(each["width"],) * len(next(iter(table)))] == pytest.approx(each["top1"], abs=0.005)


def digits_scenario(folder: Path, more: str = "") -> Path:
    save_model(folder / "model.safetensors", Network("digits").build(), "digits", {})
    return scenario(folder, f"{{network: digits, dataset: digits, checkpoint: model.safetensors{more}}}")


def test_evaluation_looks_at_the_network_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_accuracy(tmp_path / "a.json", paper_table())
    path = digits_scenario(tmp_path, ", accuracy: a.json")
    flags = [str(path), "--out", str(tmp_path / "run"), "--quiet", "--json", "-"]
    assert main(["model", "train", *flags]) == 0
    found = json.loads(capsys.readouterr().out)["tuples"]
    assert max(row["top1"] for row in found) < 0.5  # the paper's are above 0.7


def test_an_error_in_a_users_network_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, with the network's name and the place in its file; no traceback."""
    network = Network("tests.scenarios.own_network:Fragile")
    save_model(tmp_path / "model.safetensors", network.build(), network.label, {})
    path = scenario(tmp_path, f"{{network: '{network.name}', dataset: digits, checkpoint: model.safetensors}}")
    assert main(["model", "train", str(path), "--out", str(tmp_path / "run"), "--quiet"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"slimsched: {network.name}: RuntimeError: too large a batch (")
    assert said.count("\n") == 1
