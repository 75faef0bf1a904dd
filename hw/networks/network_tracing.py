"""Reads an ordinary network into the list of layers that a slimmed one is made of.

`torch.fx` traces the network once. Channels that are added, multiplied or filtered one by one are tied into a group. A
cut between two segments needs a point at which one activation alone is handed on, and no group has a part on either
side: between the stages of a residual network, for it ties all channels of a stage. The chosen cuts balance the
multiply-accumulates best.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from math import lcm, prod
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata
from torchvision.ops import StochasticDepth, stochastic_depth

from hw.networks.servable import Shape
from hw.networks.slimmable import Group, Kind, Layer, Structure
from hw.networks.third_party_networks import Rescale
from kit.errors import in_a_line

SEGMENTS: Final = 4  # every combination of widths is a tuple: four widths give 256
_MODULES: Final[dict[type[nn.Module], Kind | None]] = {
    nn.Conv2d: "conv", nn.Linear: "linear", nn.BatchNorm2d: "batch_norm", nn.BatchNorm1d: "batch_norm",
    nn.GroupNorm: "group_norm", nn.MaxPool2d: "max_pool", nn.AvgPool2d: "avg_pool",
    nn.AdaptiveAvgPool2d: "adaptive_pool", nn.Flatten: "flatten", nn.ReLU: "relu", nn.ReLU6: "relu6",
    nn.Hardswish: "hardswish", nn.Hardsigmoid: "hardsigmoid", nn.SiLU: "silu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh",
    nn.GELU: "gelu", nn.Identity: None, nn.Dropout: None, nn.Dropout2d: None, StochasticDepth: None,
}  # fmt: skip
"""None: in a trained network, it is the identity."""
_CALLS: Final[dict[Any, Kind | type[nn.Module] | None]] = {
    operator.add: "add", operator.iadd: "add", torch.add: "add", "add": "add", "add_": "add",
    operator.mul: "mul", operator.imul: "mul", torch.mul: "mul", "mul": "mul", "mul_": "mul",
    torch.flatten: "flatten", "flatten": "flatten", "view": "flatten", "reshape": "flatten",
    F.relu: "relu", torch.relu: "relu", "relu": "relu", "relu_": "relu", F.relu6: "relu6", F.silu: "silu",
    F.hardswish: "hardswish", F.hardsigmoid: "hardsigmoid", F.gelu: "gelu", torch.sigmoid: "sigmoid",
    "sigmoid": "sigmoid", torch.tanh: "tanh", "tanh": "tanh", "mean": "adaptive_pool", torch.mean: "adaptive_pool",
    F.max_pool2d: nn.MaxPool2d, F.avg_pool2d: nn.AvgPool2d, F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.dropout: None, stochastic_depth: None, "contiguous": None,
}  # fmt: skip
"""A function, or a method's name: its kind, or the module that takes the same arguments behind the activation."""


class UnknownLayerError(ValueError):
    """The network has something that can't be made slimmable; the text names it."""


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (Rescale, StochasticDepth)) or super().is_leaf_module(m, module_qualified_name)


def structure_of(module: nn.Module, input_shape: Shape, widths: Sequence[float]) -> Structure:
    """Return the layers of a network, cut into segments.

    Args:
        module: (B, C, H, W) images to (B, classes) logits; in eval mode.

    Raises:
        UnknownLayerError: it takes no such images, has layers of another kind, or ties its channels otherwise.
    """
    try:
        traced = fx.GraphModule(module, _Tracer().trace(module))
        traced.graph.eliminate_dead_code()
        with torch.no_grad():
            ShapeProp(traced).propagate(torch.zeros(2, *input_shape))
    except Exception as error:
        problem = (
            f"torch.fx can't follow it on images of {input_shape} ({in_a_line(f'{type(error).__name__}: {error}')})"
        )
        raise UnknownLayerError(problem) from None
    reading = _Reading(dict(traced.named_modules()))
    for node in traced.graph.nodes:
        metadata = node.meta.get("tensor_meta")
        if isinstance(metadata, TensorMetadata) and node.op != "output":  # otherwise it gives no tensor
            reading.add(node, tuple(metadata.shape[1:]))
    result = next(iter(reversed(traced.graph.nodes))).args[0]
    return _cut(reading, result, input_shape, tuple(widths))


