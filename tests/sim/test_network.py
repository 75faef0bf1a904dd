"""Links: latency, bandwidth, first-in-first-out on a shared medium, and packets that get lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.random_streams import hashed_share
from kit.units import nanoseconds
from sim.device_profile import Link
from sim.host_and_network import FREE, PACKET_BYTES, PRESETS, Attachment, Interconnect, rounds

FAST = Link(latency_s=1e-6, bandwidth_bytes_s=1e9)
SLOW = Link(latency_s=1e-3, bandwidth_bytes_s=1e6)


def test_a_transfer_takes_its_bytes_and_then_the_latency() -> None:
    assert Interconnect((Attachment("a", FAST),)).transfer(-1, 0, 1000, 500) == (500, 500 + 1000 + 1000)


def test_a_shared_medium_is_first_in_first_out_and_separate_media_are_not_shared() -> None:
    shared = Interconnect((Attachment("air", FAST), Attachment("air", FAST)))
    assert shared.transfer(-1, 0, 1000, 0) == (0, 2000)
    assert shared.transfer(-1, 1, 1000, 0) == (1000, 3000)
    apart = Interconnect((Attachment("a", FAST), Attachment("b", FAST)))
    apart.transfer(-1, 0, 1000, 0)
    assert apart.transfer(-1, 1, 1000, 0) == (0, 2000)


def test_the_slower_end_sets_the_slowdown() -> None:
    """Between servers both links count; from the router only the destination's."""
    network = Interconnect((Attachment("a", FAST), Attachment("b", SLOW)))
    assert network.transfer(1, 0, 1000, 0) == (0, 1_000_000 + 1_000_000)
    assert network.duration_s(-1, 0, 1000) == 1e-6 + 1e-6


def test_transfer_into_a_rack_passes_its_uplink_too() -> None:
    """1000 bytes at 100 MB/s, one behind the other, then the server's own link; two more latencies between racks."""
    uplink = Link(latency_s=5e-6, bandwidth_bytes_s=1e8)
    racks = (("a", "x"), ("b", "x"), ("c", "y"))
    far_ns = nanoseconds(1e-6 + 2 * 5e-6)
    network = Interconnect(tuple(Attachment(medium, FAST, rack, uplink) for medium, rack in racks))
    assert network.transfer(-1, 0, 1000, 0) == (10_000, 10_000 + 1000 + 6000)
    assert network.transfer(2, 1, 1000, 0) == (20_000, 20_000 + 1000 + far_ns)
    assert network.transfer(1, 0, 1000, 30_000) == (30_000, 30_000 + 1000 + 1000), "within the rack"
    assert network.transfer(0, 2, 1000, 0) == (10_000, 10_000 + 1000 + far_ns), "another uplink"
    assert network.duration_s(2, 1, 1000) == pytest.approx(10e-6 + 1e-6 + 11e-6)
    assert network.uplink_s(2, 1, 1000) == pytest.approx(10e-6)
    assert network.uplink_s(1, 0, 1000) == 0.0


def lossy(loss: float, latency_s: float = 1e-3) -> Link:
    return Link(latency_s=latency_s, bandwidth_bytes_s=1e6, loss=loss)


