"""Tide: its rungs are the corners of the accuracy front, its thresholds their prices, and its load a price."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import exp
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.chance import stream
from kit.errors import InputError
from policies.interfaces import RouterConfig
from policies.names import make_router, parse_router_name, rule_from_dict
from policies.plan_of import plan_of
from policies.registry import KINDS
from policies.reward import AccuracyPrior
from policies.rules.context import ComposedRouter, RouterContext
from policies.rules.controlled import ControlledLadder, ControlSpec
from policies.rules.costs import corner_tuples, full_widths, path_ns
from policies.rules.price import MOST, Price
from policies.rules.tide import TideRule
from policies.rules.widths import Ladder
from policies.vocabulary import NS_PER_S, WorkKey
from tests.policies.cluster_views import WIDTHS, LinearCosts, choice_of, context, known, server, view

RNG = stream(0, "tide")
PLAIN: dict[str, Any] = {"rise": 0.0}
TUPLES = list(product((0.25, 1.0), repeat=4))


def ladder_of(its: RouterContext, **numbers: Any) -> Ladder:
    """That of a Tide without control."""
    router = TideRule(**numbers).make(its)
    assert isinstance(router, ComposedRouter)
    assert isinstance(router.width, Ladder)
    return router.width


def with_table(table: dict[tuple[float, ...], float], **cluster: Any) -> RouterContext:
    """A context of that accuracy table."""
    return replace(context(**cluster), prior=AccuracyPrior(table))


def width(router: Any, fifo: int, **seen: Any) -> float:
    return choice_of(router, view(server(), server(), server(), fifo=fifo, **seen), RNG).width


# --------------------------------------------------------------------------------------------------------------- rungs


def tuple_cost_s(context: RouterContext, widths: tuple[float, ...]) -> float:
    """Of one image through all segments, averaged over the servers."""
    servers = range(context.config.servers)
    return sum(path_ns(context.costs, server, widths) for server in servers) / len(servers) / NS_PER_S


tables = st.dictionaries(st.sampled_from(TUPLES), st.floats(0.3, 0.9), min_size=1)


@given(tables, st.lists(st.floats(-12, 4), min_size=1, max_size=12), st.sampled_from([(1.0,), (1.0, 0.3), (2.0, 1.0)]))
def test_its_rung_is_what_the_best_of_all_tuples_is_at_that_price(
    table: dict[tuple[float, ...], float], levels: list[float], speeds: tuple[float, ...]
) -> None:
    """Of accuracy less price times device time, which is in ways of an image at full width."""
    its = with_table(table, costs=LinearCosts(speeds), servers=len(speeds))
    full_s = tuple_cost_s(its, full_widths(its.config))
    for level in levels:
        ladder = ladder_of(its, level=level, **PLAIN)
        price = exp(level)
        worth = {widths: top1 - price * tuple_cost_s(its, widths) / full_s for widths, top1 in table.items()}
        chosen = ladder.rungs[ladder.rung_of(view(*[server()] * len(speeds)))]
        assert worth[chosen] == pytest.approx(max(worth.values()), abs=1e-9)


@given(tables)
def test_thresholds_ascend_and_between_them_each_rung_is_the_only_best(table: dict[tuple[float, ...], float]) -> None:
    """From the most accurate to the cheapest; so none of them is superfluous."""
    its = with_table(table)
    ladder = ladder_of(its)
    assert len(ladder.rungs) == len(ladder.thresholds) + 1
    assert all(0 < one < other for one, other in pairwise(ladder.thresholds))
    assert table[ladder.rungs[0]] == max(table.values())
    cost_s = {widths: tuple_cost_s(its, widths) for widths in table}
    assert cost_s[ladder.rungs[-1]] == min(cost_s.values())
    assert list(ladder.rungs) == sorted(ladder.rungs, key=lambda widths: (-table[widths], -cost_s[widths]))


def test_a_tuple_under_the_hull_is_no_corner() -> None:
    """It is efficient: no cheaper one matches it; but at every price one of its neighbors is better."""
    low, middle, high = ((width,) * 4 for width in (0.25, 0.5, 1.0))
    for top1, corners in ((0.68, [high, low]), (0.74, [high, middle, low])):
        assert corner_tuples(with_table({low: 0.65, middle: top1, high: 0.8})) == corners


# --------------------------------------------------------------------------------------------------------------- price


@given(st.floats(-8, 2), st.floats(0, 3), st.lists(st.floats(0, 1e6), min_size=2))
def test_the_price_rises_with_the_load_from_its_level_on(level: float, rise: float, loads: list[float]) -> None:
    """By e to the power of `rise` for each e times as many, at last."""
    price = Price(level, rise)
    found = [price.of(load) for load in sorted(loads)]
    assert found == sorted(found)
    assert price.of(0.0) == exp(level)
    assert price.of(1e6 * exp(1.0)) == pytest.approx(price.of(1e6) * exp(rise), rel=1e-3)


def test_no_numbers_make_a_price_that_is_none() -> None:
    for level in (1e9, -1e9):
        assert Price(level, 1.0).of(3.0) == exp(MOST if level > 0 else -MOST)


# --------------------------------------------------------------------------------------------------------------- rules


def test_the_more_wait_the_narrower() -> None:
    widths = [width(TideRule().make(context()), fifo) for fifo in (1, 16, 64, 256, 4096, 1 << 20)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 1.0
    assert widths[-1] == WIDTHS[0]
    assert width(TideRule(rise=0.0).make(context()), 1 << 20) == 1.0, "a price that follows nothing"


def test_a_load_counts_for_each_server_that_is_up() -> None:
    """Two of three are out: the same load leads to the same rung as three times as much on all."""
    out, rungs = server(valid=False), []
    for fifo in (3, 30, 100, 300):
        few, all_up = ladder_of(context()), ladder_of(context())
        rungs.append(few.rung_of(view(server(), out, out, fifo=fifo)))
        assert rungs[-1] == all_up.rung_of(view(server(), server(), server(), fifo=3 * fifo))
    assert len(set(rungs)) > 2


def test_a_weight_of_energy_of_0_changes_nothing_and_a_large_one_leads_to_the_narrowest() -> None:
    its = known(servers=3)
    for fifo in (1, 64, 4096):
        plain = width(TideRule().make(its), fifo)
        for weight, wanted in ((0.0, plain), (1e3, WIDTHS[0])):
            router = TideRule(control=ControlSpec(floor=0.0, p99_limit_s=0.0, energy_weight=weight)).make(its)
            assert isinstance(router, ComposedRouter)
            assert isinstance(router.width, ControlledLadder)
            assert width(router, fifo) == wanted
        assert width(TideRule(control=ControlSpec()).make(its), fifo) == plain


def test_with_a_weight_of_energy_it_is_the_best_at_the_price_of_both() -> None:
    """Where joules go with time, as here, they are but another price of it."""
    its = known(servers=3)
    costs, full = LinearCosts(), full_widths(its.config)
    joules = sum(costs.energy_j(0, WorkKey(s, 1.0, 1.0)) for s in range(1, 5))
    for weight in (1.0, 5.0, 10.0, 20.0, 40.0):
        price = exp(-4.0) + weight * 0.01 * joules
        router = TideRule(level=-4.0, **PLAIN, control=ControlSpec(energy_weight=weight)).make(its)
        assert isinstance(router, ComposedRouter)
        assert isinstance(router.width, ControlledLadder)
        choice_of(router, view(server(), server(), server()), RNG)
        worth = {
            widths: its.prior(widths) - price * tuple_cost_s(its, widths) / tuple_cost_s(its, full)
            for widths in its.prior.top1
        }
        assert router.width.ladder.rungs[router.width.ladder.rung] == max(worth, key=lambda widths: worth[widths])


@pytest.mark.parametrize("control", [None, ControlSpec(floor=0.0, energy_weight=5.0)])
@pytest.mark.parametrize("widths", [(1.0,), (0.5, 1.0)])
@pytest.mark.parametrize("servers", [1, 2])
def test_where_there_is_little_to_choose_it_decides_all_the_same(
    control: ControlSpec | None, widths: tuple[float, ...], servers: int
) -> None:
    """A single width, a table of a single tuple, one server: with a compiled form, too."""
    config = RouterConfig(4, widths, (((True,) * len(widths),) * 4,) * servers)
    prior = AccuracyPrior({(1.0,) * 4: 0.76})
    its = RouterContext(replace(config, top1=(0.76,)), LinearCosts(), prior, (250.0,) * servers)
    router = TideRule(control=control).make(its)
    assert plan_of(router, its.config) is not None
    holds = (True,) * len(widths)
    assert choice_of(router, view(*[server(widths=holds)] * servers, fifo=5000), RNG).width == 1.0


def test_a_table_without_a_tuple_of_the_networks_widths_is_refused() -> None:
    with pytest.raises(InputError, match=r"the accuracy table has no tuple of the widths \(0.25, 0.5, 0.75, 1.0\)"):
        TideRule().make(with_table({(0.3,) * 4: 0.7}))


def test_by_its_name_it_has_the_numbers_that_tuning_begins_with() -> None:
    space = TideRule.space(context(), 0.75)
    assert space.spec(space.start) == TideRule() == parse_router_name("tide") == parse_router_name("tide-untuned")
    assert make_router("tide@jsq", context()) == TideRule(placement="jsq").make(context())


def test_whatever_the_search_looks_for_is_a_rule() -> None:
    """Its price never falls with the load; and along the step of accuracy a price falls."""
    space = TideRule.space(context(), 0.75)
    for values in (np.full(2, 1e3), np.full(2, -1e3)):
        rule = space.spec(values)
        assert rule_from_dict(rule.to_dict()) == rule
    assert space.spec(space.starts[0]) == TideRule()


def test_its_file_says_what_it_is() -> None:
    rule = TideRule(level=-3.0, rise=0.1, placement="jsq", control=ControlSpec(floor=0.75))
    assert rule_from_dict(rule.to_dict()) == rule
    assert KINDS["tide"].is_rule
    with pytest.raises(InputError, match=r"hysteresis: unknown key"):
        rule_from_dict({"schema": "slimsched.rule/1", "kind": "tide", "hysteresis": 0.2})
