"""What a slimmable network gets right: every test image at every width tuple, one bit each, and its file.

Tuples that begin alike share the work of their common segments. It measures nothing but correctness.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hw.slimresnet import SlimResNet, model_hash
from hw.training import Dataset
from policies.errors import InputError
from policies.vocabulary import IMAGE, Provenance

SCHEMA: Literal["slimsched.accuracy/1"] = "slimsched.accuracy/1"


@dataclass(frozen=True)
class Evaluation:
    """Which test images a network gets right.

    Attributes:
        tuples: (T,) width tuples of length S, ascending.
        correct: (images, T) bool.
        hash: of the network's weights.
        dataset: the data set's name; its images are in its own order.
        provenance: `measured`, as every bit was computed by the network.
    """

    tuples: tuple[tuple[float, ...], ...]
    correct: NDArray[np.bool_]
    hash: str
    dataset: str
    provenance: Provenance = Provenance.MEASURED

    def top1(self) -> dict[tuple[float, ...], float]:
        """Share of images that each tuple gets right."""
        return dict(zip(self.tuples, self.correct.mean(axis=0).tolist(), strict=True))


def evaluate(
    model: SlimResNet,
    dataset: Dataset,
    on_progress: Callable[[int, int], None] | None = None,
    batch: int = 500,
    device: str = "cpu",
) -> Evaluation:
    """Every test image at every width tuple; `on_progress(images done, images)` is called after each batch."""
    config = model.config
    tuples = config.tuples()
    images = len(dataset.test_labels)
    correct = np.zeros((images, len(tuples)), bool)
    placed = model.to(device)
    with torch.inference_mode():
        for start in range(0, images, batch):
            part = slice(start, start + batch)
            x = torch.from_numpy(dataset.test_images[part]).to(device)
            predictions = np.stack(_predictions(placed, x, 1, IMAGE), axis=1)  # (B, T)
            correct[part] = predictions == dataset.test_labels[part, None]
            if on_progress is not None:
                on_progress(min(start + batch, images), images)
    return Evaluation(tuple(tuples), correct, model_hash(model.state_dict()), dataset.name)


def _predictions(model: SlimResNet, x: Tensor, segment: int, previous_width: float) -> list[NDArray[np.int64]]:
    """Labels (B,) of every tuple of the segments from here on, ascending: the common prefix has been run."""
    found: list[NDArray[np.int64]] = []
    for width in model.config.widths:
        y = model.forward_segment(x, segment, width, previous_width)
        if segment == model.config.segments:
            found.append(y.argmax(dim=1).cpu().numpy())
        else:
            found += _predictions(model, y, segment + 1, width)
    return found


# --------------------------------------------------------------------------------------------------------------- files


def save_evaluation(path: Path, evaluation: Evaluation) -> None:
    """JSON, with the bits packed (row by row, most significant first) in base64; whole or not at all."""
    document = {
        "schema": SCHEMA,
        "provenance": str(evaluation.provenance),
        "model": evaluation.hash,
        "dataset": evaluation.dataset,
        "images": len(evaluation.correct),
        "tuples": evaluation.tuples,
        "top1": evaluation.correct.mean(axis=0).tolist(),
        "correct": base64.b64encode(np.packbits(evaluation.correct).tobytes()).decode(),
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_text(json.dumps(document, indent=1))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_evaluation(path: Path) -> Evaluation:
    """What `save_evaluation` wrote; raises `InputError` where the file is missing, foreign or inconsistent."""
    remedy = "write it anew with `slimsched model evaluate`"
    try:
        document: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(str(path), "", f"cannot be read ({error}); {remedy}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(str(path), "schema", f"this is no {SCHEMA} file; {remedy}")
    try:
        return _evaluation(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(path), "", f"is inconsistent ({error!r}); {remedy}") from None


def _evaluation(document: dict[str, Any]) -> Evaluation:
    tuples = tuple(tuple(float(width) for width in widths) for widths in document["tuples"])
    images = int(document["images"])
    packed = np.frombuffer(base64.b64decode(document["correct"], validate=True), np.uint8)
    bits = images * len(tuples)
    if len(packed) != -(-bits // 8):
        raise ValueError(f"{len(packed)} bytes of bits for {images} images and {len(tuples)} tuples")
    correct = np.unpackbits(packed, count=bits).astype(bool).reshape(images, len(tuples))
    provenance = Provenance(document["provenance"])
    return Evaluation(tuples, correct, str(document["model"]), str(document["dataset"]), provenance)
