"""`slimsched model add`: from weights and pictures to a family, its table and a scenario; and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import resnet18

from hw.networks.accuracy import Evaluation, load_accuracy
from hw.networks.datasets import load_dataset
from hw.networks.family import Family
from hw.networks.members import Judged, dominated, members_of, weights_of
from hw.networks.pictures import test_sample as sample_of
from hw.networks.registry import ModelFile, Network
from kit.errors import InputError
from scenarios.files.reading import load_scenario
from sim.profile import Profile
from slimsched import adding
from slimsched.cli import main
from tests import worlds

SOURCE = "NETWORKS"


class Pooled(nn.Module):
    """Linear in pixels that are averaged `pool` by `pool`, after `idle` steps that only take time."""

    def __init__(self, pool: int = 1, idle: int = 0) -> None:
        super().__init__()
        self.pool, self.idle = pool, idle
        self.head = nn.Linear((8 // pool) ** 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.idle):
            x = F.avg_pool2d(F.interpolate(x, scale_factor=16.0), 16)
        logits: Tensor = self.head(F.avg_pool2d(x, self.pool).flatten(1))
        return logits


def taught(pool: int) -> dict[str, Tensor]:
    """By least squares on the digits, which takes no time."""
    data = load_dataset("digits")
    pixels = F.avg_pool2d(torch.from_numpy(data.train_images), pool).flatten(1)
    inputs = torch.cat([pixels, torch.ones(len(pixels), 1)], 1).double()
    wanted = F.one_hot(torch.from_numpy(data.train_labels), 10).double()
    found = torch.linalg.lstsq(inputs.T @ inputs + torch.eye(inputs.shape[1]), inputs.T @ wanted).solution.T.float()
    return {"head.weight": found[:, :-1].contiguous(), "head.bias": found[:, -1].contiguous()}


NAMES = ", ".join(f'{__name__}:Pooled {{"pool": {pool}, "idle": {idle}}}' for pool, idle in ((1, 4), (2, 0), (4, 9)))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file(taught(1), folder / "Pooled-1-4.safetensors")
    torch.save({"state_dict": {f"module.{name}": each for name, each in taught(2).items()}}, folder / "Pooled-2-0.pt")
    torch.save(taught(4), folder / "Pooled-4-9-f37072fd.pth")
    return folder


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are not measured: two with known curves stand for those here."""

    def calibrated(written: adding._Written, widths: Sequence[float]) -> Mapping[str, Profile]:
        written._write_scenario(120.0)
        return {name: _profile(written, widths, speed) for name, speed in (("cpu0", 1.0), ("cpu1", 0.5))}

    monkeypatch.setattr(adding._Written, "calibrated", calibrated)


def _profile(written: adding._Written, widths: Sequence[float], speed: float) -> Profile:
    spec = ModelFile(written.folder / adding.MODEL, Network(f"{__name__}:Pooled")).build().spec
    known = worlds.profile("a", speed=speed, segments=1, widths=tuple(widths))
    model = known.model.model_copy(update={"labels": spec.labels, "fit": "exact"})
    return known.model_copy(update={"model": model})


def _add(*words: str) -> int:
    return main(["model", "add", *words])


