"""The account of a worker's device memory, the GPU memory that waiting activations hold, and the worker's activations.

`MemoryBudget` is the one account of all device memory of a worker.

GPU memory (`KeptMicroBatches`): activations hold whole micro-batches, however few of a micro-batch's rows are still
needed. A micro-batch is counted from the time that one of its rows is kept until the last one is forgotten. Rows of a
micro-batch leave at different times if a router splits a batch. Copying the remaining rows out at once would cost each
such batch a copy and a wait, and most of these micro-batches are gone within milliseconds. So a micro-batch counts as
*thin* when less than half of it is needed, and thin blocks are copied out only when blocks hold more than twice the
needed bytes and `SLACK_BYTES`, or when memory is short (`Activations`). Each copy is less than half as large as its
micro-batch, so all successive copies of a micro-batch together are smaller than the micro-batch.

`Activations` stores a worker's activations between batches: single ones as rows of the micro-batches in which they
came.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor

from hw.networks.servable import Row, gather, gather_into, has_channels_last, rows_of
from hw.transport.messages import Input, Move, Moved
from hw.transport.shared_memory import Arena
from hw.worker.cuda import finish, lacks_memory

# ---------------------------------------------------------------------------------------------------- the memory budget


class MemoryBudget:
    """Bytes of a device, taken and given back by several threads.

    Args:
        total_bytes: of all that is taken together.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Count these bytes.

        Raises:
            MemoryError: fewer are left; none is counted.
        """
        with self._lock:
            if self.used_bytes + size_bytes > self.total_bytes:
                raise MemoryError(f"{size_bytes} bytes more than {self.used_bytes} exceed {self.total_bytes}")
            self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Give these bytes back."""
        with self._lock:
            self.used_bytes -= size_bytes


# ------------------------------------------------------------------------------------------------- the memory of
# micro-batches


SLACK_BYTES: Final = 1 << 28
"""About 32 of the largest blocks that serving makes (8.4 MB), and 6 % of the smallest GPU that torch still serves."""


class _Entry:
    """A micro-batch, and the requests whose rows of it are kept."""

    def __init__(self, micro_batch: Tensor, rows: dict[int, Row]) -> None:
        self.micro_batch = micro_batch
        self.rows = rows
        self.held_bytes = micro_batch.untyped_storage().nbytes()  # with padding, and other data in it
        self.row_bytes = micro_batch[0].nbytes

    @property
    def is_thin(self) -> bool:
        """Whether less than half is needed."""
        return 2 * len(self.rows) * self.row_bytes < self.held_bytes


