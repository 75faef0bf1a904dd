"""Networks and weights of others: read without running anything, refused in a line; pictures made equally large."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from hw.host_resources import machine_bytes
from hw.networks import user_networks
from hw.networks.datasets import Dataset, equally_large, load_dataset
from hw.networks.model_families import Member, own_classes
from hw.networks.network_files import Network
from hw.networks.third_party_networks import Named, build_given
from hw.networks.user_networks import _state_dict, _why, read_weights, take_weights
from hw.subprocesses import here
from kit.errors import InputError


class Head(nn.Linear):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(64, classes)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture
def few_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of torchvision's, to compare weights with: to make all 80 takes seconds."""
    monkeypatch.setattr("torchvision.models.list_models", lambda _: ["resnet18", "resnet34"])


class Harm:
    """What unpickling it runs leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_malicious_file_runs_nothing(is_new: bool, tmp_path: Path) -> None:
    """Of both forms that torch.save has; opened as pickles are, it would."""
    path, mark = tmp_path / "w.pt", tmp_path / "ran"
    torch.save({"weight": torch.zeros(2), "extra": Harm(mark)}, path, _use_new_zipfile_serialization=is_new)
    with pytest.raises(InputError, match=r"w\.pt: holds code \(.*mkdir\), not only weights, and nothing of it was run"):
        read_weights(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()


def test_weights_come_out_of_what_they_were_saved_in(tmp_path: Path, digits: Dataset) -> None:
    """A checkpoint of a script, with its arguments beside, by a wrapper's names; and plain safetensors."""
    wanted = Head().state_dict()
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in wanted.items()}
    torch.save(
        {"state_dict": wrapped, "epoch": 3, "args": Namespace(lr=1), "optimizer": {"state": {}}}, tmp_path / "w.pt"
    )
    save_file({f"backbone.{name}": tensor for name, tensor in wanted.items()}, tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        module = Head()
        take_weights(module, read_weights(tmp_path / name), tmp_path / name, digits)
        assert all(torch.equal(tensor, wanted[key]) for key, tensor in module.state_dict().items())


class Tail(nn.Module):
    """A network whose head stands behind something."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(64, 8), nn.Linear(8, 10)


@pytest.mark.parametrize(
    ("saved", "chosen"),
    [
        (lambda w: {f"module.{name}": it for name, it in w.items()} | {"n_averaged": torch.tensor(3)},
         "1 tensors without 'module.' are left out"),
        (lambda w: {f"model.{name}": it for name, it in w.items()}
         | {"criterion.weight": torch.ones(10), "train_acc.tp": torch.ones(1)},
         "2 tensors without 'model.' are left out"),
        (lambda w: {f"model._orig_mod.{name}": it for name, it in w.items()}, ""),
        (lambda w: {f"encoder.{name}": it for name, it in w.items()} | {"decoder.weight": torch.ones(3)},
         "1 tensors without 'encoder.' are left out"),
        (lambda w: {name.replace("fc.", "fc.1."): it for name, it in w.items()}, "fc.1, and nothing else"),
        (lambda w: {f"module.{name.replace('fc.', 'fc.1.')}": it for name, it in w.items()}
         | {"n_averaged": torch.ones(1)},
         "1 tensors without 'module.' are left out; fc.1, and nothing else"),
    ],
)  # fmt: skip
def test_weights_are_found_behind_whatever_prefix_and_in_a_head_of_dropout(
    saved: Callable[[dict[str, Tensor]], dict[str, Tensor]], chosen: str, digits: Dataset
) -> None:
    """SWA and EMA, Lightning with a loss and a metric, compiled, an encoder beside a decoder."""
    trained, module = Tail(), Tail()
    assert take_weights(module, saved(trained.state_dict()), Path("w.pt"), digits) == chosen
    assert all(torch.equal(it, module.state_dict()[name]) for name, it in trained.state_dict().items())


@pytest.mark.usefixtures("few_networks")
@pytest.mark.parametrize(
    ("kind", "saved", "told"),
    [
        (Tail, lambda w: {f"{of}.{name}": it for name, it in w.items() for of in ("student", "teacher")},
         r"holds several sets of weights \(student\., teacher\.\); save the one that you mean"),
        (Tail, lambda w: {name.replace("fc.", f"fc.{at}."): it for name, it in w.items() for at in (0, 2)},
         "holds weights of another network"),
        (Tail, lambda w: {name.replace("fc.weight", "fc.weight_orig"): it for name, it in w.items()},
         r"weights that the network makes by hooks \(fc.weight_orig\); torch.nn.utils.prune.remove comes first"),
        (Tail, lambda w: {name.replace("fc.weight", "fc.parametrizations.weight.original0"): w[name] for name in w},
         "parametrize.remove_parametrizations comes first"),
        (Tail, lambda w: {name: it.to(torch.float8_e4m3fn) for name, it in w.items()},
         "is of torch.float8_e4m3fn; save the weights as float16 or float32"),
        (Head, lambda w: w | {"weight": w["weight"][:7]}, "weight: is .7, 64., .* the weights know 7 classes"),
        (Head, lambda w: w | {"weight": w["weight"][:, :7].contiguous()},
         "weight: is .10, 7., the network has .10, 64.; name"),
        (Head, lambda w: {"weight": w["weight"], "c.d": w["bias"]}, "another network .1 missing: bias; too many: c.d"),
        (Head, lambda w: w | {"bias": w["bias"] / 0}, "bias: holds numbers that are not finite"),
        (lambda: build_given(Network("torchvision:resnet18"), 10),
         lambda w: dict(build_given(Network("torchvision:resnet34"), 5).state_dict()),  # of other classes, too
         "name the network that they are of: torchvision:resnet34, it seems"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_the_network_are_refused_with_the_cause(
    kind: Callable[[], nn.Module], saved: Callable[[dict[str, Tensor]], dict[str, Tensor]], told: str, digits: Dataset
) -> None:
    with pytest.raises(InputError, match=told):
        take_weights(kind(), saved(kind().state_dict()), Path("w.pt"), digits)


def cut_short(write: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: (write(path), path.write_bytes(path.read_bytes()[:2000]))


@pytest.mark.parametrize(
    ("name", "write", "told"),
    [
        ("w.pt", lambda path: torch.save({"weight": torch.zeros(1).expand(machine_bytes())}, path),
         "takes far more memory than its size suggests"),
        ("w.npz", lambda path: np.savez(path, weight=np.zeros(3)), "NumPy's .npz"),
        ("w.pt2", lambda path: torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)), path),
         "program of torch.export"),
        ("w.pt", lambda path: torch.save({"weight": np.zeros(3)}, path), "holds "),
        ("w.pt", lambda path: torch.save({"model": {}, "model_ema": {}}, path),
         r"several sets of weights \(model, model_ema\)"),
        ("w.pt", lambda path: torch.save({"state_dict": {"w": 1}}, path), "holds no weights by name"),
        ("w.pt", lambda path: torch.save([torch.zeros(1)], path), "holds no weights by name"),
        ("w.pt", lambda path: torch.save(nn.Linear(2, 2), path), r"holds code \(torch.nn.modules.linear.Linear\)"),
        ("w.pt", lambda path: torch.jit.script(nn.Linear(2, 2)).save(str(path)), "is TorchScript"),  # type: ignore[no-untyped-call]
        ("w.pt", cut_short(lambda path: torch.save({"w": torch.zeros(1000)}, path)),
         r"w\.pt: is damaged, cut short"),
    ],
)  # fmt: skip
def test_weights_file_of_another_format_is_refused_with_its_kind(
    name: str, write: Callable[[Path], object], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / name)
    if "memory" not in told:  # another process opens torch, which takes seconds
        monkeypatch.setattr(user_networks, "apart", here)
        monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    with pytest.raises(InputError, match=told):
        read_weights(tmp_path / name)


def test_a_set_of_averages_alone_is_taken() -> None:
    assert set(_state_dict({"ema": {"w": torch.zeros(1)}, "epoch": 3}, Path("w.pt"))) == {"w"}


@pytest.mark.parametrize(
    "error, told",
    [
        (KeyError(101), "damaged, cut short, or not of torch.save (KeyError: 101)"),
        (MemoryError(), "takes far more memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "takes far more memory"),
        (ValueError("WeightsUnpickler error: Unsupported global: GLOBAL mine.Net was not"), "holds code (mine.Net)"),
    ],
)
def test_error_of_the_weights_reader_is_explained_in_one_line(error: Exception, told: str) -> None:
    assert told in _why(error)
    assert "\n" not in _why(error)


def test_an_old_torch_opens_no_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"w": torch.zeros(1)}, tmp_path / "w.pt")
    monkeypatch.setattr(user_networks, "SAFE_TORCH", "99.0")
    with pytest.raises(InputError, match=r"does not open files of torch.save safely; take torch 99.0"):
        read_weights(tmp_path / "w.pt")


def test_of_imagenets_classes_those_of_a_folder_are_taken(digits: Dataset) -> None:
    weights = {"weight": torch.arange(64_000.0).reshape(1000, 64), "bias": torch.arange(1000.0)}
    few, module = replace(digits, classes=3, names=("Golden_Retriever", "goldfish", "tench")), Head(3)
    assert take_weights(module, weights, Path("w.pt"), few) == "of ImageNet's classes the 3 of the folder"
    assert module.bias.tolist() == [207, 1, 0]
    assert torch.equal(module.weight, weights["weight"][[207, 1, 0]])
    capital, module = replace(digits, classes=2, names=("Cardigan", "cardigan")), Head(2)
    take_weights(module, weights, Path("w.pt"), capital)
    assert module.bias.tolist() == [264, 474], "a dog, and what is worn"
    with pytest.raises(InputError, match="name the folders by their classes, such as tench"):
        take_weights(Head(2), weights, Path("w.pt"), replace(capital, names=("n01440764", "n02102040")))
    with pytest.raises(InputError, match="the weights know 1000 classes, digits has 3"):
        take_weights(Head(3), weights, Path("w.pt"), replace(few, names=("goldfish", "tench", "unicorn")))


def test_networks_are_built_by_name() -> None:
    """Torchvision's with as many classes as the images have; of others nothing but a network's class is called."""
    assert build_given(Network("torchvision:resnet18"), 7).get_parameter("fc.bias").shape == (7,)
    assert build_given(Network(f"{__name__}:Head", {"classes": 3}), 7).get_parameter("bias").shape == (3,)
    for name, told in (
        ("torchvision:resnet19", "did you mean 'resnet18'"),
        ("os:system", "must be a class of torch.nn.Module"),
        ("tests.hw.tiny:TinyNet", "that is not slimmable yet"),
    ):
        with pytest.raises(InputError, match=told):
            build_given(Network(name), 7)


def test_networks_of_timm_are_built_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its list alone, and with nothing fetched or opened, whatever the options of a file say."""
    asked = list[tuple[str, dict[str, Any]]]()

    def make(name: str, **options: Any) -> nn.Module:
        asked.append((name, options))
        return Head(options["num_classes"])

    stub = ModuleType("timm")
    stub.list_models, stub.create_model = lambda: ["resnet26"], make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", stub)
    named = Named("timm:resnet26", {"in_chans": 1, "pretrained": True, "checkpoint_path": "evil.pth"})
    assert not build_given(named, 7).training
    options = {"num_classes": 7, "in_chans": 1, "pretrained": False, "checkpoint_path": ""}
    assert asked == [("resnet26", options)]
    assert own_classes([Member(label="a", network="timm:resnet26")]) == set()
    with pytest.raises(InputError, match=r"timm has no 'resnet27' .*; did you mean 'resnet26'"):
        build_given(Named("timm:resnet27"), 7)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="'timm:resnet26': timm is not installed; `pip install timm`"):
        build_given(Named("timm:resnet26"), 7)


