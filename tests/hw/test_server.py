"""A server behind its port, without a process: what its worker's words come to, and what it is told."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from hw.clock import RunClock
from hw.device_settings import DeviceSpec
from hw.router.run_meters import LateLedger
from hw.router.server_port import HardwareServer, RemoteServer, RunContext
from hw.router.worker_handles import WorkerSlot
from hw.transport.messages import Captures, Fence, Fenced, Finished, Impair, Preloaded, Report, Sample, ToWorker
from hw.transport.peers import ClockOffset
from hw.transport.shared_memory import Arena, Inbox
from hw.transport.worker_port import PortClosedError
from policies.faults import WORKER_DIED, WORKER_HUNG, Impairment, Supervision
from policies.interfaces import AccuracyPrior, RewardWeights
from policies.run_ledger import Ledger
from policies.run_records import ServerCounts
from policies.vocabulary import IMAGE, NS_PER_S, MicroBatch, Residency, RouterEvent, ServerReport, WorkKey
from tests.hw.tiny import params

ORIGIN_NS = 50 * NS_PER_S


class FakeWorker:
    """A handle of which every word is kept; its clock is what the test says."""

    def __init__(self) -> None:
        self.port = self
        self.sent: list[ToWorker] = []
        self.offset = ClockOffset(1000, 10)
        self.is_busy = self.is_gone = self.is_killed = False
        self.next_number = itertools.count(1).__next__

    def post(self, message: ToWorker) -> None:
        self.sent.append(message)

    def flush(self) -> bool:
        if self.is_gone:
            raise PortClosedError
        return True

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
        self.worker = FakeWorker()
        self.clock = RunClock(lambda: self.now_ns)
        self.ledger = LateLedger(Ledger(1, 3, RewardWeights(), AccuracyPrior({(1.0,) * 3: 0.5})))
        self.events: list[RouterEvent] = []
        self.said: list[str] = []
        self.context = RunContext(
            self.clock, self.ledger, Supervision(), lambda *_: (), 3, self.events.append, self.said.append, True, False
        )
        self.spec = HardwareServer("s", DeviceSpec(), params(), 1.0, 2.0)
        self.server = RemoteServer(0, self.spec, cast(WorkerSlot, self), Inbox(Arena(4096)), self.context)

    def start(self) -> None:
        self.worker = FakeWorker()


@pytest.fixture
def world() -> World:
    made = World()
    made.server.come_up()
    made.clock.start(ORIGIN_NS)
    made.server.start_clock()
    return made


def test_no_sample_is_from_the_future(world: World) -> None:
    """A worker's clock is known to within an error: what is heard was read by now."""
    sampled = Sample(5_000_000_000, 10.0, 0.5, None)
    world.now_ns += 4_999_000_000
    world.server.hear(Report(1, sampled, True, 3, 100, ServerCounts(), 1, residency=Residency(5, 2)))
    (event,) = world.events[1:]
    assert isinstance(event, ServerReport)
    assert event.residency == Residency(5, 2)
    assert event.sampled_ns == event.received_ns == 4_999_000_000
    world.ledger.catch_up()
    assert [point.sampled_ns for point in world.ledger.ledger.telemetry] == [4_999_000_000]


def test_waiting_activations_on_a_gpu_are_reported_but_not_in_the_servers_peak(world: World) -> None:
    """Reports give the used memory of the device; a server's peak is of context and instances, as in simulation."""
    world.server.hear(Report(1, Sample(1, 10.0, 0.5, None), True, 3, 100, ServerCounts(), 1, activation_bytes=7))
    (event,) = world.events[1:]
    assert isinstance(event, ServerReport)
    assert event.vram_used_bytes == 107
    assert world.server.totals(device=0, busy_s=0.0).vram_peak_bytes == 100


@pytest.mark.parametrize(
    ("captures", "profiled", "line"),
    [
        (Captures(64, 64), "", ""),
        (Captures(), "", ""),
        (
            Captures(31, 64, "no"),
            "",
            r"31 of 64 captured, the others run eagerly \(no\); its profile .* all captured: ",
        ),
        (Captures(62, 128, "no"), "31 of 64", r"62 of 128 captured, the others run eagerly \(no\)$"),
        (Captures(64, 64), "31 of 64", "64 of 64 captured; its profile was measured with 31 of 64: "),
    ],
)
def test_passes_that_are_not_captured_are_reported(world: World, captures: Captures, profiled: str, line: str) -> None:
    """With the reason; and whether its profile is of such passes. The run's record has their number."""
    world.server.spec = replace(world.spec, captured=profiled)
    world.server.hear(Preloaded(1, captures))
    assert [bool(re.match(f"WARNING: s: {line}", said)) for said in world.said] == [True] * bool(line)
    totals = world.server.totals(device=0, busy_s=0.0)
    assert (totals.captured, totals.to_capture) == (captures.captured, captures.tried)


