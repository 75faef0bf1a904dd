import sys
from collections import Counter
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from kit.errors import InputError, WorkError
from policies import rules
from policies.interfaces import AccuracyPrior, RoutingPolicy, batching_delay_rule_of, limit_ns_of
from policies.router_kinds import KINDS, RouterKind
from policies.router_names import ROUTER_NAMES, CheckedRouter, OwnRouter, make_router, parse_router_name
from policies.rules.rule_context import ComposedRouter, RouterContext, efficient_tuples, outstanding_ns, spread
from policies.rules.rule_params import FixedRule, PlacedRule, RuleSpec
from policies.rules.rule_parts import PLACEMENT_NAMES, Ladder, held_width, two_of
from policies.vocabulary import (
    ANYWHERE,
    FOLLOW_NS,
    IMAGE,
    ROUTER,
    BatchingDelay,
    BatchingDelayRule,
    Choice,
    ClusterView,
    HeadKey,
    ServerView,
    WorkKey,
)
from tests.policies.cluster_views import WIDTHS, LinearCosts, choice_of, context, server, view

ALL_NAMES = (
    *ROUTER_NAMES,
    "fixed:0.25,0.5,0.75,1",
    "fixed:1,1,1,1@jsq",
    "ladder:4,8@round-robin",
    "slackfit@random",
    "infaas@shortest-delay",
)


def choose(name: str, seen: ClusterView, costs: LinearCosts | None = None, seed: int = 0) -> Choice:
    """One decision of a fresh router."""
    router = make_router(name, context(costs, servers=len(seen.servers)))
    return choice_of(router, seen, np.random.default_rng(seed))


def at(segment: int, location: int, previous_width: float = 1.0) -> HeadKey:
    return HeadKey(segment, previous_width, location)


# ------------------------------------------------------------------------------------------------------ any router

holdings = st.lists(st.booleans(), min_size=4, max_size=4).filter(any)
servers = st.builds(
    lambda requests, valid, widths: server(requests, valid=valid, widths=widths),
    st.integers(0, 200),
    st.booleans(),
    holdings,
)
clusters = st.lists(servers, min_size=1, max_size=6).filter(lambda each: any(one.valid for one in each))


@given(
    st.sampled_from(ALL_NAMES), clusters, st.integers(1, 4), st.integers(-2, 5), st.integers(1, 40), st.integers(0, 9)
)
def test_every_choice_is_legal(
    name: str, cluster: list[ServerView], segment: int, location: int, candidates: int, seed: int
) -> None:
    """Whatever the cluster, a router names a valid server, a width it can hold and a group of the set."""
    head = HeadKey(segment, 0.5 if segment > 1 else IMAGE, min(location, len(cluster) - 1))
    choice = choose(name, view(*cluster, head=head, candidates=candidates), seed=seed)
    chosen = cluster[choice.server]
    assert chosen.valid
    assert chosen.widths[WIDTHS.index(choice.width)]
    assert choice.micro_batch_size in context().config.micro_batch_sizes


@pytest.mark.parametrize("name", sorted(set(PLACEMENT_NAMES) - {"random"}))
def test_placement_only_routers_run_full_width_in_the_largest_group(name: str) -> None:
    """A router that only places chooses width 1 and the largest group."""
    choice = choose(name, view(server(2), server(1), server(0)))
    assert (choice.width, choice.micro_batch_size) == (1.0, 32)


DRAWING = ("random", "weighted-random", "power-of-two", "power-of-two-speed")


@pytest.mark.parametrize("name", sorted({*ROUTER_NAMES} - {*DRAWING, "milp"}))
def test_ties_go_to_the_lowest_server(name: str) -> None:
    """Equal servers are no reason to prefer a later one."""
    assert choose(name, view(server(), server(), server())).server == 0
    if name != "jiq":  # nobody is idle
        assert choose(name, view(server(valid=False), server(4), server(4))).server == 1


class Uniforms:
    """A generator that has nothing but these uniform numbers, one at a time."""

    def __init__(self, *numbers: float) -> None:
        self.left = list(numbers)

    def random(self) -> float:
        return self.left.pop(0)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_chance_is_drawn_one_uniform_number_at_a_time(name: str) -> None:
    """So other code can reproduce a decision: no rule asks its generator for anything else."""
    router = make_router(name, context())
    drawn = {"random": 3, "weighted-random": 1, "power-of-two": 2, "power-of-two-speed": 2, "jiq": 1}
    rng = Uniforms(*[0.5] * drawn.get(name, 1 if name.endswith("@random") else 0))
    choice_of(router, view(server(3), server(2), server(4)), rng)  # type: ignore[arg-type]
    assert rng.left == []


