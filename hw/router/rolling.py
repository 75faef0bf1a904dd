"""Rolling update: replaces the weights by others of the same network, while clients are served.

Each server in turn gets a second agent, with the new weights, next to the one that serves. When all of them are ready,
no request begins until those in flight have ended. Then every second agent takes its server over. So no request meets
two versions, and none is lost: requests that arrive meanwhile wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hw.host.waiting import Host
from hw.router.agents import AgentHandle
from hw.router.server import START_LIMIT_NS, RemoteServer
from hw.transport.messages import Done, Prepared, Ready, Refused, Warm
from kit.errors import WorkError, in_a_line
from policies.interfaces import RoutingPolicy
from policies.vocabulary import NS_PER_S

Start = Callable[[], AgentHandle]


@dataclass(frozen=True, slots=True)
class NewModel:
    """The next model.

    Attributes:
        starts: for each server, starts an agent with it, without waiting for it.
        policy: decides from then on.
        top1: the accuracy of each width tuple, in the order of `RouterConfig.width_tuples`.
        took_over: called when it serves; each answer that comes later is its own.
        failed: called with the reason if it can't serve; the previous model then stays.
    """

    starts: Sequence[Start]
    policy: RoutingPolicy
    top1: tuple[float, ...]
    took_over: Callable[[], object]
    failed: Callable[[str], object]


class _Successor:
    """A server's second agent, until it can serve."""

    def __init__(self, server: RemoteServer, agent: AgentHandle, host: Host) -> None:
        self.server = server
        self.agent = agent
        self.is_ready = False
        self._host = host
        self._until_ns = host.clock_ns() + START_LIMIT_NS

    def look(self) -> None:
        """Process its messages, and send the next request; raises `WorkError` if it will never be ready."""
        for message in self.agent.hear():
            match message:
                case Ready():
                    self.agent.ready = message
                    self.agent.send(Warm(self.agent.next_number(), self.server.slot.warm_batches))
                case Done():
                    self.agent.is_warm = True
                    self.agent.send(self.server.preparation(self.agent.next_number()))
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
        """Whether all second agents are ready, so that no request may begin."""
        return len(self._successors) == len(self._servers) and self._successors[-1].is_ready

    def begin(self, order: NewModel) -> None:
        """Begin an update, which takes effect as soon as possible."""
        assert self._order is None, "one after another"
        self._order = order
        if away := [server.spec.name for server in self._servers if server.is_away]:
            self.give_up(f"{away[0]} was drained and has no worker now; return it first")

    def look(self) -> None:
        """Start the next agent, when the previous one is ready."""
        if self._order is None or self.holds:
            return
        try:
            if self._successors:
                self._successors[-1].look()
            if not self._successors or (self._successors[-1].is_ready and not self.holds):
                place = len(self._successors)
                agent = self._order.starts[place]()
                self._successors.append(_Successor(self._servers[place], agent, self._host))
                self._say(f"{self._servers[place].spec.name}: a second worker starts, with the new model")
        except WorkError as error:
            self.give_up(str(error))

    def give_up(self, reason: str) -> None:
        """Abandon the update and end its agents; the previous model stays."""
        order, self._order = self._order, None
        for successor in self._successors:
            successor.agent.kill()
        self._successors.clear()
        if order is not None:
            order.failed(reason)

    def switch(self) -> NewModel:
        """Let every second agent take its server over; nothing is in flight."""
        assert self._order is not None, "it holds"
        order, self._order = self._order, None
        for successor, start in zip(self._successors, order.starts, strict=True):
            successor.server.take_over(start, successor.agent)
        self._successors.clear()
        return order
