"""A data set of the user's own in a scenario: named from the file, trained on, and noticed when it changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hw.networks.accuracy_table import Evaluation
from hw.networks.datasets import dataset_label
from kit.errors import InputError
from scenarios.files.scenario_reading import load_scenario, relative_paths
from scenarios.job.network_stages import load_measured
from slimsched.cli import main

SCENARIO = """
schema: slimsched.scenario/1
name: own
model:
  network: 'tests.scenarios.own_network:DigitsPerceptron'
  options: {features: 8}
  dataset: images
  training: {epochs: 1, batch: 32}
cluster: {servers: auto}
workload: {kind: poisson, rate_img_s: 30}
duration_s: 3
warmup_s: 0.5
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Some of scikit-learn's digits as grey PNG files, and a scenario beside them."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:500], digits.target[:500], strict=True)):
        place = tmp_path / "images" / ("test" if number % 4 == 3 else "train") / str(label) / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype(np.uint8)).save(place)
    path = tmp_path / "own.yaml"
    path.write_text(SCENARIO)
    return path


def test_a_folder_beside_the_scenario_is_trained_on(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its path is relative to the file; a changed image makes network and accuracy again."""
    loaded = load_scenario(scenario)
    assert loaded.model.dataset == str(scenario.parent / "images")
    assert relative_paths(loaded, scenario.parent / "runs").model.dataset == "../images"
    command = ["model", "train", str(scenario), "--out", str(scenario.parent / "run")]
    told = []
    for change in (False, False, True):
        if change:
            Image.new("L", (8, 8), 3).save(scenario.parent / "images" / "train" / "0" / "0.png")
        assert main(command) == 0
        told.append(capsys.readouterr().err)
    assert "model: begins" in told[0]
    assert "model: skipped, done before" in told[1]
    assert "accuracy: skipped, done before" in told[1]
    assert "model: its inputs have changed" in told[2]
    assert "accuracy: its inputs have changed" in told[2]


def test_an_accuracy_of_other_images_is_refused(scenario: Path) -> None:
    loaded, tuples = load_scenario(scenario), ((0.5, 0.5),)
    measured = Evaluation(tuples, np.zeros((100, 1), bool), "0", dataset_label(str(scenario.parent / "images")))
    assert load_measured(loaded, measured).classes == 10
    before = replace(measured, dataset="images@0123456789abcdef")
    with pytest.raises(InputError, match=r"own: model\.dataset: the accuracy was measured on images@0123.*evaluate"):
        load_measured(loaded, before)
