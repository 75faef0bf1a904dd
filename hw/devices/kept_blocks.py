"""The GPU memory that waiting activations hold: whole blocks, however few of their rows are still needed.

A block is counted from the time that one of its rows is kept until the last one is forgotten. Rows of a block leave at
different times if a router splits a batch. Copying the rest out at once would cost each such batch a copy and a wait,
and most of these blocks are gone within milliseconds. So a block counts as *thin* when less than half of it is needed,
and thin ones are copied out only when blocks hold more than twice the needed bytes and `SLACK_BYTES`, or when memory is
short (`hw.devices.activations`). Each copy is less than half as large as its block: over all its copies, the needed
part of a block is copied less than once in whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from torch import Tensor

from hw.devices.memory_budget import MemoryBudget
from hw.networks.rows import Row

SLACK_BYTES: Final = 1 << 28
"""About 32 of the largest blocks that serving makes (8.4 MB), and 6 % of the smallest GPU that torch still serves."""


class _Kept:
    """A block, and the requests whose rows of it are kept."""

    def __init__(self, block: Tensor, rows: dict[int, Row]) -> None:
        self.block = block
        self.rows = rows
        self.held_bytes = block.untyped_storage().nbytes()  # with padding, and other data in it
        self.row_bytes = block[0].nbytes

    @property
    def is_thin(self) -> bool:
        """Whether less than half is needed."""
        return 2 * len(self.rows) * self.row_bytes < self.held_bytes


class KeptBlocks:
    """The ledger of one agent. The caller holds the lock of its activations.

    Args:
        budget: counts the bytes that blocks hold.
        slack_bytes: that blocks may hold beyond twice the needed bytes.
    """

    def __init__(self, budget: MemoryBudget, slack_bytes: int = SLACK_BYTES) -> None:
        self._budget = budget
        self._slack_bytes = slack_bytes
        self._kept: dict[int, _Kept] = {}  # by the block's identity: it lives as long as it is here
        self.held_bytes = 0
        self.wanted_bytes = 0

    @property
    def is_wasteful(self) -> bool:
        """Whether copies of the needed rows would free more than they cost."""
        return self.held_bytes > 2 * self.wanted_bytes + self._slack_bytes

    def holds(self, row: Row) -> bool:
        """Return whether its block is counted here."""
        return id(row[0]) in self._kept

    def add(self, rows: Mapping[int, Row]) -> None:
        """Count the blocks of these, by request.

        Raises:
            MemoryError: they exceed the budget; nothing is counted.
        """
        blocks = {id(block): block for block, _ in rows.values()}
        fresh = {key: _Kept(block, {}) for key, block in blocks.items() if key not in self._kept}
        size_bytes = sum(kept.held_bytes for kept in fresh.values())
        self._budget.take(size_bytes)
        self.held_bytes += size_bytes
        self._kept.update(fresh)
        for key in blocks:
            kept = self._kept[key]
            of_block = rows if len(blocks) == 1 else {r: row for r, row in rows.items() if id(row[0]) == key}
            kept.rows.update(of_block)
            self.wanted_bytes += len(of_block) * kept.row_bytes

    def remove(self, rows: Iterable[tuple[int, Row | Exception | None]]) -> None:
        """Remove these, which are no longer needed; those of no block here belong to another store."""
        for request, row in rows:
            kept = self._kept.get(id(row[0])) if isinstance(row, tuple) else None
            if kept is None or kept.rows.pop(request, None) is None:
                continue
            self.wanted_bytes -= kept.row_bytes
            if not kept.rows:
                del self._kept[id(kept.block)]
                self._free(kept.held_bytes)

    def thin(self) -> list[dict[int, Row]]:
        """Return the needed rows, by request, of each block of which less than half is needed."""
        return [dict(kept.rows) for kept in self._kept.values() if kept.is_thin]

    def replace(self, rows: Mapping[int, Row], copies: Mapping[int, Row]) -> None:
        """Replace a block by a smaller one with its needed rows; others cannot take that memory in between."""
        (before,) = (self._kept.pop(key) for key in {id(block) for block, _ in rows.values()})
        (block,) = {id(block): block for block, _ in copies.values()}.values()
        after = self._kept[id(block)] = _Kept(block, dict(copies))
        self._free(before.held_bytes - after.held_bytes)

    def _free(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self._budget.give_back(size_bytes)
