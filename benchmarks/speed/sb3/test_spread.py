"""Which routers of a learning are scored, from times that were made up."""

from __future__ import annotations

from typing import Any

from benchmarks.speed.sb3.__main__ import KEPT, spread
from benchmarks.speed.sb3.bursty import Snapshot


def seen_at(*seconds: float) -> list[Snapshot]:
    """Snapshots at these times; a router is never asked."""
    nobody: Any = None
    return [Snapshot(each, 2 * each, round(1000 * each), nobody) for each in seconds]


def test_the_first_and_the_last_are_among_them_and_none_twice() -> None:
    """However many there were, at most so many are left, in order."""
    for seen in (seen_at(0.0, 1.0), seen_at(*(n / 10 for n in range(600))), seen_at(0.0, 5.0, 9.0, 60.0)):
        kept = spread(seen)
        assert (kept[0], kept[-1]) == (seen[0], seen[-1])
        assert len(kept) <= KEPT
        assert [each.seconds for each in kept] == sorted({each.seconds for each in kept})


def test_early_ones_are_closer_together() -> None:
    """Times grow by a ratio: most routers change early."""
    seconds = [each.seconds for each in spread(seen_at(*(n / 100 for n in range(6001))))]
    assert len(seconds) == KEPT
    assert seconds[5] < 2 < 20 < seconds[-2]
