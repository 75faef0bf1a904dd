"""Ray nodes of one machine, started as Ray's users start them, each under the name of a host of its own."""

from __future__ import annotations

import contextlib
import os
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

LOOPBACK: Final = "127.0.0.2"  # 127.0.0.1 is taken for this machine's other address by Ray
_START_S: Final = 60.0
_STORE_BYTES: Final = 80_000_000


class RayNodes:
    """Some nodes; the first is the head, and must stay."""

    def __init__(self, temporary: Path, environment: Mapping[str, str], ip_address: str = LOOPBACK) -> None:
        with socket.socket() as probe:
            probe.bind((ip_address, 0))
            port = probe.getsockname()[1]
        self.address = f"{ip_address}:{port}"
        self._ip_address = ip_address
        self._temporary = temporary
        self._environment = {**os.environ, **environment}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, host: str, prefix: Sequence[str] = (), ip_address: str = "") -> None:
        """Start one; returns when it is up. `prefix` goes before the command: of a network namespace, say."""
        ray = str(Path(sys.executable).parent / "ray")
        ip_address = ip_address or self._ip_address
        command = [*prefix, ray, "start", f"--node-ip-address={ip_address}", f"--labels=host={host}", "--num-cpus=2"]
        command += [f"--object-store-memory={_STORE_BYTES}", "--disable-usage-stats", "--block"]
        if self._nodes:
            command += [f"--address={self.address}"]
        else:
            command += ["--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false"]
            command += [f"--temp-dir={self._temporary}"]
        log = self._temporary / f"start-{host}.log"
        with log.open("wb") as out:
            self._nodes[host] = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=self._environment, start_new_session=True
            )
        until_s = time.monotonic() + _START_S
        while b"Ray runtime started" not in log.read_bytes():
            assert self._nodes[host].poll() is None, log.read_text()
            assert time.monotonic() < until_s, log.read_text()
            time.sleep(0.05)

    def kill(self, host: str) -> None:
        """All processes of a node at once, as where its machine loses power."""
        root = psutil.Process(self._nodes.pop(host).pid)
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


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@contextlib.contextmanager
def ray_nodes(hosts: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[RayNodes]:
    """Nodes under these names; nothing is left of them."""
    temporary = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray's sockets have long names as it is
    given = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        **(environment or {}),
    }
    nodes = RayNodes(temporary, given)
    try:
        for host in hosts:
            nodes.add(host)
        yield nodes
    finally:
        nodes.close()
        shutil.rmtree(temporary, ignore_errors=True)
