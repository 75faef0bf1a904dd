"""Who waits for a copy, and who does not; on a CUDA that only writes down the order of what it is asked."""

from __future__ import annotations

import pytest
import torch

from hw.device import DeviceSpec
from hw.devices.activations import Activations, tensor_in
from hw.devices.copies import Copies
from hw.devices.slots import SlotPools
from hw.networks.rows import gather, rows_of
from hw.transport.arena import Arena
from hw.transport.messages import Input, Move
from tests.hw.fake_cuda import FakeCuda

CPU = torch.device("cpu")
SHAPE = (3, 2, 2)


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


def _store(cuda: FakeCuda, arenas: tuple[Arena, Arena], pools: SlotPools | None = None) -> Activations:
    return Activations(arenas, 0, DeviceSpec(channels_last=False), CPU, pools, copies=Copies(arenas, CPU, cuda))


@pytest.fixture
def arenas() -> tuple[Arena, Arena]:
    return Arena(4096), Arena(8192)


def _given(requests: tuple[int, ...], offset: int = 0) -> Input:
    return Input(requests, offset, SHAPE, "float32", False)


def test_every_arena_is_pinned_or_the_reason_is_told(arenas: tuple[Arena, Arena]) -> None:
    """Once each; where CUDA refuses, copies go on and are slow."""
    able, unable = FakeCuda(), FakeCuda(refuses=712)
    assert Copies(arenas, CPU, able).problem == ""
    assert able.registered == [4096, 8192]
    assert Copies(arenas, CPU, unable).problem == "arena 0 is not pinned: CUDA error 712"


@pytest.mark.parametrize("slots", [0, 8])
def test_a_reader_waits_on_its_stream_for_what_is_coming(
    cuda: FakeCuda, arenas: tuple[Arena, Arena], slots: int
) -> None:
    """Taking waits for nothing; each row that is read makes the reader's stream wait for its own input, while it is one
    that came; outputs are there when they are put."""
    store = _store(cuda, arenas, SlotPools(1 << 16, slots) if slots else None)
    images = torch.randn(3, *SHAPE)
    tensor_in(arenas[0], 0, tuple(images.shape), torch.float32).copy_(images)
    store.take(_given((1, 2)))
    store.take(_given((3,), 2 * images[0].nbytes))
    assert cuda.told == ["event 1 recorded on stream 1", "event 2 recorded on stream 1"]
    cuda.told.clear()
    assert torch.equal(gather([store.row(request) for request in (3, 1)]), images[[2, 0]])
    assert cuda.told == ["default waits for event 2", "default waits for event 1"]
    cuda.told.clear()
    store.put_rows({3: rows_of(images[2:])[0]})
    store.row(3)
    assert cuda.told == []


def test_what_leaves_is_there_when_it_is_told(cuda: FakeCuda, arenas: tuple[Arena, Arena]) -> None:
    """It is gathered and copied on the copies' stream, behind what is still coming; then the host waits."""
    store = _store(cuda, arenas)
    images = torch.randn(2, *SHAPE)
    tensor_in(arenas[0], 0, tuple(images.shape), torch.float32).copy_(images)
    store.take(_given((1, 2)))
    cuda.told.clear()
    moved = store.send(Move(7, 1, 512, (2, 1)))
    assert (moved.transfer, moved.shape) == (7, SHAPE)
    assert torch.equal(tensor_in(arenas[1], 512, tuple(images.shape), torch.float32), images.flip(0))
    assert cuda.told == [
        "stream 1 waits for event 1",
        "stream 1 waits for event 1",
        "event 2 recorded on stream 1",
        "host waits for event 2",
    ]


def test_who_comes_back_is_waited_for_anew(cuda: FakeCuda, arenas: tuple[Arena, Arena]) -> None:
    """Its former input is forgotten, event and all."""
    store = _store(cuda, arenas)
    store.take(_given((1,)))
    store.forget((1,))
    store.put_rows({1: rows_of(torch.zeros(1, *SHAPE))[0]})
    cuda.told.clear()
    store.row(1)
    assert cuda.told == []


def test_a_slot_is_not_given_back_while_something_is_copied_there(cuda: FakeCuda, arenas: tuple[Arena, Arena]) -> None:
    """Its request was given up early: the next one's activation would be written over."""
    store = _store(cuda, arenas, SlotPools(1 << 16, 4))
    for is_slow in (True, False):
        store.take(_given((1,)))
        cuda.told.clear()
        cuda.is_slow = is_slow
        store.forget((1,))
        assert len(cuda.told) == is_slow
    assert cuda.told == []
