"""Costs of a network's segments in operations and bytes, from shapes alone, independent of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from hw.networks.servable import Servable
from sim.profile import ModelInfo

Key = tuple[int, float, float]  # (segment, width, previous width)
ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class KeyCost:
    """Cost of one (segment, width, previous width).

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
        """Return the bytes that a batch moves to and from device memory."""
        return self.weight_bytes + batch * self.moved_bytes


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A model's costs for calibration and the datasheet profiles.

    Attributes:
        keys: the cost of every legal key.
        instance_bytes: the weights of every (segment, width).
    """

    info: ModelInfo
    keys: Mapping[Key, KeyCost]
    instance_bytes: Mapping[tuple[int, float], int]


def costs_of(model: Servable, name: str, model_hash: str) -> ModelCosts:
    """Return the costs of a network in float32."""
    spec = model.spec
    costs = {key: model.cost(*key) for key in spec.work_keys()}
    return ModelCosts(
        info=_model_info(model, name, model_hash),
        keys={
            key: KeyCost(cost.macs, cost.params * ELEMENT_BYTES, cost.moved_bytes, cost.kernels)
            for key, cost in costs.items()
        },
        instance_bytes={
            (segment, width): model.instance_bytes(segment, width)
            for segment in range(1, spec.segments + 1)
            for width in spec.widths
        },
    )


def _model_info(model: Servable, name: str, model_hash: str) -> ModelInfo:
    spec = model.spec
    rows = [
        tuple(ELEMENT_BYTES * prod(model.activation_shape(segment, width)) for width in spec.widths)
        for segment in range(1, spec.segments + 1)
    ]
    return ModelInfo(
        name=name,
        hash=model_hash,
        segments=spec.segments,
        widths=spec.widths,
        input_bytes=ELEMENT_BYTES * prod(spec.input_shape),
        activation_bytes=tuple(rows),
        labels=spec.labels,
        nests=spec.nests,
        models=spec.models,
    )
