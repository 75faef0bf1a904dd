"""Evaluation of a network at every width tuple, and training of a slimmable one by the sandwich rule with exact resume.

`evaluate`: tuples with a common prefix share the work of its segments. It measures nothing but correctness.

`train`: each step trains the widest network, the narrowest, and two whose widths are drawn for each segment separately
(otherwise mixed width tuples stay untrained). All but the widest learn from the widest's detached soft labels (Yu and
Huang 2019). Random numbers come from named streams by epoch, so that a run resumed at an epoch's start gives exactly
the same result. Training decides nothing about serving.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from hw.device_settings import require_torch_device
from hw.host_resources import core_count
from hw.networks.accuracy_table import MAX_BITS, Evaluation
from hw.networks.datasets import Dataset, require_fit, require_training_images
from hw.networks.network_files import Trainable, load_tensors, model_hash, save_tensors
from hw.networks.servable import Servable
from hw.networks.slimmable import SlimmableModel
from kit.errors import InputError, WorkError
from kit.random_streams import derived_seed, stream
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
    parts: list[NDArray[np.bool_]] = []
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
            parts.append(logits.argmax(dim=1).cpu().numpy() == labels)
            if on_progress is not None:
                on_progress(min(start + batch, images), images)
    return np.concatenate(parts)


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


# ------------------------------------------------------------------------------------------------------------- training


CHECKPOINT_SCHEMA = "slimsched.checkpoint/1"

Precision = Literal["auto", "float32", "bfloat16", "float16"]
Optimizer = Literal["sgd", "adamw"]


@dataclass(frozen=True, slots=True)
class TrainingParams:
    """Settings of training.

    Attributes:
        optimizer: `sgd` has Nesterov momentum, and decays all; `adamw` (for Transformers) decays no biases and norms.
        momentum: of SGD.
        clip_norm: longer gradients are shortened to this length; 0: never.
        warmup_epochs: linear rise of the rate; a cosine to zero follows.
        label_smoothing: of the widest network's labels.
        random_tuples: width tuples drawn for each step in addition to the widest and the narrowest.
        label_share: weight of the image's label (with the same smoothing) in the target of narrower networks; the rest
            is the widest's output. At 0 they learn only what the widest has learned so far, which early is little.
        shift: random crops after padding by this number of pixels; flip: mirror half of the images.
        growth: (share of the epochs, pixels), ascending: until then images are shrunk to this size, which costs less
            and teaches the coarse; after the last they have their own size. For networks that take any size.
        seed: of everything random.
        checkpoint_epochs: epochs between checkpoints (and one at the end).
        probe_epochs: epochs between measurements of the uniform widths on the test images (and at the end); 0 never.
        device: of the training, in torch's notation.
        precision: of the forward passes; `auto` is bfloat16 or float16 on a GPU that has it, otherwise float32.
    """

    epochs: int = 25
    batch: int = 64
    optimizer: Optimizer = "sgd"
    learning_rate: float = 0.03
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip_norm: float = 0.0
    warmup_epochs: float = 2.0
    label_smoothing: float = 0.1
    random_tuples: int = 2
    label_share: float = 0.5
    shift: int = 0
    flip: bool = False
    growth: tuple[tuple[float, int], ...] = ()
    seed: int = 0
    checkpoint_epochs: int = 1
    probe_epochs: int = 5
    device: str = "cpu"
    precision: Precision = "auto"

    def of_the_result(self) -> dict[str, Any]:
        """Return the settings that the trained weights depend on: not the intervals of checkpoints and measurements."""
        return {
            name: value for name, value in asdict(self).items() if name not in ("checkpoint_epochs", "probe_epochs")
        }


# half a minute, with one drawn tuple a step; no crops: a digit's position is its place value
_DIGIT_PAIRS: Final = TrainingParams(
    epochs=3,
    batch=32,
    learning_rate=0.05,
    warmup_epochs=0.2,
    label_smoothing=0.05,
    random_tuples=1,
    probe_epochs=0,
)

_ADAMW: Final = TrainingParams(
    optimizer="adamw",
    learning_rate=2e-3,
    weight_decay=0.05,
    clip_norm=1.0,
    warmup_epochs=1.0,
    label_smoothing=0.05,
)

RECIPES: dict[str, TrainingParams] = {
    # 8x8 strokes fill their frame: shifting them costs more than it teaches
    "digits": TrainingParams(epochs=12, learning_rate=0.06, warmup_epochs=1.0, probe_epochs=0),
    "digit-pairs": _DIGIT_PAIRS,
    # two and a half minutes of an H200, by the time a step took there; four epochs taught it 8 % of the answers
    "large-digit-pairs": replace(_DIGIT_PAIRS, epochs=12, batch=64, warmup_epochs=1.0),
    # two cores train it in ten minutes; the network is bundled
    "large-digit-pairs slimresnet-pairs": replace(_DIGIT_PAIRS, epochs=16),
    "cifar100": TrainingParams(epochs=200, batch=128, learning_rate=0.1, warmup_epochs=5.0, shift=4, flip=True),
    # two cores train it in about an hour; so small a network underfits: little smoothing, and small images first
    "cifar100 slimresnet-tiny": TrainingParams(
        epochs=52,
        batch=128,
        learning_rate=0.2,
        warmup_epochs=1.0,
        label_smoothing=0.05,
        shift=4,
        flip=True,
        growth=((0.25, 16), (0.65, 24)),
    ),
    "cifar100 slimvit-tiny": replace(_ADAMW, epochs=52, batch=128, shift=4, flip=True, growth=((0.25, 16), (0.65, 24))),
    "digit-pairs slimvit-pairs": replace(
        _ADAMW, epochs=8, batch=32, warmup_epochs=0.4, random_tuples=1, probe_epochs=0
    ),
}


def recipe(dataset: str, network: str) -> TrainingParams:
    """Return the default settings for a network on a data set; on a user's own, the defaults of `TrainingParams`."""
    return RECIPES.get(f"{dataset} {network}") or RECIPES.get(dataset, TrainingParams())