def test_random_draws_server_then_width_then_group() -> None:
    """Each index is the uniform number times how many there are, rounded down."""
    seen = view(server(), server(valid=False), server(widths=(True, False, True, True)))
    choices = [
        make_router("random", context()).choose(seen, Uniforms(*numbers))  # type: ignore[arg-type]
        for numbers in [(0.5, 0.0, 0.99), (0.49, 0.99, 0.5), (0.99, 0.34, 0.17)]
    ]
    assert choices == [Choice(2, 0.25, 32), Choice(0, 1.0, 8), Choice(2, 0.75, 2)]


@given(st.permutations([(WorkKey(s, w, 0.5), s + 2) for s in (2, 3, 4) for w in (0.25, 0.75, 1.0)]))
def test_outstanding_work_does_not_depend_on_its_order(work: list[tuple[WorkKey, int]]) -> None:
    """Times are whole nanoseconds before they are added; as floats these would differ in their last bits."""
    costs = LinearCosts(speeds=(0.3,))
    expected = outstanding_ns(costs, view(server(outstanding=dict(sorted(work)))), 0)
    assert outstanding_ns(costs, view(server(outstanding=dict(work))), 0) == expected
    assert expected == sum(count * round(costs.image_s(0, key) * 1e9) for key, count in work)


# ------------------------------------------------------------------------------------------------------- placements


def test_round_robin_takes_turns_and_skips() -> None:
    """It goes round by index; a server that can't take a micro-batch loses its turn."""
    router = make_router("round-robin", context())
    rng = np.random.default_rng(0)
    everyone = view(server(9), server(), server())
    assert [choice_of(router, everyone, rng).server for _ in range(4)] == [0, 1, 2, 0]
    assert choice_of(router, view(server(), server(valid=False), server()), rng).server == 2
    assert choice_of(router, everyone, rng).server == 0


def test_round_robin_goes_round_by_index_among_those_that_it_looks_at() -> None:
    """In whatever order they were drawn."""
    router, rng = make_router("round-robin", context()), np.random.default_rng(0)
    some = msgspec.structs.replace(view(server(), server(), server()), looked_at=(2, 0))
    assert [choice_of(router, some, rng).server for _ in range(3)] == [0, 2, 0]


def test_jsq_counts_requests_and_least_work_counts_time() -> None:
    """Four narrow requests are a longer queue than two wide ones, but less work."""
    narrow = server(outstanding={WorkKey(1, 0.25, IMAGE): 4})
    wide = server(outstanding={WorkKey(1, 1.0, IMAGE): 2})
    assert choose("jsq", view(narrow, wide)).server == 1
    assert choose("least-work", view(narrow, wide)).server == 0


def test_power_of_two_never_takes_the_longest_of_three() -> None:
    """Of two drawn servers the shorter wins, so the unique longest queue is never chosen, the others are."""
    seen = view(server(1), server(5), server(3))
    chosen = Counter(choose("power-of-two", seen, seed=seed).server for seed in range(300))
    assert chosen[1] == 0
    assert chosen[0] == pytest.approx(200, abs=40)


def test_two_of_draws_every_pair_alike_and_never_one_server_twice() -> None:
    """Over a grid of uniform numbers each pair comes equally often; of one server there is one draw all the same."""
    grid = [(first, second) for first in range(12) for second in range(12)]
    drawn = Counter(tuple(two_of([2, 5, 7, 9], Uniforms(a / 12, b / 12))) for a, b in grid)  # type: ignore[arg-type]
    assert drawn == dict.fromkeys(combinations([2, 5, 7, 9], 2), 24)
    rng = Uniforms(0.9)
    assert two_of([4], rng) == [4]  # type: ignore[arg-type]
    assert rng.left == []


