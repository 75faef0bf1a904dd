"""The interface of networks that can be served: segments of several widths, their batches, their operations and bytes.

A *slimmable network* (`hw.networks.slimmable`) nests its widths in one set of weights. A *family* consists of ordinary
networks for the same task, each of which is a width; it has one segment, and a width is a rank. *Joined models* are
several slimmable networks or families in one file (both: `hw.networks.model_families`). All code that evaluates,
calibrates and serves uses only this interface.

Shapes: B images, C channels, H x W pixels. Segments count from 1; the previous width of segment 1 is `IMAGE` (0.0).

Batches: if the rows of a batch follow one another in one block, the batch is a view of that block, without a copy. Any
other batch is gathered, in the order of memory that its blocks have: feature maps with their channels last stay so. A
captured pass has a fixed input buffer, into which a batch is gathered from the device or from pinned memory of the
host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from threading import RLock
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from policies.interfaces import nest_by_width, nests_of, tuples_within
from policies.vocabulary import IMAGE

Shape = tuple[int, ...]
Key = tuple[int, float, float]  # (segment, width, previous width)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The part of a network's description that the rest of the system needs.

    Attributes:
        segments: S, run in their order 1..S.
        widths: the width set W, ascending within (0, 1], the last one 1.
        input_shape: (C, H, W) of one image.
        classes: logits of one image after the last segment.
        labels: people's names of the widths: of a family, its networks. Empty if a width's name is its number.
        nests: how many widths each nest has (`policies.interfaces`); empty if all are one.
        models: of several models each one's name, and how many of the widths are its; empty if there is one.
    """

    segments: int
    widths: tuple[float, ...]
    input_shape: Shape
    classes: int
    labels: tuple[str, ...] = ()
    nests: tuple[int, ...] = ()
    models: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(float(width) for width in self.widths))  # a list is as good
        object.__setattr__(self, "input_shape", tuple(self.input_shape))
        if min(self.segments, self.classes, *self.input_shape) < 1 or len(self.input_shape) != 3:
            raise ValueError("segments, classes and the three sizes of input_shape (C, H, W) must be at least 1")
        ascending = list(self.widths) == sorted(set(self.widths))
        if not self.widths or not ascending or self.widths[0] <= 0 or self.widths[-1] != 1.0:
            raise ValueError(f"widths must ascend from above 0 and end with 1.0: {list(self.widths)}")

    def previous_widths(self, segment: int, width: float) -> tuple[float, ...]:
        """Return the possible previous widths of a width of `segment`: `IMAGE` at segment 1, any of its nest after."""
        return (IMAGE,) if segment == 1 else self.nest(width)

    def served_keys(self, segment: int, width: float) -> list[tuple[float, float]]:
        """Return every (width, previous width) that an instance of a width serves, ascending."""
        narrower = [each for each in self.widths if self.serves(width, each)]
        return [(each, previous) for each in narrower for previous in self.previous_widths(segment, each)]

    def widest_input(self, segment: int, width: float = 1.0) -> float:
        """Return the previous width with the most channels, which an instance must hold to serve any."""
        return self.previous_widths(segment, width)[-1]

    def nest(self, width: float) -> tuple[float, ...]:
        """Return the widths that nest with one."""
        return nest_by_width(self.widths, self.nests)[width]

    def name_of(self, width: float) -> str:
        """Return people's name of a width."""
        return self.labels[self.widths.index(width)] if self.labels else f"{width:g}"

    def width_of(self, name: str) -> float:
        """Return the width of that name."""
        return self.widths[self.labels.index(name)]

    def serves(self, instance_width: float, width: float) -> bool:
        """Return whether an instance of one width serves a request for another."""
        return width <= instance_width <= self.nest(width)[-1]

    def work_keys(self) -> list[Key]:
        """Return every legal (segment, width, previous width), ascending."""
        keys = product(range(1, self.segments + 1), self.widths)
        return [(*key, previous) for key in keys for previous in self.previous_widths(*key)]

    def tuples(self) -> list[tuple[float, ...]]:
        """Return every complete width tuple, ascending: W ** S of each nest."""
        return tuples_within(nests_of(self.widths, self.nests), self.segments)

    def require(self, segment: int, width: float, previous_width: float) -> None:
        """Raise `ValueError` unless this is a legal key of the network."""
        if not 1 <= segment <= self.segments:
            raise ValueError(f"segment {segment} is not in 1..{self.segments}")
        if width not in self.widths:
            raise ValueError(f"width {width} is not one of {list(self.widths)}")
        if previous_width not in self.previous_widths(segment, width):
            allowed = list(self.previous_widths(segment, width))
            raise ValueError(f"previous width {previous_width} before segment {segment} is not one of {allowed}")


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """The cost of a segment at a (width, previous width).

    Attributes:
        macs: multiply-accumulates of one image.
        params: weights that take part, in numbers of 4 bytes.
        activation_bytes: of one image's output to the next segment (logits after the last), in float32.
        moved_bytes: feature maps of one image that are read and written on the way, in float32.
        kernels: operations that a forward pass launches.
    """

    macs: int
    params: int
    activation_bytes: int
    moved_bytes: int
    kernels: int


