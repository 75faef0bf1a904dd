"""What others take of devices: from counters of cores and processes, and from a GPU's list of who used it."""

from __future__ import annotations

import os
import sys
from collections import namedtuple
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import pynvml
import pytest

from hw.device_settings import DeviceSpec
from hw.router.local_cluster import background_watch
from hw.router.server_port import HardwareServer
from hw.router.worker_handles import WorkerSlot
from hw.telemetry import BackgroundWatch, CoreWatch, GpuWatch, Used, ended_children
from policies.run_records import BackgroundLoad
from policies.vocabulary import NS_PER_S
from tests.hw.fake_nvml import FakeNvml, FakeNvmlDevice, Handle
from tests.hw.tiny import params

Times = namedtuple("Times", "user system idle steal")


class Machine:
    """Cores of which each is busy for a share of the time, and stolen for another; and our processes' shares of one."""

    def __init__(self, *busy: float, stolen: float = 0.0, told: float = 1.0) -> None:
        self._busy, self._stolen, self._told = busy, stolen, told
        self.own: dict[int | str, tuple[float, frozenset[int] | None]] = {}
        self.now_s = 100.0

    def now_ns(self) -> int:
        return round(self.now_s * NS_PER_S)

    def core_times(self) -> Sequence[Any]:
        s = self._told * self.now_s
        return [Times(0.7 * b * s, 0.3 * b * s, (1 - b - self._stolen) * s, self._stolen * s) for b in self._busy]

    def used(self) -> dict[int | str, Used]:
        return {pid: Used(share * self.now_s, cores) for pid, (share, cores) in self.own.items()}

    def over(self, *devices: tuple[int, ...], seconds: float = 10.0) -> BackgroundLoad | None:
        watch = CoreWatch(devices, self.used, self.core_times, self.now_ns)
        self.now_s += 5.0  # before the start
        watch.start()
        self.now_s += seconds
        return watch.take()


def share_of(load: BackgroundLoad | None) -> float:
    assert load is not None
    return load.share


def test_ones_own_work_is_not_foreign() -> None:
    """Of two cores, busy for 90 % and 30 %, ours have 60 % and 30 %."""
    machine = Machine(0.9, 0.3)
    machine.own = {1: (0.6, frozenset({0})), 2: (0.3, frozenset({1}))}
    assert share_of(machine.over((0,), (1,))) == pytest.approx(0.3)
    assert share_of(machine.over((1,))) == pytest.approx(0.0)


def test_the_device_that_has_most_is_told() -> None:
    """Another program on one core of four is not a quarter of a load, it is all of one device."""
    machine = Machine(0.0, 0.0, 0.95, 0.0)
    assert share_of(machine.over((0, 1), (2,), (3,))) == pytest.approx(0.95)


def test_an_worker_that_died_was_ours() -> None:
    """Its time goes over to that of ended children, and a new one begins at nothing."""
    machine = Machine(0.8)
    machine.own = {1: (0.8, frozenset({0})), "ended": (0.0, None)}
    watch = CoreWatch([(0,)], machine.used, machine.core_times, machine.now_ns)
    machine.now_s += 10.0
    machine.own = {"ended": (0.8, None), 2: (0.0, frozenset({0}))}
    assert share_of(watch.take()) == pytest.approx(0.0)


def test_stolen_core_time_is_separate_from_the_load_of_programs() -> None:
    machine = Machine(0.5, stolen=0.25)
    load = machine.over((0,))
    assert load is not None
    assert (load.programs, load.stolen) == pytest.approx((0.5, 0.25))


