"""Where several routers' images come from: who is dead, silent or late counts once, and nothing is lost with him."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from hw.host.clock import RunClock
from hw.router import share as words
from hw.router.draining import Adopted
from hw.router.front_end import Fates, FrontEnd
from hw.router.run_spec import HardwareRun
from kit.errors import WorkError
from policies.division import Division, Territory
from policies.faults import Supervision
from policies.router import RouterCore
from policies.vocabulary import NS_PER_S, RequestCompleted, ServerUp
from tests import worlds

DIVISION = Division(2, ((0,), (1,), (2,)), (1.0, 1.0, 1.0), 2, NS_PER_S // 100)
ARRIVALS = [0] * 20
HANG_NS = NS_PER_S // 2
STEP_NS = HANG_NS // 4


class Stage:
    """A front end in a thread of its own, and the routers' ends of its pipes; its clock is set by hand."""

    def __init__(self, division: Division) -> None:
        self.killed: list[int] = []
        self.said: list[str] = []
        self.now_ns = 7 * NS_PER_S
        ends = [Pipe() for _ in range(2)]
        self.routers = [theirs for _, theirs in ends]
        self.territory = Territory(division, 1)
        self.front_end = FrontEnd(
            ARRIVALS, division, self.territory, [ours for ours, _ in ends], self.killed.append,
            Supervision(hang_ns=HANG_NS), lambda: self.now_ns, self.said.append,
        )  # fmt: skip

    def say(self, router: int, word: words.FromRouter) -> None:
        self.routers[router].send_bytes(words.encode(word))

    def heard(self, router: int, kind: type[words.ToRouter]) -> words.ToRouter:
        """The next word of a kind; what comes before is passed over."""
        while not isinstance(word := self._next(router), kind):
            pass
        return word

    def _next(self, router: int) -> words.ToRouter:
        assert self.routers[router].poll(10), "nothing comes"
        word: words.ToRouter = words.decode_to_router(self.routers[router].recv_bytes())
        return word

    def pass_time(self, passed_ns: int, speakers: Sequence[int]) -> None:
        """Step by step, with a word of each speaker in between."""
        for _ in range(passed_ns // STEP_NS):
            self.now_ns += STEP_NS
            for router in speakers:
                self.say(router, words.Told(0.0, ()))
                self.heard(router, words.Waiting)

    def end(self, router: int, requests: Sequence[int]) -> None:
        ended = tuple(words.EndedRequest(request, 5, (1.0,), router, True) for request in requests)
        self.say(router, words.Told(0.0, ended))


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(getattr(request, "param", DIVISION))


@pytest.fixture
def fates(stage: Stage) -> Iterator[Callable[[], Fates]]:
    """Begins, and waits for the end."""
    with ThreadPoolExecutor(1) as pool:
        future: Future[Fates] = pool.submit(stage.front_end.carry_out)
        for router in (0, 1):
            stage.say(router, words.Ready())
        for router in (0, 1):
            assert isinstance(stage.heard(router, words.Begin), words.Begin)
        yield lambda: future.result(10)
        for connection in stage.routers:  # where a test has failed it would wait
            connection.close()


def test_all_leave_when_every_image_has_ended(stage: Stage, fates: Callable[[], Fates]) -> None:
    """At whichever router; what the others have waiting is told to who speaks."""
    plans = [stage.front_end.plan_of(router) for router in (0, 1)]
    assert sorted(plans[0] + plans[1]) == list(range(20))
    stage.say(0, words.Told(3.0, ()))
    assert stage.heard(0, words.Waiting) == words.Waiting((3.0, 0.0))
    stage.say(0, words.HandedOver(plans[0][0], 1))
    assert stage.heard(1, words.Take) == words.Take((plans[0][0],))
    stage.end(0, plans[0][1:])
    stage.end(1, (*plans[1], plans[0][0]))
    for router in (0, 1):
        stage.heard(router, words.Over)
        stage.say(router, words.Left())
    found = fates()
    assert sorted(found.ended) == list(range(20))
    assert (found.moved, found.died) == ({plans[0][0]: False}, {})


def test_what_a_dead_router_has_not_ended_the_other_gets_once(stage: Stage, fates: Callable[[], Fates]) -> None:
    """What it had ended counts as it said; what it may have ended and not said is done again, and counts then."""
    plans = [stage.front_end.plan_of(router) for router in (0, 1)]
    stage.end(0, plans[0][:2])
    stage.heard(0, words.Waiting)
    stage.now_ns += NS_PER_S // 4
    stage.routers[0].close()
    given = stage.heard(1, words.Take)
    assert given == words.Take(plans[0][2:], 0)
    assert stage.killed == [0]  # whatever it may still be doing
    stage.end(1, [*plans[1], *plans[0]])  # it says more than it was given
    stage.heard(1, words.Over)
    stage.say(1, words.Left())
    found = fates()
    assert [found.ended[request][0] for request in plans[0]] == [0, 0, *[1] * (len(plans[0]) - 2)]
    assert set(found.moved.values()) == {True}
    assert found.died == {0: pytest.approx(NS_PER_S // 4, abs=NS_PER_S // 10)}
    assert stage.territory.owner == [1, 1, 1]
    assert stage.said == [f"router 0: dead at 0.20 s; others get its servers and {len(plans[0]) - 2} images"]


def test_a_former_router_is_not_heard(stage: Stage, fates: Callable[[], Fates]) -> None:
    """One that is silent for as long as a hung server may be is killed first: then it can't come back."""
    plans = [stage.front_end.plan_of(router) for router in (0, 1)]
    stage.pass_time(HANG_NS, [0, 1])
    assert not stage.killed
    stage.pass_time(2 * HANG_NS, [1])
    assert stage.killed[0] == 0
    stage.routers[0].close()  # as its process's end does
    assert stage.heard(1, words.Take) == words.Take(plans[0], 0)
    stage.end(1, [*plans[1], *plans[0]])
    stage.heard(1, words.Over)
    stage.say(1, words.Left())
    assert {router for router, _ in fates().ended.values()} == {1}
    assert any("router 0: silent for" in line for line in stage.said)


def test_who_was_away_itself_blames_nobody(stage: Stage, fates: Callable[[], Fates]) -> None:
    """Ctrl-Z and `fg`: all were stopped, and their words are still to come."""
    stage.pass_time(HANG_NS, [0, 1])
    stage.now_ns += HANG_NS * 20
    stage.pass_time(HANG_NS, [0, 1])
    assert not stage.killed
    end_all(stage)
    assert not fates().died


@pytest.mark.parametrize("stage", [replace(DIVISION, told_every_ns=3 * HANG_NS)], indirect=True)
def test_who_speaks_seldom_does_not_hang(stage: Stage, fates: Callable[[], Fates]) -> None:
    stage.pass_time(HANG_NS // 2, [0, 1])
    stage.pass_time(3 * HANG_NS, [1])
    assert not stage.killed
    stage.pass_time(2 * HANG_NS, [1])
    assert stage.killed[0] == 0
    end_all(stage)


def test_who_hangs_does_not_hold_up_the_front_end(stage: Stage, fates: Callable[[], Fates]) -> None:
    """Images that others hand to him fill his pipe: nobody waits until he reads it, and nothing of it is lost."""
    plan, (request, *_) = stage.front_end.plan_of(0), stage.front_end.plan_of(1)
    for _ in range(1000):  # a socket takes some 280 words
        stage.say(1, words.HandedOver(request, 0))
    stage.pass_time(3 * HANG_NS, [1])
    assert stage.killed[0] == 0
    stage.routers[0].close()
    assert stage.heard(1, words.Take) == words.Take(tuple(sorted((request, *plan))), 0)


def test_the_end_is_said_once(stage: Stage, fates: Callable[[], Fates]) -> None:
    """Routers stay until the horizon: what is said again at each of their words fills every pipe until then."""
    end_all(stage, leaves=False)
    for _ in range(3):
        stage.say(0, words.Told(0.0, ()))
    stage.say(0, words.Left())
    stage.say(1, words.Left())
    fates()
    for router in stage.routers:
        with pytest.raises(EOFError):
            router.recv_bytes()


@pytest.mark.parametrize("stage", [replace(DIVISION, deaths=((0, HANG_NS),))], indirect=True)
def test_who_has_left_is_not_killed(stage: Stage, fates: Callable[[], Fates]) -> None:
    """His record is still to come."""
    end_all(stage, leaves=False)
    stage.say(0, words.Left())
    stage.say(1, words.HandedOver(0, 1))
    stage.heard(1, words.Take)  # so the other word has been heard, too
    stage.now_ns += HANG_NS
    stage.say(1, words.Told(0.0, ()))
    stage.say(1, words.Left())
    assert not fates().died
    assert not stage.killed


def end_all(stage: Stage, *, leaves: bool = True) -> None:
    """Every image ends, and who is there hears of it."""
    stage.end(1, range(20))
    for router in (0, 1):
        stage.heard(router, words.Over)
        if leaves:
            stage.say(router, words.Left())


def test_where_every_router_is_dead_the_run_ends(stage: Stage, fates: Callable[[], Fates]) -> None:
    for router in stage.routers:
        router.close()
    with pytest.raises(WorkError, match="every router is dead"):
        fates()


# ------------------------------------------------------------------------------------------------ a router's side


class Side:
    """A router's traffic, of arrivals a second apart; its clock is set by hand."""

    def __init__(self, plan: Sequence[int]) -> None:
        self.front_end, theirs = Pipe()
        self.now_ns = 0
        self.share = words.Share(0, plan, theirs, DIVISION, Territory(DIVISION, 1))
        self.core = RouterCore(worlds.cluster().router)
        arrivals_ns, image = np.arange(8) * NS_PER_S, np.zeros((1, 1), np.float32)
        clock = RunClock(lambda: self.now_ns)
        clock.start(0)
        run = HardwareRun(arrivals_ns, image, np.zeros(1, np.int64), 9 * NS_PER_S)
        self.traffic = self.share.traffic(run, self.core, clock)


def test_a_router_takes_its_own_and_what_it_is_given() -> None:
    """Its own at their times; a dead one's as they had been due, or at once; and it takes over servers."""
    side = Side((1, 4))
    traffic, share = side.traffic, side.share
    side.core.handle(ServerUp(0, 1), 0)
    side.now_ns = 3 * NS_PER_S
    side.front_end.send_bytes(words.encode(words.Take((2, 5), 1)))
    traffic.hear()
    taken = []
    while traffic.next_ns <= 9 * NS_PER_S:
        arrival = traffic.take(side.now_ns)
        assert arrival is not None
        taken.append((arrival[0].request, arrival[1] // NS_PER_S))
    assert taken == [(2, 3), (1, 1), (4, 4), (5, 5)]
    before = Territory(DIVISION, 1).owner
    assert [*share.orders()] == [Adopted(tuple(s for s, owner in enumerate(before) if owner == 1))]
    assert [*share.orders()] == []
    assert not traffic.has_ended
    side.front_end.send_bytes(words.encode(words.Over()))
    traffic.hear()
    assert traffic.has_ended


def test_a_full_router_hands_on_and_tells_what_has_ended() -> None:
    side = Side((0, 1, 2))
    traffic, ours = side.traffic, side.front_end
    assert traffic.take(0) is None  # no server is up here
    assert words.decode_from_router(ours.recv_bytes()) == words.HandedOver(0, 1)
    side.core.handle(ServerUp(0, 1), 0)
    assert traffic.take(0) is not None
    traffic.end(RequestCompleted(1, (1.0,), True, 2))
    traffic.flush()
    assert words.decode_from_router(ours.recv_bytes()) == words.Told(0, (words.EndedRequest(1, 0, (1.0,), 2, True),))
    traffic.flush()
    assert not ours.poll()
    side.share.leave()
    assert words.decode_from_router(ours.recv_bytes()) == words.Left()
    traffic.end(RequestCompleted(2, (1.0,), True, 2))
    side.now_ns += NS_PER_S
    traffic.flush()
    assert not ours.poll()
    assert not traffic.descriptors
    ours.close()
    with pytest.raises(EOFError):  # the front end is gone
        traffic.hear()
