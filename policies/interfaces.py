"""The reward (Eq. 7), nests of widths, and the interface of routers: two protocols and the settings of the core.

A *nest* is a group of neighbouring widths that share weights (`nests_of`). An instance also serves the narrower widths
of its nest, and a request stays in one nest. All widths of a slimmable network are one nest; each network of a family
is a separate nest; each of several models has its nests.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final, Literal, Protocol

import msgspec
import numpy as np

from policies.vocabulary import FOLLOW_NS, IMAGE, ROUTER, BatchingDelay, BatchingDelayRule, Choice, ClusterView, WorkKey

# ----------------------------------------------------------------------------------------------------------- the reward


DIGITS: Final = 9  # of a distance between width tuples; further digits are rounding noise


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """alpha, beta, gamma, delta and the bonus of Eq. 7; `centre` subtracts the mean top-1 from the accuracy term."""

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 0.0
    delta: float = 0.0
    bonus: float = 0.0
    centre: bool = False


class RewardTerms(msgspec.Struct, frozen=True):
    """The weighted terms of Eq. 7, as they are added: `total` is r."""

    accuracy: float
    latency: float
    energy: float
    imbalance: float
    bonus: float

    @property
    def total(self) -> float:
        """r = alpha p_acc - beta L - gamma E - delta Var(U / 100) + bonus."""
        return self.accuracy + self.latency + self.energy + self.imbalance + self.bonus


def reward_terms(
    weights: RewardWeights, *, p_acc: float, mean_accuracy: float, latency_s: float, energy_j: float, gpu_var: float
) -> RewardTerms:
    """Return Eq. 7. `p_acc` in [0, 1]; `gpu_var` is the variance over servers of utilization as a share."""
    centred = p_acc - mean_accuracy if weights.centre else p_acc
    return RewardTerms(
        accuracy=weights.alpha * centred,
        latency=-weights.beta * latency_s,
        energy=-weights.gamma * energy_j,
        imbalance=-weights.delta * gpu_var,
        bonus=weights.bonus,
    )


def mean(values: Sequence[float]) -> float:
    """Return the sum, added from left to right, over the number; `sum` compensates floats from Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def variance(shares: Sequence[float]) -> float:
    """Return the population variance of the servers' utilization shares: Var(U / 100) of Eq. 7."""
    middle = mean(shares)
    return mean([(share - middle) * (share - middle) for share in shares])  # `** 2` is libm's pow, not always the same


class AccuracyPrior:
    """The prior p_acc of a width tuple, complete or partial (Eq. 7).

    Args:
        accuracies: in [0, 1] for complete width tuples; every tuple has the same length S.

    A partial tuple has the mean of all complete tuples that begin with it. A missing tuple has the value of its nearest
    neighbour (least sum of absolute width differences; ties go to the smallest tuple). A partial tuple that begins no
    complete one has the nearest value among partial tuples of its length.

    Raises:
        ValueError: no tuples, or tuples of several lengths; on a call, a tuple that is empty or longer than S.
    """

    def __init__(self, accuracies: Mapping[tuple[float, ...], float]) -> None:
        if not accuracies:
            raise ValueError("an accuracy table needs at least one width tuple")
        if len({len(widths) for widths in accuracies}) > 1:
            raise ValueError("the width tuples of an accuracy table must have one length")
        self.accuracies = dict(sorted(accuracies.items()))
        self.mean_accuracy = mean(tuple(self.accuracies.values()))
        by_prefix: dict[tuple[float, ...], list[float]] = {}
        for widths, value in self.accuracies.items():
            for length in range(1, len(widths) + 1):
                by_prefix.setdefault(widths[:length], []).append(value)
        self._prior = {prefix: mean(values) for prefix, values in by_prefix.items()}
        self._answers = dict(self._prior)  # separate: the answer for a missing tuple is never a neighbour

    def __call__(self, widths: tuple[float, ...]) -> float:
        """Return the prior for the widths so far (at least one)."""
        prior = self._answers.get(widths)
        if prior is None:
            same_length = sorted(prefix for prefix in self._prior if len(prefix) == len(widths))
            if not same_length:
                raise ValueError(f"no width tuple of length {len(widths)} in the accuracy table")
            nearest = min(same_length, key=lambda prefix: _distance(prefix, widths))
            prior = self._answers[widths] = self._prior[nearest]
        return prior


