"""Shared arenas: no part is given away twice, none is lost, and tensors come out as they went in."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hw.transport.shared_memory import ALIGNMENT, Arena, Inbox, Slab
from hw.worker.activations import tensor_in

ARENA = Arena(4096)
STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "fill", "cancel", "forget", "clear"]), st.integers(0, 2000)), max_size=60
)


def _require_disjoint(slabs: list[Slab]) -> None:
    spans = sorted((slab.offset, slab.offset + slab.size_bytes) for slab in slabs)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(start >= 0 and end <= ARENA.size_bytes for start, end in spans)


@given(steps=STEPS)
def test_no_byte_has_two_holders_and_none_is_lost(steps: list[tuple[str, int]]) -> None:
    """Whatever is reserved, filled, cancelled and forgotten: slabs in use are disjoint, the rest is free."""
    inbox = Inbox(ARENA)
    written: list[Slab] = []
    filled: dict[int, Slab] = {}
    number = 0
    for step, size in steps:
        if step == "reserve":
            number += 2
            slab = inbox.reserve((number, number + 1), size)
            if slab is not None:
                assert slab.size_bytes >= size
                written.append(slab)
        elif step == "fill" and written:
            slab = written.pop(size % len(written))
            inbox.fill(slab)
            filled |= dict.fromkeys(slab.held_for, slab)
        elif step == "cancel" and written:
            inbox.cancel(written.pop(size % len(written)))
        elif step == "forget" and filled:
            request = sorted(filled)[size % len(filled)]
            inbox.forget((request, -1))
            del filled[request]
        elif step == "clear":
            inbox.clear()
            filled.clear()
        in_use = [*written, *{id(slab): slab for slab in filled.values()}.values()]
        _require_disjoint(in_use)
        assert inbox.free_bytes == ARENA.size_bytes - sum(slab.size_bytes for slab in in_use)
    for slab in written:
        inbox.cancel(slab)
    inbox.clear()
    whole = inbox.reserve((1,), ARENA.size_bytes)  # in one piece again
    assert whole is not None
    assert inbox.reserve((2,), 1) is None


@pytest.mark.parametrize("channels_last", [False, True])
def test_tensors_come_out_as_they_went_in(channels_last: bool) -> None:
    """Two views of one place are one memory; the order of channels in memory is as asked, the numbers are the same."""
    values = torch.randn(2, 3, 4, 5)
    tensor_in(ARENA, ALIGNMENT, (2, 3, 4, 5), torch.float32, channels_last).copy_(values)
    seen = tensor_in(ARENA, ALIGNMENT, (2, 3, 4, 5), torch.float32, channels_last)
    assert torch.equal(seen, values)
    assert seen.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert seen.data_ptr() % ALIGNMENT == 0