class KeptMicroBatches:
    """The ledger of one worker. The caller holds the lock of its activations.

    Args:
        budget: counts the bytes that micro-batches hold.
        slack_bytes: that micro-batches may hold beyond twice the needed bytes.
    """

    def __init__(self, budget: MemoryBudget, slack_bytes: int = SLACK_BYTES) -> None:
        self._budget = budget
        self._slack_bytes = slack_bytes
        self._entries: dict[int, _Entry] = {}  # by the micro-batch's identity: it lives as long as it is here
        self.held_bytes = 0
        self.needed_bytes = 0

    @property
    def is_wasteful(self) -> bool:
        """Whether copies of the needed rows would free more than they cost."""
        return self.held_bytes > 2 * self.needed_bytes + self._slack_bytes

    def holds(self, row: Row) -> bool:
        """Return whether its micro-batch is counted here."""
        return id(row[0]) in self._entries

    def add(self, rows: Mapping[int, Row]) -> None:
        """Count the micro-batches of these, by request.

        Raises:
            MemoryError: they exceed the budget; nothing is counted.
        """
        micro_batches = {id(micro_batch): micro_batch for micro_batch, _ in rows.values()}
        fresh = {key: _Entry(micro_batch, {}) for key, micro_batch in micro_batches.items() if key not in self._entries}
        size_bytes = sum(entry.held_bytes for entry in fresh.values())
        self._budget.take(size_bytes)
        self.held_bytes += size_bytes
        self._entries.update(fresh)
        for key in micro_batches:
            entry = self._entries[key]
            of_micro_batch = (
                rows
                if len(micro_batches) == 1
                else {request: row for request, row in rows.items() if id(row[0]) == key}
            )
            entry.rows.update(of_micro_batch)
            self.needed_bytes += len(of_micro_batch) * entry.row_bytes

    def remove(self, rows: Iterable[tuple[int, Row | Exception | None]]) -> None:
        """Remove these, which are no longer needed; those of no micro-batch here belong to another store."""
        for request, row in rows:
            entry = self._entries.get(id(row[0])) if isinstance(row, tuple) else None
            if entry is None or entry.rows.pop(request, None) is None:
                continue
            self.needed_bytes -= entry.row_bytes
            if not entry.rows:
                del self._entries[id(entry.micro_batch)]
                self._free(entry.held_bytes)

    def thin(self) -> list[dict[int, Row]]:
        """Return the needed rows, by request, of each micro-batch of which less than half is needed."""
        return [dict(entry.rows) for entry in self._entries.values() if entry.is_thin]

    def replace(self, rows: Mapping[int, Row], copies: Mapping[int, Row]) -> None:
        """Replace a micro-batch by a smaller one with its needed rows; others cannot take that memory in between."""
        (before,) = (self._entries.pop(key) for key in {id(micro_batch) for micro_batch, _ in rows.values()})
        (micro_batch,) = {id(micro_batch): micro_batch for micro_batch, _ in copies.values()}.values()
        after = self._entries[id(micro_batch)] = _Entry(micro_batch, dict(copies))
        self._free(before.held_bytes - after.held_bytes)

    def _free(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self._budget.give_back(size_bytes)


# ------------------------------------------------------------------------------------------------------ the activations


HANDED_OVER = ""
"""The type of the numbers of activations that were not written to an arena: their store has them already."""


def tensor_in(
    arena: Arena, offset: int, shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool = False
) -> Tensor:
    """Return a view of a part, (n, ...) in order; feature maps (n, C, H, W) may have their channels last in memory."""
    flat = torch.frombuffer(arena.buffer, dtype=dtype, count=prod(shape), offset=offset)
    if not channels_last:
        return flat.reshape(shape)
    count, channels, height, width = shape
    return flat.reshape(count, height, width, channels).permute(0, 3, 1, 2)


def in_format(x: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Return a contiguous batch; only images and feature maps (B, C, H, W) have more than one order."""
    return x.contiguous(memory_format=memory_format) if x.dim() == 4 else x.contiguous()


def shares_memory(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors share one storage."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


class Activations:
    """The store of one worker.

    Args:
        arenas: of all workers, by index.
        own: this worker's index.
        device: of outputs. Inputs that arrive are used in place: a GPU's pass copies them into its inputs.
        ledger: counts the GPU memory that micro-batches hold; None on a CPU.
    """

    def __init__(
        self,
        arenas: Sequence[Arena],
        own: int,
        device: torch.device,
        ledger: KeptMicroBatches | None = None,
    ) -> None:
        self._arenas = tuple(arenas)
        self._own = own
        self._device = device
        self._ledger = ledger
        self._lock = threading.Lock()  # for changes of counted data; readers need none
        self._rows: dict[int, Row | Exception] = {}
        self._handed: dict[int, list[Row]] = {}  # by their place in the arena, if nothing was written

    @property
    def moves_apart(self) -> bool:
        """Whether a move waits for a network, and so needs a separate thread."""
        return any(arena.waits for arena in self._arenas)

    @property
    def held_bytes(self) -> int:
        """The GPU memory that waiting activations hold; 0 on a CPU."""
        return 0 if self._ledger is None else self._ledger.held_bytes

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, message: Input) -> None:
        """Keep the activations in this worker's arena; reading one that can't be kept raises the reason."""
        try:
            if message.dtype == HANDED_OVER:
                self.put_rows(dict(zip(message.requests, self._handed.pop(message.offset), strict=True)))
                return
            shape, dtype = (len(message.requests), *message.shape), getattr(torch, message.dtype)
            rows = rows_of(tensor_in(self._arenas[self._own], message.offset, shape, dtype, message.channels_last))
            self._replace(dict(zip(message.requests, rows, strict=True)))
        except Exception as error:
            self._replace(dict.fromkeys(message.requests, error))

    def _replace(self, rows: Mapping[int, Row | Exception]) -> None:
        """Replace an entry by one that takes no GPU memory."""
        self.forget(rows)
        self._rows.update(rows)

    def put_rows(self, rows: Mapping[int, Row | Exception]) -> None:
        """Keep these (or why they are absent), instead of the previous ones, which are no longer read.

        Raises:
            MemoryError: they exceed the device's budget; the previous ones are kept.
        """
        if self._ledger is None:  # the previous ones are just freed
            self._rows.update(rows)
            return
        with self._lock:
            intact = {request: row for request, row in rows.items() if isinstance(row, tuple)}
            try:
                self._ledger.add(intact)
            except MemoryError:
                self._compact(self._ledger)
                self._ledger.add(intact)
            before = [(request, self._rows.pop(request, None)) for request in rows]
            self._rows.update(rows)
            self._uncount(self._ledger, before)

    def retain(self, requests: Sequence[int]) -> None:
        """Copy these out of the arena, which will be overwritten; the copies are complete once this returns."""
        in_arena = [request for request in requests if self._may_lie_in_arena(self._rows.get(request))]
        if not in_arena:
            return
        try:
            self._replace(
                dict(zip(in_arena, rows_of(_copy_of([self.row(request) for request in in_arena])), strict=True))
            )
        except Exception as error:  # most often for want of memory: reading them raises it
            self._replace(dict.fromkeys(in_arena, error))

    def _may_lie_in_arena(self, row: Row | Exception | None) -> bool:
        return isinstance(row, tuple) and (self._ledger is None or not self._ledger.holds(row))

    def row(self, request: int) -> Row:
        """Return a row to be read.

        Raises:
            KeyError: there is none.
            Exception: the error because of which it could not be kept.
        """
        row = self._rows[request]
        if isinstance(row, Exception):
            raise row
        return row

    def send(self, message: Move) -> Moved:
        """Write these activations into another worker's arena; they are there once this returns.

        Raises:
            KeyError: one is missing.
        """
        moved, rows = self.write(message)
        finish(self._device)
        size_bytes = len(rows) * rows[0][0][0].nbytes
        self._arenas[message.destination].commit(message.offset, size_bytes, message.address)
        return moved

    def write(self, message: Move) -> tuple[Moved, list[Row]]:
        """Do as `send`, without waiting for the device: the rows must be held until it is done with them."""
        rows = [self.row(request) for request in message.requests]  # held: `compact` may free their blocks
        (micro_batch, _), arena = rows[0], self._arenas[message.destination]
        is_last = has_channels_last(micro_batch)
        target = tensor_in(arena, message.offset, (len(rows), *micro_batch.shape[1:]), micro_batch.dtype, is_last)
        gather_into(rows, target)
        dtype = str(micro_batch.dtype).removeprefix("torch.")
        return Moved(message.transfer, tuple(micro_batch.shape[1:]), dtype, is_last), rows

    def hand_over(self, message: Move, neighbour: Activations) -> Moved | None:
        """Give these to a store of the same process, without a copy; return None if some are in an arena, whose place
        will be reused."""
        rows = [self.row(request) for request in message.requests]
        if any(self._may_lie_in_arena(row) for row in rows):
            return None
        neighbour._handed[message.offset] = rows
        return Moved(message.transfer, tuple(rows[0][0].shape[1:]), HANDED_OVER, False)

    def forget(self, requests: Iterable[int]) -> None:
        """Forget these: they will not be asked for again, and no pass reads them."""
        if self._ledger is None:
            for request in requests:
                self._rows.pop(request, None)
            return
        with self._lock:
            self._uncount(self._ledger, [(request, self._rows.pop(request, None)) for request in requests])

    def clear(self) -> int:
        """Forget all; return how many there were."""
        count = len(self._rows)
        self._handed.clear()
        self.forget(list(self._rows))
        return count

    # -------------------------------------------------------------------------------------------- a GPU's memory

    def compact(self) -> None:
        """Copy the needed rows of micro-batches of which less than half is, so that these are freed; do nothing on a
        CPU."""
        if self._ledger is not None:
            with self._lock:
                self._compact(self._ledger)

    def _compact(self, ledger: KeptMicroBatches) -> None:
        for rows in ledger.thin():
            try:
                copy = _copy_of([self.row(request) for request in rows])
            except Exception as error:
                if lacks_memory(error):  # also for the copy: it was worth a try
                    return
                raise
            finish(self._device)  # `rows` hold the data that are read until here
            copies = dict(zip(rows, rows_of(copy), strict=True))
            self._rows.update(copies)
            ledger.replace(rows, copies)

    def _uncount(self, ledger: KeptMicroBatches, rows: Sequence[tuple[int, Row | Exception | None]]) -> None:
        ledger.remove(rows)
        if ledger.is_wasteful:
            self._compact(ledger)


def _copy_of(rows: Sequence[Row]) -> Tensor:
    """Return a micro-batch of these alone, in their order of memory."""
    tensor = gather(rows)
    return tensor.clone(memory_format=torch.preserve_format) if shares_memory(tensor, rows[0][0]) else tensor
