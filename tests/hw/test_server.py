"""A server behind its port, without a process: what its agent's words come to, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from hw.device import DeviceSpec
from hw.host.clock import RunClock
from hw.router.agents import AgentSlot
from hw.router.late_ledger import LateLedger
from hw.router.server import HardwareServer, RemoteServer, RunContext
from hw.transport.arena import Arena, Inbox
from hw.transport.clock_offset import ClockOffset
from hw.transport.messages import (
    ComeUp,
    Done,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Ready,
    Report,
    Sample,
    Start,
    ToAgent,
    Warm,
)
from policies.faults import WORKER_DIED, Supervision
from policies.ledger import Ledger
from policies.reward import AccuracyPrior, RewardWeights
from policies.server_book import ServerCounts
from policies.vocabulary import IMAGE, NS_PER_S, Block, RouterEvent, ServerDown, ServerReport, ServerUp, WorkKey
from tests.hw.worlds import knobs

ORIGIN_NS = 50 * NS_PER_S
READY = Ready(7, 0, {}, {})


class FakeAgent:
    """A handle of which every word is kept; its clock is what the test says."""

    def __init__(self) -> None:
        self.port = self
        self.sent: list[ToAgent] = []
        self.offset = ClockOffset(1000, 10)
        self.is_known_better = False
        self.is_warm = False
        self.is_killed = self.is_busy = False
        self._number = 0

    def post(self, message: ToAgent) -> None:
        self.sent.append(message)

    def ping(self, number: int) -> Ping:
        return Ping(number)

    def note_pong(self, pong: Pong) -> bool:
        return self.is_known_better

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def log(self) -> Callable[[], bytes]:
        return self.read_log

    def read_log(self) -> bytes:
        assert not self.is_busy, "a log is long: it is read when the run is over"
        return b""

    def kill(self) -> None:
        self.is_killed = True


class World:
    """A server, its places, and the router's events."""

    def __init__(self) -> None:
        self.now_ns = ORIGIN_NS
        self.agent = FakeAgent()
        self.warm_batches = (1, 4)
        self.clock = RunClock(lambda: self.now_ns)
        self.ledger = LateLedger(Ledger(1, 3, RewardWeights(), AccuracyPrior({(1.0,) * 3: 0.5})))
        self.events: list[RouterEvent] = []
        context = RunContext(
            self.clock, self.ledger, Supervision(), lambda *_: (), 3, self.events.append, lambda _: None, True, False
        )
        spec = HardwareServer("s", DeviceSpec(), knobs(), 1.0, 2.0)
        self.server = RemoteServer(0, spec, cast(AgentSlot, self), Inbox(Arena(4096)), context)

    def start(self) -> None:
        """The next agent in the slot."""
        self.agent = FakeAgent()


@pytest.fixture
def world() -> World:
    made = World()
    made.server.come_up()
    made.clock.start(ORIGIN_NS)
    made.server.start_clock()
    return made


def test_the_run_begins_by_the_agents_own_clock(world: World) -> None:
    """Once it has begun; before that its clock stands."""
    assert world.agent.sent == [ComeUp(1), Start(ORIGIN_NS + 1000)]
    assert world.events == [ServerUp(0, 1)]


def test_a_new_agents_clock_is_asked_for_before_it_serves(world: World) -> None:
    """Its first word brings a ping; then it is warmed and emptied; only then it is told when the run began."""
    world.server.go_down(WORKER_DIED)
    assert world.agent.is_killed
    world.now_ns += NS_PER_S
    world.server.restart_if_due()
    world.server.hear(READY)
    ping, warm = world.agent.sent
    assert isinstance(ping, Ping)
    assert ping.number < 0  # not one of the pings that tell who is hung
    assert isinstance(warm, Warm)
    assert warm.batches == world.warm_batches
    world.server.hear(Pong(ping.number, 5))
    world.server.hear(Done(warm.number))
    (prepare,) = world.agent.sent[2:]
    assert isinstance(prepare, Prepare)
    world.server.hear(Prepared(prepare.number, 0))
    assert world.agent.sent[3:] == [Start(ORIGIN_NS + 1000), ComeUp(2)]
    assert [type(event) for event in world.events] == [ServerUp, ServerDown, ServerUp]
    assert world.server.is_up


def test_no_sample_is_from_the_future(world: World) -> None:
    """An agent's clock is known to within an error: what is heard was read by now."""
    sampled = Sample(5_000_000_000, 10.0, 0.5, None)
    world.now_ns += 4_999_000_000
    world.server.hear(Report(1, sampled, True, 3, 100, ServerCounts(), 1))
    (event,) = world.events[1:]
    assert isinstance(event, ServerReport)
    assert event.sampled_ns == event.received_ns == 4_999_000_000
    world.ledger.catch_up()
    assert [point.sampled_ns for point in world.ledger.ledger.telemetry] == [4_999_000_000]


def test_what_waits_on_a_gpu_is_told_but_is_no_instance(world: World) -> None:
    """Reports say what is used of the device; a server's peak is of context and instances, as in simulation."""
    world.server.hear(Report(1, Sample(1, 10.0, 0.5, None), True, 3, 100, ServerCounts(), 1, activation_bytes=7))
    (event,) = world.events[1:]
    assert isinstance(event, ServerReport)
    assert event.vram_used_bytes == 107
    assert world.server.totals(device=0, busy_s=0.0).vram_peak_bytes == 100


def test_a_servers_totals_are_of_all_its_lives(world: World) -> None:
    """What a dead agent told of last counts on."""
    sample = Sample(1, 10.0, 0.5, None)
    world.server.hear(Report(1, sample, True, 0, 100, ServerCounts(images=9, batches=4, loads=3, unloads=1), 1))
    world.server.go_down(WORKER_DIED)
    world.server.come_up()
    world.server.hear(Report(2, sample, True, 0, 70, ServerCounts(images=5, batches=2, loads=20, unloads=10), 1))
    found = world.server.totals(device=0, busy_s=0.0)
    assert (found.images, found.batches, found.loads, found.unloads) == (14, 6, 23, 11)
    assert found.vram_peak_bytes == 100


def test_a_dead_servers_log_is_read_after_the_run(world: World) -> None:
    """Nothing is in flight there, and its log waits, though another agent sits in its place by then."""
    agent = world.agent
    agent.is_busy = True
    world.server.deliver(Block(1, 0, 1, WorkKey(1, 1.0, IMAGE), (0, 1)), ())
    world.server.go_down(WORKER_DIED)
    assert world.server.in_flight == 0
    world.start()
    agent.is_busy = False
    assert [(log.epoch, log.ended) for log in world.server.agent_logs()] == [(1, WORKER_DIED)]
