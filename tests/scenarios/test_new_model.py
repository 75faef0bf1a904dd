"""What may take the place of weights that serve, and what is refused in a line."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hw.networks.accuracy_table import Evaluation, PaperTable, save_accuracy
from hw.networks.architectures import SlimResNet
from hw.networks.network_files import ModelFile, save_model
from kit.checkpoint import header
from kit.errors import InputError
from scenarios.job.serve_stage import read_new_model
from tests.hw.tiny import TINY, tiny_model

TUPLES = tuple(product(TINY.widths, repeat=TINY.segments))


def table(version: str, **changes: Any) -> Evaluation:
    known = Evaluation(TUPLES, np.ones((100, len(TUPLES)), bool), version, "digits")
    return replace(known, **changes)


@pytest.fixture
def serving(tmp_path: Path) -> ModelFile:
    save_model(tmp_path / "serving.safetensors", tiny_model(), "tiny", {})
    return ModelFile(tmp_path / "serving.safetensors")


@pytest.fixture
def experiment(serving: ModelFile) -> Any:
    evaluation = table(header(serving.path)["hash"])
    cluster = SimpleNamespace(backend="local")
    return SimpleNamespace(accuracy=SimpleNamespace(evaluation=evaluation), scenario=SimpleNamespace(cluster=cluster))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Other weights of the same network, and their accuracies."""
    (tmp_path / "new").mkdir()
    found = tmp_path / "new" / "model.safetensors"
    torch.manual_seed(5)
    save_model(found, SlimResNet(TINY), "tiny", {})
    save_accuracy(found.with_name("accuracy.json"), table(header(found)["hash"]))
    return found


def refusal(path: Path, serving: ModelFile, experiment: Any) -> str:
    with pytest.raises(InputError) as found:
        read_new_model(path, serving, experiment)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_other_weights_with_their_accuracies_may_serve(path: Path, serving: ModelFile, experiment: Any) -> None:
    version, found = read_new_model(path, serving, experiment)
    assert version == found.hash == header(path)["hash"]


def test_a_wrong_file_is_told(path: Path, serving: ModelFile, experiment: Any) -> None:
    """Not there, cut off, of numbers that are none, of another network, or what serves already."""
    assert "these weights serve already" in refusal(serving.path, serving, experiment)
    assert "absent.safetensors" in refusal(path.with_name("absent.safetensors"), serving, experiment)
    cut, wider = path.with_name("cut.safetensors"), path.with_name("wider.safetensors")
    cut.write_bytes(path.read_bytes()[:-100])
    assert "cannot be read as safetensors" in refusal(cut, serving, experiment)
    save_model(wider, SlimResNet(replace(TINY, classes=TINY.classes + 1)), "tiny", {})
    assert "is of another network than what serves" in refusal(wider, serving, experiment)
    broken, found = tiny_model(), path.with_name("nan.safetensors")
    with torch.no_grad():
        next(broken.parameters()).view(-1)[0] = torch.nan
    save_model(found, broken, "tiny", {})
    assert "holds numbers that are not finite" in refusal(found, serving, experiment)


def test_its_own_accuracies_lie_beside(path: Path, serving: ModelFile, experiment: Any) -> None:
    beside, version = path.with_name("accuracy.json"), header(path)["hash"]
    for wrong in (table("0123"), PaperTable(TUPLES, (0.5,) * len(TUPLES), "digits")):
        save_accuracy(beside, wrong)
        assert f"accuracy.json: model: is not of {path} ({version})" in refusal(path, serving, experiment)
    save_accuracy(beside, table(version, dataset="others"))
    assert "must be digits, with the widths that serve" in refusal(path, serving, experiment)
    beside.unlink()
    assert "accuracy.json" in refusal(path, serving, experiment)


def test_who_has_no_weights_takes_none(path: Path, experiment: Any) -> None:
    assert "emulated devices serve no network" in refusal(path, None, experiment)  # type: ignore[arg-type]
