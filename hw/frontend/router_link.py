"""The ingress's path to the router: messages, slots of images, and answers by slot.

Images travel in an arena of *slots*, one per image. A slot identifies its image: the ingress reuses a slot only after
the router has answered for its image.
"""

from __future__ import annotations

import asyncio
import time  # noqa: TID251 - it stamps arrivals
from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from hw.frontend.inference_protocol import Answer, Canary, Served
from hw.transport.messages import Message
from hw.transport.shared_memory import Arena
from hw.transport.worker_port import FLUSH_NS, Port, PortClosedError
from kit.units import NS_PER_S
from policies.vocabulary import STABLE


class Submit(Message, frozen=True):
    """Images of a class in these slots, complete since `received_ns`, for one of the versions; their answers expire at
    `deadline_ns`."""

    slots: tuple[int, ...]
    received_ns: int
    deadline_ns: int
    service_class: int = 0
    version: int = 0


class Cancel(Message, frozen=True):
    """The answers for these slots are no longer wanted; some may have been sent meanwhile."""

    slots: tuple[int, ...]


class VersionState(msgspec.Struct, frozen=True):
    """What a version has done while there is a canary.

    Attributes:
        share: of the requests of the last minute.
        p50_ms, p99_ms: of their latencies; `accuracy`: their mean accuracy, by the table. None without requests.
        answered, failed: images in all.
        compared: the canary's images that the stable version served, too; of them `agreed` with the same prediction.
    """

    version: str
    role: str
    share: float
    p50_ms: float | None
    p99_ms: float | None
    accuracy: float | None
    answered: int
    failed: int
    compared: int
    agreed: int


class Alive(Message, frozen=True):
    """The ingress has received a `Status`; it knows this of the versions, if there is a canary."""

    versions: tuple[VersionState, ...] = ()


class Drained(Message, frozen=True):
    """All accepted images are answered, and no other image comes."""


class Answered(Message, frozen=True):
    """An image has passed all segments.

    Attributes:
        prediction: -1 if the device is emulated.
        widths: that it was served at.
        scores: its logits, float32; empty if the device is emulated.
        took_ns: from its arrival to its end, as the router counts latencies.
        version: which of the versions it has passed.
    """

    slot: int
    prediction: int
    widths: tuple[float, ...]
    scores: bytes
    took_ns: int
    version: int = 0


class Failed(Message, frozen=True):
    """An image was dropped."""

    slot: int
    reason: str


class Serving(Message, frozen=True):
    """Other versions serve: each answer that comes later is of one of these; `accuracies`: see `RouterConfig`."""

    version: str
    accuracies: tuple[float, ...]
    canary: Canary | None = None


class ServerState(msgspec.Struct, frozen=True, array_like=True):
    """A server's totals so far: image passes of a segment, and the time during which some pass ran."""

    name: str
    is_up: bool
    images: int
    busy_ns: int


class Status(Message, frozen=True):
    """The router's state, several times a second.

    Attributes:
        is_ready: whether every segment has a server that is up.
        queued: images inside that no server has.
        busy_ns: CPU time of its process.
        completed: images so far, and `accuracy_sum` the sum of their widths' values in the accuracy table.
        floor: the mean accuracy target; 0 for none.
        limit_ns: the p99 latency target; 0 for none.
        collections: of garbage in it, which took `collected_ns`.
    """

    is_ready: bool
    queued: int
    busy_ns: int
    completed: int
    accuracy_sum: float
    floor: float
    limit_ns: int
    servers: tuple[ServerState, ...]
    collections: int = 0
    collected_ns: int = 0


class Drain(Message, frozen=True):
    """Accept nothing more; `Drained` answers when all accepted images are answered."""


ToRouter = Submit | Cancel | Alive | Drained
ToIngress = Answered | Failed | Status | Serving | Drain
RouterPort = Port[ToIngress, ToRouter]
IngressPort = Port[ToRouter, ToIngress]


# ---------------------------------------------------------------------------------------------------- the ingress's end


ROUTER_GONE: Final = "router_gone"


class FullError(Exception):
    """Not enough slots are free for all images of a request."""


class FailedError(Exception):
    """An image of the request was dropped; its reason."""


class _Call:
    """A request: its images inside, and the answers so far."""

    def __init__(self, slots: tuple[int, ...], token: bytes, future: asyncio.Future[list[Answer]]) -> None:
        self.slots = slots
        self.token = token
        self.future = future
        self.answers: dict[int, Answer] = {}

    def answer(self, slot: int, answer: Answer) -> None:
        self.answers[slot] = answer
        if len(self.answers) == len(self.slots) and not self.future.done():
            self.future.set_result([self.answers[each] for each in self.slots])

    def fail(self, reason: str) -> None:
        if not self.future.done():
            self.future.set_exception(FailedError(reason))


