"""Jobs that ask for nodes (Slurm's `--nodes`): their GPUs lie evenly over so many at least."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.policies.job_cluster import JobArrived, NodeGroup, Pool, RefuseJob
from jobs.policies.job_scheduler import JobScheduler
from jobs.policies.named_policies import policy_of
from tests.jobs.sim.test_laws import BLIND, KNOWING, drawn, watched


def test_more_nodes_than_there_are_are_refused_with_the_reason() -> None:
    scheduler = JobScheduler(policy_of("fifo"), [NodeGroup(2, 8)])
    assert scheduler.handle(JobArrived(0, 3, 0, nodes=3), 0) == [
        RefuseJob(0, "requests 3 nodes and 3 GPUs; no pool that it may use has both")
    ]
    assert scheduler.handle(JobArrived(1, 3, 0, nodes=2), 0) == []


@given(
    free=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    gpus=st.integers(2, 20),
    nodes=st.integers(2, 6),
    rest=st.sampled_from(["fullest", "emptiest", "lowest"]),
)
def test_an_even_place_is_found_where_there_is_one(free: list[int], gpus: int, nodes: int, rest: Any) -> None:
    nodes = min(nodes, gpus)
    place = Pool(0, range(len(free)), 4, "gpu", "").with_free(free).even(gpus, nodes, rest)
    parts = [gpus // nodes + (number < gpus % nodes) for number in range(nodes)]
    emptiest = sorted(free, reverse=True)[:nodes]
    assert (place is not None) == (len(free) >= nodes and all(map(int.__ge__, emptiest, parts)))
    if place is not None:
        assert sorted((part for _, part in place), reverse=True) == parts
        assert all(part <= free[node] for node, part in place)
        assert len({node for node, _ in place}) == nodes


@pytest.mark.parametrize("name", BLIND + KNOWING)
@settings(max_examples=2)
@given(seed=st.integers(0, 10_000))
def test_jobs_run_on_at_least_the_requested_number_of_nodes(name: str, seed: int) -> None:
    these = drawn(seed)
    nodes = np.minimum(np.random.default_rng(seed).choice([1, 2, 3, 4], len(these)), these.gpus)
    record, simulation = watched(name, replace(these, nodes=nodes), seed)  # which proves it at each start
    assert (record.is_done | record.is_refused).all()
    assert record.is_refused[nodes == 4].all()
    assert record.is_done[nodes > 1].any()
    assert all(pool.free == [pool.size] * len(pool.nodes) for pool in simulation.scheduler.cluster.pools)
