"""`slimsched model add`: from weights and pictures to a family, its table and a scenario; and what is refused."""

from __future__ import annotations

import itertools
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

from hw.device_settings import DeviceSpec
from hw.networks import user_networks
from hw.networks.accuracy_table import Evaluation, load_accuracy
from hw.networks.datasets import Dataset, load_dataset
from hw.networks.datasets import test_sample as sample_of
from hw.networks.model_families import Family, Member, MemberNetwork, ranked
from hw.networks.network_files import ModelFile, Network, model_hash, save_model
from hw.networks.third_party_networks import GivenNetwork
from hw.networks.user_networks import Judged, dominated, judged, members_of, timed, weights_of
from kit.errors import InputError
from scenarios.files.scenario_reading import load_scenario, read_profile
from sim.device_profile import Profile
from slimsched import models
from slimsched.cli import main
from tests import tiny

SOURCE = "NETWORKS"


class Stiff(nn.Linear):
    """It has numbers that follow no form."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.scale = 2 * torch.eye(64)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1) @ self.scale)


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

    def calibrated(written: models._FamilyFolder, widths: Sequence[float]) -> Mapping[str, Profile]:
        written._write_scenario(120.0)
        return {name: _profile(written, widths, speed) for name, speed in (("cpu0", 1.0), ("cpu1", 0.5))}

    monkeypatch.setattr(models._FamilyFolder, "calibrated", calibrated)
    monkeypatch.setattr(models, "_held_together", lambda scenario, spec: {"cpu1": [spec.labels[0]]})


def _profile(written: models._FamilyFolder, widths: Sequence[float], speed: float) -> Profile:
    spec = ModelFile(written.folder / models.MODEL, Network(f"{__name__}:Pooled")).build().spec
    known = tiny.profile("a", speed=speed, segments=1, widths=tuple(widths))
    model = known.model.model_copy(update={"labels": spec.labels, "nests": spec.nests})
    return known.model_copy(update={"model": model})


def _add(*words: str) -> int:
    return main(["model", "add", *words])


@pytest.mark.usefixtures("measured")
def test_model_add_writes_a_family_its_accuracy_table_and_a_scenario(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "zoo"
    assert _add(NAMES, "--weights", str(weights), "--images", "digits", "--out", str(out), "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["holds"] == {"cpu1": ['Pooled {"pool": 2, "idle": 0}']}
    by_label = {each["label"]: each for each in document["members"]}
    assert [each.get("dominated_by") is not None for each in document["members"]] == [False, False, True]
    assert all(low < each["top1"] < high for each in document["members"] for low, high in [each["top1_ci95"]])
    named = Network(f"{__name__}:Pooled")
    model, metadata = ModelFile(out / models.MODEL, named).load()
    assert isinstance(model, Family)
    assert model.spec.labels == ('Pooled {"pool": 2, "idle": 0}', 'Pooled {"pool": 1, "idle": 4}')
    table = load_accuracy(out / models.ACCURACY)
    assert isinstance(table, Evaluation)
    assert table.hash == metadata["hash"]
    data = load_dataset("digits")
    for (width,), share in table.top1().items():
        plain = Pooled(*(4, 9, 1, 4, 2, 0)[-2 * (1 if width < 1 else 2) :][:2])
        plain.load_state_dict(taught(plain.pool))
        right = plain(torch.from_numpy(data.test_images)).argmax(1).numpy() == data.test_labels
        assert (share, share) == (right.mean(), by_label[model.spec.labels[model.spec.widths.index(width)]]["top1"])
    scenario = load_scenario(out / models.SCENARIO)
    assert (scenario.name, scenario.workload.model_dump()["rate_img_s"]) == ("zoo", 120.0)
    assert Path(scenario.model.checkpoint or "") == out / models.MODEL


@pytest.mark.usefixtures("measured")
def test_model_add_with_keep_all_keeps_dominated_networks(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "my zoo: 1"
    assert _add(NAMES, "--weights", str(weights), "--images", "digits", "--out", str(out), "--keep-all") == 0
    assert len(ModelFile(out / models.MODEL, Network(f"{__name__}:Pooled")).build().spec.widths) == 3
    assert load_scenario(out / models.SCENARIO).name == "my-zoo-1"


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
        ("nets:Net " + "[" * 9999, "options as JSON"),
        (f'nets:Net {{"depth": {"9" * 200}}}', "at most 200 characters"),
        (",".join(f"nets:Net{number}" for number in range(63)), "name 1 to 62 networks"),
    ],
)
def test_model_add_with_endless_network_names_is_refused(text: str, problem: str) -> None:
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
        (["torchvision:resnet18", "--images", "digits"], "can't take images .*; --size sets the size"),
        (["torchvision:resnet18", "--images", "nowhere"], "no such folder"),
        (["torchvision:resnet18", "--pictures", "7"], "must be a whole number from 100"),
        (["torchvision:resnet18", "--size", "32"], "has its own size"),
        ([f'{__name__}:Pooled {{"pool": 3}}'], "could not be made|holds weights of another|head.weight"),
    ],
)
def test_model_add_with_an_unusable_network_is_refused_in_one_line(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "any.safetensors"
    save_file(dict(resnet18(num_classes=10).state_dict()), file)
    images = [] if "--images" in words else ["--images", "digits"]
    assert _add(*words, *images, "--weights", str(file), "--out", str(tmp_path / "out")) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("slimsched:")]
    assert len(said) == 1
    assert re.search(problem, said[0]), said


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """100 of two classes, which are somebody's own."""
    for number in range(100):
        path = tmp_path / "images" / "test" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(path)
    return tmp_path / "images"