class Bridge:
    """One event loop's end of the port.

    Args:
        slots: (slots, values of an image).
        served: the router's first model.
        on_end: called when the router is gone, or wants the process to end.

    Attributes:
        served: the present model.
        status: the router's last report; None before it serves.
        is_draining: whether no more requests are accepted.
        inside_of: images without an answer from the router, by the token of their client.
        versions: what the router is to know of them.
    """

    def __init__(
        self, port: IngressPort, slots: NDArray[np.float32], served: Served, on_end: Callable[[], object]
    ) -> None:
        self.served = served
        self.status: Status | None = None
        self.is_draining = False
        self.versions: tuple[VersionState, ...] = ()
        self._port = port
        self._images = slots
        self._on_end = on_end
        self._free = list(range(len(slots)))
        self._calls: dict[int, _Call] = {}  # by slot
        self.inside_of: Counter[bytes] = Counter()
        self._is_flush_due = False
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._loop.add_reader(port.fileno(), self._hear)

    @property
    def inside(self) -> int:
        """The number of images that the router has not answered for."""
        return len(self._calls)

    @property
    def heard_s(self) -> float:
        """The time since the router's last report."""
        return self._loop.time() - self._heard_s

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted."""
        return self.status is not None and self.status.is_ready and not self.is_draining

    def is_late(self, latency_s: float, service_class: int) -> bool:
        """Return whether a request took longer than the p99 latency target, of its class or of all."""
        is_beyond_all = self.status is not None and 0 < self.status.limit_ns < latency_s * NS_PER_S
        return is_beyond_all or latency_s > self.served.request_classes[service_class].p99_limit_s

    def submit(
        self,
        images: NDArray[np.float32],
        timeout_ns: int,
        service_class: int = 0,
        token: bytes = b"",
        version: int = STABLE,
    ) -> asyncio.Future[list[Answer]]:
        """Hand images of a class to the router; the future has their answers, in order, or `FailedError`.

        Cancelling the future notifies the router.

        Raises:
            FullError: there is not enough room for all of them.
        """
        count = len(images)
        if count > len(self._free):
            raise FullError
        slots = tuple([self._free.pop() for _ in range(count)])
        self._images[list(slots)] = images
        call = _Call(slots, token, self._loop.create_future())
        self.inside_of[token] += count
        self._calls.update(dict.fromkeys(slots, call))
        now_ns = time.monotonic_ns()
        self._post(Submit(slots, now_ns, now_ns + timeout_ns, service_class, version))
        call.future.add_done_callback(lambda future: self._cancel(call) if future.cancelled() else None)
        return call.future

    def _cancel(self, call: _Call) -> None:
        """Notify the router that the rest of the request need not be served."""
        self._post(Cancel(tuple([slot for slot in call.slots if self._calls.get(slot) is call])))

    def _post(self, message: ToRouter) -> None:
        """Post a message; all those of one turn of the event loop go in one frame."""
        self._port.post(message)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        try:
            self._is_flush_due = not self._port.flush()
        except PortClosedError:
            self._end()
            return
        if self._is_flush_due:
            self._loop.call_later(FLUSH_NS / 1e9, self._flush)

    def _hear(self) -> None:
        try:
            messages = self._port.receive()
        except PortClosedError:
            self._end()
            return
        for message in messages:
            match message:
                case Answered(slot, prediction, widths, scores, took_ns, version):
                    name, expected = self.served.versions[version], self.served.expected(version, widths)
                    answer = Answer(prediction, widths, scores, name, took_ns, expected)
                    self._release(slot).answer(slot, answer)
                case Failed(slot, reason):
                    call = self._release(slot)
                    if not call.future.done():
                        call.fail(reason)
                        self._cancel(call)
                case Status():
                    self.status, self._heard_s = message, self._loop.time()
                    self._post(Alive(self.versions))
                case Serving(served, accuracies, canary):
                    self.served = self.served.by_model(served, accuracies, canary)
                case Drain():
                    self.is_draining = True
        if self.is_draining and not self._calls:
            self._post(Drained())

    def _release(self, slot: int) -> _Call:
        self._free.append(slot)
        call = self._calls.pop(slot)
        self.inside_of[call.token] -= 1
        return call

    def _end(self) -> None:
        """Fail all requests: the router is gone, so no more answers will come."""
        self.is_draining = True
        self._loop.remove_reader(self._port.fileno())
        for call in self._calls.values():
            call.fail(ROUTER_GONE)
        self._on_end()


# ---------------------------------------------------------------------------------------------------------------- slots


def slots_of(arena: Arena, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return (slots, values of an image), the arena's slots."""
    image = prod(shape)
    count = arena.size_bytes // (4 * image)
    return np.frombuffer(arena.buffer, np.float32, count * image).reshape(count, image)


class SlotImages:
    """See `hw.router.transfers.RequestImages`: each request's image is in its slot.

    Attributes:
        slot_of: of each request in flight.
    """

    def __init__(self, slots: NDArray[np.float32], shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.slot_of: dict[int, int] = {}
        self._slots = slots

    def write(self, requests: tuple[int, ...], target: NDArray[np.float32], channels_last: bool) -> None:
        """See `hw.router.transfers.RequestImages`."""
        slots = [self.slot_of.get(request, 0) for request in requests]  # without a slot, its answer is unwanted
        images = self._slots[slots].reshape(-1, *self.shape)
        if channels_last and images.ndim == 4:
            images = images.transpose(0, 2, 3, 1)
        target.reshape(images.shape)[...] = images
