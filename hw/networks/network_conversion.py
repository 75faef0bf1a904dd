"""Makes a trained network slimmable with itself as the teacher: sorts channels, recalibrates, tunes, measures.

Sorting: tied channels are sorted together, by the size of their output and of its later use. At full width the
network still computes what the given one does; at a narrower width the least important channels are cut off.

Tuning: every width learns from the labels and from the given network (the sandwich rule of
`hw.networks.network_training`). Then `recalibrate` determines the BatchNorm statistics of every key again.
"""

from __future__ import annotations

import copy
import time  # noqa: TID251 - epochs fill the time that is given
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from hw.networks.datasets import Dataset, Images, Pixels
from hw.networks.network_files import model_hash
from hw.networks.network_tracing import UnknownLayerError, structure_of
from hw.networks.network_training import TrainingParams, recipe, require_checkpoint, top1, train
from hw.networks.slimmable import TABLES, Dimension, Layer, SlimmedNetwork, Weights, weight_name
from hw.networks.third_party_networks import GivenNetwork, Rescale
from kit.errors import InputError, WorkError, in_a_line
from kit.random_streams import stream
from policies.vocabulary import IMAGE

EXACTNESS = 1e-4  # of the largest logit
IMAGES, ROUNDS = 100, 8  # that statistics are taken of


def made_slimmable(given: nn.Module, images: Tensor, widths: Sequence[float]) -> SlimmedNetwork:
    """Return the same network, with channels sorted; statistics of narrower widths are still the given ones.

    Args:
        given: in eval mode.
        images: (B, C, H, W) some, on which both are compared.

    Raises:
        UnknownLayerError: it has layers that can't be slimmed, or does more than its layers specify.
    """
    model = SlimmedNetwork(structure_of(given, tuple(images.shape[1:]), widths)).eval()
    with torch.no_grad():
        _take_over(model, given)
        expected, output = given(images), model(images, (1.0,) * model.spec.segments)
    if float((expected - output).abs().max()) > EXACTNESS * float(expected.abs().max()):
        raise UnknownLayerError("its layers, one after the other, compute something else than it does")
    return model


def _take_over(model: SlimmedNetwork, given: nn.Module) -> None:
    modules = dict(given.named_modules())
    layers, groups = model.structure.layers, model.structure.groups
    weights = {
        layer.name: _given_weights(layer, modules[layer.name], groups[layer.group].count)
        for layer in layers
        if layer.dimensions
    }
    scores = _scores(layers, weights, [group.count for group in groups])
    orders = [
        torch.arange(group.count) if group.segment == 0 else _order(score, group.unit)
        for group, score in zip(groups, scores, strict=True)
    ]
    state = model.state_dict()
    for layer in layers:
        for name, dimensions in layer.dimensions.items():
            state[weight_name(layer, name)].copy_(_arranged(weights[layer.name][name], dimensions, orders))


def _given_weights(layer: Layer, module: nn.Module, channels: int) -> dict[str, Tensor]:
    """Return the weights by the layer's own names."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if layer.kind == "batch_norm":
        state |= {name: state[f"running_{name}"] for name in TABLES}
    for name in layer.dimensions:
        if name not in state and isinstance(value := getattr(module, name, None), Tensor):  # by a hook, at each pass
            state[name] = value.detach()
    neutral = {"weight": torch.ones, "bias": torch.zeros}  # of a norm without them
    return {name: state[name] if name in state else neutral[name](channels) for name in layer.dimensions}


def _scores(
    layers: Sequence[Layer], weights: Mapping[str, Mapping[str, Tensor]], counts: Sequence[int]
) -> list[Tensor]:
    """Return each group's channels' scores: their output by norms (or kernels), times later kernels' use of it."""
    outputs = [torch.zeros(count) for count in counts]
    norms = [torch.zeros(count) for count in counts]
    uses = [torch.zeros(count) for count in counts]
    for layer in layers:
        if layer.kind in ("conv", "linear"):
            kernel = weights[layer.name]["weight"].abs()
            outputs[layer.group] += kernel.flatten(1).sum(1)
            uses[layer.source] += kernel.reshape(len(kernel), len(uses[layer.source]), -1).sum((0, 2))
        elif layer.kind in ("batch_norm", "group_norm"):
            norms[layer.group] += weights[layer.name]["weight"].abs()
    return [
        (norm if norm.any() else output) * (use if use.any() else 1)
        for output, norm, use in zip(outputs, norms, uses, strict=True)
    ]


