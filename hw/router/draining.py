"""Draining on the operator's request during a run: notifies the router's core, and reports which servers are empty.

The core decides on the destination of blocks (`policies.vocabulary.ServerDraining`). Removing an empty server does no
harm: its agent's death counts as planned, and the next one starts when the server is returned, or is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from msgspec import structs

from hw.router.rolling import NewModel
from hw.router.server import RemoteServer
from policies.faults import DRAINED
from policies.interfaces import RoutingPolicy
from policies.records import Downtime
from policies.router import RouterCore
from policies.vocabulary import NS_PER_S, GoalSet, RouterEvent, ServerDraining

Wish = Callable[[], frozenset[int]]
"""Returns the indices of the servers that the operator wants drained now."""


def nobody() -> frozenset[int]:
    """Return that nothing is to be drained."""
    return frozenset()


Order = GoalSet | RoutingPolicy | NewModel
"""An order from now on: targets, a policy or a model."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator's interface to a run in progress; polled now and then.

    Attributes:
        drained: returns the servers to drain.
        orders: returns the changes since the last call.
    """

    drained: Wish = nobody
    orders: Callable[[], Iterable[Order]] = tuple


class State(Enum):
    """State of a server to be drained: it is empty; it is not yet; or it gets blocks all the same."""

    EMPTY = auto()
    BUSY = auto()
    NEEDED = auto()


class Draining:
    """The request for draining as it changes during one run.

    Args:
        wish: polled by `look`.
        servers: by index.
        router: the run's core.
        tell_router: takes an event and its time.
        now_ns: the run's clock.
        say: takes a line for people.

    Attributes:
        times: intervals during which a server was to be drained, as downtimes.
    """

    def __init__(
        self,
        wish: Wish,
        servers: Sequence[RemoteServer],
        router: RouterCore,
        tell_router: Callable[[RouterEvent, int], None],
        now_ns: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self.times: list[Downtime] = []
        self._wish = wish
        self._servers = servers
        self._router = router
        self._tell_router = tell_router
        self._now_ns = now_ns
        self._say = say
        self._wanted: frozenset[int] = frozenset()
        self._told: dict[int, State] = {}  # of those that are to be drained, at the last `look`

    def look(self) -> None:
        """Pass on changes of the request, and report servers that are now empty, or needed."""
        wanted = self._wish().intersection(range(len(self._servers)))
        for index in sorted(wanted ^ self._wanted):
            self._change(index, index in wanted)
        self._wanted = wanted
        for index in sorted(wanted):
            self._tell_state(index)

    def may_go(self, server: int) -> bool:
        """Return whether it is to be drained and idle: its removal now loses nothing, and no request needs it."""
        return server in self._wanted and self._state_of(server) is State.EMPTY

    def _change(self, index: int, is_wanted: bool) -> None:
        now_ns, server = self._now_ns(), self._servers[index]
        self._tell_router(ServerDraining(index, is_wanted), now_ns)
        self._told.pop(index, None)
        if is_wanted:
            self.times.append(Downtime(index, now_ns, None, DRAINED))
            self._tell(index, f"is drained since {now_ns / NS_PER_S:.2f} s: it gets no new block")
            return
        place = max(place for place, time in enumerate(self.times) if time.server == index)
        self.times[place] = structs.replace(self.times[place], up_ns=now_ns)
        what = "it gets blocks again" if server.is_up else "it gets blocks again as soon as it serves"
        self._tell(index, f"was returned at {now_ns / NS_PER_S:.2f} s: {what}")
        server.is_away = False

    def _tell_state(self, index: int) -> None:
        server, state = self._servers[index], self._state_of(index)
        before, self._told[index] = self._told.get(index), state
        if state is State.NEEDED:
            server.is_away = False
        if state == before or state is State.BUSY:
            return
        if state is State.NEEDED:
            what = "it serves on" if server.is_up else "a new worker starts"
            self._tell(index, f"is needed, for no other server that is up can take its blocks: {what}")
        else:
            what = "it may be taken away" if server.has_agent else "and it is not there"
            self._tell(index, f"is empty at {self._now_ns() / NS_PER_S:.2f} s: {what}")

    def _state_of(self, index: int) -> State:
        if self._router.is_needed(index):
            return State.NEEDED
        return State.EMPTY if self._router.is_empty(index) else State.BUSY

    def _tell(self, index: int, text: str) -> None:
        self._say(f"{self._servers[index].spec.name}: {text}")
