"""What the router's process costs: each moment of its CPU time is in one sample, and waiting in none."""

from __future__ import annotations

from typing import Any

import pytest

from hw.router import run_meters
from hw.router.run_meters import CostMeter


class Clock:
    """CPU time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def thread_time_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(run_meters, "time", found)
    return found


def _samples(meter: CostMeter) -> list[tuple[Any, ...]]:
    return [
        (cost.kind, cost.micro_batches_at_once, cost.images, cost.cpu_ns, cost.done_ns, cost.pause_ns)
        for cost in meter.costs
    ]


def test_a_turn_of_two_messages_and_two_decisions(clock: Clock) -> None:
    """Looking out is left out; what belongs to nobody is shared by the decisions; all the rest is there."""
    meter = CostMeter()
    clock.now_ns += 70  # of which 50 looked out
    meter.waited(50, 4_000)
    clock.now_ns += 21
    meter.decoded()
    clock.now_ns += 9  # the core, and its books
    meter.heard(2, 6)
    clock.now_ns += 8  # arrivals
    for images, made_ns, rest_ns in ((3, 10, 20), (1, 11, 5)):
        meter.begin_decision()
        clock.now_ns += made_ns
        meter.made()
        clock.now_ns += rest_ns
        meter.decided(images)
    clock.now_ns += 12  # the ledger
    meter.end_turn()
    assert _samples(meter) == [
        ("returned", 2, 6, 50, 41, 4_000),
        ("decision", 1, 3, 30 + 10, 10, 0),
        ("decision", 1, 1, 16 + 10, 11, 0),
    ]
    assert sum(cost.cpu_ns for cost in meter.costs) == clock.now_ns - 1000 - 50


def test_messages_bear_a_turn_without_decisions_and_nobody_a_turn_without_either(clock: Clock) -> None:
    """As after a last segment: the books are kept, and nothing is left to decide."""
    meter = CostMeter()
    clock.now_ns += 40
    meter.heard(1, 4)
    clock.now_ns += 15
    meter.end_turn()
    clock.now_ns += 99
    meter.heard(0, 0)
    meter.end_turn()
    assert _samples(meter) == [("returned", 1, 4, 55, 0, 0)]


def test_a_decision_that_comes_to_nothing_is_shared_by_the_others(clock: Clock) -> None:
    meter = CostMeter()
    for images in (0, 2):
        meter.begin_decision()
        clock.now_ns += 10
        meter.made()
        meter.decided(images)
    meter.end_turn()
    assert _samples(meter) == [("decision", 1, 2, 20, 10, 0)]


def test_only_ways_that_began_and_ended_are_told() -> None:
    meter = CostMeter()
    meter.handed(7, 1_000)
    meter.arrived(0, 7, 41_000)
    meter.arrived(0, 8, 50_000)  # its worker had something else
    meter.came_back(1, 100_000, 125_000)
    assert [(handover.server, handover.there, handover.at_ns, handover.took_ns) for handover in meter.handovers] == [
        (0, True, 1_000, 40_000),
        (1, False, 100_000, 25_000),
    ]
