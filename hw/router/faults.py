"""Planned faults injected into real agents: killed, stopped, slowed, short of memory, at their times."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from hw.host.clock import NEVER_NS
from hw.router.server import RemoteServer
from policies.faults import PLANNED, Crash, Fault, Hang, Outage, Poison, Slowness, Squeeze


class FaultPlan:
    """The faults of a run.

    Args:
        take_down: (server, reason) ends a server's epoch in an orderly way.
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

    def _at(self, at_ns: int, what: Callable[[], None], ends: bool = False) -> None:
        """Add a step; at one instant, ends precede beginnings."""
        self._steps.append((at_ns, 0 if ends else 1, what))

    def _begin_outage(self, server: RemoteServer, end_ns: int | None) -> None:
        server.stay_down(NEVER_NS if end_ns is None else end_ns)
        if server.is_up:
            self._take_down(server, PLANNED)

    def _signal(self, server: RemoteServer, number: signal.Signals) -> None:
        """Signal the agent, if one serves; the consequence is noticed as in any accident."""
        if server.is_up:
            server.is_doomed = True
            server.slot.agent.send_signal(number)
