"""The interface of routers, and what they know besides the view: two protocols, and the settings of the router's
core."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, Protocol

import numpy as np

from policies.nests import tuples_within
from policies.reward import AccuracyPrior
from policies.vocabulary import FOLLOW_NS, IMAGE, ROUTER, Choice, ClusterView, Hold, HoldRule, WorkKey

MAX_TUPLES: Final = 1 << 12  # of a table known to the router's core: every stored run contains it
GROUPS: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
HERE, IN_RACK, ELSEWHERE = range(3)  # the source of a transfer
WAYS: Final = 3


class RoutingPolicy(Protocol):
    """A policy that chooses for the candidate block of a view: a server that is `valid` and a width that it can hold.

    If `view.hold_left_ns` is above 0, it may answer with a `Hold`. It may also have an attribute `hold`, a `HoldRule`
    for holds of the router's core from the run's start on (`hold_rule_of`), and an attribute `p99_limit_ns`, which
    replaces the operator's limit when the core counts late images (`limit_ns_of`); it may change during the run.
    """

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | Hold:
        """Decide; `rng` is this router's named random stream."""
        ...


def hold_rule_of(policy: RoutingPolicy) -> HoldRule | None:
    """Return the router's rule for automatic holds; None for none."""
    rule: HoldRule | None = getattr(policy, "hold", None)
    return rule


def limit_ns_of(policy: RoutingPolicy) -> int:
    """Return the router's separate limit of p99 latency now, 0 for none; `FOLLOW_NS` if it follows the operator's."""
    limit_ns: int = getattr(policy, "p99_limit_ns", FOLLOW_NS)
    return limit_ns


@dataclass(frozen=True, slots=True)
class Alike:
    """Groups of servers with equal costs, so that tables of costs need no row for each server.

    Attributes:
        devices: (servers,) a number; servers with the same number have the same times, energy and loads.
        links: (servers,) the same for transfers to and from them, within a rack or between racks.
        racks: (servers,) the number of a server's rack; the router is in none.
    """

    devices: tuple[int, ...]
    links: tuple[int, ...]
    racks: tuple[int, ...]

    @classmethod
    def of(cls, devices: Iterable[Hashable], links: Iterable[Hashable], racks: Iterable[Hashable]) -> Alike:
        """Number the distinct keys of each, from 0 on."""
        return cls(_numbered(devices), _numbered(links), _numbered(racks))

    def ways(self) -> dict[tuple[int, int, int], tuple[int, int]]:
        """Return a source and a server for each route that may differ.

        A route is from 0, the router, or from link n - 1; to a link; and `HERE`, `IN_RACK` or `ELSEWHERE`.
        """
        ways: dict[tuple[int, int, int], tuple[int, int]] = {}
        racks: dict[int, dict[int, list[int]]] = {}  # by rack and link, the servers
        for server, (link, rack) in enumerate(zip(self.links, self.racks, strict=True)):
            racks.setdefault(rack, {}).setdefault(link, []).append(server)
        apart: dict[int, list[int]] = {}  # by link, a server in each rack
        for links in racks.values():
            for (link, sources), (to, servers) in product(links.items(), repeat=2):
                for source, server in product(sources[:2], servers[:2]):
                    ways.setdefault((link + 1, to, HERE if source == server else IN_RACK), (source, server))
            for link, (first, *_) in links.items():
                ways.setdefault((0, link, ELSEWHERE), (ROUTER, first))
                apart.setdefault(link, []).append(first)
        for (link, sources), (to, servers) in product(apart.items(), repeat=2):
            for source, server in product(sources[:2], servers[:2]):
                if self.racks[source] != self.racks[server]:
                    ways.setdefault((link + 1, to, ELSEWHERE), (source, server))
        return ways


def _numbered(keys: Iterable[Hashable]) -> tuple[int, ...]:
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


