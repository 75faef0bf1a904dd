"""What `python -m benchmarks serving` says of goals, and of who was there while servers died."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.serving import soak
from benchmarks.serving.rows import row
from benchmarks.serving.soak import Ups
from benchmarks.serving.stand import throughput_img_s
from hw.frontend.load_generator import Ended, Outcome

CAPACITY = {frozenset("ab"): 30.0, frozenset("a"): 10.0, frozenset("b"): 20.0, frozenset(""): 0.0}


def test_a_goal_is_reached_from_its_own_side() -> None:
    found = [row("x", "y", 0.9, at_most=0.8), row("x", "y", 0.9, at_least=0.8), row("x", "y", 0.9), row("x", "y", 0, 0)]
    assert [each.is_reached for each in found] == [False, True, None, True]
    assert row("x", "y", float("nan"), at_most=1.0).is_reached is False


def test_server_detected_as_down_counts_as_down_since_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped server counts as up until it is detected; its capacity since the fault is then subtracted."""
    ups, now_s = Ups(), [0.0]
    monkeypatch.setattr(soak, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def look(at_s: float, names: str) -> None:
        now_s[0] = at_s
        states = {("slimsched_server_up", name): float(name in names) for name in "ab"}
        server: Any = SimpleNamespace(metrics=lambda: states)
        ups.look(server)

    for at_s in (0.0, 1.0, 2.0):
        look(at_s, "ab")
    ups.fault_s = 1.5
    look(4.0, "a")  # b stood still from 1.5 s on: the looks since then are put right
    look(6.0, "ab")
    assert ups.sustained(0.0, 10.0, CAPACITY) == pytest.approx(2 * 30 + 4 * 10 + 4 * 30)
    assert ups.sustained(5.0, 7.0, CAPACITY) == pytest.approx(1 * 10 + 1 * 30)


def test_only_what_ended_in_time_is_throughput() -> None:
    """The first fifth is left out, and so is what was answered afterwards, refused, or lost."""
    ended = [
        Ended("", 0.0, 0.0, at_s, code, None, b"") for at_s, code in ((1, 200), (2, 200), (9, 200), (9, 429), (11, 200))
    ]
    assert throughput_img_s(Outcome(5, ended), 10.0, images=4) == 2 * 4 / 8
