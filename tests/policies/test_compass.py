"""What Compass takes into account: the price of device time, the end of a path, and batching delays."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.interfaces import AccuracyPrior, RouterConfig
from policies.router_plans import plan_of
from policies.rules.compass import CompassRule, Numbers, batching_delay_of, priced_rungs
from policies.rules.rule_context import RouterContext, full_widths, path, path_energy_j, tuple_costs_s
from policies.rules.rule_params import POINT, BatchingDelaySpec, DelayingRouter
from policies.vocabulary import Choice
from tests.policies.cluster_views import LinearCosts, context, server, view

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
    rungs, thresholds, savings = priced_rungs(its, "router", "", its.config.widths)
    assert all(0 < one < other for one, other in pairwise(thresholds)), "none is superfluous"
    full = full_widths(its.config)
    costs_s = tuple_costs_s(its, (*table, full))
    for price in map(exp, levels):
        rung = sum(price > each - weight * saving for each, saving in zip(thresholds, savings, strict=True))
        worth = {
            widths: accuracies - price * costs_s[widths] / costs_s[full] - weight * POINT * path_energy_j(its, widths)
            for widths, accuracies in table.items()
        }
        assert worth[rungs[rung]] == pytest.approx(max(worth.values()), abs=1e-9)


@pytest.mark.parametrize("widths", [(1.0,), (0.5, 1.0)])
@pytest.mark.parametrize("servers", [1, 2])
def test_compass_with_a_single_width_or_server_still_decides(widths: tuple[float, ...], servers: int) -> None:
    """The table has a single tuple, and there is a compiled form as well."""
    config = RouterConfig(4, widths, (((True,) * len(widths),) * 4,) * servers, accuracies=(0.76,))
    its = RouterContext(config, LinearCosts(), AccuracyPrior({(1.0,) * 4: 0.76}), (250.0,) * servers)
    router = CompassRule().chooser(its)
    assert plan_of(router, its.config) is not None
    seen = view(*[server(widths=(True,) * len(widths))] * servers, fifo=5000)
    assert router.choose(seen, np.random.default_rng(0)).width == 1.0


def test_time_becomes_dearer_with_the_load() -> None:
    """It has a price at which all is wide; raised, it is too dear under load, and in an empty cluster it is not."""
    for rise, fifo, width in ((0.0, 500, 1.0), (8.0, 500, 0.25), (8.0, 0, 1.0)):
        router = CompassRule(numbers=Numbers(level=-5.0, rise=rise)).chooser(context(servers=1))
        assert router.choose(view(server(), fifo=fifo), np.random.default_rng(0)).width == width


def test_a_dial_is_the_logarithm_of_the_price() -> None:
    dialled = CompassRule(numbers=Numbers(level=-3.0)).dialled(0.5, context())
    assert dialled == CompassRule(numbers=Numbers(level=-3.5), control=None)


@pytest.mark.parametrize("servers", [1, 3, 4000])
def test_images_wait_for_the_arrivals_in_an_images_time_on_each_server(servers: int) -> None:
    """Which is 8 ms on one half of the servers, and 16 ms on the other; two more servers are counted."""
    its = context(LinearCosts(speeds=(1.0, 0.5) * servers), servers=2 * servers)
    found = batching_delay_of(Numbers(batching_delay_arrivals=2.5), its)
    assert found.arrivals_ns == (round(2.5 * 12e6 / (2 * servers + 2)), 0, 0, 0)


def test_holds_are_as_long_as_the_core_allows_and_a_files_own_goes_before() -> None:
    where = context(LinearCosts(speeds=(0.5,) * 6))
    where = replace(where, config=replace(where.config, max_batching_delay_ns=10**9))
    made = CompassRule().make(where)
    assert isinstance(made, DelayingRouter)
    assert made.batching_delay is not None
    assert (made.batching_delay.requests, made.batching_delay.wait_ns) == ((1,) * 4, (10**9, 0, 0, 0))
    own = BatchingDelaySpec(requests=(3,) * 4, wait_s=(0.001,) * 4)
    held = CompassRule(batching_delay=own).make(where)
    assert isinstance(held, DelayingRouter)
    assert held.batching_delay == own.rule()


def test_compass_takes_the_server_at_which_the_whole_path_ends_first() -> None:
    """Which is 8 ms alone on the first server and 16 on the second, and 33/32 ms for each outstanding image."""
    costs = LinearCosts(speeds=(1.0, 0.5))
    router = CompassRule(numbers=Numbers(level=-20.0)).chooser(context(costs, servers=2))
    chosen = set()
    for outstanding in range(64):
        seen = view(server(outstanding), server(), candidates=1)
        ends_s = [
            sum(count * costs.image_s(index, key) for key, count in each.outstanding.items())
            + sum(costs.batch_s(index, key, 1) for key in path((1.0,) * 4))
            for index, each in enumerate(seen.servers)
        ]
        choice = router.choose(seen, np.random.default_rng(0))
        assert choice == Choice(int(np.argmin(ends_s)), 1.0, 32, (1.0,) * 3)
        chosen.add(choice.server)
    assert chosen == {0, 1}


def test_compass_numbers_are_searched_within_their_bounds() -> None:
    numbers = Numbers(level=-3.0, batching_delay_arrivals=0.7)
    assert Numbers.of_vector(numbers.to_vector()) == numbers
    low = Numbers.of_vector(np.full_like(numbers.to_vector(), -5.0))
    assert (low.level, low.rise, low.batching_delay_arrivals) == (-5.0, 0.0, 0.0)


def test_tuning_begins_with_what_ships() -> None:
    space = CompassRule.space(context(), 0.75)
    assert space.spec(space.start) == CompassRule(control=None)
    assert len(space.spread) == len(space.start)
