"""A plan measures every batch size at every key in each round; a budget decides on the number of rounds alone."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.measurement_plan import (
    DUTIES,
    EFFORTS,
    MIN_BATCHES,
    PATHS,
    TRANSFER_BYTES,
    BesideLoad,
    CalibrationPlan,
    Extras,
    InstancePoints,
    Paths,
    Steady,
    Together,
    Transfer,
    Watch,
    costs_of,
    full_grid,
    guess_from,
    make_plan,
    path_of,
    powers_of_two,
)
from calibrate.session import largest_transfer_bytes
from hw.networks.architectures import SLIMRESNETS, SlimResNet
from hw.transport.messages import Point
from hw.worker.torch_outfit import ARENA_BYTES
from tests.calibrate.fake import all_keys, model_costs
from tests.hw.tiny import TINY

Kind = Literal["cpu", "cuda"]


ALL = Extras(power=True, peer=True)


def plan(kind: Kind = "cpu", limit: int = 32, extras: Extras = ALL, seed: int = 0) -> CalibrationPlan:
    sizes = full_grid(limit) if kind == "cpu" else powers_of_two(limit)
    return make_plan(kind, all_keys(), sizes, extras, lambda _: 1e-3, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("limit", [1, 2, 3, 12, 64])
def test_each_round_times_every_size_at_every_key(kind: Kind, limit: int) -> None:
    """Each instance is loaded once a round, from disk in the first; each round has an order of its own."""
    made = plan(kind, limit)
    effort, instances = EFFORTS[kind], {key[:2] for key in all_keys()}
    every = sorted(Point(*key, size) for key in all_keys() for size in made.batches)
    orders = []
    for number in range(1, effort.most_rounds + 1):
        steps = [
            p.step for p in made.steps if p.round == number and isinstance(p.step, InstancePoints) and p.step.points
        ]
        points = [point for step in steps for point in step.points]
        assert sorted(points) == every
        assert sorted((step.segment, step.width) for step in steps) == sorted(instances)
        assert {step.from_disk for step in steps} == {number == 1}
        orders.append(points)
    assert len(set(map(tuple, orders))) == effort.most_rounds or limit == 1
    required = effort.rounds if len(made.batches) > 2 else 2  # with fewer sizes only rounds state an error
    assert {p.round for p in made.steps if p.required} == set(range(1, required + 1))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_steps_without_points_are_planned_between_the_first_two_rounds(kind: Kind) -> None:
    """Only sets of instances are measured again, in rounds that are not required."""
    made = plan(kind)
    others = [p for p in made.steps if not (isinstance(p.step, InstancePoints) and p.step.points)]
    assert {p.round for p in others if not isinstance(p.step, Together)} == {1}
    assert {p.round for p in others} == {1, *range(EFFORTS[kind].rounds + 1, EFFORTS[kind].most_rounds + 1)}
    kinds = {type(p.step) for p in others}
    assert {Paths, BesideLoad} <= kinds if kind == "cuda" else not {Paths, BesideLoad} & kinds
    reloads = {(p.step.segment, p.step.width) for p in others if isinstance(p.step, InstancePoints)}
    assert reloads == (set() if kind == "cuda" else {key[:2] for key in all_keys()})
    assert (Watch in kinds) == (kind == "cpu")


def test_a_third_of_the_sets_and_of_the_power_points_is_held_out() -> None:
    sets = [p.step for p in plan().steps if isinstance(p.step, Together) and p.round == 1]
    for across in (False, True):
        for held_out, number in ((True, 2), (False, 4)):
            some = [s for s in sets if (s.held_out, s.across) == (held_out, across)]
            assert len(some) == number
            assert {len(s.points) for s in some} == {2, 4}
    assert not {s.points for s in sets if s.held_out} & {s.points for s in sets if not s.held_out}
    powered = [
        p.step for p in plan("cuda", extras=Extras(True, False, 1.5, awake=True)).steps if isinstance(p.step, Steady)
    ]
    assert sum(step.held_out for step in powered) == 2
    assert {step.duration_s for step in powered} == {2.5}
    assert sorted({step.duty for step in powered}) == [*DUTIES, 1.0]
    assert not any(isinstance(p.step, Steady | Transfer) for p in plan(extras=Extras(False, False)).steps)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_same_seed_gives_the_same_plan(kind: Kind) -> None:
    """A resumed calibration finds its steps again; their names tell them apart."""
    made = plan(kind, seed=3)
    assert made == plan(kind, seed=3)
    assert made != plan(kind, seed=4)
    ids = [p.id for p in made.steps]
    assert len(ids) == len(set(ids))


def test_the_smallest_network_has_each_step_once() -> None:
    """One key and one size: short and long sets are the same."""
    made = make_plan("cpu", [(1, 1.0, 0.0)], (1,), Extras(True, True), lambda _: 1e-3, np.random.default_rng(0))
    ids = [p.id for p in made.steps]
    assert len(ids) == len(set(ids))


def test_paths_follow_one_another() -> None:
    (paths,) = {p.step for p in plan("cuda").steps if isinstance(p.step, Paths)}
    assert len(paths.paths) == PATHS
    for path in paths.paths:
        assert [point.segment for point in path] == sorted({key[0] for key in all_keys()})
        assert {point.key for point in path} <= set(all_keys())
        assert len({point.batch for point in path}) == 1
    assert len({point.batch for path in paths.paths for point in path}) > 1


@pytest.mark.parametrize(("largest_bytes", "more"), [(0, ()), (1 << 20, ()), (8_400_000, (8_400_000,))])
def test_transfers_go_up_to_the_largest_block(largest_bytes: int, more: tuple[int, ...]) -> None:
    """What serving moves at once; without a second server nothing is moved."""
    for peer, wanted in ((True, (*TRANSFER_BYTES, *more)), (False, ())):
        steps = [p.step for p in plan(extras=Extras(False, peer, largest_bytes=largest_bytes)).steps]
        assert {step.size_bytes for step in steps if isinstance(step, Transfer)} == set(wanted)


def test_the_largest_block_is_of_the_segment_that_leaves_most() -> None:
    costs = costs_of(SlimResNet(TINY), "tiny", "0")
    image_bytes = max(max(row) for row in costs.info.activation_bytes)
    assert largest_transfer_bytes(costs, 32) == 32 * image_bytes
    assert largest_transfer_bytes(costs, 10**9) == ARENA_BYTES // 2


@given(st.integers(1, 300))
def test_a_cpus_sizes_are_powers_of_two_and_the_limit(limit: int) -> None:
    grid = full_grid(limit)
    assert {1, limit} <= set(powers_of_two(limit)) <= set(grid)
    assert list(grid) == sorted(set(grid))
    assert len(grid) >= min(MIN_BATCHES, limit)


@pytest.mark.parametrize("limit", [1, 16])
def test_two_blocks_tell_a_floor_and_a_price(limit: int) -> None:
    """A guess of every pass: all passes on the path take the two times together, and narrower ones less."""
    costs = model_costs()
    paths = tuple(path_of(sorted(costs.keys), size, max) for size in (1, limit))
    assert [point.width for point in paths[0]] == [1.0, 1.0]
    micro_batches_s = (2e-3, 2e-3 if limit == 1 else 9e-3)
    guess = guess_from(costs.keys, paths, micro_batches_s)
    for path, micro_batch_s in zip(paths, micro_batches_s, strict=True):
        assert sum(map(guess, path)) == pytest.approx(micro_batch_s)
    assert 0 < guess(Point(2, 0.5, 0.5, limit)) < guess(Point(2, 1.0, 1.0, limit))


def test_a_minute_is_enough_for_a_gpu_with_four_segments_of_four_widths() -> None:
    """312 points at six sizes."""
    keys = sorted(SlimResNet(SLIMRESNETS["slimresnet18"]).spec.work_keys())
    rng = np.random.default_rng(3)
    made = make_plan("cuda", keys, powers_of_two(32), Extras(True, True, 1.0), lambda _: 5e-4, rng)
    first = [p.step.points for p in made.steps if isinstance(p.step, InstancePoints) and p.round == 1]
    assert (len(first), sum(map(len, first))) == (16, 312)
    assert sum(p.estimated_s for p in made.steps if p.required) < 60
    assert 0 < made.round_s < 20
