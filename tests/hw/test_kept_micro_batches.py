"""What activations hold of a GPU's memory is counted within its budget, and little of a micro-batch does not keep all
of it.

On a CPU that is told to be a GPU in this alone: it counts, and everything else is the host's memory.
"""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hw.networks.servable import Row, gather, rows_of
from hw.transport.messages import Input, Move
from hw.transport.shared_memory import Arena
from hw.worker.activations import Activations, KeptMicroBatches, MemoryBudget, tensor_in

CPU = torch.device("cpu")
SHAPE = (3, 2, 2)
ROW_BYTES = 48


class Kept:
    def __init__(self, total_bytes: int = 1 << 20, slack_bytes: int = 0) -> None:
        self.budget = MemoryBudget(total_bytes)
        self.micro_batches = KeptMicroBatches(self.budget, slack_bytes)
        self.arenas = (Arena(4096), Arena(4096))
        self.store = Activations(self.arenas, 0, CPU, self.micro_batches)

    def put(self, requests: tuple[int, ...], seed: int = 0, padded: int = 0) -> torch.Tensor:
        """Outputs of a batch, which may have been padded; returns what they are."""
        generator = torch.Generator().manual_seed(seed)
        micro_batch = torch.randn(max(padded, len(requests)), *SHAPE, generator=generator)[: len(requests)]
        self.store.put_rows(dict(zip(requests, rows_of(micro_batch), strict=True)))
        return micro_batch.clone()

    def read(self, requests: tuple[int, ...]) -> torch.Tensor:
        return gather([self.store.row(request) for request in requests])


def test_micro_batch_beyond_the_budget_is_refused_without_any_change() -> None:
    """Outputs leave their inputs where they are; room comes back. What arrives lies in the host's memory, pinned."""
    kept = Kept(total_bytes=5 * ROW_BYTES)
    images = kept.put((1, 2, 3))
    with pytest.raises(MemoryError, match=f"{3 * ROW_BYTES} bytes more than {3 * ROW_BYTES} exceed {5 * ROW_BYTES}"):
        kept.put((1, 2, 3), seed=1)
    tensor_in(kept.arenas[0], 0, (3, *SHAPE), torch.float32).zero_()
    kept.store.take(Input((4, 5, 6), 0, SHAPE, "float32", False))
    assert kept.store.row(5)[1] == 1
    assert torch.equal(kept.read((1, 2, 3)), images)
    assert kept.budget.used_bytes == 3 * ROW_BYTES
    kept.store.forget((1, 2, 3, 4, 5, 6))
    kept.put((4, 5, 6, 7, 8))
    assert kept.budget.used_bytes == 5 * ROW_BYTES


def test_a_lack_of_room_is_a_reason_to_look() -> None:
    kept = Kept(total_bytes=10 * ROW_BYTES, slack_bytes=1 << 20)
    kept.put(tuple(range(8)))
    kept.store.forget(range(1, 8))
    kept.put(tuple(range(10, 19)))
    assert kept.budget.used_bytes == 10 * ROW_BYTES


def test_a_copy_is_waited_for_before_the_block_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets the micro-batch's memory next may write there: rule 3. Later readers find the copy."""
    kept = Kept(slack_bytes=1 << 20)
    images = kept.put((1, 2, 3, 4))
    kept.store.forget((1, 2, 4))
    seen: list[bool] = []

    def waited(place: torch.device) -> None:
        micro_batch, index = kept.store.row(3)
        seen.append(len(micro_batch) == 4 and torch.equal(micro_batch[index], images[2]))

    monkeypatch.setattr("hw.worker.activations.finish", waited)
    kept.store.compact()
    assert seen == [True]
    assert len(kept.store.row(3)[0]) == 1


def test_micro_batch_freed_during_a_send_is_held_until_the_send_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may free a micro-batch before the send's own wait, and its memory must not be reused until then."""
    kept = Kept()
    kept.put((1, 2))
    kept.put((3, 4, 5))
    micro_batches = [weakref.ref(kept.store.row(request)[0]) for request in (1, 3)]
    seen: list[bool] = []

    def waited(place: torch.device) -> None:
        kept.store.clear()
        seen.extend(micro_batch() is not None for micro_batch in micro_batches)

    monkeypatch.setattr("hw.worker.activations.finish", waited)
    kept.store.send(Move(1, 1, 0, (1, 3)))
    assert seen == [True, True]
    assert [micro_batch() for micro_batch in micro_batches] == [None, None]


def test_no_memory_for_a_copy_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(slack_bytes=1 << 20)
    images = kept.put((1, 2, 3, 4))
    kept.store.forget((1, 2, 4))
    for error, is_told in ((torch.OutOfMemoryError("x"), False), (RuntimeError("CUDA error: unspecified"), True)):

        def broken(rows: object, error: Exception = error) -> torch.Tensor:
            raise error

        monkeypatch.setattr("hw.worker.activations._copy_of", broken)
        if is_told:
            with pytest.raises(RuntimeError, match="unspecified"):
                kept.store.compact()
        else:
            kept.store.compact()
        assert torch.equal(kept.read((3,)), images[2:3])
        assert kept.budget.used_bytes == 4 * ROW_BYTES


def test_on_a_cpu_nothing_is_counted_or_copied() -> None:
    arenas = (Arena(4096),)
    store = Activations(arenas, 0, CPU)
    store.take(Input((1, 2, 3, 4), 0, SHAPE, "float32", False))
    micro_batch, _ = store.row(1)
    store.forget((2, 3, 4))
    store.compact()
    assert store.row(1)[0] is micro_batch
    assert store.held_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8), st.booleans()), max_size=40), st.integers(0, 12))
def test_held_activations_are_at_most_twice_the_needed_bytes_plus_the_slack(
    steps: list[tuple[int, int, bool]], slack_rows: int
) -> None:
    """The bound holds after any puts and releases, rows read as they were put, and all memory is free at the end."""
    kept = Kept(slack_bytes=slack_rows * ROW_BYTES)
    right: dict[int, torch.Tensor] = {}
    for step, (first, count, puts) in enumerate(steps):
        requests = tuple(range(first, first + count))
        if puts:
            right.update(zip(requests, kept.put(requests, seed=step), strict=True))
        else:
            kept.store.forget(requests)
            right = {request: x for request, x in right.items() if request not in requests}
        assert kept.micro_batches.needed_bytes == len(right) * ROW_BYTES
        assert kept.store.held_bytes == kept.budget.used_bytes <= (2 * len(right) + slack_rows) * ROW_BYTES
        micro_batches = {
            micro_batch.untyped_storage().data_ptr(): micro_batch for micro_batch, _ in map(kept.store.row, right)
        }
        assert (
            sum(micro_batch.untyped_storage().nbytes() for micro_batch in micro_batches.values())
            == kept.store.held_bytes
        )
    for request, x in right.items():
        row: Row = kept.store.row(request)
        assert torch.equal(row[0][row[1]], x)
    kept.store.clear()
    assert kept.budget.used_bytes == 0