@dataclass(slots=True)
class _Value:
    """The output of a node.

    Attributes:
        layer: its index; -1 is the image.
        group: before tied ones are one.
        features: of one channel, if it is flat.
    """

    layer: int
    group: int
    features: int
    shape: Shape


@dataclass
class _Reading:
    """The results of reading a network so far."""

    modules: dict[str, nn.Module]
    layers: list[Layer] = field(default_factory=list)  # before channels are tied
    macs: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # of one image's activation behind each layer
    _values: dict[fx.Node, _Value] = field(default_factory=dict)
    _counts: list[int] = field(default_factory=list)
    _units: list[int] = field(default_factory=list)
    _parents: list[int] = field(default_factory=list)

    def add(self, node: fx.Node, shape: Shape) -> None:
        """Add one node that gives a tensor of this shape (without the batch)."""
        if node.op == "placeholder":
            self._values[node] = _Value(-1, self._new_group(shape[0]), 1, shape)
            return
        kind, module = self._kind(node)
        inputs = [self._values[source] for source in node.all_input_nodes if source in self._values]
        if kind is None:
            self._values[node] = inputs[0]
            return
        try:
            self._layer(node, kind, module, inputs, shape)
        except UnknownLayerError as error:
            raise UnknownLayerError(f"{_name(node)}: {error}") from None

    def _kind(self, node: fx.Node) -> tuple[Kind | None, nn.Module | None]:
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            if isinstance(module, Rescale):
                return "rescale", module
            if type(module) in _MODULES:
                return _MODULES[type(module)], module
        elif node.target in _CALLS:
            entry = _CALLS[node.target]
            if isinstance(entry, type):
                keywords = {name: value for name, value in node.kwargs.items() if name not in ("input", "inplace")}
                module = entry(*node.args[1:], **keywords)
                return _MODULES[entry], module
            return entry, None
        call = type(self.modules[str(node.target)]).__name__ if node.op == "call_module" else node.target
        names = ", ".join(sorted({kind.__name__ for kind in _MODULES}))
        raise UnknownLayerError(f"{_name(node)} ({getattr(call, '__name__', call)}) is not known; known are {names}")

    def _layer(self, node: fx.Node, kind: Kind, module: nn.Module | None, inputs: list[_Value], shape: Shape) -> None:
        x = inputs[0]
        name = str(node.target) if node.op == "call_module" else ""
        if kind in ("add", "mul"):
            if len(inputs) != 2 or inputs[1].features != x.features:
                raise UnknownLayerError("it must be of two activations")
            self._tie(x.group, inputs[1].group)
            self._values[node] = self._append(kind, "", inputs, x.group, shape)
        elif kind == "flatten" or (kind == "adaptive_pool" and module is None):
            self._values[node] = self._flat(kind, x, shape)
        elif module is None or kind == "rescale":
            settings = {"bias": True} if kind == "rescale" else {}
            self._values[node] = self._append(kind, name, inputs, x.group, shape, **settings)
        else:
            is_whole = kind == "avg_pool" and shape[1:] == (1, 1)  # often over `x.size(3)`, which is not known here
            exact, settings = ("adaptive_pool", {}) if is_whole else _settings(kind, module, x)
            group = self._new_group(shape[0]) if exact in ("conv", "linear") else x.group
            if exact == "group_norm":
                root = self._root(group)
                self._units[root] = lcm(self._units[root], settings["features"])
            self._values[node] = self._append(exact, name, inputs, group, shape, **settings)

    def _flat(self, kind: Kind, x: _Value, shape: Shape) -> _Value:
        """Return the value of `flatten`, or of a mean over all pixels."""
        pixels = prod(x.shape[1:])
        if kind == "adaptive_pool":
            if prod(shape) != x.shape[0] or len(x.shape) != 3:
                raise UnknownLayerError("a mean must be over all pixels")
            x = self._append("adaptive_pool", "", [x], x.group, (x.shape[0], 1, 1), kernel=(1, 1))
            pixels = 1
        if len(shape) > 1 and shape != x.shape:
            raise UnknownLayerError(f"it must leave one row an image, not {shape}")
        if shape == x.shape:
            return x
        flat = self._append("flatten", "", [x], x.group, shape)
        return _Value(flat.layer, flat.group, pixels, shape)

    def _append(
        self, kind: Kind, name: str, inputs: Sequence[_Value], group: int, shape: Shape, **settings: Any
    ) -> _Value:
        x = inputs[0]
        indices = tuple(value.layer for value in inputs)
        layer = Layer(kind=kind, name=name, inputs=indices, source=x.group, group=group, **settings)
        if layer.dimensions and any(earlier.name == name for earlier in self.layers):
            raise UnknownLayerError("it is used twice, with the same weights")
        outputs = prod(shape[1:]) if kind in ("conv", "depthwise") else 1
        macs_per_pixel = {"conv": shape[0] * x.shape[0], "depthwise": shape[0], "linear": prod(x.shape) * shape[0]}
        self.macs.append(outputs * macs_per_pixel.get(kind, 0) * prod(layer.kernel))
        self.sizes.append(prod(shape))
        self.layers.append(layer)
        features = x.features if kind not in ("conv", "linear") else 1
        return _Value(len(self.layers) - 1, group, features, shape)

    # ------------------------------------------------------------------------------------------------------- groups

    def _new_group(self, count: int) -> int:
        self._counts.append(count)
        self._units.append(1)
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def _root(self, group: int) -> int:
        while self._parents[group] != group:
            group = self._parents[group]
        return group

    def _tie(self, one: int, other: int) -> None:
        one, other = self._root(one), self._root(other)
        if self._counts[one] != self._counts[other]:
            raise UnknownLayerError(f"it is of {self._counts[one]} and {self._counts[other]} channels")
        self._parents[other] = one
        self._units[one] = lcm(self._units[one], self._units[other])

    def whole(self, result: Any) -> tuple[list[Layer], list[Group], set[int]]:
        """Return layers and groups once all is tied, and the groups that no width changes: of images and of classes."""
        end = self._values.get(result)
        if end is None or end.layer != len(self.layers) - 1 or len(end.shape) != 1 or end.features != 1:
            raise UnknownLayerError("it must end with (images, classes) logits")
        roots = sorted({self._root(group) for group in range(len(self._parents))})
        number = {group: roots.index(self._root(group)) for group in range(len(self._parents))}
        tied = [
            layer.model_copy(update={"source": number[layer.source], "group": number[layer.group]})
            for layer in self.layers
        ]
        groups = [Group(segment=0, count=self._counts[root], unit=self._units[root]) for root in roots]
        return tied, groups, {number[0], number[end.group]}


