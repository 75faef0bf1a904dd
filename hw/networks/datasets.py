"""The images that networks are trained and tested on, and images of any size resized to one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kit.errors import InputError, in_a_line, nearest
from kit.files import atomic_folder, folder_hash
from kit.plugins import blaming, is_own, own_class, source_hash
from kit.random_streams import stream

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR100

    from hw.networks.servable import ModelSpec


DATASETS = ("digits", "digit-pairs", "large-digit-pairs", "cifar100")
PARTS = ("train", "test")
DATA_VARIABLE = "SLIMSCHED_DATA"
DATA_FOLDER = "data"  # if the variable is not set
TEST_SHARE_OF_DIGITS = 4  # one image in four
PAIRS = {"train": 3300, "test": 800}  # images of digit-pairs
PAIR_SIZE = 16  # pixels along each side of such an image
PAIR_DEVIATION = 3.0  # of each pixel's noise; the ink of a digit is 0 to 16
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what Pillow raises for an image's file
_KEY = ("model", "dataset")  # its key, for messages

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pixels:
    """Images kept as bytes, a quarter of the memory of floats: `np.asarray` makes normalised float32 of them.

    Attributes:
        values: (n, C, H, W), or (n, H, W, C).
        mean, deviation: by which they are normalised; of a shape that goes with an image's.
    """

    values: NDArray[np.uint8]
    mean: Floats
    deviation: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all images."""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, indices: Any, /) -> Pixels:
        return Pixels(self.values[indices], self.mean, self.deviation)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        floats = np.empty(self.shape, np.float32)
        self.normalise(floats)
        return floats

    def normalise(self, target: Floats) -> None:
        """Write them all, normalised."""
        np.subtract(self.values, self.mean, out=target)
        np.divide(target, self.deviation, out=target)

    def channels_last(self) -> Pixels:
        """Return a copy as (n, H, W, C)."""
        values = np.ascontiguousarray(self.values.transpose(0, 2, 3, 1))
        mean, deviation = (np.tile(each.ravel(), (*values.shape[1:3], 1)) for each in (self.mean, self.deviation))
        return Pixels(values, mean, deviation)


Images: TypeAlias = Floats | Pixels


@dataclass(frozen=True, slots=True)
class Dataset:
    """Images (n, C, H, W), normalised per channel by the training set's mean and deviation; labels (n,).

    A folder may have no training images: then the test images' own are taken.

    Attributes:
        mean, deviation: (C,) of the normalisation; empty if real images are absent.
        names: of the classes of a folder.
    """

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: int
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    names: tuple[str, ...] = ()


class OwnDataset(Protocol):
    """The interface of a user's class, called without arguments, which gives the parts `train` and `test`.

    Images are (n, C, H, W) of numbers, labels (n,) whole numbers from 0; both parts have the same shape of image. Here
    they are normalised per channel by the training images' mean and deviation.
    """

    train: tuple[NDArray[Any], NDArray[Any]]
    test: tuple[NDArray[Any], NDArray[Any]]


def is_image_folder(name: str) -> bool:
    """Return whether a data set's name is the path of a folder, and neither a known set's nor a class's."""
    return name not in DATASETS and not is_own(name)


def load_dataset(name: str, root: Path | None = None) -> Dataset:
    """Load a data set: by name, a user's class as `module:Class` (see `OwnDataset`), or a folder of images.

    A folder has `train/CLASS/*.png` and `test/CLASS/*.png`, as torchvision's `ImageFolder` does (other formats that it
    supports are read, too). CIFAR-100 is downloaded if it is missing.

    Args:
        root: the folder of CIFAR-100; by default the environment's SLIMSCHED_DATA, or `data`.

    Raises:
        InputError: the set does not exist, its files are missing and can't be fetched, or it is damaged.
    """
    if name == "digits":
        return _normalised("digits", *_parts_of_digits(), 10)
    if name == "digit-pairs":
        return _digit_pairs()
    if name == "large-digit-pairs":
        return _digit_pairs(name, scale=2)
    if name == "cifar100":
        return _cifar100(root if root is not None else Path(os.environ.get(DATA_VARIABLE, DATA_FOLDER)))
    return _own(name) if is_own(name) else _folder(Path(name))


def dataset_label(name: str) -> str:
    """Return a text that changes with the images: a folder's name and content's hash, or the hash of a user's class.

    Raises:
        InputError: the folder or class does not exist.
    """
    if name in DATASETS:
        return name
    if is_own(name):
        return f"{name} {source_hash(name, *_KEY)}"
    folder = require_image_folder(Path(name))
    return f"{folder.name}@{folder_hash(folder)[:16]}"


