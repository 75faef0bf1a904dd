"""An ordinary network made slimmable: the same at full width, the given one with channels cut below, refused if not."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torchvision.models import mobilenet_v2
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from hw.networks import network_conversion
from hw.networks.datasets import Dataset, load_dataset
from hw.networks.network_checks import broken_rules
from hw.networks.network_conversion import OWN, USUAL, converted, fitted, made_slimmable, recalibrate
from hw.networks.network_files import ModelFile, load_tensors, model_hash, save_model, save_tensors
from hw.networks.network_tracing import UnknownLayerError, structure_of
from hw.networks.network_training import top1
from hw.networks.slimmable import SlimmedNetwork
from hw.networks.third_party_networks import GivenNetwork
from kit.errors import InputError, WorkError
from tests.scenarios.given_network import trained

WIDTHS = (0.25, 0.5, 1.0)
SHAPE = (3, 16, 16)


class SmallResNet(ResNet):  # type: ignore[misc]
    """With few channels, and a stem for small images."""

    def __init__(self, base: int = 8, block: type[BasicBlock | Bottleneck] = BasicBlock) -> None:
        super().__init__(block, [1, 2, 1, 1], num_classes=7)
        self.inplanes = base
        self.conv1, self.bn1 = nn.Conv2d(3, base, 3, padding=1, bias=False), nn.BatchNorm2d(base)
        self.maxpool = nn.Identity()
        for stage, blocks in enumerate((1, 2, 1, 1)):
            made = self._make_layer(block, base << stage, blocks, stride=1 if stage == 0 else 2)
            setattr(self, f"layer{stage + 1}", made)
        self.fc = nn.Linear((base << 3) * block.expansion, 7)


def stack(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Blocks of convolutions with poolings; the head sees every pixel."""
    layers: list[nn.Module] = []
    for before, after in ((3, 8), (8, 16), (16, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), norm(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if after != before else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 2 * 2, 24), nn.ReLU(), nn.Dropout(), nn.Linear(24, 7))


def small_mobilenet_v3() -> nn.Module:
    stages = [(16, 3, 16, 16, True, "RE", 2), (16, 3, 32, 24, False, "RE", 2), (24, 5, 48, 24, True, "HS", 1),
              (24, 3, 48, 40, True, "HS", 2)]  # fmt: skip
    module: nn.Module = MobileNetV3([InvertedResidualConfig(*stage, 1, 1.0) for stage in stages], 64, num_classes=7)
    return module


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet": SmallResNet,
    "bottlenecks": lambda: SmallResNet(8, Bottleneck),
    "mobilenet v2": lambda: mobilenet_v2(num_classes=7, width_mult=0.25),
    "mobilenet v3": small_mobilenet_v3,
    "stack": lambda: stack(nn.BatchNorm2d),
    "stack with GroupNorm": lambda: stack(lambda channels: nn.GroupNorm(channels // 2, channels)),
    "stack without norms": lambda: stack(lambda _: nn.Identity()),
}


def shaken(module: nn.Module) -> nn.Module:
    """With weights and statistics like those of a trained network: no channel is as another."""
    torch.manual_seed(1)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d | nn.GroupNorm):
                part.weight.uniform_(0.5, 1.5)
                part.bias.normal_(std=0.2)
            if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None and part.running_var is not None:
                part.running_mean.normal_(std=0.1)
                part.running_var.uniform_(0.5, 2.0)
    return module.eval()


@pytest.fixture(params=NETWORKS)
def given(request: pytest.FixtureRequest) -> nn.Module:
    return shaken(NETWORKS[request.param]())


def images(count: int = 5) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(0))


def slim(module: nn.Module) -> SlimmedNetwork:
    return made_slimmable(module, images(), WIDTHS)


# ---------------------------------------------------------------------------------------------------- the same function


def test_at_full_width_it_computes_what_the_given_one_does(given: nn.Module, tmp_path: Path) -> None:
    """Sorted, cut into segments, and read from its file, without the name of any code."""
    model = slim(given)
    save_model(tmp_path / "slim.safetensors", model, "slimmed", {})
    read, _ = ModelFile(tmp_path / "slim.safetensors").load()
    with torch.no_grad():
        wanted, found = given(images()), read(images(), (1.0,) * model.spec.segments)
    assert model.spec.segments == 4
    assert float((wanted - found).abs().max()) < 1e-4 * float(wanted.abs().max())


