"""Collections of garbage are counted while somebody wants to know, and timed."""

import gc
import time  # noqa: TID251 - a slow end is timed
from collections.abc import Iterator

import pytest

from hw.host_resources import CollectionMeter


class Slow:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0.05)


@pytest.fixture
def by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_collections_are_counted_and_timed(by_hand: None) -> None:
    with CollectionMeter() as meter:
        assert (meter.count, meter.total_ns) == (0, 0)
        Slow()
        gc.collect()
        gc.collect(0)
        assert meter.count == 2
        assert 50_000_000 <= meter.total_ns < 5_000_000_000
    gc.collect()
    assert meter.count == 2