def _order(score: Tensor, unit: int) -> Tensor:
    """Return channels, the most important first; whole units of them."""
    units = score.view(-1, unit).sum(1).argsort(descending=True, stable=True)
    return (units[:, None] * unit + torch.arange(unit)).flatten()


def _arranged(weight: Tensor, dimensions: Sequence[Dimension], orders: Sequence[Tensor]) -> Tensor:
    for axis, dimension in enumerate(dimensions):
        if not isinstance(dimension, int):
            group, features = dimension
            indices = orders[group][:, None] * features + torch.arange(features)
            weight = weight.index_select(axis, indices.flatten())
    return weight


# ---------------------------------------------------------------------------------------------------------- statistics


@dataclass
class _Sums:
    """Sums of one BatchNorm at one key, over batches: of means, and of means of squares; (C,) each."""

    batches: int
    mean: Tensor
    square: Tensor


def recalibrate(model: SlimmedNetwork, images: Images, seed: int) -> None:
    """Take the statistics of every key, from images through all previous widths in turn, an equal share by each.

    Args:
        images: (n, C, H, W) to draw from.
    """
    sums: dict[tuple[str, int, int], _Sums] = {}

    def normalize(layer: Layer, x: Tensor, weights: Weights) -> Tensor:
        table = weights[weight_name(layer, TABLES[0])]
        pixels = tuple(axis for axis in range(x.dim()) if axis != 1)
        mean, square = x.mean(pixels), x.square().mean(pixels)
        key = (layer.name, *table.shape[:2])
        total = sums.setdefault(key, _Sums(0, torch.zeros_like(mean), torch.zeros_like(mean)))
        total.batches += 1
        total.mean = total.mean + mean
        total.square = total.square + square
        scale, shift = (weights[weight_name(layer, name)] for name in ("weight", "bias"))
        return F.batch_norm(x, None, None, scale, shift, training=True, eps=layer.eps)

    rng, device = stream(seed, "slimming:statistics"), next(model.parameters()).device
    model.normalize = normalize
    with torch.no_grad():
        for _ in range(ROUNDS):
            indices = rng.choice(len(images), min(IMAGES, len(images)), replace=False)
            _through_all_keys(model, torch.from_numpy(np.asarray(images[indices])).to(device))
    model.normalize = None
    layers, state = {layer.name: layer for layer in model.structure.layers}, model.state_dict()
    for (name, row, column), total in sums.items():
        mean = total.mean / total.batches
        var = (total.square / total.batches - mean.square()).clamp_(min=0)
        for table, values in zip(TABLES, (mean, var), strict=True):
            state[weight_name(layers[name], table)][row - 1, column - 1, : len(values)] = values


def _through_all_keys(model: SlimmedNetwork, images: Tensor) -> None:
    """Run one batch through every key; a segment's inputs come from the previous widths, image by image in turn."""
    before, widths = {IMAGE: images}, model.spec.widths
    for segment in range(1, model.spec.segments + 1):
        after = {}
        for width in widths:
            outputs = [model.forward_segment(x, segment, width, previous) for previous, x in before.items()]
            turn = torch.arange(len(images), device=images.device) % len(outputs)
            after[width] = torch.cat([output[turn == number] for number, output in enumerate(outputs)])
        before = after


# -------------------------------------------------------------------------------------------------------- normalisation


OWN: Final = "these images' own mean and deviation"
USUAL: Final = "ImageNet's mean and deviation"
NORMALISATIONS: Final = {  # mean and deviation of pixels from 0 to 1, by channel
    USUAL: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "pixels from -1 to 1": ((0.5,), (0.5,)),
    "pixels from 0 to 1": ((0.0,), (1.0,)),
}
MOST_LOST: Final = 0.03  # of accuracy at full width: beyond, the narrower ones are not a fair trade
_PROBED_STEPS: Final = 4
_MAX_EPOCHS: Final = 30  # beyond, digit-pairs gain nothing