@given(st.integers(0, 2_000_000), st.floats(1e-6, 0.999), st.floats(0, 1, exclude_max=True))
def test_rounds_are_the_inverse_of_their_distribution(transfer_bytes: int, loss: float, chance: float) -> None:
    """The smallest r with (1 - p^r)^n >= u: r is enough, and r - 1 is not (but for the floats' last digits)."""
    packets = -(-transfer_bytes // PACKET_BYTES)
    r = rounds(transfer_bytes, loss, chance)

    def probability(count: int) -> float:
        return float(np.exp(packets * np.log1p(-(loss**count)))) if count else float(packets == 0)

    assert r >= 1
    assert probability(r) >= chance * (1 - 1e-9)
    assert r == 1 or probability(r - 1) <= chance * (1 + 1e-9)


@pytest.mark.parametrize("loss, packets", [(0.01, 1), (0.01, 100), (0.3, 10), (0.9, 3)])
def test_the_mean_number_of_rounds_is_that_of_the_slowest_packet(loss: float, packets: int) -> None:
    """The maximum of n geometric variables: E = sum over r >= 0 of 1 - (1 - p^r)^n; within four standard errors."""
    r = np.arange(2000)
    theory = float(np.sum(1 - (1 - loss**r) ** packets))
    medium = Interconnect((Attachment("a", lossy(loss)),), salt=7)
    extra_ns = []
    for number in range(4000):
        now_ns = number * 10**9
        _, arrival_ns = medium.transfer(-1, 0, packets * PACKET_BYTES, now_ns)
        extra_ns.append(arrival_ns - now_ns - packets * PACKET_BYTES / (1 - loss) * 1000)
    drawn = (np.array(extra_ns) / 1e6 + 1) / 2  # (2 r - 1) latencies of a millisecond
    assert abs(drawn.mean() - theory) < 4 * drawn.std() / np.sqrt(len(drawn)) + 1e-5


def test_a_medium_carries_what_is_sent_again() -> None:
    """Half of the packets are lost: twice the bytes occupy it, for those who queue behind, and in what is expected."""
    network = Interconnect((Attachment("air", lossy(0.5)), Attachment("air", lossy(0.5))))
    network.transfer(-1, 0, 1500, 0)
    started_ns, _ = network.transfer(-1, 1, 1500, 0)
    assert started_ns == 3_000_000
    assert network.duration_s(-1, 0, 1500) == pytest.approx(1e-3 + 3e-3)
    assert Interconnect((Attachment("a", lossy(0.5)), Attachment("b", lossy(0.2)))).duration_s(
        0, 1, 1500
    ) == pytest.approx(1e-3 + 1500 / 0.4 / 1e6)


def test_each_transfer_has_its_own_draw_by_medium_and_number() -> None:
    """The salt, the medium's place and the transfer's number on it: nothing else, so any two engines agree."""
    network = Interconnect(tuple(Attachment(medium, lossy(0.9)) for medium in "aba"), salt=5)
    seen = [(medium, network.transfer(-1, server, 1500, 0)[1]) for server, medium in ((0, 0), (1, 1), (2, 0), (0, 0))]
    numbers = {0: 0, 1: 0}
    free_ns = {0: 0, 1: 0}
    for medium, arrival_ns in seen:
        r = rounds(1500, 0.9, hashed_share(5, medium, numbers[medium]))
        numbers[medium] += 1
        free_ns[medium] += 15_000_000
        assert arrival_ns == pytest.approx(free_ns[medium] + (2 * r - 1) * 1_000_000, abs=10)


@given(
    st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 10**6)), max_size=20), st.integers(0, 9)
)
def test_without_loss_nothing_changes_whatever_the_salt(transfers: list[tuple[int, int, int]], salt: int) -> None:
    attachments = (Attachment("air", PRESETS["wifi5"]), Attachment("air", PRESETS["wifi5"]), Attachment("b", FAST))
    network, free_ns = Interconnect(attachments, salt), {"air": 0, "b": 0}
    for now_ns, (source, destination, size) in enumerate(transfers):
        ends = [attachments[end].link for end in (source, destination) if end >= 0]
        medium = attachments[destination].medium
        start_ns = max(now_ns, free_ns[medium])
        free_ns[medium] = start_ns + int(np.ceil(size / min(end.bandwidth_bytes_s for end in ends) * 1e9))
        arrival_ns = free_ns[medium] + int(np.ceil(max(end.latency_s for end in ends) * 1e9))
        assert network.transfer(source, destination, size, now_ns) == (start_ns, arrival_ns)


def test_a_free_link_costs_nothing_and_slows_nobody() -> None:
    network = Interconnect((Attachment("a", FREE), Attachment("b", SLOW)))
    assert network.transfer(-1, 0, 10**9, 5) == (5, 5)
    assert network.transfer(0, 1, 1000, 0) == (0, 2_000_000)
    assert network.duration_s(-1, 0, 10**9) == 0.0
