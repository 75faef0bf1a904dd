"""Transfers without processes: places, order, emulated links, and deaths at every moment of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from hw.devices.activations import tensor_in
from hw.router.link import LinkModel
from hw.router.transfers import NO_ROOM, Cargo, Images, Transfers
from hw.transport.arena import Arena, Inbox, Slab
from hw.transport.messages import Input, Keep, Move, Moved, Release, ToAgent
from policies.vocabulary import (
    IMAGE,
    ROUTER,
    Block,
    RouterEvent,
    SendBlock,
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
    """An endpoint that only remembers."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_up = True
        self.committed: list[tuple[int, int]] = []
        self.inbox = Inbox(Watched(ROOM, self.committed))
        self.channels_last = False
        self.place = "one GPU" if index < 2 else "another"
        self.life = 10 + index
        self.address = f"host-{index}:1"
        self.given_back: list[tuple[int, tuple[Slab, ...]]] = []
        self.sent: list[ToAgent] = []

    def send(self, message: ToAgent) -> None:
        self.sent.append(message)

    def asked(self, transfer: int) -> None:
        pass

    def give_back(self, slabs: Sequence[Slab], life: int) -> None:
        self.given_back.append((life, tuple(slabs)))
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
        self.inputs: dict[int, tuple[Input, ...]] = {}  # by block
        self.transfers = Transfers(
            self.servers, Cargo(Images(IMAGES, poisoned), lambda segment, _: SHAPES[segment]), links,
            lambda: self.now_ns, self.events.append, self._hand_over, PATIENCE_NS, itertools.count(),
        )  # fmt: skip

    def _hand_over(self, block: Block, inputs: tuple[Input, ...]) -> None:
        self.arrived.append(block.block)
        self.inputs[block.block] = inputs

    def send(self, number: int, server: int, source: int, *requests: int) -> None:
        segment, previous = (1, IMAGE) if source == ROUTER else (2, 1.0)
        block = Block(number, server, 1, WorkKey(segment, 1.0, previous), requests)
        self.transfers.send(SendBlock(block, ((source, requests),) if source != server else ()))

    def asked_to_move(self, source: int = 0) -> Move:
        return next(message for message in reversed(self.servers[source].sent) if isinstance(message, Move))

    def write(self, message: Move) -> None:
        self.transfers.moved(Moved(message.transfer, SHAPES[1], "float32", False))

    def failures(self) -> list[tuple[int, str]]:
        return [(event.block, event.reason) for event in self.events if isinstance(event, TransferFailed)]


def test_images_stand_where_the_server_is_told_that_they_do() -> None:
    """The bytes at the offset that goes with the block are its images, in order; request 17 is image 7 again. Nothing
    is said before they stand there, and nothing moves where nothing must."""
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
    """It, and no other; the next request for the same image is none."""
    world = World(poisoned=frozenset({5}))
    world.send(1, 0, ROUTER, 7, 5, 15)
    (given,) = world.inputs[1]
    seen = tensor_in(world.servers[0].inbox.arena, given.offset, (3, *SHAPES[0]), torch.float32)
    assert [bool(image.isnan().all()) for image in seen] == [False, True, False]
    assert [bool(image.isnan().any()) for image in seen] == [False, True, False]


def test_feature_maps_may_have_their_channels_last() -> None:
    """As the server's device wants them; the numbers are the same."""
    images = np.arange(2 * 2 * 3 * 4, dtype=np.float32).reshape(2, 2, 3, 4)
    target = np.empty(images.size, np.float32)
    Images(images).write((1, 0), target, channels_last=True)
    assert np.array_equal(target.reshape(2, 3, 4, 2).transpose(0, 3, 1, 2), images[[1, 0]])
    Images(images).write((1, 0), target, channels_last=False)
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


def test_the_source_keeps_its_copy_until_the_other_has_taken_it() -> None:
    """A move is asked for with a place, taken when it is written, released at the source when it has arrived."""
    world = World()
    world.send(1, 1, 0, 3)
    move = world.asked_to_move()
    assert (move.destination, move.requests) == (1, (3,))
    assert not world.arrived
    world.write(move)
    assert world.inputs[1] == (Input((3,), move.offset, SHAPES[1], "float32", False),)
    assert world.servers[0].sent[-1] == Release((3,))
    assert world.arrived == [1]


def test_what_has_arrived_of_a_block_that_will_not_is_kept_there() -> None:
    """Two sources, one of which dies: the other's part has moved, and a later block asks for it where it is."""
    world = World(servers=3)
    block = Block(1, 2, 1, WorkKey(2, 1.0, 1.0), (3, 4))
    world.transfers.send(SendBlock(block, ((0, (3,)), (1, (4,)))))
    moved = world.asked_to_move(0)
    world.write(moved)
    world.servers[1].is_up = False
    world.transfers.bury(1)
    assert not world.arrived
    assert world.servers[2].sent == [Keep((Input((3,), moved.offset, SHAPES[1], "float32", False),))]
    assert world.servers[2].inbox.free_bytes == ROOM - 128


