"""How a slimmable network learns: the data, the sandwich rule with in-place distillation, and exact resume.

It decides nothing about serving. Each step trains the widest network, the narrowest, and two whose widths are drawn
for each segment on its own (else mixed width tuples stay untrained); all but the widest learn from the widest's
detached soft labels (Yu and Huang 2019). Chance comes from named streams by epoch, so that a run resumed at an epoch's
start goes on exactly as it would have.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hw.slimresnet import SlimResNet, SlimResNetConfig, load_tensors, save_tensors
from policies.chance import derived_seed, stream
from policies.errors import InputError, nearest

CHECKPOINT_SCHEMA = "slimsched.checkpoint/1"
DATASETS = ("digits", "cifar100")
TEST_SHARE_OF_DIGITS = 4  # one image in four

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


# ---------------------------------------------------------------------------------------------------------------- data


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
    """A data set by name; `root` (else the environment's SLIMSCHED_DATA) is where CIFAR-100 lies.

    Raises:
        InputError: the name is unknown, or the files are not there.
    """
    if name == "digits":
        return _digits()
    if name == "cifar100":
        return _cifar100(root)
    raise InputError("dataset", "name", f"unknown data set {name!r}; {nearest(name, DATASETS)}")


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


def _cifar100(root: Path | None) -> Dataset:
    from torchvision.datasets import CIFAR100

    folder = root if root is not None else Path(os.environ.get("SLIMSCHED_DATA", "data"))
    try:
        parts = [CIFAR100(root=str(folder), train=train, download=False) for train in (True, False)]
    except RuntimeError:
        remedy = "put torchvision's cifar-100-python folder there, or set SLIMSCHED_DATA"
        raise InputError(str(folder), "", f"no CIFAR-100 here; {remedy}") from None
    pixels = [np.moveaxis(part.data, -1, 1).astype(np.float32) for part in parts]
    labels = [np.asarray(part.targets, np.int64) for part in parts]
    return _normalised("cifar100", pixels[0], labels[0], pixels[1], labels[1], 100)


def _normalised(name: str, train: Images, train_labels: Labels, test: Images, labels: Labels, classes: int) -> Dataset:
    mean = train.mean(axis=(0, 2, 3), keepdims=True)
    deviation = train.std(axis=(0, 2, 3), keepdims=True)
    scaled = [np.ascontiguousarray((images - mean) / deviation, dtype=np.float32) for images in (train, test)]
    return Dataset(name, scaled[0], train_labels, scaled[1], labels, classes)


# ------------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True, slots=True)
class TrainingKnobs:
    """How to train.

    Attributes:
        epochs, batch, learning_rate, momentum, weight_decay: of SGD with Nesterov momentum.
        warmup_epochs: linear rise of the rate; a cosine to zero follows.
        label_smoothing: of the widest network's labels.
        random_tuples: width tuples drawn for each step beside the widest and the narrowest.
        shift: random crops after padding by so many pixels; flip: mirror half of the images.
        seed: of everything random.
        checkpoint_epochs: write a checkpoint each so many epochs (and at the end).
        device: where to train, as torch names it; bfloat16: autocast there.
    """

    epochs: int = 25
    batch: int = 64
    learning_rate: float = 0.03
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: float = 2.0
    label_smoothing: float = 0.1
    random_tuples: int = 2
    shift: int = 0
    flip: bool = False
    seed: int = 0
    checkpoint_epochs: int = 5
    device: str = "cpu"
    bfloat16: bool = False


RECIPES: dict[str, TrainingKnobs] = {
    # 8x8 strokes fill their frame: shifting them costs more than it teaches
    "digits": TrainingKnobs(epochs=12, learning_rate=0.06, warmup_epochs=1.0),
    "cifar100": TrainingKnobs(epochs=200, batch=128, learning_rate=0.1, warmup_epochs=5.0, shift=4, flip=True),
}


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch behind us: mean loss of the widest and the narrowest network, and the last step's learning rate."""

    epoch: int
    epochs: int
    loss_widest: float
    loss_narrowest: float
    learning_rate: float


def learning_rate(knobs: TrainingKnobs, epoch: float) -> float:
    """Linear warm-up, then a cosine to zero; `epoch` counts fractions."""
    if epoch < knobs.warmup_epochs:
        return knobs.learning_rate * epoch / knobs.warmup_epochs
    share = (epoch - knobs.warmup_epochs) / max(knobs.epochs - knobs.warmup_epochs, 1e-9)
    return knobs.learning_rate * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def train(
    config: SlimResNetConfig,
    dataset: Dataset,
    knobs: TrainingKnobs,
    on_epoch: Callable[[EpochReport], None] | None = None,
    checkpoint: Path | None = None,
    tensorboard: Path | None = None,
) -> SlimResNet:
    """Train a network, from `checkpoint` on if that file is there (and finished epochs are not repeated).

    Returns:
        The trained network, on the CPU.

    Raises:
        InputError: the data does not fit the network, or the checkpoint is of another configuration or other knobs.
    """
    _require_fit(config, dataset)
    torch.manual_seed(derived_seed(knobs.seed, "model"))
    model = SlimResNet(config)
    model.to(knobs.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(), knobs.learning_rate, knobs.momentum, weight_decay=knobs.weight_decay, nesterov=True
    )
    run = _run_hash(config, dataset, knobs)
    done = _resume(checkpoint, run, model, optimizer) if checkpoint is not None and checkpoint.exists() else 0
    with _Board(tensorboard) as board:
        for epoch in range(done, knobs.epochs):
            report = _train_epoch(model, optimizer, dataset, knobs, epoch)
            board.add(report)
            finished = epoch + 1
            if checkpoint is not None and (finished % knobs.checkpoint_epochs == 0 or finished == knobs.epochs):
                _save_checkpoint(checkpoint, run, model, optimizer, finished)
            if on_epoch is not None:
                on_epoch(report)
    model.to("cpu")
    return model


def _require_fit(config: SlimResNetConfig, dataset: Dataset) -> None:
    image = (config.in_channels, config.image_size, config.image_size)
    if dataset.train_images.shape[1:] != image or dataset.classes != config.classes:
        raise InputError(
            "model",
            "dataset",
            f"{dataset.name} has images of {dataset.train_images.shape[1:]} in {dataset.classes} classes, "
            f"the model takes {image} in {config.classes}; choose a model and a data set that fit",
        )


def _train_epoch(
    model: SlimResNet, optimizer: torch.optim.Optimizer, dataset: Dataset, knobs: TrainingKnobs, epoch: int
) -> EpochReport:
    model.train()
    rng = stream(knobs.seed, f"training:{epoch}")
    steps = -(-len(dataset.train_labels) // knobs.batch)
    losses = np.zeros(2)
    rate = 0.0
    for step, (images, labels) in enumerate(_batches(dataset, knobs, rng)):
        rate = learning_rate(knobs, epoch + (step + 1) / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses += _sandwich_step(model, optimizer, images, labels, knobs, rng)
    widest, narrowest = losses / steps
    return EpochReport(epoch + 1, knobs.epochs, float(widest), float(narrowest), rate)


def _batches(dataset: Dataset, knobs: TrainingKnobs, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled, augmented batches: (B, C, H, W) images and (B,) labels."""
    order = rng.permutation(len(dataset.train_labels))
    for start in range(0, len(order), knobs.batch):
        chosen = order[start : start + knobs.batch]
        images = _augment(dataset.train_images[chosen], knobs, rng)
        yield (
            torch.from_numpy(images).to(knobs.device, memory_format=torch.channels_last),
            torch.from_numpy(dataset.train_labels[chosen]).to(knobs.device),
        )


def _augment(images: Images, knobs: TrainingKnobs, rng: np.random.Generator) -> Images:
    """Random crop and flip, for each image on its own; (B, C, H, W) in and out."""
    count, _, height, width = images.shape
    if knobs.flip:
        mirrored = np.less(rng.random((count, 1, 1, 1)), 0.5)
        images = np.where(mirrored, images[..., ::-1], images)
    if not knobs.shift:
        return np.ascontiguousarray(images)
    pad = knobs.shift
    padded = np.pad(images, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="edge")
    offsets = rng.integers(0, 2 * pad + 1, (2, count))
    rows = offsets[0][:, None] + np.arange(height)  # (B, H)
    columns = offsets[1][:, None] + np.arange(width)  # (B, W)
    cropped = padded[np.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # (B, H, W, C)
    return np.ascontiguousarray(np.moveaxis(cropped, -1, 1))


def _sandwich_step(
    model: SlimResNet,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    knobs: TrainingKnobs,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """One step over {widest, narrowest, random ...}; returns the losses of the first two."""
    config = model.config
    optimizer.zero_grad(set_to_none=True)
    logits = _logits(model, images, (config.widths[-1],) * config.segments, knobs)
    widest = F.cross_entropy(logits, labels, label_smoothing=knobs.label_smoothing)
    widest.backward()  # type: ignore[no-untyped-call]
    soft = logits.detach().softmax(dim=1)
    tuples = [(config.widths[0],) * config.segments]
    tuples += [tuple(rng.choice(config.widths, config.segments).tolist()) for _ in range(knobs.random_tuples)]
    losses = []
    for widths in tuples:
        loss = F.cross_entropy(_logits(model, images, widths, knobs), soft)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    optimizer.step()
    return float(widest.detach()), float(losses[0])


def _logits(model: SlimResNet, images: Tensor, widths: tuple[float, ...], knobs: TrainingKnobs) -> Tensor:
    with torch.autocast(images.device.type, torch.bfloat16, enabled=knobs.bfloat16):
        logits: Tensor = model(images, widths)
    return logits.float()


# --------------------------------------------------------------------------------------------------------- checkpoints


def _run_hash(config: SlimResNetConfig, dataset: Dataset, knobs: TrainingKnobs) -> str:
    """What a checkpoint must have been made with to be resumed; the place and pace of writing do not matter."""
    settings = asdict(knobs)
    del settings["checkpoint_epochs"]
    text = json.dumps([asdict(config), settings, dataset.name, len(dataset.train_labels)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _save_checkpoint(
    path: Path, run: str, model: SlimResNet, optimizer: torch.optim.Optimizer, finished_epochs: int
) -> None:
    tensors = {f"weights.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        tensors[f"momentum.{name}"] = optimizer.state[parameter]["momentum_buffer"]
    metadata = {"schema": CHECKPOINT_SCHEMA, "run": run, "epochs": str(finished_epochs), **model.config.to_metadata()}
    save_tensors(path, tensors, metadata)


def _resume(path: Path, run: str, model: SlimResNet, optimizer: torch.optim.Optimizer) -> int:
    """Put a checkpoint's state in place; returns the epochs that are done."""
    tensors, metadata = load_tensors(path, CHECKPOINT_SCHEMA)
    if metadata.get("run") != run:
        remedy = "remove the file, or train with the settings it was begun with"
        raise InputError(str(path), "", f"is a checkpoint of another model, data set or training; {remedy}")
    prefix = "weights."
    model.load_state_dict({name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)})
    for name, parameter in model.named_parameters():
        momentum = tensors[f"momentum.{name}"].to(parameter.device)
        optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)
    return int(metadata["epochs"])


class _Board:
    """A TensorBoard log, or nothing where no folder was given."""

    def __init__(self, folder: Path | None) -> None:
        self._writer = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))

    def __enter__(self) -> _Board:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, report: EpochReport) -> None:
        if self._writer is None:
            return
        for name in ("loss_widest", "loss_narrowest", "learning_rate"):
            self._writer.add_scalar(f"training/{name}", getattr(report, name), report.epoch)
