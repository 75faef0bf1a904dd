"""What Compass heeds: the price of device time, joules, loads, slow servers, and holds in its own units."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import exp, log

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.plan_of import plan_of
from policies.reward import AccuracyPrior
from policies.rules.compass import CompassRule, Numbers, hold_of, priced_rungs, unit_of
from policies.rules.context import RouterContext
from policies.rules.costs import full_widths, path_energy_j, tuple_costs_s
from policies.rules.holding import HoldingRouter, HoldSpec
from policies.rules.specs import POINT
from policies.vocabulary import HeadKey, HoldRule, ServerView
from tests.policies.cluster_views import LinearCosts, context, server, view

ALIKE = (10**6, 10**6)  # what an image's way takes on each server
NOTHING, ALL = (False,) * 4, (True,) * 4
COSTS = LinearCosts(reload_s=0.01)
TUPLES = list(product((0.25, 1.0), repeat=4))


@given(
    st.dictionaries(st.sampled_from(TUPLES), st.floats(0.3, 0.9), min_size=1),
    st.lists(st.floats(-12, 4), min_size=1, max_size=12),
    st.sampled_from([0.0, 1.0, 20.0]),
)
def test_a_price_asks_for_the_tuple_that_is_worth_most(
    table: dict[tuple[float, ...], float], levels: list[float], weight: float
) -> None:
    """Of all in the table: accuracy less device time (a way at full width is 1) at the price, and joules at theirs."""
    its = replace(context(servers=2), prior=AccuracyPrior(table))
    rungs, thresholds, savings, _ = priced_rungs(its, "router", "", its.config.widths)
    assert all(0 < one < other for one, other in pairwise(thresholds)), "none is superfluous"
    full = full_widths(its.config)
    costs_s = tuple_costs_s(its, (*table, full))
    for price in map(exp, levels):
        rung = sum(price > each - weight * saving for each, saving in zip(thresholds, savings, strict=True))
        worth = {
            widths: top1 - price * costs_s[widths] / costs_s[full] - weight * POINT * path_energy_j(its, widths)
            for widths, top1 in table.items()
        }
        assert worth[rungs[rung]] == pytest.approx(max(worth.values()), abs=1e-9)


@pytest.mark.parametrize("widths", [(1.0,), (0.5, 1.0)])
@pytest.mark.parametrize("servers", [1, 2])
def test_where_there_is_little_to_choose_it_decides_all_the_same(widths: tuple[float, ...], servers: int) -> None:
    """A single width, a table of a single tuple, one server: with a compiled form, too."""
    config = RouterConfig(4, widths, (((True,) * len(widths),) * 4,) * servers, top1=(0.76,))
    its = RouterContext(config, LinearCosts(), AccuracyPrior({(1.0,) * 4: 0.76}), (250.0,) * servers)
    router = CompassRule().chooser(its)
    assert plan_of(router, its.config) is not None
    seen = view(*[server(widths=(True,) * len(widths))] * servers, fifo=5000)
    assert router.choose(seen, np.random.default_rng(0)).width == 1.0


@pytest.mark.parametrize(
    ("servers", "routers", "waits_ns"),
    [
        (3, 1, 776_000 * 100**0.5),  # as the host and the devices' slowness say
        (1000, 1, 10_000_000 * 0.4),  # until each server has so many batches on their way
        (4000, 1, 776_000 * 3.5),  # but longer than what the host takes by so much in any case
        (4000, 4, 10_000_000 * 0.4),  # of several routers each has some of the servers
    ],
)
def test_images_wait_for_the_host_as_long_as_devices_gain_by_it(servers: int, routers: int, waits_ns: float) -> None:
    """The host takes 1 ms for an image's way, a unit is 100 ms, or 10 s where servers are many."""
    numbers = Numbers(first_arrivals=0.0, first_units=0.5, first_longer=3.5, first_batches=0.4)
    its = replace(context(servers=servers), block_ns=250_000, routers=routers)
    unit_ns = {3: 10**8, 1000: 10**10, 4000: 10**10}[servers]
    assert hold_of(numbers, its, unit_ns).arrivals_ns[0] == pytest.approx(waits_ns, rel=1e-6)


