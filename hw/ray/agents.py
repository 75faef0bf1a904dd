"""Agents that Ray places and starts, one actor each: `hw.router.agents.Carrier` for a cluster of hosts.

Ray finds the host, starts the agent there, transfers the model's bytes, and reports an agent's end. A run's messages
and data use separate connections (`hw.transport.tls`, `hw.transport.landing`), whose certificate Ray has transferred: a
call of an actor takes milliseconds (docs/cluster.md).
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import ssl
import threading
import time  # noqa: TID251 - waits for real hosts
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from hw.agent.outfit import AgentSpec
from hw.ray.cluster import Node, RayCluster, require_same_code
from hw.ray.far_agent import FarStart
from hw.ray.host import Supervisor
from hw.router.agents import AgentHandle
from hw.transport.arena import Arena
from hw.transport.messages import FromAgent
from hw.transport.port import Mirror, RouterEnd
from hw.transport.tls import Encrypted, Hello, Listener, fresh_certificate
from kit.errors import in_a_line

_LOOK_S: Final = 0.2  # the period of polls for an absent host
_ENDING_S: Final = 5.0
_KILLING_S: Final = 1.0
_AT_ONCE: Final = 8  # calls of an actor: an agent's whole life is one, and one that hangs may have a successor


class RayAgent(AgentHandle):
    """An agent that a Ray actor keeps.

    Args:
        spec: of the agent.
        incarnation: no other agent's.
        carrier: that has started it.

    Attributes:
        actor: that keeps it; None before it is asked to.
        ended: once its actor is gone, or could not be made.
    """

    def __init__(self, spec: AgentSpec, incarnation: int, carrier: RayHosts) -> None:
        self.joining = RouterEnd(FromAgent, heard=self._hear_log)
        super().__init__(spec, self.joining, shares_clock=False)
        self.incarnation = incarnation
        self.ended = threading.Event()
        self._carrier = carrier
        self.actor: Any = None
        self._is_given_up = False
        self._log = bytearray()

    @property
    def pid(self) -> int:
        """See `AgentHandle`: on its own host; 0 before it is ready."""
        return 0 if self.ready is None else self.ready.pid

    def log(self) -> Callable[[], bytes]:
        """See `AgentHandle`: as far as it has arrived here, which is at least as far as the messages received."""
        return partial(bytes, self._log)

    def _hear_log(self, steps: bytes) -> None:
        if steps:
            self._log += steps
        else:
            self._log.clear()

    def send_signal(self, number: signal.Signals) -> None:
        """See `AgentHandle`."""
        self._carrier.later(lambda actor: actor.signal.remote(self.incarnation, int(number)), self.actor)

    def kill(self) -> None:
        """See `AgentHandle`."""
        self.give_up()
        self.port.close()

    def close(self) -> None:
        """See `AgentHandle`."""
        if self._is_given_up:  # a router that serves others must not wait for a host that is gone
            return
        self.say_goodbye()
        if self.actor is not None:
            self.ended.wait(_ENDING_S)
        self.give_up()
        self.ended.wait(_KILLING_S)

    def give_up(self) -> None:
        """End it, on any host, without waiting for that."""
        self._is_given_up = True
        self._carrier.later(lambda actor: actor.end.remote(self.incarnation), self.actor)

    @property
    def is_given_up(self) -> bool:
        """Whether it has been given up."""
        return self._is_given_up

    def over(self, reason: str) -> None:
        """Note that its actor has ended, or could not be made."""
        self.ended.set()
        self.joining.end(reason)

    def _how_it_died(self) -> str:
        self.ended.wait(_KILLING_S)
        return self.joining.ended or "its connection ended"


@dataclass(frozen=True, slots=True)
class _Keeper:
    node: Node
    actor: Any


class RayHosts:
    """Starts each agent on the host that it is for.

    Args:
        cluster: that this process has joined.
        hosts: the name of each agent's host.
        model: the file of the network that is served, which every host gets; None if no agent needs one.
    """

    def __init__(self, cluster: RayCluster, hosts: Sequence[str], model: Path | None = None) -> None:
        self._cluster = cluster
        self._hosts = tuple(hosts)
        self._certificate = fresh_certificate()
        self._lives = itertools.count(1)
        self._agents: dict[int, RayAgent] = {}  # by incarnation: those that have not connected yet
        self._current: dict[int, RayAgent] = {}  # by server
        self._arenas: tuple[Arena, ...] = ()
        self._listener = Listener(cluster.here.address, self._certificate, self._admit)
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._model = None if model is None else cluster.ray.put(model.read_bytes())
        self._class = cluster.ray.remote(num_cpus=0, max_concurrency=_AT_ONCE, max_restarts=0)(Supervisor)
        self._keepers: dict[int, _Keeper] = {}  # by server

    # ------------------------------------------------------------------------------------------------- see `Carrier`

    def arenas(self, count: int, size_bytes: int) -> Sequence[Arena]:
        """See `Carrier`: what is written there is sent."""
        self._arenas = tuple(
            Mirror(size_bytes, lambda agent=agent: self._current[agent].joining)  # type: ignore[misc]
            for agent in range(count)
        )
        return self._arenas

    def arenas_of(self, agent: int) -> tuple[Arena, ...]:
        """See `Carrier`: the agent's host makes them."""
        return ()

    def start(self, agent: int, spec: AgentSpec) -> AgentHandle:
        """See `Carrier`: a host that is not there is waited for."""
        handle = RayAgent(spec, next(self._lives), self)
        self._agents[handle.incarnation] = self._current[agent] = handle
        name = f"ray-{spec.name}-{handle.incarnation}"
        threading.Thread(target=self._keep, args=(agent, handle), name=name, daemon=True).start()
        return handle

    def close(self) -> None:
        """See `Carrier`."""
        self._listener.close()
        self._hands.shutdown()
        for keeper in () if self._cluster.gone.is_set() else self._keepers.values():
            with contextlib.suppress(Exception):  # Ray may be gone
                self._cluster.ray.kill(keeper.actor)
        for arena in self._arenas:
            arena.close()

    # --------------------------------------------------------------------------------------------- an agent's life

    def _keep(self, agent: int, handle: RayAgent) -> None:
        """Keep an agent from its placing to its end, in a separate thread."""
        reason = "it was given up before it began"
        try:
            while not handle.is_given_up:
                if (keeper := self._keeper_for(agent, handle)) is not None:
                    reason = self._live(agent, handle, keeper)
                    break
                time.sleep(_LOOK_S)
        except Exception as error:  # Ray's own errors have no common kind
            reason = in_a_line(str(error)) or type(error).__name__
        self._agents.pop(handle.incarnation, None)
        handle.over(reason)

    def _keeper_for(self, agent: int, handle: RayAgent) -> _Keeper | None:
        """Return the actor that is to keep it: the previous agent's, if that lives. None if there is none now: its host
        is not there, or turns out to be a dead one whose name another has.

        Raises:
            WorkError: the host has another version, or other code.
        """
        ray, node = self._cluster.ray, self._cluster.node_of(self._hosts[agent])
        if node is None:
            return None
        keeper = self._keepers.get(agent)
        if keeper is None or keeper.node != node:
            keeper = _Keeper(node, self._class.options(scheduling_strategy=self._cluster.on(node)).remote())
            self._keepers[agent] = keeper
        code = keeper.actor.code.remote()
        while not ray.wait([code], timeout=_LOOK_S)[0]:
            if handle.is_given_up or self._cluster.node_of(node.host) != node:
                return None
        try:
            require_same_code(node.host, *ray.get(code))
        except ray.exceptions.RayError:  # it has died
            del self._keepers[agent]
            return None
        return keeper

    def _live(self, agent: int, handle: RayAgent, keeper: _Keeper) -> str:
        """Run the agent for its whole life; return how it ended."""
        start = FarStart(
            spec=handle.spec,
            own=agent,
            agents=len(self._hosts),
            arena_bytes=self._arenas[agent].size_bytes,
            incarnation=handle.incarnation,
            router=self._listener.address,
            host=keeper.node.address,
            certificate=self._certificate,
        )
        incarnation = keeper.actor.run.remote(start, self._model)
        handle.actor = keeper.actor
        if handle.is_given_up:  # while that was asked
            handle.give_up()
        return str(self._cluster.ray.get(incarnation))

    def _admit(self, hello: Hello, end: ssl.SSLSocket) -> None:
        """Take the connection of an agent; one that has been given up is turned away."""
        handle = self._agents.pop(hello.incarnation, None)
        if handle is not None:
            handle.address = hello.address
        if handle is None or not handle.joining.join(Encrypted(end)):
            end.close()

    # ---------------------------------------------------------------------------------------------------- Ray, later

    def later(self, ask: Any, actor: Any) -> Future[Any] | None:
        """Call Ray from another thread, as the router's thread must not wait for it."""
        if actor is None:
            return None
        with contextlib.suppress(RuntimeError):  # all is over
            return self._hands.submit(ask, actor)
        return None
