"""The interface of slimmable networks, and an ordinary network that was made slimmable.

A slimmable network is cut into segments that run one after another; each runs at a separate width. Its weights are in
one `state_dict`; at a narrower width a leading slice of each weight takes part. So one set of weights serves every
width, and an instance (a segment's weights at one width, in separate memory) serves every width up to its own.

`SlimmableModel`: a user's network subclasses it and specifies three things: its `spec`, which slices of which weights a
segment takes (`weight_shapes`), and what the segment computes with them (`run_segment`). The rest follows.
`hw.networks.network_checks` checks that the network keeps the rules.

Shapes: B images, C channels, H x W pixels. Segments count from 1; the previous width of segment 1 is `IMAGE` (0.0).

`Structure` and `SlimmedNetwork`: channels are in groups. A group contains all channels that one residual stream, or one
depthwise convolution, ties together. Every group belongs to one segment, and a width keeps the group's leading
channels. BatchNorm has separate statistics for each (segment, width, previous width), in tables (previous widths,
widths, channels): a leading slice of a table ends with the key's own row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationError, model_validator
from safetensors import safe_open
from torch import Tensor, nn

from hw.networks.servable import Counts, Servable, counted
from hw.networks.servable import Key as Key
from hw.networks.servable import ModelSpec as ModelSpec
from hw.networks.servable import SegmentCost as SegmentCost
from hw.networks.servable import Shape as Shape
from kit.strict import StrictModel

Weights = Mapping[str, Tensor]


class SlimmableModel(Servable):
    """A segmented slimmable network; see the module's docstring.

    A constructor's arguments are JSON values (a scenario's `model.options`), and building it twice with the same ones
    gives the same structure: workers' processes build it again and fill it from a file.
    """

    def __init__(self) -> None:
        super().__init__()
        self._output_shapes: dict[tuple[int, float], Shape] = {}

    @abstractmethod
    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        """Return the weights that take part: name in `state_dict` -> shape of the leading slice.

        At a smaller width or previous width no shape may be larger in any dimension.
        """

    @abstractmethod
    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """Run one segment on weights already sliced; it must use only these, and keep no state.

        Args:
            weights: by the names of `weight_shapes`; their shapes determine the width.
            x: (B, C, H, W) images before segment 1, otherwise the previous segment's output. It must not be changed.
                Each image's result must not depend on the others of the batch.

        Returns:
            (B, ...) activations, whose shape depends on the segment and the width alone; (B, classes) logits after the
            last segment.
        """

    # ------------------------------------------------------------------------------------------- what follows from it

    def forward_segment(self, x: Tensor, segment: int, width: float, previous_width: float) -> Tensor:
        """See `Servable`, and `run_segment`."""
        self.spec.require(segment, width, previous_width)
        shapes = self.weight_shapes(segment, width, previous_width)
        return self.run_segment(segment, slice_weights(self._state(), shapes), x)

    def instance_shapes(self, segment: int, width: float) -> dict[str, Shape]:
        """Return an instance's weights: enough for any previous width; raises `ValueError` for an illegal width."""
        previous = self.spec.widest_input(segment)
        self.spec.require(segment, width, previous)
        return self.weight_shapes(segment, width, previous)

    def instance_bytes(self, segment: int, width: float, element_bytes: int = 4) -> int:
        """See `Servable`."""
        return element_bytes * sum(prod(shape) for shape in self.instance_shapes(segment, width).values())

    def instance(self, segment: int, width: float, path: Path | None = None, prefix: str = "") -> SegmentInstance:
        """Make contiguous copies of the weights that one segment needs up to a width: see `SegmentInstance`."""
        shapes = self.instance_shapes(segment, width)
        if path is None:
            views = slice_weights(self._state(), shapes)
            return SegmentInstance(self, segment, width, {name: _copy(view) for name, view in views.items()})
        with safe_open(path, framework="pt") as file:  # a view of the mapped file would be read when a batch needs it
            weights = {name: _copy(file.get_slice(prefix + name)[_leading(shape)]) for name, shape in shapes.items()}
        return SegmentInstance(self, segment, width, weights)

    def activation_shape(self, segment: int, width: float) -> Shape:
        """See `Servable`."""
        if segment == 0:
            return self.spec.input_shape
        if segment == self.spec.segments:
            return (self.spec.classes,)
        if (segment, width) not in self._output_shapes:
            previous = self.spec.widest_input(segment)
            _, shape = self._dry_run(segment, width, previous)
            self._output_shapes[segment, width] = shape
        return self._output_shapes[segment, width]

    def cost(self, segment: int, width: float, previous_width: float) -> SegmentCost:
        """Return the cost of a key, counted in a dry run; a network with a closed form may override it."""
        counts, shape = self._dry_run(segment, width, previous_width)
        params = sum(prod(s) for s in self.weight_shapes(segment, width, previous_width).values())
        return SegmentCost(counts.macs, params, 4 * prod(shape), counts.moved_bytes, counts.kernels)

    def _dry_run(self, segment: int, width: float, previous_width: float) -> tuple[Counts, Shape]:
        """Run one image through a segment, with shapes and no numbers."""
        self.spec.require(segment, width, previous_width)
        shapes = self.weight_shapes(segment, width, previous_width)
        weights = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        x = torch.empty((1, *self.activation_shape(segment - 1, previous_width)), device="meta")
        counts, y = counted(lambda: self.run_segment(segment, weights, x), tuple(weights.values()))
        return counts, tuple(y.shape[1:])

    def _state(self) -> dict[str, Tensor]:
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}


