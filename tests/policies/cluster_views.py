"""Tiny clusters to decide about: views, a linear cost model and a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.interfaces import AccuracyPrior, RouterConfig, RoutingPolicy, accuracies_of
from policies.rules.rule_context import RouterContext
from policies.vocabulary import IMAGE, ROUTER, Choice, ClusterView, HeadKey, ServerView, WorkKey

WIDTHS = (0.25, 0.5, 0.75, 1.0)
TABLE: dict[tuple[float, ...], float] = {
    (0.25, 0.25, 0.25, 0.25): 0.7030,
    (0.50, 0.50, 0.50, 0.50): 0.7299,
    (0.75, 0.75, 0.75, 0.75): 0.7493,
    (1.00, 1.00, 1.00, 1.00): 0.7643,
    (1.00, 0.75, 0.50, 0.25): 0.7135,
    (0.25, 0.50, 0.75, 1.00): 0.7533,
}


@dataclass(frozen=True)
class LinearCosts:
    """A batch takes (1 ms + 1 ms x width x images) / speed; an image moves in `move_s`."""

    speeds: tuple[float, ...] = (1.0,) * 6
    move_s: float = 0.0

    alike = None

    def batch_s(self, server: int, key: WorkKey, batch: int) -> float:
        return (0.001 + 0.001 * key.width * batch) / self.speeds[server]

    def image_s(self, server: int, key: WorkKey) -> float:
        return self.batch_s(server, key, 32) / 32

    def energy_j(self, server: int, key: WorkKey) -> float:
        return self.batch_s(server, key, 32) / 32 * 100.0

    def transfer_s(self, source: int, server: int, segment: int, previous_width: float, images: int) -> float:
        assert source >= ROUTER, "no cost model knows the way from nowhere"
        return 0.0 if source == server else self.move_s * images


def server(
    requests: int = 0,
    *,
    valid: bool = True,
    widths: Sequence[bool] = (True, True, True, True),
    outstanding: Mapping[WorkKey, int] | None = None,
    utilization: float = 0.0,
    power_w: float = 0.0,
    loaded: Sequence[bool] = (True,) * 4,
    loading: Sequence[bool] = (False,) * 4,
) -> ServerView:
    """A server with so many requests outstanding (at segment 1 and full width unless `outstanding` shows where)."""
    work = outstanding if outstanding is not None else {WorkKey(1, 1.0, IMAGE): requests} if requests else {}
    sent = (sum(work.values()), len(work), work, utilization, power_w, 0)
    return ServerView(valid, tuple(widths), *sent, tuple(loaded), tuple(loading))


def view(
    *servers: ServerView, head: HeadKey | None = None, candidates: int = 1, fifo: int = 1, waited_ns: int = 0
) -> ClusterView:
    """A view at 1 s whose head stands before segment 1 unless `head` says otherwise."""
    now_ns = 1_000_000_000
    return ClusterView(
        now_ns, head or HeadKey(1, IMAGE, ROUTER), candidates, now_ns - waited_ns, max(fifo, candidates), 0, servers
    )


def context(costs: LinearCosts | None = None, deadline_s: float | None = None, servers: int = 3) -> RouterContext:
    """Four segments, the paper's widths and micro-batch sizes, servers that hold everything."""
    config = RouterConfig(segments=4, widths=WIDTHS, fits=(((True,) * 4,) * 4,) * servers)
    return RouterContext(config, costs or LinearCosts(), AccuracyPrior(TABLE), (250.0,) * servers, deadline_s)


def known(servers: int = 1) -> RouterContext:
    """A context whose router's core has the accuracy table."""
    base = context(servers=servers)
    return replace(base, config=replace(base.config, accuracies=accuracies_of(base.config, base.prior)))


def choice_of(router: RoutingPolicy, view: ClusterView, rng: np.random.Generator) -> Choice:
    """What a router chooses; it may not hold."""
    choice = router.choose(view, rng)
    assert isinstance(choice, Choice)
    return choice
