"""Waiting for a deadline: with a clock of its own, so that it does not hang on how fast this machine is."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import time  # noqa: TID251 - overruns are of real sleeps

import pytest

from hw.clock import Waker, overruns_ns, readable


class Host:
    """A clock, and sleeps that overrun by a known time; something may come at a known time."""

    def __init__(self, overrun_ns: int, comes_ns: int | None = None) -> None:
        self.now_ns, self.overrun_ns, self.comes_ns = 1_000_000, overrun_ns, comes_ns
        self.sleeps_s: list[float] = []

    def clock_ns(self) -> int:
        self.now_ns += 100  # to look takes time as well
        return self.now_ns

    def sleep(self, timeout_s: float) -> bool:
        self.sleeps_s.append(timeout_s)
        until_ns = self.now_ns + round(timeout_s * 1e9) + (self.overrun_ns if timeout_s else 0)
        if self.comes_ns is not None and self.comes_ns <= until_ns:
            self.now_ns = max(self.now_ns, self.comes_ns)
            return True
        self.now_ns = until_ns
        return False


def test_waker_wakes_before_the_deadline_and_polls_for_the_rest() -> None:
    host = Host(overrun_ns=30_000)
    waker = Waker(host.clock_ns, overrun_ns=40_000)
    assert not waker.wait(host.sleep, 3_000_000)
    assert 3_000_000 <= host.now_ns < 3_001_000
    asleep_s, *looks_s = host.sleeps_s
    assert asleep_s == pytest.approx(1.96e-3, abs=1e-6)
    assert len(looks_s) > 10
    assert set(looks_s) == {0.0}


@pytest.mark.parametrize("comes_ns", [1_500_000, 2_990_000])
def test_event_before_the_deadline_ends_the_wait(comes_ns: int) -> None:
    host = Host(overrun_ns=0, comes_ns=comes_ns)
    assert Waker(host.clock_ns, overrun_ns=40_000).wait(host.sleep, 3_000_000)
    assert comes_ns <= host.now_ns < 3_000_000


def test_sleep_overruns_are_measured_within_a_time_limit() -> None:
    """An overrun is never negative, and a short time limit reduces the number of sleeps."""
    found = overruns_ns(sleeps=5)
    assert found == sorted(found)
    assert len(found) == 5
    assert found[0] >= 0
    assert len(overruns_ns(sleeps=10**6, limit_ns=5_000_000)) < 1000
    assert Waker().overrun_ns >= 0


def test_looking_out_is_counted_apart() -> None:
    waker = Waker(overrun_ns=2_000_000)
    waker.wait(lambda _: False, time.monotonic_ns() + 1_000_000)
    assert 0 < waker.looked_ns < 100_000_000


def test_any_number_of_descriptors_can_be_waited_for() -> None:
    """`select` takes none above 1,023: with four a worker, no cluster of 256 could begin."""
    low, end = os.pipe()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 3000), before[1]))
    high = fcntl.fcntl(low, fcntl.F_DUPFD, 2500)
    try:
        assert high >= 2500
        assert readable((low, high), 0) == []
        began_s = time.monotonic()
        assert readable((high,), 0.0123) == []
        assert time.monotonic() - began_s >= 0.0123
        os.write(end, b"!")
        assert readable((high, low), None) == [high, low]
        assert readable((), 0) == []
    finally:
        for descriptor in (low, end, high):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_signal_that_ends_nothing_ends_no_wait() -> None:
    low, end = os.pipe()
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        began_s = time.monotonic()
        assert readable((low,), 0.05) == []
        assert time.monotonic() - began_s >= 0.05
        assert heard == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)
        os.close(low)
        os.close(end)
