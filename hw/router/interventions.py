"""Interventions in a run: rolling updates of weights, draining, and planned faults.

Rolling updates: each server in turn gets a second worker, with the new weights, next to the one that serves. When all
second workers are ready, no request begins until those in flight have ended. Then every second worker takes its server
over. So no request is served by two versions, and none is lost: requests that arrive meanwhile wait. An update of some
servers alone begins a canary: from then on the router's core keeps a request to servers of one version
(`policies.vocabulary.ModelChanged`). An update of the others promotes it, one of the same servers takes it back.

Draining: the router's core decides on the destination of micro-batches (`policies.vocabulary.ServerDraining`). Removing
an
empty server does no harm: its worker's death counts as planned, and the next worker starts when the server is returned,
or is needed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from msgspec import structs

from hw.clock import NEVER_NS, Host
from hw.router.server_port import START_LIMIT_NS, RemoteServer
from hw.router.worker_handles import WorkerHandle
from hw.transport.messages import Done, Prepared, Ready, Refused, Warm
from kit.errors import WorkError, in_a_line
from policies.faults import DRAINED, PLANNED, Crash, Fault, Hang, Outage, Poison, Slowness, Squeeze
from policies.interfaces import RoutingPolicy
from policies.router_core import RouterCore
from policies.run_records import Downtime
from policies.vocabulary import NS_PER_S, GoalSet, ModelChanged, RouterEvent, ServerDraining

Start = Callable[[], WorkerHandle]


@dataclass(frozen=True, slots=True)
class NewModel:
    """The next model, of all servers or of some.

    Attributes:
        starts: by server, starts a worker with it, without waiting for it.
        changed: which versions serve from then on.
        took_over: called then; each answer that comes later is of these.
        failed: called with the reason if it can't serve; the previous models then stay.
        policy: decides from then on; None: the present one.
        canary: decides for the canary's requests; None if there is none.
    """

    starts: Mapping[int, Start]
    changed: ModelChanged
    took_over: Callable[[], object]
    failed: Callable[[str], object]
    policy: RoutingPolicy | None = None
    canary: RoutingPolicy | None = None


class _Successor:
    """A server's second worker, until it can serve."""

    def __init__(self, server: RemoteServer, worker: WorkerHandle, host: Host) -> None:
        self.server = server
        self.worker = worker
        self.is_ready = False
        self._host = host
        self._until_ns = host.clock_ns() + START_LIMIT_NS

    def look(self) -> None:
        """Process its messages, and send the next request; raises `WorkError` if it will never be ready."""
        for message in self.worker.hear():
            match message:
                case Ready():
                    self.worker.ready = message
                    self.worker.send(Warm(self.worker.next_number(), self.server.slot.warm_batches))
                case Done():
                    self.worker.is_warm = True
                    self.worker.send(self.server.preparation(self.worker.next_number()))
                case Prepared():
                    self.is_ready = True
                case Refused(reason, detail):
                    raise WorkError(f"{self.server.spec.name}: {reason}: {in_a_line(detail)}")
        if not self.is_ready and self._host.clock_ns() > self._until_ns:
            raise WorkError(f"{self.server.spec.name}: not ready within {START_LIMIT_NS // NS_PER_S} s")


class Rolling:
    """The update in progress: at most one new model at a time.

    Args:
        servers: by index.
        host: the router's.
        say: takes a line for people.
    """

    def __init__(self, servers: Sequence[RemoteServer], host: Host, say: Callable[[str], None]) -> None:
        self._servers = servers
        self._host = host
        self._say = say
        self._order: NewModel | None = None
        self._successors: list[_Successor] = []

    @property
    def holds(self) -> bool:
        """Whether all second workers are ready, so that no request may begin."""
        order = self._order
        return order is not None and len(self._successors) == len(order.starts) and self._successors[-1].is_ready

    @property
    def replaced(self) -> list[RemoteServer]:
        """The servers that get a new worker, in turn."""
        return [] if self._order is None else [self._servers[index] for index in self._order.starts]

    def begin(self, order: NewModel) -> None:
        """Begin an update, which takes effect as soon as possible."""
        assert self._order is None, "one after another"
        self._order = order
        if away := [server.spec.name for server in self.replaced if server.is_away]:
            self.give_up(f"{away[0]} was drained and has no worker now; return it first")

    def look(self) -> None:
        """Start the next worker, when the previous one is ready."""
        if self._order is None or self.holds:
            return
        try:
            if self._successors:
                self._successors[-1].look()
            if not self._successors or (self._successors[-1].is_ready and not self.holds):
                server = self.replaced[len(self._successors)]
                worker = self._order.starts[server.index]()
                self._successors.append(_Successor(server, worker, self._host))
                self._say(f"{server.spec.name}: a second worker starts, with the new model")
        except WorkError as error:
            self.give_up(str(error))

    def give_up(self, reason: str) -> None:
        """Abandon the update and end its workers; the previous model stays."""
        order, self._order = self._order, None
        for successor in self._successors:
            successor.worker.kill()
        self._successors.clear()
        if order is not None:
            order.failed(reason)

    def switch(self) -> NewModel:
        """Let every second worker take its server over; nothing is in flight."""
        assert self._order is not None, "it holds"
        order, self._order = self._order, None
        for successor in self._successors:
            successor.server.take_over(order.starts[successor.server.index], successor.worker)
        self._successors.clear()
        return order


# ------------------------------------------------------------------------------------------------------------- draining


DrainRequest = Callable[[], frozenset[int]]
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

    drained: DrainRequest = nobody
    orders: Callable[[], Iterable[Order]] = tuple


