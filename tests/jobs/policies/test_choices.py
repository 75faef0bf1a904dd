"""Choices that are left open: whose turn it is, and what a chooser sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.policies.chosen_queueing import NAMES, WAIT, Choosing, View, uses, ways
from jobs.policies.job_cluster import NodeGroup
from jobs.policies.named_policies import JobPolicy, policy_of
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


# ------------------------------------------------------------------------------------------------------- queueings


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
    """With a chooser, and with nobody to choose."""
    rng = np.random.default_rng(3)
    these = jobs(*zip(np.sort(rng.integers(0, 60, 40)), rng.integers(1, 30, 40), rng.integers(1, 5, 40), strict=True))
    groups = (NodeGroup(2, 4), NodeGroup(1, 2, "other"))
    rule = policy_of(f"{order}-choice-lowest")
    asked = run(
        replace(rule, learned="told"), these, groups=groups, run_options=choosing(lambda view: int(view.may.argmax()))
    )
    first_fit = run(f"{order}-first-fit-lowest", these, groups=groups).start_ns.tolist()
    assert run(rule, these, groups=groups).start_ns.tolist() == asked.start_ns.tolist() == first_fit


# ----------------------------------------------------------------------------------------------------------- views


def test_what_is_seen_by_hand() -> None:
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
    """Two VCs: the demand on one is not that on the other."""
    told = Told(lambda view: int(view.may.argmax()))
    these = jobs((0, 10, 4), (0, 5, 8), (1, 5, 4), (2, 5, 2), (3, 5, 3), vc=["a", "b", "a", "b", "b"])
    groups = (NodeGroup(1, 4, vc="a"), NodeGroup(2, 4, vc="b"))
    run(CHOICE, these, groups=groups, run_options={"choosing": Choosing(told)})
    view = next(view for view in told.views if len(view) == 3)
    of_b = (8 - 5 + 8) / (2 * 8)  # free GPUs, their demand, all
    assert view.inputs[:, 3] == pytest.approx([(0 - 4 + 4) / (2 * 4), of_b, of_b], abs=1e-5)


# ------------------------------------------------------------------------------------------------------------ ways


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
