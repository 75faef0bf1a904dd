"""The slimmable ResNet: how each segment computes at any width, and what that costs. It knows no device and no queue.

Width is an argument of `forward`, never state: the weights of a narrower network are leading slices of the wider one's,
and two requests at different widths may run at once. GroupNorm has a constant number of channels per group, so that
group boundaries nest across widths and nothing learned at one width drifts at another. The first block of every
segment has a projection, because its input width may differ from its output width.

Shapes: B images, C channels, H x W pixels. Segments count from 1; the previous width of segment 1 is `IMAGE` (0.0).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from policies.errors import InputError, nearest
from policies.vocabulary import IMAGE

SCHEMA = "slimsched.model/1"
Weights = Mapping[str, Tensor]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlimResNetConfig:
    """The shape of a slimmable ResNet.

    Attributes:
        in_channels, image_size, classes: one image is (in_channels, image_size, image_size).
        base_channels: of the stem and, at full width, of segment 1; each segment doubles it.
        blocks_per_segment: residual blocks in a segment.
        channels_per_group: of every GroupNorm, at every width.
        widths: the width set W, ascending within (0, 1], the last one 1.
        strides: for each segment, of its first block; its length is the number of segments S.
    """

    in_channels: int
    image_size: int
    classes: int
    base_channels: int
    blocks_per_segment: int
    channels_per_group: int
    widths: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    strides: tuple[int, ...] = (1, 2, 2, 2)

    def __post_init__(self) -> None:
        numbers = (self.in_channels, self.image_size, self.classes, self.base_channels, self.blocks_per_segment)
        if min(*numbers, self.channels_per_group, *self.strides) < 1 or not self.strides:
            raise ValueError("sizes, counts and strides must be at least 1")
        if list(self.widths) != sorted(set(self.widths)) or not self.widths or self.widths[-1] != 1.0:
            raise ValueError(f"widths must ascend and end with 1.0: {list(self.widths)}")
        for width in self.widths:
            channels = self.base_channels * width
            if channels < self.channels_per_group or channels % self.channels_per_group:
                raise ValueError(
                    f"width {width} leaves {channels:g} of {self.base_channels} channels; "
                    f"that must be a multiple of channels_per_group = {self.channels_per_group}"
                )

    @property
    def segments(self) -> int:
        """S."""
        return len(self.strides)

    def channels(self, segment: int, width: float) -> int:
        """Output channels of a segment at a width."""
        return round((self.base_channels << (segment - 1)) * width)

    def input_channels(self, segment: int, previous_width: float) -> int:
        """Channels that the first block of a segment sees: the stem's, fixed at full width, in segment 1."""
        return self.base_channels if segment == 1 else self.channels(segment - 1, previous_width)

    def size(self, segment: int) -> int:
        """Height (and width) in pixels of a segment's output; 0 stands for the image."""
        pixels = self.image_size
        for stride in self.strides[:segment]:
            pixels = -(-pixels // stride)
        return pixels

    def previous_widths(self, segment: int) -> tuple[float, ...]:
        """What a request before `segment` can come from: `IMAGE` at segment 1, any width after."""
        return (IMAGE,) if segment == 1 else self.widths

    def work_keys(self) -> list[tuple[int, float, float]]:
        """Every legal (segment, width, previous width), ascending."""
        segments = range(1, self.segments + 1)
        return [(s, w, p) for s in segments for w in self.widths for p in self.previous_widths(s)]

    def tuples(self) -> list[tuple[float, ...]]:
        """Every complete width tuple, ascending: W ** S of them."""
        return list(itertools.product(self.widths, repeat=self.segments))

    def require(self, segment: int, width: float, previous_width: float) -> None:
        """Raise `ValueError` unless this is a legal key of the network."""
        if not 1 <= segment <= self.segments:
            raise ValueError(f"segment {segment} is not in 1..{self.segments}")
        if width not in self.widths:
            raise ValueError(f"width {width} is not one of {list(self.widths)}")
        if previous_width not in self.previous_widths(segment):
            allowed = list(self.previous_widths(segment))
            raise ValueError(f"previous width {previous_width} before segment {segment} is not one of {allowed}")

    def to_metadata(self) -> dict[str, str]:
        """Text pairs for a safetensors header."""
        return {"config": json.dumps(asdict(self))}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> SlimResNetConfig:
        """What `to_metadata` wrote; raises `ValueError` or `KeyError` on anything else."""
        fields: dict[str, Any] = json.loads(metadata["config"])
        try:
            widths, strides = tuple(fields.pop("widths")), tuple(fields.pop("strides"))
            return cls(**fields, widths=widths, strides=strides)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a model configuration: {error}") from None


PRESETS: dict[str, SlimResNetConfig] = {
    # 8x8 pixels: a stride in the last segment would leave GroupNorm two numbers a group, of which only the sign stays
    # (and 32 channels, so that a forward pass on a CPU outweighs what it costs to ask for one)
    "digits": SlimResNetConfig(1, 8, 10, 32, 1, 4, strides=(1, 2, 2, 1)),
    "slimresnet-tiny": SlimResNetConfig(3, 32, 100, 16, 1, 4),
    "slimresnet18": SlimResNetConfig(3, 32, 100, 64, 2, 8),
}


def preset(name: str) -> SlimResNetConfig:
    """A named configuration; raises `InputError` for an unknown name."""
    if name not in PRESETS:
        raise InputError("model", "name", f"unknown model {name!r}; {nearest(name, PRESETS)}")
    return PRESETS[name]


# ---------------------------------------------------------------------------------------- one definition of the shapes


def tensor_shapes(config: SlimResNetConfig, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
    """The weights of a segment at (width, previous width): name -> shape; slices of these shapes are what runs."""
    out = config.channels(segment, width)
    channels = config.input_channels(segment, previous_width)
    shapes: dict[str, Shape] = {}
    if segment == 1:
        shapes["stem"] = (config.base_channels, config.in_channels, 3, 3)
        shapes |= {"stem_scale": (config.base_channels,), "stem_shift": (config.base_channels,)}
    for block in range(config.blocks_per_segment):
        convolutions = {"first": (out, channels, 3, 3), "second": (out, out, 3, 3)}
        if block == 0:
            convolutions["projection"] = (out, channels, 1, 1)
        for name, shape in convolutions.items():
            shapes[f"block{block}_{name}"] = shape
            shapes |= {f"block{block}_{name}_scale": (out,), f"block{block}_{name}_shift": (out,)}
        channels = out
    if segment == config.segments:
        shapes |= {"head": (config.classes, out), "head_bias": (config.classes,)}
    return shapes


def widest_input(config: SlimResNetConfig, segment: int) -> float:
    """The previous width with the most channels: what an instance must hold to serve any."""
    return config.previous_widths(segment)[-1]


def slice_weights(weights: Weights, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Leading slices (views) of these shapes."""
    return {name: weights[name][tuple(slice(0, length) for length in shape)] for name, shape in shapes.items()}


# ------------------------------------------------------------------------------------------------- one forward formula


def run_segment(config: SlimResNetConfig, segment: int, weights: Weights, x: Tensor) -> Tensor:
    """One segment on weights already sliced to the widths that run.

    Args:
        x: (B, C, H, W): images before segment 1, else the activations of the segment before.

    Returns:
        (B, C', H', W') activations; (B, classes) logits after the last segment.
    """
    if segment == 1:
        x = torch.relu_(_convolve(config, weights, "stem", x, 1, 1))
    for block in range(config.blocks_per_segment):
        x = _block(config, weights, f"block{block}", x, config.strides[segment - 1] if block == 0 else 1)
    if segment < config.segments:
        return x
    return F.linear(x.mean(dim=(2, 3)), weights["head"], weights["head_bias"])


def _block(config: SlimResNetConfig, weights: Weights, name: str, x: Tensor, stride: int) -> Tensor:
    inner = torch.relu_(_convolve(config, weights, f"{name}_first", x, stride, 1))
    outer = _convolve(config, weights, f"{name}_second", inner, 1, 1)
    if f"{name}_projection" in weights:
        x = _convolve(config, weights, f"{name}_projection", x, stride, 0)
    return torch.relu_(outer.add_(x))


def _convolve(config: SlimResNetConfig, weights: Weights, name: str, x: Tensor, stride: int, padding: int) -> Tensor:
    kernel = weights[name]
    x = F.conv2d(x, kernel, stride=stride, padding=padding)
    groups = kernel.shape[0] // config.channels_per_group
    return F.group_norm(x, groups, weights[f"{name}_scale"], weights[f"{name}_shift"])


class _Segment(nn.Module):
    """The full-width parameters of one segment."""

    def __init__(self, config: SlimResNetConfig, segment: int) -> None:
        super().__init__()
        for name, shape in tensor_shapes(config, segment, 1.0, widest_input(config, segment)).items():
            self.register_parameter(name, nn.Parameter(_initial(name, shape)))

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self._parameters.items() if tensor is not None}


def _initial(name: str, shape: Shape) -> Tensor:
    if name.endswith("_scale"):  # each residual branch starts at nothing
        return torch.zeros(shape) if name.endswith("second_scale") else torch.ones(shape)
    if len(shape) == 1:
        return torch.zeros(shape)
    tensor = torch.empty(shape)
    if len(shape) == 2:
        return nn.init.normal_(tensor, std=0.01)
    return nn.init.kaiming_normal_(tensor, mode="fan_out", nonlinearity="relu")


class SlimResNet(nn.Module):
    """A slimmable ResNet cut into segments; see the module's docstring."""

    def __init__(self, config: SlimResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.segments = nn.ModuleList(_Segment(config, segment) for segment in range(1, config.segments + 1))

    def segment_weights(self, segment: int) -> dict[str, Tensor]:
        """The full-width weights of a segment."""
        module = self.segments[segment - 1]
        assert isinstance(module, _Segment)
        return module.weights()

    def forward_segment(self, x: Tensor, segment: int, width: float, previous_width: float) -> Tensor:
        """One segment at a width, on what the segment before left at its width: see `run_segment`."""
        self.config.require(segment, width, previous_width)
        shapes = tensor_shapes(self.config, segment, width, previous_width)
        return run_segment(self.config, segment, slice_weights(self.segment_weights(segment), shapes), x)

    def forward(self, x: Tensor, widths: tuple[float, ...]) -> Tensor:
        """All segments at a width tuple: (B, C, H, W) images to (B, classes) logits."""
        if len(widths) != self.config.segments:
            raise ValueError(f"{len(widths)} widths for {self.config.segments} segments")
        previous = IMAGE
        for segment, width in enumerate(widths, start=1):
            x = self.forward_segment(x, segment, width, previous)
            previous = width
        return x

    def instance(self, segment: int, width: float) -> SegmentInstance:
        """Contiguous copies of what one segment needs up to a width: see `SegmentInstance`."""
        self.config.require(segment, width, widest_input(self.config, segment))
        shapes = tensor_shapes(self.config, segment, width, widest_input(self.config, segment))
        weights = slice_weights(self.segment_weights(segment), shapes)
        copies = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()
        }
        return SegmentInstance(self.config, segment, width, copies)


class SegmentInstance:
    """A segment's weights at one width, in memory of their own: serves any width up to its own, any previous width.

    A narrower batch runs on views of these weights: nothing is copied or cached for it. Safe to run from one thread at
    a time; it holds no state but a cache of views.

    Attributes:
        weights: name -> contiguous tensor, of the instance's own shapes.
    """

    def __init__(self, config: SlimResNetConfig, segment: int, width: float, weights: dict[str, Tensor]) -> None:
        self.config = config
        self.segment = segment
        self.width = width
        self.weights = weights
        self._views: dict[tuple[float, float], dict[str, Tensor]] = {}

    @property
    def weight_bytes(self) -> int:
        """Real bytes of the weights held."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.weights.values())

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """The same numbers as `SlimResNet.forward_segment`; raises `ValueError` for a width above its own."""
        views = self._views.get((width, previous_width))
        if views is None:
            views = self._views[width, previous_width] = self._view(width, previous_width)
        return run_segment(self.config, self.segment, views, x)

    def _view(self, width: float, previous_width: float) -> dict[str, Tensor]:
        self.config.require(self.segment, width, previous_width)
        if width > self.width:
            raise ValueError(f"an instance of width {self.width} cannot serve width {width}")
        return slice_weights(self.weights, tensor_shapes(self.config, self.segment, width, previous_width))

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> SegmentInstance:
        """The same instance elsewhere, in another form; kernels follow `memory_format`."""
        moved = {
            name: tensor.to(device, dtype).contiguous(
                memory_format=memory_format if tensor.dim() == 4 else torch.contiguous_format
            )
            for name, tensor in self.weights.items()
        }
        return SegmentInstance(self.config, self.segment, self.width, moved)


# ---------------------------------------------------------------------------------------------------------------- cost


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """What one image costs in one segment.

    Attributes:
        macs: multiply-accumulates of convolutions and the head.
        params: weights that take part.
        activation_bytes: what is left for the next segment (logits after the last).
    """

    macs: int
    params: int
    activation_bytes: int


def cost(
    config: SlimResNetConfig, segment: int, width: float, previous_width: float, element_bytes: int = 4
) -> SegmentCost:
    """The cost of one image in a segment, from shapes alone."""
    shapes = tensor_shapes(config, segment, width, previous_width)
    before = config.size(segment - 1) ** 2
    after = config.size(segment) ** 2
    macs = 0
    for name, shape in shapes.items():
        if len(shape) == 4:
            macs += prod(shape) * (before if name == "stem" else after)
        elif len(shape) == 2:
            macs += prod(shape)
    params = sum(prod(shape) for shape in shapes.values())
    return SegmentCost(macs, params, prod(activation_shape(config, segment, width)) * element_bytes)


def instance_bytes(config: SlimResNetConfig, segment: int, width: float, element_bytes: int = 4) -> int:
    """Bytes of the weights of an instance: enough for any previous width."""
    shapes = tensor_shapes(config, segment, width, widest_input(config, segment))
    return sum(prod(shape) for shape in shapes.values()) * element_bytes


def activation_shape(config: SlimResNetConfig, segment: int, width: float) -> Shape:
    """(C, H, W) of one image after a segment at a width; segment 0 is the image itself; (classes,) after the last."""
    if segment == 0:
        return (config.in_channels, config.image_size, config.image_size)
    if segment == config.segments:
        return (config.classes,)
    return (config.channels(segment, width), config.size(segment), config.size(segment))


# --------------------------------------------------------------------------------------------------------------- files


def model_hash(state: Mapping[str, Tensor]) -> str:
    """16 hex digits that name these weights: names, shapes, types and values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, temporary, dict(metadata))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_tensors(path: Path, schema: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file.

    Raises:
        InputError: there is no such file, it is no safetensors file, or not of this schema.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as error:
        raise InputError(str(path), "", f"cannot be read as safetensors ({error}); train a model first") from None
    if metadata.get("schema") != schema:
        raise InputError(str(path), "schema", f"found {metadata.get('schema')!r}, this needs {schema!r}")
    return tensors, metadata


def save_model(path: Path, model: SlimResNet, metadata: Mapping[str, str]) -> None:
    """Write weights and configuration; `metadata` is kept beside them as text."""
    state = model.state_dict()
    header = {**metadata, **model.config.to_metadata(), "schema": SCHEMA, "hash": model_hash(state)}
    save_tensors(path, state, header)


def load_model(path: Path) -> tuple[SlimResNet, dict[str, str]]:
    """The model that `save_model` wrote, on the CPU, and its metadata (`hash` among it).

    Raises:
        InputError: the file is foreign or corrupt, or its weights do not fit its configuration or hash.
    """
    tensors, metadata = load_tensors(path, SCHEMA)
    try:
        config = SlimResNetConfig.from_metadata(metadata)
    except (KeyError, ValueError) as error:
        raise InputError(str(path), "config", f"not a model configuration ({error})") from None
    model = SlimResNet(config)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(str(path), "", f"the weights do not fit the configuration ({error})") from None
    found = model_hash(model.state_dict())
    if found != metadata.get("hash"):
        raise InputError(str(path), "hash", f"the weights hash to {found}, the header says {metadata.get('hash')!r}")
    return model, metadata
