"""What an agent keeps between batches: single activations as rows of the blocks that they came in.

A batch whose rows follow one another in one block is a view of it: nothing is copied. Any other is stacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from hw.arena import Arena
from hw.device import DeviceSpec

Row = tuple[Tensor, int]  # a block (n, ...) and the index of one activation in it


def rows_of(block: Tensor) -> list[Row]:
    """Every activation of a block."""
    return [(block, index) for index in range(len(block))]


def gather(rows: Sequence[Row]) -> Tensor:
    """(n, ...) of rows of one shape; a view where they follow one another in one block."""
    block, first = rows[0]
    if all(other is block and index == first + step for step, (other, index) in enumerate(rows)):
        return block if len(rows) == len(block) else block[first : first + len(rows)]
    return torch.stack([other[index] for other, index in rows])


def tensor_in(
    arena: Arena, offset: int, shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool = False
) -> Tensor:
    """A view of a part, (n, ...) in order; feature maps (n, C, H, W) may have their channels last in memory."""
    flat = torch.frombuffer(arena.buffer, dtype=dtype, count=prod(shape), offset=offset)
    if not channels_last:
        return flat.reshape(shape)
    n, channels, height, width = shape
    return flat.reshape(n, height, width, channels).permute(0, 3, 1, 2)


def in_format(x: Tensor, memory_format: torch.memory_format) -> Tensor:
    """A contiguous batch; only images and feature maps (B, C, H, W) have more than one order."""
    return x.contiguous(memory_format=memory_format) if x.dim() == 4 else x.contiguous()


def shares_memory(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors look at one storage."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


class Activations:
    """The store of one agent.

    Args:
        arenas: of all agents, by index.
        own: this agent's index.
        device, place: where and how activations are kept. On a CPU, what arrives is used where it lies.
    """

    def __init__(self, arenas: Sequence[Arena], own: int, device: DeviceSpec, place: torch.device) -> None:
        self._arenas = tuple(arenas)
        self._own = own
        self._device = device
        self._place = place
        self._rows: dict[int, Row | Exception] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def take(
        self, requests: Sequence[int], offset: int, shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool
    ) -> None:
        """Keep what stands in this agent's arena; what can't be kept says why to whoever asks for it."""
        try:
            block = tensor_in(self._arenas[self._own], offset, (len(requests), *shape), dtype, channels_last)
            block = block.to(self._place, self._device.torch_dtype)
            if block.is_cuda:
                torch.cuda.current_stream(self._place).synchronize()
        except Exception as error:
            self._rows.update(dict.fromkeys(requests, error))
            return
        self._rows.update(zip(requests, rows_of(block), strict=True))

    def put_rows(self, rows: Mapping[int, Row]) -> None:
        """Keep these, in place of what was there."""
        self._rows.update(rows)

    def row(self, request: int) -> Row:
        """Raises `KeyError` where there is none, and what went wrong where it could not be kept."""
        found = self._rows[request]
        if isinstance(found, Exception):
            raise found
        return found

    def send(self, requests: Sequence[int], destination: int, offset: int) -> tuple[tuple[int, ...], torch.dtype, bool]:
        """Write these activations into another agent's arena; returns one's shape, the element type and the order.

        Raises:
            KeyError: one is missing.
        """
        block = gather([self.row(request) for request in requests])
        channels_last = block.dim() == 4 and block.is_contiguous(memory_format=torch.channels_last)
        arena = self._arenas[destination]
        tensor_in(arena, offset, tuple(block.shape), block.dtype, channels_last).copy_(block)
        arena.commit(offset, block.nbytes)
        return tuple(block.shape[1:]), block.dtype, channels_last

    def forget(self, requests: Iterable[int]) -> None:
        """These will not be asked for again."""
        for request in requests:
            self._rows.pop(request, None)

    def clear(self) -> int:
        """Forget all; returns how many there were."""
        count = len(self._rows)
        self._rows.clear()
        return count
