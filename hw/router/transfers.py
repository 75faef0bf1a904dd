"""Micro-batches in transit: which worker writes which activations where, arrivals of transfers, and the effect of a
death.

The router's side of the arenas. A transfer needs a place in its destination's arena; if there is none it waits for one
(back-pressure), with a time limit. Its data are written there by the source (or here, for images); their places go with
the micro-batch. With emulated links a transfer arrives once its data are there and the link's time is over.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from hw.networks.datasets import Images as DataImages
from hw.networks.datasets import Pixels
from hw.transport.messages import Input, Keep, Move, Moved, Release
from hw.transport.shared_memory import Slab
from policies.vocabulary import (
    ROUTER,
    MicroBatch,
    RouterEvent,
    SendMicroBatch,
    TransferFailed,
    TransferFinished,
    TransferStarted,
)

if TYPE_CHECKING:
    from hw.router.server_port import RemoteServer

ELEMENT_BYTES = 4  # of float32, the largest that activations have
NO_ROOM = "no_room"


class LinkModel(Protocol):
    """An emulated network in one run: the times at which transfers would end on links that are not here.

    The simulator's own model computes them (`sim.host_and_network.Interconnect`), so that simulations and executors
    have the same links. It stores when each medium is free again, and has no clock.
    """

    def transfer(self, source: int, destination: int, transfer_bytes: int, now_ns: int) -> tuple[int, int]:
        """Book a transfer; return (start_ns, arrival_ns), both at or after now."""
        ...


class RequestImages(Protocol):
    """The images of the requests that are in flight; `shape` is one's, channels first."""

    shape: tuple[int, ...]

    def write(self, requests: tuple[int, ...], target: NDArray[np.float32], channels_last: bool) -> None:
        """Write the images of these requests, one after another."""
        ...


class ImageSource:
    """The images of a run's requests; request i shows image `indices[i modulo m]`.

    Args:
        images: (n, C, H, W), or of any other shape that has no order of channels.
        indices: (m,).
        poisoned: requests whose images hold no number.
    """

    def __init__(self, images: DataImages, indices: NDArray[np.int64], poisoned: frozenset[int] = frozenset()) -> None:
        self._images = images
        self._channels_last: DataImages | None = None  # made when a server first needs it
        self._indices: list[int] = indices.tolist()
        self._poisoned = poisoned
        self.shape: tuple[int, ...] = images.shape[1:]

    def write(self, requests: tuple[int, ...], target: NDArray[np.float32], channels_last: bool) -> None:
        """See `Images`; with one copy."""
        images = self._in_order(channels_last)
        indices = [self._indices[request % len(self._indices)] for request in requests]
        target = target.reshape(len(requests), *images.shape[1:])
        if isinstance(images, Pixels):
            images[indices].normalise(target)
        else:
            images.take(indices, axis=0, out=target, mode="clip")  # the only mode that needs no second copy
        if self._poisoned:
            for position, request in enumerate(requests):
                if request in self._poisoned:
                    target[position] = np.nan

    def _in_order(self, channels_last: bool) -> DataImages:
        if not channels_last or len(self.shape) != 3:
            return self._images
        if self._channels_last is None:
            images = self._images
            if isinstance(images, Pixels):
                self._channels_last = images.channels_last()
            else:
                self._channels_last = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
        return self._channels_last


@dataclass(frozen=True, slots=True)
class Cargo:
    """The data that move, and how.

    Attributes:
        images: of all requests.
        shape_after: (segment, width) -> shape of one activation after a segment; segment 0 is the image.
        links: emulated ones, or None.
    """

    images: RequestImages
    shape_after: Callable[[int, float], tuple[int, ...]]
    links: LinkModel | None = None


@dataclass(slots=True)
class _Delivery:
    """A micro-batch in transit, its transfers that have not arrived, and the places of the others' data."""

    micro_batch: MicroBatch
    moving: dict[int, _Transfer] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)


@dataclass(slots=True)
class _Transfer:
    """Requests in transit from one source.

    Attributes:
        slab: their place in the destination's arena; None while there is none.
        due_ns: when the emulated link lets them arrive.
        data: their places in the destination's arena, once they are there.
        gives_up_ns: when waiting for a place ends.
    """

    number: int
    source: int
    requests: tuple[int, ...]
    delivery: _Delivery
    size_bytes: int
    due_ns: int
    gives_up_ns: int
    slab: Slab | None = None
    data: Input | None = None


