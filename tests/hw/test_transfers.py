"""Transfers without processes: places, order, emulated links, and deaths at every moment of one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch

from hw.networks.datasets import Pixels
from hw.router.server_port import RemoteServer
from hw.router.transfers import NO_ROOM, Cargo, ImageSource, LinkModel, Transfers
from hw.transport.messages import Input, Keep, Move, Moved, ToWorker
from hw.transport.shared_memory import Arena, Inbox, Slab
from hw.worker.activations import tensor_in
from policies.vocabulary import (
    IMAGE,
    ROUTER,
    MicroBatch,
    RouterEvent,
    SendMicroBatch,
    TransferFailed,
    TransferFinished,
    WorkKey,
)

SHAPES = {0: (1, 2, 8), 1: (1, 4, 8)}  # an image is 64 bytes, an activation 128
ROOM = 256
PATIENCE_NS = 1000
IMAGES = np.stack([np.full(SHAPES[0], number, np.float32) for number in range(10)])


class Watched(Arena):
    """An arena that remembers what is said to stand there."""

    def __init__(self, size_bytes: int, committed: list[tuple[int, int]]) -> None:
        super().__init__(size_bytes)
        self._committed = committed

    def commit(self, offset: int, size_bytes: int, address: str = "") -> None:
        self._committed.append((offset, size_bytes))


class FakeServer:
    def __init__(self, index: int) -> None:
        self.index = index
        self.is_up = True
        self.committed: list[tuple[int, int]] = []
        self.inbox = Inbox(Watched(ROOM, self.committed))
        self.channels_last = False
        self.worker_id = 10 + index
        self.address = f"host-{index}:1"
        self.given_back: list[tuple[int, tuple[Slab, ...]]] = []
        self.sent: list[ToWorker] = []
        self.moving: list[int] = []

    def send(self, message: ToWorker) -> None:
        self.sent.append(message)

    def asked(self, transfer: int) -> None:
        self.moving.append(transfer)

    def give_back(self, slabs: Sequence[Slab], worker_id: int) -> None:
        self.given_back.append((worker_id, tuple(slabs)))
        for slab in slabs:
            self.inbox.cancel(slab)


class World:
    """Servers and what comes of their transfers."""

    def __init__(
        self, links: LinkModel | None = None, poisoned: frozenset[int] = frozenset(), servers: int = 2
    ) -> None:
        self.now_ns = 0
        self.servers = [FakeServer(index) for index in range(servers)]
        self.events: list[RouterEvent] = []
        self.arrived: list[int] = []
        self.inputs: dict[int, tuple[Input, ...]] = {}  # by micro-batch
        images = ImageSource(IMAGES, np.arange(len(IMAGES)), poisoned)
        cargo = Cargo(images, lambda segment, _: SHAPES[segment], links)
        self.transfers = Transfers(
            cast(list[RemoteServer], self.servers), cargo,
            lambda: self.now_ns, self.events.append, self._hand_over, PATIENCE_NS, itertools.count(),
        )  # fmt: skip

    def _hand_over(self, micro_batch: MicroBatch, inputs: tuple[Input, ...]) -> None:
        self.arrived.append(micro_batch.micro_batch)
        self.inputs[micro_batch.micro_batch] = inputs

    def send(self, number: int, server: int, source: int, *requests: int) -> None:
        segment, previous = (1, IMAGE) if source == ROUTER else (2, 1.0)
        micro_batch = MicroBatch(number, server, 1, WorkKey(segment, 1.0, previous), requests)
        self.transfers.send(SendMicroBatch(micro_batch, ((source, requests),) if source != server else ()))

    def asked_to_move(self, source: int = 0) -> Move:
        return next(message for message in reversed(self.servers[source].sent) if isinstance(message, Move))

    def write(self, message: Move) -> None:
        self.transfers.moved(Moved(message.transfer, SHAPES[1], "float32", False))

    def failures(self) -> list[tuple[int, str]]:
        return [(event.micro_batch, event.reason) for event in self.events if isinstance(event, TransferFailed)]


def test_images_stand_where_the_server_is_told_that_they_do() -> None:
    """The bytes at the offset that goes with the micro-batch are its images, in order; request 17 is image 7 again.
    Nothing is said before they stand there, and nothing moves where nothing must."""
    world = World()
    world.send(1, 0, ROUTER, 7, 5, 17)
    (given,) = world.inputs[1]
    assert (given.requests, given.shape, given.dtype) == ((7, 5, 17), SHAPES[0], "float32")
    assert world.servers[0].committed == [(given.offset, 3 * 64)]
    seen = tensor_in(world.servers[0].inbox.arena, given.offset, (3, *SHAPES[0]), torch.float32)
    assert seen.mean((1, 2, 3)).tolist() == [7, 5, 7]
    world.send(2, 0, 0, 7, 5)
    assert world.arrived == [1, 2]
    assert world.inputs[2] == ()


def test_a_poisoned_image_holds_no_number() -> None:
    world = World(poisoned=frozenset({5}))
    world.send(1, 0, ROUTER, 7, 5, 15)
    (given,) = world.inputs[1]
    seen = tensor_in(world.servers[0].inbox.arena, given.offset, (3, *SHAPES[0]), torch.float32)
    assert [bool(image.isnan().all()) for image in seen] == [False, True, False]
    assert [bool(image.isnan().any()) for image in seen] == [False, True, False]


def test_feature_maps_may_have_their_channels_last() -> None:
    pixels = np.arange(2 * 2 * 3 * 4, dtype=np.uint8).reshape(2, 2, 3, 4)
    mean, deviation = (np.array(each, np.float32)[:, None, None] for each in ((3.0, 7.0), (0.3, 1.7)))
    for kept in (pixels.astype(np.float32), Pixels(pixels, mean, deviation)):
        images, target = np.asarray(kept), np.empty(pixels.size, np.float32)
        source = ImageSource(kept, np.array([0, 0, 1]))
        source.write((2, 4), target, channels_last=True)
        assert np.array_equal(target.reshape(2, 3, 4, 2).transpose(0, 3, 1, 2), images[[1, 0]])
        source.write((2, 4), target, channels_last=False)
        assert np.array_equal(target.reshape(images.shape), images[[1, 0]])


def test_without_a_place_a_transfer_waits_in_order_and_then_gives_up() -> None:
    """Two blocks fill the arena; of two more neither overtakes the other; a place or the end of patience decides."""
    world = World()
    for number in range(4):
        world.send(number, 0, ROUTER, 2 * number, 2 * number + 1)  # 128 bytes each
    assert world.arrived == [0, 1]
    world.servers[0].inbox.forget((2,))
    world.transfers.freed(0)
    assert world.arrived == [0, 1]  # a slab is free when all of it is
    world.servers[0].inbox.forget((3,))
    world.transfers.freed(0)
    assert world.arrived == [0, 1, 2]
    assert world.transfers.next_ns == PATIENCE_NS
    world.transfers.ring(PATIENCE_NS - 1)
    assert not world.failures()
    world.transfers.ring(PATIENCE_NS)
    assert world.failures() == [(3, NO_ROOM)]
    assert world.transfers.next_ns is None


class SlowLink:
    """Everything arrives 500 ns after it was asked for."""

    def transfer(self, source: int, destination: int, transfer_bytes: int, now_ns: int) -> tuple[int, int]:
        return now_ns, now_ns + 500


def test_an_emulated_link_holds_back_what_is_there_already() -> None:
    """Not a nanosecond less; and a write that takes longer than the link arrives when it is done."""
    world = World(SlowLink())
    world.send(1, 0, ROUTER, 1)
    assert world.transfers.next_ns == 500
    world.transfers.ring(499)
    assert not world.arrived
    world.now_ns = 500
    world.transfers.ring(500)
    assert world.arrived == [1]
    world.send(2, 1, 0, 1)
    world.now_ns = 2000
    world.write(world.asked_to_move())
    assert world.arrived == [1, 2]
    finished = [event for event in world.events if isinstance(event, TransferFinished)]
    assert [event.micro_batch for event in finished] == [1, 2]


def test_transfer_behind_one_that_gives_up_takes_its_place() -> None:
    world = World()
    world.send(1, 0, ROUTER, 1, 2)
    world.send(2, 0, ROUTER, 3, 4, 5)  # 192 bytes, of which 128 are free
    world.now_ns = PATIENCE_NS // 2
    world.send(3, 0, ROUTER, 6)
    assert world.arrived == [1]
    world.transfers.ring(PATIENCE_NS)
    assert (world.failures(), world.arrived) == ([(2, NO_ROOM)], [1, 3])


@pytest.mark.parametrize(
    ("links", "dead", "failures", "kept", "free_bytes"),
    [
        (None, 1, [(1, "server_down")], [(1,)], ROOM - 128),
        (SlowLink(), 1, [(1, "server_down")], [], ROOM),  # it is there, but it has not arrived
        (None, 2, [], [], 128),  # of its worker nothing is left; the one that writes there does so until it ends
    ],
)
def test_inputs_that_arrived_are_kept_if_another_source_of_their_micro_batch_dies(
    links: LinkModel | None, dead: int, failures: list[tuple[int, str]], kept: list[tuple[int, ...]], free_bytes: int
) -> None:
    world = World(links, servers=3)
    micro_batch = MicroBatch(1, 2, 1, WorkKey(2, 1.0, 1.0), (1, 2))
    world.transfers.send(SendMicroBatch(micro_batch, ((0, (1,)), (1, (2,)))))
    move = world.asked_to_move(0)
    assert world.servers[0].moving == [move.transfer]
    world.write(move)
    world.servers[dead].is_up = False
    world.transfers.bury(dead)
    assert world.failures() == failures
    sent = world.servers[2].sent
    assert [each.requests for message in sent if isinstance(message, Keep) for each in message.inputs] == kept
    assert len(sent) == len(kept)
    assert world.servers[2].inbox.free_bytes == free_bytes
