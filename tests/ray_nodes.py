"""Ray nodes of one machine, started as Ray's users start them, each under the name of a host of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time  # noqa: TID251 - waits for real processes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil
import pytest

LOOPBACK: Final = "127.0.0.2"  # 127.0.0.1 is taken for this machine's other address by Ray
RAY_HOSTS: Final = ("alpha", "beta", "gamma")
"""The nodes that tests share: the fixture `ray_hosts`."""
TOKEN: Final = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
"""One for all nodes that this process starts, and that of its tests (`tests.conftest`): Ray reads it once."""
_START_S: Final = 150.0
_USUAL_START_S: Final = 7.0  # of a node on two idle cores
_STORE_BYTES: Final = 80_000_000


class RayNodes:
    """Some nodes; the first is the head, and must stay.

    Attributes:
        slowness: how many times as long as on an idle machine the start of a node took, 1 at least: what waits for
            processes of a node waits so much longer.
    """

    def __init__(self, temporary: Path, environment: Mapping[str, str], ip_address: str = LOOPBACK) -> None:
        self._port, self._client_port = _free_ports(2)
        self.address = f"{ip_address}:{self._port}"
        self._ip_address = ip_address
        self._temporary = temporary
        self._environment = {**os.environ, **environment}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.slowness = 1.0

    def add(self, host: str, prefix: Sequence[str] = (), ip_address: str = "") -> None:
        """Start one; returns when it is up. `prefix` goes before the command: of a network namespace, say."""
        ray = str(Path(sys.executable).parent / "ray")
        ip_address = ip_address or self._ip_address
        command = [*prefix, ray, "start", f"--node-ip-address={ip_address}", f"--labels=host={host}", "--num-cpus=2"]
        command += [f"--object-store-memory={_STORE_BYTES}", "--disable-usage-stats", "--block"]
        if self._nodes:
            command += [f"--address={self.address}"]
        else:
            command += ["--head", f"--port={self._port}", f"--ray-client-server-port={self._client_port}"]
            command += ["--include-dashboard=false", "--no-monitor", f"--temp-dir={self._temporary}"]
        log = self._temporary / f"start-{host}.log"
        with log.open("wb") as out:
            self._nodes[host] = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=self._environment, start_new_session=True
            )
        began_s = time.monotonic()
        while b"Ray runtime started" not in log.read_bytes():
            assert self._nodes[host].poll() is None, log.read_text()
            assert time.monotonic() - began_s < _START_S, log.read_text()
            time.sleep(0.05)
        self.slowness = max(self.slowness, (time.monotonic() - began_s) / _USUAL_START_S)

    def processes(self, host: str) -> list[psutil.Process]:
        """All processes of a node, its tasks among them."""
        root = psutil.Process(self._nodes[host].pid)
        return [root, *root.children(recursive=True)]

    def listening(self, host: str) -> set[tuple[str, int]]:
        """The addresses and ports at which processes of a node listen."""
        found = set()
        for process in self.processes(host):
            with contextlib.suppress(psutil.NoSuchProcess):
                every = process.net_connections("tcp")
                found |= {(each.laddr[0], each.laddr[1]) for each in every if each.status == psutil.CONN_LISTEN}
        return found

    def kill(self, host: str) -> None:
        """All processes of a node at once, as where its machine loses power."""
        started = self._nodes.pop(host)
        if started.poll() is not None:  # it has ended by itself, and taken all with it
            return
        root = psutil.Process(started.pid)
        gone = [root, *root.children(recursive=True)]
        for process in gone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        gone += [child for process in gone for child in _children(process) if child not in gone]
        for process in gone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(gone, timeout=10)

    def close(self) -> None:
        """All of them."""
        for host in reversed(list(self._nodes)):
            self.kill(host)


def _free_ports(count: int) -> list[int]:
    """Of no other Ray: of two that listen on one port each gets some of the connections."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@contextlib.contextmanager
def ray_nodes(
    hosts: Sequence[str],
    environment: Mapping[str, str] | None = None,
    places: Mapping[str, tuple[Sequence[str], str]] | None = None,
) -> Iterator[RayNodes]:
    """Nodes under these names; nothing is left of them.

    `places` says for each what goes before its command, and its address: for nodes in network namespaces.
    Whoever has not the token is not let in: Ray listens on every address of this machine. Meanwhile this process shows
    it, and so do those that it starts.
    """
    temporary = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray's sockets have long names as it is
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
    given |= {"RAY_worker_niceness": "0", **(environment or {})}
    places = places or dict.fromkeys(hosts, ((), LOOPBACK))
    nodes = RayNodes(temporary, given, places[hosts[0]][1])
    patch = pytest.MonkeyPatch()
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        patch.setenv(name, given[name])
    try:
        for host in hosts:
            nodes.add(host, *places[host])
        yield nodes
    finally:
        patch.undo()
        nodes.close()
        shutil.rmtree(temporary, ignore_errors=True)