@pytest.mark.parametrize("name", ["resnet", "mobilenet v3", "stack with GroupNorm"])
def test_slimmed_network_breaks_no_rule(name: str, tmp_path: Path) -> None:
    """BatchNorm, squeeze and excitation, depthwise kernels and GroupNorm, each as executors serve it."""
    model = made_slimmable(shaken(NETWORKS[name]()), images(), (0.5, 1.0))
    save_model(tmp_path / "slim.safetensors", model, "slimmed", {})
    assert broken_rules(ModelFile(tmp_path / "slim.safetensors")) == {}


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_narrower_one_is_the_given_network_with_channels_cut(width: float, block: type[BasicBlock]) -> None:
    """Torchvision's own network of that size, filled with leading slices, says the same."""
    model, narrow = slim(shaken(SmallResNet(16, block))), SmallResNet(round(16 * width), block).eval()
    weights = model.state_dict()
    own = narrow.state_dict()
    for name, tensor in own.items():
        if name.endswith("num_batches_tracked"):
            continue
        path, _, last = name.rpartition(".")
        wide = weights[f"{path.replace('.', '/')}/{last.removeprefix('running_')}"]
        wide = wide[-1, -1] if last.startswith("running_") else wide
        tensor.copy_(wide[tuple(map(slice, tensor.shape))])
    with torch.no_grad():
        torch.testing.assert_close(model(images(), (width,) * 4), narrow(images()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hooked", ["pruned", "weight_norm", "spectral_norm"])
def test_weights_that_a_hook_makes_are_what_it_makes(hooked: str) -> None:
    """A network whose `weight` is not a parameter: pruned, or normed the old way."""
    module = shaken(stack(nn.BatchNorm2d))
    by_hook: dict[str, Callable[[nn.Module], object]] = {
        "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),  # type: ignore[no-untyped-call]
        "weight_norm": nn.utils.weight_norm,
        "spectral_norm": nn.utils.spectral_norm,
    }
    by_hook[hooked](module.get_submodule("0"))
    module.eval()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        wanted, model = module(images()), slim(module)
        torch.testing.assert_close(model(images(), (1.0,) * model.spec.segments), wanted, rtol=1e-4, atol=1e-5)


def test_the_channels_that_count_most_come_first() -> None:
    """A channel that nobody hears, or that says nothing, is cut first."""
    module = stack(nn.BatchNorm2d)
    own = module.state_dict()
    own["4.weight"][:, 2] = 0
    own["1.weight"][5] = 0
    model = slim(module.eval())
    lost = {tuple(own["0.weight"][channel].flatten().tolist()) for channel in (2, 5)}
    assert {tuple(row.flatten().tolist()) for row in model.state_dict()["0/weight"][-2:]} == lost


def test_groups_of_channels_stay_together() -> None:
    """GroupNorm has two channels a group at every width, and the same two."""
    module = stack(lambda channels: nn.GroupNorm(channels // 2, channels)).eval()
    pairs = {tuple(pair.flatten().tolist()) for pair in module.state_dict()["0.weight"].view(-1, 2, 27)}
    found = slim(module).state_dict()["0/weight"].unflatten(0, (-1, 2))
    assert {tuple(pair.flatten().tolist()) for pair in found} == pairs


def test_a_residual_network_is_cut_between_its_stages() -> None:
    structure = structure_of(SmallResNet().eval(), SHAPE, WIDTHS)
    assert [segment[0].name for segment in structure.segments] == [
        "conv1", "layer2.0.conv1", "layer3.0.conv1", "layer4.0.conv1"
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- statistics


def test_statistics_are_those_of_the_key() -> None:
    """In the first segment all images come alike: served, it computes what learning by the same batch does."""
    model = slim(shaken(SmallResNet()))
    batch = images(64)
    before = {key: table.clone() for key, table in model.state_dict().items()}
    recalibrate(model, batch.numpy(), seed=0)
    for width in WIDTHS:
        with torch.no_grad():
            served = model.eval().forward_segment(batch, 1, width, 0.0)
            learned = model.train().forward_segment(batch, 1, width, 0.0)
        torch.testing.assert_close(served, learned, rtol=1e-3, atol=1e-4)
    table = model.state_dict()["layer2/0/bn2/mean"]  # (previous widths, widths, channels)
    assert not torch.allclose(table[0, 0, :4], table[1, 0, :4])
    assert not torch.allclose(table[2, 0, :4], table[2, 1, :4])
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.rpartition("/")[2] for name in changed} == {"mean", "var"}


# ------------------------------------------------------------------------------------------------------ what is refused


class Odd(nn.Module):
    """With something that can't be made slimmable."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=4 if fault == "groups" else 1)
        self.act = nn.ReLU(inplace=fault == "in place")
        self.head = nn.Linear(16 if fault == "cat" else 8, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y = self.second(self.act(x))
        if self.fault == "twice":
            y = self.second(y)
        if self.fault == "values" and x.sum() > 0:
            y = y + 1
        if self.fault == "number":
            y = y + 3.0
        if self.fault == "in place":
            y = y + x
        if self.fault == "cat":
            y = torch.cat([x, y], 1)
        rows = F.avg_pool2d(y, y.size()[3]).view(y.size(0), -1) if self.fault == "size" else y.mean((2, 3))
        found: Tensor = self.head(rows)
        return found


@pytest.mark.parametrize(
    "fault, told",
    [
        ("groups", "second: a convolution of 4 groups"),
        ("twice", "used twice"),
        ("values", "can't follow it"),
        ("number", "of two activations"),
        ("cat", r"cat \(cat\) is not known"),
        ("in place", "compute something else"),
    ],
)
def test_network_that_cannot_be_slimmed_is_refused_with_the_cause(fault: str, told: str) -> None:
    with pytest.raises(UnknownLayerError, match=told):
        slim(Odd(fault).eval())
    for whole in ("", "size"):
        slim(Odd(whole).eval())


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d | {"widths": [0.5]},
        lambda d: d | {"groups": []},
        lambda d: d["segments"][0][0].update(kind="exec") or d,
        lambda d: d["segments"][0][0].update(inputs=[99]) or d,
        lambda d: d["segments"][0][0].update(group=99) or d,
        lambda d: d["segments"][0][0].update(kernel=[4096, 4096]) or d["groups"][1].update(count=1 << 20) or d,
        lambda d: d["segments"][1][0].update(name=d["segments"][0][0]["name"]) or d,
        lambda d: [],
    ],
)
def test_a_header_that_makes_no_sense_is_refused(change: Callable[[dict[str, object]], object], tmp_path: Path) -> None:
    """Whatever stands in a file: nothing is run, nothing large is made, and it is told in a line."""
    save_model(tmp_path / "slim.safetensors", slim(shaken(SmallResNet())), "slimmed", {})
    tensors, metadata = load_tensors(tmp_path / "slim.safetensors", "slimsched.model/1")
    structure = json.dumps(change(json.loads(metadata["structure"])))
    save_tensors(tmp_path / "bad.safetensors", tensors, metadata | {"structure": structure})
    with pytest.raises(InputError, match="structure: not a model configuration"):
        ModelFile(tmp_path / "bad.safetensors").load()


# -------------------------------------------------------------------------------------------------- images and the work


LEVELS = (100.0, 120.0, 140.0, 255.0)


class Prober(nn.Module):
    """Knows a class by its pixels' level, where images are normalised as it learned."""

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.levels = (torch.tensor(LEVELS) / 255 - mean) / deviation

    def forward(self, x: Tensor) -> Tensor:
        return -(x.mean((1, 2, 3))[:, None] - self.levels).abs()


def levels() -> Dataset:
    """400 grey images of four even levels, one of which is white."""
    labels = torch.arange(400) % 4
    pixels = torch.tensor(LEVELS)[labels][:, None, None, None].expand(-1, 1, 4, 4)
    mean, deviation = pixels.mean(), pixels.std(correction=0)
    scaled = ((pixels - mean) / deviation).numpy()
    parts = (scaled, labels.numpy(), scaled, labels.numpy())
    return Dataset("levels", *parts, 4, (float(mean),), (float(deviation),))


@pytest.mark.parametrize("mean, deviation, name", [(0.5, 0.5, "pixels from -1 to 1"), (0.0, 1.0, "pixels from 0 to 1")])
def test_the_normalisation_that_it_learned_with_is_found(mean: float, deviation: float, name: str) -> None:
    given, found = fitted(Prober(mean, deviation), levels(), "x")
    assert found == name
    assert top1(given, levels()) == 1.0


class Bright(nn.Module):
    """Tells white from black, however they are normalised around 0."""

    def forward(self, x: Tensor) -> Tensor:
        light = x.mean((1, 2, 3))
        return torch.stack((-light, light), 1)


def test_of_normalisations_by_which_it_knows_as_much_the_usual_is_taken() -> None:
    labels = np.arange(200) % 2
    images = (2 * labels - 1).astype(np.float32)[:, None, None, None].repeat(3, axis=1)
    data = Dataset("any", images, labels, images, labels, 2, (127.5,) * 3, (127.5,) * 3)
    assert fitted(Bright(), data, "x")[1] == USUAL


class Ordered(nn.Module):
    """Knows the place of a bright pixel, and calls it by another class's number; or says one class of everything."""

    def __init__(self, shift: int | None) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).roll(self.shift, 1) if self.shift is not None else torch.eye(4)[[0] * len(x)]


def test_a_network_that_knows_nothing_of_the_images_is_told() -> None:
    labels = torch.arange(400) % 4
    pixels = torch.eye(4)[labels].view(-1, 1, 2, 2).numpy()
    places = replace(levels(), train_images=pixels, train_labels=labels.numpy())
    fitted(Ordered(0), places, "x")
    with pytest.raises(InputError, match="its classes have another order"):
        fitted(Ordered(1), places, "x")
    with pytest.raises(InputError, match="no more than chance; give the weights"):
        fitted(Ordered(None), places, "x")
    with pytest.raises(InputError, match=r"x: can't take images of \(1, 4, 4\)"):
        fitted(SmallResNet().eval(), levels(), "x")
    beside = Ordered(0)
    beside.register_forward_hook(lambda _, __, logits: (logits, None))
    with pytest.raises(InputError, match="gives a tuple for 100 images of 4 classes"):
        fitted(beside, places, "x")


def test_a_trained_network_is_slimmed_and_teaches_its_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    """What half the width knows afterwards is far above what cutting leaves of it."""
    digits = load_dataset("digits")
    given, normalisation = fitted(trained(), digits, "x")
    assert normalisation == OWN
    monkeypatch.setattr(network_conversion, "_MAX_EPOCHS", 1)
    found = converted(given, digits, WIDTHS, "x", seconds=1e6)
    cut = made_slimmable(given, torch.from_numpy(digits.train_images[:4]), WIDTHS)
    before = top1(lambda batch: cut(batch, (0.5,) * cut.spec.segments), digits)
    assert found.epochs == 1
    assert found.given > 0.9
    assert found.top1[1.0] > found.given - 0.03
    assert found.top1[0.5] > max(0.85, before + 0.05)
    monkeypatch.setattr(network_conversion, "MOST_LOST", -1.0)
    few = replace(digits, train_images=digits.train_images[:64], train_labels=digits.train_labels[:64])
    with pytest.raises(WorkError, match=r"x: not worth it: .* % at 0.25, .*; the given network has"):
        converted(given, few, WIDTHS, "x", seconds=1e6)


def test_tuning_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same weights, bit for bit, whatever time it is given then; other weights are not mixed in."""
    digits = load_dataset("digits")
    few = replace(digits, train_images=digits.train_images[:256], train_labels=digits.train_labels[:256])
    given, _ = fitted(trained(), few, "x")
    monkeypatch.setattr(network_conversion, "_MAX_EPOCHS", 2)
    monkeypatch.setattr(network_conversion, "MOST_LOST", 1.0)
    whole = converted(given, few, WIDTHS, "x", seconds=1e6)
    checkpoint, counts = tmp_path / "tuning.safetensors", list[int]()

    def interrupt(done: int, _: int) -> None:
        if done == 5:  # of four an epoch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(given, few, WIDTHS, "x", seconds=1e6, checkpoint=checkpoint, on_step=interrupt)
    other, _ = fitted(shaken(trained()).eval(), few, "x")
    with pytest.raises(InputError, match="checkpoint of another model"):
        converted(other, few, WIDTHS, "x", seconds=1e6, checkpoint=checkpoint)

    def go_on() -> network_conversion.Conversion:
        return converted(
            given, few, WIDTHS, "x", seconds=1.0, checkpoint=checkpoint, on_step=lambda done, _: counts.append(done)
        )

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(network_conversion, "recalibrate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go_on()
    assert counts == [4, 5, 6, 7, 8]
    found = go_on()
    assert counts == [4, 5, 6, 7, 8, 8]
    assert found.epochs == 2
    assert model_hash(found.model.state_dict()) == model_hash(whole.model.state_dict())
    assert not checkpoint.exists()


def test_an_image_is_rescaled_within_the_network() -> None:
    """The rescaling is a layer of its own, which learns nothing and stays at every width."""
    given, _ = fitted(Prober(0.5, 0.5), levels(), "x")
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)).eval()
    wrapped = GivenNetwork(given.rescale, module)
    x = torch.from_numpy(levels().test_images[:8])
    model = made_slimmable(wrapped, x, WIDTHS)
    assert "rescale/weight" not in dict(model.named_parameters())
    with torch.no_grad():
        torch.testing.assert_close(model(x, (1.0,) * model.spec.segments), wrapped(x), rtol=1e-4, atol=1e-5)


def test_logits_are_taken_out_of_what_else_a_network_gives() -> None:
    """As networks of `transformers` do, in a mapping; torch.fx follows a plain one still."""

    class Several(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"hidden": x, "logits": x.mean((2, 3))}

    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(GivenNetwork(nn.Identity(), Several())(x), x.mean((2, 3)))
