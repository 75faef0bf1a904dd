"""EASY and conservative backfilling are what their definitions say, on many small worlds; and each in a scene."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.policies.job_cluster import NodeGroup
from tests.jobs.sim import brute_force
from tests.jobs.sim.cluster_models import jobs, run, seconds

Row = tuple[int, int, int, int, int]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 12),  # submitted
        st.integers(1, 9),  # runs
        st.integers(1, 8),  # GPUs
        st.integers(1, 12),  # requested
        st.sampled_from([1, 1, 2, 3]),  # nodes
    ),
    min_size=1,
    max_size=9,
)
KEYS: dict[str, Callable[[brute_force.Job], tuple[float, int]]] = {
    "fifo": lambda job: (job.submit, job.number),
    "sjf": lambda job: (job.estimate, job.number),
    "saf": lambda job: (job.estimate * job.gpus, job.number),
}


def by_definition(
    rows: list[Row], nodes: int, size: int, rule: brute_force.Rule, order: str, is_oracle: bool
) -> list[brute_force.Job]:
    many = [
        brute_force.Job(number, submit, ran, gpus, ran if is_oracle else asked, apart)
        for number, (submit, ran, gpus, asked, apart) in enumerate(rows)
    ]
    return brute_force.simulate(many, nodes, size, rule, KEYS[order])


@pytest.mark.parametrize("queueing", ["easy", "conservative"])
@settings(max_examples=150)
@given(
    rows=ROWS,
    nodes=st.integers(1, 3),
    size=st.integers(1, 4),
    order=st.sampled_from(sorted(KEYS)),
    is_oracle=st.booleans(),
)
def test_starts_are_those_of_the_definition(
    queueing: str, rows: list[Row], nodes: int, size: int, order: str, is_oracle: bool
) -> None:
    fitting = [(submit, ran, min(gpus, nodes * size), asked, apart) for submit, ran, gpus, asked, apart in rows]
    rows = sorted((*row[:4], min(row[4], row[2], nodes)) for row in fitting)
    rule = {"easy": brute_force.easy, "conservative": brute_force.conservative}[queueing]
    expected = by_definition(rows, nodes, size, rule, order, is_oracle)
    columns = {"requested_s": [row[3] for row in rows], "nodes": [row[4] for row in rows]}
    these = jobs(*(row[:3] for row in rows), **columns)
    estimate = "oracle" if is_oracle else "requested"
    record = run(f"{order}-{queueing}-{estimate}", these, groups=(NodeGroup(nodes, size),))
    assert seconds(record.start_ns) == [job.start for job in expected]
    if is_oracle and order == "fifo":  # a promise that is made with true durations is kept
        assert all(job.promised is None or job.start <= job.promised for job in expected)


# what blocks: job 0 holds 3 of 4 GPUs for 10 s, job 1 wants all 4; jobs 2 and 3 come later and want one


def test_a_job_over_its_estimate_counts_as_one_that_ends_in_a_second() -> None:
    """At 5 s job 0 should have ended at 4: job 1 is promised 6 s, so job 2 (2 s) may not overtake, job 3 (1 s) may."""
    scene = jobs((0, 9, 3), (1, 5, 4), (5, 2, 1), (5, 1, 1), requested_s=[4, 5, 2, 1])
    assert seconds(run("fifo-easy-requested", scene).start_ns) == [0, 9, 14, 5]


def test_types_that_share_no_job_have_reservations_of_their_own() -> None:
    """Both types are blocked by a large job each; a small one of the second type still may not delay its own."""
    scene = jobs(
        (0, 10, 1), (0, 10, 1), (1, 5, 2), (1, 5, 2), (2, 20, 1), (2, 20, 1),
        gpu_types=["a", "b", "a", "b", "a", "b"],
    )  # fmt: skip
    groups = (NodeGroup(1, 2, "a"), NodeGroup(1, 2, "b"))
    assert seconds(run("fifo-easy-oracle", scene, groups=groups).start_ns) == [0, 0, 10, 10, 15, 15]


def test_a_reservation_is_made_where_it_can_be_kept_first() -> None:
    """Job 2 may have either type: b is free at 5 s, a at 10 s. So job 3 may use the rest of a; job 4 waits for b."""
    scene = jobs(
        (0, 10, 1), (0, 5, 1), (1, 5, 2), (2, 20, 1), (2, 20, 1),
        gpu_types=["a", "b", "", "a", "b"],
    )  # fmt: skip
    groups = (NodeGroup(1, 2, "a"), NodeGroup(1, 2, "b"))
    assert seconds(run("fifo-easy-oracle", scene, groups=groups).start_ns) == [0, 0, 5, 2, 10]