class Transfers:
    """All transfers of a run.

    Args:
        servers: by index.
        cargo: the data.
        now_ns: the run's clock.
        tell_router: queues an event for the router's core.
        hand_over: gives a micro-batch whose inputs have all arrived to its server, with their places.
        patience_ns: how long a transfer waits for a place.
        numbers: of transfers, over all runs: late answers of an earlier run are recognized as such.
    """

    def __init__(
        self,
        servers: Sequence[RemoteServer],
        cargo: Cargo,
        now_ns: Callable[[], int],
        tell_router: Callable[[RouterEvent], None],
        hand_over: Callable[[MicroBatch, tuple[Input, ...]], None],
        patience_ns: int,
        numbers: Iterator[int],
    ) -> None:
        self._servers = servers
        self._images = cargo.images
        self._shape_after = cargo.shape_after
        self._links = cargo.links
        self._now_ns = now_ns
        self._tell_router = tell_router
        self._hand_over = hand_over
        self._patience_ns = patience_ns
        self._numbers = numbers
        self._deliveries: dict[int, _Delivery] = {}
        self._transfers: dict[int, _Transfer] = {}
        self._writing: dict[int, tuple[int, int, Slab]] = {}  # by transfer: the source, and the address it writes to
        self._waiting: list[deque[_Transfer]] = [deque() for _ in servers]
        self._due: list[tuple[int, int]] = []  # heap of (due_ns, transfer): data are there, the link is not done

    # -------------------------------------------------------------------------------------------------- what happens

    def send(self, command: SendMicroBatch) -> None:
        """Start a micro-batch's transfers; it arrives with the last of them."""
        micro_batch = command.micro_batch
        # it died while this was being decided: the router takes it back
        if not self._servers[micro_batch.server].is_up:
            return
        for source, _ in command.moves:
            if source != ROUTER and not self._servers[source].is_up:  # it died while this was being decided
                self._fail(micro_batch, source, "server_down")
                return
        if not command.moves:
            self._hand_over(micro_batch, ())
            return
        delivery = self._deliveries[micro_batch.micro_batch] = _Delivery(micro_batch)
        transfers = [self._plan(delivery, source, requests) for source, requests in command.moves]
        for transfer in transfers:
            self._tell_router(
                TransferStarted(micro_batch.micro_batch, transfer.source, micro_batch.server, transfer.requests)
            )
        for transfer in transfers:
            self._waiting[micro_batch.server].append(transfer)
        self._reserve(micro_batch.server)

    def moved(self, message: Moved) -> None:
        """Process a worker's notice that a write is done."""
        write = self._writing.pop(message.transfer, None)
        if write is None:
            return  # of an earlier run
        transfer = self._transfers.get(message.transfer)
        if transfer is None:
            _, destination, slab = write
            self._cancel(destination, slab)
            return
        self._take(transfer, message.shape, message.dtype, message.channels_last)

    def broken(self, number: int, reason: str) -> None:
        """Process a worker's failure to write: the micro-batch is given back whole."""
        write = self._writing.pop(number, None)
        if write is None:
            return
        _, destination, slab = write
        transfer = self._transfers.get(number)
        if transfer is not None:
            self._drop(transfer.delivery)
            self._fail(transfer.delivery.micro_batch, transfer.source, reason)
        self._cancel(destination, slab)

    def freed(self, server: int) -> None:
        """Try waiting transfers again, as a server's arena may have room."""
        if self._waiting[server]:
            self._reserve(server)

    @property
    def next_ns(self) -> int | None:
        """The time at which `ring` should be called."""
        if not self._transfers:
            return None
        times = [waiting[0].gives_up_ns for waiting in self._waiting if waiting]
        if self._due:
            times.append(self._due[0][0])
        return min(times, default=None)

    def ring(self, now_ns: int) -> None:
        """Complete transfers that emulated links let arrive now, and give up those that waited too long for a place."""
        while self._due and self._due[0][0] <= now_ns:
            _, number = heapq.heappop(self._due)
            if number in self._transfers:
                self._end(self._transfers[number])
        for waiting in self._waiting:
            while waiting and waiting[0].gives_up_ns <= now_ns:
                transfer = waiting[0]
                self._drop(transfer.delivery)
                self._fail(transfer.delivery.micro_batch, transfer.source, NO_ROOM)
        for index in range(len(self._servers)):
            self.freed(index)

    def bury(self, server: int) -> None:
        """Process a server's death: drop blocks in transit to it (the router takes them back), and data from it."""
        for delivery in list(self._deliveries.values()):
            if delivery.micro_batch.server == server:
                self._drop(delivery)
            elif any(transfer.source == server for transfer in delivery.moving.values()):
                self._drop(delivery)
                self._fail(delivery.micro_batch, server, "server_down")
        slabs_by_destination: defaultdict[int, list[Slab]] = defaultdict(list)
        for number, (source, destination, slab) in list(self._writing.items()):
            if source == server:
                del self._writing[number]
                slabs_by_destination[destination].append(slab)
        for destination, slabs in slabs_by_destination.items():
            self._servers[destination].give_back(slabs, self._servers[server].worker_id)
        self._servers[server].inbox.clear()
        for index in range(len(self._servers)):  # only now: waits from or to the dead one are gone
            self.freed(index)

    # ------------------------------------------------------------------------------------------------ one transfer

    def _plan(self, delivery: _Delivery, source: int, requests: tuple[int, ...]) -> _Transfer:
        now_ns, key = self._now_ns(), delivery.micro_batch.key
        size_bytes = ELEMENT_BYTES * len(requests) * prod(self._shape_after(key.segment - 1, key.previous_width))
        due_ns = now_ns
        if self._links is not None:
            _, due_ns = self._links.transfer(source, delivery.micro_batch.server, size_bytes, now_ns)
        gives_up_ns = now_ns + self._patience_ns
        number = next(self._numbers)
        transfer = _Transfer(number, source, requests, delivery, size_bytes, due_ns, gives_up_ns)
        self._transfers[number] = delivery.moving[number] = transfer
        return transfer

    def _reserve(self, server: int) -> None:
        """Reserve slabs, in order: nothing overtakes a transfer that waits for one."""
        waiting, inbox = self._waiting[server], self._servers[server].inbox
        while waiting:
            transfer = waiting[0]
            slab = inbox.reserve(transfer.requests, transfer.size_bytes)
            if slab is None:
                return
            waiting.popleft()
            transfer.slab = slab
            if transfer.source == ROUTER:
                self._write_images(transfer, slab)
            else:
                self._writing[transfer.number] = (transfer.source, server, slab)
                source = self._servers[transfer.source]
                source.asked(transfer.number)
                address = self._servers[server].address
                source.send(Move(transfer.number, server, slab.offset, transfer.requests, address))

    def _write_images(self, transfer: _Transfer, slab: Slab) -> None:
        server = self._servers[transfer.delivery.micro_batch.server]
        shape = self._images.shape
        target = np.frombuffer(server.inbox.arena.buffer, np.float32, len(transfer.requests) * prod(shape), slab.offset)
        self._images.write(transfer.requests, target, server.channels_last)
        server.inbox.arena.commit(slab.offset, target.nbytes)
        self._take(transfer, shape, "float32", server.channels_last)

    def _take(self, transfer: _Transfer, shape: tuple[int, ...], dtype: str, channels_last: bool) -> None:
        """Note that the data are there; they have arrived when the link is done, too."""
        slab = transfer.slab
        assert slab is not None, "data without a slab"
        self._servers[transfer.delivery.micro_batch.server].inbox.fill(slab)
        transfer.data = Input(transfer.requests, slab.offset, shape, dtype, channels_last)
        if transfer.due_ns > self._now_ns():
            heapq.heappush(self._due, (transfer.due_ns, transfer.number))
        else:
            self._end(transfer)

    def _end(self, transfer: _Transfer) -> None:
        delivery = transfer.delivery
        assert transfer.data is not None, "ended before its data arrived"
        delivery.inputs.append(transfer.data)
        del self._transfers[transfer.number], delivery.moving[transfer.number]
        micro_batch = delivery.micro_batch
        self._tell_router(
            TransferFinished(micro_batch.micro_batch, transfer.source, micro_batch.server, transfer.requests)
        )
        if transfer.source != ROUTER:
            self._servers[transfer.source].send(Release(transfer.requests))
            self._servers[transfer.source].inbox.forget(transfer.requests)
            self.freed(transfer.source)
        if not delivery.moving:
            del self._deliveries[micro_batch.micro_batch]
            self._hand_over(micro_batch, tuple(delivery.inputs))

    def _cancel(self, server: int, slab: Slab) -> None:
        self._servers[server].inbox.cancel(slab)
        self.freed(server)

    # -------------------------------------------------------------------------------------------------------- failure

    def _fail(self, micro_batch: MicroBatch, source: int, reason: str) -> None:
        self._tell_router(
            TransferFailed(micro_batch.micro_batch, source, micro_batch.server, micro_batch.requests, reason)
        )

    def _drop(self, delivery: _Delivery) -> None:
        """Forget a micro-batch of which nothing more will arrive: waits are dropped, and arrived data stay in place."""
        micro_batch = delivery.micro_batch
        del self._deliveries[micro_batch.micro_batch]
        for transfer in delivery.moving.values():
            del self._transfers[transfer.number]
            if transfer.slab is None:
                self._waiting[micro_batch.server].remove(transfer)
            elif transfer.data is not None:  # copies; the source keeps its own
                self._servers[micro_batch.server].inbox.forget(transfer.requests)
        if delivery.inputs and self._servers[micro_batch.server].is_up:
            self._servers[micro_batch.server].send(Keep(tuple(delivery.inputs)))
