"""What a scenario's servers are to the executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from hw.device_settings import DeviceSpec
from hw.router.server_port import HardwareServer
from scenarios.executors.executor_runs import hardware_servers, on_own_cores, warm_batches
from scenarios.experiment.scenario_building import load_experiment
from tests import tiny
from tests.hw.tiny import params
from tests.scenarios.files import SEGMENTS, WIDTHS, write_scenario


def test_sensors_are_what_profiles_say(tmp_path: Path) -> None:
    """Each is read with its profile's period."""
    path = write_scenario(tmp_path)
    slow = tiny.profile("slow", segments=SEGMENTS, widths=WIDTHS, batches=(1, 4, 16), speed=0.5)
    slow = slow.model_copy(update={"sensor": slow.sensor.model_copy(update={"period_s": 0.5})})
    (tmp_path / "slow.yaml").write_text(slow.to_yaml())
    servers = hardware_servers(load_experiment(path))
    assert [server.name for server in servers] == ["fast", "slow"]
    assert {server.context_idle_w for server in servers} == {slow.power.context_idle_w}
    assert [server.sensor_period_s for server in servers] == [0.05, 0.5]


@pytest.mark.parametrize(
    ("devices", "machine", "cores"),
    [
        (("cuda", "cuda"), 12, [(1, 2, 3, 4, 5), (6, 7, 8, 9, 10)]),
        (("cuda", (1, 2)), 8, [(3, 4, 5, 6, 7), (1, 2)]),  # the router's is the first that nobody names
        (("cuda", (0,), (5, 6)), 9, [(2, 3, 4, 7, 8), (0,), (5, 6)]),
        (("cuda", "cuda"), 10, [(), ()]),
        (("cuda", ()), 16, [(), ()]),  # whoever may run anywhere leaves nobody a core
        (((0,), (1,)), 16, [(0,), (1,)]),
    ],
)
def test_gpus_have_cores_to_themselves_where_there_are_enough(
    devices: tuple[str | tuple[int, ...], ...], machine: int, cores: list[tuple[int, ...]]
) -> None:
    specs = [
        DeviceSpec(kind="cuda") if device == "cuda" else DeviceSpec(cores=tuple(map(int, device))) for device in devices
    ]
    servers = [HardwareServer(f"s{place}", spec, params(), 0.0, 0.0) for place, spec in enumerate(specs)]
    assert [server.device.cores for server in on_own_cores(servers, range(machine))] == cores


def test_every_size_of_few_is_warmed_up_and_of_many_the_powers_of_two() -> None:
    assert warm_batches(5) == (1, 2, 3, 4, 5)
    assert warm_batches(100) == (1, 2, 4, 8, 16, 32, 64, 100)
    assert warm_batches(64) == (1, 2, 4, 8, 16, 32, 64)