class Instance(Protocol):
    """A segment at one width, with weights in separate memory, whose content is its network's business.

    Safe to run from one thread at a time, concurrently with other instances.
    """

    @property
    def segment(self) -> int:
        """The number of its segment."""
        ...

    @property
    def width(self) -> float:
        """The widest that it serves."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory that is this instance's alone."""
        ...

    def run(self, x: Tensor, width: float, previous_width: float) -> Tensor:
        """Compute the same numbers as `Servable.forward_segment`; raises `ValueError` for a width not served."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format) -> Instance:
        """Return the same instance elsewhere, in another form; kernels follow `memory_format`."""
        ...


class Servable(nn.Module, ABC):
    """A network that can be served; see the module's docstring."""

    @property
    @abstractmethod
    def spec(self) -> ModelSpec:
        """Segments, widths, images and classes."""

    @abstractmethod
    def forward_segment(self, x: Tensor, segment: int, width: float, previous_width: float) -> Tensor:
        """Run one segment at a width, on the previous segment's output at its width.

        Raises:
            ValueError: the network has no such key.
        """

    @abstractmethod
    def instance(self, segment: int, width: float, path: Path | None = None, prefix: str = "") -> Instance:
        """Copy the weights that one segment needs up to a width.

        Args:
            path: the network's file, to read the weights from; None takes this network's own.
            prefix: of the weights' names in the file.
        """

    @abstractmethod
    def instance_bytes(self, segment: int, width: float, element_bytes: int = 4) -> int:
        """Return the bytes of the weights of an instance, if each number has this number of bytes."""

    @abstractmethod
    def activation_shape(self, segment: int, width: float) -> Shape:
        """Return the shape of one image after a segment at a width, without the batch; segment 0 is the image."""

    @abstractmethod
    def cost(self, segment: int, width: float, previous_width: float) -> SegmentCost:
        """Return the cost of a key."""

    def forward(self, x: Tensor, widths: tuple[float, ...]) -> Tensor:
        """Run all segments at a width tuple: (B, C, H, W) images to (B, classes) logits."""
        if len(widths) != self.spec.segments:
            raise ValueError(f"{len(widths)} widths for {self.spec.segments} segments")
        previous = IMAGE
        for segment, width in enumerate(widths, start=1):
            x = self.forward_segment(x, segment, width, previous)
            previous = width
        return x


# -------------------------------------------------------------------------------------------------------------- batches


Row = tuple[Tensor, int]  # a block (n, ...) and the index of one activation in it


def rows_of(block: Tensor) -> list[Row]:
    """Return every activation of a block."""
    return [(block, index) for index in range(len(block))]


def gather(rows: Sequence[Row]) -> Tensor:
    """Return (n, ...) of rows of one shape; a view if they follow one another in one block."""
    parts = _parts_of(rows)
    return parts[0] if len(parts) == 1 else _join(rows, parts)


