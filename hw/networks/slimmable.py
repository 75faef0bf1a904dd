"""What a segmented slimmable network must be, so that it can be trained, evaluated, calibrated and served here.

A network is cut into segments that run one after another; each runs at a width of its own. Its weights lie in one
`state_dict`; at a narrower width a leading slice of each takes part, so that one set of weights serves every width and
an instance (a segment's weights at one width, in memory of their own) serves every width up to its own.

A user's network subclasses `SlimmableModel` and says three things: its `spec`, which slices of which weights a segment
takes (`weight_shapes`), and what the segment computes with them (`run_segment`). All else follows.
`hw.networks.conformance` checks that it keeps the rules.

Shapes: B images, C channels, H x W pixels. Segments count from 1; the previous width of segment 1 is `IMAGE` (0.0).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from hw.networks.counting import Counts, counted
from policies.vocabulary import IMAGE

Weights = Mapping[str, Tensor]
Shape = tuple[int, ...]
Key = tuple[int, float, float]  # (segment, width, previous width)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the rest of the system must know of a network.

    Attributes:
        segments: S, run in their order 1..S.
        widths: the width set W, ascending within (0, 1], the last one 1.
        input_shape: (C, H, W) of one image.
        classes: logits of one image after the last segment.
    """

    segments: int
    widths: tuple[float, ...]
    input_shape: Shape
    classes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(float(width) for width in self.widths))  # a list is as good
        object.__setattr__(self, "input_shape", tuple(self.input_shape))
        if min(self.segments, self.classes, *self.input_shape) < 1 or len(self.input_shape) != 3:
            raise ValueError("segments, classes and the three sizes of input_shape (C, H, W) must be at least 1")
        ascending = list(self.widths) == sorted(set(self.widths))
        if not self.widths or not ascending or self.widths[0] <= 0 or self.widths[-1] != 1.0:
            raise ValueError(f"widths must ascend from above 0 and end with 1.0: {list(self.widths)}")

    def previous_widths(self, segment: int) -> tuple[float, ...]:
        """What a request before `segment` can come from: `IMAGE` at segment 1, any width after."""
        return (IMAGE,) if segment == 1 else self.widths

    def widest_input(self, segment: int) -> float:
        """The previous width with the most channels: what an instance must hold to serve any."""
        return self.previous_widths(segment)[-1]

    def work_keys(self) -> list[Key]:
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


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """What a segment costs at a (width, previous width).

    Attributes:
        macs: multiply-accumulates of one image.
        params: weights that take part.
        activation_bytes: what one image leaves for the next segment (logits after the last), in float32.
        moved_bytes: feature maps of one image that are read and written on the way, in float32.
        kernels: operations that a forward pass launches.
    """

    macs: int
    params: int
    activation_bytes: int
    moved_bytes: int
    kernels: int


