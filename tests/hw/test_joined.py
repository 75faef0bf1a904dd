"""Several models in one file: each is what it is alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrate.measurement_plan import costs_of
from hw.networks.architectures import SLIMRESNETS as RESNETS
from hw.networks.architectures import SlimResNet
from hw.networks.datasets import Dataset
from hw.networks.model_families import JoinedModels, Part
from hw.networks.network_files import ModelFile, Network, joined, save_model
from hw.networks.network_training import evaluate
from kit.errors import InputError
from policies.vocabulary import IMAGE
from slimsched.cli import main

LAST, CPU = torch.channels_last, torch.device("cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFile]:
    """A small ResNet that takes 32 pixels, and a Transformer that takes 16; each with weights of its own."""
    folder, found = tmp_path_factory.mktemp("joined"), {}
    config = replace(RESNETS["digit-pairs"], image_size=32, base_channels=8, channels_per_group=1)
    torch.manual_seed(5)
    made = {"cnn": (SlimResNet(config), "small"), "vit": (Network("slimvit-pairs").build(), "slimvit-pairs")}
    for name, (network, label) in made.items():
        path = folder / f"{name}.safetensors"
        save_model(path, network, label, {})
        found[name] = ModelFile(path)
    return found


@pytest.fixture(scope="module")
def model(files: dict[str, ModelFile]) -> JoinedModels:
    return joined(files, "test")[0].eval()


def own(files: dict[str, ModelFile], model: JoinedModels, width: float) -> tuple[str, float]:
    """The model that a width is of, and what that calls it."""
    name, _, number = model.spec.name_of(width).partition(" ")
    return name, float(number)


def test_joined_model_has_the_keys_and_labels_of_its_models(files: dict[str, ModelFile], model: JoinedModels) -> None:
    spec = model.spec
    assert (spec.segments, spec.input_shape, spec.classes) == (4, (1, 32, 32), 100)
    assert spec.labels[:1] + spec.labels[-2:] == ("cnn 0.125", "vit 0.75", "vit 1")
    assert (spec.nests, spec.models) == ((4, 4), (("cnn", 4), ("vit", 4)))
    assert len(spec.work_keys()) == 2 * (4 + 3 * 16)
    assert len(spec.tuples()) == 2 * 4**4
    for key in spec.work_keys():
        names = {own(files, model, width)[0] for width in key[1:] if width != IMAGE}
        assert len(names) == 1, "no key mixes two models"


def test_each_answers_as_it_does_alone(files: dict[str, ModelFile], model: JoinedModels) -> None:
    """Of images that are twice as large as its own the Transformer sees every other pixel."""
    alone = {name: file.load()[0] for name, file in files.items()}
    x = torch.randn(3, 1, 32, 32)
    for widths in (model.spec.tuples()[7], model.spec.tuples()[256 + 99]):
        (name,) = {own(files, model, width)[0] for width in widths}
        seen = x if name == "cnn" else x[..., ::2, ::2]
        expected = alone[name](seen, tuple(own(files, model, width)[1] for width in widths))
        assert torch.equal(model(x, widths), expected)


def test_an_instance_holds_its_own_models_weights_alone(
    files: dict[str, ModelFile], model: JoinedModels, tmp_path: Path
) -> None:
    """From memory and from the file; it refuses the other model's widths."""
    path = tmp_path / "both.safetensors"
    save_model(path, model, "both", {})
    opened, _ = ModelFile(path).load()
    assert opened.spec == model.spec
    empty, alone = ModelFile(path).build(), {name: file.load()[0] for name, file in files.items()}
    for width in (model.spec.widths[1], model.spec.widths[-1]):
        name, its = own(files, model, width)
        for segment in (1, 3):
            previous = model.spec.widest_input(segment, width)
            shape = model.activation_shape(segment - 1, previous) if segment > 1 else model.spec.input_shape
            x = torch.randn(2, *shape)
            expected = model.forward_segment(x, segment, width, previous)
            for made in (model.instance(segment, width), empty.instance(segment, width, path)):
                there = made.to(CPU, torch.float32, LAST)
                assert there.held_bytes == model.instance_bytes(segment, width)
                assert there.held_bytes == alone[name].instance_bytes(segment, its)
                assert torch.allclose(there.run(x, width, previous), expected, atol=1e-5)
                with pytest.raises(ValueError, match="of another model"):
                    there.run(x, model.spec.widths[0 if name == "vit" else -1], previous)


def test_costs_and_accuracies_are_each_models_own(files: dict[str, ModelFile], model: JoinedModels) -> None:
    costs, alone = costs_of(model, "both", "0"), {name: costs_of(f.load()[0], name, "0") for name, f in files.items()}
    for (segment, width, previous), cost in costs.keys.items():
        name, its = own(files, model, width)
        before = IMAGE if previous == IMAGE else own(files, model, previous)[1]
        assert cost == alone[name].keys[segment, its, before]
    images = np.random.default_rng(0).normal(size=(2, *model.spec.input_shape)).astype(np.float32)
    data = Dataset("any", images, np.arange(2), images, np.arange(2), model.spec.classes)
    found = evaluate(model, data)
    assert found.tuples == tuple(model.spec.tuples())
    one = evaluate(files["cnn"].load()[0], data)
    assert np.array_equal(found.correct[:, :256], one.correct)


def test_models_that_differ_in_classes_are_refused() -> None:
    parts = tuple(Part(name, name, Network(name).build()) for name in ("digits", "digit-pairs"))
    with pytest.raises(InputError, match="digits: 1 x 8 x 8 in 4 segments, 10 classes, digit-pairs: 1 x 16 x 16 in 4"):
        JoinedModels(parts)


def test_the_command_writes_a_file_that_commands_take(
    files: dict[str, ModelFile], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, named = tmp_path / "two.safetensors", ",".join(f"{name}={file.path}" for name, file in files.items())
    assert main(["model", "join", named, "--out", str(path)]) == 0
    assert "4 segments at each of cnn 0.125, " in capsys.readouterr().out
    profile = tmp_path / "gpu.yaml"
    assert main(["profile", "synth", "T4", "--network", str(path), "--out", str(profile)]) == 0
    assert "nests: [4, 4]" in profile.read_text()
