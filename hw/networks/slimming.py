"""Makes a trained network slimmable: its channels are sorted, and its statistics recalibrated for every key.

Tied channels are sorted together, by the size of their output and of its later use. At full width the network still
computes what the given one does; at a narrower one the least important channels are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hw.networks.datasets import Images
from hw.networks.slimmable import Weights
from hw.networks.slimmed import TABLES, Dimension, Layer, SlimmedNetwork, weight_name
from hw.networks.tracing import UnknownLayerError, structure_of
from kit.chance import stream
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
        wanted, found = given(images), model(images, (1.0,) * model.spec.segments)
    if float((wanted - found).abs().max()) > EXACTNESS * float(wanted.abs().max()):
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
    own = model.state_dict()
    for layer in layers:
        for name, dimensions in layer.dimensions.items():
            own[weight_name(layer, name)].copy_(_arranged(weights[layer.name][name], dimensions, orders))


def _given_weights(layer: Layer, module: nn.Module, channels: int) -> dict[str, Tensor]:
    """Return the weights by the layer's own names."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if layer.kind == "batch_norm":
        found |= {name: found[f"running_{name}"] for name in TABLES}
    for name in layer.dimensions:
        if name not in found and isinstance(made := getattr(module, name, None), Tensor):  # by a hook, at each pass
            found[name] = made.detach()
    neutral = {"weight": torch.ones, "bias": torch.zeros}  # of a norm without them
    return {name: found[name] if name in found else neutral[name](channels) for name in layer.dimensions}


def _scores(
    layers: Sequence[Layer], weights: Mapping[str, Mapping[str, Tensor]], counts: Sequence[int]
) -> list[Tensor]:
    """Return each group's channels' scores: their output by norms (or kernels), times later kernels' use of it."""
    sent = [torch.zeros(count) for count in counts]
    normed = [torch.zeros(count) for count in counts]
    heard = [torch.zeros(count) for count in counts]
    for layer in layers:
        if layer.kind in ("conv", "linear"):
            kernel = weights[layer.name]["weight"].abs()
            sent[layer.group] += kernel.flatten(1).sum(1)
            heard[layer.source] += kernel.reshape(len(kernel), len(heard[layer.source]), -1).sum((0, 2))
        elif layer.kind in ("batch_norm", "group_norm"):
            normed[layer.group] += weights[layer.name]["weight"].abs()
    return [
        (norm if norm.any() else out) * (taken if taken.any() else 1)
        for out, norm, taken in zip(sent, normed, heard, strict=True)
    ]


def _order(score: Tensor, unit: int) -> Tensor:
    """Return channels, the most important first; whole units of them."""
    units = score.view(-1, unit).sum(1).argsort(descending=True, stable=True)
    return (units[:, None] * unit + torch.arange(unit)).flatten()


def _arranged(weight: Tensor, dimensions: Sequence[Dimension], orders: Sequence[Tensor]) -> Tensor:
    for axis, dimension in enumerate(dimensions):
        if not isinstance(dimension, int):
            group, features = dimension
            places = orders[group][:, None] * features + torch.arange(features)
            weight = weight.index_select(axis, places.flatten())
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
        kept = sums.setdefault((layer.name, *table.shape[:2]), _Sums(0, torch.zeros_like(mean), torch.zeros_like(mean)))
        kept.batches += 1
        kept.mean = kept.mean + mean
        kept.square = kept.square + square
        scale, shift = (weights[weight_name(layer, name)] for name in ("weight", "bias"))
        return F.batch_norm(x, None, None, scale, shift, training=True, eps=layer.eps)

    rng, device = stream(seed, "slimming:statistics"), next(model.parameters()).device
    model.normalize = normalize
    with torch.no_grad():
        for _ in range(ROUNDS):
            chosen = rng.choice(len(images), min(IMAGES, len(images)), replace=False)
            _through_all_keys(model, torch.from_numpy(np.asarray(images[chosen])).to(device))
    model.normalize = None
    layers, own = {layer.name: layer for layer in model.structure.layers}, model.state_dict()
    for (name, row, column), kept in sums.items():
        mean = kept.mean / kept.batches
        var = (kept.square / kept.batches - mean.square()).clamp_(min=0)
        for table, values in zip(TABLES, (mean, var), strict=True):
            own[weight_name(layers[name], table)][row - 1, column - 1, : len(values)] = values


def _through_all_keys(model: SlimmedNetwork, images: Tensor) -> None:
    """Run one batch through every key; a segment's inputs come from the previous widths, image by image in turn."""
    before, widths = {IMAGE: images}, model.spec.widths
    for segment in range(1, model.spec.segments + 1):
        after = {}
        for width in widths:
            left = [model.forward_segment(x, segment, width, previous) for previous, x in before.items()]
            turn = torch.arange(len(images), device=images.device) % len(left)
            after[width] = torch.cat([each[turn == place] for place, each in enumerate(left)])
        before = after
