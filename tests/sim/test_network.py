"""Links: latency, bandwidth, and first-in-first-out on a shared medium."""

from sim.network import Attachment, Network
from sim.profile import Link

FAST = Link(latency_s=1e-6, bandwidth_bytes_s=1e9)
SLOW = Link(latency_s=1e-3, bandwidth_bytes_s=1e6)


def test_a_transfer_takes_its_bytes_and_then_the_latency() -> None:
    """1000 bytes at 1 GB/s, one microsecond away."""
    assert Network((Attachment("a", FAST),)).transfer(-1, 0, 1000, 500) == (500, 500 + 1000 + 1000)


def test_a_shared_medium_is_first_in_first_out_and_separate_media_are_not_shared() -> None:
    """Bytes queue; the latency is not occupied."""
    shared = Network((Attachment("air", FAST), Attachment("air", FAST)))
    assert shared.transfer(-1, 0, 1000, 0) == (0, 2000)
    assert shared.transfer(-1, 1, 1000, 0) == (1000, 3000)
    apart = Network((Attachment("a", FAST), Attachment("b", FAST)))
    apart.transfer(-1, 0, 1000, 0)
    assert apart.transfer(-1, 1, 1000, 0) == (0, 2000)


def test_the_slower_end_sets_the_pace() -> None:
    """Between servers both links count; from the router only the destination's."""
    network = Network((Attachment("a", FAST), Attachment("b", SLOW)))
    assert network.transfer(1, 0, 1000, 0) == (0, 1_000_000 + 1_000_000)
    assert network.duration_s(-1, 0, 1000) == 1e-6 + 1e-6
