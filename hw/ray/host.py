"""The components on each host of a Ray cluster: an actor that keeps one agent's process, and the host's description.

The agent is a separate process, as on one host: Ray's threads take none of its time, and a pass takes as long as when
it was calibrated.
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import threading
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

import psutil

from hw.host.limits import core_count, machine_bytes
from hw.ray.cluster import HostFacts
from hw.ray.far_agent import FarStart, begin, how_it_ended
from hw.telemetry import DeviceDescription, available_devices
from hw.version import code_here, own_version
from kit.errors import WorkError
from kit.files import atomic_path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Supervisor:
    """A Ray actor that keeps a server's agents from start to end, one after another; they end with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[int, SpawnProcess] = {}  # by incarnation
        self._unwanted: set[int] = set()

    def code(self) -> tuple[str, str]:
        """Return the version and the code that run here."""
        return own_version(), code_here()

    def run(self, start: FarStart, model: bytes | None) -> str:
        """Run an agent for its whole life; return how it ended.

        Args:
            model: the file of the network that is served, if the agent needs one.

        Raises:
            WorkError: the file can't be kept here.
        """
        path = None if model is None else kept(model)
        with self._lock:
            if start.incarnation in self._unwanted:
                return "it was given up before it began"
            process = self._processes[start.incarnation] = begin(
                replace(start, model=path, log=fresh_log(start.spec.name))
            )
        process.join()
        with self._lock:
            del self._processes[start.incarnation]
        return how_it_ended(process)

    def signal(self, incarnation: int, number: int) -> None:
        """Send an agent a signal for a planned fault."""
        with self._lock:
            process = self._processes.get(incarnation)
            if process is not None and process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    def end(self, incarnation: int) -> None:
        """End that agent, even if it has not begun."""
        self._unwanted.add(incarnation)
        self.signal(incarnation, signal.SIGKILL)


LOGS: Final = "logs"
MAX_LOGS: Final = 50  # of agents; older ones go


def fresh_log(name: str) -> Path:
    """Open a file for an agent's output; the oldest files are deleted."""
    folder = cache() / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for old in files[: max(0, len(files) + 1 - MAX_LOGS)]:
        old.unlink(missing_ok=True)
    began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return folder / f"{name}-{began}-{os.getpid()}-{len(files)}.log"


def kept_logs() -> dict[str, bytes]:
    """Return the output of this host's agents, and of measurements in progress here, by name."""
    files = [*(cache() / LOGS).glob("*.log"), *(cache() / "calibrations").rglob("*.jsonl")]
    return {path.name: path.read_bytes() for path in files if path.stat().st_size}


def kept(model: bytes) -> Path:
    """Return the file with these bytes on this host; its name is their hash, so an existing file is the right one."""
    name = hashlib.sha256(model).hexdigest()
    path = cache() / "models" / f"{name}.safetensors"
    if not _is_whole(path, name):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                temporary.write_bytes(model)
        except OSError as error:
            problem = f"{len(model)} bytes of the model can't be kept in {path.parent} ({error.strerror})"
            raise WorkError(f"host {platform.node()}: {problem}; make room there, or set XDG_CACHE_HOME") from None
    return path


def _is_whole(path: Path, name: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == name
    except OSError:
        return False


def cache() -> Path:
    """Return this host's folder for files from others."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slimsched"


def machine() -> str:
    """Return a name of this machine, until it is started again: two hosts of one machine have the same one."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()


def _device_text(device: DeviceDescription) -> str:
    name = f"cuda:{device.index}" if device.kind == "cuda" else device.kind
    return f"{name} ({device.state})"


def facts(host: str) -> HostFacts:
    """Return this host's description of itself; it opens no device."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    return HostFacts(
        host=host,
        machine=machine(),
        python=platform.python_version(),
        version=own_version(),
        code=code_here(),
        torch=torch,
        cores=core_count(),
        memory_bytes=machine_bytes(),
        free_bytes=min(machine_bytes(), int(psutil.virtual_memory().available)),
        disk_free_bytes=int(psutil.disk_usage(str(Path.home())).free),
        devices=tuple(_device_text(device) for device in available_devices()),
        niceness=0 if os.geteuid() == 0 else os.getpriority(os.PRIO_PROCESS, 0),
    )
