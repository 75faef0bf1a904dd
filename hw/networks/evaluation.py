"""Evaluates a network: every test image at every width tuple, one bit each.

Tuples with a common prefix share the work of its segments. It measures nothing but correctness.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hw.networks.accuracy import MAX_BITS, Evaluation
from hw.networks.datasets import Dataset
from hw.networks.registry import model_hash
from hw.networks.servable import Servable
from kit.errors import InputError
from policies.vocabulary import IMAGE

_MOST_IMAGES: Final = 500  # of a pass
_MOST_VALUES: Final = 1 << 23  # of them: 55 images of 224 pixels; activations take some twenty times as much


def evaluate(
    model: Servable,
    dataset: Dataset,
    on_progress: Callable[[int, int], None] | None = None,
    batch: int | None = None,
    device: str = "cpu",
) -> Evaluation:
    """Evaluate every test image at every width tuple; `on_progress(images done, images)` is called after each batch."""
    spec = model.spec
    tuples = spec.tuples()
    images, batch = len(dataset.test_labels), batch or _batch(dataset)
    if images * len(tuples) > MAX_BITS:
        problem = f"{len(tuples)} width tuples of {images} images are too many; group its blocks into fewer segments"
        raise InputError("model", "segments", problem)
    correct = np.zeros((images, len(tuples)), bool)
    placed = model.to(device)
    with torch.inference_mode():
        for start in range(0, images, batch):
            part = slice(start, start + batch)
            x = torch.from_numpy(np.asarray(dataset.test_images[part])).to(device)
            predictions = np.stack(_predictions(placed, x, 1, IMAGE), axis=1)  # (B, T)
            correct[part] = predictions == dataset.test_labels[part, None]
            if on_progress is not None:
                on_progress(min(start + batch, images), images)
    return Evaluation(tuple(tuples), correct, model_hash(model.state_dict()), dataset.name)


def top1(answer: Callable[[Tensor], Tensor], dataset: Dataset, device: str = "cpu", batch: int | None = None) -> float:
    """Return the share of test images for which the largest of (B, classes) logits is that of the label."""
    return float(right(answer, dataset, device, batch).mean())


def right(
    answer: Callable[[Tensor], Tensor],
    dataset: Dataset,
    device: str = "cpu",
    batch: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.bool_]:
    """Return (images,) which test images are right; raises `ValueError` if the numbers of logits and classes differ."""
    found: list[NDArray[np.bool_]] = []
    images = len(dataset.test_labels)
    batch = batch or _batch(dataset)
    with torch.inference_mode():
        for start in range(0, images, batch):
            part = slice(start, start + batch)
            logits = answer(torch.from_numpy(np.asarray(dataset.test_images[part])).to(device))
            labels = dataset.test_labels[part]
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            if shape != (len(labels), dataset.classes):
                raise ValueError(f"gives {shape} for {len(labels)} images of {dataset.classes} classes")
            found.append(logits.argmax(dim=1).cpu().numpy() == labels)
            if on_progress is not None:
                on_progress(min(start + batch, images), images)
    return np.concatenate(found)


def _batch(dataset: Dataset) -> int:
    """Return the number of images that fit in memory at once."""
    return max(1, min(_MOST_IMAGES, _MOST_VALUES // prod(dataset.test_images.shape[1:])))


def _predictions(model: Servable, x: Tensor, segment: int, previous_width: float) -> list[NDArray[np.int64]]:
    """Return labels (B,) of every tuple of the segments from here on, ascending: the common prefix has been run."""
    labels: list[NDArray[np.int64]] = []
    for width in model.spec.widths if previous_width == IMAGE else model.spec.nest(previous_width):
        y = model.forward_segment(x, segment, width, previous_width)
        if segment == model.spec.segments:
            labels.append(y.argmax(dim=1).cpu().numpy())
        else:
            labels += _predictions(model, y, segment + 1, width)
    return labels