def test_weighted_random_has_a_server_for_every_number() -> None:
    """From 0 to the largest one below 1."""
    router = make_router("weighted-random", context(LinearCosts((1.0, 3.0, 6.0))))
    numbers = [0.0, 0.0999, 0.1001, 0.3999, 0.4001, np.nextafter(1.0, 0.0)]
    chosen = [choice_of(router, view(server(), server(), server()), Uniforms(u)).server for u in numbers]  # type: ignore[arg-type]
    assert chosen == [0, 0, 1, 1, 2, 2]


def test_speed_shortens_a_queue() -> None:
    """Seven on a server that is twice as fast are fewer than four; three are not more than seven."""
    fast = LinearCosts((1.0, 2.0, 1.0))
    assert choose("jsq-speed", view(server(4), server(7), server(5)), fast).server == 1
    assert choose("jsq-speed", view(server(3), server(7), server(5)), fast).server == 0
    assert choose("jsq", view(server(4), server(7), server(5)), fast).server == 0
    three = view(server(4), server(7), server(9))
    assert {choose("power-of-two-speed", three, fast, seed=seed).server for seed in range(90)} == {0, 1}
    assert choose("power-of-two-speed", view(server(4), server(7)), fast).server == 1


@given(clusters, st.integers(0, 2**32 - 1))
def test_speed_changes_nothing_among_equals(cluster: list[ServerView], seed: int) -> None:
    """On servers of one speed the rules by speed decide as those without."""
    seen = view(*cluster)
    for name in ("jsq", "power-of-two"):
        assert choose(f"{name}-speed", seen, seed=seed) == choose(name, seen, seed=seed)


def test_idle_queue_takes_who_has_nothing_else_anyone() -> None:
    """The first idle server that can take the micro-batch; where there is none, each as likely."""
    idle = view(server(1), server(0, valid=False), server(0), server(0))
    assert {choose("jiq", idle, seed=seed).server for seed in range(20)} == {2}
    router = make_router("jiq", context())
    rng = np.random.default_rng(5)
    busy = view(server(90), server(1), server(valid=False), server(7))
    counts = Counter(choice_of(router, busy, rng).server for _ in range(3000))
    assert counts[2] == 0
    assert chisquare([counts[index] for index in (0, 1, 3)]).pvalue > 0.01


@pytest.mark.parametrize("name", ["least-work-coming", "sticky-coming"])
def test_images_between_two_segments_count_where_their_place_is(name: str) -> None:
    """An image has had one segment of four at server 0: nothing is outstanding, and three quarters are to come."""
    router, rng = make_router(name, context(servers=2)), np.random.default_rng(0)
    empty = view(server(), server())
    assert [choice_of(router, empty, rng).server for _ in range(2)] == [0, 1]
    router = make_router(name, context(servers=2))
    assert choice_of(router, empty, rng).server == 0
    one_more = view(server(), server(1))
    assert choice_of(router, one_more, rng).server == 1  # one segment that is queued is less than what is to come
    down = view(server(valid=False), server(1))
    assert choice_of(router, down, rng).server == 1
    assert choice_of(router, view(server(), server(1)), rng).server == 0  # what was to come to it died with it


def test_images_that_move_leave_nothing_behind_and_what_is_lost_is_forgotten() -> None:
    router, rng = make_router("least-work-coming", context(servers=2)), np.random.default_rng(0)
    placement = router.placement  # type: ignore[attr-defined]
    empty = view(server(), server(), candidates=8)
    choice_of(router, empty, rng)
    assert placement.coming == [6.0, 0.0]
    choice_of(router, view(server(90), server(), candidates=8, head=at(2, 0)), rng)
    assert placement.coming == [0.0, 4.0]
    later = msgspec.structs.replace(empty, now_ns=empty.now_ns + placement.forget_ns)
    assert choice_of(router, later, rng).server == 0
    assert placement.coming == [6.0, 2.0]


def test_the_ladders_load_is_per_server_that_is_up() -> None:
    """Two of three are out: their share of the load is the third's."""
    ladder = Ladder(WIDTHS, (((1.0,) * 4, (0.25,) * 4),), (8.0,))
    rng = np.random.default_rng(0)
    assert ladder(view(server(12), server(), server()), 0, rng) == 1.0
    assert ladder(view(server(12), server(valid=False), server(valid=False)), 0, rng) == 0.25


