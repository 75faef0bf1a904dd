"""What an agent keeps between batches: single activations as rows of the blocks that they came in (`hw.rows`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from hw.arena import Arena
from hw.device import DeviceSpec
from hw.rows import Row, gather, rows_of
from hw.slots import SlotPools


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
        pools: keep copies in their slots; None keeps each block as it came.
    """

    def __init__(
        self,
        arenas: Sequence[Arena],
        own: int,
        device: DeviceSpec,
        place: torch.device,
        pools: SlotPools | None = None,
    ) -> None:
        self._arenas = tuple(arenas)
        self._own = own
        self._device = device
        self._place = place
        self._pools = pools
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
            rows = self._rows_for(block)
        except Exception as error:
            self._rows.update(dict.fromkeys(requests, error))
            return
        self._rows.update(zip(requests, rows, strict=True))

    def put_rows(self, rows: Mapping[int, Row]) -> None:
        """Keep these, in place of what was there; nobody reads that any more."""
        if not rows:
            return
        if self._pools is not None:
            rows = dict(zip(rows, self._rows_for(gather(list(rows.values()))), strict=True))
        before = {request: self._rows[request] for request in rows if request in self._rows}
        self._rows.update(rows)
        self._give_back(before.values())

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
        """These will not be asked for again, and nobody reads them."""
        self._give_back([row for request in requests if (row := self._rows.pop(request, None)) is not None])

    def clear(self) -> int:
        """Forget all; returns how many there were."""
        count = len(self._rows)
        self.forget(list(self._rows))
        return count

    def _rows_for(self, block: Tensor) -> list[Row]:
        """That anybody may read once this returns."""
        rows = rows_of(block) if self._pools is None else self._pools.put(block)
        if block.is_cuda:
            torch.cuda.current_stream(self._place).synchronize()
        return rows

    def _give_back(self, rows: Iterable[Row | Exception]) -> None:
        if self._pools is not None:
            self._pools.give_back(row for row in rows if not isinstance(row, Exception))
