"""Where several routers' images come from, and where all that becomes of them is known: it stands for the clients.

It knows of each image which router has it, and whether it has ended. So when a router dies, what it had and had not
said to be done is sent again to the others, and counts once, whatever its servers had done of it. A router that is
silent for as long as a hung server may be, beside the time between two words, is killed, so that none comes back as a
former one.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from hw.host.failure_detector import FailureDetector
from hw.router.share import (
    START_S,
    Begin,
    EndedRequest,
    FromRouter,
    HandedOver,
    Left,
    Over,
    Ready,
    Take,
    Told,
    ToRouter,
    Waiting,
    decode_from_router,
    encode,
)
from kit.errors import WorkError
from policies.division import Division, Territory
from policies.faults import Supervision
from policies.vocabulary import NS_PER_S


@dataclass(slots=True)
class Fates:
    """What became of a run's images, and of its routers.

    Attributes:
        ended: by image, how it ended, and at which router.
        moved: those that another router took than the one they were dealt to; whether that one was dead.
        died: when each dead router was seen to be, in ns of the run.
    """

    ended: dict[int, tuple[int, EndedRequest]] = field(default_factory=dict)
    moved: dict[int, bool] = field(default_factory=dict)
    died: dict[int, int] = field(default_factory=dict)


class FrontEnd:
    """One run's.

    Args:
        arrivals_ns: of each image, ascending.
        pipes: to each router.
        kill: ends a router's process by force.
        supervision: for how long one may be silent.
        clock_ns: this host's.
        say: takes a line for people.
    """

    def __init__(
        self,
        arrivals_ns: Sequence[int],
        division: Division,
        territory: Territory,
        pipes: Sequence[Connection],
        kill: Callable[[int], None],
        supervision: Supervision,
        clock_ns: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self.fates = Fates()
        self.territory = territory
        self._arrivals_ns = arrivals_ns
        self._pipes = {place: pipe for place, pipe in enumerate(pipes) if place in territory.alive}
        self._kill = kill
        self._silence_ns = supervision.hang_ns + division.told_every_ns
        self._detector = FailureDetector(supervision, 0)  # over this process itself
        self._look_ns = 0
        self._clock_ns = clock_ns
        self._say = say
        self._deaths = sorted((at_ns, router) for router, at_ns in division.deaths)
        self._holder = [territory.router_of(request) for request in range(len(arrivals_ns))]
        self._waiting = [0.0] * division.count
        self._heard_ns: dict[int, int] = {}
        self._unsent: dict[int, deque[bytes]] = {router: deque() for router in self._pipes}
        self._is_over = False
        self._origin_ns = 0

    def plan_of(self, router: int) -> tuple[int, ...]:
        """The images that are dealt to it."""
        return tuple(request for request, holder in enumerate(self._holder) if holder == router)

    def carry_out(self) -> Fates:
        """From the moment at which routers get ready until all have left; raises `WorkError` where none can go on."""
        self._begin()
        while self._pipes:
            now_ns = self._now_ns()
            while self._deaths and self._deaths[0][0] <= now_ns:
                if (router := self._deaths.pop(0)[1]) in self._pipes:
                    self._kill(router)
            if now_ns >= self._look_ns:
                self._look_after(now_ns)
            next_ns = min(self._look_ns, self._deaths[0][0]) if self._deaths else self._look_ns
            self._listen(max(0, next_ns - now_ns) / NS_PER_S)
            for router in self._pipes:
                self._flush(router)
        return self.fates

    def _look_after(self, now_ns: int) -> None:
        """Notice who hangs; not when this process was away itself."""
        if self._detector.was_away(self._look_ns, now_ns):
            self._heard_ns = dict.fromkeys(self._heard_ns, now_ns)
        self._look_ns = now_ns + self._detector.period_ns
        for router in self._pipes:
            if (silent_ns := now_ns - self._heard_ns[router]) > self._silence_ns:
                self._say(f"router {router}: silent for {silent_ns / NS_PER_S:.1f} s: it is killed")
                self._kill(router)

    def _now_ns(self) -> int:
        return self._clock_ns() - self._origin_ns

    def _begin(self) -> None:
        """When all are ready they begin at one moment."""
        waited = {pipe: router for router, pipe in self._pipes.items()}
        while waited:
            for pipe in wait([*waited]):
                assert isinstance(pipe, Connection), "as given"
                router = waited.pop(pipe)
                try:
                    word = decode_from_router(pipe.recv_bytes())
                except (EOFError, OSError):
                    raise WorkError(f"router {router} died before the run; what it said stands above") from None
                assert isinstance(word, Ready), "the first word"
        self._origin_ns = self._clock_ns() + round(START_S * NS_PER_S)
        self._heard_ns = dict.fromkeys(self._pipes, 0)
        for router in self._pipes:
            self._send(router, Begin(self._origin_ns))

    def _listen(self, wait_s: float) -> None:
        routers = {pipe: router for router, pipe in self._pipes.items()}
        for pipe in wait([*routers], wait_s):
            assert isinstance(pipe, Connection), "as given"
            router = routers[pipe]
            try:
                word = decode_from_router(pipe.recv_bytes())
            except (EOFError, OSError):
                self._bury(router)
                continue
            self._heard_ns[router] = self._now_ns()
            self._hear(router, word)

    def _hear(self, router: int, word: FromRouter) -> None:
        match word:
            case Told(waiting, ended):
                self._waiting[router] = waiting
                for each in ended:
                    self.fates.ended.setdefault(each.request, (router, each))
                if self._is_over:
                    return
                self._is_over = len(self.fates.ended) == len(self._arrivals_ns)
                if self._is_over:
                    for place in self._pipes:
                        self._send(place, Over())
                else:
                    self._send(router, Waiting(tuple(self._waiting)))
            case HandedOver(request, receiver):
                self.fates.moved[request] = False
                is_there = receiver in self._pipes
                self._give(request, receiver if is_there else self.territory.router_of(request))
            case Left():
                del self._pipes[router]

    def _give(self, request: int, router: int) -> None:
        self._holder[request] = router
        if router in self._pipes:
            self._send(router, Take((request,)))

    def _bury(self, router: int) -> None:
        """It has died, or is as good as dead: others get its servers, and what it had."""
        self._kill(router)
        self._pipes.pop(router).close()
        now_ns = self._now_ns()
        self.fates.died[router] = now_ns
        if self.territory.alive == [router]:
            raise WorkError("every router is dead; nobody is left to serve")
        self.territory.bury(router)
        left = [
            request
            for request, holder in enumerate(self._holder)
            if holder == router and request not in self.fates.ended
        ]
        given: dict[int, list[int]] = {place: [] for place in self.territory.alive}
        for request in left:
            self._holder[request] = place = self.territory.router_of(request)
            given[place].append(request)
            if self._arrivals_ns[request] <= now_ns:
                self.fates.moved[request] = True
        begun = sum(self._arrivals_ns[request] <= now_ns for request in left)
        self._say(f"router {router}: dead at {now_ns / NS_PER_S:.2f} s; others get its servers and {begun} images")
        for place, requests in given.items():
            if place in self._pipes:
                self._send(place, Take(tuple(requests), router))

    def _send(self, router: int, word: ToRouter) -> None:
        self._unsent[router].append(encode(word))
        self._flush(router)

    def _flush(self, router: int) -> None:
        """As much as there is room for: one that hangs does not keep this process from seeing it.

        Who is dead by now is seen to be so when it is listened to.
        """
        words, pipe, room = self._unsent[router], self._pipes[router], select.poll()
        room.register(pipe, select.POLLOUT)
        with suppress(OSError):
            while words and room.poll(0):
                pipe.send_bytes(words.popleft())
