"""Slots of a device's memory, one for each activation: what is kept lies in few tensors, gathered by index.

A pool holds activations of one shape. Its slots are rows of one tensor, so a batch of any members is one
`index_select`, where separate blocks would be stacked. A pool is as large as it was made; what finds no slot is kept in
a block of its own, as without pools.

It is safe without events, as long as every reader and writer ends with a wait of its host (`docs/executors.md`): a slot
is given back only when who held it is forgotten, and nobody forgets an activation that is still being read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

from hw.networks.rows import Row, has_channels_last, rows_of

Shape = tuple[int, ...]

IMAGES_A_POOL: Final = 256  # slots of each shape: some batches that wait, and one that runs


class SlotPool:
    """Slots of one shape.

    Args:
        block: (slots, ...) on the device, in the order of memory that its rows are to have.
    """

    def __init__(self, block: Tensor) -> None:
        self.block = block
        self._free = deque(range(len(block)))  # taken and given back from several threads: each step is one operation

    def put(self, activations: Tensor) -> list[Row] | None:
        """Copies (n, ...) into n slots; None where there are not so many. Another stream may read after a wait."""
        taken = self._take(len(activations))
        if taken is None:
            return None
        with torch.inference_mode():  # lanes are in it, the agent's main thread is not
            self.block.index_copy_(0, torch.tensor(taken, device=self.block.device), activations)
        return [(self.block, slot) for slot in taken]

    def give_back(self, slot: int) -> None:
        """Nobody will read what stands there."""
        self._free.append(slot)

    def _take(self, count: int) -> list[int] | None:
        taken: list[int] = []
        for _ in range(count):
            try:
                taken.append(self._free.popleft())
            except IndexError:
                self._free.extend(taken)
                return None
        return taken


class SlotPools:
    """The pools of one agent, made when a shape is first seen, while their budget lasts.

    Args:
        budget_bytes: of all pools together.
        slots: of each.
    """

    def __init__(self, budget_bytes: int, slots: int = IMAGES_A_POOL) -> None:
        self._budget_bytes = budget_bytes
        self._slots = slots
        self._pools: dict[tuple[Shape, torch.dtype, bool], SlotPool | None] = {}
        self._by_block: dict[int, SlotPool] = {}
        self._making = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Of the pools that were made."""
        return sum(pool.block.nbytes for pool in self.made)

    @property
    def made(self) -> list[SlotPool]:
        """One for each shape that had room."""
        return [pool for pool in self._pools.values() if pool is not None]

    def put(self, activations: Tensor) -> list[Row]:
        """Rows that hold (n, ...): in slots, or where there are none left in this very block."""
        pool = self._pool_for(activations)
        found = None if pool is None else pool.put(activations)
        return rows_of(activations) if found is None else found

    def has(self, block: Tensor) -> bool:
        """Whether its rows are slots."""
        return id(block) in self._by_block

    def give_back(self, rows: Iterable[Row]) -> None:
        """Those of these rows that are slots are free again."""
        for block, slot in rows:
            pool = self._by_block.get(id(block))
            if pool is not None:
                pool.give_back(slot)

    def _pool_for(self, activations: Tensor) -> SlotPool | None:
        is_last = has_channels_last(activations)
        key = (tuple(activations.shape[1:]), activations.dtype, is_last)
        with self._making:
            if key not in self._pools:
                self._pools[key] = self._make(activations, is_last)
            return self._pools[key]

    def _make(self, activations: Tensor, channels_last: bool) -> SlotPool | None:
        size_bytes = self._slots * activations[0].nbytes
        if self.used_bytes + size_bytes > self._budget_bytes:
            return None
        order = torch.channels_last if channels_last else torch.contiguous_format
        shape = (self._slots, *activations.shape[1:])
        block = torch.empty(shape, dtype=activations.dtype, device=activations.device, memory_format=order)
        pool = self._by_block[id(block)] = SlotPool(block)
        return pool