@dataclass(frozen=True, slots=True)
class EpochReport:
    """A finished epoch.

    Attributes:
        loss_widest, loss_narrowest: means over the epoch.
        learning_rate: of the last step.
        top1: by uniform width, on the test images; empty if this epoch was not measured.
    """

    epoch: int
    epochs: int
    loss_widest: float
    loss_narrowest: float
    learning_rate: float
    top1: Mapping[float, float] = field(default_factory=dict)


def learning_rate(params: TrainingParams, epoch: float) -> float:
    """Return the rate of a linear warm-up, then a cosine to zero; `epoch` counts fractions."""
    if epoch < params.warmup_epochs:
        return params.learning_rate * epoch / params.warmup_epochs
    share = (epoch - params.warmup_epochs) / max(params.epochs - params.warmup_epochs, 1e-9)
    return params.learning_rate * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def train(
    network: Trainable,
    dataset: Dataset,
    params: TrainingParams,
    on_epoch: Callable[[EpochReport], None] | None = None,
    checkpoint: Path | None = None,
    tensorboard: Path | None = None,
    on_step: Callable[[int, int], None] | None = None,
    teacher: nn.Module | None = None,
) -> SlimmableModel:
    """Train a network, from `checkpoint` on if that file exists (and finished epochs are not repeated).

    Args:
        on_epoch: called after each epoch, when its checkpoint is written.
        tensorboard: a folder for losses, learning rate and accuracy by epoch.
        on_step: called with (steps done, steps in all) at the start and after each step; an earlier start's count.
        teacher: whose logits every width learns from, instead of the widest's; in eval mode.

    Returns:
        The trained network, on the CPU.

    Raises:
        InputError: the data does not fit the network, or the checkpoint is of another configuration or other
            parameters.
        WorkError: training diverged.
    """
    with _deterministic():  # otherwise a resumed run differs from an uninterrupted one
        return _trained(
            _Training(network, dataset, params, teacher), params, on_epoch, checkpoint, tensorboard, on_step
        )


@contextmanager
def _deterministic() -> Iterator[None]:
    """Make a GPU's convolutions deterministic, and limit threads to the CPU quota; restore both afterwards."""
    before, threads = torch.backends.cudnn.deterministic, torch.get_num_threads()
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(min(threads, core_count()))
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before
        torch.set_num_threads(threads)