def test_shortest_delay_pays_for_the_transfer_and_its_own_batch() -> None:
    """An idle server far away loses to a busy one here while its transfer is dearer, and a fast one wins when idle."""
    here, idle = server(4), server()
    head = at(2, 0)
    assert choose("shortest-delay", view(here, idle, head=head), LinearCosts((1.0, 1.0), move_s=0.010)).server == 0
    assert choose("shortest-delay", view(here, idle, head=head), LinearCosts((1.0, 1.0), move_s=0.001)).server == 1
    assert choose("shortest-delay", view(server(), server()), LinearCosts((1.0, 4.0))).server == 1
    mixed = at(2, ANYWHERE)  # nobody knows where they are: the transfer is left out
    assert choose("shortest-delay", view(here, idle, head=mixed), LinearCosts((1.0, 1.0), move_s=9.0)).server == 1


def test_sticky_stays_where_the_activations_are() -> None:
    """After segment 1 load does not move a request; a server that can't take it does, to the least work."""
    loaded = view(server(1), server(50), server(0), head=at(2, 1))
    assert choose("sticky", loaded).server == 1
    assert choose("sticky", view(server(1), server(50), server(0), head=at(1, ROUTER, IMAGE))).server == 2
    assert choose("sticky", view(server(1), server(50, valid=False), server(0), head=at(3, 1))).server == 2
    assert choose("sticky", view(server(1), server(50), server(0), head=at(2, ANYWHERE))).server == 2


# ------------------------------------------------------------------------------------------------------------- widths


def test_held_width_goes_narrower_first() -> None:
    """What can't be held becomes the next narrower held width, or else the narrowest held."""
    assert held_width(WIDTHS, (True, True, False, False), 1.0) == 0.5
    assert held_width(WIDTHS, (False, False, True, True), 0.5) == 0.75
    assert held_width(WIDTHS, (True, True, True, True), 0.75) == 0.75


def test_fixed_gives_each_segment_its_width() -> None:
    """Segment s runs at the tuple's s-th width, on the placement that is named."""
    widths = [choose("fixed:0.25,0.5,0.75,1", view(server(), head=at(s, 0))).width for s in (1, 2, 3, 4)]
    assert widths == [0.25, 0.5, 0.75, 1.0]
    seen = view(server(7), server(1), server(3), head=at(2, 0))
    assert choose("fixed:1,1,1,1", seen).server == 0
    assert choose("fixed:1,1,1,1@jsq", seen).server == 1


def test_efficient_tuples_are_a_pareto_front() -> None:
    """(1, .75, .5, .25) and uniform 0.75 cost no less than a more accurate tuple: both are left out."""
    assert efficient_tuples(context()) == [
        (1.0, 1.0, 1.0, 1.0),
        (0.25, 0.5, 0.75, 1.0),
        (0.5, 0.5, 0.5, 0.5),
        (0.25, 0.25, 0.25, 0.25),
    ]


def test_efficient_tuples_break_ties_by_cost_and_accuracy() -> None:
    """Equally accurate: the cheaper one stays. Equally cheap: the more accurate one stays."""
    small = replace(context(), prior=AccuracyPrior({(0.5,) * 4: 0.6, (1.0,) * 4: 0.6}))
    assert efficient_tuples(small) == [(0.5,) * 4]
    small = replace(context(), prior=AccuracyPrior({(0.5, 1, 1, 1): 0.6, (1, 1, 1, 0.5): 0.7}))
    assert efficient_tuples(small) == [(1, 1, 1, 0.5)]
    foreign = replace(context(), prior=AccuracyPrior({(0.3,) * 4: 0.9, (1.0,) * 4: 0.6}))
    assert efficient_tuples(foreign) == [(1.0,) * 4]


def test_ladder_steps_down_as_load_passes_each_threshold() -> None:
    """Load is (FIFO + outstanding) per server; a load equal to a threshold has not passed it."""
    router = make_router("ladder:10,20", context(servers=2))
    assert isinstance(router, ComposedRouter)
    assert isinstance(router.width, Ladder)
    assert router.width.rungs == (((1.0, 1.0, 1.0, 1.0), (0.5, 0.5, 0.5, 0.5), (0.25, 0.25, 0.25, 0.25)),)

    def width_at(fifo: int, outstanding: int) -> float:
        seen = view(server(outstanding), server(), fifo=fifo)
        return choice_of(router, seen, np.random.default_rng(0)).width

    assert [width_at(*load) for load in [(10, 10), (11, 10), (30, 10), (1, 40)]] == [1.0, 0.5, 0.5, 0.25]


