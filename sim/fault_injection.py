"""The injection of a run's faults in simulated time, and the restart of failed servers by their supervision.

At one instant ends come before beginnings: a server that is back may fail at once, but never the other way. Of several
ends (or beginnings) at one server that of the fault listed first in the scenario comes first, so a fault's process
reserves both its times before it waits for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

from msgspec.structs import replace

from policies.faults import (
    PLANNED,
    WORKER_DIED,
    WORKER_HUNG,
    Crash,
    Fault,
    Hang,
    Outage,
    Poison,
    RestartPlan,
    Slowness,
    Squeeze,
    Supervision,
)
from policies.run_records import Downtime
from sim.event_queue import EventQueue, Kind, Moment, Process, rank
from sim.simulated_server import SimulatedServer

_ENDS: Final = 0
_BEGINS: Final = 1


def poisoned_requests(faults: Iterable[Fault]) -> frozenset[int]:
    """Return every request whose image is broken."""
    return frozenset().union(*(fault.requests for fault in faults if isinstance(fault, Poison)))


class FaultDriver:
    """A planner of faults on the event queue, which decides when a failed server is up again.

    Args:
        drop_transfers: called at a server's failure, for transfers to it or from it.
    """

    def __init__(
        self,
        servers: Sequence[SimulatedServer],
        event_queue: EventQueue,
        supervision: Supervision,
        drop_transfers: Callable[[int], None],
    ) -> None:
        self._downtimes: list[Downtime] = []
        self._servers = servers
        self._event_queue = event_queue
        self._supervision = supervision
        self._drop_transfers = drop_transfers
        self._plans = [RestartPlan(supervision) for _ in servers]
        self._down: dict[int, int] = {}  # by server that is down, the index in `_downtimes`
        self._out_until_ns: list[float] = [0.0] * len(servers)
        self._ready_at_ns = [0] * len(servers)  # when a crash's new process is ready

    def come_up(self, server: int) -> None:
        """Bring a server into service, unless it is up, in a planned outage, or its new process is not ready.

        Whichever of outage and restart ends last brings it up.
        """
        now_ns = self._event_queue.now_ns
        if self._servers[server].is_up or now_ns < max(self._out_until_ns[server], self._ready_at_ns[server]):
            return
        if server in self._down:
            number = self._down.pop(server)
            self._downtimes[number] = replace(self._downtimes[number], up_ns=now_ns)
        self._plans[server].came_up(now_ns)
        self._servers[server].come_up()

    @property
    def downtimes(self) -> tuple[Downtime, ...]:
        """The downtimes of the run so far, in the order in which servers went down."""
        return tuple(self._downtimes)

    @property
    def is_all_gone(self) -> bool:
        """Whether no server is up and none ever will be."""
        pairs = zip(self._servers, self._out_until_ns, strict=True)
        return all(not server.is_up and until_ns == inf for server, until_ns in pairs)

    def plan(self, fault: Fault) -> None:
        """Inject one fault. A crash or hang of a server that is then down has no effect."""
        self._event_queue.process(self._happen(fault))

    def _happen(self, fault: Fault) -> Process:
        match fault:
            case Outage(server, start_ns, end_ns):
                start = self._until(start_ns, server, _BEGINS)
                end = None if end_ns is None else self._until(end_ns, server, _ENDS)
                yield start
                self._take_out(server, inf if end_ns is None else end_ns)
                if end is not None:
                    yield end
                    self.come_up(server)
            case Slowness(server, start_ns, end_ns, factor):
                start, end = self._until(start_ns, server, _BEGINS), self._until(end_ns, server, _ENDS)
                yield start
                self._servers[server].straggle(factor)
                yield end
                self._servers[server].straggle(1.0)
            case Squeeze(server, start_ns, end_ns, batch):
                start, end = self._until(start_ns, server, _BEGINS), self._until(end_ns, server, _ENDS)
                yield start
                self._servers[server].squeeze(batch)
                yield end
                self._servers[server].squeeze(None)
            case Crash(server, at_ns):
                yield self._until(at_ns, server, _BEGINS)
                yield from self._crash(server, WORKER_DIED)
            case Hang(server, at_ns):
                yield self._until(at_ns, server, _BEGINS)
                yield from self._hang(server)
            case Poison():
                pass  # no event: it shows when the requests' last batch ends

    def _until(self, when_ns: int, server: int, order: int) -> Moment:
        return self._event_queue.until(when_ns, rank(server, Kind.FAULT, order))

    def _take_out(self, server: int, until_ns: float) -> None:
        self._out_until_ns[server] = max(self._out_until_ns[server], until_ns)
        if self._servers[server].is_up:
            self._plans[server].restart_at_ns(self._event_queue.now_ns)  # it counts as a failure; its end is planned
            self._kill(server, PLANNED)

    def _kill(self, server: int, reason: str) -> None:
        self._down[server] = len(self._downtimes)
        self._downtimes.append(Downtime(server, self._event_queue.now_ns, None, reason))
        self._servers[server].go_down(reason)
        self._drop_transfers(server)

    def _crash(self, server: int, reason: str) -> Process:
        """Fail a server now; it is ready again after its back-off and the time to start a process."""
        if not self._servers[server].is_up:
            return
        self._kill(server, reason)
        ready_ns = self._plans[server].restart_at_ns(self._event_queue.now_ns) + self._supervision.start_ns
        self._ready_at_ns[server] = ready_ns
        yield self._until(ready_ns, server, _ENDS)
        self.come_up(server)

    def _hang(self, server: int) -> Process:
        incarnation = self._servers[server].incarnation
        if self._servers[server].hang():
            yield self._until(self._event_queue.now_ns + self._supervision.hang_ns, server, _BEGINS)
            if self._servers[server].incarnation == incarnation:  # it has not failed otherwise
                yield from self._crash(server, WORKER_HUNG)