def test_a_servers_totals_are_of_all_its_lives(world: World) -> None:
    sample = Sample(1, 10.0, 0.5, None)
    world.server.hear(Report(1, sample, True, 0, 100, ServerCounts(images=9, batches=4, loads=3, unloads=1), 1))
    world.server.go_down(WORKER_DIED)
    world.server.come_up()
    world.server.hear(Report(2, sample, True, 0, 70, ServerCounts(images=5, batches=2, loads=20, unloads=10), 1))
    found = world.server.totals(device=0, busy_s=0.0)
    assert (found.images, found.batches, found.loads, found.unloads) == (14, 6, 23, 11)
    assert found.vram_peak_bytes == 100


def test_a_dead_servers_log_is_read_after_the_run(world: World) -> None:
    """Nothing is in flight there, and its log waits, though another worker sits in its place by then."""
    worker = world.worker
    worker.is_busy = True
    world.server.deliver(MicroBatch(1, 0, 1, WorkKey(1, 1.0, IMAGE), (0, 1)), ())
    world.server.hear(Report(1, Sample(1, 10.0, 0.5, None), True, 0, 100, ServerCounts(), steps=4))
    world.server.go_down(WORKER_DIED)
    assert world.server.in_flight == 0
    world.start()
    worker.is_busy = False
    assert [(log.incarnation, log.heard, log.ended) for log in world.server.worker_logs()] == [(1, 4, WORKER_DIED)]


def test_server_preloads_until_its_incarnations_preloads_are_complete(world: World) -> None:
    found = [world.server.is_preloading]
    world.server.hear(Preloaded(1))
    found.append(world.server.is_preloading)
    world.server.go_down(WORKER_DIED)
    found.append(world.server.is_preloading)
    world.server.come_up()
    assert [*found, world.server.is_preloading] == [True, False, False, True]


def test_impairment_of_a_server_outlasts_its_worker(world: World) -> None:
    assert not any(isinstance(message, Impair) for message in world.worker.sent)
    world.server.straggle(2.0)
    world.server.go_down(WORKER_DIED)
    world.start()
    world.server.come_up()
    assert Impair(Impairment(slow_factor=2.0)) in world.worker.sent


def test_hung_worker_is_killed(world: World) -> None:
    world.server.go_down(WORKER_HUNG)
    assert world.worker.is_killed


def test_worker_that_is_gone_is_noticed_as_it_is_sent_messages(world: World) -> None:
    assert world.server.flush()
    assert not world.server.died
    world.worker.is_gone = True
    world.server.flush()
    assert world.server.died
    assert world.context.deaths == [0]


def test_slab_is_free_once_no_other_worker_can_write_to_it(world: World) -> None:
    """At once if its writer never had an incarnation, or the server is down; otherwise when its worker reports it."""
    inbox, free = world.server.inbox, list[bool]()

    def give_back(worker_id: int) -> None:
        slab = inbox.reserve((1,), 64)
        assert slab is not None
        world.server.give_back([slab], worker_id)
        free.append(inbox.free_bytes == 4096)

    give_back(0)
    give_back(7)
    (fence,) = (message for message in world.worker.sent if isinstance(message, Fence))
    assert fence.worker_id == 7
    world.server.hear(Fenced(fence.number))
    free.append(inbox.free_bytes == 4096)
    world.server.go_down(WORKER_DIED)
    give_back(7)
    assert free == [True, False, True, True]


def test_server_is_finished_with_its_workers_account(world: World) -> None:
    assert not world.server.is_finished
    world.server.hear(Finished(1, ServerCounts(loads=3, unloads=2), 70, 5, 1_000_000))
    totals = world.server.totals(device=0, busy_s=0.0)
    assert (totals.loads, totals.unloads, totals.vram_peak_bytes) == (3, 2, 70)
    assert world.server.worker_cpu_ns == 1_000_000
    assert world.server.is_finished