def slice_weights(weights: Weights, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Return leading slices (views) of these shapes."""
    return {name: weights[name][_leading(shape)] for name, shape in shapes.items()}


def _leading(shape: Shape) -> tuple[slice, ...]:
    return tuple(slice(0, length) for length in shape)


def _copy(weight: Tensor) -> Tensor:
    return weight.detach().clone(memory_format=torch.contiguous_format)


class SegmentInstance:
    """A segment's weights at one width, in separate memory: serves any width up to its own, any previous width.

    A narrower batch runs on views of these weights: nothing is copied or cached for it. Safe to run from one thread at
    a time; it holds no state but a cache of views.

    Args:
        model: whose structure this is a part of; its weights are not used.
        weights: name -> contiguous tensor, of the instance's own shapes.
    """

    def __init__(self, model: SlimmableModel, segment: int, width: float, weights: dict[str, Tensor]) -> None:
        self.segment = segment
        self.width = width
        self.weights = weights
        self.model = model
        self._views: dict[tuple[float, float], dict[str, Tensor]] = {}

    @property
    def held_bytes(self) -> int:
        """Memory that is this instance's alone."""
        return sum(tensor.nbytes for tensor in self.weights.values())

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """Compute the same numbers as `forward_segment`; raises `ValueError` for a width above its own."""
        views = self._views.get((width, previous_width))
        if views is None:
            self.model.spec.require(self.segment, width, previous_width)
            if width > self.width:
                raise ValueError(f"an instance of width {self.width} cannot serve width {width}")
            shapes = self.model.weight_shapes(self.segment, width, previous_width)
            views = self._views[width, previous_width] = slice_weights(self.weights, shapes)
        return self.model.run_segment(self.segment, views, x)

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> SegmentInstance:
        """Return the same instance elsewhere, in another form; kernels follow `memory_format`."""
        moved = {
            name: tensor.to(
                device, dtype, memory_format=memory_format if tensor.dim() == 4 else torch.contiguous_format
            )
            for name, tensor in self.weights.items()
        }
        return SegmentInstance(self.model, self.segment, self.width, moved)


# ----------------------------------------------------------------------------------- an ordinary network made slimmable


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
        segment: whose width they follow; 0: all exist at every width, as those of images and of classes.
        count: at full width.
        unit: they are dropped in multiples of this: the channels of one group of GroupNorm.
    """

    segment: Annotated[int, Field(ge=0)]
    count: Count
    unit: Count = 1

    def size(self, width: float) -> int:
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
        output, source = (self.group, 1), (self.source, self.features)
        match self.kind:
            case "conv":
                dimensions: dict[str, tuple[Dimension, ...]] = {"weight": (output, source, *self.kernel)}
            case "depthwise":
                dimensions = {"weight": (output, 1, *self.kernel)}
            case "linear":
                dimensions = {"weight": (output, source)}
            case "rescale" | "batch_norm" | "group_norm":
                dimensions = {"weight": (output,)}
            case _:
                return {}
        if self.bias:
            dimensions["bias"] = (output,)
        return dimensions | (dict.fromkeys(TABLES, (output,)) if self.kind == "batch_norm" else {})


TABLES: Final = ("mean", "var")


class Structure(StrictModel):
    """A network without its weights.

    Its layers are plain data of known kinds: the author of a file chooses numbers, and never what code runs.
    """

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
            detail = error.errors()[0]
            location = ".".join(str(part) for part in detail["loc"])
            raise ValueError(f"{location}: {detail['msg']}") from None

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        begin = 0
        for layers in self.segments:
            for index, layer in enumerate(layers, start=begin):
                is_before = all(begin - 1 <= source < index for source in layer.inputs)
                if not is_before or max(layer.source, layer.group) >= len(self.groups):
                    raise ValueError(f"layer {index} takes what is not there")
            begin += len(layers)
        names = [layer.name.replace(".", "/") for layer in self.layers if layer.dimensions]
        if len(set(names)) < len(names):
            raise ValueError("two layers have one name")
        if any(group.count % group.unit or group.segment > len(self.segments) for group in self.groups):
            raise ValueError("a group's channels are not multiple of its unit, or follow no segment")
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
        channels = self.groups[group]
        widths = {segment: width, segment - 1: previous_width}
        return channels.count if channels.segment == 0 else channels.size(widths.get(channels.segment, 1.0))


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
        index = sum(len(layers) for layers in self.structure.segments[: segment - 1])
        values = {index - 1: x}
        for layer, dropped in zip(self.structure.segments[segment - 1], self._dropped[segment - 1], strict=True):
            values[index] = self._run(layer, [values[source] for source in layer.inputs], weights)
            for source in dropped:
                del values[source]
            index += 1
        return values[index - 1]

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
    last_use = {source: index for index, layer in enumerate(layers) for source in layer.inputs}
    return [[source for source, at in last_use.items() if at == index] for index in range(len(layers))]
