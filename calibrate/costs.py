"""What a network's segments cost in operations and bytes, from shapes alone. It knows no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from hw.slimresnet import SlimResNetConfig, activation_shape, cost, instance_bytes, tensor_shapes
from sim.profile import ModelInfo

Key = tuple[int, float, float]  # (segment, width, previous width)
ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class KeyCost:
    """One (segment, width, previous width).

    Attributes:
        macs: multiply-accumulates of one image.
        weight_bytes: read once a batch.
        moved_bytes: feature maps read and written, of one image.
        kernels: launches of one forward pass.
    """

    macs: int
    weight_bytes: int
    moved_bytes: int
    kernels: int

    def batch_bytes(self, batch: int) -> int:
        """Bytes that a batch moves to and from device memory."""
        return self.weight_bytes + batch * self.moved_bytes


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A model as calibration and the datasheet profiles see it.

    Attributes:
        keys: the cost of every legal key.
        instance_bytes: the weights of every (segment, width).
    """

    info: ModelInfo
    keys: Mapping[Key, KeyCost]
    instance_bytes: Mapping[tuple[int, float], int]


def resnet_costs(config: SlimResNetConfig, name: str, model_hash: str) -> ModelCosts:
    """The costs of a slimmable ResNet in float32."""
    return ModelCosts(
        info=_model_info(config, name, model_hash),
        keys={key: _key_cost(config, *key) for key in config.work_keys()},
        instance_bytes={
            (segment, width): instance_bytes(config, segment, width)
            for segment in range(1, config.segments + 1)
            for width in config.widths
        },
    )


def _model_info(config: SlimResNetConfig, name: str, model_hash: str) -> ModelInfo:
    rows = [
        tuple(ELEMENT_BYTES * prod(activation_shape(config, segment, width)) for width in config.widths)
        for segment in range(1, config.segments + 1)
    ]
    return ModelInfo(
        name=name,
        hash=model_hash,
        segments=config.segments,
        widths=config.widths,
        input_bytes=ELEMENT_BYTES * prod(activation_shape(config, 0, 1.0)),
        activation_bytes=tuple(rows),
    )


def _key_cost(config: SlimResNetConfig, segment: int, width: float, previous_width: float) -> KeyCost:
    """A convolution reads its input and writes its output; its norm and activation read and write that once more."""
    shapes = tensor_shapes(config, segment, width, previous_width)
    convolutions = sum(len(shape) == 4 for shape in shapes.values())
    before, after = config.size(segment - 1) ** 2, config.size(segment) ** 2
    read = config.input_channels(segment, previous_width) * before * 2  # by the first convolution and the projection
    written = config.channels(segment, width) * after * convolutions * 4
    plain = cost(config, segment, width, previous_width)
    return KeyCost(
        macs=plain.macs,
        weight_bytes=plain.params * ELEMENT_BYTES,
        moved_bytes=(read + written) * ELEMENT_BYTES,
        kernels=3 * convolutions + config.blocks_per_segment,
    )
