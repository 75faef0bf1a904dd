"""What a scenario's servers are to the executors."""

from __future__ import annotations

from pathlib import Path

from calibrate.meter import Trust
from scenarios.executors.run import hardware_servers
from scenarios.world.materials import load_world
from tests import worlds
from tests.scenarios.files import SEGMENTS, WIDTHS, write_scenario


def test_what_calibration_trusts_is_trusted_while_serving(tmp_path: Path) -> None:
    """The counter of the device whose profile says so, and that of a device that nobody tested."""
    path = write_scenario(tmp_path)
    device = {"kind": "cuda", "name": "g", "vram_bytes": 2**33, "stamps": Trust(counter=False).stamps()}
    slow = worlds.profile("slow", segments=SEGMENTS, widths=WIDTHS, batches=(1, 4, 16), speed=0.5, device=device)
    (tmp_path / "slow.yaml").write_text(slow.to_yaml())
    servers = hardware_servers(load_world(path))
    assert [(server.name, server.trusts_counter) for server in servers] == [("fast", True), ("slow", False)]
    assert {server.context_idle_w for server in servers} == {slow.power.context_idle_w}
