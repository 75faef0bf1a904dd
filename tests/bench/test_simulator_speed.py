"""Decisions a second of the SimPy model; run with `make bench`. Rates are a CPU-second's, ratios are what to trust."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.cluster import Simulation
from tests import worlds


@pytest.mark.parametrize("servers", [3, 32])
def test_simpy_decisions(benchmark: Any, servers: int) -> None:
    """Uniform random routing below capacity; decisions a second = `decisions` / the time shown."""
    profiles = [worlds.profile(f"p{i}", speed=1.0 - 0.02 * i, per_image_s=5e-5) for i in range(servers)]
    spec = worlds.cluster(profiles)
    run = worlds.run(spec, worlds.poisson_s(300 * servers, 2.0), 2.0, detail=False)

    def simulate() -> int:
        return Simulation(spec, run).run(worlds.Uniform(), np.random.default_rng(0)).decisions

    decisions = benchmark.pedantic(simulate, rounds=3, iterations=1)
    benchmark.extra_info["decisions"] = decisions
    benchmark.extra_info["decisions_per_s"] = round(decisions / benchmark.stats.stats.min)
    assert decisions > 1000 * servers
