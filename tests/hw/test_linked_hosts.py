"""Three Ray nodes in network namespaces, with links of known rates: what is measured, and a link that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time  # noqa: TID251 - a link dies in real time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hw.networks.network_files import save_model
from policies.faults import WORKER_HUNG
from policies.vocabulary import NS_PER_S
from tests.hw.tiny import tiny_model
from tests.namespaces import Hosts, linked_hosts, why_not
from tests.ray_nodes import RayNodes, ray_nodes

pytestmark = [
    pytest.mark.workers,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.release,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

RATES_MBIT_S = {"alpha": 200.0, "beta": 80.0, "gamma": 40.0}
HEAD = "alpha"
CUT_S = 8.0


class World:
    """The namespaces and the nodes in them."""

    def __init__(self, hosts: Hosts, nodes: RayNodes) -> None:
        self.hosts = hosts
        self.nodes = nodes

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.hosts.inside(HEAD), sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with linked_hosts(RATES_MBIT_S) as hosts:
        places = {host: (hosts.inside(host), hosts.address[host]) for host in RATES_MBIT_S}
        with ray_nodes(list(RATES_MBIT_S), places=places) as nodes:
            yield World(hosts, nodes)


def said(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def test_links_are_measured_at_the_rates_that_they_have(world: World) -> None:
    """Each way by itself: that of the slower of the two ends."""
    found = said(world.start("-m", "tests.hw.on_hosts", "links", world.nodes.address))
    links = {(each["source"], each["destination"]): each for each in found["links"]}
    assert set(links) == {(a, b) for a in RATES_MBIT_S for b in RATES_MBIT_S if a != b}
    for (source, destination), link in links.items():
        shaped_bytes_s = min(RATES_MBIT_S[source], RATES_MBIT_S[destination]) * 1e6 / 8
        assert link["bandwidth_bytes_s"] == pytest.approx(shaped_bytes_s, rel=0.1), (source, destination)
        assert 0 < link["latency_s"] < 0.05
    assert {clock["host"] for clock in found["clocks"]} == set(RATES_MBIT_S)


_TRY = """
import sys
from hw.router.ray_cluster import joined
from kit.errors import InputError
try:
    with joined(sys.argv[1], "scenario", "cluster.address", beyond_loopback=sys.argv[2] == "yes"):
        print('"joined"')
except InputError as error:
    import json
    print(json.dumps(str(error)))
"""


def test_hosts_that_others_reach_are_used_only_if_told_and_with_the_token(world: World) -> None:
    address = world.nodes.address
    assert said(world.start("-c", _TRY, address, "yes")) == "joined"
    untold = said(world.start("-c", _TRY, address, "no"))
    assert untold.startswith("scenario: cluster.beyond_loopback: ")
    assert "beyond_loopback: true" in untold
    stranger = said(world.start("-c", _TRY, address, "yes", RAY_AUTH_TOKEN="guessed"))
    assert "this process shows another one" in stranger


def test_a_link_that_dies_in_mid_transfer_loses_nothing(world: World, tmp_path: Path) -> None:
    """Its server is told down, by its missing signs of life, while bytes for it are under way; it serves again when the
    link is there again."""
    path = tmp_path / "tiny.safetensors"
    save_model(path, tiny_model(), "tiny", {})
    run = world.start("-m", "tests.hw.on_hosts", "run", world.nodes.address, str(path), "45", *RATES_MBIT_S)
    try:
        assert run.stdout is not None
        assert run.stdout.readline().strip() == "begun"
        time.sleep(2.0)
        began_s = time.monotonic()
        while not world.hosts.unsent_bytes(HEAD, "gamma"):
            assert time.monotonic() - began_s < 20.0
        world.hosts.cut("gamma")
        time.sleep(CUT_S / 2)
        assert world.hosts.unsent_bytes(HEAD, "gamma") > 0  # it was in the middle of something
        time.sleep(CUT_S / 2)
        world.hosts.mend("gamma")
        found = said(run)
    finally:
        run.kill()
        world.hosts.mend("gamma")
    assert found["requests"] == found["answers"] == found["completed"] == found["asked"]
    assert found["differences"] == []
    assert [(down["server"], down["reason"]) for down in found["downtimes"]] == [(2, WORKER_HUNG)]
    (down,) = found["downtimes"]
    assert down["up_ns"] - down["down_ns"] < (CUT_S + 10.0) * NS_PER_S
    assert any(server == 2 and started_ns > down["up_ns"] for server, started_ns in found["batches"])
