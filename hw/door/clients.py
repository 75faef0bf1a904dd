"""Requests from clients, as the router's loop takes them: the ingress's port and its slots of images."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from hw.door.ingress import Ingress
from hw.door.slots import SlotImages
from hw.door.words import Alive, Answered, Cancel, Drain, Drained, Failed, Submit
from hw.host.clock import NEVER_NS, RunClock
from hw.router.transfers import Images
from hw.transport.port import PortClosedError
from policies.vocabulary import RequestArrived, RequestCompleted, RequestFailed

UNKNOWN = -1  # the label of an image whose label is not given


class Clients:
    """See `hw.router.traffic.Traffic`.

    Args:
        ingress: the process with their connections.
        images: their slots.
        wants_stop: whether to accept no more requests, and to end when all accepted ones are answered.
        clock: the run's.
    """

    def __init__(self, ingress: Ingress, images: SlotImages, wants_stop: Callable[[], bool], clock: RunClock) -> None:
        self.images: Images = images
        self.next_ns = self.horizon_ns = NEVER_NS
        self.has_ended = False
        self.descriptors: Sequence[int] = (ingress.port.fileno(),)
        self._request_in: dict[int, int] = {}  # by slot
        self._came_ns: dict[int, int] = {}  # likewise
        self._cancelled: list[int] = []
        self._slot_of = images.slot_of
        self._ingress = ingress
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
        """See `Traffic`: the right labels are unknown; a request's answer is kept until it ends."""
        size = len(scores) // len(requests)
        for place, (request, label) in enumerate(zip(requests, labels, strict=False)):  # none, of an emulated device
            if request in self._slot_of:
                self._said[request] = label, scores[place * size : (place + 1) * size]
        return ()

    def end(self, command: RequestCompleted | RequestFailed) -> None:
        """See `Traffic`."""
        slot = self._slot_of.pop(command.request, None)
        if slot is None:  # its ingress is gone
            return
        del self._request_in[slot]
        came_ns = self._came_ns.pop(slot)
        label, scores = self._said.pop(command.request, (UNKNOWN, b""))
        if isinstance(command, RequestFailed):
            self._ingress.port.post(Failed(slot, command.reason))
        else:
            self._ingress.port.post(Answered(slot, label, command.widths, scores, self._clock.now_ns() - came_ns))

    def hear(self) -> None:
        """See `Traffic`; raises `WorkError` if the ingress dies repeatedly."""
        try:
            words = self._ingress.port.receive()
        except PortClosedError:
            self._begin_anew()
            return
        for word in words:
            match word:
                case Submit(slots, received_ns, deadline_ns, service_class):
                    came_ns = self.next_ns = self._clock.of(received_ns)
                    until_ns = self._clock.of(deadline_ns)
                    for slot in slots:
                        self._slot_of[self._requests], self._request_in[slot] = slot, self._requests
                        self._came_ns[slot] = came_ns
                        self._came.append((RequestArrived(self._requests, until_ns, service_class), came_ns))
                        self._requests += 1
                case Cancel(slots):
                    self._cancelled += [self._request_in[slot] for slot in slots if slot in self._request_in]
                case Alive():
                    self._ingress.note_alive()
                case Drained():
                    self.has_ended = True

    def take_cancelled(self) -> tuple[int, ...]:
        """See `Traffic`."""
        cancelled, self._cancelled = tuple(self._cancelled), []
        return cancelled

    def flush(self) -> bool:
        """See `Traffic`; raises `WorkError` if the ingress dies repeatedly."""
        if self.horizon_ns == NEVER_NS and self._clock.runs and self._wants_stop():
            self.horizon_ns = self._clock.now_ns()
            self._ingress.port.post(Drain())
        try:
            return self._ingress.port.flush()
        except PortClosedError:
            self._begin_anew()
            return True

    def _begin_anew(self) -> None:
        """Drop the requests of an ingress that has exited; the next one reuses their slots."""
        self._ingress.start_again()
        self.descriptors = (self._ingress.port.fileno(),)
        self._cancelled += self._slot_of
        for kept in (self._slot_of, self._request_in, self._came_ns, self._said):
            kept.clear()
        if self.horizon_ns != NEVER_NS:
            self._ingress.port.post(Drain())