def fitted(module: nn.Module, dataset: Dataset, source: str, tried_on: int = 500) -> tuple[GivenNetwork, str]:
    """Return the network with the normalisation that classifies most of some images correctly, and that one's name.

    The images are the training images, if there are some: a choice of four that is made on test images flatters little.
    `USUAL` stays unless another one is better by a standard error.

    Args:
        module: in eval mode.
        source: the network's name, for messages.
        tried_on: the number of images, at most.

    Raises:
        InputError: it takes no such images, or is not more accurate on them than chance.
    """
    images, labels = dataset.train_images, dataset.train_labels
    if not len(labels):
        images, labels = dataset.test_images, dataset.test_labels
    indices = stream(0, "slimming:normalisation").permutation(len(labels))[:tried_on]
    sample = replace(dataset, test_images=images[indices], test_labels=labels[indices])
    tried = {OWN: GivenNetwork(nn.Identity(), module)}
    for name, scale in NORMALISATIONS.items():
        if len(scale[0]) in (1, images.shape[1]):
            tried[name] = GivenNetwork(_rescale(dataset, images, *scale), module)
    try:
        shares = {name: top1(network, sample, batch=100) for name, network in tried.items()}
    except Exception as error:
        shape, problem = images.shape[1:], in_a_line(f"{type(error).__name__}: {error}")
        remedy = "--size sets the size of a folder's images"
        raise InputError(
            source, "", f"can't take images of {shape} from {dataset.name} ({problem}); {remedy}"
        ) from None
    best = max(shares, key=lambda name: shares[name])
    if shares.get(USUAL, -1.0) >= shares[best] - sqrt(shares[best] * (1 - shares[best]) / len(indices)):
        best = USUAL
    _require_knowledge(tried[best], shares[best], sample, source)
    return tried[best], best


def _rescale(dataset: Dataset, images: Images, mean: Sequence[float], deviation: Sequence[float]) -> Rescale:
    """Return the conversion from the data set's normalisation to one with this mean and deviation."""
    own_mean, own_deviation = (torch.tensor(each, dtype=torch.float32) for each in (dataset.mean, dataset.deviation))
    if isinstance(images, Pixels):
        largest = 255.0
    else:  # of all pixels, before they were normalised
        highest = torch.from_numpy(np.asarray(images)).amax((0, 2, 3))
        largest = float((highest * own_deviation + own_mean).max())
    target_mean, target_deviation = torch.tensor(mean), torch.tensor(deviation)
    weight = own_deviation / largest / target_deviation
    return Rescale(weight, (own_mean / largest - target_mean) / target_deviation)


def _require_knowledge(network: nn.Module, share: float, sample: Dataset, source: str) -> None:
    images, chance = len(sample.test_labels), 1 / sample.classes
    if share > chance + 3 * sqrt(chance * (1 - chance) / images):
        return
    problem = f"gets {100 * share:.1f} % of {images} images of {sample.name}, no more than chance"
    confusion: NDArray[np.int64] = np.zeros((sample.classes, sample.classes), np.int64)
    with torch.inference_mode():
        parts = torch.split(torch.from_numpy(np.asarray(sample.test_images)), 100)
        answers = torch.cat([network(part).argmax(1) for part in parts])
    np.add.at(confusion, (sample.test_labels, answers.numpy() % sample.classes), 1)
    paired = confusion[linear_sum_assignment(confusion, maximize=True)].sum() / images
    if paired > 0.5:
        remedy = "name the folders so that their alphabetical order is that in which it learned the classes"
        raise InputError(source, "", f"{problem}: its classes have another order; {remedy}")
    raise InputError(source, "", f"{problem}; give the weights and the images that belong together")


# ------------------------------------------------------------------------------------------------------------ the work


@dataclass(frozen=True)
class Conversion:
    """A network that was made slimmable, and its accuracy; shares of the test images.

    Attributes:
        given: of the network that was given.
        top1: by width, the same in all segments.
        epochs: that it was tuned for.
    """

    model: SlimmedNetwork
    given: float
    top1: dict[float, float]
    epochs: int


@dataclass(frozen=True)
class _Sorted:
    """A network to be tuned, as `train` takes it."""

    label: str
    model: SlimmedNetwork

    def build(self) -> SlimmedNetwork:
        return copy.deepcopy(self.model)


