"""The images that networks are trained and tested on: scikit-learn's digits, and CIFAR-100."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hw.slimmable import ModelSpec
from policies.errors import InputError, nearest

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR100

DATASETS = ("digits", "cifar100")
DATA_VARIABLE = "SLIMSCHED_DATA"
DATA_FOLDER = "data"  # where the variable is not set
TEST_SHARE_OF_DIGITS = 4  # one image in four

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Images as float32 (n, C, H, W), normalised per channel by the training set's mean and deviation; labels (n,)."""

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: int


def load_dataset(name: str, root: Path | None = None) -> Dataset:
    """A data set by name; `root` (else the environment's SLIMSCHED_DATA, else `data`) is where CIFAR-100 lies.

    CIFAR-100 is downloaded there if it is missing.

    Raises:
        InputError: the name is unknown, or the files are missing and can't be fetched, or damaged.
    """
    if name == "digits":
        return _digits()
    if name == "cifar100":
        return _cifar100(root if root is not None else Path(os.environ.get(DATA_VARIABLE, DATA_FOLDER)))
    raise InputError("dataset", "name", f"unknown data set {name!r}; {nearest(name, DATASETS)}")


def require_fit(spec: ModelSpec, dataset: Dataset) -> None:
    """Raise `InputError` unless a network takes these images and knows these classes."""
    found, classes = dataset.train_images.shape[1:], dataset.classes
    if (found, classes) != (spec.input_shape, spec.classes):
        problem = f"{dataset.name} has images of {found} in {classes} classes, "
        problem += f"the model takes {spec.input_shape} in {spec.classes}; choose a model and a data set that fit"
        raise InputError("model", "dataset", problem)


def _digits() -> Dataset:
    """Scikit-learn's 8x8 digits; within each class every fourth image is for the test: fixed and stratified."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    images, labels = raw.images[:, None].astype(np.float32), raw.target.astype(np.int64)
    rank_in_class = np.zeros(len(labels), np.int64)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        rank_in_class[members] = np.arange(len(members))
    test = rank_in_class % TEST_SHARE_OF_DIGITS == TEST_SHARE_OF_DIGITS - 1
    return _normalised("digits", images[~test], labels[~test], images[test], labels[test], 10)


def _cifar100(root: Path) -> Dataset:
    parts = [_cifar100_part(root, train=train) for train in (True, False)]
    pixels = [np.moveaxis(part.data, -1, 1).astype(np.float32) for part in parts]
    labels = [np.asarray(part.targets, np.int64) for part in parts]
    return _normalised("cifar100", pixels[0], labels[0], pixels[1], labels[1], 100)


def _cifar100_part(root: Path, *, train: bool) -> CIFAR100:
    """Its files are pickles, which torchvision opens only when their checksums are the published ones."""
    from torchvision.datasets import CIFAR100

    folder = root / CIFAR100.base_folder
    try:
        return CIFAR100(root=str(root), train=train, download=not folder.exists())
    except (RuntimeError, OSError) as error:
        if folder.exists():
            problem = "its checksums are not those of CIFAR-100: the files are damaged or incomplete"
            raise InputError(str(folder), "", f"{problem}; remove the folder, so that it is fetched anew") from None
        remedy = f"put torchvision's {folder.name} folder there, or let {DATA_VARIABLE} name the folder that holds it"
        raise InputError(str(root), "", f"no CIFAR-100 here, and it can't be downloaded ({error}); {remedy}") from None


def _normalised(name: str, train: Images, train_labels: Labels, test: Images, labels: Labels, classes: int) -> Dataset:
    mean = train.mean(axis=(0, 2, 3), keepdims=True)
    deviation = train.std(axis=(0, 2, 3), keepdims=True)
    scaled = [np.ascontiguousarray((images - mean) / deviation, dtype=np.float32) for images in (train, test)]
    return Dataset(name, scaled[0], train_labels, scaled[1], labels, classes)