def gather_into(rows: Sequence[Row], room: Tensor) -> None:
    """Write n rows of one shape to the first places of `room` (m, ...), and zeros to the others.

    It does not wait for a GPU: rows in pinned memory are copied on the current stream, and must stay there until that
    has happened.

    Raises:
        ValueError: they are of another shape than the room's.
    """
    target, parts = room[: len(rows)], _parts_of(rows)
    if any(part.shape[1:] != room.shape[1:] for part in parts):
        raise ValueError(f"activations of {[tuple(part.shape[1:]) for part in parts]}, not of {tuple(room.shape[1:])}")
    if len(parts) > 1 and all(_lies_alike(part, room) and part.device == room.device for part in parts):
        _join(rows, parts, target)
    else:
        for part, slot in zip(parts, torch.split(target, [len(part) for part in parts]), strict=True):
            source = part if _lies_alike(part, room) else part.to(room.device, non_blocking=room.is_cuda)
            slot.copy_(source, non_blocking=True)
    if len(rows) < len(room):
        room[len(rows) :].zero_()


def _parts_of(rows: Sequence[Row]) -> list[Tensor]:
    """Return views of consecutive rows of one block, each as long as possible, in order."""
    parts: list[Tensor] = []
    block, first = rows[0]
    count = 0
    for next_block, index in rows:
        if next_block is not block or index != first + count:
            parts.append(block[first : first + count])
            block, first = next_block, index
            count = 0
        count += 1
    parts.append(block if count == len(block) else block[first : first + count])
    return parts


def _join(rows: Sequence[Row], parts: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """Join parts of several places, one after another, in the order of memory that they have."""
    is_last = all(has_channels_last(part) for part in parts)  # otherwise torch copies again, ten times as slowly

    def turned(x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1) if is_last else x

    block, target = rows[0][0], None if out is None else turned(out)
    if any(row_block is not block for row_block, _ in rows):
        joined = torch.cat([turned(part) for part in parts], out=target)
    else:  # from pinned memory: a pageable copy would wait for all work on the stream
        indexes = torch.tensor([index for _, index in rows], pin_memory=block.is_cuda)
        joined = torch.index_select(turned(block), 0, indexes.to(block.device, non_blocking=True), out=target)
    return joined.permute(0, 3, 1, 2) if is_last else joined


def _lies_alike(x: Tensor, room: Tensor) -> bool:
    return x.dtype == room.dtype and has_channels_last(x) == has_channels_last(room)


def has_channels_last(block: Tensor) -> bool:
    """Return whether these are feature maps (n, C, H, W) with channels last in memory, and not in order as well."""
    return block.dim() == 4 and not block.is_contiguous() and block.is_contiguous(memory_format=torch.channels_last)


# ------------------------------------------------------------------------------------------------- operations and bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """The operations of a computation.

    Attributes:
        macs: multiply-accumulates of matrix products and convolutions: half of torch's counted operations.
        moved_bytes: tensors read and written by its operations, weights not among them.
        kernels: operations that computed something (views do not).
    """

    macs: int
    moved_bytes: int
    kernels: int


def counted(computation: Callable[[], Tensor], weights: Sequence[Tensor] = ()) -> tuple[Counts, Tensor]:
    """Run a computation and count it; `weights` are the tensors whose bytes are not feature maps.

    A worker's lanes may ask at once: each waits for its turn.
    """
    flops, traffic = FlopCounterMode(display=False, custom_mapping=_ATTENTION), _Traffic(weights)
    with _TURN, flops, traffic:
        result = computation()
    return Counts(flops.get_total_flops() // 2, traffic.moved_bytes, traffic.kernels), result


def _attention_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


_ATTENTION: Final = {  # torch counts that of GPUs alone
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops
}


# torch makes an operator's Python object when a mode first sees it, and keeps a bare pointer to it (torch/_ops.py).
# Of two threads' objects one is freed, which may be the one pointed to.
_TURN: Final = RLock()


class _Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what each operation reads and writes."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = {id(tensor): tensor for tensor in weights}  # kept, so that no other tensor gets such an id
        self.moved_bytes = 0
        self.kernels = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if func.is_view:
            if any(id(tensor) in self._weights for tensor in read):
                self._weights.update((id(tensor), tensor) for tensor in written)  # a weight seen another way
        else:
            self.kernels += 1
            moved = [tensor for tensor in (*read, *written) if id(tensor) not in self._weights]
            self.moved_bytes += sum(tensor.numel() * tensor.element_size() for tensor in moved)
        return result