def _before_it_is_written(world: World) -> None:
    pass


def _after_the_data_are_there(world: World) -> None:
    world.write(world.asked_to_move())


@pytest.mark.parametrize("then", [_before_it_is_written, _after_the_data_are_there])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_in_mid_transfer_loses_no_place(victim: int, then: Callable[[World], None]) -> None:
    """Source or destination dies: the block never arrives, only a source's death is theirs to report, and in
    the end every byte of the arena is free."""
    world = World(SlowLink())
    world.send(1, 1, 0, 3)
    then(world)
    world.servers[victim].is_up = False
    world.transfers.bury(victim)
    world.now_ns = 10**9
    world.transfers.ring(world.now_ns)
    assert not world.arrived
    assert world.failures() == ([(1, "server_down")] if victim == 0 else [])
    if victim == 1 and then is _before_it_is_written:
        assert world.servers[1].inbox.free_bytes < ROOM  # the source may still be writing there
        world.write(world.asked_to_move())
    assert world.servers[1].inbox.free_bytes == ROOM


def test_a_dead_source_is_given_no_place_any_more() -> None:
    """Three transfers from it, two of them written, one waiting for a place: when it dies every byte is free again,
    and nothing is asked of it."""
    world = World(SlowLink())
    for number in range(3):
        world.send(number, 1, 0, number)  # 128 bytes each
        if number < 2:
            world.write(world.asked_to_move())
    asked = len(world.servers[0].sent)
    world.servers[0].is_up = False
    world.transfers.bury(0)
    assert sorted(world.failures()) == [(number, "server_down") for number in range(3)]
    assert world.servers[1].inbox.free_bytes == ROOM
    assert len(world.servers[0].sent) == asked


def test_a_place_that_is_not_written_to_any_more_is_given_on() -> None:
    """Who waits for it need not wait for something else to happen."""
    world = World()
    for number in range(2):
        world.send(number, 1, 0, number)
    world.send(2, 1, ROUTER, 8)
    assert not world.arrived
    world.transfers.broken(world.asked_to_move().transfer, "bad_input")
    assert world.arrived == [2]


def test_what_was_to_be_moved_from_a_dead_server_fails_at_once() -> None:
    """Its death may come while the router decides."""
    world = World()
    world.servers[0].is_up = False
    world.send(1, 1, 0, 3)
    assert world.failures() == [(1, "server_down")]


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
    assert [event.block for event in finished] == [1, 2]


def test_neighbours_write_to_mailboxes_and_others_to_arenas() -> None:
    """Only what moves between agents of one GPU; images, and what comes from another one, go through the arena. Both
    places are free again when their requests are forgotten."""
    world = World(servers=3)
    world.servers[1].inbox.open_mailbox("ours")
    world.send(1, 1, 0, 1)
    moved = world.asked_to_move(0)
    assert moved.mailbox == "ours"
    world.write(moved)
    (given,) = world.inputs[1]
    assert (given.in_mailbox, given.offset) == (True, moved.offset)
    assert world.servers[1].inbox.free_bytes == ROOM
    world.send(2, 1, 2, 2)
    assert world.asked_to_move(2).mailbox == ""
    world.write(world.asked_to_move(2))
    world.send(3, 1, ROUTER, 3)
    assert [world.inputs[block][0].in_mailbox for block in (2, 3)] == [False, False]
    world.servers[1].inbox.forget((1, 2, 3))
    assert world.servers[1].inbox.free_bytes == ROOM
    slabs = [world.servers[1].inbox.reserve((n,), 128, in_mailbox=True) for n in (7, 8)]
    assert [(slab.mailbox, slab.offset) for slab in slabs if slab is not None] == [("ours", 0), ("ours", 128)]


def test_a_full_mailbox_leaves_the_arena() -> None:
    """Nobody waits for it."""
    world = World()
    world.servers[1].inbox.open_mailbox("ours")
    for number in (1, 2, 3):
        world.send(number, 1, 0, number)
    sent = [message for message in world.servers[0].sent if isinstance(message, Move)]
    assert [message.mailbox for message in sent] == ["ours", "ours", ""]


def test_a_place_in_a_former_mailbox_is_no_place_in_the_next_one() -> None:
    """The agent died while another one wrote to it: what ends later frees nothing that belongs to its successor."""
    world = World()
    inbox = world.servers[1].inbox
    inbox.open_mailbox("first life")
    world.send(1, 1, 0, 1)
    moved = world.asked_to_move()
    world.servers[1].is_up = False
    world.transfers.bury(1)
    inbox.open_mailbox("second life")
    kept = [inbox.reserve((n,), 128, in_mailbox=True) for n in (7, 8)]
    world.write(moved)
    assert all(slab is not None and slab.mailbox == "second life" for slab in kept)
    more = inbox.reserve((9,), 128, in_mailbox=True)
    assert more is not None
    assert more.mailbox == ""
