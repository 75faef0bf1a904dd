"""Choices that are left open: whose turn it is, and what a chooser sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.policies.chosen_queueing import NAMES, WAIT, Choosing, Programme, View, candidates, uses, ways
from jobs.policies.job_cluster import NodeGroup, Pool
from jobs.policies.named_policies import JobPolicy, policy_of, shown_name
from tests.jobs.sim.cluster_models import jobs, run, seconds

CHOICE = JobPolicy("fifo", "choice", placement="lowest", learned="told")


class Told:
    """Does as a function of the view says, and keeps the views."""

    def __init__(self, answer: Callable[[View], int]) -> None:
        self.answer, self.views = answer, list[View]()

    def __call__(self, view: View) -> int:
        self.views.append(view)
        return self.answer(view)


def choosing(answer: Callable[[View], int]) -> dict[str, Choosing]:
    return {"choosing": Choosing(Told(answer))}


def test_a_masked_choice_waits_where_it_is_told_to() -> None:
    """Waiting for the end at 10 lets the pair of 4 go before the single GPU that came first."""
    these = jobs((0, 10, 3), (1, 30, 1), (2, 5, 4))

    def answer(view: View) -> int:
        assert view.can_wait == (view.now_ns not in (0, 10e9, 15e9))  # when nothing runs
        return WAIT if view.now_ns in (1e9, 2e9) else int(view.gpus.argmax())

    assert seconds(run(CHOICE, these, run_options=choosing(answer)).start_ns) == [0, 15, 10]
    assert seconds(run(CHOICE, these, run_options=choosing(lambda view: int(view.may.argmax()))).start_ns) == [0, 1, 31]


@pytest.mark.parametrize("order", ["fifo", "smallest", "sjf-oracle"])
def test_first_fit_is_the_masked_choice_of_whoever_comes_first(order: str) -> None:
    rng = np.random.default_rng(3)
    these = jobs(*zip(np.sort(rng.integers(0, 60, 40)), rng.integers(1, 30, 40), rng.integers(1, 5, 40), strict=True))
    groups = (NodeGroup(2, 4), NodeGroup(1, 2, "other"))
    rule = policy_of(f"{order}-choice-lowest")
    asked = run(
        replace(rule, learned="told"), these, groups=groups, run_options=choosing(lambda view: int(view.may.argmax()))
    )
    first_fit = run(f"{order}-first-fit-lowest", these, groups=groups).start_ns.tolist()
    assert run(rule, these, groups=groups).start_ns.tolist() == asked.start_ns.tolist() == first_fit


def test_choice_view_inputs_match_hand_calculation() -> None:
    """At 50 s: nodes of 8 and 2. A job of 8 has the larger; jobs of 1 and 8 wait, of which only the first fits."""
    told = Told(lambda view: int(view.may.argmax()))
    these = jobs((0, 1000, 8), (50, 10, 1), (50, 1000, 8))
    policy = replace(CHOICE, order="saf", estimate="oracle")
    run(policy, these, nodes=(8, 2), run_options={"choosing": Choosing(told)})
    view = next(view for view in told.views if len(view) == 2)
    assert (view.gpus.tolist(), view.may.tolist()) == ([1, 8], [True, False])
    rows, e = view.inputs, 1e-5
    after = (2 - 9 + 10) / (20 + e)
    assert rows[0] == pytest.approx([0, 1 / 8, 1 / 2 / 10, after, 0, 1 / 3, 1 - e, 1 / 8], abs=1e-6)
    assert rows[1] == pytest.approx([0, 1 - e, 8 / 2 / 10, after, 0, e, e, np.log10(8000) / 8], abs=1e-6)
    assert len(NAMES) == rows.shape[1]


def test_a_field_is_of_those_pools_alone_between_which_jobs_choose() -> None:
    told = Told(lambda view: int(view.may.argmax()))
    these = jobs((0, 10, 4), (0, 5, 8), (1, 5, 4), (2, 5, 2), (3, 5, 3), vc=["a", "b", "a", "b", "b"])
    groups = (NodeGroup(1, 4, vc="a"), NodeGroup(2, 4, vc="b"))
    run(CHOICE, these, groups=groups, run_options={"choosing": Choosing(told)})
    view = next(view for view in told.views if len(view) == 3)
    of_b = (8 - 5 + 8) / (2 * 8)  # free GPUs, their demand, all
    assert view.inputs[:, 3] == pytest.approx([(0 - 4 + 4) / (2 * 4), of_b, of_b], abs=1e-5)


def by_trying_all(
    free: Sequence[int], size: int, gpus: int, nodes: int
) -> set[tuple[tuple[int, tuple[int, ...]], ...]]:
    """What is told apart of all assignments to so many nodes in which every kind of nodes but the last is used up."""

    def assignments(place: int, left: int, used: int) -> list[list[int]]:
        if place == len(free):
            return [[]] if left == 0 and used == nodes else []
        return [
            [take, *rest]
            for take in range(min(free[place], left) + 1)
            for rest in assignments(place + 1, left - take, used + (take > 0))
        ]

    kinds = set()
    for one in assignments(0, gpus, 0):
        kind = {
            value: tuple(sorted((t for f, t in zip(free, one, strict=True) if f == value and t), reverse=True))
            for value in set(free)
        }
        used = [(value, parts) for value, parts in sorted(kind.items(), reverse=True) if parts]
        if all(part == value for value, parts in used[:-1] for part in parts):
            kinds.add(tuple(used))
    return kinds


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(1, 9))
def test_ways_are_those_that_trying_all_finds(free: list[int], gpus: int) -> None:
    size = 4
    counts = tuple(free.count(value) for value in range(size + 1))
    fewest = -(-gpus // size)
    for nodes in (fewest, fewest + 1):
        assert set(uses(counts, gpus, nodes)) == by_trying_all(free, size, gpus, nodes)
    more = [
        way
        for way in by_trying_all(free, size, gpus, fewest + 1)
        if sum(
            (value == size) * (take < size) - (value < size) * (take == value) for value, parts in way for take in parts
        )
        <= 0
    ]
    few = len(by_trying_all(free, size, gpus, fewest))
    assert ways(counts, gpus) == (min(few, 2), int(bool(more) and gpus > 1))


def pool(*free: int, size: int = 8) -> Pool:
    made = Pool(0, range(len(free)), size, "gpu", "")
    return made.with_free(free)


def test_candidates_by_hand() -> None:
    """4 GPUs, nodes with 8, 5, 4, 2 free: filling node 2 leaves the fewest partly used; node 0 balances best. On two
    nodes, node 2's 4 can't be split off a whole one: of partly used nodes, 2 + 2 of nodes 3 and 1 end node 3."""
    found = [each.allocation for each in candidates([pool(8, 5, 4, 2)], 4)]
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
def test_program_solution_is_the_first_of_the_best_by_brute_force(program: Programme) -> None:
    costs = np.array(least(program))
    assert program.solve() == int((costs <= costs.min() + 1e-7).argmax())


@pytest.mark.parametrize("learned", ["", "first"])
def test_a_run_under_the_programme_is_whole(learned: str) -> None:
    rng = np.random.default_rng(1)
    sizes = rng.choice([1, 2, 4, 8, 16], 60)
    these = jobs(*zip(np.sort(rng.integers(0, 300, 60)), rng.integers(1, 60, 60), sizes, strict=True))
    policy = JobPolicy("fifo", "choice", placement="program", learned=learned)
    options = {"choosing": Choosing(lambda view: int(view.may.argmax()), lambda view: -view.age_s) if learned else None}
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
