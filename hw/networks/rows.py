"""Single activations as rows of the blocks that they came in, and how rows become a batch.

A batch whose rows follow one another in one block is a view of it: nothing is copied. Any other is gathered, in the
order of memory that its blocks have: feature maps with their channels last stay so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Row = tuple[Tensor, int]  # a block (n, ...) and the index of one activation in it


def rows_of(block: Tensor) -> list[Row]:
    """Every activation of a block."""
    return [(block, index) for index in range(len(block))]


def gather(rows: Sequence[Row]) -> Tensor:
    """(n, ...) of rows of one shape; a view where they follow one another in one block."""
    block, first = rows[0]
    is_one_block = all(other is block for other, _ in rows)
    if is_one_block and all(index == first + step for step, (_, index) in enumerate(rows)):
        return block if len(rows) == len(block) else block[first : first + len(rows)]
    if all(has_channels_last(other) for other, _ in rows):  # torch would lay a copy out anew, ten times as slowly
        return _gathered([(other.permute(0, 2, 3, 1), index) for other, index in rows], is_one_block).permute(
            0, 3, 1, 2
        )
    return _gathered(rows, is_one_block)


def _gathered(rows: Sequence[Row], is_one_block: bool) -> Tensor:
    block = rows[0][0]
    if is_one_block:
        return block.index_select(0, torch.tensor([index for _, index in rows], device=block.device))
    return torch.stack([block[index] for block, index in rows])


def has_channels_last(block: Tensor) -> bool:
    """Whether these are feature maps (n, C, H, W) whose channels are last in memory, and not in order as well."""
    return block.dim() == 4 and not block.is_contiguous() and block.is_contiguous(memory_format=torch.channels_last)
