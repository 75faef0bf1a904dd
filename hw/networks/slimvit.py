"""The slimmable vision Transformer: compact, with convolutions that make tokens; attention between them.

A segment makes tokens of its input, by a convolution of 3 x 3 (as CvT does, Wu et al. 2021), so that images may have
any size and no table of positions is needed. Pre-norm blocks of attention and an MLP follow. Heads, MLP and embedding
are slimmed: a width keeps the leading heads whole. Query, key and value of one head are side by side in one matrix, so
that the leading heads are a leading slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hw.networks.slimmable import ModelSpec, Shape, SlimmableModel, Weights


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


PRESETS: Final = {
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
                self.register_parameter(name, nn.Parameter(_initial(name, shape)))

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


def _initial(name: str, shape: Shape) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("_scale") else torch.zeros(shape)
    if len(shape) == 4:
        return nn.init.kaiming_normal_(torch.empty(shape), nonlinearity="relu")
    return nn.init.normal_(torch.empty(shape), std=shape[1] ** -0.5)
