"""What a scenario's servers are to the executors."""

from __future__ import annotations

from pathlib import Path

from calibrate.meter import SensorTrust
from scenarios.executors.run import hardware_servers, warm_batches
from scenarios.world.materials import load_world
from tests import worlds
from tests.scenarios.files import SEGMENTS, WIDTHS, write_scenario


def test_what_calibration_trusts_is_trusted_while_serving(tmp_path: Path) -> None:
    """The counter of the device whose profile says so, and that of a device that nobody tested."""
    path = write_scenario(tmp_path)
    device = {"kind": "cuda", "name": "g", "vram_bytes": 2**33, "stamps": SensorTrust(counter=False).stamps()}
    slow = worlds.profile("slow", segments=SEGMENTS, widths=WIDTHS, batches=(1, 4, 16), speed=0.5, device=device)
    (tmp_path / "slow.yaml").write_text(slow.to_yaml())
    servers = hardware_servers(load_world(path))
    assert [(server.name, server.trusts_counter) for server in servers] == [("fast", True), ("slow", False)]
    assert {server.context_idle_w for server in servers} == {slow.power.context_idle_w}


def test_every_size_of_few_is_warmed_up_and_of_many_the_powers_of_two() -> None:
    assert warm_batches(5) == (1, 2, 3, 4, 5)
    assert warm_batches(100) == (1, 2, 4, 8, 16, 32, 64, 100)
    assert warm_batches(64) == (1, 2, 4, 8, 16, 32, 64)