class State(Enum):
    """State of a server to be drained: it is empty; it is not yet; or it gets micro-batches all the same."""

    EMPTY = auto()
    BUSY = auto()
    NEEDED = auto()


class Draining:
    """The request for draining as it changes during one run.

    Args:
        operator request: polled by `look`.
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
        drain_request: DrainRequest,
        servers: Sequence[RemoteServer],
        router: RouterCore,
        tell_router: Callable[[RouterEvent, int], None],
        now_ns: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self.times: list[Downtime] = []
        self._drain_request = drain_request
        self._servers = servers
        self._router = router
        self._tell_router = tell_router
        self._now_ns = now_ns
        self._say = say
        self._requested: frozenset[int] = frozenset()
        self._states: dict[int, State] = {}  # of those that are to be drained, at the last `look`

    def look(self) -> None:
        """Pass on changes of the request, and report servers that are now empty, or needed."""
        requested = self._drain_request().intersection(range(len(self._servers)))
        for index in sorted(requested ^ self._requested):
            self._change(index, index in requested)
        self._requested = requested
        for index in sorted(requested):
            self._tell_state(index)

    def may_go(self, server: int) -> bool:
        """Return whether it is to be drained and idle: its removal now loses nothing, and no request needs it."""
        return server in self._requested and self._state_of(server) is State.EMPTY

    def _change(self, index: int, is_requested: bool) -> None:
        now_ns, server = self._now_ns(), self._servers[index]
        self._tell_router(ServerDraining(index, is_requested), now_ns)
        self._states.pop(index, None)
        if is_requested:
            self.times.append(Downtime(index, now_ns, None, DRAINED))
            self._tell(index, f"is drained since {now_ns / NS_PER_S:.2f} s: it gets no new micro-batch")
            return
        latest = max(position for position, time in enumerate(self.times) if time.server == index)
        self.times[latest] = structs.replace(self.times[latest], up_ns=now_ns)
        effect = "it gets micro-batches again" if server.is_up else "it gets micro-batches again as soon as it serves"
        self._tell(index, f"was returned at {now_ns / NS_PER_S:.2f} s: {effect}")
        server.is_away = False

    def _tell_state(self, index: int) -> None:
        server, state = self._servers[index], self._state_of(index)
        before, self._states[index] = self._states.get(index), state
        if state is State.NEEDED:
            server.is_away = False
        if state == before or state is State.BUSY:
            return
        if state is State.NEEDED:
            effect = "it serves on" if server.is_up else "a new worker starts"
            self._tell(index, f"is needed, for no other server that is up can take its micro-batches: {effect}")
        else:
            effect = "it may be taken away" if server.has_worker else "and it is not there"
            self._tell(index, f"is empty at {self._now_ns() / NS_PER_S:.2f} s: {effect}")

    def _state_of(self, index: int) -> State:
        if self._router.is_needed(index):
            return State.NEEDED
        return State.EMPTY if self._router.is_empty(index) else State.BUSY

    def _tell(self, index: int, text: str) -> None:
        self._say(f"{self._servers[index].spec.name}: {text}")


# --------------------------------------------------------------------------------------------------------------- faults


class FaultPlan:
    """The faults of a run.

    Args:
        take_down: (server, reason) ends a server's incarnation in an orderly way.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        servers: Sequence[RemoteServer],
        take_down: Callable[[RemoteServer, str], None],
    ) -> None:
        self._servers = servers
        self._take_down = take_down
        self._steps: list[tuple[int, int, Callable[[], None]]] = []  # (at_ns, order, what)
        for fault in faults:
            self._plan(fault)
        self._steps.sort(key=lambda step: step[:2])

    @property
    def next_ns(self) -> int:
        """The time at which the next fault is due."""
        return self._steps[0][0] if self._steps else NEVER_NS

    def ring(self, now_ns: int) -> None:
        """Inject the faults that are due."""
        while self._steps and self._steps[0][0] <= now_ns:
            self._steps.pop(0)[2]()

    def _plan(self, fault: Fault) -> None:
        if isinstance(fault, Poison):
            return  # the fault is in the images
        server = self._servers[fault.server]
        match fault:
            case Outage(_, start_ns, end_ns):
                self._at(start_ns, lambda: self._begin_outage(server, end_ns))
            case Crash(_, at_ns):
                self._at(at_ns, lambda: self._signal(server, signal.SIGKILL))
            case Hang(_, at_ns):
                self._at(at_ns, lambda: self._signal(server, signal.SIGSTOP))
            case Slowness(_, start_ns, end_ns, factor):
                self._at(start_ns, lambda: server.straggle(factor))
                self._at(end_ns, lambda: server.straggle(1.0), ends=True)
            case Squeeze(_, start_ns, end_ns, batch):
                self._at(start_ns, lambda: server.impair(replace(server.impairment, room_images=batch)))
                self._at(end_ns, lambda: server.impair(replace(server.impairment, room_images=None)), ends=True)

    def _at(self, at_ns: int, action: Callable[[], None], ends: bool = False) -> None:
        """Add a step; at one instant, ends precede beginnings."""
        self._steps.append((at_ns, 0 if ends else 1, action))

    def _begin_outage(self, server: RemoteServer, end_ns: int | None) -> None:
        server.stay_down(NEVER_NS if end_ns is None else end_ns)
        if server.is_up:
            self._take_down(server, PLANNED)

    def _signal(self, server: RemoteServer, number: signal.Signals) -> None:
        """Signal the worker, if one serves; the consequence is noticed as in any accident."""
        if server.is_up:
            server.is_doomed = True
            server.slot.worker.send_signal(number)
