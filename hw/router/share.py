"""What one of several routers has of a run, in a process of its own: what is dealt to it, and words with the front end.

The front end (`hw.router.front_end`) stands for the clients: it knows of every image who has it, and whether it has
ended. A router tells it what has ended and how many wait, some times a second, and hands to it what is another's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from hw.host.clock import NEVER_NS, RunClock
from hw.host.waiting import Host
from hw.router.draining import Adopted, Order
from hw.router.run_spec import HardwareRun
from hw.router.traffic import PlannedTraffic
from hw.transport.messages import Message
from policies.division import Division, Neighbours, Territory
from policies.router import RouterCore
from policies.vocabulary import RequestArrived, RequestCompleted, RequestFailed

START_S: Final = 0.05  # from the word that all may begin until they do


class EndedRequest(msgspec.Struct, frozen=True, array_like=True):
    """An image that a router is done with; no reason: it is completed."""

    request: int
    ended_ns: int
    widths: tuple[float, ...]
    retries: int
    correct: bool
    reason: str = ""


class Ready(Message, frozen=True):
    """Its servers have loaded what they should."""


class Told(Message, frozen=True):
    """How many images wait (`RouterCore.burden`), and what has ended since the last word."""

    waiting: float
    ended: tuple[EndedRequest, ...]


class HandedOver(Message, frozen=True):
    """An image that another router should have."""

    request: int
    receiver: int


class Left(Message, frozen=True):
    """Its part of the run is over: it says no more, and makes its record."""


class Begin(Message, frozen=True):
    """The run begins when the host's clock shows this."""

    clock_ns: int


class Waiting(Message, frozen=True):
    """What each router has said last."""

    images: tuple[float, ...]


class Take(Message, frozen=True):
    """Images of another router; `dead`: that router is, and of its servers some are this one's now."""

    requests: tuple[int, ...]
    dead: int | None = None


class Over(Message, frozen=True):
    """Every image has ended, at some router."""


FromRouter = Ready | Told | HandedOver | Left
ToRouter = Begin | Waiting | Take | Over
encode: Final = msgspec.msgpack.Encoder().encode
decode_to_router: Final = msgspec.msgpack.Decoder(ToRouter).decode
decode_from_router: Final = msgspec.msgpack.Decoder(FromRouter).decode


class Share:
    """Of one run.

    Args:
        place: the router's number.
        plan: the images that are dealt to it, ascending.
        pipe: to the front end.
        territory: its own copy; all deal alike.

    Attributes:
        has_left: whether its part of the run is over.

    Where the front end is gone, whatever speaks with it raises `EOFError` or `ConnectionError`.
    """

    def __init__(
        self, place: int, plan: Sequence[int], pipe: Connection, division: Division, territory: Territory
    ) -> None:
        self.place = place
        self.plan = plan
        self.pipe = pipe
        self.territory = territory
        self.neighbours = Neighbours(division, territory, place)
        self.told_every_ns = division.told_every_ns
        self.has_left = False
        self._orders: list[Order] = []

    def begin(self, host: Host) -> int:
        """Wait until all routers are ready; returns when they begin."""
        self.pipe.send_bytes(encode(Ready()))
        while not isinstance(word := decode_to_router(self.pipe.recv_bytes()), Begin):
            pass  # of the run before: it came when this router had left
        host.wait((), max(0, word.clock_ns - host.clock_ns()) / 1e9)
        return word.clock_ns

    def leave(self) -> None:
        """From here on its silence is no sign that it hangs."""
        self.pipe.send_bytes(encode(Left()))
        self.has_left = True

    def traffic(self, run: HardwareRun, router: RouterCore, clock: RunClock) -> DealtTraffic:
        """Where its requests come from."""
        return DealtTraffic(run, router, clock, self)

    def orders(self) -> Iterable[Order]:
        """What it has to take over, since this was last asked."""
        orders, self._orders = self._orders, []
        return orders

    def adopt(self, dead: int) -> None:
        """Of a dead router's servers some are its own now."""
        before = [*self.territory.owner]
        self.territory.bury(dead)
        owners = enumerate(zip(before, self.territory.owner, strict=True))
        self._orders.append(
            Adopted(tuple(server for server, (old, new) in owners if old == dead and new == self.place))
        )


class DealtTraffic(PlannedTraffic):
    """The images of a plan that are a router's own, and those that it is given by others."""

    def __init__(self, run: HardwareRun, router: RouterCore, clock: RunClock, share: Share) -> None:
        super().__init__(run, router, clock)
        self.has_ended = False
        self._share = share
        self._router = router
        self._clock = clock
        self._mine = deque(share.plan)
        self._given: deque[tuple[int, int]] = deque()  # with when each came here
        self._ended: list[EndedRequest] = []
        self._next_word_ns = 0
        self._settle_next()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """See `Traffic`; before the run's begin its words are of the run before, and at the end of no interest."""
        return (self._share.pipe.fileno(),) if self._clock.runs and not self._share.has_left else ()

    def _settle_next(self) -> None:
        """Who was given is due since he came."""
        if self._given:
            self.next_ns = self._given[0][1]
        else:
            self.next_ns = self.arrived_ns(self._mine[0]) if self._mine else NEVER_NS

    def take(self, now_ns: int) -> tuple[RequestArrived, int] | None:
        """See `Traffic`: one that was given comes when it is here; one of the plan at its own time, or not at all."""
        if self._given:
            request, came_ns = self._given.popleft()
        else:
            request = self._mine.popleft()
            came_ns = self.arrived_ns(request)
            self.lags_ns.append(now_ns - came_ns)
            if (receiver := self._share.neighbours.receiver(self._router.burden)) is not None:
                self._share.pipe.send_bytes(encode(HandedOver(request, receiver)))
                self._settle_next()
                return None
        self._settle_next()
        return self.arrival(request), came_ns

    def end(self, command: RequestCompleted | RequestFailed) -> None:
        """See `Traffic`: with the next word the front end knows."""
        request, ended_ns, retries = command.request, self._clock.now_ns(), command.retries
        if isinstance(command, RequestCompleted):
            self._ended.append(EndedRequest(request, ended_ns, command.widths, retries, command.correct))
        else:
            self._ended.append(EndedRequest(request, ended_ns, (), retries, False, command.reason))

    def hear(self) -> None:
        """See `Traffic`: words of the front end."""
        share = self._share
        while share.pipe.poll():
            match decode_to_router(share.pipe.recv_bytes()):
                case Waiting(images):
                    for router, waiting in enumerate(images):
                        share.neighbours.hear(router, waiting)
                case Take(requests, dead):
                    if dead is not None:
                        share.adopt(dead)
                    self._give(requests)
                case Over():
                    self.has_ended = True
        self._settle_next()

    def _give(self, requests: Sequence[int]) -> None:
        """Those that had arrived come at once, the others at their time."""
        now_ns = self._clock.now_ns()
        self._given.extend((request, now_ns) for request in requests if self.arrived_ns(request) <= now_ns)
        later = [request for request in requests if self.arrived_ns(request) > now_ns]
        self._mine = deque(sorted([*self._mine, *later]))

    def flush(self) -> bool:
        """See `Traffic`: a word now and then."""
        now_ns = self._clock.now_ns()
        if now_ns >= self._next_word_ns and self._clock.runs and not self._share.has_left:
            self._next_word_ns = now_ns + self._share.told_every_ns
            self.say()
        return True

    def say(self) -> None:
        """A word now."""
        self._share.pipe.send_bytes(encode(Told(self._router.burden, tuple(self._ended))))
        self._ended.clear()
