"""A budget becomes a list of steps: never without a key, and honest about what it leaves out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.costs import costs_of
from calibrate.plan import (
    LAVISH,
    MIN_BATCHES,
    TRANSFER_BYTES,
    CalibrationPlan,
    Extras,
    LoadCycle,
    Solo,
    Steady,
    Together,
    Transfer,
    full_grid,
    make_plan,
    rank_batches,
    scouted_batches,
)
from calibrate.session import largest_transfer_bytes
from hw.agent.torch_outfit import ARENA_BYTES
from hw.networks.slimresnet import SlimResNet
from hw.transport.messages import Point
from tests.calibrate.fake import all_keys
from tests.hw.worlds import TINY


def plan(
    budget_s: float, limit: int = 64, forward_s: float = 1e-3, seed: int = 0, extras: Extras | None = None
) -> CalibrationPlan:
    rng = np.random.default_rng(seed)
    return make_plan(all_keys(), limit, budget_s, lambda _: forward_s, extras or Extras(False, False), rng)


@settings(max_examples=30)
@given(st.floats(0.0, 2000.0), st.integers(1, 200), st.floats(1e-5, 1.0), st.integers(0, 5))
def test_every_key_is_covered_whatever_the_budget(budget_s: float, limit: int, forward_s: float, seed: int) -> None:
    """Each key is required at the first and the last batch size and at least at four where there are so many."""
    made = plan(budget_s, limit, forward_s, seed)
    required = [p.step for p in made.steps if p.required]
    for key in all_keys():
        batches = {s.point.batch for s in required if isinstance(s, Solo) and s.point.key == key and not s.held_out}
        assert {1, limit} <= batches <= set(range(1, limit + 1))
        assert len(batches) >= min(MIN_BATCHES, limit)
    assert {(s.segment, s.width) for s in required if isinstance(s, LoadCycle)} == {key[:2] for key in all_keys()}


@settings(max_examples=30)
@given(st.floats(0.0, 2000.0), st.integers(5, 200), st.integers(0, 5))
def test_held_out_points_are_not_fitted(budget_s: float, limit: int, seed: int) -> None:
    """No point or set stands on both sides, also where time is left for batch sizes that were given up."""
    made = plan(budget_s, limit, seed=seed)
    steps = [p.step for p in made.steps]
    solos = [s for s in steps if isinstance(s, Solo)]
    held_out = {s.point for s in solos if s.held_out}
    assert held_out
    assert not held_out & {s.point for s in solos if not s.held_out}
    assert all(point.batch not in made.batches for point in held_out)
    sets = [s for s in steps if isinstance(s, Together)]
    assert {s.points for s in sets if s.held_out}
    assert not {s.points for s in sets if s.held_out} & {s.points for s in sets if not s.held_out}


def test_a_plan_keeps_to_its_budget_where_it_can() -> None:
    """The guessed cost stays within the budget, and a larger one buys more."""
    small, middle, large = plan(5.0), plan(60.0), plan(3000.0)
    assert small.estimated_s <= 5.0
    assert middle.estimated_s <= 60.0
    assert small.estimated_s < middle.estimated_s < large.estimated_s
    assert large.effort == LAVISH
    assert large.omitted == ()


def test_what_is_left_out_is_said() -> None:
    """Batch sizes, rounds and repeats by name; and that a budget cannot be met."""
    words = " ".join(plan(0.1).omitted)
    assert "rounds over the grid: 1 of 3 whole ones" in words
    assert "repeats: 3" in words
    assert "the budget is 0 s" in words


def test_batches_go_before_the_last_repeats_and_rounds_before_batches() -> None:
    """The order in which a shrinking budget costs: rounds, batch sizes, repeats."""
    made = [plan(budget_s) for budget_s in np.geomspace(600, 1, 60)]
    for larger, smaller in itertools.pairwise(made):
        assert smaller.effort.rounds <= larger.effort.rounds
        assert len(smaller.batches) <= len(larger.batches)
        assert smaller.effort.repeats <= larger.effort.repeats
        if len(smaller.batches) < len(full_grid(64)):
            assert smaller.effort.rounds == 1
        if smaller.effort.repeats < 30:
            assert len(smaller.batches) == MIN_BATCHES


def test_sets_are_identical_and_mixed_a_quarter_held_out() -> None:
    """Both kinds on both sides: identical ones alone cannot tell alpha from beta."""
    sets = [p.step for p in plan(3000.0).steps if isinstance(p.step, Together) and p.round == 1]
    for held_out in (False, True):
        kinds = {len(set(s.points)) == 1 for s in sets if s.held_out == held_out}
        assert kinds == {True, False}
    assert {len(s.points) for s in sets if len(set(s.points)) == 1} == {2, 4, 8}
    assert {s.across for s in sets} == {False}
    assert np.mean([s.held_out for s in sets]) == pytest.approx(0.25, abs=0.1)


@pytest.mark.parametrize("budget_s, sibling", list(itertools.product((5.0, 60.0, 3000.0), (False, True))))
def test_held_out_sets_are_of_every_size(budget_s: float, sibling: bool) -> None:
    """Identical sets of each size are fitted and held out; a lavish plan does so within each kind and process."""
    for seed in range(10):
        steps = [p.step for p in plan(budget_s, seed=seed, extras=Extras(False, False, sibling)).steps]
        sets = {s for s in steps if isinstance(s, Together)}
        identical = {s for s in sets if len(set(s.points)) == 1}
        sizes = {len(s.points) for s in identical}
        assert len(sizes) > 1
        for places in ({False}, {True}) if sibling and budget_s == 3000.0 else ({False, True},):
            for held_out in (False, True):
                chosen = {s for s in identical if s.held_out == held_out and s.across in places}
                assert sizes == {len(s.points) for s in chosen}
        assert np.mean([s.across for s in sets]) == pytest.approx(0.5 if sibling else 0.0, abs=0.1)
        assert np.mean([s.held_out for s in sets]) == pytest.approx(0.25, abs=0.1)


def test_rounds_that_the_rest_of_the_budget_completes_are_not_left_out() -> None:
    """The words count the whole rounds that the steps make, whatever effort they began with."""
    told = set()
    for budget_s in np.geomspace(5, 900, 60):
        made = plan(float(budget_s))
        solos = [(p.round, p.step) for p in made.steps if isinstance(p.step, Solo | Together)]
        first = {step for number, step in solos if number == 1}
        whole = [n for n in {n for n, _ in solos} if first <= {step for number, step in solos if number == n}]
        words = [text for text in made.omitted if text.startswith("rounds")]
        assert words == ([] if len(whole) >= 3 else [f"rounds over the grid: {len(whole)} of 3 whole ones"])
        told.add((made.effort.rounds, len(whole)))
    assert {(1, 1), (1, 2), (3, 3)} <= told


def test_one_round_repeats_some_points() -> None:
    """So that every profile knows how far two measurements of one thing lie apart."""
    small = plan(5.0)
    again = [p.step for p in small.steps if p.round == 2]
    assert small.effort.rounds == 1
    assert again
    assert all(isinstance(step, Solo) and not step.held_out for step in again)


@pytest.mark.parametrize("rise_s, told", [(1.0, False), (1.6, True)])
def test_a_rise_that_a_small_budget_cuts_is_said(rise_s: float, told: bool) -> None:
    """Where a power point is too short for it; with time enough it is dropped whole."""
    extras = Extras(power=True, peer=False, rise_s=rise_s)
    small, large = plan(30.0, extras=extras), plan(3000.0, extras=extras)
    said = [text for text in small.omitted if text.startswith("the power sensor's rise: 1.0 of 1.6 s")]
    assert small.effort.steady_s == 1.5
    assert bool(said) == told
    assert large.omitted == ()


def test_the_same_seed_gives_the_same_plan() -> None:
    """A resumed calibration finds its steps again; each round visits the same points in an order of its own."""
    assert plan(30.0, seed=3) == plan(30.0, seed=3)
    assert plan(30.0, seed=3) != plan(30.0, seed=4)
    rounds = [[p.step for p in plan(3000.0).steps if p.round == n and isinstance(p.step, Solo)] for n in (2, 3)]
    assert set(rounds[0]) == set(rounds[1])
    assert rounds[0] != rounds[1]


def test_ids_are_unique() -> None:
    """The log tells steps apart by them; without a sensor there are no power points."""
    assert str(Point(2, 0.5, 0.25, 8)) == "2/0.5/0.25/8"
    assert not {type(p.step) for p in plan(3000.0).steps} & {Steady, Transfer}
    ids = [p.id for p in plan(3000.0, extras=Extras(True, True)).steps]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(("largest_bytes", "more"), [(0, ()), (1 << 20, ()), (8_400_000, (8_400_000,))])
def test_transfers_go_up_to_the_largest_block(largest_bytes: int, more: tuple[int, ...]) -> None:
    """What serving moves at once; without a second server nothing is moved."""
    for peer, wanted in ((True, (*TRANSFER_BYTES, *more)), (False, ())):
        steps = [p.step for p in plan(600.0, extras=Extras(False, peer, largest_bytes=largest_bytes)).steps]
        assert {step.size_bytes for step in steps if isinstance(step, Transfer)} == set(wanted)


@settings(max_examples=40)
@given(st.integers(1, 300))
def test_without_a_look_the_full_grid_is_ranked_by_gaps(limit: int) -> None:
    """All of it, each size once: the ends, a pair, then the middle of the widest gap."""
    ranked = rank_batches((), limit)
    assert sorted(ranked) == list(full_grid(limit))
    assert ranked[: min(3, limit)] == (1, limit, 2)[: min(3, limit)]


def test_a_step_is_found_and_bracketed() -> None:
    """Where a library changes its kernel at 16, both 15 and 16 are measured, before what is smooth."""
    curve = {b: (1.0 if b < 16 else 6.0) + 0.01 * b for b in scouted_batches(32)}
    assert {15, 16} <= set(rank_batches((curve, curve), 32)[:5])
    smooth = {b: 1.0 + 0.1 * b for b in scouted_batches(32)}
    assert sorted(rank_batches((smooth,), 32)) == list(full_grid(32))


def test_the_largest_block_is_of_the_segment_that_leaves_most() -> None:
    """Half of an arena at most."""
    costs = costs_of(SlimResNet(TINY), "tiny", "0")
    image_bytes = max(max(row) for row in costs.info.activation_bytes)
    assert largest_transfer_bytes(costs, 32) == 32 * image_bytes
    assert largest_transfer_bytes(costs, 10**9) == ARENA_BYTES // 2


@pytest.mark.parametrize("budget_s, is_told", [(5.0, True), (100_000.0, False)])
def test_short_looks_at_power_are_told(budget_s: float, is_told: bool) -> None:
    """Half a second of a sensor that is renewed ten times a second is off by 5 %."""
    made = plan(budget_s, 16, 1e-4, extras=Extras(True, False, rise_s=1.0))
    assert any("s of each are looked at, instead of 2 s" in words for words in made.omitted) == is_told
