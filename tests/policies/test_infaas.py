import numpy as np
import pytest

from kit.errors import InputError
from policies.rules.published_rules import InfaasRule, Variants, make_variants
from policies.rules.rule_context import RouterContext, default_target_s
from policies.vocabulary import NS_PER_S, ROUTER, ClusterView, HeadKey, ServerView
from tests.policies.cluster_views import LinearCosts, context, server, view

RNG = np.random.default_rng(0)
MS = 1_000_000
BEST, SECOND, THIRD, CHEAPEST = (1.0,) * 4, (0.25, 0.5, 0.75, 1.0), (0.5,) * 4, (0.25,) * 4


def at_ms(now_ms: float, *servers: ServerView, fifo: int = 0) -> ClusterView:
    """A view at this time, whose head stands before the last segment."""
    head = HeadKey(4, 0.5, ROUTER)
    seen = view(*servers, head=head)
    return ClusterView(round(now_ms * MS), head, 1, round(now_ms * MS), fifo, 0, seen.servers)


def rule(given: RouterContext | None = None, floor: float = 0.0, target_s: float = 0.1) -> Variants:
    """Down above 20 ms, up below 5 ms, no sooner than 100 ms after the last step."""
    return make_variants(given or context(servers=2), floor, target_s, up=0.05, down=0.2)


def test_between_the_thresholds_nothing_changes() -> None:
    """Down above one, up below the other: at 32 of 33/32 ms (33 ms) it goes down, from there to 5 ms it stays."""
    variants = rule()
    variants.levels = [1, 1]
    assert variants(at_ms(0, server(32), server()), 0, RNG) == 0.5
    assert variants.levels == [2, 1]
    for number, load in enumerate((19, 12, 5)):  # 19.6, 12.4 and 5.2 ms
        variants(at_ms(100 * (number + 1), server(load), server()), 0, RNG)
        assert variants.levels == [2, 1]
    variants(at_ms(500, server(4), server()), 0, RNG)  # 4.1 ms
    assert variants.levels == [1, 1]


def test_a_waiting_fifo_counts_for_every_server() -> None:
    """As long as the whole cluster takes for it: 40 at 16 a segment of 2 x 1 / (4 x 33/32 ms) each."""
    variants = rule()
    variants.levels = [0, 0]
    assert variants.waiting_ns == round(33 / 32 * MS / 2)
    variants(at_ms(0, server(), server(), fifo=38), 0, RNG)  # 19.6 ms
    assert variants.levels == [0, 0]
    variants(at_ms(0, server(), server(), fifo=40), 1, RNG)  # 20.6 ms
    assert variants.levels == [0, 1]


def test_far_behind_it_leaps() -> None:
    """At three times `down` three variants at once, where the leap allows it; and never beyond the cheapest."""
    assert [leap_from_the_best(leap, waiting=30) for leap in (1, 2, 3, 9)] == [1, 2, 3, 3]
    assert [leap_from_the_best(9, waiting=waiting) for waiting in (10, 11, 20, 29, 1000)] == [0, 1, 2, 2, 4]


def leap_from_the_best(leap: int, *, waiting: int) -> int:
    """How far a server with five variants goes; it is too far behind from 10 ms on, and one that waits is 1 ms."""
    variants = (tuple((width,) * 4 for width in (1.0, 0.75, 0.5, 0.25, 0.25)),)
    behind = Variants((0.25, 0.5, 0.75, 1.0), LinearCosts(), variants, MS, 0, 10 * MS, 1, leap)
    behind.levels[0] = 0
    behind(at_ms(0, server(), fifo=waiting), 0, RNG)
    return behind.levels[0]


def test_the_floor_ends_the_variants() -> None:
    """The cheapest variant is the cheapest that keeps the floor; none above the best tuple."""
    assert rule(floor=0.0).variants[0] == (BEST, SECOND, THIRD, CHEAPEST)
    assert rule(floor=0.7299).variants[0] == (BEST, SECOND, THIRD)
    assert rule(floor=0.73).variants[0] == (BEST, SECOND)
    with pytest.raises(InputError, match=r"as accurate as 0\.77; the best has 0\.7643"):
        InfaasRule(floor=0.77).make(context())


def test_a_slow_server_has_only_variants_that_meet_the_target_alone() -> None:
    """Alone an image takes 4 ms + 1 ms x its widths: 8, 6.5, 6 and 5 ms; five times that on a slow server."""
    given = context(LinearCosts((1.0, 0.2)), servers=2)
    assert rule(given, target_s=0.0301).variants == ((BEST, SECOND, THIRD, CHEAPEST), (THIRD, CHEAPEST))
    assert rule(given, target_s=0.001).variants == ((CHEAPEST,), (CHEAPEST,))  # none meets it: the cheapest


def test_without_a_target_the_deadline_is_it() -> None:
    router = InfaasRule(down=0.5).chooser(context(deadline_s=0.2))
    assert isinstance(router.width, Variants)
    assert router.width.down_ns == NS_PER_S // 10


def test_search_for_variants_starts_at_the_floor_and_the_usual_target() -> None:
    space = InfaasRule.space(context(), floor=0.74)
    started = space.spec(space.start)
    assert isinstance(started, InfaasRule)
    assert (started.floor, started.target_s) == pytest.approx((0.74, default_target_s(context())))