def _settings(kind: Kind, module: Any, x: _Value) -> tuple[Kind, dict[str, Any]]:
    """Return a layer's settings from a module, and its resulting kind."""
    if kind in ("conv", "batch_norm", "group_norm", "linear") and kind != "linear" and x.features != 1:
        raise UnknownLayerError("it is of features that were pixels")
    match kind:
        case "conv":
            depthwise = module.groups == module.in_channels == module.out_channels and module.groups > 1
            if module.groups > 1 and not depthwise:
                raise UnknownLayerError(
                    f"a convolution of {module.groups} groups; known are one, or one for each channel"
                )
            if isinstance(module.padding, str) or module.padding_mode != "zeros":
                raise UnknownLayerError(
                    f"padding {module.padding!r} ({module.padding_mode}); known are zeros, in numbers"
                )
            sizes = {"kernel": module.kernel_size, "stride": module.stride, "dilation": module.dilation}
            sizes |= {"padding": module.padding, "bias": module.bias is not None}
            return ("depthwise" if depthwise else "conv"), sizes
        case "linear":
            if len(x.shape) != 1:
                raise UnknownLayerError("a linear layer must get one row an image")
            return kind, {"features": x.features, "bias": module.bias is not None}
        case "batch_norm":
            if module.running_mean is None:
                raise UnknownLayerError("it has no statistics (track_running_stats)")
            return kind, {"eps": module.eps, "bias": True}
        case "group_norm":
            return kind, {"eps": module.eps, "bias": True, "features": module.num_channels // module.num_groups}
        case "max_pool" | "avg_pool":
            if module.ceil_mode:
                raise UnknownLayerError("ceil_mode is not known")
            sizes = {
                name: _pair(getattr(module, f"{name}_size" if name == "kernel" else name))
                for name in ("kernel", "stride", "padding")
            }
            return kind, sizes | ({"dilation": _pair(module.dilation)} if kind == "max_pool" else {})
        case "adaptive_pool":
            return kind, {"kernel": _pair(module.output_size)}
    return kind, {}


def _pair(value: Any) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value or ())
    if len(pair) != 2 or not all(isinstance(size, int) for size in pair):
        raise UnknownLayerError(f"a size of {value!r}; known are whole numbers")
    return pair


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


