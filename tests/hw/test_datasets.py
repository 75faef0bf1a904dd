"""Data sets of the user's own: a folder of images, or a class; what is wrong is one line with its place and remedy."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hw.networks.datasets import Pixels, dataset_label, load_dataset
from hw.networks.network_training import TrainingParams, recipe
from kit.errors import InputError


def image(path: Path, grey: int = 100, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, grey if mode == "L" else (grey, grey, 0)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with two images to train on and one to test on, 6 wide and 4 high."""
    root = tmp_path / "pets"
    for name, grey in (("cat", 50), ("dog", 150)):
        for number in range(2):
            image(root / "train" / name / f"{number}.png", grey + 10 * number)
        image(root / "test" / name / "0.png", grey)
    return root


def test_a_folder_is_read_as_torchvision_lays_it_out(folder: Path) -> None:
    """Classes by their names, images as (C, H, W), normalised by the training images."""
    data = load_dataset(str(folder))
    train, test = np.asarray(data.train_images), np.asarray(data.test_images)
    assert data.train_images.shape == train.shape == (4, 3, 4, 6)
    assert test.dtype == np.float32
    assert (data.train_labels.tolist(), data.test_labels.tolist(), data.classes) == ([0, 0, 1, 1], [0, 1], 2)
    assert train.mean(axis=(0, 2, 3)) == pytest.approx([0, 0, 0], abs=1e-6)
    assert train[:, 0].std() == pytest.approx(1, abs=1e-5)
    assert (train[:, 2] == 0).all(), "a channel that says nothing stays finite"
    assert test[0, 0, 0, 0] == train[0, 0, 0, 0] < test[1, 0, 0, 0]


def test_bytes_stay_bytes_until_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any part come the very floats that numpy makes of all; what has a float in one part is float in both."""
    pixels = np.moveaxis(np.random.default_rng(0).integers(0, 256, (6, 80, 160, 3), np.uint8), -1, 1)
    labels = np.array([0, 1, 1, 0, 1, 0])
    data = load_dataset(own(monkeypatch, (pixels, labels), (pixels[:3], labels[:3])))
    assert isinstance(data.train_images, Pixels)
    doubles = pixels.transpose(1, 0, 2, 3).reshape(3, -1).astype(np.float64)
    assert data.mean == tuple(doubles.mean(axis=1).astype(np.float32).tolist())
    assert data.deviation == pytest.approx(doubles.std(axis=1), rel=1e-7)
    mean, deviation = (np.array(each, np.float32)[:, None, None] for each in (data.mean, data.deviation))
    wanted = (pixels.astype(np.float32) - mean) / deviation
    assert np.array_equal(np.asarray(data.train_images), wanted)
    assert np.array_equal(np.asarray(data.train_images[np.array([4, 1])]), wanted[[4, 1]])
    assert np.array_equal(np.asarray(data.train_images[2:4].channels_last()), wanted[2:4].transpose(0, 2, 3, 1))
    mixed = load_dataset(own(monkeypatch, (pixels, labels), (pixels[:3] / 2, labels[:3])))
    assert isinstance(mixed.train_images, np.ndarray)
    assert (mixed.mean, mixed.deviation) == (data.mean, data.deviation)


def test_grey_images_have_one_channel(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        image(path, 7 * len(path.read_bytes()) % 256, mode="L")
    assert load_dataset(str(folder)).train_images.shape == (4, 1, 4, 6)
    image(folder / "test" / "cat" / "0.png")
    assert load_dataset(str(folder)).train_images.shape == (4, 3, 4, 6)


@pytest.mark.parametrize(
    "name, dtype, top", [("0.png", np.uint16, 45_000), ("0.tif", np.float32, 1.5), ("0.tif", np.int32, 90_000)]
)
def test_wide_grey_images_keep_their_range(tmp_path: Path, name: str, dtype: type[np.generic], top: float) -> None:
    """16 bits, floats and whole numbers: one channel, as if numpy had normalised the values that were written."""
    ramp = (np.linspace(0.4, 1.0, 24) * top).astype(dtype).reshape(4, 6)
    for part, kind, pixels in (
        ("train", "a", ramp),
        ("train", "b", ramp // 2),
        ("test", "a", ramp),
        ("test", "b", ramp),
    ):
        (tmp_path / part / kind).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / part / kind / name)
    data, train = load_dataset(str(tmp_path)), np.stack([ramp, ramp // 2]).astype(np.float64)
    assert data.train_images.shape == (2, 1, 4, 6)
    assert data.train_images[:, 0] == pytest.approx((train - train.mean()) / train.std(), abs=1e-5)
    image(other := tmp_path / "test" / "b" / name, mode="L")
    with pytest.raises(
        InputError, match=rf"{re.escape(str(other))} has pixels of another kind \(L\) than .*; grey images"
    ):
        load_dataset(str(tmp_path))


def test_a_folder_is_known_by_its_content(folder: Path) -> None:
    """By no path of the machine; another image, or name, is another set."""
    label = dataset_label(str(folder))
    assert label.startswith("pets@")
    assert load_dataset(str(folder)).name == label
    assert str(folder.parent) not in label
    image(folder / "train" / "cat" / "0.png", 51)
    changed = dataset_label(str(folder))
    (folder / "train" / "cat" / "0.png").rename(folder / "train" / "cat" / "9.png")
    assert len({label, changed, dataset_label(str(folder))}) == 3


def pair(count: int = 3, shape: tuple[int, ...] = (1, 2, 2), labels: list[Any] | None = None) -> tuple[Any, Any]:
    return np.arange(count * int(np.prod(shape)), dtype=float).reshape(count, *shape), np.array(labels or [0, 1, 1])


def own(monkeypatch: pytest.MonkeyPatch, train: Any, test: Any) -> str:
    """A module with a class that gives these."""
    module = ModuleType("users_images")
    module.Mine = lambda: SimpleNamespace(train=train, test=test)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_images", module)
    return "users_images:Mine"


def test_a_class_gives_images_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_dataset(own(monkeypatch, pair(), pair()))
    train = np.asarray(data.train_images)
    assert (data.name, data.classes) == ("users_images:Mine", 2)
    assert train.dtype == np.float32
    assert train.mean() == pytest.approx(0, abs=1e-6)
    assert np.array_equal(train, np.asarray(data.test_images))


def test_sets_of_ones_own_are_trained_on_by_the_default_recipe() -> None:
    assert recipe("pets@0123", "slimresnet-tiny") == TrainingParams()