def test_a_ladder_with_hysteresis_goes_up_later_than_down() -> None:
    """Down beyond a threshold, up again at 60 % of it, from rung to rung; without hysteresis at once."""
    rungs, rng = tuple((width,) * 4 for width in (1.0, 0.5, 0.25)), np.random.default_rng(0)

    def widths(ladder: Ladder, *loads: int) -> list[float]:
        return [ladder(view(server(load - 1)), 0, rng) for load in loads]

    loads = (10, 11, 7, 21, 13, 12, 7, 6, 10)
    assert widths(Ladder(WIDTHS, (rungs,), (10.0, 20.0), 0.4), *loads) == [1, 0.5, 0.5, 0.25, 0.25, 0.5, 0.5, 1, 1]
    assert widths(Ladder(WIDTHS, (rungs,), (10.0, 20.0)), *loads) == [1, 0.5, 1, 0.25, 0.5, 0.5, 1, 1, 1]


def test_ladder_has_no_more_thresholds_than_rungs_need() -> None:
    """A short table makes a short ladder: the default thresholds that are left over are dropped."""
    router = make_router("ladder", context())
    assert isinstance(router, ComposedRouter)
    assert isinstance(router.width, Ladder)
    assert len(router.width.rungs[0]) == 4
    assert router.width.thresholds == (16.0, 32.0, 64.0)


def test_spread_keeps_both_ends() -> None:
    """Few of many, evenly, the first and the last among them."""
    many = [(float(n),) for n in range(10)]
    assert spread(many, 4) == ((0.0,), (3.0,), (6.0,), (9.0,))
    assert spread(many[:2], 4) == ((0.0,), (1.0,))
    assert spread(many, 1) == ((0.0,),)


# ----------------------------------------------------------------------------------------------------------- slackfit


def slackfit(
    deadline_s: float | None, candidates: int, *, waited_ns: int = 0, load: int = 0, move_s: float = 0.0
) -> Choice:
    """What it chooses on one server, where a batch of b takes 1 ms + b x width ms; a segment has deadline_s / 4."""
    router = make_router("slackfit", context(LinearCosts(move_s=move_s), deadline_s, servers=1))
    seen = view(server(load), candidates=candidates, waited_ns=waited_ns)
    return choice_of(router, seen, np.random.default_rng(0))


def test_slackfit_with_ample_slack_takes_all_at_full_width() -> None:
    """When everything fits, the slowest bucket is the widest, largest batch; no deadline is an ample one."""
    assert slackfit(10.0, candidates=1) == slackfit(None, candidates=1) == Choice(0, 1.0, 1)
    assert slackfit(10.0, candidates=32) == slackfit(None, candidates=32) == Choice(0, 1.0, 32)
    assert slackfit(10.0, candidates=5) == Choice(0, 1.0, 8)


def test_slackfit_with_no_slack_takes_the_first_bucket() -> None:
    """When nothing fits, the fastest bucket is taken: of one candidate the narrowest width."""
    assert slackfit(0.001, candidates=1) == Choice(0, 0.25, 1)
    assert slackfit(0.1, candidates=1, waited_ns=10**9) == Choice(0, 0.25, 1)


def test_slackfit_takes_what_fits_and_no_more() -> None:
    """One candidate: 1.25, 1.5, 1.75 or 2 ms by width. Waiting, outstanding work and the transfer shorten the slack."""
    assert slackfit(0.0084, candidates=1).width == 1.0  # 2.1 ms
    assert slackfit(0.0072, candidates=1).width == 0.75  # 1.8 ms
    assert slackfit(0.0264, candidates=5) == Choice(0, 1.0, 8)  # five take 6 ms, though eight would take 9
    assert slackfit(0.0084, candidates=1, waited_ns=400_000).width == 0.5  # 1.7 ms
    assert slackfit(0.0084, candidates=1, move_s=0.0004).width == 0.5
    assert slackfit(0.0124, candidates=1).width == 1.0  # 3.1 ms
    assert slackfit(0.0124, candidates=1, load=1).width == 1.0  # 2.07 ms: an image of work is 33 / 32 ms
    assert slackfit(0.0124, candidates=1, load=2).width == 0.25