# --------------------------------------------------------------------------------------------------------------- cuts


def _cut(reading: _Reading, result: Any, input_shape: Shape, widths: tuple[float, ...]) -> Structure:
    layers, groups, fixed = reading.whole(result)
    cuts = _best(_cuts(layers, fixed), reading.macs, reading.sizes)
    segments = [layers[begin:end] for begin, end in pairwise((0, *cuts, len(layers)))]
    number = {layer.group: index for index, segment in reversed([*enumerate(segments, 1)]) for layer in segment}
    numbered = [
        group if index in fixed else group.model_copy(update={"segment": number[index]})
        for index, group in enumerate(groups)
    ]
    channels, height, width = input_shape
    return Structure(
        input_shape=(channels, height, width),
        classes=groups[layers[-1].group].count,
        widths=widths,
        groups=tuple(numbered),
        segments=tuple(map(tuple, segments)),
    )


def _cuts(layers: Sequence[Layer], fixed: set[int]) -> list[int]:
    """Return places at which one activation is handed on, and no group that gets narrower has a part on either side."""
    last_use = {source: index for index, layer in enumerate(layers) for source in layer.inputs}
    spans: dict[int, list[int]] = {}
    for index, layer in enumerate(layers):
        if layer.group not in fixed:
            spans.setdefault(layer.group, []).append(index)

    def is_clean(cut: int) -> bool:
        is_alone = all(at < cut for source, at in last_use.items() if source < cut - 1)
        return is_alone and not any(indices[0] < cut <= indices[-1] for indices in spans.values())

    return [cut for cut in range(1, len(layers)) if is_clean(cut)]


def _best(cuts: Sequence[int], macs: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the cuts that minimize the costliest segment; if there are enough, of those with activations no larger
    than those of the neighbouring cuts."""
    handover_sizes = [sizes[cut - 1] for cut in cuts]
    smallest = [min(handover_sizes[max(0, index - 1) : index + 2]) for index in range(len(cuts))]
    small = [cut for cut, size, limit in zip(cuts, handover_sizes, smallest, strict=True) if size == limit]
    candidates = small if len(small) >= SEGMENTS - 1 else cuts
    choices = combinations(candidates, min(SEGMENTS - 1, len(candidates)))
    return min(choices, key=lambda cut: max(sum(macs[begin:end]) for begin, end in pairwise((0, *cut, len(macs)))))
