"""The simulation against a quick model that shares no line with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from jobs.job_traces import JobTrace
from kit.random_streams import stream
from tests.jobs.sim.cluster_models import run, seconds
from tests.jobs.sim.quick_models import Jobs, ListModel, ends_on_one_node_s


def drawn(seed: int, many: int = 150) -> JobTrace:
    """On four nodes of eight: busy, with gangs of part of a node, of whole ones and of one and a half."""
    rng = stream(seed, "quick models")
    gpus = rng.choice([1, 2, 3, 4, 8, 12, 16], many, p=[0.4, 0.15, 0.1, 0.1, 0.15, 0.05, 0.05])
    return JobTrace.of(np.cumsum(rng.integers(0, 12, many)), rng.integers(1, 120, many), gpus)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["fifo", "fifo-first-fit", "smallest", "saf-oracle", "saf-oracle-strict"])
def test_lists_start_as_in_the_quick_model(name: str, seed: int) -> None:
    """Job by job, to the second."""
    jobs = drawn(seed)
    plain = Jobs(jobs.submit_s.tolist(), jobs.run_s.tolist(), jobs.gpus.tolist())
    keys: dict[str, Callable[[int], float]] = {
        "fifo": plain.submit_s.__getitem__,
        "smallest": plain.gpus.__getitem__,
        "saf": plain.area,
    }
    queueing = "strict" if name in ("fifo", "saf-oracle-strict") else "first-fit"
    model = ListModel(plain, keys[name.partition("-")[0]], queueing, nodes=4)
    record = run(name, jobs, nodes=[8] * 4)
    assert record.wait_s.tolist() == model.waits_s().tolist()
    assert record.wait_s.max() > 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["srtf-oracle", "srsf-oracle"])
def test_who_comes_first_has_the_gpus(name: str, seed: int) -> None:
    """Also those that are left over where a job was stopped for one that arrives: the first of all that wait."""
    jobs = drawn(seed)
    plain = Jobs(jobs.submit_s.tolist(), jobs.run_s.tolist(), jobs.gpus.tolist())
    ends_s = ends_on_one_node_s(plain, 32, lambda left_s, gpus: left_s * (gpus if name == "srsf-oracle" else 1))
    record = run(name, jobs, nodes=[32])
    assert seconds(record.end_ns) == ends_s
    assert record.preemptions.sum() > 0