# ------------------------------------------------------------------------------------------------------------- pictures


def picture(path: Path, size: tuple[int, int], mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def test_pictures_are_made_equally_large_and_split(tmp_path: Path) -> None:
    """One in five of each class is for the test; one that has the size is copied as it is; they can be loaded."""
    for number in range(10):
        picture(tmp_path / "pets" / "cat" / f"{number}.png", (20 + number, 30), "L" if number % 2 else "RGB")
        picture(tmp_path / "pets" / "dog" / f"{number}.jpg", (16, 16))
    target, unreadable = equally_large(tmp_path / "pets", tmp_path / "out", 16, 3, lambda *_: None)
    assert unreadable == 0
    data = load_dataset(str(target))
    assert (data.train_images.shape, data.test_images.shape, data.classes) == ((16, 3, 16, 16), (4, 3, 16, 16), 2)
    copied = next((target / "train" / "dog").glob("0-*.png"))
    assert np.array_equal(np.asarray(Image.open(copied)), np.asarray(Image.open(tmp_path / "pets" / "dog" / "0.jpg")))
    with pytest.raises(InputError, match="exists already"):
        equally_large(tmp_path / "pets", target, 16, 3, lambda *_: None)


@pytest.mark.parametrize("mode, ending", [("RGBA", "png"), ("CMYK", "jpg"), ("P", "png"), ("LA", "png"), ("1", "png")])
def test_pictures_of_any_kind_become_those_of_8_bits(mode: str, ending: str, tmp_path: Path) -> None:
    for number in range(5):
        picture(tmp_path / "pets" / "cat" / f"{number}.{ending}", (4, 4), mode)
    for channels, wanted in ((1, "L"), (3, "RGB")):
        target, unreadable = equally_large(tmp_path / "pets", tmp_path / wanted, 4, channels, lambda *_: None)
        assert unreadable == 0
        assert {Image.open(path).mode for path in target.rglob("*.png")} == {wanted}


def test_of_a_moving_picture_the_first_is_taken(tmp_path: Path) -> None:
    shades = [Image.new("RGB", (4, 4), (shade, shade, shade)) for shade in (10, 250)]
    for number in range(5):
        path = tmp_path / "pets" / "cat" / f"{number}.webp"
        path.parent.mkdir(parents=True, exist_ok=True)
        shades[0].save(path, save_all=True, append_images=shades[1:], lossless=True)
    target, _ = equally_large(tmp_path / "pets", tmp_path / "out", 4, 1, lambda *_: None)
    assert {int(np.asarray(Image.open(path)).max()) for path in target.rglob("*.png")} == {10}


def test_parts_stay_parts_and_few_broken_pictures_are_left_out(tmp_path: Path) -> None:
    for number in range(100):
        picture(tmp_path / "train" / "a" / f"{number}.png", (4, 4), "L")
    picture(tmp_path / "val" / "a" / "0.png", (9, 5))
    (tmp_path / "train" / "a" / "broken.png").write_bytes(b"none")
    target, unreadable = equally_large(tmp_path, tmp_path / "out", 4, 1, lambda *_: None)
    assert unreadable == 1
    assert [len(list((target / part / "a").iterdir())) for part in ("train", "test")] == [100, 1]
    assert {Image.open(path).mode for path in target.rglob("*.png")} == {"L"}
    (tmp_path / "train" / "a" / "broken too.png").write_bytes(b"none")
    with pytest.raises(InputError, match=r"2 of 103 images can't be read, first .*broken"):
        equally_large(tmp_path, tmp_path / "again", 4, 1, lambda *_: None)
    (target / "test").rename(tmp_path / "moved")
    with pytest.raises(InputError, match="has one part alone"):
        equally_large(target, tmp_path / "none", 4, 1, lambda *_: None)