def _trained(
    run: _Training,
    params: TrainingParams,
    on_epoch: Callable[[EpochReport], None] | None,
    checkpoint: Path | None,
    tensorboard: Path | None,
    on_step: Callable[[int, int], None] | None,
) -> SlimmableModel:
    finished_epochs = run.resume(checkpoint) if checkpoint is not None and checkpoint.exists() else 0
    tell = on_step or (lambda *_: None)
    tell(finished_epochs * run.steps, params.epochs * run.steps)
    with _EpochLog(tensorboard, finished_epochs) as log:
        for epoch in range(finished_epochs, params.epochs):
            report = run.epoch(epoch, tell)
            log.add(report)
            finished = epoch + 1
            if checkpoint is not None and (finished % params.checkpoint_epochs == 0 or finished == params.epochs):
                run.save(checkpoint, finished)
            if on_epoch is not None:
                on_epoch(report)
    run.model.to("cpu")
    return run.model


def _require_batch(dataset: Dataset, params: TrainingParams) -> None:
    images = len(dataset.train_labels)
    if images < params.batch:
        problem = f"{dataset.name} has too few images: {images} for batches of {params.batch}; make the batch smaller"
        raise InputError("model", "training.batch", problem)


def _require_growth(model: SlimmableModel, params: TrainingParams) -> None:
    """Require that sizes grow up to the images' own, and that the network takes each of them."""
    channels, *extent = model.spec.input_shape
    shares, sizes = [share for share, _ in params.growth], [pixels for _, pixels in params.growth]
    if (
        shares != sorted(set(shares))
        or any(not 0 < share < 1 for share in shares)
        or max(sizes, default=1) > min(extent)
    ):
        problem = (
            f"found {[list(pair) for pair in params.growth]}; shares must ascend between 0 and 1 (the last epochs "
        )
        raise InputError("model", "training.growth", problem + f"have whole images), pixels be at most {min(extent)}")
    for pixels in sizes:
        try:
            with torch.no_grad():
                model(torch.zeros(2, channels, pixels, pixels, device=params.device), (1.0,) * model.spec.segments)
        except Exception as error:
            problem = f"the network takes no images of {pixels} pixels ({type(error).__name__}: {error}); leave it out"
            raise InputError("model", "training.growth", problem) from None


def autocast_dtype(precision: Precision, device: str) -> torch.dtype | None:
    """Return the type of forward passes; None for plain float32."""
    if precision == "auto":
        if torch.device(device).type != "cuda":
            return None  # measured on CPUs: GroupNorm in bfloat16 costs more than convolutions gain
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]