class SlimmableModel(nn.Module, ABC):
    """A segmented slimmable network; see the module's docstring.

    A constructor's arguments are JSON values (a scenario's `model.options`), and building it twice with the same ones
    gives the same structure: agents' processes build it anew and fill it from a file.
    """

    def __init__(self) -> None:
        super().__init__()
        self._output_shapes: dict[tuple[int, float], Shape] = {}

    @property
    @abstractmethod
    def spec(self) -> ModelSpec:
        """Segments, widths, images and classes."""

    @abstractmethod
    def weight_shapes(self, segment: int, width: float, previous_width: float) -> dict[str, Shape]:
        """The weights that take part: name in `state_dict` -> shape of the leading slice.

        At a smaller width or previous width no shape may be larger in any dimension.
        """

    @abstractmethod
    def run_segment(self, segment: int, weights: Weights, x: Tensor) -> Tensor:
        """One segment on weights already sliced; it must use these and none of its own, and keep no state.

        Args:
            weights: by the names of `weight_shapes`; their shapes tell the width.
            x: (B, C, H, W) images before segment 1, else what the segment before left. It must not be changed. Each
                image's result must not depend on the others of the batch.

        Returns:
            (B, ...) activations, whose shape depends on the segment and the width alone; (B, classes) logits after the
            last segment.
        """

    # ------------------------------------------------------------------------------------------- what follows from it

    def forward_segment(self, x: Tensor, segment: int, width: float, previous_width: float) -> Tensor:
        """One segment at a width, on what the segment before left at its width: see `run_segment`.

        Raises:
            ValueError: the network has no such key.
        """
        self.spec.require(segment, width, previous_width)
        shapes = self.weight_shapes(segment, width, previous_width)
        return self.run_segment(segment, slice_weights(self._state(), shapes), x)

    def forward(self, x: Tensor, widths: tuple[float, ...]) -> Tensor:
        """All segments at a width tuple: (B, C, H, W) images to (B, classes) logits."""
        if len(widths) != self.spec.segments:
            raise ValueError(f"{len(widths)} widths for {self.spec.segments} segments")
        previous = IMAGE
        for segment, width in enumerate(widths, start=1):
            x = self.forward_segment(x, segment, width, previous)
            previous = width
        return x

    def instance_shapes(self, segment: int, width: float) -> dict[str, Shape]:
        """The weights of an instance: enough for any previous width; raises `ValueError` for an illegal width."""
        previous = self.spec.widest_input(segment)
        self.spec.require(segment, width, previous)
        return self.weight_shapes(segment, width, previous)

    def instance_bytes(self, segment: int, width: float, element_bytes: int = 4) -> int:
        """Bytes of the weights of an instance."""
        return element_bytes * sum(prod(shape) for shape in self.instance_shapes(segment, width).values())

    def instance(self, segment: int, width: float) -> SegmentInstance:
        """Contiguous copies of what one segment needs up to a width: see `SegmentInstance`."""
        views = slice_weights(self._state(), self.instance_shapes(segment, width))
        copies = {name: view.detach().clone(memory_format=torch.contiguous_format) for name, view in views.items()}
        return SegmentInstance(self, segment, width, copies)

    def activation_shape(self, segment: int, width: float) -> Shape:
        """What one image is after a segment at a width, without the batch; segment 0 is the image itself."""
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
        """What a key costs, counted in a dry run; a network that knows a closed form may give that instead."""
        counts, shape = self._dry_run(segment, width, previous_width)
        params = sum(prod(s) for s in self.weight_shapes(segment, width, previous_width).values())
        return SegmentCost(counts.macs, params, 4 * prod(shape), counts.moved_bytes, counts.kernels)

    def _dry_run(self, segment: int, width: float, previous_width: float) -> tuple[Counts, Shape]:
        """One image through a segment, with shapes and no numbers."""
        self.spec.require(segment, width, previous_width)
        shapes = self.weight_shapes(segment, width, previous_width)
        weights = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        x = torch.empty((1, *self.activation_shape(segment - 1, previous_width)), device="meta")
        counts, y = counted(lambda: self.run_segment(segment, weights, x), tuple(weights.values()))
        return counts, tuple(y.shape[1:])

    def _state(self) -> dict[str, Tensor]:
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}


def slice_weights(weights: Weights, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Leading slices (views) of these shapes."""
    return {name: weights[name][tuple(slice(0, length) for length in shape)] for name, shape in shapes.items()}


class SegmentInstance:
    """A segment's weights at one width, in memory of their own: serves any width up to its own, any previous width.

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
    def weight_bytes(self) -> int:
        """Real bytes of the weights held."""
        return sum(tensor.nbytes for tensor in self.weights.values())

    @property
    def held_bytes(self) -> int:
        """Memory that is this instance's alone."""
        return self.weight_bytes

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """The same numbers as `forward_segment`; raises `ValueError` for a width above its own."""
        views = self._views.get((width, previous_width))
        if views is None:
            views = self._views[width, previous_width] = self._view(width, previous_width)
        return self.model.run_segment(self.segment, views, x)

    def _view(self, width: float, previous_width: float) -> dict[str, Tensor]:
        self.model.spec.require(self.segment, width, previous_width)
        if width > self.width:
            raise ValueError(f"an instance of width {self.width} cannot serve width {width}")
        return slice_weights(self.weights, self.model.weight_shapes(self.segment, width, previous_width))

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> SegmentInstance:
        """The same instance elsewhere, in another form; kernels follow `memory_format`."""
        moved = {
            name: tensor.to(
                device, dtype, memory_format=memory_format if tensor.dim() == 4 else torch.contiguous_format
            )
            for name, tensor in self.weights.items()
        }
        return SegmentInstance(self.model, self.segment, self.width, moved)