def _distance(widths: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return the sum of absolute differences, rounded: 0.3 - 0.2 and 0.2 - 0.1 are a tie."""
    return round(sum(abs(a - b) for a, b in zip(widths, other, strict=True)), DIGITS)


# ------------------------------------------------------------------------------------------------------ nests of widths


Widths = tuple[float, ...]


@lru_cache(maxsize=64)
def nests_of(widths: Widths, nests: tuple[int, ...]) -> tuple[Widths, ...]:
    """Return the widths of each nest, ascending; `nests` has their number in each, and if it is empty there is one
    nest.

    Raises:
        ValueError: the nests do not add up to the width set.
    """
    if sum(nests) != len(widths) and nests:
        raise ValueError(f"nests of {list(nests)} widths do not make up {len(widths)}")
    parts, rest = list[Widths](), widths
    for count in nests or (len(widths),):
        parts.append(rest[:count])
        rest = rest[count:]
    return tuple(parts)


@lru_cache(maxsize=64)
def nest_by_width(widths: Widths, nests: tuple[int, ...]) -> Mapping[float, Widths]:
    """Return, for each width, the widths of its nest."""
    return {width: nest for nest in nests_of(widths, nests) for width in nest}


def tuples_within(width_groups: Sequence[Widths], segments: int) -> list[Widths]:
    """Return every complete width tuple within one of these groups of widths, ascending."""
    return [widths for group in width_groups for widths in product(group, repeat=segments)]


# -------------------------------------------------------------------------------------------------------------- routers


MAX_TUPLES: Final = 1 << 12  # of a table known to the router's core: every stored run contains it
MICRO_BATCH_SIZES: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
HERE, IN_RACK, ELSEWHERE = range(3)  # the source of a transfer
WAYS: Final = 3


class RoutingPolicy(Protocol):
    """A policy that chooses for the candidate micro-batch of a view: a server that is `valid` and a width that it can
    hold.

    If `view.batching_delay_left_ns` is above 0, it may answer with a `BatchingDelay`. It may also have an attribute
    `batching_delay`, a `BatchingDelayRule` for batching delays of the router's core from the run's start on
    (`batching_delay_rule_of`), and an attribute `p99_limit_ns`, which replaces the operator's limit when the core
    counts late images (`limit_ns_of`); it may change during the run.
    """

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
        """Decide; `rng` is this router's named random stream."""
        ...


def batching_delay_rule_of(policy: RoutingPolicy) -> BatchingDelayRule | None:
    """Return the router's rule for automatic holds; None for none."""
    rule: BatchingDelayRule | None = getattr(policy, "batching_delay", None)
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
        routes: dict[tuple[int, int, int], tuple[int, int]] = {}
        racks: dict[int, dict[int, list[int]]] = {}  # by rack and link, the servers
        for server, (link, rack) in enumerate(zip(self.links, self.racks, strict=True)):
            racks.setdefault(rack, {}).setdefault(link, []).append(server)
        apart: dict[int, list[int]] = {}  # by link, a server in each rack
        for links in racks.values():
            for (link, sources), (to, servers) in product(links.items(), repeat=2):
                for source, server in product(sources[:2], servers[:2]):
                    routes.setdefault((link + 1, to, HERE if source == server else IN_RACK), (source, server))
            for link, (first, *_) in links.items():
                routes.setdefault((0, link, ELSEWHERE), (ROUTER, first))
                apart.setdefault(link, []).append(first)
        for (link, sources), (to, servers) in product(apart.items(), repeat=2):
            for source, server in product(sources[:2], servers[:2]):
                if self.racks[source] != self.racks[server]:
                    routes.setdefault((link + 1, to, ELSEWHERE), (source, server))
        return routes


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
        fits: (servers, segments, widths) whether a server can hold an instance.
        micro_batch_sizes: the sizes g to choose from, ascending.
        outstanding_micro_batches: the cap of micro-batches outstanding at a server; when all are at the cap the router
            waits.
        micro_batch_key: whether a micro-batch's members must share the location of their activations.
        max_retries: number of retries of a request after rejections or failures of servers.
        shed_expired: give up requests whose deadline has passed when they reach the FIFO's head.
        max_batching_delay_ns: the longest total batching delay of a request, over all segments; 0 for no batching
            delays.
        accuracies: the accuracy table in the order of `width_tuples`, for the view's `accuracy_sum`; empty for none.
        classes: names of the classes of requests; empty if all are of one, which has no name.
        models: the widths of each of several models; empty if there is one. A request's class decides its model.
        model_of: for each class its model's number; empty if there is one.
        model_shares: each model's share of the requests, as the operator specifies; empty if there is one.
        samples: number of servers that a decision examines if there are more (`policies.router_queue`); 0: all.
        carried_img_s: the servers' capacity in images a second at the accuracy promised: requests beyond what it allows
            within the p99 latency promised are refused (`policies.router_queue`); 0 for no refusals.
    """

    segments: int
    widths: tuple[float, ...]
    fits: tuple[tuple[tuple[bool, ...], ...], ...]
    micro_batch_sizes: tuple[int, ...] = MICRO_BATCH_SIZES
    outstanding_micro_batches: int = 2
    micro_batch_key: Literal["location", "any"] = "location"
    max_retries: int = 3
    shed_expired: bool = False
    max_batching_delay_ns: int = 0
    accuracies: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()
    models: tuple[tuple[float, ...], ...] = ()
    model_of: tuple[int, ...] = ()
    model_shares: tuple[float, ...] = ()
    samples: int = 0
    sustained_img_s: float = 0.0

    @property
    def servers(self) -> int:
        """N."""
        return len(self.fits)

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
        """The number of each class's model."""
        return self.model_of or (0,) * self.class_count

    @property
    def class_widths(self) -> tuple[tuple[float, ...], ...]:
        """The widths that requests of each class may run at: those of its model."""
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
            for segments in self.fits
        ]

    def width_tuples(self) -> list[tuple[float, ...]]:
        """Return all W^S of each model, in the order of their numbers in base W."""
        return tuples_within(self.model_widths, self.segments)


def accuracies_of(config: RouterConfig, prior: AccuracyPrior) -> tuple[float, ...]:
    """Return the accuracy table for `RouterConfig.accuracies`; empty if it would have more than `MAX_TUPLES`."""
    if sum(len(widths) ** config.segments for widths in config.model_widths) > MAX_TUPLES:
        return ()
    return tuple(prior(widths) for widths in config.width_tuples())
