"""Single activations as rows of the blocks that they came in, and how rows become a batch.

A batch whose rows follow one another in one block is a view of it, without a copy. Any other is gathered, in the order
of memory that its blocks have: feature maps with their channels last stay so. A captured pass has a fixed input buffer,
into which a batch is gathered from any place: the device, or pinned memory of the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
        for part, place in zip(parts, torch.split(target, [len(part) for part in parts]), strict=True):
            alike = part if _lies_alike(part, room) else part.to(room.device, non_blocking=room.is_cuda)
            place.copy_(alike, non_blocking=True)
    if len(rows) < len(room):
        room[len(rows) :].zero_()


def _parts_of(rows: Sequence[Row]) -> list[Tensor]:
    """Return views of consecutive rows of one block, each as long as possible, in order."""
    parts: list[Tensor] = []
    block, first = rows[0]
    count = 0
    for other, index in rows:
        if other is not block or index != first + count:
            parts.append(block[first : first + count])
            block, first = other, index
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
    if any(other is not block for other, _ in rows):
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