class _Training:
    """A network in training, with all state that a checkpoint keeps."""

    def __init__(
        self, network: Trainable, dataset: Dataset, params: TrainingParams, teacher: nn.Module | None = None
    ) -> None:
        require_torch_device(params.device)
        torch.manual_seed(derived_seed(params.seed, "model"))
        self.model = network.build()
        require_fit(self.model.spec, dataset)
        require_training_images(dataset)
        _require_batch(dataset, params)
        self.model.to(params.device)
        kind = torch.device(params.device).type
        # GPUs are faster with channels last. On a CPU torch 2.15's oneDNN breaks memory in the backward pass of a
        # convolution with slimmed weights in that order, if the CPU has AVX2 and no AVX-512.
        self._format = torch.channels_last if kind == "cuda" else torch.contiguous_format
        for parameter in self.model.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=self._format)
        _require_growth(self.model, params)
        self._network = network
        self._dataset = dataset
        self._params = params
        self._teacher = teacher.to(params.device) if teacher is not None else None
        self._optimizer = _optimizer(self.model, params)
        self._labels = torch.from_numpy(dataset.train_labels).to(params.device)
        self._dtype = autocast_dtype(params.precision, params.device)
        self._scaler = torch.amp.GradScaler(kind, enabled=self._dtype == torch.float16)

    @property
    def steps(self) -> int:
        """The steps of an epoch."""
        return -(-len(self._labels) // self._params.batch)

    def epoch(self, epoch: int, on_step: Callable[[int, int], None]) -> EpochReport:
        """Make one pass over the training images."""
        params = self._params
        self.model.train()
        rng = stream(params.seed, f"training:{epoch}")
        steps = self.steps
        # read once an epoch: reading waits for a GPU
        losses = torch.zeros(2, dtype=torch.float64, device=params.device)
        rate = 0.0
        pixels = next((pixels for share, pixels in params.growth if epoch < share * params.epochs), None)
        for step, (images, labels) in enumerate(self._batches(rng, pixels)):
            rate = learning_rate(params, epoch + (step + 1) / steps)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            losses += self._sandwich_step(images, labels, rng)
            on_step(epoch * steps + step + 1, params.epochs * steps)
        widest, narrowest = (losses / steps).tolist()
        if not math.isfinite(widest + narrowest):
            remedy = "lower training.learning_rate; what was learned before this epoch is in the checkpoint"
            raise WorkError(f"training diverged in epoch {epoch + 1}: the loss is {widest} and {narrowest}; {remedy}")
        is_probed = params.probe_epochs and ((epoch + 1) % params.probe_epochs == 0 or epoch + 1 == params.epochs)
        shares = self._uniform_top1() if is_probed else {}
        return EpochReport(epoch + 1, params.epochs, widest, narrowest, rate, shares)

    def _batches(self, rng: np.random.Generator, pixels: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield shuffled, augmented batches: (B, C, H, W) images, shrunk to `pixels` if given, and (B,) labels."""
        order = rng.permutation(len(self._labels))
        for start in range(0, len(order), self._params.batch):
            indices = order[start : start + self._params.batch]
            images = torch.from_numpy(np.asarray(self._dataset.train_images[indices])).to(self._labels.device)
            images = _augment(images, self._params, rng)
            if pixels is not None:
                images = F.interpolate(images, (pixels, pixels), mode="bilinear", antialias=True)
            yield images.contiguous(memory_format=self._format), self._labels[torch.from_numpy(indices)]

    def _sandwich_step(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Tensor:
        """Take one step over {widest, narrowest, random ...}; return the losses of the first two, (2,)."""
        spec, params = self.model.spec, self._params
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._logits(images, (spec.widths[-1],) * spec.segments)
        if self._teacher is None:
            widest = F.cross_entropy(logits, labels, label_smoothing=params.label_smoothing)
            target = self._target(logits.detach(), labels)
        else:
            with torch.no_grad():
                target = self._target(self._teacher(images), labels)
            widest = F.cross_entropy(logits, target)
        self._scaler.scale(widest).backward()  # type: ignore[no-untyped-call]
        tuples = [(spec.widths[0],) * spec.segments]
        tuples += [tuple(rng.choice(spec.widths, spec.segments).tolist()) for _ in range(params.random_tuples)]
        losses = [widest.detach()]
        for widths in tuples:
            loss = F.cross_entropy(self._logits(images, widths), target)
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        if self._params.clip_norm:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self._params.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return torch.stack(losses[:2]).double()

    def _target(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (B, classes) the target of narrower networks, given the widest's logits."""
        params, classes = self._params, logits.shape[1]
        hard = F.one_hot(labels, classes) * (1 - params.label_smoothing) + params.label_smoothing / classes
        return params.label_share * hard + (1 - params.label_share) * logits.softmax(dim=1)

    def _logits(self, images: Tensor, widths: tuple[float, ...]) -> Tensor:
        with torch.autocast(images.device.type, self._dtype, enabled=self._dtype is not None):
            logits: Tensor = self.model(images, widths)
        return logits.float()

    def _uniform_top1(self) -> dict[float, float]:
        """Return the share of test images that each uniform width classifies correctly."""
        spec, params = self.model.spec, self._params
        self.model.eval()
        return {
            width: top1(lambda x, width=width: self._logits(x, (width,) * spec.segments), self._dataset, params.device)  # type: ignore[misc]
            for width in spec.widths
        }

    # ------------------------------------------------------------------------------------------------- checkpoints

    def _hash(self) -> str:
        """Return the hash of the settings that a checkpoint must share to be resumed."""
        settings = self._params.of_the_result()
        shapes = [(name, tuple(tensor.shape)) for name, tensor in sorted(self.model.state_dict().items())]
        data = (self._dataset.name, len(self._dataset.train_labels))
        text = json.dumps([self._network.label, self.model.spec.widths, shapes, settings, data], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def save(self, path: Path, finished_epochs: int) -> None:
        """Write everything that the next epoch depends on."""
        tensors = {f"weights.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for kind, value in self._optimizer.state[parameter].items():
                tensors[f"optimizer.{kind}.{name}"] = value
        scaler = json.dumps(self._scaler.state_dict())
        plan = {"planned_epochs": str(self._params.epochs), "images": str(len(self._labels))}
        metadata = {"schema": CHECKPOINT_SCHEMA, "run": self._hash(), "epochs": str(finished_epochs), "scaler": scaler}
        save_tensors(path, tensors, metadata | plan | {"hash": model_hash(tensors)})

    def resume(self, path: Path) -> int:
        """Restore a checkpoint's state; return the number of finished epochs."""
        tensors, metadata = require_checkpoint(path)
        if metadata.get("run") != self._hash():
            remedy = "remove the file, or train with the settings it was begun with"
            raise InputError(str(path), "", f"is a checkpoint of another model, data set or training; {remedy}")
        prefix, parameters = "weights.", dict(self.model.named_parameters())
        weights = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
        self.model.load_state_dict(weights)
        for full_name, value in tensors.items():
            if full_name.startswith("optimizer."):
                _, kind, name = full_name.split(".", 2)
                parameter = parameters[name]
                is_count = value.dim() == 0  # of steps; otherwise it has its parameter's layout
                state = value if is_count else torch.empty_like(parameter).copy_(value)
                self._optimizer.state[parameter][kind] = state
        self._scaler.load_state_dict(json.loads(metadata["scaler"]))
        return int(metadata["epochs"])


def _optimizer(model: nn.Module, params: TrainingParams) -> torch.optim.Optimizer:
    rate, decay = params.learning_rate, params.weight_decay
    if params.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), rate, params.momentum, weight_decay=decay, nesterov=True)
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in model.parameters() if parameter.dim() > 1], "weight_decay": decay},
        {"params": [parameter for parameter in model.parameters() if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, rate)


def require_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a checkpoint's tensors and metadata; raises `InputError` if it is damaged or something else."""
    tensors, metadata = load_tensors(path, CHECKPOINT_SCHEMA)
    if metadata.get("hash") != model_hash(tensors):
        raise InputError(str(path), "hash", "damaged: its tensors are not those that were written; remove the file")
    return tensors, metadata


def _augment(images: Tensor, params: TrainingParams, rng: np.random.Generator) -> Tensor:
    """Crop and flip at random, for each image separately; (B, C, H, W) in and out.

    Random numbers are drawn on the host. A GPU takes them when it gets there: this thread continues launching
    meanwhile.
    """
    count, channels, height, width = images.shape
    if params.flip:
        mirrored = torch.from_numpy(np.less(rng.random((count, 1, 1, 1)), 0.5)).to(images.device, non_blocking=True)
        images = torch.where(mirrored, images.flip(-1), images)
    if not params.shift:
        return images
    padded = F.pad(images, (params.shift,) * 4, mode="replicate")
    offsets = torch.from_numpy(rng.integers(0, 2 * params.shift + 1, (2, count))).to(images.device, non_blocking=True)
    image, channel = torch.arange(count, device=images.device), torch.arange(channels, device=images.device)
    rows = offsets[0][:, None] + torch.arange(height, device=images.device)  # (B, H)
    columns = offsets[1][:, None] + torch.arange(width, device=images.device)  # (B, W)
    return padded[image[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


class _EpochLog:
    """A TensorBoard log, or nothing if no folder was given."""

    def __init__(self, folder: Path | None, finished: int) -> None:
        self._writer = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=finished + 1 if finished else None)

    def __enter__(self) -> _EpochLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, report: EpochReport) -> None:
        if self._writer is None:
            return
        for name in ("loss_widest", "loss_narrowest", "learning_rate"):
            self._writer.add_scalar(f"training/{name}", getattr(report, name), report.epoch)
        for width, share in report.top1.items():
            self._writer.add_scalar(f"top1/width {width:g}", share, report.epoch)
        self._writer.flush()  # an interrupted training has logged all of its results
