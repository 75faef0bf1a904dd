"""A simulated cluster that several routers divide among themselves (`policies.division`): one world, R cores in it.

Each router is a host of its own, with its own core and policy. What one tells another takes a link's time, and more
where packets are lost. One that is killed takes its servers' processes with it: they start again, as after any
death, under the router that has them now. What it had in flight, its clients send again to the others.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np

from kit.chance import derived_seed, hashed_share
from policies.division import ROUTERS, Division, Neighbours, Territory
from policies.faults import Crash
from policies.interfaces import RoutingPolicy, hold_rule_of, limit_ns_of
from policies.router import RouterCore
from policies.vocabulary import (
    FOLLOW_NS,
    IMAGE,
    ArrivalsEnded,
    Choice,
    Decided,
    GoalSet,
    Held,
    Hold,
    HoldRule,
    ModelChanged,
    OwnLimit,
    RequestArrived,
    RequestsCancelled,
    RouterEvent,
    RouterTimer,
    TransferFailed,
    TransferFinished,
    TransferStarted,
    nanoseconds,
)
from sim.agenda import HOST, Process
from sim.cluster import ClusterSpec, RunSpec, Simulation
from sim.costs import input_bytes
from sim.network import rounds
from sim.profile import Link
from sim.server import RouterMessage

HANDOVERS, WORDS = "handovers", "words"  # the names of what losses are drawn by


class DividedSimulation(Simulation):
    """One run; see `Simulation`. Its routers take the one router's seat in turn, whenever something is theirs to do.

    Args:
        link: between any two routers.

    Attributes:
        territory: who owns what now.
        handed_over: how many images a full router has handed to another one.
    """

    def __init__(self, cluster: ClusterSpec, run: RunSpec, division: Division, link: Link) -> None:
        count = division.count
        self.division = division
        self.territory = Territory(division, derived_seed(run.seed, ROUTERS))
        self.routers = tuple(RouterCore(cluster.router, place, count) for place in range(count))
        self.handed_over = 0
        self._place = 0  # who has the seat
        self._link = link
        self._salts = {name: derived_seed(run.seed, name) for name in (HANDOVERS, WORDS)}
        self._neighbours = [Neighbours(division, self.territory, place) for place in range(count)]
        self._router_of = np.zeros(len(run.arrivals_ns), np.int64)
        self._under_way = 0  # images between two routers, or on their way back to one from a client
        self._limits = [OwnLimit(FOLLOW_NS)] * count
        super().__init__(cluster, run, count)

    def set_off(self) -> None:
        """What begins by itself, among it what routers tell each other and their deaths."""
        self._hosts = [self._new_host() for _ in self.routers]
        super().set_off()
        if self.division.handover_at is not None:
            self._agenda.process(self._words())
        for router, at_ns in self.division.deaths:
            self._agenda.at(at_ns, HOST, self._die, router)

    def _sit_down(self, place: int) -> None:
        self._place, self.router, self._host = place, self.routers[place], self._hosts[place]

    # ------------------------------------------------------------------------------------------------ the caller's

    def decide(self, choice: Choice | Hold) -> None:
        """Answer the pending decision, whosever it is."""
        assert self._pending is not None, "no decision is pending"
        self._sit_down(self._asker(self._pending.decision))
        super().decide(choice)

    def finish(self, policy: RoutingPolicy, rng: np.random.Generator) -> None:
        """Let a policy decide for the first router, and copies of it for the others, each with a stream of its own."""
        others = rng.spawn(self.division.count - 1)
        deciders = [(policy, rng), *((deepcopy(policy), each) for each in others)]
        if (rule := hold_rule_of(policy)) is not None:
            self.set_hold_rule(rule)
        for place, (each, _) in enumerate(deciders):
            self._sit_down(place)
            self.set_limit(OwnLimit(limit_ns_of(each)))
        while (request := self.advance()) is not None:
            place = self._asker(request.decision)
            decider, its_rng = deciders[place]
            self.decide(decider.choose(request.view, its_rng))
            self._sit_down(place)
            self.set_limit(OwnLimit(limit_ns_of(decider)))

    def set_hold_rule(self, rule: HoldRule) -> None:
        """Of all routers."""
        for place in range(self.division.count):
            self._sit_down(place)
            super().set_hold_rule(rule)

    def set_limit(self, limit: OwnLimit) -> None:
        """Of the router that has the seat."""
        self._limit = self._limits[self._place]
        super().set_limit(limit)
        self._limits[self._place] = self._limit

    # ---------------------------------------------------------------------------------------------------- the routers

    def _asker(self, decision: int) -> int:
        """Who numbers so."""
        return (decision - 1) % self.division.count

    def may_ask(self) -> bool:
        """The first of those that may takes the seat."""
        for place in self.territory.alive:
            self._sit_down(place)
            if super().may_ask():
                return True
        return False

    def _tell_router(self, event: RouterEvent) -> None:
        """Whose it is; a dead one hears nothing."""
        for place in self._addressees(event):
            if place in self.territory.alive:
                self._sit_down(place)
                super()._tell_router(event)

    def _addressees(self, event: RouterEvent) -> tuple[int, ...]:
        match event:
            case RequestArrived(request):
                return (int(self._router_of[request]),)
            case Decided() | Held():
                return (self._asker(event.decision),)
            case TransferStarted() | TransferFinished() | TransferFailed():
                return (self._asker(event.block),)
            case RouterTimer() | HoldRule() | OwnLimit():
                return (self._place,)
            case GoalSet() | ArrivalsEnded() | ModelChanged() | RequestsCancelled():
                return tuple(self.territory.alive)
        return (self.territory.owner[event.server],)

    def hear(self, message: RouterMessage, number: int) -> None:
        """A server's message is at its owner's host."""
        self._sit_down(self.territory.owner[message.server])
        super().hear(message, number)

    def labels(self, requests: tuple[int, ...], width: float) -> tuple[bool, ...]:
        """See `Simulation`."""
        self._sit_down(int(self._router_of[requests[0]]))  # all are its own: so is the server
        return super().labels(requests, width)

    @property
    def _in_flight(self) -> int:
        return self._under_way + sum(self.routers[place].in_flight for place in self.territory.alive)

    # ------------------------------------------------------------------------------------------ from one to another

    def _admit(self, event: RequestArrived) -> None:
        """At the router that it is dealt to; a full one hands it on, once."""
        place = self.territory.router_of(event.request)
        receiver = self._neighbours[place].receiver(self.routers[place].burden)
        if receiver is None:
            self._enter(event, place)
            return
        self.handed_over += 1
        self._ledger.expect(event.request, self.now_ns)
        self._carry(event, receiver)

    def _enter(self, event: RequestArrived, place: int) -> None:
        self._router_of[event.request] = place
        self._tell_router(event)

    def _carry(self, event: RequestArrived, receiver: int) -> None:
        self._under_way += 1
        image_bytes, link = input_bytes(self.cluster.devices[0], 1, IMAGE), self._link
        latencies = 1
        if link.loss > 0:
            chance = hashed_share(self._salts[HANDOVERS], event.request, receiver)
            latencies += 2 * (rounds(image_bytes, link.loss, chance) - 1)
        carried_s = image_bytes / (1 - link.loss) / link.bandwidth_bytes_s + latencies * link.latency_s
        self._agenda.at(self.now_ns + nanoseconds(carried_s), HOST, self._arrive, event, receiver)

    def _arrive(self, event: RequestArrived, receiver: int) -> None:
        """Whoever has died meanwhile is passed over."""
        self._under_way -= 1
        is_there = receiver in self.territory.alive
        self._enter(event, receiver if is_there else self.territory.router_of(event.request))

    def _words(self) -> Process:
        """Now and then each tells the others how many wait; a word that is lost is not said again."""
        tick, link = 0, self._link
        while True:
            yield self._agenda.until(self.now_ns + self.division.told_every_ns, HOST)
            waiting = {place: self.routers[place].burden for place in self.territory.alive}
            self._agenda.at(self.now_ns + nanoseconds(link.latency_s), HOST, self._hear_words, tick, waiting)
            tick += 1

    def _hear_words(self, tick: int, waiting: dict[int, float]) -> None:
        for place, images in waiting.items():
            for other, neighbours in enumerate(self._neighbours):
                word = (tick * len(self.routers) + place) * len(self.routers) + other
                if other != place and hashed_share(self._salts[WORDS], word, 0) >= self._link.loss:
                    neighbours.hear(place, images)

    def _die(self, router: int) -> None:
        """Its servers' processes end with it, and others start them again. Its clients see it go, and send again."""
        owned = [server for server, owner in enumerate(self.territory.owner) if owner == router]
        requests = self.routers[router].requests
        self.territory.bury(router)
        for server in owned:
            self._faults.plan(Crash(server, self.now_ns))
        for request in requests:
            self._carry(self._arrival(request), self.territory.router_of(request))
