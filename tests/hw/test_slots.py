"""Slots hold activations until these are forgotten; what finds no slot is kept all the same."""

from __future__ import annotations

import pytest
import torch

from hw.devices.slots import SlotPools
from hw.networks.rows import gather, rows_of

SHAPE = (3, 2, 2)


def _activations(count: int, seed: int = 0, order: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed)).contiguous(memory_format=order)


def _pools(slots: int = 8, shapes: int = 1) -> SlotPools:
    return SlotPools(budget_bytes=shapes * slots * 4 * 12, slots=slots)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_what_is_put_there_is_gathered_in_its_order(order: torch.memory_format) -> None:
    """Of two blocks, mixed: one tensor, in the order of memory that they had."""
    pools, first, second = _pools(), _activations(3, 1, order), _activations(3, 2, order)
    rows = [*pools.put(first), *pools.put(second)]
    assert len({id(block) for block, _ in rows}) == 1
    mixed = gather([rows[5], rows[0], rows[3]])
    assert torch.equal(mixed, torch.stack([second[2], first[0], second[0]]))
    assert mixed.is_contiguous(memory_format=order)


def test_a_slot_is_used_again_only_when_it_was_given_back() -> None:
    """What stands in others is never written to."""
    pools, kept = _pools(slots=4), _activations(2, 1)
    held, passing = pools.put(kept), pools.put(_activations(2, 2))
    pools.give_back(passing)
    later = pools.put(_activations(2, 3))
    assert {slot for _, slot in later} == {slot for _, slot in passing}
    assert torch.equal(gather(held), kept)


def test_what_finds_no_slot_is_kept_in_its_own_block() -> None:
    """A batch that finds too few takes none; and what is no slot may be given back."""
    pools = _pools(slots=4)
    pools.put(_activations(3, 1))
    more = _activations(2, 2)
    rows = pools.put(more)
    assert [block is more for block, _ in rows] == [True, True]
    pools.give_back(rows)
    assert gather(pools.put(_activations(1, 3))[:1]).shape == (1, *SHAPE)
    assert [block is more for block, _ in pools.put(more)] == [True, True]


def test_pools_keep_their_budget() -> None:
    """A shape that would exceed it has no pool, now and later."""
    pools = _pools(shapes=1)
    pools.put(_activations(1))
    wide = torch.randn(1, 6, 2, 2)
    for _ in range(2):
        assert pools.put(wide)[0][0] is wide
    assert pools.used_bytes == 8 * 4 * 12


def test_rows_of_any_block_may_be_given_back() -> None:
    """Those that never were slots are nobody's."""
    pools, block = _pools(), _activations(2)
    pools.give_back(rows_of(block))
    assert len({slot for _, slot in pools.put(_activations(8))}) == 8
