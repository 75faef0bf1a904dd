"""Requests that come from clients, as the router's loop takes them: the ingress's port and its slots of images."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from hw.door.slots import SlotImages
from hw.door.words import Answered, Cancel, Drain, Drained, Failed, RouterPort, Submit
from hw.host.clock import NEVER_NS, RunClock
from hw.router.transfers import Images
from hw.transport.port import PortClosedError
from kit.errors import WorkError
from policies.vocabulary import RequestArrived, RequestCompleted, RequestFailed

UNKNOWN = -1  # a label that nobody says


@contextlib.contextmanager
def _naming_the_ingress() -> Iterator[None]:
    try:
        yield
    except PortClosedError:
        raise WorkError("the ingress is gone, and all clients' connections with it; start the command anew") from None


class Clients:
    """See `hw.router.traffic.Traffic`.

    Args:
        port: to the ingress.
        images: their slots.
        wants_stop: whether to accept no more, and to end when all that was accepted is answered.
        clock: the run's.
    """

    def __init__(self, port: RouterPort, images: SlotImages, wants_stop: Callable[[], bool], clock: RunClock) -> None:
        self.images: Images = images
        self.next_ns = self.horizon_ns = NEVER_NS
        self.has_ended = False
        self.descriptors: Sequence[int] = (port.fileno(),)
        self._request_in: dict[int, int] = {}  # by slot
        self._cancelled: list[int] = []
        self._slot_of = images.slot_of
        self._port = port
        self._clock = clock
        self._wants_stop = wants_stop
        self._came: deque[tuple[RequestArrived, int]] = deque()
        self._said: dict[int, tuple[int, bytes]] = {}
        self._requests = 0

    def take(self, now_ns: int) -> tuple[RequestArrived, int]:
        """See `Traffic`."""
        came = self._came.popleft()
        if not self._came:
            self.next_ns = NEVER_NS
        return came

    def judge(
        self, requests: tuple[int, ...], width: float, labels: tuple[int, ...], scores: bytes
    ) -> tuple[bool, ...]:
        """See `Traffic`: what is right nobody knows; what was said is kept until its request ends."""
        size = len(scores) // len(requests)
        for place, (request, label) in enumerate(zip(requests, labels, strict=False)):  # none, of an emulated device
            if request in self._slot_of:
                self._said[request] = label, scores[place * size : (place + 1) * size]
        return ()

    def end(self, command: RequestCompleted | RequestFailed) -> None:
        """See `Traffic`."""
        slot = self._slot_of.pop(command.request)
        del self._request_in[slot]
        label, scores = self._said.pop(command.request, (UNKNOWN, b""))
        if isinstance(command, RequestFailed):
            self._port.post(Failed(slot, command.reason))
        else:
            self._port.post(Answered(slot, label, command.widths, scores))

    def hear(self) -> None:
        """See `Traffic`; raises `WorkError` where the ingress is gone."""
        with _naming_the_ingress():
            words = self._port.receive()
        for word in words:
            match word:
                case Submit(slots, received_ns, deadline_ns):
                    came_ns = self.next_ns = self._clock.of(received_ns)
                    for slot in slots:
                        self._slot_of[self._requests], self._request_in[slot] = slot, self._requests
                        self._came.append((RequestArrived(self._requests, self._clock.of(deadline_ns)), came_ns))
                        self._requests += 1
                case Cancel(slots):
                    self._cancelled += [self._request_in[slot] for slot in slots if slot in self._request_in]
                case Drained():
                    self.has_ended = True

    def take_cancelled(self) -> tuple[int, ...]:
        """See `Traffic`."""
        cancelled, self._cancelled = tuple(self._cancelled), []
        return cancelled

    def flush(self) -> bool:
        """See `Traffic`; raises `WorkError` where the ingress is gone."""
        if self.horizon_ns == NEVER_NS and self._clock.runs and self._wants_stop():
            self.horizon_ns = self._clock.now_ns()
            self._port.post(Drain())
        with _naming_the_ingress():
            return self._port.flush()
