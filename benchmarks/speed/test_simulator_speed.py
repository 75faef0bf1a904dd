"""Decisions a second of the SimPy model; run with `make bench`. Rates are a CPU-second's, ratios are what to trust."""

from __future__ import annotations

import time  # noqa: TID251 - a benchmark measures CPU time
from typing import Any

import numpy as np
import pytest

from policies.interfaces import RouterConfig
from policies.vocabulary import Choice, ClusterView
from sim.cluster import ClusterSpec, RunSpec, Simulation
from tests import worlds

DRAWS = 1 << 14


class DrawnBeforehand:
    """A random server, width and group from a list, so that the engine is measured and not the draws.

    A server that can't take the block passes it on to the next one. Every width must be held by every server.
    """

    def __init__(self, config: RouterConfig) -> None:
        rng = np.random.default_rng(0)
        servers = rng.integers(config.servers, size=DRAWS).tolist()
        widths = rng.choice(config.widths, DRAWS).tolist()
        groups = rng.choice(config.groups, DRAWS).tolist()
        self._choices = [Choice(*drawn) for drawn in zip(servers, widths, groups, strict=True)]
        self._turn = 0

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        """The next one of the list."""
        choice = self._choices[self._turn % DRAWS]
        self._turn += 1
        server = choice.server
        if view.servers[server].valid:
            return choice
        while not view.servers[server].valid:
            server = (server + 1) % len(view.servers)
        return Choice(server, choice.width, choice.group)


def scenario(servers: int, detail: bool) -> tuple[ClusterSpec, RunSpec]:
    """Unequal devices below capacity: 300 images/s a server for two seconds."""
    profiles = [worlds.profile(f"p{i}", speed=1.0 - 0.02 * i, per_image_s=5e-5) for i in range(servers)]
    spec = worlds.cluster(profiles)
    return spec, worlds.run(spec, worlds.poisson_s(300 * servers, 2.0), 2.0, detail=detail)


@pytest.mark.parametrize("detail", [False, True], ids=["no-detail", "detail"])
@pytest.mark.parametrize("servers", [3, 32])
def test_simpy_decisions(benchmark: Any, servers: int, detail: bool) -> None:
    """Random routing; `decisions_per_cpu_s` is the best round's."""
    spec, run = scenario(servers, detail)
    rates: list[float] = []

    def simulate() -> int:
        simulation, policy = Simulation(spec, run), DrawnBeforehand(spec.router)
        started_s = time.process_time()
        decisions = simulation.run(policy, np.random.default_rng(0)).decisions
        rates.append(decisions / (time.process_time() - started_s))
        return decisions

    decisions = benchmark.pedantic(simulate, rounds=3, iterations=1)
    benchmark.extra_info["decisions"] = decisions
    benchmark.extra_info["decisions_per_cpu_s"] = round(max(rates))
    assert decisions > 1000 * servers