def test_slackfit_takes_only_buckets_that_fit_whole() -> None:
    """Slack 4.5 ms, 32 waiting: the bucket from 3.2 to 5.2 ms begins within it but has 16 at 0.25, which takes 5 ms."""
    assert slackfit(0.018, candidates=32) == Choice(0, 0.25, 8)


def test_slackfit_prefers_the_group_to_the_width_within_a_bucket() -> None:
    """32 at 0.25 and 8 at 1 take 9 ms alike: when 32 wait, the larger group is better."""
    assert slackfit(0.0364, candidates=32) == Choice(0, 0.25, 32)


# ------------------------------------------------------------------------------------------------------ names, errors


@pytest.mark.parametrize(
    "name, words",
    [
        ("fixed:0.3,1,1,1", "one of 0.25, 0.5, 0.75, 1.0 for each of 4 segments"),
        ("fixed:1,1", "each of 4 segments"),
        ("fixed:a,b", "numbers with commas"),
        ("fixed", "numbers with commas"),
        ("fixed:1,1,1,1@jqs", "did you mean 'jsq'"),
        ("jsq@sticky", "named after `@` of fixed, infaas, ladder, slackfit"),
        ("ladder:8,4", "ascending"),
        ("ladder:8,,4", "numbers with commas"),
        ("", "unknown router"),
        ("stiky", "unknown router 'stiky'.*'sticky'.*known:"),
        ("jsq:Class", "unknown router"),
        ("ppo", "slimsched train"),
        ("no_such_module_here:Router", "ModuleNotFoundError"),
        ("policies.vocabulary:NoSuchRouter", "AttributeError"),
        ("policies.vocabulary:Choice", "TypeError"),
        ("kit.errors:WorkError", "no method choose"),
    ],
)
def test_bad_names_say_what_is_wrong(name: str, words: str) -> None:
    """Each kind of bad name is an `InputError` that shows what is allowed."""
    with pytest.raises(InputError, match=words):
        make_router(name, context())


def test_names_can_be_checked_without_a_cluster() -> None:
    """Every documented name parses; a user's class is not imported for it."""
    for name in ALL_NAMES:
        parse_router_name(name)
    assert parse_router_name("my.routers:Mine") == OwnRouter("my.routers:Mine")
    assert parse_router_name("fixed:1,0.5@jsq") == FixedRule(placement="jsq", tuple=(1.0, 0.5))


class _First:
    def __init__(self, context: RouterContext) -> None:
        self.width = context.config.widths[0]

    def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
        return Choice(0, self.width, 1)


def test_a_users_class_is_called_with_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """`module:Class` imports the module and makes the class with the context."""
    module = ModuleType("users_routers")
    module.First = _First  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_routers", module)
    router: RoutingPolicy = make_router("users_routers:First", context())
    assert choice_of(router, view(server()), np.random.default_rng(0)) == Choice(0, 0.25, 1)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (7, "choose returned 7; expected a policies.vocabulary.Choice"),
        (None, "choose returned None; expected"),
        (Choice(99, 1.0, 1), r"expected servers: those that are valid now: 1, 2"),
        (Choice(-1, 1.0, 1), r"valid now: 1, 2"),
        (Choice(0, 1.0, 1), r"valid now: 1, 2"),
        (Choice(1, 0.3, 1), r"expected widths on server 1: 0\.25, 0\.5"),
        (Choice(1, 1.0, 1), r"expected widths on server 1: 0\.25, 0\.5"),
        (Choice(1, 0.5, 0), "expected: micro_batch_size, a whole number from 1"),
        (Choice(1.0, 0.5, 1), "int, float and int for server, width and micro-batch size, not float, float, int"),  # type: ignore[arg-type]
        (Choice(1, "0.5", 1), "not int, str, int"),  # type: ignore[arg-type]
        (Choice(True, 0.5, 1), "not bool, float, int"),
        (Choice(1, 0.5, True), "not int, float, bool"),
    ],
)
def test_a_users_nonsense_is_one_line_with_what_is_allowed(choice: Any, words: str) -> None:
    """Before the core sees it, naming the class and what it returned."""
    seen = view(server(valid=False), server(widths=(True, True, False, False)), server())
    users = SimpleNamespace(choose=lambda view, rng: choice)
    router = CheckedRouter("my.routers:Mine", users, context().config)
    with pytest.raises(WorkError, match=f"my.routers:Mine: .*{words}"):
        choice_of(router, seen, np.random.default_rng(0))


