"""What an agent keeps between batches: single activations as rows of the blocks they came in (`hw.networks.rows`)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from hw.device import DeviceSpec
from hw.devices.copies import Copies
from hw.devices.gpu import finish, lacks_memory
from hw.devices.kept_blocks import KeptBlocks
from hw.devices.mailbox import Mailbox
from hw.devices.slots import SlotPools
from hw.networks.rows import Row, gather, has_channels_last, rows_of
from hw.transport.arena import Arena
from hw.transport.messages import Input, Move, Moved


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
        kept: counts what blocks hold of a GPU; None on a CPU, where what arrives lies in arenas anyway.
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
        kept: KeptBlocks | None = None,
    ) -> None:
        self._arenas = tuple(arenas)
        self._own = own
        self._device = device
        self._place = place
        self._pools = pools
        self._mailbox = mailbox
        self._copies = copies
        self._kept = kept
        self._is_booked = any(each is not None for each in (pools, copies, kept))  # else what is replaced just goes
        self._lock = threading.Lock()  # of whoever changes what is booked; who only reads needs none
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

    @property
    def held_bytes(self) -> int:
        """What a GPU's memory holds of activations that wait, beside slots and mailbox; 0 on a CPU."""
        return 0 if self._kept is None else self._kept.held_bytes

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, given: Input) -> None:
        """Keep what stands in this agent's arena or mailbox; what can't be kept says why to whoever asks for it."""
        try:
            rows, event = self._bring(given)
            self._replace(dict(zip(given.requests, rows, strict=True)), event)
        except Exception as error:
            self._replace(dict.fromkeys(given.requests, error))

    def _bring(self, given: Input) -> tuple[list[Row], Any]:
        """Its rows, and the event after which they are there; None where they are already."""
        block, dtype = self._found(given), self._device.torch_dtype
        if self._copies is None or given.in_mailbox:
            return self._rows_for(block.to(self._place, dtype)), None
        return self._copies.bring(block, dtype, self._keep)

    def _found(self, given: Input) -> Tensor:
        shape, dtype = (len(given.requests), *given.shape), getattr(torch, given.dtype)
        if not given.in_mailbox:
            return tensor_in(self._arenas[self._own], given.offset, shape, dtype, given.channels_last)
        return tensor_of(self._own_mailbox.region, given.offset, shape, dtype, given.channels_last)

    def put_rows(self, rows: Mapping[int, Row]) -> None:
        """Keep these, in place of what was there; nobody reads that any more.

        Raises:
            MemoryError: the device's budget has no room for them; what was there is kept.
        """
        if not rows:
            return
        if self._pools is not None:
            rows = dict(zip(rows, self._rows_for(gather(list(rows.values()))), strict=True))
        self._replace(rows)

    def _replace(self, rows: Mapping[int, Row | Exception], event: Any = None) -> None:
        """From here on these are what is read; after `event`, where there is one."""
        if not self._is_booked:
            self._rows.update(rows)
            return
        with self._lock:
            if self._kept is not None:
                self._count(self._kept, {request: row for request, row in rows.items() if isinstance(row, tuple)})
            before = [(request, self._pop(request)) for request in rows]
            if event is not None:
                self._coming.update(dict.fromkeys(rows, event))
            self._rows.update(rows)
            self._give_back(before)

    def retain(self, requests: Sequence[int]) -> None:
        """Copy these out of arena and mailbox, where others will be written to; they stand here once this returns."""
        kept = [request for request in requests if isinstance(self._rows.get(request), tuple)]
        if not kept:
            return
        try:
            rows = [self.row(request) for request in kept]
            if self._place.type == "cpu" or self._mailbox is not None:
                self.put_rows(dict(zip(kept, rows_of(_copy_of(rows)), strict=True)))
            finish(self._place)
        except Exception as error:  # most often for want of memory: whoever asks for them is told
            self._replace(dict.fromkeys(kept, error))

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
        read: list[Row] = []  # held until the copy is done: `compact` may let go of their blocks meanwhile

        def gathered() -> Tensor:
            read.extend(self.row(request) for request in message.requests)
            return gather(read)

        if message.mailbox or self._copies is None:
            block = gathered()
            self._target(message, block).copy_(block)
            finish(self._place)
        else:
            block = self._copies.fetch(gathered, partial(self._target, message))
        if not message.mailbox:
            self._arenas[message.destination].commit(message.offset, block.nbytes, message.address)
        dtype = str(block.dtype).removeprefix("torch.")
        return Moved(message.transfer, tuple(block.shape[1:]), dtype, has_channels_last(block))

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
        if not self._is_booked:
            for request in requests:
                self._rows.pop(request, None)
            return
        with self._lock:
            self._give_back([(request, self._pop(request)) for request in requests])

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

    def _give_back(self, rows: Sequence[tuple[int, Row | Exception | None]]) -> None:
        if self._pools is not None:
            self._pools.give_back(row for _, row in rows if isinstance(row, tuple))
        if self._kept is not None:
            self._kept.remove(rows)
            if self._kept.is_wasteful:
                self._compact(self._kept)

    # -------------------------------------------------------------------------------------------- a GPU's memory

    def compact(self) -> None:
        """Copy what is wanted of blocks of which less than half is, so that these go; nothing on a CPU."""
        if self._kept is not None:
            with self._lock:
                self._compact(self._kept)

    def _compact(self, kept: KeptBlocks) -> None:
        for rows in kept.thin():
            try:
                copy = _copy_of([self.row(request) for request in rows])
            except Exception as error:
                if lacks_memory(error):  # for the copy, too: it was worth a try
                    return
                raise
            finish(self._place)  # `rows` hold what is read until here
            copies = dict(zip(rows, rows_of(copy), strict=True))
            self._rows.update(copies)
            kept.replace(rows, copies)

    def _count(self, kept: KeptBlocks, rows: Mapping[int, Row]) -> None:
        """In the device's budget, but for what has its place there already."""
        try:
            kept.add(rows, self._has_place)
        except MemoryError:
            self._compact(kept)
            kept.add(rows, self._has_place)

    def _has_place(self, block: Tensor) -> bool:
        return (self._pools is not None and self._pools.has(block)) or (
            self._mailbox is not None and shares_memory(block, self._mailbox.region)
        )


def _copy_of(rows: Sequence[Row]) -> Tensor:
    """A block of these alone, in their order of memory."""
    found = gather(rows)
    return found.clone(memory_format=torch.preserve_format) if shares_memory(found, rows[0][0]) else found