@pytest.mark.parametrize("refuses", [True, False])
def test_counters_that_nobody_may_read_say_nothing(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so do those of fewer cores than there are; a run goes on without them."""

    def cpu_times(percpu: bool) -> Sequence[Any]:
        if refuses:
            raise PermissionError("/proc/stat")
        return [Times(0.0, 0.0, 0.0, 0.0)]

    monkeypatch.setattr("psutil.cpu_times", cpu_times)
    watch = CoreWatch([(0, 1)], dict)
    watch.start()
    assert watch.take() is None


def test_a_childs_time_is_kept_when_it_has_ended() -> None:
    """As the system's own counters have it, in ticks of 10 ms, of user and of system time."""
    before = ended_children().cpu_s
    code = "import time\nwhile time.process_time() < 0.1: pass"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
    assert ended_children().cpu_s - before > 0.07


# ------------------------------------------------------------------------------------------------------------ a GPU

OURS, OTHER = 11, 12


@pytest.fixture
def nvml_device() -> FakeNvmlDevice:
    found = FakeNvmlDevice()
    found.processes = [OURS, OTHER]
    found.used_pct = {OURS: 50, OTHER: 40}
    return found


def gpu(nvml_device: FakeNvmlDevice, own: Sequence[int] = (OURS,)) -> GpuWatch:
    return GpuWatch(FakeNvml(nvml_device), Handle(nvml_device), lambda: own)


def test_gpu_use_by_other_processes_is_read_per_process(nvml_device: FakeNvmlDevice) -> None:
    watch = gpu(nvml_device)
    nvml_device.used_pct = {OURS: 0, OTHER: 90}  # before the start
    nvml_device.advance(1.0)
    watch.start()
    for used in (40, 20):
        nvml_device.used_pct = {OURS: 50, OTHER: used}
        nvml_device.advance(1.0)
        watch.look()
    nvml_device.used_pct = {OURS: 50, OTHER: 4_294_967}  # garbage, of a process that has just ended
    nvml_device.advance(1.0)
    assert share_of(watch.take()) == pytest.approx(0.2)


@pytest.mark.parametrize("problem", ["unknown", "refused", "missing", "idle"])
def test_a_gpu_that_cannot_tell_says_nothing(nvml_device: FakeNvmlDevice, problem: str) -> None:
    """Ids of another namespace would make all others; MIG and old drivers refuse."""
    watch = gpu(nvml_device)
    if problem == "unknown":
        nvml_device.processes = [4711, 4712]
    elif problem == "refused":
        nvml_device.refused["nvmlDeviceGetProcessUtilization"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    elif problem == "missing":
        watch = GpuWatch(
            FakeNvml(nvml_device, missing=("nvmlDeviceGetProcessUtilization",)), Handle(nvml_device), lambda: (OURS,)
        )
    else:
        nvml_device.used_pct = {}
    watch.start()
    nvml_device.advance(1.0)
    assert watch.take() is None


def test_a_gpu_is_looked_at_once_a_second(nvml_device: FakeNvmlDevice) -> None:
    """It keeps samples of the last seconds only; its driver's time is not for nothing."""
    looks: list[int] = []

    class Counting(GpuWatch):
        def look(self) -> None:
            looks.append(1)

    watch = BackgroundWatch(None, [Counting(FakeNvml(nvml_device), Handle(nvml_device), lambda: (OURS,))])
    watch.start()
    looks.clear()
    for tenth in range(1, 41):
        watch.look(tenth * NS_PER_S // 10)
    assert len(looks) == 4


# --------------------------------------------------------------------------------------------------------- a cluster


class Slot:
    """A place whose worker is this process."""

    def __init__(self, pid: int) -> None:
        self.worker = self
        self.pid = pid


def servers(*devices: DeviceSpec) -> list[HardwareServer]:
    return [HardwareServer(f"s{index}", device, params(), 1.0, 2.0) for index, device in enumerate(devices)]


def watched(*devices: DeviceSpec, pids: Sequence[int]) -> BackgroundWatch:
    return background_watch(servers(*devices), cast(list[WorkerSlot], [Slot(pid) for pid in pids]))


def test_a_clusters_watch_is_of_all_its_devices(nvml_device: FakeNvmlDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", cast(ModuleType, FakeNvml(nvml_device)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml_device.used_pct = {OURS: 0, OTHER: 100}
    watch = watched(DeviceSpec(), DeviceSpec(kind="cuda"), pids=[os.getpid(), OURS])
    watch.start()
    nvml_device.advance(1.0)
    assert watch.take() == BackgroundLoad(1.0)
