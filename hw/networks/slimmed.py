"""An ordinary network made slimmable: its layers as a list that a file can hold, and how a segment runs through them.

Channels come in groups: all that one residual stream, or one depthwise convolution, ties together. Every group belongs
to one segment, and a width keeps its leading channels. BatchNorm has separate statistics for each (segment, width,
previous width): tables (previous widths, widths, channels), of which a leading slice ends with the key's own row.

A list is plain data of known kinds: the author of a file chooses numbers, and never what code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Annotated, Final, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationError, model_validator
from torch import Tensor, nn

from hw.networks.slimmable import ModelSpec, Shape, SlimmableModel, Weights
from kit.strict import StrictModel

MAX_PARAMETERS: Final = 5 * 10**8  # limit on files: a network is built before its weights are checked
ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "tanh": torch.tanh,
}
Kind = Literal[
    "rescale", "conv", "depthwise", "linear", "batch_norm", "group_norm", "max_pool", "avg_pool", "adaptive_pool",
    "flatten", "add", "mul", "relu", "relu6", "hardswish", "hardsigmoid", "silu", "sigmoid", "gelu", "tanh",
]  # fmt: skip
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Pair = tuple[Annotated[int, Field(ge=0, le=4096)], Annotated[int, Field(ge=0, le=4096)]]
Dimension = int | tuple[int, int]  # as it is; or (group, features of each of its channels)


class Group(StrictModel):
    """Channels that are kept and dropped together.

    Attributes:
        segment: whose width they follow; 0: all are there at every width, as those of images and of classes.
        count: at full width.
        unit: they are dropped in multiples of this: the channels of one group of GroupNorm.
    """

    segment: Annotated[int, Field(ge=0)]
    count: Count
    unit: Count = 1

    def kept(self, width: float) -> int:
        """Return the number of channels kept at a width."""
        return max(1, round(self.count * width / self.unit)) * self.unit


class Layer(StrictModel):
    """One step of the computation.

    Attributes:
        name: of its weights in the given network.
        inputs: layers before it, by their place in the whole list; -1 is the image.
        source, group: the channels of its first input and of its output, by place among the groups.
        features: of a linear layer: inputs for each channel of its source; of GroupNorm: channels of one group.
    """

    kind: Kind
    name: Annotated[str, Field(max_length=1000)] = ""
    inputs: Annotated[tuple[int, ...], Field(min_length=1, max_length=2)]
    source: Annotated[int, Field(ge=0)]
    group: Annotated[int, Field(ge=0)]
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    features: Count = 1
    bias: bool = False
    eps: float = 0.0

    @property
    def dimensions(self) -> dict[str, tuple[Dimension, ...]]:
        """Its weights: name -> what each dimension counts; the tables of BatchNorm without their first two."""
        own, source = (self.group, 1), (self.source, self.features)
        match self.kind:
            case "conv":
                found: dict[str, tuple[Dimension, ...]] = {"weight": (own, source, *self.kernel)}
            case "depthwise":
                found = {"weight": (own, 1, *self.kernel)}
            case "linear":
                found = {"weight": (own, source)}
            case "rescale" | "batch_norm" | "group_norm":
                found = {"weight": (own,)}
            case _:
                return {}
        if self.bias:
            found["bias"] = (own,)
        return found | (dict.fromkeys(TABLES, (own,)) if self.kind == "batch_norm" else {})


TABLES: Final = ("mean", "var")


class Structure(StrictModel):
    """A network without its weights; see the module's docstring."""

    input_shape: tuple[Count, Count, Count]
    classes: Count
    widths: tuple[float, ...]
    groups: Annotated[tuple[Group, ...], Field(min_length=1)]
    segments: Annotated[
        tuple[Annotated[tuple[Layer, ...], Field(min_length=1)], ...], Field(min_length=1, max_length=16)
    ]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the output of `model_dump_json`; raises `ValueError` on anything else."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{where}: {first['msg']}") from None

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        begin = 0
        for layers in self.segments:
            for place, layer in enumerate(layers, start=begin):
                is_before = all(begin - 1 <= read < place for read in layer.inputs)
                if not is_before or max(layer.source, layer.group) >= len(self.groups):
                    raise ValueError(f"layer {place} takes what is not there")
            begin += len(layers)
        names = [layer.name.replace(".", "/") for layer in self.layers if layer.dimensions]
        if len(set(names)) < len(names):
            raise ValueError("two layers have one name")
        if any(group.count % group.unit or group.segment > len(self.segments) for group in self.groups):
            raise ValueError("a group's channels are no multiple of its unit, or follow no segment")
        _ = self.spec
        if sum(prod(shape) for _, _, shape in self.weights(1.0, 1.0)) > MAX_PARAMETERS:
            raise ValueError(f"it has more than {MAX_PARAMETERS:.0e} weights")
        return self

    @property
    def spec(self) -> ModelSpec:
        """The description for the rest of the system."""
        return ModelSpec(len(self.segments), self.widths, self.input_shape, self.classes)

    @property
    def layers(self) -> list[Layer]:
        """The layers of all segments."""
        return [layer for segment in self.segments for layer in segment]

    def weights(self, width: float, previous_width: float, segment: int = 0) -> Iterator[tuple[Layer, str, Shape]]:
        """Yield (layer, weight, shape) of a segment at a key; 0: of all."""
        for number in (segment,) if segment else range(1, len(self.segments) + 1):
            row = 1 if number == 1 else self.widths.index(previous_width) + 1
            for layer in self.segments[number - 1]:
                for name, dimensions in layer.dimensions.items():
                    shape = tuple(
                        each if isinstance(each, int) else each[1] * self._kept(each[0], number, width, previous_width)
                        for each in dimensions
                    )
                    table = (row, self.widths.index(width) + 1) if name in TABLES else ()
                    yield layer, name, table + shape

    def _kept(self, group: int, segment: int, width: float, previous_width: float) -> int:
        given = self.groups[group]
        widths = {segment: width, segment - 1: previous_width}
        return given.count if given.segment == 0 else given.kept(widths.get(given.segment, 1.0))


