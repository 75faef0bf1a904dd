"""Jobs that ask for nodes (Slurm's `--nodes`): their GPUs lie evenly over so many at least."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.job_records import NodeOutage, sampled_variability
from jobs.policies.job_cluster import JobArrived, NodeGroup, Pool, RefuseJob, Speeds
from jobs.policies.job_scheduler import JobScheduler
from jobs.policies.named_policies import policy_of
from tests.jobs.sim.cluster_models import S, jobs, run, seconds
from tests.jobs.sim.test_laws import BLIND, KNOWING, drawn, watched

# ------------------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("nodes, starts", [(1, [0, 1, 2]), (2, [0, 10, 10])])
def test_who_asks_for_two_nodes_waits_for_both(nodes: int, starts: list[float]) -> None:
    """Two nodes of 4. Job 0 holds all of one until 10 s; job 1 wants 2 GPUs; job 2 (4) stands behind it."""
    scene = jobs((0, 10, 4), (1, 1, 2), (2, 1, 2), nodes=[1, nodes, 1])
    assert seconds(run("fifo", scene, nodes=(4, 4)).start_ns) == starts


def test_who_asks_for_nodes_does_not_keep_others_out_that_fit_on_one() -> None:
    """Nodes of 4, and 3 and 0 of them free: 2 GPUs on two nodes do not fit, 3 on one do."""
    scene = jobs((0, 10, 4), (0, 10, 1), (1, 1, 2), (1, 1, 3), nodes=[1, 1, 2, 1])
    assert seconds(run("fifo-first-fit", scene, nodes=(4, 4)).start_ns) == [0, 0, 10, 1]


def test_who_asks_for_nodes_does_not_keep_larger_gangs_out_that_need_one_more() -> None:
    """Three nodes of 8, 6 free on each: 14 GPUs on two (7 + 7) do not fit, 18, which need three (6 + 6 + 6), do."""
    scene = jobs((0, 10, 6), (1, 1, 14), (1, 1, 18), nodes=[3, 2, 2])
    assert seconds(run("fifo-first-fit", scene, groups=(NodeGroup(3, 8),)).start_ns) == [0, 10, 1]


def test_a_reservation_is_of_as_many_nodes() -> None:
    """Two nodes of 4: one is held until 10 s, 3 of the other are free. Job 2 (1 + 1) is promised 10 s on both.

    Of the 3 it will have one, so a long job of 3 may not overtake, and one of 2 may.
    """
    scene = jobs((0, 10, 4), (0, 20, 1), (1, 5, 2), (2, 30, 3), (3, 30, 2), nodes=[1, 1, 2, 1, 1])
    assert seconds(run("fifo-easy-oracle", scene, nodes=(4, 4)).start_ns) == [0, 0, 10, 10, 3]


@pytest.mark.parametrize("nodes, stops", [(1, [1, 0, 0]), (2, [1, 1, 0])])
def test_as_many_give_way_as_are_needed_for_the_nodes(nodes: int, stops: list[int]) -> None:
    """Two nodes of 2, each held by one job: for a gang of 2 on one node one of them stops, for 1 + 1 both."""
    record = run("srtf-oracle", jobs((0, 100, 2), (0, 50, 2), (1, 5, 2), nodes=[1, 1, nodes]), nodes=(2, 2))
    assert seconds(record.start_ns) == [0, 0, 1]
    assert record.preemptions.tolist() == stops


def test_in_rounds_who_waits_for_a_node_that_is_down_keeps_no_gpus_from_others() -> None:
    scene = jobs((0, 10, 4), (0, 10, 2), nodes=[2, 1])
    record = run("gavel", scene, nodes=(4, 4), outages=(NodeOutage(0, 100 * S, 1),))
    assert seconds(record.start_ns) == [100, 0]


def test_who_lies_on_the_nodes_that_it_asked_for_is_not_slowed_down() -> None:
    record = run("fifo", jobs((0, 10, 2), nodes=[2]), nodes=(2, 2), speeds=Speeds(spread_slowdown=3.0))
    assert seconds(record.end_ns) == [10]


def test_more_nodes_than_there_are_are_refused_with_the_reason() -> None:
    scheduler = JobScheduler(policy_of("fifo"), [NodeGroup(2, 8)])
    assert scheduler.handle(JobArrived(0, 3, 0, nodes=3), 0) == [
        RefuseJob(0, "asks for 3 nodes; no pool that it may use has so many, and 3 GPUs")
    ]
    assert scheduler.handle(JobArrived(1, 3, 0, nodes=2), 0) == []


@pytest.mark.parametrize("name", ["fifo-variability-aware", "fifo-choice-program"])
def test_who_would_choose_nodes_leaves_it_to_the_search(name: str) -> None:
    """One GPU on each of three nodes: then no whole node is left."""
    groups = (NodeGroup(3, 4),)
    scene = jobs((0, 10, 3), (1, 5, 4), nodes=[3, 1])
    record = run(name, scene, groups=groups, variability=sampled_variability(groups, {"": 0.1}, 0))
    assert record.start_ns.tolist() == [0, record.end_ns[0]]


# ----------------------------------------------------------------------------------------------------------- laws


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
def test_all_work_is_done_on_as_many_nodes_as_were_asked_for(name: str, seed: int) -> None:
    these = drawn(seed)
    nodes = np.minimum(np.random.default_rng(seed).choice([1, 2, 3, 4], len(these)), these.gpus)
    record, simulation = watched(name, replace(these, nodes=nodes), seed)  # which proves it at each start
    assert (record.is_done | record.is_refused).all()
    assert record.is_refused[nodes == 4].all()
    assert record.is_done[nodes > 1].any()
    assert all(pool.free == [pool.size] * len(pool.nodes) for pool in simulation.scheduler.cluster.pools)
