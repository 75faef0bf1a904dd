"""The slimmable ResNet and the slimmable vision Transformer: how each segment computes at any width, and its cost.

`SlimResNet`: width is an argument of `forward`, never state. The weights of a narrower network are leading slices of
the wider one's, and two requests at different widths may run at once. GroupNorm has a constant number of channels per
group, so that group boundaries nest across widths and nothing learned at one width drifts at another. The first block
of every segment has a projection, because its input width may differ from its output width.

`SlimVit`: a segment makes tokens of its input by a convolution of 3 x 3 (as CvT does, Wu et al. 2021), so that images
may have any size and no table of positions is needed. Pre-norm blocks of attention and an MLP follow. Heads, MLP and
embedding are slimmed: a width keeps the leading heads whole. Query, key and value of one head are next to each other in
one matrix, so that the leading heads are a leading slice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hw.networks.slimmable import ModelSpec, SegmentCost, Shape, SlimmableModel, Weights


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
    def spec(self) -> ModelSpec:
        """The description for the rest of the system."""
        image = (self.in_channels, self.image_size, self.image_size)
        return ModelSpec(self.segments, self.widths, image, self.classes)

    @property
    def segments(self) -> int:
        """S."""
        return len(self.strides)

    def channels(self, segment: int, width: float) -> int:
        """Return the output channels of a segment at a width."""
        return round((self.base_channels << (segment - 1)) * width)

    def input_channels(self, segment: int, previous_width: float) -> int:
        """Return the input channels of a segment's first block: the stem's, fixed at full width, in segment 1."""
        return self.base_channels if segment == 1 else self.channels(segment - 1, previous_width)

    def size(self, segment: int) -> int:
        """Return the height (and width) in pixels of a segment's output; 0 is the image."""
        pixels = self.image_size
        for stride in self.strides[:segment]:
            pixels = -(-pixels // stride)
        return pixels

    def to_json(self) -> str:
        """Return it as text, for a file's header."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SlimResNetConfig:
        """Parse the output of `to_json`; raises `ValueError` on anything else."""
        fields: dict[str, Any] = json.loads(text)
        try:
            widths, strides = tuple(fields.pop("widths")), tuple(fields.pop("strides"))
            counts = [*fields.values(), *strides]
            if not all(type(count) is int and count <= LARGEST for count in counts) or len(strides) > LARGEST_SEGMENTS:
                raise TypeError(f"sizes must be whole numbers up to {LARGEST}, found {counts}")
            return cls(**fields, widths=widths, strides=strides)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a model configuration: {error}") from None


LARGEST, LARGEST_SEGMENTS = 4096, 16  # limits on files: a network is built before its weights are checked
SLIMRESNETS: dict[str, SlimResNetConfig] = {
    # 8x8 pixels: a stride in the last segment would leave GroupNorm two numbers a group, of which only the sign stays
    "digits": SlimResNetConfig(1, 8, 10, 32, 1, 4, strides=(1, 2, 2, 1)),
    # one eighth is a width, so that the narrowest is several times as fast, and the next is far enough above it to be
    # more accurate
    "digit-pairs": SlimResNetConfig(1, 16, 100, 40, 1, 5, widths=(0.125, 0.375, 0.625, 1.0)),
    # of the quickstart, trained beforehand: a batch of 16 takes a CPU core some 80 ms, so that executors' overhead
    # is small in comparison; large images and few channels, as that is time without weights
    "slimresnet-pairs": SlimResNetConfig(1, 32, 100, 24, 1, 3, widths=(0.125, 0.375, 0.625, 1.0), strides=(1, 1, 1, 8)),
    # of a GPU's main job: at full width a batch of 32 keeps an H100 busy for longer than its launches take
    "large-digit-pairs": SlimResNetConfig(1, 32, 100, 192, 2, 8, widths=(0.125, 0.25, 0.5, 1.0)),
    "slimresnet-tiny": SlimResNetConfig(3, 32, 100, 16, 1, 4),
    "slimresnet18": SlimResNetConfig(3, 32, 100, 64, 2, 8),
}


class _Segment(nn.Module):
    """The full-width parameters of one segment."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(_initial(name, shape)))


def _initial(name: str, shape: Shape) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("_scale") else torch.zeros(shape)
    if len(shape) == 2:
        return nn.init.normal_(torch.empty(shape), std=shape[1] ** -0.5)
    return nn.init.kaiming_normal_(torch.empty(shape), mode="fan_out", nonlinearity="relu")


class SlimResNet(SlimmableModel):
    """A slimmable ResNet cut into segments; see the module's docstring."""

    def __init__(self, config: SlimResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.segments = nn.ModuleList()
        for segment in range(1, config.segments + 1):
            shapes = _segment_shapes(config, segment, 1.0, config.spec.widest_input(segment))
            self.segments.append(_Segment(shapes))

    @property
    def spec(self) -> ModelSpec:
        """See `SlimmableModel`."""
        return self.config.spec

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        """See `SlimmableModel`."""
        prefix = _prefix(segment)
        shapes = _segment_shapes(self.config, segment, width, previous_width)
        return {prefix + name: shape for name, shape in shapes.items()}

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """See `SlimmableModel`."""
        prefix = _prefix(segment)
        if segment == 1:
            x = torch.relu_(self._convolve(weights, f"{prefix}stem", x, 1, 1))
        for block in range(self.config.blocks_per_segment):
            stride = self.config.strides[segment - 1] if block == 0 else 1
            x = self._block(weights, f"{prefix}block{block}", x, stride)
        if segment < self.config.segments:
            return x
        return F.linear(x.mean(dim=(2, 3)), weights[f"{prefix}head"], weights[f"{prefix}head_bias"])

    def _block(self, weights: Weights, name: str, x: Tensor, stride: int) -> Tensor:
        inner = torch.relu_(self._convolve(weights, f"{name}_first", x, stride, 1))
        outer = self._convolve(weights, f"{name}_second", inner, 1, 1)
        if f"{name}_projection" in weights:
            x = self._convolve(weights, f"{name}_projection", x, stride, 0)
        return torch.relu_(outer.add_(x))

    def _convolve(self, weights: Weights, name: str, x: Tensor, stride: int, padding: int) -> Tensor:
        kernel = weights[name]
        x = F.conv2d(x, kernel, stride=stride, padding=padding)
        groups = kernel.shape[0] // self.config.channels_per_group
        return F.group_norm(x, groups, weights[f"{name}_scale"], weights[f"{name}_shift"])

    def activation_shape(self, segment: int, width: float) -> Shape:
        """See `SlimmableModel`; from the configuration alone."""
        config = self.config
        if segment in (0, config.segments):
            return super().activation_shape(segment, width)
        return (config.channels(segment, width), config.size(segment), config.size(segment))

    def cost(self, segment: int, width: float, previous_width: float) -> SegmentCost:
        """See `SlimmableModel`; from the shapes alone.

        A convolution reads its input and writes its output; its norm and activation read and write that once more.
        """
        config = self.config
        shapes = _segment_shapes(config, segment, width, previous_width)
        kernels = {name: shape for name, shape in shapes.items() if len(shape) == 4}
        before, after = config.size(segment - 1) ** 2, config.size(segment) ** 2
        macs = sum(prod(shape) * (before if name == "stem" else after) for name, shape in kernels.items())
        macs += sum(prod(shape) for shape in shapes.values() if len(shape) == 2)
        read = config.input_channels(segment, previous_width) * before * 2  # by the first convolution and projection
        written = config.channels(segment, width) * after * len(kernels) * 4
        return SegmentCost(
            macs=macs,
            params=sum(prod(shape) for shape in shapes.values()),
            activation_bytes=4 * prod(self.activation_shape(segment, width)),
            moved_bytes=4 * (read + written),
            kernels=3 * len(kernels) + config.blocks_per_segment,
        )


def _prefix(segment: int) -> str:
    return f"segments.{segment - 1}."


def _segment_shapes(config: SlimResNetConfig, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
    """Return the weights of a segment at (width, previous width), by their names inside the segment."""
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


# --------------------------------------------------------------------------------------------------- vision Transformer


@dataclass(frozen=True, slots=True)
class SlimVitConfig:
    """The shape of a slimmable vision Transformer.

    Attributes:
        in_channels, image_size, classes: one image is (in_channels, image_size, image_size).
        stem: channels of two convolutions before the first tokens, at full width; the second halves the image.
        dims: for each segment, channels of a token at full width.
        strides: for each segment, of the convolution that makes its tokens.
        blocks_per_segment: of attention and MLP.
        heads: of each attention at full width; a head has the same size at every width.
        mlp: hidden channels for each channel of a token.
    """

    in_channels: int
    image_size: int
    classes: int
    stem: tuple[int, int]
    dims: tuple[int, ...]
    strides: tuple[int, ...] = (2, 1, 2, 1)
    blocks_per_segment: int = 1
    heads: int = 4
    mlp: int = 2
    widths: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)


SLIMVITS: Final = {
    "slimvit-pairs": SlimVitConfig(1, 16, 100, (16, 32), (64, 64, 128, 128), strides=(1, 1, 2, 1)),
    "slimvit-tiny": SlimVitConfig(3, 32, 100, (32, 64), (64, 64, 128, 128)),
    "slimvit": SlimVitConfig(3, 32, 100, (32, 64), (128, 128, 256, 256), blocks_per_segment=2),
}


class SlimVit(SlimmableModel):
    """A slimmable vision Transformer cut into segments; see the module's docstring."""

    def __init__(self, config: SlimVitConfig) -> None:
        super().__init__()
        self.config = config
        for segment in range(1, self.spec.segments + 1):
            for name, shape in self.weight_shapes(segment, 1.0, self.spec.widest_input(segment)).items():
                self.register_parameter(name, nn.Parameter(_initial_vit(name, shape)))

    @property
    def spec(self) -> ModelSpec:
        """See `SlimmableModel`."""
        config = self.config
        image = (config.in_channels, config.image_size, config.image_size)
        return ModelSpec(len(config.dims), config.widths, image, config.classes)

    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        """See `SlimmableModel`."""
        config = self.config
        dim = round(config.dims[segment - 1] * width)
        hidden = config.mlp * dim
        shapes: dict[str, Shape] = {}
        if segment == 1:
            first, before = (round(channels * width) for channels in config.stem)
            shapes |= {"stem0": (first, config.in_channels, 3, 3), "stem0_bias": (first,)}
            shapes |= {"stem1": (before, first, 3, 3), "stem1_bias": (before,)}
        else:
            before = round(config.dims[segment - 2] * previous_width)
        shapes |= {"tokens": (dim, before, 3, 3), "tokens_bias": (dim,)}
        for block in range(config.blocks_per_segment):
            of_block: dict[str, Shape] = {"norm0_scale": (dim,), "norm0_shift": (dim,)}
            of_block |= {"heads": (3 * dim, dim), "out": (dim, dim), "out_bias": (dim,)}
            of_block |= {"norm1_scale": (dim,), "norm1_shift": (dim,)}
            of_block |= {"up": (hidden, dim), "up_bias": (hidden,), "down": (dim, hidden), "down_bias": (dim,)}
            shapes |= {f"block{block}_{name}": shape for name, shape in of_block.items()}
        if segment == len(config.dims):
            shapes |= {"norm_scale": (dim,), "norm_shift": (dim,)}
            shapes |= {"classes": (config.classes, dim), "classes_bias": (config.classes,)}
        return {f"segment{segment}_{name}": shape for name, shape in shapes.items()}

    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """See `SlimmableModel`; between segments, tokens have the shape (B, C, H, W)."""
        prefix = f"segment{segment}_"
        if segment == 1:
            x = torch.relu_(_convolve(weights, f"{prefix}stem0", x, 1))
            x = torch.relu_(_convolve(weights, f"{prefix}stem1", x, 2))
        x = _convolve(weights, f"{prefix}tokens", x, self.config.strides[segment - 1])
        extent = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)  # (B, tokens, C)
        for block in range(self.config.blocks_per_segment):
            x = self._block(weights, f"{prefix}block{block}_", x, self.config.dims[segment - 1] // self.config.heads)
        if segment < len(self.config.dims):
            return x.transpose(1, 2).reshape(len(x), -1, *extent)
        x = _norm(weights, f"{prefix}norm", x).mean(dim=1)
        return F.linear(x, weights[f"{prefix}classes"], weights[f"{prefix}classes_bias"])

    def activation_shape(self, segment: int, width: float) -> Shape:
        """See `SlimmableModel`; from the configuration alone."""
        config = self.config
        if segment in (0, len(config.dims)):
            return super().activation_shape(segment, width)
        pixels = config.image_size
        for stride in (2, *config.strides[:segment]):  # the stem's, and of each segment's tokens
            pixels = -(-pixels // stride)
        return (round(config.dims[segment - 1] * width), pixels, pixels)

    def _block(self, weights: Weights, prefix: str, x: Tensor, head: int) -> Tensor:
        y = F.linear(_norm(weights, f"{prefix}norm0", x), weights[f"{prefix}heads"])
        query, key, value = y.reshape(*y.shape[:2], -1, 3, head).transpose(1, 2).unbind(3)  # (B, heads, tokens, head)
        y = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + F.linear(y, weights[f"{prefix}out"], weights[f"{prefix}out_bias"])
        y = F.linear(_norm(weights, f"{prefix}norm1", x), weights[f"{prefix}up"], weights[f"{prefix}up_bias"])
        return x + F.linear(F.gelu(y), weights[f"{prefix}down"], weights[f"{prefix}down_bias"])


def _convolve(weights: Weights, name: str, x: Tensor, stride: int) -> Tensor:
    return F.conv2d(x, weights[name], weights[f"{name}_bias"], stride, padding=1)


def _norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}_scale"], weights[f"{name}_shift"])


def _initial_vit(name: str, shape: Shape) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("_scale") else torch.zeros(shape)
    if len(shape) == 4:
        return nn.init.kaiming_normal_(torch.empty(shape), nonlinearity="relu")
    return nn.init.normal_(torch.empty(shape), std=shape[1] ** -0.5)