def require_training_images(dataset: Dataset) -> None:
    """Raise `InputError` if there are none."""
    if not len(dataset.train_labels):
        raise _wrong(f"{dataset.name} has no part to train on; images for that are in train/CLASS/*.png")


def require_fit(spec: ModelSpec, dataset: Dataset) -> None:
    """Raise `InputError` unless a network takes these images and has these classes."""
    shape, classes = dataset.test_images.shape[1:], dataset.classes
    if (shape, classes) != (spec.input_shape, spec.classes):
        problem = f"{dataset.name} has images of {shape} in {classes} classes, "
        problem += f"the model takes {spec.input_shape} in {spec.classes}; choose a model and a data set that fit"
        raise InputError("model", "dataset", problem)


def _digit_pairs(name: str = "digit-pairs", scale: int = 1) -> Dataset:
    """Return the set of two digits side by side with some noise; the class is the number that they spell, 0 to 99.

    One digit alone is too easy for a trade-off: the narrowest network is about as accurate as the widest. Training
    pairs are of digits to train on, test pairs of digits to test on. All is drawn once, and is part of the set. The
    large ones show each pixel `scale` times along both sides, so that a GPU has work.
    """
    train, train_labels, test, test_labels = _parts_of_digits()
    pairs, numbers = _pairs("train", train, train_labels)
    test_pairs, test_numbers = _pairs("test", test, test_labels)
    large, test_large = (each.repeat(scale, axis=2).repeat(scale, axis=3) for each in (pairs, test_pairs))
    return _normalised(name, large, numbers, test_large, test_numbers, 100)


def _pairs(part: str, digits: Floats, labels: Labels) -> tuple[Floats, Labels]:
    """Return images (n, 1, 16, 16), the digits halfway down, and the numbers (n,)."""
    rng = stream(0, f"digit-pairs:{part}")
    left, right = rng.integers(0, len(labels), (2, PAIRS[part]))
    above = (PAIR_SIZE - digits.shape[2]) // 2
    side_by_side = np.concatenate((digits[left], digits[right]), axis=3)
    images = np.pad(side_by_side, ((0, 0), (0, 0), (above, above), (0, 0)))
    noise = rng.standard_normal(images.shape)
    return (images + PAIR_DEVIATION * noise).astype(np.float32), 10 * labels[left] + labels[right]


