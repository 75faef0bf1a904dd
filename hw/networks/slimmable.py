"""The interface of segmented slimmable networks, so that they can be trained, evaluated, calibrated and served here.

A network is cut into segments that run one after another; each runs at a separate width. Its weights are in one
`state_dict`; at a narrower width a leading slice of each takes part, so that one set of weights serves every width and
an instance (a segment's weights at one width, in separate memory) serves every width up to its own.

A user's network subclasses `SlimmableModel` and specifies three things: its `spec`, which slices of which weights a
segment takes (`weight_shapes`), and what the segment computes with them (`run_segment`). The rest follows.
`hw.networks.conformance` checks that it keeps the rules.

Shapes: B images, C channels, H x W pixels. Segments count from 1; the previous width of segment 1 is `IMAGE` (0.0).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from hw.networks.counting import Counts, counted
from hw.networks.servable import Key as Key
from hw.networks.servable import ModelSpec as ModelSpec
from hw.networks.servable import SegmentCost as SegmentCost
from hw.networks.servable import Servable
from hw.networks.servable import Shape as Shape

Weights = Mapping[str, Tensor]


class SlimmableModel(Servable):
    """A segmented slimmable network; see the module's docstring.

    A constructor's arguments are JSON values (a scenario's `model.options`), and building it twice with the same ones
    gives the same structure: agents' processes build it again and fill it from a file.
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