class CostModel(Protocol):
    """Expected costs on an otherwise idle device, from the servers' profiles; all pure, times in seconds."""

    @property
    def alike(self) -> Alike | None:
        """Return the servers that cost the same; None if that is unknown."""
        ...

    def batch_s(self, server: int, key: WorkKey, batch: int) -> float:
        """Return the solo latency of one batch (dispatch included); a batch above the limit is split."""
        ...

    def image_s(self, server: int, key: WorkKey) -> float:
        """Return one image's share of the time of a batch at the server's limit: the cost of queued work."""
        ...

    def energy_j(self, server: int, key: WorkKey) -> float:
        """Return one image's share of the energy of such a batch, above the idle device's power."""
        ...

    def transfer_s(self, source: int, server: int, segment: int, previous_width: float, images: int) -> float:
        """Return the time to transfer the inputs of `images` requests before `segment` to a server; 0 if they are
        there."""
        ...


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Settings of the router's core.

    Attributes:
        segments: S.
        widths: the width set W, ascending.
        holds: (servers, segments, widths) whether a server can hold an instance.
        groups: the group sizes g to choose from, ascending.
        outstanding_blocks: the cap of blocks outstanding at a server; when all are at the cap the router waits.
        block_key: whether a block's members must share the location of their activations.
        max_retries: number of retries of a request after rejections or failures of servers.
        shed_expired: give up requests whose deadline has passed when they reach the FIFO's head.
        max_batching_delay_ns: the longest total hold of a request, over all segments; 0 for no holds.
        top1: the accuracy table in the order of `width_tuples`, for the view's `accuracy_sum`; empty for none.
        classes: names of the classes of requests; empty if all are of one, which has no name.
        models: the widths of each of several models; empty if there is one. A request's class decides its model.
        model_of: for each class its model's number; empty if there is one.
        model_shares: each model's share of the requests, as the operator specifies; empty if there is one.
        samples: number of servers that a decision examines if there are more (`policies.sampling`); 0: all.
        carried_img_s: the servers' capacity in images a second at the accuracy promised: requests beyond what it allows
            within the p99 latency promised are refused (`policies.admission`); 0 for no refusals.
    """

    segments: int
    widths: tuple[float, ...]
    holds: tuple[tuple[tuple[bool, ...], ...], ...]
    groups: tuple[int, ...] = GROUPS
    outstanding_blocks: int = 2
    block_key: Literal["location", "any"] = "location"
    max_retries: int = 3
    shed_expired: bool = False
    max_batching_delay_ns: int = 0
    top1: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()
    models: tuple[tuple[float, ...], ...] = ()
    model_of: tuple[int, ...] = ()
    model_shares: tuple[float, ...] = ()
    samples: int = 0
    carried_img_s: float = 0.0

    @property
    def servers(self) -> int:
        """N."""
        return len(self.holds)

    @property
    def class_count(self) -> int:
        """The number of classes, at least one."""
        return max(1, len(self.classes))

    @property
    def model_widths(self) -> tuple[tuple[float, ...], ...]:
        """The widths of each model, also if there is only one."""
        return self.models or (self.widths,)

    @property
    def class_models(self) -> tuple[int, ...]:
        """For each class the number of its model."""
        return self.model_of or (0,) * self.class_count

    @property
    def class_widths(self) -> tuple[tuple[float, ...], ...]:
        """For each class the widths that its requests may run at: its model's."""
        return tuple(self.model_widths[model] for model in self.class_models)

    def has_key(self, key: WorkKey) -> bool:
        """Return whether a request can have a key: an image before segment 1, later a width of the same model."""
        if key.segment == 1 or key.previous_width == IMAGE:
            return key.segment == 1 and key.previous_width == IMAGE
        return any(key.width in widths and key.previous_width in widths for widths in self.model_widths)

    def place_of(self, segment: int, service_class: int) -> int:
        """Return the number of a segment of the model of a class, among those of all models."""
        return self.class_models[service_class] * self.segments + segment - 1

    def masks(self) -> list[list[tuple[bool, ...]]]:
        """Return (servers, models x segments, widths): the widths of the same model that a server can hold."""
        return [
            [
                tuple(can and width in model for can, width in zip(held, self.widths, strict=True))
                for model in self.model_widths
                for held in segments
            ]
            for segments in self.holds
        ]

    def width_tuples(self) -> list[tuple[float, ...]]:
        """Return all W^S of each model, in the order of their numbers in base W."""
        return tuples_within(self.model_widths, self.segments)


def top1_of(config: RouterConfig, prior: AccuracyPrior) -> tuple[float, ...]:
    """Return the accuracy table for `RouterConfig.top1`; empty if it would have more than `MAX_TUPLES`."""
    if sum(len(widths) ** config.segments for widths in config.model_widths) > MAX_TUPLES:
        return ()
    return tuple(prior(widths) for widths in config.width_tuples())