@pytest.mark.usefixtures("measured")
def test_it_writes_a_family_its_table_and_a_scenario_and_says_what_to_run_where(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third knows least and takes longest: it is named, and left out."""
    out = tmp_path / "zoo"
    assert _add(NAMES, "--weights", str(weights), "--images", "digits", "--out", str(out), "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    by_label = {each["label"]: each for each in document["members"]}
    assert [each.get("dominated_by") is not None for each in document["members"]] == [False, False, True]
    named = Network(f"{__name__}:Pooled")
    model, metadata = ModelFile(out / adding.MODEL, named).load()
    assert isinstance(model, Family)
    assert model.spec.labels == ('Pooled {"pool": 2, "idle": 0}', 'Pooled {"pool": 1, "idle": 4}')
    table = load_accuracy(out / adding.ACCURACY)
    assert isinstance(table, Evaluation)
    assert table.hash == metadata["hash"]
    data = load_dataset("digits")
    for (width,), share in table.top1().items():
        plain = Pooled(*(4, 9, 1, 4, 2, 0)[-2 * (1 if width < 1 else 2) :][:2])
        plain.load_state_dict(taught(plain.pool))
        right = plain(torch.from_numpy(data.test_images)).argmax(1).numpy() == data.test_labels
        assert share == right.mean()
        assert share == by_label[model.spec.labels[model.spec.widths.index(width)]]["top1"]
    scenario = load_scenario(out / adding.SCENARIO)
    assert (scenario.name, scenario.workload.model_dump()["rate_img_s"]) == ("zoo", 120.0)
    assert Path(scenario.model.checkpoint or "") == out / adding.MODEL


@pytest.mark.usefixtures("measured")
def test_all_are_kept_where_that_is_asked_for(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "zoo"
    assert _add(NAMES, "--weights", str(weights), "--images", "digits", "--out", str(out), "--keep-all") == 0
    assert len(ModelFile(out / adding.MODEL, Network(f"{__name__}:Pooled")).build().spec.widths) == 3


def test_names_carry_their_kind_on_and_forms_and_options_stand_behind_them() -> None:
    found = members_of('torchvision:resnet18, resnet34 bfloat16,nets:Net {"a": [1, 2], "b": {"c": 3}} bfloat16', SOURCE)
    assert [(each.network, each.options, each.form) for each in found] == [
        ("torchvision:resnet18", {}, "float32"),
        ("torchvision:resnet34", {}, "bfloat16"),
        ("nets:Net", {"a": [1, 2], "b": {"c": 3}}, "bfloat16"),
    ]
    assert [each.label for each in found][:2] == ["resnet18", "resnet34 bfloat16"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "name at least one"),
        ("resnet18", "name torchvision:NAME"),
        ("torchvision:resnet18,resnet18", "named twice"),
        ("torchvision:resnet18 int3", "options as JSON"),
        ("torchvision:resnet18 [1]", "options as JSON"),
    ],
)
def test_what_names_no_networks_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        members_of(text, SOURCE)


def test_weights_are_found_by_name(tmp_path: Path) -> None:
    (member,) = members_of("torchvision:resnet18", SOURCE)
    for name in ("resnet18-f37072fd.pth", "resnet180.pt", "resnet18.txt"):
        (tmp_path / name).touch()
    assert weights_of(member, tmp_path, SOURCE).name == "resnet18-f37072fd.pth"
    (tmp_path / "resnet18-0000.pth").touch()
    with pytest.raises(InputError, match=r"several files may be resnet18's: resnet18-0000.pth, resnet18-f37"):
        weights_of(member, tmp_path, SOURCE)
    (tmp_path / "resnet18.safetensors").touch()
    assert weights_of(member, tmp_path, SOURCE).name == "resnet18.safetensors"
    (other,) = members_of("torchvision:resnet34", SOURCE)
    with pytest.raises(InputError, match="no weights of resnet34"):
        weights_of(other, tmp_path, SOURCE)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["torchvision:resnet81"], "torchvision has no 'resnet81'"),
        (["torchvision:resnet18", "--images", "digits"], "can't take images"),
        (["torchvision:resnet18", "--images", "nowhere"], "no such folder"),
        (["torchvision:resnet18", "--pictures", "7"], "must be a whole number from 100"),
        (["torchvision:resnet18", "--size", "32"], "has its own size"),
        ([f'{__name__}:Pooled {{"pool": 3}}'], "could not be made|holds weights of another|head.weight"),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "any.safetensors"
    save_file(dict(resnet18(num_classes=10).state_dict()), file)
    images = [] if "--images" in words else ["--images", "digits"]
    assert _add(*words, *images, "--weights", str(file), "--out", str(tmp_path / "out")) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("slimsched:")]
    assert len(said) == 1
    assert re.search(problem, said[0]), said


def test_a_sample_has_as_many_of_each_class_as_can_be_and_keeps_a_common_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("ant", 30), ("bee", 4)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 255, (20, 20, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number:02}.png")
    assert sample_of(tmp_path / "pets", tmp_path / "out", None, 3, 20, lambda *_: None) == 0
    data = load_dataset(str(tmp_path / "out"))
    assert data.test_images.shape == (14, 3, 20, 20)
    assert np.bincount(data.test_labels).tolist() == [10, 4]
    assert len(data.train_labels) == 0
    assert abs(data.test_images.mean()) < 1e-5
    kept = [path.name.partition("-")[0] for path in sorted((tmp_path / "out/test/ant").iterdir())]
    assert kept == [f"{3 * number:02}" for number in range(10)]
    Image.fromarray(rng.integers(0, 255, (9, 33, 3), np.uint8)).save(tmp_path / "pets/bee/other.png")
    assert sample_of(tmp_path / "pets", tmp_path / "sized", None, 3, 20, lambda *_: None) == 0
    assert load_dataset(str(tmp_path / "sized")).test_images.shape[2:] == (224, 224)


def test_of_members_that_know_and_take_the_same_one_stays() -> None:

    def judged(label: str, top1: float, pass_s: float) -> Judged:
        (member,) = members_of(f"torchvision:{label}", SOURCE)
        correct = np.arange(100) < round(100 * top1)
        return Judged(member, None, "", correct, pass_s)  # type: ignore[arg-type]

    alike = [judged("a", 0.9, 1.0), judged("b", 0.9, 1.0), judged("c", 0.8, 0.5), judged("d", 0.8, 0.6)]
    beaten = dominated(alike)
    assert {label: other.member.label for label, other in beaten.items()} == {"b": "a", "d": "c"}
