from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rules import proteus
from policies.rules.proteus import GAP, Milp, Placement, make_milp, plan, rounded_up
from policies.vocabulary import NS_PER_S, ClusterView, HeadKey, ServerView
from tests.policies.cluster_views import LinearCosts, context, server, view

RNG = np.random.default_rng(0)
Capacity = tuple[tuple[float, ...], ...]


def best_accuracy(demand: float, capacity: Capacity, accuracy: tuple[float, ...]) -> float | None:
    """Of all assignments, each with the best shares: accurate servers first. None where none serves the demand."""
    best = None
    for choice in product(range(len(accuracy)), repeat=len(capacity)):
        left, worth = demand, 0.0
        for index, limit in sorted((tuple_, row[tuple_]) for tuple_, row in zip(choice, capacity, strict=True)):
            taken = min(left, limit)
            left, worth = left - taken, worth + taken * accuracy[index]
        if left <= 1e-9 * demand:
            best = max(worth / demand, best or 0.0)
    return best


clusters = st.integers(2, 4).flatmap(
    lambda tuples: st.tuples(
        st.lists(
            st.lists(st.sampled_from([40.0, 55.0, 70.0, 100.0, 130.0, 210.0]), min_size=tuples, max_size=tuples).map(
                lambda row: tuple(sorted(row))
            ),
            min_size=1,
            max_size=4,
        ).map(tuple),
        st.lists(st.integers(600, 800), min_size=tuples, max_size=tuples, unique=True).map(
            lambda values: tuple(sorted((value / 1000 for value in values), reverse=True))
        ),
    )
)


@settings(max_examples=40)
@given(clusters, st.floats(0.05, 1.2))
def test_no_assignment_is_better(cluster: tuple[Capacity, tuple[float, ...]], load: float) -> None:
    """Against all of them; and the plan keeps every limit and gives the accuracy that it says."""
    capacity, accuracy = cluster
    demand = load * sum(max(row) for row in capacity)
    found = plan(demand, capacity, accuracy)
    best = best_accuracy(demand, capacity, accuracy)
    assert sum(found.shares) == pytest.approx(1)
    assert found.accuracy == pytest.approx(
        sum(share * accuracy[index] for share, index in zip(found.shares, found.choice, strict=True))
    )
    if best is None:
        assert not found.serves_all
        return
    assert found.serves_all
    assert found.accuracy == pytest.approx(best, rel=2 * GAP)
    for share, index, row in zip(found.shares, found.choice, capacity, strict=True):
        assert share * demand <= row[index] * (1 + 1e-6)


@settings(max_examples=15)
@given(clusters)
def test_more_demand_is_no_more_accurate(cluster: tuple[Capacity, tuple[float, ...]]) -> None:
    capacity, accuracy = cluster
    most = sum(max(row) for row in capacity)
    found = [plan(load * most, capacity, accuracy).accuracy for load in (0.2, 0.4, 0.6, 0.8, 0.95, 1.0)]
    assert all(after <= before + 2 * GAP for before, after in pairwise(found))


TWO: Capacity = ((100.0, 300.0), (50.0, 150.0))
WORTH = (0.76, 0.70)


def test_little_demand_is_shared_by_speed_at_the_best() -> None:
    assert plan(10.0, TWO, WORTH) == Placement((0, 0), pytest.approx((2 / 3, 1 / 3)), pytest.approx(0.76), True)  # type: ignore[arg-type]


def test_accurate_servers_are_filled_first() -> None:
    """180: the fast one is accurate with all of its 100, the slow one takes the rest; the other way it would be 50."""
    found = plan(180.0, TWO, WORTH)
    assert found.choice == (0, 1)
    assert found.shares == pytest.approx((5 / 9, 4 / 9))