def _parts_of_digits() -> tuple[Floats, Labels, Floats, Labels]:
    """Return scikit-learn's 8x8 digits: to train on, their labels, to test on, their labels.

    Within each class every fourth image is for the test: the parts are fixed and stratified.
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    images, labels = raw.images[:, None].astype(np.float32), raw.target.astype(np.int64)
    rank_in_class = np.zeros(len(labels), np.int64)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        rank_in_class[members] = np.arange(len(members))
    test = rank_in_class % TEST_SHARE_OF_DIGITS == TEST_SHARE_OF_DIGITS - 1
    return images[~test], labels[~test], images[test], labels[test]


def _cifar100(root: Path) -> Dataset:
    parts = [_cifar100_part(root, train=train) for train in (True, False)]
    pixels = [np.moveaxis(part.data, -1, 1).astype(np.float32) for part in parts]
    labels = [np.asarray(part.targets, np.int64) for part in parts]
    return _normalised("cifar100", pixels[0], labels[0], pixels[1], labels[1], 100)


def _cifar100_part(root: Path, *, train: bool) -> CIFAR100:
    """Open a part; its files are pickles, which torchvision opens only if their checksums are the published ones."""
    from torchvision.datasets import CIFAR100

    folder = root / CIFAR100.base_folder
    try:
        return CIFAR100(root=str(root), train=train, download=not folder.exists())
    except (RuntimeError, OSError) as error:
        if folder.exists():
            problem = "its checksums are not those of CIFAR-100: the files are damaged or incomplete"
            raise InputError(str(folder), "", f"{problem}; remove the folder, so that it is fetched again") from None
        remedy = f"put torchvision's {folder.name} folder there, or let {DATA_VARIABLE} name the folder that holds it"
        raise InputError(str(root), "", f"no CIFAR-100 here, and it can't be downloaded ({error}); {remedy}") from None


def _normalised(
    name: str, train: NDArray[Any], train_labels: Labels, test: NDArray[Any], labels: Labels, classes: int
) -> Dataset:
    """Return the set with its normalisation; bytes stay bytes until they are used."""
    if not train.dtype == test.dtype == np.uint8:
        train, test = (each.astype(np.float32, copy=False) for each in (train, test))
    reference, pixels = train if len(train) else test, (0, 2, 3)
    if reference.dtype == np.uint8:
        mean, deviation = _scale_of_bytes(reference)
    else:
        summed = np.float32 if name in DATASETS else np.float64  # the bundled networks were trained with float32 sums
        mean, deviation = (of(axis=pixels, dtype=summed).astype(np.float32) for of in (reference.mean, reference.std))
    deviation = np.where(deviation > 0, deviation, 1.0).astype(np.float32)  # a constant channel
    parts = [_scaled(each, mean[:, None, None], deviation[:, None, None]) for each in (train, test)]
    return Dataset(
        name, parts[0], train_labels, parts[1], labels, classes, tuple(mean.tolist()), tuple(deviation.tolist())
    )


def _scaled(images: NDArray[Any], mean: Floats, deviation: Floats) -> Images:
    if images.dtype == np.uint8:
        return Pixels(images, mean, deviation)
    return np.ascontiguousarray((images - mean) / deviation, dtype=np.float32)


def _scale_of_bytes(images: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Return mean and deviation (C,), from integer sums: sums of float32 stop growing after some million pixels."""
    sums = np.zeros((2, images.shape[1]), np.int64)
    for image in images:
        sums += [np.sum(power, axis=(1, 2), dtype=np.int64) for power in (image, np.square(image, dtype=np.int64))]
    mean, square = sums / (images.size // images.shape[1])
    return mean.astype(np.float32), np.sqrt(square - mean**2).astype(np.float32)


# ------------------------------------------------------------------------------------------------- a folder of images


def require_image_folder(folder: Path) -> Path:
    """Return the folder; raises `InputError` if it does not exist, or it has no part to test on.

    One without a part to train on is for networks that are trained already.
    """
    if not folder.is_dir():
        allowed = "`module:Class`, or a folder with train/CLASS/*.png and test/CLASS/*.png"
        raise _wrong(f"{folder}: no such data set or folder; {nearest(folder.name, DATASETS)}, or {allowed}")
    if not (folder / "test").is_dir():
        problem = f"{folder} has no folder 'test'; images are in train/CLASS/*.png and test/CLASS/*.png"
        raise _wrong(f"{problem}; of the classes alone `slimsched model slim --size PIXELS` makes both")
    return folder


def _folder(folder: Path) -> Dataset:
    """Load images of one size; they have one channel if all are grey, otherwise three."""
    from torchvision.datasets import ImageFolder

    require_image_folder(folder)
    parts = []
    for part in [part for part in PARTS if part == "test" or (folder / part).is_dir()]:
        try:
            parts.append(ImageFolder(str(folder / part)))
        except (FileNotFoundError, OSError) as error:  # no classes, or one without images: the error names it
            raise _wrong(f"{folder / part}: {in_a_line(str(error))}") from None
    train, test = parts[0], parts[-1]
    if train.classes != test.classes:
        differ = ", ".join(sorted(set(train.classes) ^ set(test.classes)))
        raise _wrong(f"{folder}: train and test must have the same classes; these are in one alone: {differ}")
    with _opened(Path(train.samples[0][0])) as image:
        size = image.size
    mode = _mode([Path(path) for part in parts for path, _ in part.samples])
    images = [_read([Path(path) for path, _ in part.samples], mode, size) for part in parts]
    labels = [np.asarray(part.targets, np.int64) for part in parts]
    if len(parts) < len(PARTS):
        images, labels = [images[0][:0], *images], [labels[0][:0], *labels]
    label, classes = dataset_label(str(folder)), tuple(test.classes)
    dataset = _normalised(label, images[0], labels[0], images[1], labels[1], len(classes))
    return replace(dataset, names=classes)


def _opened(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except _UNREADABLE as error:
        raise _wrong(f"{path}: no readable image ({error}); remove it, or write it again") from None


def _mode(paths: list[Path]) -> str:
    """Return Pillow's mode for all: that of 16 bits or floats if all have it, otherwise `L` or `RGB`, of 8 bits."""
    modes = []
    for path in paths:
        with _opened(path) as image:
            modes.append(image.mode)
        if modes[-1] != modes[0] and any(mode.startswith(("I", "F")) for mode in (modes[0], modes[-1])):
            problem = f"{path} has pixels of another kind ({modes[-1]}) than {paths[0]} ({modes[0]})"
            raise _wrong(f"{problem}; grey images of 16 bits or floats stand alone: write all in one way")
    if modes[0].startswith(("I", "F")):
        return modes[0]
    return "L" if {"1", "L"}.issuperset(modes) else "RGB"


def _read(paths: list[Path], mode: str, size: tuple[int, int]) -> NDArray[Any]:
    """Read images as (n, C, H, W): bytes, or float32 if they have more than 8 bits."""
    sample = _pixels(paths[0], mode, size)
    images = np.empty((len(paths), *sample.shape), np.uint8 if sample.dtype == np.uint8 else np.float32)
    for index, path in enumerate(paths):
        images[index] = _pixels(path, mode, size)
    return images


def _pixels(path: Path, mode: str, size: tuple[int, int]) -> NDArray[Any]:
    """Return an image as (C, H, W)."""
    with _opened(path) as image:
        if image.size != size:
            size_text, expected = (f"{width} x {height}" for width, height in (image.size, size))
            raise _wrong(f"{path} has {size_text} pixels, the first image {expected}; make all images equally large")
        try:
            pixels = np.asarray(image.convert(mode))
        except _UNREADABLE as error:  # cut short
            raise _wrong(f"{path}: no readable image ({error}); remove it, or write it again") from None
    if not np.isfinite(pixels).all():
        raise _wrong(f"{path} has pixels that are not finite numbers; write it again without them")
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


# ------------------------------------------------------------------------------------------------- a user's own class


def _own(name: str) -> Dataset:
    dataset = own_class(name, *_KEY)
    with blaming(name, *_KEY):
        instance = dataset()
        parts = [(part, getattr(instance, part)) for part in PARTS]
    (train, train_labels), (test, test_labels) = (_part(f"{name}: {part}", value) for part, value in parts)
    if train.shape[1:] != test.shape[1:]:
        raise _wrong(f"{name}: images of train are {train.shape[1:]}, of test {test.shape[1:]}; they must be equal")
    classes = int(train_labels.max()) + 1
    if test_labels.max() >= classes:
        raise _wrong(f"{name}: test has the label {test_labels.max()}; labels of train end at {classes - 1}")
    return _normalised(name, train, train_labels, test, test_labels, classes)


def _part(name: str, value: Any) -> tuple[NDArray[Any], Labels]:
    try:
        images, labels = (np.asarray(each) for each in value)
    except (TypeError, ValueError):
        raise _wrong(f"{name} must be a pair: images (n, C, H, W) and labels (n,)") from None
    if images.ndim != 4 or images.dtype.kind not in "uif" or images.size == 0:
        raise _wrong(f"{name}: images must be numbers of the shape (n, C, H, W), found {images.dtype} {images.shape}")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu" or labels.min() < 0:
        problem = f"{name}: labels must be ({len(images)},) whole numbers from 0, found {labels.dtype} {labels.shape}"
        raise _wrong(problem)
    if images.dtype != np.uint8:
        images = images.astype(np.float32)
        if not np.isfinite(images).all():
            raise _wrong(f"{name}: images must be finite numbers")
    return images, labels.astype(np.int64)


def _wrong(problem: str) -> InputError:
    return InputError(*_KEY, problem)


USUAL: Final = 224  # pixels along each side of the images of nearly all trained networks
TEST_NAMES: Final = ("test", "val", "valid", "validation")
TEST_SHARE: Final = 5  # if the test part is not specified: one image in five of each class
PICTURES, SMALL_PICTURES = 240, 2000  # by default: of that size, and at most of smaller ones
BORDER: Final = 256 / 224  # torchvision's: resized to a little more, so that the middle can be cut out
MOST_UNREADABLE: Final = 0.01

_Picture = TypeVar("_Picture")


def equally_large(
    folder: Path, target: Path, size: int, channels: int, on_progress: Callable[[int, int], None]
) -> tuple[Path, int]:
    """Write `train/CLASS/*.png` and `test/CLASS/*.png`, all size x size, and count unreadable files; all or nothing.

    An image is resized along its shorter side, and its middle is cut out. One that has the size already is not changed.
    A folder without parts is split: every fifth image of each class is for the test.

    Args:
        folder: with `train` and `test` (or `val`), each with a folder for each class; or with the classes themselves.
        channels: 1 for grey images, 3 for coloured ones.

    Returns:
        The target, and how many were left out.

    Raises:
        InputError: the folder has no images, the target exists already, or more than 1 % can't be read.
    """
    if target.exists():
        raise InputError(str(target), "", "exists already; name it as --images without --size, or remove it")
    images = list(_found(folder))
    if not images:
        raise InputError(str(folder), "", "has no images; they are in train/CLASS/ and test/CLASS/, or in CLASS/")
    with atomic_folder(target) as whole:
        unreadable = _write(folder, images, whole, size, channels, on_progress)
    return target, unreadable


def test_sample(
    folder: Path,
    target: Path,
    size: int | None,
    channels: int,
    limit: int | None,
    on_progress: Callable[[int, int], None],
) -> int:
    """Write `test/CLASS/*.png` as `equally_large` does, of some test images, balanced over classes as far as possible.

    Args:
        folder: with `test` (or `val`), with or without `train`; or with the classes themselves.
        size: None keeps the images' size if all have the same; otherwise it is `USUAL`.
        limit: images in all, about; None for `PICTURES`, and more of small ones.

    Returns:
        How many can't be read.

    Raises:
        InputError: the folder has no images, or more than 1 % of them can't be read.
    """
    if not folder.is_dir():
        raise InputError(str(folder), "", "no such folder")
    tests = [name for name in TEST_NAMES if (folder / name).is_dir()]
    source = folder / tests[0] if tests else folder
    classes = {path: _pictures(path) for path in sorted(source.iterdir()) if path.is_dir()}
    if not any(classes.values()):
        raise InputError(str(source), "", "has no images; they are in test/CLASS/, or in CLASS/")
    if empty := [path.name for path, pictures in classes.items() if not pictures]:
        raise InputError(str(source), "", f"the class {empty[0]!r} has no images; add some, or remove its folder")
    size = size or _own_size(_of_each(classes, limit or PICTURES))
    limit = limit or min(SMALL_PICTURES, max(PICTURES, PICTURES * USUAL**2 // size**2))
    images = [("test", path) for path in _of_each(classes, limit)]
    return _write(folder, images, target, size, channels, on_progress)


def _of_each(classes: Mapping[Path, list[Path]], limit: int) -> list[Path]:
    per_class = max(1, -(-limit // len(classes)))
    return [path for pictures in classes.values() for path in spread(pictures, per_class)]


def spread(pictures: Sequence[_Picture], limit: int) -> list[_Picture]:
    """Return an even selection from the first to the last: neighbours are often of one scene, or class."""
    count = min(limit, len(pictures))
    return [pictures[number * len(pictures) // count] for number in range(count)]


def _own_size(pictures: list[Path]) -> int:
    sizes = set()
    for path in pictures:
        try:
            with Image.open(path) as opened:
                sizes.add(opened.size)
        except _UNREADABLE:
            continue  # counted when it is read
    width, height = sizes.pop() if len(sizes) == 1 else (USUAL, USUAL)
    return width if width == height else USUAL


def _write(
    folder: Path,
    images: list[tuple[str, Path]],
    target: Path,
    size: int,
    channels: int,
    on_progress: Callable[[int, int], None],
) -> int:
    """Write all (part, image), and count unreadable ones."""
    from torchvision.transforms.functional import center_crop, resize

    unreadable: list[Path] = []
    for count, (part, path) in enumerate(images, start=1):
        file = target / part / path.parent.name / f"{path.stem}-{count}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with Image.open(path) as opened:
                if opened.mode.startswith(("I", "F")):  # convert would make nearly all of them white
                    problem = f"has grey pixels of more than 8 bits ({opened.mode}); write it again with 8"
                    raise InputError(str(path), "", problem)
                image = opened.convert("L" if channels == 1 else "RGB")
        except InputError:
            raise
        except _UNREADABLE:
            unreadable.append(path)
            continue
        if image.size != (size, size):
            image = center_crop(resize(image, [round(size * BORDER)]), [size, size])
        image.save(file)
        on_progress(count, len(images))
    if len(unreadable) > MOST_UNREADABLE * len(images):
        problem = f"{len(unreadable)} of {len(images)} images can't be read, first {unreadable[0]}"
        raise InputError(str(folder), "", f"{problem}; write them again, or remove them")
    return len(unreadable)


def _found(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (part, image) in their order."""
    if not folder.is_dir():
        raise InputError(str(folder), "", "no such folder")
    tests = [name for name in TEST_NAMES if (folder / name).is_dir()]
    if (folder / "train").is_dir() != bool(tests):
        raise InputError(str(folder), "", f"has one part alone; it needs train, and one of {', '.join(TEST_NAMES)}")
    for part, subfolder in (("train", folder / "train"), ("test", folder / tests[0])) if tests else (("", folder),):
        for of_class in sorted(path for path in subfolder.iterdir() if path.is_dir()):
            for number, path in enumerate(_pictures(of_class)):
                is_test = number % TEST_SHARE == TEST_SHARE - 1
                yield part or ("test" if is_test else "train"), path


def _pictures(folder: Path) -> list[Path]:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMG_EXTENSIONS)
