"""Two agents of one device move activations without an arena; here their memory is the host's."""

from __future__ import annotations

import itertools

import pytest
import torch

from hw.device import DeviceSpec
from hw.devices.activations import Activations
from hw.devices.mailbox import Mailbox, region_of
from hw.networks.rows import gather, rows_of
from hw.transport.arena import Arena
from hw.transport.messages import Input, Move

CPU = torch.device("cpu")
SHAPE = (3, 2, 2)


class FakeSharing:
    """Of one process: a handle is a name."""

    def __init__(self) -> None:
        self.regions: dict[str, torch.Tensor] = {}
        self.opened: list[str] = []
        self._numbers = itertools.count()

    def share(self, region: torch.Tensor) -> str:
        handle = f"region {next(self._numbers)}"
        self.regions[handle] = region
        return handle

    def open(self, handle: str) -> torch.Tensor:
        self.opened.append(handle)
        if handle not in self.regions:
            raise RuntimeError(f"{handle} is gone")
        return self.regions[handle]


@pytest.fixture
def sharing() -> FakeSharing:
    return FakeSharing()


def _agent(own: int, sharing: FakeSharing, size_bytes: int = 4096) -> tuple[Activations, Mailbox]:
    mailbox = Mailbox(region_of(size_bytes, CPU), sharing)
    return Activations((Arena(64), Arena(64)), own, DeviceSpec(), CPU, mailbox=mailbox), mailbox


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_activations_arrive_as_they_were(sharing: FakeSharing, order: torch.memory_format) -> None:
    """In another order of requests, at their place, in their order of memory; read there without a copy."""
    (source, _), (destination, theirs) = _agent(0, sharing), _agent(1, sharing)
    block = torch.randn(2, *SHAPE).contiguous(memory_format=order)
    source.put_rows(dict(zip((4, 5), rows_of(block), strict=True)))
    moved = source.send(Move(9, 1, 128, (5, 4), theirs.handle))
    destination.take(Input((5, 4), 128, moved.shape, moved.dtype, moved.channels_last, in_mailbox=True))
    rows = [destination.row(request) for request in (5, 4)]
    assert torch.equal(gather(rows), block.flip(0))
    assert gather(rows).is_contiguous(memory_format=order)
    assert rows[0][0].data_ptr() == theirs.region.data_ptr() + 128


def test_a_mailbox_is_opened_once_in_each_life(sharing: FakeSharing) -> None:
    """And not at all before somebody writes there."""
    source, _ = _agent(0, sharing)
    source.put_rows({4: rows_of(torch.zeros(1, *SHAPE))[0]})
    lives = [_agent(1, sharing)[1].handle for _ in range(2)]
    for handle in (lives[0], lives[0], lives[1], lives[1]):
        source.send(Move(9, 1, 0, (4,), handle))
    assert sharing.opened == lives


def test_what_does_not_fit_or_is_gone_is_told(sharing: FakeSharing) -> None:
    """To whoever asked for the move, or for the activation."""
    source, own = _agent(0, sharing, size_bytes=64)
    source.put_rows({4: rows_of(torch.zeros(1, *SHAPE))[0]})
    with pytest.raises(ValueError, match="are not within 64"):
        source.send(Move(9, 0, 32, (4,), own.handle))
    with pytest.raises(RuntimeError, match="is gone"):
        source.send(Move(9, 1, 0, (4,), "of nobody"))
    source.take(Input((6,), 32, SHAPE, "float32", False, in_mailbox=True))
    with pytest.raises(ValueError, match="are not within 64"):
        source.row(6)


def test_an_agent_without_a_mailbox_says_so() -> None:
    plain = Activations((Arena(64), Arena(64)), 0, DeviceSpec(), CPU)
    plain.take(Input((6,), 0, SHAPE, "float32", False, in_mailbox=True))
    with pytest.raises(ValueError, match="no mailbox"):
        plain.row(6)
