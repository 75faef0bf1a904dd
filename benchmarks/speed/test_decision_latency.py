"""Latency of one decision: of the paper's network, against torch's eager mode, and of rules; run with `make bench`.

Views are consecutive inputs of a router of the same cluster: most servers have not changed in between.
"""

from __future__ import annotations

import time  # noqa: TID251 - it measures
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.speed.conftest import Figures
from benchmarks.speed.driving import Drawn, scenario
from policies.interfaces import RoutingPolicy
from policies.ppo import kernels
from policies.ppo.ppo_router import PPORouter
from policies.ppo.spec import PolicySpec
from policies.router_names import make_router
from policies.router_plans import by_plan
from policies.vocabulary import ClusterView
from scenarios.learn.ppo import PolicyNetwork
from sim.simulated_cluster import Simulation
from tests.parity.scenarios import Scenario

TITLE = "one decision, microseconds"
HEAD = ("what", "servers", "p50", "p99")
VIEWS = 2000
SIZES = (3, 64)
RULES = ("compass", "ladder@sticky-coming")


class TimedRouters:
    """A cluster's views, and the routers that decide on them."""

    def __init__(self, servers: int) -> None:
        cluster, run = scenario(servers, 30.0 / servers)
        self.config, self.context = cluster.router, Scenario("timed", cluster, run).context()
        self.views = self._views(Simulation(cluster, run), Drawn(cluster))
        self.spec = PolicySpec.of(cluster.router, tuple(device.profile.power.cap_w for device in cluster.devices))
        self.network = PolicyNetwork(self.spec, (64, 64), 0)
        self.weights = {name: value.numpy() for name, value in self.network.state_dict().items()}
        self.rng = np.random.default_rng(0)

    def _views(self, simulation: Simulation, router: Drawn) -> list[ClusterView]:
        views: list[ClusterView] = []
        while len(views) < VIEWS and (request := simulation.advance()) is not None:
            views.append(request.view)
            simulation.decide(router.choose(request.view, np.random.default_rng(0)))
        assert len(views) == VIEWS, "the run was too short"
        return views

    def calls(self) -> dict[str, Callable[[ClusterView], object]]:
        """Return the measured calls by name."""
        drawn, likeliest = (PPORouter(self.spec, self.weights, deterministic=each) for each in (False, True))
        compiled = likeliest.compiled()
        memory = compiled.weights, compiled.sizes, compiled.limits_w, _every_choice(self.spec)
        return {
            "`PPORouter.choose`, drawn": lambda view: drawn.choose(view, self.rng),
            "`PPORouter.choose`, likeliest": lambda view: likeliest.choose(view, self.rng),
            "its part: compiled code, called": lambda view: kernels.choose(*memory, True, compiled.scratch),
            "torch eager, the forward pass alone": self._forward,
            **{f"`{name}` in Python": self._asked(partial(make_router, name, self.context)) for name in RULES},
            **{f"`{name}`": self._asked(partial(self._planned, name)) for name in RULES},
        }

    def _planned(self, name: str) -> RoutingPolicy:
        return by_plan(make_router(name, self.context), self.config)

    def _asked(self, make: Callable[[], RoutingPolicy]) -> Callable[[ClusterView], object]:
        """Return a fresh router for each round of views: a rule has state."""
        router = make()

        def ask(view: ClusterView) -> object:
            nonlocal router
            if view is self.views[0]:
                router = make()
            return router.choose(view, self.rng)

        return ask

    def _forward(self, view: ClusterView) -> NDArray[np.float32]:
        with torch.inference_mode():
            logits, _ = self.network(torch.from_numpy(self.spec.observation.observe(view))[None])
        return np.asarray(logits.numpy())


def _every_choice(spec: PolicySpec) -> NDArray[np.float64]:
    """Return the input of `kernels.choose` if every server can take the micro-batch at every width."""
    numbers = np.zeros(6 + 4 * spec.servers)
    numbers.view(np.int64)[9::4] = (1 << len(spec.widths)) - 1
    return numbers


def latencies_us(call: Callable[[ClusterView], object], views: list[ClusterView]) -> tuple[float, float]:
    """Return p50 and p99 of one call; the clock's own reading (some 50 ns) is included."""
    clock, costs_us = time.perf_counter_ns, []
    for view in views:
        begun = clock()
        call(view)
        costs_us.append(clock() - begun)
    p50, p99 = np.percentile(costs_us, (50, 99))
    return float(p50) / 1e3, float(p99) / 1e3


@pytest.mark.parametrize("servers", SIZES)
def test_latency_of_one_decision(benchmark: Any, figures: Figures, servers: int) -> None:
    """Call each way on the same views, the ways in turns; the median round counts."""
    routers = TimedRouters(servers)
    calls = routers.calls()
    latencies: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}

    def turn() -> None:
        for name, call in calls.items():
            latencies[name].append(latencies_us(call, routers.views))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        benchmark.pedantic(turn, rounds=5, iterations=1, warmup_rounds=1)
    finally:
        torch.set_num_threads(threads)
    for name, rounds in latencies.items():
        p50, p99 = sorted(rounds[1:])[len(rounds[1:]) // 2]
        figures.append((name, servers, f"{p50:.2f}", f"{p99:.2f}"))