def converted(
    given: GivenNetwork,
    dataset: Dataset,
    widths: Sequence[float],
    label: str,
    *,
    seconds: float,
    device: str = "cpu",
    checkpoint: Path | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Make a trained network slimmable.

    Args:
        given: see `fitted`.
        widths: ascending, the last one 1.
        label: its name.
        seconds: for tuning; one epoch of some images is the least. Resumed tuning keeps its original settings.
        checkpoint: of the tuning; it resumes from there, and the file is removed at the end.

    Raises:
        InputError: it has layers that can't be slimmed, or the checkpoint is of another network or data set.
        WorkError: it loses too much at full width, or tuning diverged.
    """
    try:
        model = made_slimmable(given, torch.from_numpy(np.asarray(dataset.test_images[:4])), widths)
    except UnknownLayerError as error:
        raise InputError(label, "", f"can't be made slimmable: {error}") from None
    params = replace(
        recipe(dataset.name, ""), batch=min(64, len(dataset.train_labels)), learning_rate=0.02, warmup_epochs=0.2,
        label_smoothing=0.0, random_tuples=2, label_share=0.5, growth=(), probe_epochs=0, device=device,
    )  # fmt: skip
    source = _Sorted(f"{label} {model_hash(model.state_dict())}", model)
    if checkpoint is not None and checkpoint.exists():
        tuning_set, params = _begun(checkpoint, dataset, params)
    else:
        tuning_set, params = _within(seconds, source, dataset, params, given)
    tuned = train(source, tuning_set, params, checkpoint=checkpoint, on_step=on_step, teacher=given)
    assert isinstance(tuned, SlimmedNetwork), "it was one"
    recalibrate(tuned.to(device), dataset.train_images, params.seed)
    tuned.eval()
    top1_by_width = {
        width: top1(lambda x, width=width: tuned(x, (width,) * tuned.spec.segments), dataset, device)  # type: ignore[misc]
        for width in tuned.spec.widths
    }
    conversion = Conversion(tuned.to("cpu"), top1(given.to(device), dataset, device), top1_by_width, params.epochs)
    if checkpoint is not None:
        checkpoint.unlink()
    if conversion.given - conversion.top1[1.0] > MOST_LOST:
        text = ", ".join(f"{100 * share:.1f} % at {width:g}" for width, share in conversion.top1.items())
        problem = f"not worth it: {text}; the given network has {100 * conversion.given:.1f} %"
        raise WorkError(f"{label}: {problem}; give it more --minutes, or more images")
    return conversion


def _within(
    seconds: float, source: _Sorted, dataset: Dataset, params: TrainingParams, teacher: nn.Module
) -> tuple[Dataset, TrainingParams]:
    """Return images and parameters that fit in the time: at least one epoch, of fewer images if needed."""
    begin_ns = time.monotonic_ns()
    probe = _part(dataset, _PROBED_STEPS * params.batch, params)
    train(source, probe, replace(params, epochs=1), teacher=teacher)
    image_s = (time.monotonic_ns() - begin_ns) / 1e9 / len(probe.train_labels)
    epochs = seconds / (image_s * len(dataset.train_labels))
    if epochs < 1:
        images = max(params.batch, int(epochs * len(dataset.train_labels)))
        return _part(dataset, images, params), replace(params, epochs=1)
    return dataset, replace(params, epochs=min(_MAX_EPOCHS, int(epochs)))


def _begun(checkpoint: Path, dataset: Dataset, params: TrainingParams) -> tuple[Dataset, TrainingParams]:
    """Return the images and the parameters (with the planned epochs) of an interrupted tuning."""
    _, metadata = require_checkpoint(checkpoint)
    images = int(metadata["images"])
    tuning_set = dataset if images == len(dataset.train_labels) else _part(dataset, images, params)
    return tuning_set, replace(params, epochs=int(metadata["planned_epochs"]))


def _part(dataset: Dataset, images: int, params: TrainingParams) -> Dataset:
    indices = stream(params.seed, "slimming:part").permutation(len(dataset.train_labels))[:images]
    return replace(dataset, train_images=dataset.train_images[indices], train_labels=dataset.train_labels[indices])