def test_a_users_router_may_choose_with_numpys_numbers() -> None:
    """They are what `argmin` and a row of widths give; a core gets Python's."""
    given = Choice(np.int64(1), np.float64(0.5), np.int32(2))  # type: ignore[arg-type]
    router = CheckedRouter("m:C", SimpleNamespace(choose=lambda view, rng: given), context().config)
    chosen = choice_of(router, view(server(), server()), np.random.default_rng(0))
    assert chosen == Choice(1, 0.5, 2)
    assert [type(part) for part in (chosen.server, chosen.width, chosen.micro_batch_size)] == [int, float, int]


def test_a_users_long_words_are_cut_to_a_line() -> None:
    """Of an error that has several, and of a result that is long."""

    def choose(view: ClusterView, rng: np.random.Generator) -> Choice:
        raise ValueError("first\nsecond")

    for users in (SimpleNamespace(choose=choose), SimpleNamespace(choose=lambda view, rng: ["x"] * 100_000)):
        with pytest.raises(WorkError) as wrong:
            CheckedRouter("m:C", users, context().config).choose(view(server()), np.random.default_rng(0))
        assert "\n" not in str(wrong.value)
        assert len(str(wrong.value)) < 500


@pytest.mark.parametrize("micro_batch_size", [33, 64, 2**63, 10**30])
def test_a_users_group_beyond_the_largest_is_the_largest(micro_batch_size: int) -> None:
    """No micro-batch takes more; a compiled engine could not even count so far."""
    users = SimpleNamespace(choose=lambda view, rng: Choice(0, 0.5, micro_batch_size))
    router = CheckedRouter("m:C", users, context().config)
    assert choice_of(router, view(server()), np.random.default_rng(0)) == Choice(0, 0.5, 32)


