"""Who reads a device's sensor, and the integrals of what it said: energy is counted once, whoever dies."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from hw.device_settings import DeviceSpec
from hw.router.run_requests import RunDevice, devices_of
from hw.router.server_port import HardwareServer, RemoteServer
from hw.transport.messages import Sample
from policies.vocabulary import NS_PER_S
from tests.hw.tiny import params

PERIOD_NS = NS_PER_S // 10


@dataclass
class Server:
    """As a device sees it: whether it is up, and what it was told to read."""

    index: int
    is_up: bool = True
    told: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    @property
    def slot(self) -> SimpleNamespace:
        return SimpleNamespace(worker=SimpleNamespace(pid=100 + self.index))

    def sense(self, period_ns: int, pids: tuple[int, ...]) -> None:
        self.told.append((period_ns, pids))


def settle(device: RunDevice, servers: list[Server], now_ns: int) -> list[int]:
    device.settle(cast(list[RemoteServer], servers), now_ns)
    return [server.index for server in servers if server.is_up and server.told and server.told[-1][0]]


def shared() -> tuple[RunDevice, list[Server]]:
    return RunDevice("both", (0, 1), PERIOD_NS, 5.0, 10.0), [Server(0), Server(1)]


def sample(at_s: float, power_w: float = 40.0, energy_j: float | None = None) -> Sample:
    return Sample(round(at_s * NS_PER_S), power_w, 0.5, energy_j)


def test_each_device_is_read_with_its_own_period() -> None:
    """Of servers that share one the shortest counts."""
    placed = [((0,), 0.02), ((1,), 0.1), ((1,), 0.05)]
    servers = [HardwareServer("s", DeviceSpec(cores=at), params(), 1.0, 2.0, sensor_period_s=s) for at, s in placed]
    assert [(device.servers, device.period_ns) for device in devices_of(servers)] == [
        ((0,), NS_PER_S // 50),
        ((1, 2), NS_PER_S // 20),
    ]


def test_a_shared_device_has_one_reader_who_knows_all_processes() -> None:
    device, servers = shared()
    assert settle(device, servers, 0) == [0]
    assert servers[0].told[-1] == (PERIOD_NS, (100, 101))
    assert servers[1].told[-1][0] == 0


def test_another_takes_the_place_of_a_reader_that_died_and_energy_goes_on() -> None:
    """40 W for four seconds are 160 J, whoever reads, and however long it took until somebody else did."""
    device, servers = shared()
    settle(device, servers, 0)
    device.heard(sample(1.0))
    device.heard(sample(2.0))
    servers[0].is_up = False
    assert settle(device, servers, 2 * NS_PER_S) == [1]
    device.heard(sample(3.5))
    device.heard(sample(4.0))
    device.close(4 * NS_PER_S)
    assert device.energy_j == pytest.approx(160.0)
    assert device.busy_s == pytest.approx(2.0)


def test_counters_of_two_readers_have_no_common_origin() -> None:
    """Within a reader the counter's joules count; from one to the next it is power over time."""
    device, servers = shared()
    settle(device, servers, 0)
    device.heard(sample(1.0, energy_j=1000.0))  # 40 J by power: nothing to take the difference of
    device.heard(sample(2.0, energy_j=1007.0))
    servers[0].is_up = False
    settle(device, servers, 2 * NS_PER_S)
    device.heard(sample(3.0, energy_j=20.0))  # 40 J
    device.heard(sample(4.0, energy_j=29.0))
    assert device.energy_j == pytest.approx(40 + 7 + 40 + 9)


def test_a_counter_that_begins_anew_takes_nothing_away() -> None:
    """Its driver was loaded again: that while counts by power."""
    device, servers = shared()
    settle(device, servers, 0)
    for second, counter_j in enumerate((1000.0, 1040.0, 3.0, 43.0), start=1):
        device.heard(sample(second, energy_j=counter_j))
    assert device.energy_j == pytest.approx(160.0)
    assert device.unmetered_s == 0.0


def test_time_without_a_power_sample_is_counted_as_unmetered() -> None:
    """Unmetered time adds no energy; a counter that reports later makes up for the time that it covers."""
    device, servers = shared()
    settle(device, servers, 0)
    device.heard(Sample(NS_PER_S, 40.0, 0.5, None))
    device.heard(Sample(3 * NS_PER_S, None, 0.5, None))
    device.heard(Sample(4 * NS_PER_S, 40.0, 0.5, None))
    assert device.energy_j == pytest.approx(80.0)
    assert device.unmetered_s == pytest.approx(2.0)


def test_while_nobody_is_up_a_device_idles() -> None:
    """From its last sample until somebody reads again, and to the run's end where nobody does."""
    device, servers = shared()
    settle(device, servers, 0)
    device.heard(sample(1.0))
    servers[0].is_up = servers[1].is_up = False
    assert settle(device, servers, NS_PER_S) == []
    servers[1].is_up = True
    assert settle(device, servers, 3 * NS_PER_S) == [1]
    device.heard(sample(4.0))
    servers[1].is_up = False
    settle(device, servers, 4 * NS_PER_S)
    device.close(6 * NS_PER_S)
    assert device.energy_j == pytest.approx(40 + 2 * 5 + 40 + 2 * 5)