def test_a_router_of_several_sees_its_own_share_of_arrivals_against_its_own_servers() -> None:
    one, four = (CompassRule().chooser(replace(context(servers=6), routers=routers)) for routers in (1, 4))
    assert four.share == pytest.approx(4 * one.share)


def test_a_table_without_a_tuple_of_the_networks_widths_is_refused() -> None:
    with pytest.raises(InputError, match=r"the accuracy table has no tuple of the widths \(0.25, 0.5, 0.75, 1.0\)"):
        CompassRule().make(replace(context(), prior=AccuracyPrior({(0.3,) * 4: 0.7})))


def test_it_goes_where_what_it_wants_is_loaded_or_loading() -> None:
    """As long as the queue there is shorter than a load; who does not count loads takes the first."""
    rng = np.random.default_rng(0)
    for there in (server(1, loaded=ALL), server(1, loaded=NOTHING, loading=ALL)):
        seen = view(server(loaded=NOTHING), there)
        assert CompassRule().chooser(context(COSTS, servers=2)).choose(seen, rng).server == 1
        free = CompassRule(numbers=Numbers(load=0.0)).chooser(context(COSTS, servers=2))
        assert free.choose(seen, rng).server == 0
    crowded = view(server(loaded=NOTHING), server(200, loaded=ALL))
    assert CompassRule().chooser(context(COSTS, servers=2)).choose(crowded, rng).server == 0


@pytest.mark.parametrize(("trust", "chosen"), [(0.0, 0), (1.0, 1)])
def test_a_server_whose_work_does_not_go_down_is_slow(trust: float, chosen: int) -> None:
    """The other one did as much as its profile says; both have the same left."""
    router = CompassRule(numbers=Numbers(trust=trust, load=0.0, to_come=0.0)).chooser(context(servers=2))
    rng, step_ns = np.random.default_rng(0), round(router.unit_ns)

    def choose(step: int, *servers: ServerView) -> int:
        seen = msgspec.structs.replace(view(*servers), now_ns=step * step_ns, head_entered_ns=step * step_ns)
        return router.choose(seen, rng).server

    for step in range(20):
        choose(step, server(50, valid=False), server(200 - 9 * step))
    assert router.servers[0].busy > 5.0
    assert router.servers[0].done == 0.0
    assert choose(20, server(19), server(20)) == chosen


def test_lines_wait_in_units_and_a_files_own_hold_goes_before() -> None:
    """Twice as slow a cluster waits twice as long, for as many arrivals of twice the time."""
    first = Numbers(first_requests=6, first_wait=0.01, first_arrivals=0.1, first_host=2, first_units=0)
    later = {"later_requests": 2.0, "later_wait": 0.02, "later_arrivals": 0.0, "later_host": 0.0}
    numbers = first.model_copy(update=later)
    for speed in (1.0, 0.5):
        where = context(LinearCosts(speeds=(speed,) * 6))
        where = replace(where, config=replace(where.config, max_batching_delay_ns=10**9))
        unit_ns, made = unit_of(where), CompassRule(numbers=numbers).make(where)
        assert isinstance(made, HoldingRouter)
        waits_ns = (round(0.01 * unit_ns), *(round(0.02 * unit_ns),) * 3)
        span_ns = round(0.1 * unit_ns / where.config.servers / where.config.outstanding_blocks)
        assert made.hold == HoldRule((6, 2, 2, 2), waits_ns, (span_ns, 0, 0, 0))
        busy = CompassRule(numbers=numbers).make(replace(where, block_ns=10**9))  # a host that four decisions keep busy
        assert isinstance(busy, HoldingRouter)
        assert busy.hold.arrivals_ns == (2 * 4 * 10**9, 0, 0, 0)
        longer = numbers.model_copy(update={"first_units": 0.5})
        slow = CompassRule(numbers=longer).make(replace(where, block_ns=10**6))  # whose time and a unit's count alike
        assert isinstance(slow, HoldingRouter)
        assert slow.hold.arrivals_ns[0] == round(2 * (4 * 10**6 * unit_ns) ** 0.5)
        assert unit_ns * speed == pytest.approx(unit_of(context()))
        own = HoldSpec(requests=(3,) * 4, wait_s=(0.001,) * 4)
        held = CompassRule(numbers=numbers, hold=own).make(where)
        assert isinstance(held, HoldingRouter)
        assert held.hold == own.rule()