def test_a_profile_of_another_gpu_is_made_for_a_family_in_a_file(tmp_path: Path) -> None:
    member = Member(label="small", network="torchvision:mobilenet_v3_small")
    family, file = Family(ranked([member], (3, 32, 32), 4)), tmp_path / "family.safetensors"
    save_model(file, family, family.structure.label, {})
    assert main(["profile", "synth", "t4", "--network", str(file), "--out", str(tmp_path / "t4.yaml")]) == 0
    found = read_profile(tmp_path / "t4.yaml").model
    assert (found.labels, found.nests, found.hash) == (("small",), family.spec.nests, model_hash(family.state_dict()))


def test_pictures_that_it_did_not_write_are_not_touched(
    weights: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The family's pictures lie in `images` of its folder: one that holds anything else is refused."""
    words = [NAMES, "--weights", str(weights), "--images", str(pictures)]
    assert _add(*words, "--out", str(pictures.parent)) == 2
    assert "holds files and is not a run folder" in capsys.readouterr().err
    (pictures.parent / ".slimsched").mkdir()  # as if it were a family's
    assert _add(*words, "--out", str(pictures.parent)) == 2
    assert "is written again" in capsys.readouterr().err
    assert len(list(pictures.rglob("*.png"))) == 100


def test_model_add_of_a_network_larger_than_the_device_is_refused(
    weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hw.device_settings.local_devices", lambda: [DeviceSpec(), DeviceSpec(vram_bytes=1000)])
    words = [NAMES, "--weights", str(weights), "--images", "digits", "--out", str(tmp_path / "out")]
    assert _add(*words) == 2
    assert "takes 0 MB, and a device here has 0 MB for networks; leave it out" in capsys.readouterr().err


def test_too_few_pictures_are_refused(
    weights: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next(pictures.rglob("*.png")).unlink()
    words = [NAMES, "--weights", str(weights), "--images", str(pictures), "--out", str(tmp_path / "out")]
    assert _add(*words) == 2
    assert "has 99 test images; an accuracy needs 100" in capsys.readouterr().err


def test_int8_is_refused_beside_a_gpu(
    weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hw.device_settings.local_devices", lambda: [DeviceSpec("cuda"), DeviceSpec()])
    torch.save({}, weights / "resnet18.pt")
    assert _add("torchvision:resnet18 int8", "--weights", str(weights), "--images", "digits") == 2
    assert "'resnet18 int8' runs on CPUs alone" in capsys.readouterr().err


def test_scales_of_int8_are_of_images_of_all_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list[Tensor]()
    images = np.arange(900, dtype=np.float32).reshape(-1, 1, 1, 1).repeat(3, axis=1)
    data = Dataset("any", images[:0], np.arange(0), images, np.arange(900) // 90, 10)
    monkeypatch.setattr(user_networks, "read_weights", lambda _: {})
    monkeypatch.setattr(user_networks, "take_weights", lambda *_: None)
    monkeypatch.setattr(user_networks, "fitted", lambda module, *_: (GivenNetwork(nn.Identity(), module), ""))
    monkeypatch.setattr(user_networks, "right", lambda *_, **__: np.ones(900, bool))
    monkeypatch.setattr(user_networks, "Int8Network", lambda _, images: shown.append(images))
    (member,) = members_of("torchvision:resnet18 int8", SOURCE)
    judged(member, tmp_path, data, SOURCE, lambda *_: None)
    assert np.bincount(shown[0][:, 0, 0, 0].numpy().astype(int) // 90, minlength=10).min() >= 20


def test_a_form_that_a_network_can_not_run_in_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, known = tmp_path / "stiff.safetensors", taught(1)
    save_file({"weight": known["head.weight"] / 2, "bias": known["head.bias"]}, file)
    assert (
        _add(f"{__name__}:Stiff bfloat16", "--weights", str(file), "--images", "digits", "--out", str(tmp_path / "out"))
        == 2
    )
    assert "'Stiff bfloat16' can't run so (RuntimeError" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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
    assert (np.bincount(data.test_labels).tolist(), len(data.train_labels)) == ([10, 4], 0)
    assert abs(np.asarray(data.test_images).mean()) < 1e-5
    kept = [path.name.partition("-")[0] for path in sorted((tmp_path / "out/test/ant").iterdir())]
    assert kept == [f"{3 * number:02}" for number in range(10)]
    Image.fromarray(rng.integers(0, 255, (9, 33, 3), np.uint8)).save(tmp_path / "pets/bee/other.png")
    assert sample_of(tmp_path / "pets", tmp_path / "sized", None, 3, 20, lambda *_: None) == 0
    assert load_dataset(str(tmp_path / "sized")).test_images.shape[2:] == (224, 224)


def test_of_small_pictures_more_are_taken_where_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "pets" / "ant").mkdir(parents=True)
    for number in range(300):
        Image.fromarray(np.full((8, 8), number % 256, np.uint8)).save(tmp_path / "pets" / "ant" / f"{number}.png")
    for size, count in ((None, 300), (224, 240)):
        sample_of(tmp_path / "pets", tmp_path / f"{size}", size, 1, None, lambda *_: None)
        assert len(list((tmp_path / f"{size}").rglob("*.png"))) == count


def _judged(label: str, top1: float = 1.0, pass_s: float = 0.0) -> Judged:
    (member,) = members_of(f"torchvision:{label}", SOURCE)
    network = MemberNetwork(nn.Identity(), nn.Identity(), "float32")
    return Judged(member, network, "", np.arange(100) < round(100 * top1), pass_s)


def test_of_members_that_know_and_take_the_same_but_for_noise_one_stays() -> None:
    """Who is faster by less than times repeat is no faster; of two alike the first named stays."""
    known = {"a": (0.9, 1.0), "b": (0.9, 1.0), "c": (0.8, 0.5), "d": (0.8, 0.6), "e": (0.7, 0.48), "f": (0.7, 0.47)}
    beaten = dominated([_judged(label, *values) for label, values in known.items()])
    assert {label: other.member.label for label, other in beaten.items()} == {"b": "a", "d": "c", "e": "f"}


def test_a_lead_that_may_be_chance_is_told() -> None:
    """That of two images in a hundred may be, that of ten is not; of what is left out nothing is said."""
    known = {"a": 0.9, "b": 0.88, "c": 0.78, "d": 0.77}
    found = [_judged(label, top1) for label, top1 in known.items()]
    close = models._within_chance(found, {"d": found[2]})
    assert [(best.member.label, following.member.label) for best, following in close] == [("a", "b")]


def test_passes_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [_judged("a"), _judged("b")]
    true_s, calls = dict(zip([id(each.network) for each in found], [1.0, 0.9], strict=True)), itertools.count()
    monkeypatch.setattr(
        user_networks,
        "_pass_s",
        lambda network, _: true_s[id(network)] * (9 if next(calls) < user_networks._PASSES else 1),
    )
    data = Dataset("any", *(np.zeros((8, 3, 4, 4), np.float32), np.zeros(8, np.int64)) * 2, 1)
    assert [each.pass_s for each in timed(found, data, "cpu")] == [1.0, 0.9]
