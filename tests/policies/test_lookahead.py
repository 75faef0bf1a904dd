from itertools import product

import numpy as np
import pytest

from policies.interfaces import AccuracyPrior
from policies.rules.lookahead import Lookahead, LookaheadRule, in_lots
from policies.rules.rule_context import RouterContext, worth_of_steps
from policies.vocabulary import NS_PER_S, ROUTER, Choice, ClusterView, HeadKey, ServerView
from tests.policies.cluster_views import WIDTHS, LinearCosts, context, server, view

RNG = np.random.default_rng(0)


def rule(
    costs: LinearCosts | None = None,
    servers: int = 2,
    worth_s: float = 1e-9,
    weight: float = 1.0,
    micro_batches: int = 1,
) -> Lookahead:
    """By default accuracy is worth nothing."""
    made = LookaheadRule(worth_s=worth_s, horizon_s=0.01, weight=weight, micro_batches=micro_batches).make(
        context(costs, None, servers)
    )
    assert isinstance(made, Lookahead)
    return made


def seen(
    *servers: ServerView, fifo: int = 1, candidates: int = 1, now_s: float = 0.0, completed: int = 0
) -> ClusterView:
    """At this time; nobody is remembered to have come unless time has passed."""
    head = HeadKey(2, 1.0, ROUTER)
    shown = view(*servers, head=head, candidates=candidates)
    return ClusterView(round(now_s * NS_PER_S), head, candidates, 0, fifo, completed, shown.servers)


def width(made: Lookahead, shown: ClusterView) -> float:
    return made.choose(shown, RNG).width


def test_alone_it_goes_where_its_block_ends_first() -> None:
    """A fast busy server or a slow idle one: by work and its own batch; of two alike the first."""
    fast_first = rule(LinearCosts((4.0, 1.0)), weight=0.0)
    assert fast_first.choose(seen(server(), server()), RNG) == Choice(0, 0.25, 32)
    assert fast_first.choose(seen(server(3), server()), RNG).server == 0  # 0.8 + 0.3 ms; 1.25 ms on the other
    assert fast_first.choose(seen(server(5), server()), RNG).server == 1  # 1.3 + 0.3 ms
    assert rule().choose(seen(server(), server()), RNG).server == 0
    assert rule().choose(seen(server(9, valid=False), server(10)), RNG).server == 1


def test_worth_buys_width_and_waiting_costs_it() -> None:
    """One of 3 ms a point takes full width while nobody waits, and less and less as more do."""
    widths = [width(rule(worth_s=3e-3), seen(server(), server(), fifo=fifo)) for fifo in (1, 40, 200, 4000)]
    assert widths[0] == 1.0
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == 0.25
    assert width(rule(worth_s=10.0), seen(server(), server(), fifo=400)) == 1.0


def test_without_weight_who_waits_does_not_count() -> None:
    """Nor in how many lots."""
    for micro_batches in (1, 8):
        careless = rule(worth_s=3e-3, weight=0.0, micro_batches=micro_batches)
        assert width(careless, seen(server(), server(), fifo=400)) == 1.0


def test_arrivals_are_foreseen() -> None:
    """At 20 a millisecond 800 more visits are to come within 10 ms: as if they waited."""
    calm, busy = rule(worth_s=3e-3), rule(worth_s=3e-3)
    assert width(calm, seen(server(), server(), now_s=10.0, completed=10)) == 1.0
    assert width(busy, seen(server(), server(), now_s=10.0, completed=200_000)) == 0.25
    assert busy.rate_img_s == pytest.approx(20_000, rel=0.01)
    busy.choose(seen(server(), server(), now_s=20.0, completed=100), RNG)  # some failed: fewer than had arrived
    assert busy.rate_img_s == pytest.approx(0.0, abs=100)


def test_lots_are_equal_and_leave_nobody_out() -> None:
    """The last ones get what is left."""
    assert [in_lots(images, 3) for images in (0, 1, 7, 9)] == [[0, 0, 0], [1, 0, 0], [3, 3, 1], [3, 3, 3]]


def test_it_leaves_the_fast_server_to_those_that_come() -> None:
    """Who waits counts: then the micro-batch leaves them the fast server, which it takes where it thinks of itself."""
    costs = LinearCosts((4.0, 1.0))
    assert rule(costs, weight=0.0).choose(seen(server(), server(), fifo=91), RNG).server == 0
    assert rule(costs, weight=100.0).choose(seen(server(), server(), fifo=91), RNG).server == 1


def test_the_worth_of_steps_is_that_of_tuples_worth_running() -> None:
    """A bad tuple that costs as much as good ones hardly counts, whatever it has."""
    worths = []
    for bad in (0.3, 0.5):
        table = {
            tuple(WIDTHS[w] for w in code): bad if code == (0, 3, 3, 3) else 0.6 + 0.01 * sum(code)
            for code in product(range(4), repeat=4)
        }
        given = context()
        worths.append(
            worth_of_steps(RouterContext(given.config, given.costs, AccuracyPrior(table), given.power_limits_w))
        )
    assert worths[0] == pytest.approx(worths[1], abs=1e-6)
    assert worths[0] == pytest.approx(np.full((4, 3), 0.01), abs=1e-6)


def test_the_worth_of_steps_adds_up_for_a_table_that_does() -> None:
    gains = np.array([[0.01, 0.0, 0.02], [0.03, 0.01, 0.01], [0.0, 0.0, 0.0], [0.05, 0.02, 0.01]])
    table = {
        tuple(WIDTHS[w] for w in code): 0.5 + sum(gains[s, :w].sum() for s, w in enumerate(code))
        for code in product(range(4), repeat=4)
    }
    given = context()
    made = RouterContext(given.config, given.costs, AccuracyPrior(table), given.power_limits_w)
    assert worth_of_steps(made) == pytest.approx(np.maximum(gains, 1e-5), abs=1e-9)
