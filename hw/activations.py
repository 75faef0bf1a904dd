"""What an agent keeps between batches: single activations as rows of the blocks that they came in (`hw.rows`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from hw.arena import Arena
from hw.copies import Copies
from hw.device import DeviceSpec
from hw.gpu import finish
from hw.mailbox import Mailbox
from hw.messages import Input, Move, Moved
from hw.rows import Row, gather, has_channels_last, rows_of
from hw.slots import SlotPools


def tensor_in(
    arena: Arena, offset: int, shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool = False
) -> Tensor:
    """A view of a part, (n, ...) in order; feature maps (n, C, H, W) may have their channels last in memory."""
    return _in_order(
        torch.frombuffer(arena.buffer, dtype=dtype, count=prod(shape), offset=offset), shape, channels_last
    )


def tensor_of(
    region: Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool = False
) -> Tensor:
    """The same in bytes of a device.

    Raises:
        ValueError: it does not fit there.
    """
    end = offset + prod(shape) * dtype.itemsize
    if end > len(region):
        raise ValueError(f"{end - offset} bytes from {offset} on are not within {len(region)}")
    return _in_order(region[offset:end].view(dtype), shape, channels_last)


def _in_order(flat: Tensor, shape: tuple[int, ...], channels_last: bool) -> Tensor:
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
        mailbox: where the other agents of the GPU write to; None where all goes through arenas.
        copies: that block nobody; None where each holds its thread until it is done.
    """

    def __init__(
        self,
        arenas: Sequence[Arena],
        own: int,
        device: DeviceSpec,
        place: torch.device,
        pools: SlotPools | None = None,
        mailbox: Mailbox | None = None,
        copies: Copies | None = None,
    ) -> None:
        self._arenas = tuple(arenas)
        self._own = own
        self._device = device
        self._place = place
        self._pools = pools
        self._mailbox = mailbox
        self._copies = copies
        self._coming: dict[int, Any] = {}  # by request: the event after which its input is there
        self._rows: dict[int, Row | Exception] = {}

    @property
    def problems(self) -> dict[str, str]:
        """What does not work as it should, in words."""
        return {"copies": self._copies.problem} if self._copies is not None and self._copies.problem else {}

    @property
    def moves_apart(self) -> bool:
        """Whether a move waits for its own copy or for a network, and so wants a thread of its own."""
        return self._copies is not None or any(arena.waits for arena in self._arenas)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, given: Input) -> None:
        """Keep what stands in this agent's arena or mailbox; what can't be kept says why to whoever asks for it."""
        try:
            rows = self._bring(given)
        except Exception as error:
            self._rows.update(dict.fromkeys(given.requests, error))
            return
        self._rows.update(zip(given.requests, rows, strict=True))

    def _bring(self, given: Input) -> list[Row]:
        block, dtype = self._found(given), self._device.torch_dtype
        if self._copies is None or given.in_mailbox:
            return self._rows_for(block.to(self._place, dtype))
        rows, event = self._copies.bring(block, dtype, self._keep)
        self._coming.update(dict.fromkeys(given.requests, event))
        return rows

    def _found(self, given: Input) -> Tensor:
        shape, dtype = (len(given.requests), *given.shape), getattr(torch, given.dtype)
        if not given.in_mailbox:
            return tensor_in(self._arenas[self._own], given.offset, shape, dtype, given.channels_last)
        return tensor_of(self._own_mailbox.region, given.offset, shape, dtype, given.channels_last)

    def put_rows(self, rows: Mapping[int, Row]) -> None:
        """Keep these, in place of what was there; nobody reads that any more."""
        if not rows:
            return
        if self._pools is not None:
            rows = dict(zip(rows, self._rows_for(gather(list(rows.values()))), strict=True))
        before = [self._pop(request) for request in rows]
        self._rows.update(rows)
        self._give_back(before)

    def row(self, request: int) -> Row:
        """For this thread's stream to read.

        Raises:
            KeyError: there is none.
            Exception: what went wrong where it could not be kept.
        """
        found = self._rows[request]
        if isinstance(found, Exception):
            raise found
        if self._copies is not None and (event := self._coming.get(request)) is not None:
            self._copies.wait_for(event)
        return found

    def send(self, message: Move) -> Moved:
        """Write these activations into another agent's arena or mailbox; they stand there once this returns.

        Raises:
            KeyError: one is missing.
        """
        if message.mailbox or self._copies is None:
            block = self._gathered(message)
            self._target(message, block).copy_(block)
            finish(self._place)
        else:
            block = self._copies.fetch(partial(self._gathered, message), partial(self._target, message))
        if not message.mailbox:
            self._arenas[message.destination].commit(message.offset, block.nbytes, message.address)
        dtype = str(block.dtype).removeprefix("torch.")
        return Moved(message.transfer, tuple(block.shape[1:]), dtype, has_channels_last(block))

    def _gathered(self, message: Move) -> Tensor:
        return gather([self.row(request) for request in message.requests])

    def _target(self, message: Move, block: Tensor) -> Tensor:
        """Where it is to stand."""
        shape, channels_last = tuple(block.shape), has_channels_last(block)
        if not message.mailbox:
            return tensor_in(self._arenas[message.destination], message.offset, shape, block.dtype, channels_last)
        region = self._own_mailbox.of(message.destination, message.mailbox)
        return tensor_of(region, message.offset, shape, block.dtype, channels_last)

    @property
    def _own_mailbox(self) -> Mailbox:
        if self._mailbox is None:
            raise ValueError("this agent has no mailbox")
        return self._mailbox

    def forget(self, requests: Iterable[int]) -> None:
        """These will not be asked for again, and nobody reads them."""
        self._give_back([self._pop(request) for request in requests])

    def clear(self) -> int:
        """Forget all; returns how many there were."""
        count = len(self._rows)
        self.forget(list(self._rows))
        return count

    def _rows_for(self, block: Tensor) -> list[Row]:
        """That anybody may read once this returns."""
        rows = self._keep(block)
        finish(self._place)
        return rows

    def _keep(self, block: Tensor) -> list[Row]:
        return rows_of(block) if self._pools is None else self._pools.put(block)

    def _pop(self, request: int) -> Row | Exception | None:
        """Of one that was given up early its copy is waited for: its slot is not the next one's before."""
        if (event := self._coming.pop(request, None)) is not None and not event.query():
            event.synchronize()
        return self._rows.pop(request, None)

    def _give_back(self, rows: Iterable[Row | Exception | None]) -> None:
        if self._pools is not None:
            self._pools.give_back(row for row in rows if isinstance(row, tuple))