def test_server_without_a_share_gets_the_most_accurate_tuple(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver may give a server without a share any tuple; it gets the best one, and its share."""
    monkeypatch.setattr(proteus, "_assign", lambda *numbers: np.array([0, 1]))
    assert plan.__wrapped__(10.0, TWO, WORTH) == plan(10.0, TWO, WORTH)


def test_past_capacity_everybody_is_as_fast_as_can_be() -> None:
    """With shares by speed; also where nothing is known, or all are down."""
    assert plan(449.0, TWO, WORTH).serves_all
    for demand in (451.0, float("inf")):
        assert plan(demand, TWO, WORTH) == Placement((1, 1), pytest.approx((2 / 3, 1 / 3)), pytest.approx(0.70), False)  # type: ignore[arg-type]
    assert plan(10.0, ((0.0, 0.0), (0.0, 0.0)), WORTH).shares == (0.5, 0.5)


def test_a_server_that_is_down_has_no_share() -> None:
    assert plan(40.0, (TWO[0], (0.0, 0.0)), WORTH).shares == (1.0, 0.0)


def test_demands_are_rounded_up_to_two_percent() -> None:
    for demand in (1.0, 1.5, 99.0, 12345.6):
        assert demand <= rounded_up(demand) <= demand * 1.02 * (1 + 1e-9)
    assert rounded_up(0.0) == rounded_up(0.7) == 1.0
    assert len({rounded_up(float(demand)) for demand in range(1000, 1100)}) <= 6


# ------------------------------------------------------------------------------------------------------- carrying out


def router(period_s: float = 2.0) -> Milp:
    """Three servers of speeds 1, 1 and 2, the last two tuples of which differ much."""
    given = context(LinearCosts((1.0, 1.0, 2.0)), servers=3)
    return make_milp(given, given.config.micro_batch_sizes, period_s, headroom=1.0, utilization=1.0)


def at_s(
    now_s: float,
    *servers: ServerView,
    head: HeadKey | None = None,
    completed: int = 0,
    fifo: int = 1,
    candidates: int = 1,
) -> ClusterView:
    seen = view(*servers, head=head, candidates=candidates)
    now_ns = round(now_s * NS_PER_S)
    return ClusterView(now_ns, seen.head, candidates, now_ns, fifo, completed, seen.servers)


def test_plans_follow_the_rate_of_the_last_period() -> None:
    """Fastest until something is known; then by what arrived since the last plan; in between nothing changes."""
    milp = router()
    three = [server(), server(), server()]
    assert milp.plan.choice == (3, 3, 3)
    milp.choose(at_s(1.9, *three, completed=10), RNG)
    assert milp.plan.choice == (3, 3, 3)
    milp.choose(at_s(2.0, *three, completed=99), RNG)  # 50 images/s of 969 at full width
    assert milp.plan.choice == (0, 0, 0)
    assert (milp.since_ns, milp.arrived) == (2 * NS_PER_S, 100)
    milp.choose(at_s(3.9, *three, completed=8000), RNG)
    assert milp.plan.choice == (0, 0, 0)
    milp.choose(at_s(4.0, server(1000), server(1000), server(1000), completed=100), RNG)  # 1500 images/s
    assert 0.70 <= milp.plan.accuracy < 0.76
    assert sum(milp.placed) == 1  # counted again
    milp.choose(at_s(6.0, *three, completed=3000), RNG)  # some failed: fewer than had arrived
    assert milp.plan.choice == (0, 0, 0)


def test_a_server_that_is_down_is_planned_without() -> None:
    """It takes no micro-batch and has none; one at its cap has some, one that can't hold the segment may be up."""
    milp = router()
    down = server(valid=False)
    milp.choose(at_s(2.0, server(), down, server(), completed=99), RNG)
    assert milp.plan.shares == pytest.approx((1 / 3, 0.0, 2 / 3))
    full = server(64, valid=False)
    milp.choose(at_s(4.0, server(), full, server(), completed=199), RNG)
    assert milp.plan.shares == pytest.approx((0.25, 0.25, 0.5))
    unfit = server(valid=False, widths=(False,) * 4)
    milp.choose(at_s(6.0, server(), unfit, server(), completed=299), RNG)
    assert milp.plan.shares == pytest.approx((0.25, 0.25, 0.5))


def test_headroom_and_utilization_make_it_careful() -> None:
    """Capacity is what a server does in its planned time; the demand is more than was seen."""
    given = context(servers=1)
    milp = make_milp(given, given.config.micro_batch_sizes, 2.0, headroom=1.5, utilization=0.5)
    whole = make_milp(given, given.config.micro_batch_sizes, 2.0, headroom=1.0, utilization=1.0)
    assert milp.capacity_img_s[0] == pytest.approx([0.5 * value for value in whole.capacity_img_s[0]])
    seen = at_s(2.0, server(), completed=2 * 90 - 1)  # 90 images/s; at full width it does 242, in half of its time 121
    milp.choose(seen, RNG)
    whole.choose(seen, RNG)
    assert (milp.plan.choice[0] > 0, whole.plan.choice[0]) == (True, 0)


def test_plan_with_a_clearing_time_counts_the_queued_images() -> None:
    """The plan serves queued images within `clear_s`; without it, arrivals alone count."""
    given = context(servers=1)
    clearing = make_milp(given, given.config.micro_batch_sizes, 2.0, headroom=1.0, utilization=1.0, clear_s=0.5)
    plain = make_milp(given, given.config.micro_batch_sizes, 2.0, headroom=1.0, utilization=1.0)
    seen = at_s(2.0, server(100), fifo=20)  # 60 images/s, and 240 for what is inside; at full width it does 242
    clearing.choose(seen, RNG)
    plain.choose(seen, RNG)
    assert (clearing.plan.choice[0] > 0, plain.plan.choice[0]) == (True, 0)