@pytest.mark.parametrize("where", ["module", "class", "choose"])
def test_a_user_who_ends_the_process_is_told_in_a_line(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.exit()` in a user's code is the user's failure, not the command's end with that code."""

    class Ending:
        def __init__(self, context: RouterContext) -> None:
            if where == "class":
                sys.exit(0)

        def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice:
            sys.exit(0)

    def found(name: str) -> type[Ending]:
        if name != "Ending":
            raise AttributeError(name)
        if where == "module":
            sys.exit(0)
        return Ending

    module = ModuleType("users_ending")
    module.__getattr__ = found  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "users_ending", module)
    expected = WorkError if where == "choose" else InputError
    with pytest.raises(expected, match=r"users_ending:Ending.*: SystemExit: 0"):
        make_router("users_ending:Ending", context()).choose(view(server()), np.random.default_rng(0))


def test_routers_of_ours_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by name, nor where a user's function makes one: they would lose their compiled form."""
    module = ModuleType("users_makers")
    module.make = lambda context: make_router("jsq", context)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_makers", module)
    assert type(make_router("users_makers:make", context())) is ComposedRouter
    assert type(make_router("jsq", context())) is ComposedRouter


# ------------------------------------------------------------------------------------------------------- the registry


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_row_of_the_registry_is_true(kind: RouterKind) -> None:
    """What it says of its kind is what the kind's class does, and the page of routers has it."""
    spec = kind.load()
    assert kind.help
    assert kind.is_rule == (issubclass(spec, RuleSpec) and kind.name == spec.KIND)
    assert kind.is_placed == issubclass(spec, PlacedRule)
    assert not kind.numbers or kind.numbers in {each.alias or name for name, each in spec.model_fields.items()}
    assert hasattr(spec, "space") == kind.is_tuned
    router = spec().make(context())
    assert callable(router.choose)
    assert f"`{kind.name}" in Path("docs/routers.md").read_text()


def test_every_rule_and_placement_is_registered() -> None:
    """A class of rules that no row names could not be asked for; placements stand on the page, too."""
    modules = [import_module(f"{rules.__name__}.{found.name}") for found in iter_modules(rules.__path__)]
    values = [value for module in modules for value in vars(module).values()]
    classes = {value for value in values if isinstance(value, type) and issubclass(value, RuleSpec)}
    named = {spec for spec in classes if "KIND" in vars(spec)}
    assert named == {kind.load() for kind in KINDS.values() if kind.is_rule}
    page = Path("docs/routers.md").read_text()
    assert [name for name in PLACEMENT_NAMES if f"`{name}`" not in page] == []


WAITING = msgspec.structs.replace(view(server(), candidates=2), batching_delay_left_ns=500)


@pytest.mark.parametrize(
    ("seen", "batching_delay", "words"),
    [
        (view(server()), BatchingDelay(4, 100), r"may not be held now .*router\.max_batching_delay_s"),
        (WAITING, BatchingDelay(2, 100), r"from 3 .* to 32"),
        (WAITING, BatchingDelay(33, 100), r"from 3 .* to 32"),
        (WAITING, BatchingDelay(4, 0), "wait_ns must be above 0"),
        (WAITING, BatchingDelay(4.0, 100), "int for requests and wait_ns"),  # type: ignore[arg-type]
    ],
)
def test_a_users_hold_that_is_none_is_one_line(seen: ClusterView, batching_delay: BatchingDelay, words: str) -> None:
    """What is wrong with it, and what is allowed; what is right goes on, cut to what is left."""
    router = CheckedRouter("m:C", SimpleNamespace(choose=lambda view, rng: batching_delay), context().config)
    with pytest.raises(WorkError, match=words):
        router.choose(seen, np.random.default_rng(0))
    right = CheckedRouter("m:C", SimpleNamespace(choose=lambda view, rng: BatchingDelay(4, 10_000)), context().config)
    assert right.choose(WAITING, np.random.default_rng(0)) == BatchingDelay(4, 500)


@pytest.mark.parametrize(
    "rule",
    [
        BatchingDelayRule((4,), (100,)),
        BatchingDelayRule((4,) * 4, (1e-3,) * 4),  # type: ignore[arg-type]
        BatchingDelayRule((4,) * 4, (1,) * 4, (1,)),
        (4, 100),
    ],
)
def test_a_users_rule_of_holds_is_checked(rule: Any) -> None:
    """One whole number a segment; a right one is the core's."""
    users = SimpleNamespace(choose=lambda view, rng: None, batching_delay=rule)
    with pytest.raises(WorkError, match=r"m:C: batching_delay is .*; expected is a policies\.vocab"):
        batching_delay_rule_of(CheckedRouter("m:C", users, context().config))
    fine = BatchingDelayRule((4,) * 4, (100,) * 4)
    users = SimpleNamespace(choose=lambda view, rng: None, batching_delay=fine)
    assert batching_delay_rule_of(CheckedRouter("m:C", users, context().config)) is fine


@pytest.mark.parametrize("limit_ns", [-2, 0.03, None])
def test_a_users_limit_is_checked(limit_ns: Any) -> None:
    """Whole nanoseconds; who has none follows the operator."""
    users = SimpleNamespace(choose=lambda view, rng: None, p99_limit_ns=limit_ns)
    with pytest.raises(WorkError, match=r"m:C: p99_limit_ns is .*; expected whole nanoseconds, 0 for none, or -1"):
        limit_ns_of(CheckedRouter("m:C", users, context().config))
    users.p99_limit_ns = 30_000_000
    assert limit_ns_of(CheckedRouter("m:C", users, context().config)) == 30_000_000
    plain = SimpleNamespace(choose=lambda view, rng: None)
    assert limit_ns_of(CheckedRouter("m:C", plain, context().config)) == FOLLOW_NS


@dataclass(frozen=True)
class Thrifty(LinearCosts):
    """The slowest server takes the fewest joules."""

    def energy_j(self, server: int, key: WorkKey) -> float:
        return super().energy_j(server, key) * self.speeds[server] ** 2


def test_packed_goes_by_joules_and_by_the_least_work_once_all_are_full() -> None:
    costs = Thrifty(speeds=(1.0, 2.0, 4.0))
    assert choose("packed", view(server(), server(), server()), costs).server == 0, "the slowest needs the least"
    counts = (200, 100, 300)
    seen = view(*(server(outstanding={WorkKey(2, 1.0, 1.0): count}) for count in counts))
    assert choose("packed", seen, costs).server == 1, (
        "all are full; neither the thriftiest nor the fastest has the least"
    )
