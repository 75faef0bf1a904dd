"""Resizes images of any size to one size, once: a folder of images that a network can be trained and tested on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from kit.errors import InputError

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
    """Write `train/CLASS/*.png` and `test/CLASS/*.png`, all size x size, and count unreadable files.

    An image is resized along its shorter side, and its middle is cut out. One that has the size already is not changed.
    A folder without parts is split: every fifth image of each class is for the test.

    Args:
        folder: with `train` and `test` (or `val`), each with a folder for each class; or with the classes themselves.
        channels: 1 for grey images, 3 for coloured ones.

    Returns:
        The target, and how many were left out.

    Raises:
        InputError: the folder has no images, the target is there already, or more than 1 % can't be read.
    """
    if target.exists():
        raise InputError(str(target), "", "is there already; name it as --images without --size, or remove it")
    found = list(_found(folder))
    if not found:
        raise InputError(str(folder), "", "has no pictures; they lie in train/CLASS/ and test/CLASS/, or in CLASS/")
    return target, _write(folder, found, target, size, channels, on_progress)


def test_sample(
    folder: Path,
    target: Path,
    size: int | None,
    channels: int,
    most: int | None,
    on_progress: Callable[[int, int], None],
) -> int:
    """Write `test/CLASS/*.png` as `equally_large` does, of some test images, balanced over classes as far as possible.

    Args:
        folder: with `test` (or `val`), with or without `train`; or with the classes themselves.
        size: None keeps the images' size if all have the same; otherwise it is `USUAL`.
        most: images in all, about; None for `PICTURES`, and more of small ones.

    Returns:
        How many can't be read.

    Raises:
        InputError: the folder has no images, or more than 1 % of them can't be read.
    """
    if not folder.is_dir():
        raise InputError(str(folder), "", "no such folder")
    tests = [name for name in TEST_NAMES if (folder / name).is_dir()]
    place = folder / tests[0] if tests else folder
    classes = {path: _pictures(path) for path in sorted(place.iterdir()) if path.is_dir()}
    if not any(classes.values()):
        raise InputError(str(place), "", "has no pictures; they lie in test/CLASS/, or in CLASS/")
    if empty := [path.name for path, pictures in classes.items() if not pictures]:
        raise InputError(str(place), "", f"the class {empty[0]!r} has no pictures; add some, or remove its folder")
    size = size or _own_size(_of_each(classes, most or PICTURES))
    most = most or min(SMALL_PICTURES, max(PICTURES, PICTURES * USUAL**2 // size**2))
    found = [("test", path) for path in _of_each(classes, most)]
    return _write(folder, found, target, size, channels, on_progress)


def _of_each(classes: Mapping[Path, list[Path]], most: int) -> list[Path]:
    each = max(1, -(-most // len(classes)))
    return [path for pictures in classes.values() for path in spread(pictures, each)]


def spread(pictures: Sequence[_Picture], most: int) -> list[_Picture]:
    """Return an even selection from the first to the last: neighbours are often of one scene, or class."""
    count = min(most, len(pictures))
    return [pictures[number * len(pictures) // count] for number in range(count)]


def _own_size(pictures: list[Path]) -> int:
    from PIL import Image

    sizes = set()
    for path in pictures:
        try:
            with Image.open(path) as opened:
                sizes.add(opened.size)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue  # counted when it is read
    width, height = sizes.pop() if len(sizes) == 1 else (USUAL, USUAL)
    return width if width == height else USUAL


def _write(
    folder: Path,
    found: list[tuple[str, Path]],
    target: Path,
    size: int,
    channels: int,
    on_progress: Callable[[int, int], None],
) -> int:
    """Write all (part, image), and count unreadable ones."""
    from PIL import Image
    from torchvision.transforms.functional import center_crop, resize

    unreadable: list[Path] = []
    for count, (part, path) in enumerate(found, start=1):
        place = target / part / path.parent.name / f"{path.stem}-{count}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with Image.open(path) as opened:
                if opened.mode.startswith(("I", "F")):  # convert would make nearly all of them white
                    problem = f"has grey pixels of more than 8 bits ({opened.mode}); write it anew with 8"
                    raise InputError(str(path), "", problem)
                image = opened.convert("L" if channels == 1 else "RGB")
        except InputError:
            raise
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            unreadable.append(path)
            continue
        if image.size != (size, size):
            image = center_crop(resize(image, [round(size * BORDER)]), [size, size])
        image.save(place)
        on_progress(count, len(found))
    if len(unreadable) > MOST_UNREADABLE * len(found):
        problem = f"{len(unreadable)} of {len(found)} pictures can't be read, first {unreadable[0]}"
        raise InputError(str(folder), "", f"{problem}; write them anew, or remove them")
    return len(unreadable)


def _found(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (part, image) in their order."""
    if not folder.is_dir():
        raise InputError(str(folder), "", "no such folder")
    tests = [name for name in TEST_NAMES if (folder / name).is_dir()]
    if (folder / "train").is_dir() != bool(tests):
        raise InputError(str(folder), "", f"has one part alone; it needs train, and one of {', '.join(TEST_NAMES)}")
    for part, place in (("train", folder / "train"), ("test", folder / tests[0])) if tests else (("", folder),):
        for of_class in sorted(path for path in place.iterdir() if path.is_dir()):
            for number, path in enumerate(_pictures(of_class)):
                is_test = number % TEST_SHARE == TEST_SHARE - 1
                yield part or ("test" if is_test else "train"), path


def _pictures(folder: Path) -> list[Path]:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMG_EXTENSIONS)
