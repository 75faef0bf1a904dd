"""RLTune's program: its candidates by hand, its solutions against trying all."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.policies.chosen_queueing import Candidate, Choosing, Programme, View, candidates
from jobs.policies.job_cluster import Pool
from jobs.policies.named_policies import JobPolicy, policy_of, shown_name
from tests.jobs.sim.cluster_models import jobs, run, seconds


def pool(*free: int, size: int = 8) -> Pool:
    made = Pool(0, range(len(free)), size, "gpu", "")
    return made.with_free(free)


def allocations(found: list[Candidate]) -> list[tuple[tuple[int, int], ...]]:
    return [each.allocation for each in found]


def test_candidates_by_hand() -> None:
    """4 GPUs, nodes with 8, 5, 4, 2 free: filling node 2 leaves the fewest partly used; node 0 balances best. On two
    nodes, node 2's 4 can't be split off a whole one: of partly used nodes, 2 + 2 of nodes 3 and 1 end node 3."""
    found = allocations(candidates([pool(8, 5, 4, 2)], 4))
    assert found[0] == ((2, 4),)
    assert found[1] == ((0, 4),)
    assert all(len(each) == 2 for each in found[2:])
    assert len(found) <= 4


@st.composite
def programs(draw: st.DrawFn) -> Programme:
    size = np.array(draw(st.lists(st.sampled_from([2, 4, 8]), min_size=2, max_size=5)))
    free = np.array([draw(st.integers(0, int(most))) for most in size])
    first = np.array([[draw(st.integers(0, int(most))) for most in free] for _ in range(draw(st.integers(2, 4)))])
    others = [
        np.array([[draw(st.integers(0, int(most))) for most in free] for _ in range(draw(st.integers(1, 3)))])
        for _ in range(draw(st.integers(0, 2)))
    ]
    return Programme(free, size, [first, *others])


def cost(program: Programme, chosen: tuple[int | None, ...]) -> float:
    """The objective for candidates by job (None: not placed); infinite where they don't fit in parallel."""
    a, b, g = program.weights
    taken = [takes[way] for takes, way in zip(program.takes, chosen, strict=True) if way is not None]
    free = program.free - np.sum(taken, axis=0)
    if (free < 0).any():
        return np.inf
    partly = int(((free > 0) & (free < program.size)).sum())
    y = sum(way is not None for way in chosen[1:])
    return float(a * partly + b * (free.max() - free.min()) - g * y)


def least(program: Programme) -> list[float]:
    """For each candidate of the first job, the least cost with any of the others'."""
    others = [[None, *range(len(takes))] for takes in program.takes[1:]]
    return [min(cost(program, (way, *rest)) for rest in product(*others)) for way in range(len(program.takes[0]))]


@settings(deadline=None)
@example(  # equally good: who follows takes its second candidate beside the first, its first beside the second
    Programme(np.array([4, 4]), np.array([4, 4]), [np.array([[4, 0], [0, 4]]), np.array([[4, 0], [0, 4]])])
)
@given(programs())
def test_it_takes_the_first_of_those_that_trying_all_finds_best(program: Programme) -> None:
    costs = np.array(least(program))
    assert program.solve() == int((costs <= costs.min() + 1e-7).argmax())


def the_first(view: View) -> int:
    return int(view.may.argmax())


@pytest.mark.parametrize("learned", ["", "first"])
def test_a_run_under_the_programme_is_whole(learned: str) -> None:
    rng = np.random.default_rng(1)
    sizes = rng.choice([1, 2, 4, 8, 16], 60)
    these = jobs(*zip(np.sort(rng.integers(0, 300, 60)), rng.integers(1, 60, 60), sizes, strict=True))
    policy = JobPolicy("fifo", "choice", placement="program", learned=learned)
    options = {"choosing": Choosing(the_first, lambda view: -view.age_s) if learned else None}
    record = run(policy, these, nodes=(8, 8, 8, 2, 2), run_options=options)
    assert (record.is_done | record.is_refused).all()


def test_a_rule_has_the_programme_by_a_word() -> None:
    """Nodes of 8 and 2 GPUs, jobs of 2 and 8: `lowest` takes the first for the first job, the program the other."""
    these = jobs((0, 100, 2), (1, 100, 8))
    starts_s = {
        placement: seconds(run(JobPolicy("fifo", "choice", placement=placement), these, nodes=(8, 2)).start_ns)
        for placement in ("lowest", "program")
    }
    assert starts_s == {"lowest": [0, 100], "program": [0, 1]}
    assert shown_name(policy_of("smallest-choice-program")) == "smallest-choice-program"
