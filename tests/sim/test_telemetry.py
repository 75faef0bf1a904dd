"""What a sensor's reading belongs to: the moment at which it was sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.vocabulary import NS_PER_S
from sim.compiled.compiled_simulation import CompiledSimulation
from sim.simulated_cluster import Simulation
from tests import tiny

BEFORE_THE_SERVER = 3  # of a request's stages


@pytest.mark.parametrize("engine", [Simulation, CompiledSimulation])
def test_the_queue_length_is_that_of_the_moment_of_sampling(engine: Any) -> None:
    """Told by the requests' own records: who was at the server then. The lag is longer than most images are there."""
    sensor = {"period_s": 0.05, "lag_s": 0.04, "power_window_s": 0.1, "utilization_window_s": 0.1}
    lagging = tiny.profile(segments=1, widths=(1.0,), sensor=sensor)
    spec = tiny.cluster([lagging], router={"outstanding_micro_batches": 1000})
    run = tiny.run(spec, tiny.poisson_s(250, 1.0), 1.0)
    record = engine(spec, run).run(tiny.Uniform(widths=(1.0,)), np.random.default_rng(0))
    came_ns = np.array([request.arrived_ns + sum(request.stages_ns[:BEFORE_THE_SERVER]) for request in record.requests])
    left_ns = np.array([request.finished_ns for request in record.requests])
    expected = [int(((came_ns <= at) & (at < left_ns)).sum()) for at in (p.sampled_ns for p in record.telemetry)]
    assert [point.queue_length for point in record.telemetry] == expected
    assert len(set(expected)) > 3
    assert all(point.sampled_ns % (NS_PER_S // 20) == 0 for point in record.telemetry)
