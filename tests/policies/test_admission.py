"""Who is let in under overload: as many as come in time, whatever the cost model believed; who is promised least waits
outside."""

from __future__ import annotations

import numpy as np
import pytest

from policies.interfaces import RouterConfig
from policies.router_core import RouterCore
from policies.router_queue import AIM, LEAST, MOST, REFUSED, has_room, note_end
from policies.vocabulary import GoalSet, RequestArrived, RequestCompleted, RequestFailed, ServerUp
from tests.policies.test_router import arrive, back, handle, send

MS = 1_000_000


class Measured:
    def __init__(self, images: float) -> None:
        self.images, self.scale = images, 1.0


@pytest.mark.parametrize("believed", [0.3, 1.0, 3.0])
def test_in_overload_half_a_percent_comes_late_however_wrong_the_cost_model_is(believed: float) -> None:
    """Latency grows with the number inside (Little), with chance: the quantile is found by approximation alone."""
    rng, fits = np.random.default_rng(1), 400
    room, late = Measured(believed * fits), []
    for number in range(300_000):
        inside = int(room.images * room.scale)  # overload: full at any time
        late.append(inside / fits * rng.lognormal(0.0, 0.1) > 1.0)
        note_end(room, inside, late[-1])
        assert number < 100_000 or LEAST < room.scale < MOST
    assert np.mean(late[100_000:]) == pytest.approx(AIM, rel=0.2)
    assert not has_room(room, fits, 0.0)


def test_room_that_is_not_used_does_not_grow_and_what_is_late_anyway_leaves_a_tenth() -> None:
    room = Measured(100.0)
    for _ in range(10_000):
        note_end(room, 49, is_late=False)
    assert room.scale == 1.0
    for _ in range(10_000):
        note_end(room, 1, is_late=True)
    assert room.scale == LEAST
    assert has_room(room, 9, 0.0)
    assert not has_room(room, 10, 0.0)


def core(*goals: GoalSet) -> RouterCore:
    fits, classes = (((True, True),),), ("gold", "tin", "bronze")
    config = RouterConfig(1, (0.5, 1.0), fits, micro_batch_sizes=(1, 2, 4), sustained_img_s=100.0, classes=classes)
    found = RouterCore(config)
    found.handle(ServerUp(0, 1), 0)
    for goal in goals:
        found.handle(goal, 0)
    return found


def flood(its: RouterCore, service_class: int, first: int) -> int:
    """How many of a class are let in before one is refused."""
    for count in range(1000):
        commands = handle(its, RequestArrived(first + count, None, service_class), 0)
        if commands:
            assert commands == [RequestFailed(first + count, REFUSED, 0)]
            return count
    return 1000


def test_as_many_fit_as_come_within_the_strictest_limit_and_who_is_promised_least_goes_first() -> None:
    """100 images/s within 200 ms are 20; a fifth of that is for the highest floor alone, half of it for the next."""
    its = core(GoalSet(0.76, 500 * MS, 0.0, 0), GoalSet(0.75, 200 * MS, 0.0, 1), GoalSet(0.7, 0, 0.0, 2))
    assert flood(its, 2, 0) == 16
    assert flood(its, 1, 100) == 2
    assert flood(its, 0, 200) == 2
    assert (its.arrived, its.failed, its.in_flight, its.fifo_length) == (23, 3, 20, 20)


def test_equal_floors_are_refused_alike_and_without_a_limit_nobody_is() -> None:
    its = core(*[GoalSet(0.75, 100 * MS, 0.0, number) for number in range(3)])
    assert flood(its, 2, 0) == 10
    assert flood(its, 0, 100) == 0
    for number in range(3):
        its.handle(GoalSet(0.75, 0, 0.0, number), 0)
    assert flood(its, 0, 200) == 1000


def test_completed_requests_make_room_and_late_ones_reduce_the_limit() -> None:
    its = core(GoalSet(0.75, 100 * MS, 0.0, 0))
    assert flood(its, 0, 0) == 10
    micro_batch = send(its, 0, 0)
    other = RouterCore(its.config)
    other.resume(its.snapshot())
    for each, now in ((its, 50 * MS), (other, 150 * MS)):
        assert sum(isinstance(command, RequestCompleted) for command in back(each, now, micro_batch)) == 4
    assert flood(its, 0, 100) == 5  # a little more than ten fit now
    assert flood(other, 0, 100) == 3  # 1 - 0.05, four times: less than nine


def test_a_refused_one_never_enters_the_rate_of_arrivals() -> None:
    """Batches are of those who are let in: a batching delay is as long as theirs need."""
    its = core(GoalSet(0.75, 10 * MS, 0.0, 0))
    arrive(its, 5 * MS, 0)
    before = its._batching_delays.rate, its._batching_delays.arrived_ns
    assert flood(its, 0, 10) == 0
    assert (its._batching_delays.rate, its._batching_delays.arrived_ns) == before