def test_where_memory_is_short_the_price_is_another_one() -> None:
    """By as much as is missing, on average over the servers; where nothing is, it is the usual one."""
    numbers = Numbers(rise=2.0, segments=(0.1, 0.2, 0.3, 0.4), short_rise=-1.0, short_segments=(2.0, 1.0, 0.0, -1.0))
    numbers = numbers.model_copy(update={"short_stay": -0.5})
    for all_of_it in ((), (1.0, 1.0)):
        assert numbers.in_cluster(all_of_it, ALIKE) == numbers
    half = numbers.in_cluster((0.25, 0.75), ALIKE)
    assert half.rise == 1.5
    assert half.segments == pytest.approx((1.1, 0.7, 0.3, -0.1))
    assert half.stay == pytest.approx([each - 0.25 for each in numbers.stay])
    assert numbers.model_copy(update={"short_rise": -9.0}).in_cluster((0.0,), ALIKE).rise == 0.0
    short = replace(context(), held_shares=(0.5,) * context().config.servers)
    assert CompassRule(numbers=numbers).chooser(short).weights.rise == 1.5


def test_where_servers_are_unlike_staying_is_worth_something_else() -> None:
    """By the deviation of their speeds' logarithms: the same for a cluster that is ten times as slow."""
    numbers = Numbers(uneven_stay=-2.0)
    assert numbers.in_cluster((), ALIKE) == numbers
    for slow in (1, 10):
        unlike = numbers.in_cluster((), (slow * 10**6, slow * 4 * 10**6))
        assert unlike.stay == pytest.approx([each - 2.0 * log(2.0) for each in numbers.stay])
    its = CompassRule(numbers=numbers).chooser(context(LinearCosts(speeds=(1.0, 0.25)), servers=2))
    assert its.stay == pytest.approx([each - 2.0 * log(2.0) for each in numbers.stay])


def test_images_between_two_segments_count_where_they_are_expected() -> None:
    """New ones go where fewest will come back; they leave their place as they go on, and all that is out has none."""
    its = context(servers=2)
    router, rng = CompassRule(numbers=Numbers(batch=0.0)).chooser(its), np.random.default_rng(0)
    idle = view(server(), server(), candidates=8)
    assert [router.choose(idle, rng).server for _ in range(4)] == [0, 1, 0, 1]
    coming = [each.coming for each in router.servers]
    assert coming == [2 * 8 * 0.75] * 2
    back = view(server(), server(), head=HeadKey(2, 1.0, 0), candidates=8)
    assert router.choose(back, rng).server == 0
    assert [each.coming for each in router.servers] == [coming[0] - 8 * 0.25, coming[1]]
    router.choose(view(server(valid=False), server(), candidates=8), rng)
    assert router.servers[0].coming == 0.0


def test_its_numbers_are_searched_within_their_bounds() -> None:
    """There and back the same; below a bound it is the bound."""
    numbers = Numbers(level=-3.0, stay=(0.1, 0.2, 0.3, 0.4), later_wait=0.7)
    assert Numbers.of_vector(numbers.to_vector()) == numbers
    low = Numbers.of_vector(np.full_like(numbers.to_vector(), -5.0))
    assert (low.level, low.rise, low.first_requests, low.stay) == (-5.0, 0.0, 1.0, (-5.0,) * 4)
    assert Numbers.of_vector(low.to_vector()) == low


def test_tuning_begins_with_what_ships() -> None:
    """And sets the floor by the level alone."""
    space = CompassRule.space(context(), 0.75)
    assert space.spec(space.start) == CompassRule(control=None)
    lower = Numbers(level=Numbers().level - 1.0)
    assert space.spec(space.shifted(space.start, 1.0)) == CompassRule(numbers=lower, control=None)
    other = space.spec(np.array((0.0, -9.0, 0.5, 0.0, 0.0)))
    assert isinstance(other, CompassRule)
    assert (other.numbers.rise, other.numbers.segments) == (0.0, (0.0,) * 4)
    assert other.numbers.stay == pytest.approx([each + 0.5 for each in Numbers().stay])