Normalize = Callable[[Layer, Tensor, Weights], Tensor]


class SlimmedNetwork(SlimmableModel):
    """A given network, made slimmable.

    Attributes:
        normalize: replaces BatchNorm's own function, while statistics are collected.
    """

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        self.structure = structure
        self.normalize: Normalize | None = None
        for layer, name, shape in structure.weights(1.0, 1.0):
            tensor = torch.zeros(shape) if name in ("bias", "mean") else torch.ones(shape)
            if layer.kind == "rescale" or name in TABLES:
                self.register_buffer(weight_name(layer, name), tensor)
            else:
                kernel = nn.init.kaiming_normal_(tensor) if len(shape) > 1 else tensor
                self.register_parameter(weight_name(layer, name), nn.Parameter(kernel))
        self._dropped = [_last_uses(structure, segment) for segment in range(1, structure.spec.segments + 1)]
        self.eval()  # BatchNorm serves by its tables unless the network is set to training

    @property
    def spec(self) -> ModelSpec:
        """See `SlimmableModel`."""
        return self.structure.spec

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        """See `SlimmableModel`."""
        return {
            weight_name(layer, name): shape
            for layer, name, shape in self.structure.weights(width, previous_width, segment)
        }

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """See `SlimmableModel`."""
        place = sum(len(layers) for layers in self.structure.segments[: segment - 1])
        values = {place - 1: x}
        for layer, dropped in zip(self.structure.segments[segment - 1], self._dropped[segment - 1], strict=True):
            values[place] = self._run(layer, [values[read] for read in layer.inputs], weights)
            for read in dropped:
                del values[read]
            place += 1
        return values[place - 1]

    def _run(self, layer: Layer, inputs: list[Tensor], weights: Weights) -> Tensor:
        x, kind = inputs[0], layer.kind
        if kind in ACTIVATIONS:
            return ACTIVATIONS[kind](x)
        match kind:
            case "add":
                return x + inputs[1]
            case "mul":
                return x * inputs[1]
            case "flatten":
                return x.flatten(1)
            case "max_pool":
                return F.max_pool2d(x, layer.kernel, layer.stride, layer.padding, layer.dilation)
            case "avg_pool":
                return F.avg_pool2d(x, layer.kernel, layer.stride, layer.padding)
            case "adaptive_pool":
                return F.adaptive_avg_pool2d(x, layer.kernel)
            case "batch_norm":
                return (self.normalize or self._normalize)(layer, x, weights)
        weight = weights[weight_name(layer, "weight")]
        bias = weights[weight_name(layer, "bias")] if layer.bias else None
        match kind:
            case "linear":
                return F.linear(x, weight, bias)
            case "group_norm":
                return F.group_norm(x, x.shape[1] // layer.features, weight, bias, layer.eps)
            case "rescale":
                assert bias is not None, "it has one"
                return x * weight[:, None, None] + bias[:, None, None]
        groups = len(weight) if kind == "depthwise" else 1
        return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups)

    def _normalize(self, layer: Layer, x: Tensor, weights: Weights) -> Tensor:
        """Normalize by the batch during training, as BatchNorm does; in serving by the statistics of its key."""
        scale, shift = (weights[weight_name(layer, name)] for name in ("weight", "bias"))
        if self.training:
            return F.batch_norm(x, None, None, scale, shift, training=True, eps=layer.eps)
        mean, var = (weights[weight_name(layer, name)][-1, -1] for name in TABLES)
        return F.batch_norm(x, mean, var, scale, shift, eps=layer.eps)


def weight_name(layer: Layer, name: str) -> str:
    """Return its name in the `state_dict`; a weight's name may have no dot."""
    return f"{layer.name.replace('.', '/')}/{name}"


def _last_uses(structure: Structure, segment: int) -> list[list[int]]:
    """Return, for each layer of a segment, the values that no later layer needs."""
    layers = structure.segments[segment - 1]
    last = {read: place for place, layer in enumerate(layers) for read in layer.inputs}
    return [[read for read, at in last.items() if at == place] for place in range(len(layers))]
