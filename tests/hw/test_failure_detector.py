"""Signs of life: silence for long enough is a hang, slow work is not before its own time."""

from __future__ import annotations

from hw.transport.peers import FailureDetector
from policies.faults import Supervision

RULES = Supervision(hang_ns=600, stuck_ns=5000)


def test_an_unanswered_ping_is_a_hang_after_its_time() -> None:
    detector = FailureDetector(RULES, 0)
    assert detector.ping(0) == 1
    assert detector.ping(50) is None
    assert not detector.is_hung(599)
    assert detector.is_hung(600)
    detector.ponged(0)
    assert detector.is_hung(600)
    detector.ponged(1)
    assert not detector.is_hung(600)
    assert detector.ping(99) is None
    assert detector.ping(100) == 2  # six fit into a hang


def test_detector_that_was_away_does_not_report_a_hang() -> None:
    detector = FailureDetector(RULES, 0)
    detector.ping(0)
    detector.asked("work", 0)
    detector.excuse(10_000)
    assert not detector.is_hung(10_599)
    assert detector.is_hung(10_600)
    detector.ponged(1)
    assert not detector.is_hung(14_999)
    assert detector.is_hung(15_000)
    assert detector.period_ns == 100  # a look that is late by three of them may be slow, one that is later was away
    assert [detector.was_away(1000, now_ns) for now_ns in (1300, 1301)] == [False, True]


def test_work_may_take_longer_than_a_ping() -> None:
    """The oldest unanswered work counts, whatever was answered meanwhile."""
    detector = FailureDetector(RULES, 0)
    for number in range(3):
        detector.asked(number, 100 * number)
    detector.answered(1)
    assert not detector.is_hung(4999)
    assert detector.is_hung(5000)
    detector.answered(0)
    assert not detector.is_hung(5199)
    assert detector.is_hung(5200)
    detector.answered(2)
    assert not detector.is_hung(10**9)
    detector.give_up()  # who says that it is stuck is believed at once
    assert detector.is_hung(0)
