"""A batch is what its rows are, wherever they lie, and keeps their order of memory."""

from __future__ import annotations

import pytest
import torch

from hw.networks.servable import Row, gather, gather_into, has_channels_last, rows_of

LAST, FIRST = torch.channels_last, torch.contiguous_format


def _micro_batch(count: int, seed: int, order: torch.memory_format) -> torch.Tensor:
    return torch.randn(count, 5, 4, 3, generator=torch.Generator().manual_seed(seed)).contiguous(memory_format=order)


def _by_hand(rows: list[Row]) -> torch.Tensor:
    return torch.stack([micro_batch[index] for micro_batch, index in rows])


@pytest.mark.parametrize("order", [FIRST, LAST])
@pytest.mark.parametrize("one_micro_batch", [True, False])
def test_any_rows_make_their_batch(order: torch.memory_format, one_micro_batch: bool) -> None:
    """Of one micro-batch in another order, or of two: the same numbers, in memory as before."""
    first, second = _micro_batch(6, 1, order), _micro_batch(6, 1 if one_micro_batch else 2, order)
    other = rows_of(first if one_micro_batch else second)
    rows = [rows_of(first)[4], other[1], other[0], rows_of(first)[5]]
    batch = gather(rows)
    assert torch.equal(batch, _by_hand(rows))
    assert has_channels_last(batch) == (order == LAST)
    assert batch.is_contiguous(memory_format=order)


@pytest.mark.parametrize("order", [FIRST, LAST])
def test_rows_that_follow_one_another_are_a_view(order: torch.memory_format) -> None:
    micro_batch = _micro_batch(6, 1, order)
    rows = rows_of(micro_batch)
    assert gather(rows) is micro_batch
    assert gather(rows[2:5]).data_ptr() == micro_batch[2].data_ptr()


def test_blocks_of_two_orders_make_a_batch() -> None:
    rows = [rows_of(_micro_batch(2, 1, LAST))[1], rows_of(_micro_batch(2, 2, FIRST))[0]]
    assert torch.equal(gather(rows), _by_hand(rows))
    logits = torch.randn(4, 7)
    assert torch.equal(gather([(logits, 3), (logits, 0)]), logits[[3, 0]])


@pytest.mark.parametrize("of_rows", [FIRST, LAST])
@pytest.mark.parametrize("of_room", [FIRST, LAST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_is_written_into_a_room(
    of_rows: torch.memory_format, of_room: torch.memory_format, dtype: torch.dtype
) -> None:
    """Rows of one micro-batch in any order, of several, in another order of memory or of other numbers; zeros beyond
    them."""
    first, second = _micro_batch(6, 1, of_rows), _micro_batch(3, 2, of_rows)
    ways = (rows_of(first)[1:5], rows_of(first)[::-1], [*rows_of(second), *rows_of(first)[3:]], rows_of(first))
    for rows in ways:
        room = torch.ones(7, 5, 4, 3, dtype=dtype).contiguous(memory_format=of_room)
        place = room.data_ptr()
        gather_into(rows, room)
        assert (room.data_ptr(), has_channels_last(room)) == (place, of_room == LAST)
        assert torch.equal(room[: len(rows)], _by_hand(rows).to(dtype))
        assert not room[len(rows) :].any()
    with pytest.raises(ValueError, match=r"not of \(5, 4, 1\)"):
        gather_into(rows_of(first), torch.empty(6, 5, 4, 1))
