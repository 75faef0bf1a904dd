"""Which server: the rules that are known from load balancing, over the servers that can take the block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.interfaces import CostModel
from policies.rules.context import Placement, RouterContext, WidthRule, drawn
from policies.rules.costs import batch_ns, outstanding_ns, speeds_img_s, transfer_ns
from policies.vocabulary import ClusterView, WorkKey


def valid_servers(view: ClusterView) -> list[int]:
    """The servers that can take the block, ascending; never empty in a view that asks for a decision."""
    return [index for index, server in enumerate(view.servers) if server.valid]


def two_of(servers: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Two different ones at random, ascending; of one there is one draw all the same."""
    first = drawn(len(servers), rng)
    if len(servers) == 1:
        return [servers[first]]
    second = drawn(len(servers) - 1, rng)
    return [servers[index] for index in sorted((first, second + (second >= first)))]


@dataclass(frozen=True, slots=True)
class RandomPlacement:
    """Uniform over the valid servers: the paper's baseline."""

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        servers = valid_servers(view)
        return servers[drawn(len(servers), rng)]


@dataclass(frozen=True, slots=True)
class WeightedRandom:
    """At random, as likely as a server is fast."""

    speeds_img_s: tuple[float, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        servers = valid_servers(view)
        total = 0.0
        for server in servers:
            total += self.speeds_img_s[server]
        wanted, passed = rng.random() * total, 0.0
        for server in servers:
            passed += self.speeds_img_s[server]
            if wanted < passed:
                return server
        return servers[-1]


@dataclass(slots=True)
class RoundRobin:
    """The first valid server after the last one chosen."""

    last: int = -1

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        servers = valid_servers(view)
        self.last = next((server for server in servers if server > self.last), servers[0])
        return self.last


@dataclass(frozen=True, slots=True)
class ShortestQueue:
    """The fewest outstanding requests (JSQ)."""

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        return _shortest(view, valid_servers(view))


@dataclass(frozen=True, slots=True)
class ShortestQueueBySpeed:
    """The fewest outstanding requests for its speed: a queue counts for as long as it would take at full width."""

    speeds_img_s: tuple[float, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        return _shortest_by_speed(view, valid_servers(view), self.speeds_img_s)


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """The shorter queue of two servers drawn at random (Mitzenmacher 2001)."""

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        return _shortest(view, two_of(valid_servers(view), rng))


@dataclass(frozen=True, slots=True)
class PowerOfTwoBySpeed:
    """Of two servers drawn at random, the one whose queue is the shorter for its speed."""

    speeds_img_s: tuple[float, ...]

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        return _shortest_by_speed(view, two_of(valid_servers(view), rng), self.speeds_img_s)


@dataclass(frozen=True, slots=True)
class IdleQueue:
    """A server that has nothing outstanding, or else one at random (Join-Idle-Queue: Lu et al. 2011)."""

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        servers = valid_servers(view)
        idle = next((server for server in servers if view.servers[server].outstanding_requests == 0), None)
        return servers[drawn(len(servers), rng)] if idle is None else idle


def _shortest(view: ClusterView, servers: Sequence[int]) -> int:
    return min(servers, key=lambda server: view.servers[server].outstanding_requests)


def _shortest_by_speed(view: ClusterView, servers: Sequence[int], speeds_img_s: Sequence[float]) -> int:
    return min(servers, key=lambda server: view.servers[server].outstanding_requests / speeds_img_s[server])


@dataclass(frozen=True, slots=True)
class LeastWork:
    """The least expected time to run what is outstanding: queues in seconds, so a slow device's count for more."""

    costs: CostModel

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        return min(valid_servers(view), key=lambda server: outstanding_ns(self.costs, view, server))


@dataclass(frozen=True, slots=True)
class ShortestDelay:
    """The earliest expected end of the block: outstanding work + transfer + its own batch at the width it would get."""

    costs: CostModel
    width: WidthRule

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        return min(valid_servers(view), key=lambda server: self._delay_ns(view, server, rng))

    def _delay_ns(self, view: ClusterView, server: int, rng: np.random.Generator) -> int:
        key = WorkKey(view.head.segment, self.width(view, server, rng), view.head.previous_width)
        own_ns = transfer_ns(self.costs, view, server) + batch_ns(self.costs, server, key, view.candidates)
        return outstanding_ns(self.costs, view, server) + own_ns


@dataclass(frozen=True, slots=True)
class Sticky:
    """Where the activations are, if that server can take the block; else, and for new images, `elsewhere`."""

    elsewhere: Placement

    def __call__(self, view: ClusterView, rng: np.random.Generator) -> int:
        """The server for the view's candidate block."""
        location = view.head.location
        stays = location >= 0 and view.servers[location].valid  # an image at the router is on no server
        return location if stays else self.elsewhere(view, rng)


_PLACEMENTS: Mapping[str, Callable[[RouterContext, WidthRule], Placement]] = {
    "random": lambda context, width: RandomPlacement(),
    "weighted-random": lambda context, width: WeightedRandom(speeds_img_s(context)),
    "round-robin": lambda context, width: RoundRobin(),
    "jsq": lambda context, width: ShortestQueue(),
    "jsq-speed": lambda context, width: ShortestQueueBySpeed(speeds_img_s(context)),
    "power-of-two": lambda context, width: PowerOfTwo(),
    "power-of-two-speed": lambda context, width: PowerOfTwoBySpeed(speeds_img_s(context)),
    "jiq": lambda context, width: IdleQueue(),
    "least-work": lambda context, width: LeastWork(context.costs),
    "shortest-delay": lambda context, width: ShortestDelay(context.costs, width),
    "sticky": lambda context, width: Sticky(LeastWork(context.costs)),
}
PLACEMENT_NAMES: tuple[str, ...] = tuple(_PLACEMENTS)


def make_placement(name: str, context: RouterContext, width: WidthRule) -> Placement:
    """A fresh placement by its name; `width` is what the blocks that it places will run at."""
    return _PLACEMENTS[name](context, width)
