"""A core that goes on from a snapshot, at whatever moment it was taken, answers as the one that it is of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.router_core import RouterCore
from policies.vocabulary import BatchingDelayRule, ModelChanged
from sim.simulated_cluster import Simulation
from tests import tiny
from tests.laws.test_conservation import Scenario, scenarios

# again for each core, or looked at in their own ways
BUILT = {"_take", "_fifo", "_batching_delays", "_queue_keys", "_servers"}


def remembered(core: RouterCore) -> dict[str, Any]:
    """All of its attributes, so that none is forgotten that comes to be."""
    plain = {name: value for name, value in vars(core).items() if name not in BUILT}
    return plain | {
        "fifo": core._fifo.in_order(),
        "holds": core._batching_delays.state(),
        "servers": [replace(server, views={}) for server in core._servers],
    }


def test_a_new_models_accuracies_are_kept() -> None:
    """Who goes on from a snapshot counts by what served then, not by what served at first."""
    config = tiny.cluster().router
    before, after = RouterCore(config), RouterCore(config)
    before.handle(ModelChanged(tuple(accuracy / 2 for accuracy in config.accuracies)), 0)
    assert remembered(before) != remembered(after)
    after.resume(before.snapshot())
    assert remembered(after) == remembered(before)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(scenarios(), st.integers(1, 40))
def test_a_core_goes_on_from_its_snapshots(scenario: Scenario, steps: int) -> None:
    """Under any faults and holds, one after so many steps; in the end it remembers the same."""
    simulation = Simulation(scenario.cluster, scenario.run)
    simulation.set_batching_delay_rule(BatchingDelayRule((4, 2, 4, 1), (20_000_000, 1_000_000, 5_000_000, 0)))
    record = simulation.run(tiny.Uniform(), np.random.default_rng(0))
    core = RouterCore(scenario.cluster.router)
    for number, step in enumerate(step for step in record.log if step.core == "router"):
        if number % steps == 0:
            core, before = RouterCore(scenario.cluster.router), core
            core.resume(before.snapshot())
            assert remembered(core) == remembered(before)
        event: Any = step.event
        assert tuple(core.handle(event, step.now_ns)) == step.commands
    assert remembered(core) == remembered(simulation.router)
