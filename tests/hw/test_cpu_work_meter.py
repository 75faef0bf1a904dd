"""What a worker does besides passes: each moment of a thread's CPU time is in one sample at most."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from hw.worker import worker_run
from hw.worker.worker_run import CpuWorkMeter

NOW_NS = 77  # of the run


class Clocks:
    """Each thread's CPU time, which passes when it is told to."""

    def __init__(self) -> None:
        self._own = threading.local()

    def thread_time_ns(self) -> int:
        return getattr(self._own, "ns", 1000)

    def spend(self, cpu_ns: int) -> None:
        self._own.ns = self.thread_time_ns() + cpu_ns


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(worker_run, "time", found)
    return found


def _samples(meter: CpuWorkMeter) -> list[tuple[str, int, int, int]]:
    assert {(cost.server, cost.at_ns) for cost in meter.costs} <= {(3, NOW_NS)}
    return [(cost.kind, cost.count, cost.images, cost.cpu_ns) for cost in meter.costs]


def _meter() -> CpuWorkMeter:
    return CpuWorkMeter(3, lambda: NOW_NS)


def _in_a_lane(work: Callable[[], None]) -> None:
    lane = threading.Thread(target=work)
    lane.start()
    lane.join()


def test_a_turn_is_charged_to_the_blocks_that_came_in_it_and_to_the_copies(clocks: Clocks) -> None:
    meter = _meter()
    clocks.spend(10)  # it woke up
    meter.took(2)
    clocks.spend(20)
    meter.copied(4, 7)  # of the 20
    meter.took(1)
    clocks.spend(5)
    meter.end_turn()
    assert _samples(meter) == [("taken", 2, 3, 10 + 20 + 5 - 7), ("moved", 1, 4, 7)]
    assert sum(cost.cpu_ns for cost in meter.costs) == 35


def test_a_batch_has_a_beginning_and_an_end(clocks: Clocks) -> None:
    """The first one's beginning is not known: the thread did other things before."""
    meter = _meter()

    def lane() -> None:
        for images, before_ns, pass_ns in ((1, 4, 50), (2, 6, 60)):
            clocks.spend(before_ns + pass_ns)
            meter.begin_end()
            clocks.spend(9)
            meter.ended(images, pass_ns)

    _in_a_lane(lane)
    assert _samples(meter) == [("ended", 1, 1, 9), ("begun", 1, 2, 6), ("ended", 1, 2, 9)]


def test_cpu_time_of_a_lane_is_separate_from_the_main_threads_needless_wake_up(clocks: Clocks) -> None:
    meter = _meter()

    def lane() -> None:
        meter.begin_end()
        meter.ended(1, 0)
        clocks.spend(8)
        meter.took(5)
        meter.end_lane_turn()
        clocks.spend(6 + 60)
        meter.begin_end()
        meter.ended(1, 60)

    _in_a_lane(lane)
    clocks.spend(11)
    meter.end_turn()
    clocks.spend(12)
    meter.end_turn()  # this one has its own reasons
    assert _samples(meter) == [
        ("ended", 1, 1, 0),
        ("taken", 1, 5, 8),
        ("begun", 1, 1, 6),
        ("ended", 1, 1, 0),
        ("woken", 1, 0, 11),
    ]
